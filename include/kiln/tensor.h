/* Tensors: handles to values on a device. An operation checks its operands at once and returns a handle; the value is
 * computed when it is needed (read, printed, or at the end of a step). */
#ifndef KILN_TENSOR_H
#define KILN_TENSOR_H

#include "kiln/device.h"
#include "kiln/macros.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KILN_MAX_DIMS 8

typedef struct kiln_tensor kiln_tensor;

/* ---- Scopes: who owns what ------------------------------------------------------------------------------------
 * A tensor belongs to the innermost scope of the thread that made it, and is released when the scope ends, also when it
 * is left by return or goto. Outside any scope a tensor lives until kiln_release. kiln_keep takes a tensor out of its
 * scope. A tensor that is used after it was released is an error that says so. */

/* kiln_scope { … }: tensors made inside are released at its end. */
#define kiln_scope KILN_SCOPE_(KILN_SCOPE_PLAIN)

/* kiln_step { … }: a scope that also runs what was recorded in it when it ends: one training step. What was written
 * before it is computed before it. An error found while it is written or runs discards the whole step: parameters and
 * optimizer state are as before it. A value that is read inside ends a part of the step, which has run then and stays:
 * read before kiln_optim_step, not behind it. Gradients do not flow out of a step: what is kept from it is a constant
 * afterwards.
 *
 * The braces hide a loop, so break and continue inside them mean the step and not the loop around it. continue ends the
 * step early and runs it. break is taken for a mistake: the step is discarded, and a notice says so. Where a loop has
 * to be left or continued from within a step, write kiln_step_begin and kiln_step_end. return, goto and, in C++, an
 * exception end the step as continue does; call kiln_discard first where it must not run. */
#define kiln_step KILN_SCOPE_(KILN_SCOPE_STEP)

/* The same as two calls. kiln_step_end runs what was recorded since kiln_step_begin: false with an error if it could
 * not, or if an error was raised in the step. kiln_discard before it ends the step without running it. */
KILN_API bool kiln_step_begin(void);
KILN_API bool kiln_step_end(void);

/* What the macros are made of. */
typedef enum kiln_scope_kind {
    KILN_SCOPE_PLAIN,
    KILN_SCOPE_STEP,
    KILN_SCOPE_INNER, /* of the library's own */
    KILN_SCOPE_GUEST  /* a program's function, called from inside one of these */
} kiln_scope_kind;
typedef struct kiln_scope_mark {
    int32_t depth; /* 0 once the scope has ended */
    bool inside;   /* the braces were entered and their end was not reached */
} kiln_scope_mark;
KILN_API kiln_scope_mark kiln_scope_enter(kiln_scope_kind kind);
KILN_API void kiln_scope_leave(kiln_scope_mark *mark); /* by return or goto; leaving twice is harmless */
KILN_API void kiln_scope_end(kiln_scope_mark *mark);   /* at the closing brace, or by break if still inside */

/* One variable a scope, named after its line so that nested ones do not shadow each other. The inner loop runs once: if
 * it is left by break, its last expression is not reached. */
#define KILN_SCOPE_(kind) KILN_SCOPE_AS_(kind, KILN_LINE_NAME_(kiln_mark_, __LINE__))
#define KILN_SCOPE_AS_(kind, mark)                                                                                     \
    for (kiln_scope_mark mark __attribute__((cleanup(kiln_scope_leave))) = kiln_scope_enter(kind); mark.depth;         \
         kiln_scope_end(&mark))                                                                                        \
        for (mark.inside = true; mark.inside; mark.inside = false)
#define KILN_LINE_NAME_(prefix, line)  KILN_LINE_NAME2_(prefix, line)
#define KILN_LINE_NAME2_(prefix, line) prefix##line

/* Takes the tensor out of its scope: it lives until kiln_release. Returns it. */
KILN_API kiln_tensor *kiln_keep(kiln_tensor *t);

/* Gives up a tensor that no scope owns (or gives one up early). NULL is fine. Outside steps what was assigned before is
 * run then. */
KILN_API void kiln_release(kiln_tensor *t);

/* ---- Threads ----
 * Each thread records and runs steps of its own; tensors that have a value may be used by all. While one thread trains
 * others may read the same parameters: a step of theirs (what kiln_step encloses, if nothing is read inside) sees all
 * of a training step or nothing of it. Two threads that assign to one tensor take turns: an assignment to what another
 * thread has assigned to and not run yet is refused. What is pending in one thread cannot be used by another: call
 * kiln_eval before handing it over. Train and eval mode belong to a module and are not guarded: kiln_evaluate and
 * kiln_predict switch it, so a model that another thread trains needs a second one with the same weights. */

/* ---- Making tensors from data ---- */

/* A tensor of `ndim` dimensions on `device`, filled from `data` (row-major, copied at once). NULL data: zeros. */
KILN_API kiln_tensor *kiln_tensor_new(const void *data, kiln_dtype dtype, int ndim, const int64_t *shape,
                                      kiln_device device);

/* kiln_of_f32(((float[]){1, 2, 3, 4}), 2, 2): a [2, 2] tensor on the default device from a C array. */
#define kiln_of_f32(data, ...) KILN_OF_(data, KILN_F32, KILN_SHAPE(__VA_ARGS__))
#define kiln_of_f64(data, ...) KILN_OF_(data, KILN_F64, KILN_SHAPE(__VA_ARGS__))
#define kiln_of_i64(data, ...) KILN_OF_(data, KILN_I64, KILN_SHAPE(__VA_ARGS__))
KILN_API kiln_tensor *kiln_of_(const void *data, kiln_dtype dtype, size_t count, int ndim, const int64_t *shape);
#ifdef __cplusplus
extern "C++" {
template <class T, size_t N> /* an array that may be a temporary */
kiln_tensor *kiln_of_array_(const T (&data)[N], kiln_dtype dtype, int ndim, const int64_t *shape)
{
    return kiln_of_(data, dtype, N, ndim, shape);
}
}
#define KILN_OF_(data, dtype, ...) kiln_of_array_(data, dtype, __VA_ARGS__)
#else
#define KILN_OF_(data, dtype, ...) kiln_of_((data), dtype, sizeof(data) / sizeof *(data), __VA_ARGS__)
#endif

/* KILN_SHAPE(2, 3) stands for the two arguments "number of dimensions, array of sizes"; KILN_DIMS(0, 1) likewise. */
#define KILN_SHAPE(...) KILN_LIST_(int64_t, __VA_ARGS__)
#define KILN_DIMS       KILN_SHAPE

/* ---- Asking ---- */

KILN_API kiln_dtype kiln_dtype_of(const kiln_tensor *t);   /* KILN_DTYPES for NULL */
KILN_API kiln_device kiln_device_of(const kiln_tensor *t); /* KILN_NO_DEVICE for NULL */
KILN_API int kiln_ndim(const kiln_tensor *t);              /* -1 for NULL */
KILN_API int64_t kiln_size(const kiln_tensor *t, int dim); /* dim < 0 counts from the end; -1 with an error if bad */
KILN_API int64_t kiln_numel(const kiln_tensor *t);         /* -1 for NULL */
KILN_API const int64_t *kiln_shape(const kiln_tensor *t);  /* valid while t lives; NULL for NULL */
KILN_API const int64_t *kiln_strides(const kiln_tensor *t);
KILN_API bool kiln_is_contiguous(const kiln_tensor *t);

/* A name used in error messages and descriptions ("net.0.weight"). The text is copied. */
KILN_API kiln_tensor *kiln_set_name(kiln_tensor *t, const char *name);
KILN_API const char *kiln_get_name(const kiln_tensor *t); /* "" when it has none */

/* ---- Reading: these compute what is pending ---- */

/* Copies all elements, row-major, in the tensor's dtype, to `out` of `bytes` bytes (which must be exactly enough). */
KILN_API bool kiln_read(kiln_tensor *t, void *out, size_t bytes);

/* Overwrites the tensor's elements from `data` (row-major, its dtype, exactly `bytes`). */
KILN_API bool kiln_write(kiln_tensor *t, const void *data, size_t bytes);

/* The value of a tensor with one element; NaN (or 0) with an error otherwise. */
KILN_API double kiln_item(kiln_tensor *t);
KILN_API int64_t kiln_item_i64(kiln_tensor *t);

/* Computes everything recorded in this thread so far. False with an error if it could not run; what was pending is then
 * discarded. */
KILN_API bool kiln_eval(void);

/* Text as PyTorch prints a tensor, in a fresh string to be freed with kiln_string_free; NULL with an error. */
KILN_API char *kiln_to_string(kiln_tensor *t);
KILN_API void kiln_string_free(char *text);
KILN_API bool kiln_print(kiln_tensor *t, FILE *stream);

/* ---- Placement ---- */

/* The same values on another device (the tensor itself when it is there already). Gradients flow back through it. */
KILN_API kiln_tensor *kiln_to(kiln_tensor *t, kiln_device device);

/* Where tensors are made when no device is given; per thread, KILN_CPU at first. */
KILN_API kiln_device kiln_default_device(void);
KILN_API bool kiln_set_default_device(kiln_device device);

/* kiln_on_device(dev) { … }: the default device inside the braces; restored also on return. break and continue inside
 * them end the braces, not the loop around them, and a break is noticed. */
#define kiln_on_device(device) KILN_ON_DEVICE_AS_(device, KILN_LINE_NAME_(kiln_device_, __LINE__))
#define KILN_ON_DEVICE_AS_(device, scope)                                                                              \
    for (kiln_device_scope scope __attribute__((cleanup(kiln_device_scope_leave))) = kiln_device_scope_enter(device);  \
         scope.active; kiln_device_scope_end(&scope))                                                                  \
        for (scope.inside = true; scope.inside; scope.inside = false)
typedef struct kiln_device_scope {
    kiln_device saved;
    bool active, inside;
} kiln_device_scope;
KILN_API kiln_device_scope kiln_device_scope_enter(kiln_device device);
KILN_API void kiln_device_scope_leave(kiln_device_scope *scope);
KILN_API void kiln_device_scope_end(kiln_device_scope *scope);

/* ---- Shapes without memory ----
 * kiln_shapes_only { … }: tensors made inside the braces have a shape, a dtype and a device, but no memory and no
 * values, whatever their size, and nothing is computed there: initialisers do nothing. So a model of any size can be
 * made in an instant, to look at its shapes (kiln_module_shape, kiln_summary) or to record a training step and plan it
 * (kiln_plan_pending, kiln_plan_describe), inside the braces or after them; optimizers make the state of such
 * parameters without memory, too. kiln_module_to gives them another device. Reading such a tensor, or running a step
 * that does, is an error. It gets memory when all of it is assigned to after the braces: by kiln_module_load,
 * kiln_assign, kiln_write, kiln_init_…
 *
 * What was written before the braces is computed before them. Inside, tensors that have memory can be operands and be
 * moved; assigning to one is an error. break and continue inside the braces end them, not the loop around them, and a
 * break is noticed. */
#define kiln_shapes_only KILN_SHAPES_ONLY_AS_(KILN_LINE_NAME_(kiln_shapes_, __LINE__))
#define KILN_SHAPES_ONLY_AS_(scope)                                                                                    \
    for (kiln_shapes_scope scope __attribute__((cleanup(kiln_shapes_scope_leave))) = kiln_shapes_scope_enter();        \
         scope.active; kiln_shapes_scope_end(&scope))                                                                  \
        for (scope.inside = true; scope.inside; scope.inside = false)
typedef struct kiln_shapes_scope {
    bool saved, active, inside;
} kiln_shapes_scope;
KILN_API kiln_shapes_scope kiln_shapes_scope_enter(void);
KILN_API void kiln_shapes_scope_leave(kiln_shapes_scope *scope);
KILN_API void kiln_shapes_scope_end(kiln_shapes_scope *scope);

/* True if t has only a shape; false for NULL, and for a tensor that is not computed yet. */
KILN_API bool kiln_is_shape_only(const kiln_tensor *t);

#ifdef __cplusplus
}
#endif
#endif
