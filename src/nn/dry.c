/* Dry runs: a forward pass is recorded into a trace of its own, which is then thrown away. */
#include "nn/dry.h"
#include <string.h>
#include "kiln/grad.h"
#include "trace/trace.h"

typedef struct input {
    int ndim;
    const int64_t *shape;
    kiln_dtype dtype;
} input;

/* The input is never computed, so it takes no memory whatever its size. False also when a module went on after an error
 * (a value it wanted to look at): what comes out then is not what a real pass gives. */
static bool record(kiln_module *m, const input *in, void (*result)(const kiln_tensor *y, void *context), void *context)
{
    bool ok = false;
    uint64_t failures = kiln_fail_count();
    kiln_inner_scope {
        kiln_no_grad {
            kiln_on_device (kiln_module_device(m)) {
                kiln_tensor *y = kiln_forward(m, kiln_zeros(in->ndim, in->shape, in->dtype));
                ok = y && (kiln_ok() || kiln_fail_count() == failures);
                if (ok && result)
                    result(y, context);
            }
        }
    }
    return ok;
}

bool kiln_dry_run(kiln_module *m, int ndim, const int64_t *shape, kiln_dtype dtype, kiln_watch *watch,
                  void (*result)(const kiln_tensor *y, void *context), void *context)
{
    kiln_thread *th = kiln_thread_state();
    if (!th || !kiln_eval()) /* what is pending can only be read by the trace it is in */
        return false;
    kiln_trace *outer = th->trace;
    kiln_watch *outer_watch = kiln_nn.watch;
    kiln_random_state random = kiln_random_get();
    th->trace = NULL;
    kiln_nn.watch = watch;
    kiln_trace *tr = kiln_trace_current();
    bool ok = false;
    if (tr) {
        tr->busy = true; /* as if in the middle of a flush: nothing starts another one */
        ok = record(m, &(input){ndim, shape, dtype}, result, context);
        kiln_trace_discard(tr);
        th->trace_free(tr);
    }
    th->trace = outer;
    kiln_nn.watch = outer_watch;
    kiln_random_set(random);
    return ok;
}

/* ---- kiln_module_shape ---- */

static int64_t ignore_begin(kiln_watch *w, kiln_module *m, kiln_tensor *x)
{
    (void)w, (void)m, (void)x;
    return 0;
}

static void ignore_end(kiln_watch *w, int64_t number, kiln_tensor *y)
{
    (void)w, (void)number, (void)y;
}

typedef struct shape_out {
    int *ndim;
    int64_t *shape;
} shape_out;

static void note_shape(const kiln_tensor *y, void *context)
{
    const shape_out *out = context;
    *out->ndim = y->ndim;
    memcpy(out->shape, y->shape, y->ndim * sizeof *y->shape);
}

bool kiln_module_shape(kiln_module *m, int ndim, const int64_t *shape, kiln_dtype dtype, int *out_ndim,
                       int64_t *out_shape)
{
    if (out_ndim)
        *out_ndim = 0;
    if (!m || !out_ndim || !out_shape)
        return kiln_ok() ? kiln_fail(KILN_E_ARGUMENT, "module_shape", "the %s is NULL", m ? "result" : "module")
                         : false;
    kiln_watch watch = {ignore_begin, ignore_end};
    return kiln_dry_run(m, ndim, shape, dtype, &watch, note_shape, &(shape_out){out_ndim, out_shape});
}
