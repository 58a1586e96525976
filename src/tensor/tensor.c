/* Tensor handles: making, counting, asking. */
#include "tensor/tensor.h"
#include <stdlib.h>
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "tensor/scope.h"
#include "tensor/thread.h"

atomic_int kiln_hooks;

kiln_tensor *kiln_tensor_make(kiln_storage *storage, kiln_dtype dtype, int ndim, const int64_t *shape,
                              const int64_t *stride, int64_t offset)
{
    kiln_thread *th = storage ? kiln_thread_state() : NULL;
    if (!th) {
        kiln_storage_unref(storage);
        return NULL;
    }
    kiln_tensor *t = kiln_thread_reuse(th);
    if (!t && !(t = kiln_alloc_aligned(sizeof *t))) {
        kiln_storage_unref(storage);
        return NULL;
    }
    atomic_init(&t->refs, 1);
    t->alive = true;
    t->bare = false;
    t->goes_up = KILN_STAYS_BEHIND;
    t->dtype = (uint8_t)dtype;
    t->ndim = (uint8_t)ndim;
    t->requires_grad = false;
    t->leaf = true;
    t->detached = false;
    t->device = storage->device;
    t->scope = 0;
    t->value = -1;
    t->version = 0;
    kiln_set_epoch(t, 0);
    t->storage = storage;
    t->extra = NULL;
    t->offset = offset;
    t->spent = KILN_UNSPENT;
    if (!stride)
        kiln_dense_strides(ndim, shape, t->stride);
    for (int d = 0; d < ndim; d++) { /* a handful of words: loops are quicker than calls here */
        t->shape[d] = shape[d];
        if (stride)
            t->stride[d] = stride[d];
    }
    if (!kiln_scope_adopt(th, t)) {
        kiln_tensor_drop(t);
        return NULL;
    }
    return t;
}

kiln_tensor *kiln_tensor_ref(kiln_tensor *t)
{
    if (t)
        atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

/* The last reference is gone. */
static void end_handle(kiln_tensor *t, bool seen)
{
    if (t->extra) {
        kiln_tensor_unref(t->extra->grad);
        if (t->extra->hook)
            atomic_fetch_sub(&kiln_hooks, 1);
        kiln_free(t->extra);
    }
    if (t->requires_grad && !t->leaf)
        kiln_trace_forget(t);
    kiln_storage_unref(t->storage);
    t->alive = false;
    kiln_thread *th = kiln_thread_state();
    if (!th) {
        kiln_free(t);
        return;
    }
    th->nbare -= t->bare;
    kiln_thread_recycle(th, t, seen);
}

void kiln_tensor_unref(kiln_tensor *t)
{
    if (t && kiln_unref(&t->refs))
        end_handle(t, true);
}

void kiln_tensor_drop(kiln_tensor *t)
{
    if (t && kiln_unref(&t->refs))
        end_handle(t, false);
    else if (t)
        t->alive = false;
}

bool kiln_tensor_fail_released(const char *who)
{
    kiln_fail(KILN_E_STATE, who,
              "the tensor was released: the kiln_step or kiln_scope that it was made in has ended, or kiln_release was "
              "called for it");
    return kiln_hint("use it before the closing brace, or take it out of its scope there with kiln_keep and release it "
                     "when it is no longer needed");
}

bool kiln_tensor_given(const kiln_tensor *t, const char *who, int operand)
{
    if (!t)
        return kiln_fail_null(who, operand);
    return kiln_tensor_usable(t, who);
}

kiln_tensor_extra *kiln_tensor_extras(kiln_tensor *t)
{
    if (!t->extra)
        t->extra = kiln_alloc_zero(1, sizeof *t->extra);
    return t->extra;
}

void kiln_dense_strides(int ndim, const int64_t *shape, int64_t *stride)
{
    int64_t step = 1;
    for (int d = ndim; d-- > 0;) {
        stride[d] = step;
        if (__builtin_mul_overflow(step, shape[d] > 0 ? shape[d] : 1, &step))
            step = 0; /* sizes that no tensor can have: whoever asks for it refuses them */
    }
}

bool kiln_is_dense(int ndim, const int64_t *shape, const int64_t *stride)
{
    int64_t step = 1;
    for (int d = 0; d < ndim; d++)
        if (shape[d] == 0)
            return true;
    for (int d = ndim; d-- > 0;) {
        if (shape[d] != 1 && stride[d] != step)
            return false;
        step *= shape[d];
    }
    return true;
}

bool kiln_tensor_is_whole(const kiln_tensor *t)
{
    return t->offset == 0 && kiln_is_contiguous(t) &&
           (size_t)kiln_numel(t) * kiln_dtype_size((kiln_dtype)t->dtype) == t->storage->bytes;
}

kiln_dtype kiln_dtype_of(const kiln_tensor *t)
{
    return t && kiln_tensor_usable(t, "dtype_of") ? (kiln_dtype)t->dtype : KILN_DTYPES;
}

kiln_device kiln_device_of(const kiln_tensor *t)
{
    return t && kiln_tensor_usable(t, "device_of") ? t->device : KILN_NO_DEVICE;
}

int kiln_ndim(const kiln_tensor *t)
{
    return t && kiln_tensor_usable(t, "ndim") ? t->ndim : -1;
}

const int64_t *kiln_shape(const kiln_tensor *t)
{
    return t && kiln_tensor_usable(t, "shape") ? t->shape : NULL;
}

const int64_t *kiln_strides(const kiln_tensor *t)
{
    return t && kiln_tensor_usable(t, "strides") ? t->stride : NULL;
}

int64_t kiln_numel(const kiln_tensor *t)
{
    int64_t n = 1;
    if (!t || !kiln_tensor_usable(t, "numel"))
        return -1;
    for (int d = 0; d < t->ndim; d++)
        n *= t->shape[d];
    return n;
}

int64_t kiln_size(const kiln_tensor *t, int dim)
{
    if (!kiln_tensor_given(t, "size", 1))
        return -1;
    int d = dim < 0 ? dim + t->ndim : dim;
    if (d < 0 || d >= t->ndim) {
        kiln_fail(KILN_E_ARGUMENT, "size", "dim %d is not in a tensor of %d dimensions", dim, t->ndim);
        return -1;
    }
    return t->shape[d];
}

bool kiln_is_contiguous(const kiln_tensor *t)
{
    return t && kiln_tensor_usable(t, "is_contiguous") && kiln_is_dense(t->ndim, t->shape, t->stride);
}

kiln_tensor *kiln_set_name(kiln_tensor *t, const char *name)
{
    kiln_tensor_extra *e = kiln_tensor_given(t, "set_name", 1) ? kiln_tensor_extras(t) : NULL;
    if (!e)
        return NULL;
    snprintf(e->name, sizeof e->name, "%s", name ? name : "");
    return t;
}

const char *kiln_get_name(const kiln_tensor *t)
{
    return t && kiln_tensor_usable(t, "get_name") && t->extra ? t->extra->name : "";
}

const char *kiln_tensor_label(const kiln_tensor *t, const char *fallback)
{
    return t && t->extra && t->extra->name[0] ? t->extra->name : fallback;
}
