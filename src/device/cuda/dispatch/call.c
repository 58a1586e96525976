/* Calls: what launchers get for a kernel of a plan, and which launcher that is. */
#include <string.h>
#include "core/fail.h"
#include "device/cuda/common/depend.h"
#include "device/cuda/dispatch/call.h"
#include "device/cuda/gemm/matmul.h"
#include "device/cuda/group/around.h"
#include "device/cuda/group/program.h"

_Static_assert((int)KILN_CUDA_AROUND == (KILN_CAN_END | KILN_CAN_LEAD) && (int)KILN_CUDA_WINDOWS == KILN_CAN_WINDOW,
               "as CUDA sources have them");

/* ---- Kernels by operation ---- */

static const kiln_cuda_kernel *const tables[] = {
    kiln_cuda_kernels_rows,      kiln_cuda_kernels_norm,   kiln_cuda_kernels_index,   kiln_cuda_kernels_sort,
    kiln_cuda_kernels_pool,      kiln_cuda_kernels_resize, kiln_cuda_kernels_random,  kiln_cuda_kernels_conv,
    kiln_cuda_kernels_attention, kiln_cuda_kernels_lstm,   kiln_cuda_kernels_samples, kiln_cuda_kernels_require,
    kiln_cuda_kernels_rotary};

static const kiln_cuda_kernel *find_kernel(const kiln_op *op, kiln_dtype dtype)
{
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const kiln_cuda_kernel *k = tables[t]; k->op; k++)
            if (strcmp(k->op, op->name) == 0 && k->dtypes >> dtype & 1)
                return k;
    return NULL;
}

bool kiln_cuda_supports(void *dev, const kiln_op *op, kiln_dtype dtype)
{
    (void)dev;
    switch (op->cls) {
    case KILN_CLASS_VIEW:
    case KILN_CLASS_POINTWISE:
    case KILN_CLASS_REDUCE: return true;
    case KILN_CLASS_MATMUL: return kiln_dtype_is_float(dtype);
    default: return find_kernel(op, dtype) != NULL;
    }
}

unsigned kiln_cuda_can(void *dev, const kiln_op *op, kiln_dtype dtype, const kiln_work *work)
{
    (void)dev, (void)work;
    const kiln_cuda_kernel *k = op->cls == KILN_CLASS_MATMUL ? NULL : find_kernel(op, dtype);
    return op->cls == KILN_CLASS_MATMUL ? KILN_CAN_END : k ? k->can : 0;
}

/* Of the first operand, which may be made on the way; where there is none, of the first result. */
static kiln_dtype first_dtype(const kiln_kernel *k)
{
    return (kiln_dtype)(k->nin && (k->in[0].buffer >= 0 || k->lead) ? k->in[0].dtype : k->out[0].dtype);
}

/* ---- Calls ---- */

static kiln_cuda_operand plain_operand(const kiln_cuda_call *c, const kiln_operand *o)
{
    kiln_cuda_operand p = {.dtype = (kiln_dtype)o->dtype, .ndim = o->ndim, .shape = o->shape, .stride = o->stride};
    if (c->binding && o->buffer >= 0)
        p.data = kiln_cuda_address(c, o);
    return p;
}

void kiln_cuda_make_call(kiln_cuda_call *c, kiln_cuda_device *d, const kiln_plan *plan, const kiln_kernel *k,
                         const kiln_binding *binding, const double *scalars)
{
    *c = (kiln_cuda_call){.device = d,
                          .stream = d->run_stream,
                          .name = k->op ? k->op->name : "a fused group",
                          .kernel = k,
                          .nin = k->nin,
                          .nout = k->nout,
                          .ints = k->ints,
                          .nints = k->nints,
                          .nfloats = k->nscalars,
                          .tf32 = k->tf32,
                          .capability = d->capability,
                          .multiprocessors = d->multiprocessors,
                          .costs = &d->costs,
                          .plan = plan,
                          .binding = binding};
    c->scalars = scalars;
    c->floats = scalars ? scalars + k->scalars : NULL;
    for (int i = 0; i < k->nin; i++)
        c->in[i] = plain_operand(c, &k->in[i]);
    for (int j = 0; j < k->nout; j++)
        c->out[j] = plain_operand(c, &k->out[j]);
    if (!binding)
        return;
    if (k->workspace >= 0)
        c->workspace = (void *)(uintptr_t)kiln_buffer_address(plan, binding, k->workspace);
    c->fault = (kiln_cuda_fault){.state = d->status, .record = d->mapped, .kernel = (int32_t)(k - plan->kernels)};
    c->stop = kiln_cuda_writes_slot(plan, k) ? &d->status->stop : NULL;
}

const kiln_cuda_kernel *kiln_cuda_kernel_of(const kiln_cuda_call *c)
{
    return c->kernel->op ? find_kernel(c->kernel->op, first_dtype(c->kernel)) : NULL;
}

size_t kiln_cuda_workspace(void *dev, const kiln_kernel *k)
{
    kiln_cuda_call c;
    kiln_cuda_make_call(&c, dev, NULL, k, NULL, NULL);
    if (k->op && k->op->cls == KILN_CLASS_MATMUL)
        return kiln_cuda_matmul_workspace(&c);
    if (k->group && !kiln_cuda_is_around(&c))
        return kiln_cuda_group_workspace(dev, k->group);
    const kiln_cuda_kernel *kernel = kiln_cuda_kernel_of(&c);
    if (kernel && kiln_cuda_is_around(&c))
        return kiln_cuda_around_workspace(&c, kernel);
    return kernel && kernel->workspace ? kernel->workspace(&c) : 0;
}

const char *kiln_cuda_type_name(uint8_t dtype)
{
    return dtype == KILN_F16 ? "kiln_f16" : dtype == KILN_BF16 ? "kiln_bf16" : "float";
}

bool kiln_cuda_launched(const kiln_cuda_call *c)
{
    cudaError_t e = cudaGetLastError();
    return e == cudaSuccess || kiln_fail(kiln_cuda_code(c->device, e), c->name, "cuda:%d: launching %s failed: %s",
                                         c->device->index, c->name, cudaGetErrorString(e));
}

bool kiln_cuda_launch(const kiln_cuda_call *c)
{
    const kiln_kernel *k = c->kernel;
    if (k->op && k->op->cls == KILN_CLASS_MATMUL)
        return kiln_cuda_matmul_launch(c);
    if (k->group && !kiln_cuda_is_around(c))
        return kiln_cuda_group_launch(c, k->group, NULL);
    const kiln_cuda_kernel *kernel = kiln_cuda_kernel_of(c);
    if (!kernel)
        return kiln_fail(KILN_E_UNSUPPORTED, k->op->name, "cuda has no kernel for %s in %s", k->op->name,
                         kiln_dtype_name(first_dtype(k)));
    return kiln_cuda_is_around(c) ? kiln_cuda_around_launch(c, kernel) : kernel->launch(c);
}
