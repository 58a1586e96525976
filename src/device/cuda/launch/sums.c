/* Which sums products can do, and the plan without them. */
#include "device/cuda/launch/sums.h"
#include "core/alloc.h"
#include "core/fail.h"
#include "device/cuda/common/depend.h"
#include "device/cuda/gemm/epilogue.h"
#include "device/cuda/launch/exec.h"
#include "device/cuda/launch/rewrite.h"

/* ---- What is the sum of what ---- */

/* Beyond that the library takes longer than a kernel that reads the operand once more: its sum of 200 MB costs 70 to 95
 * µs on an H200, a read at memory's speed 50; of 6 MB it costs 5, which is what a launch or two take. */
enum { MOST_BYTES = 16 << 20 };

/* A sum of one operand, not too large, and nothing else, which nobody has to be kept from writing, at an address that
 * the library takes. */
static bool is_plain_sum(const kiln_plan *plan, const kiln_kernel *k)
{
    const kiln_group *g = k->group;
    if (!g || !g->reduces || g->fold != KILN_FOLD_SUM || g->head >= 0 || g->nloads != 1 || g->ninstrs || g->nstores)
        return false;
    const kiln_operand *to = &g->reduce_to;
    return g->count <= MOST_BYTES / (int64_t)kiln_dtype_size((kiln_dtype)to->dtype) && to->dense &&
           to->dtype == g->loads[0].dtype && plan->buffers[to->buffer].place != KILN_IN_SLOT &&
           to->offset * (int64_t)kiln_dtype_size((kiln_dtype)to->dtype) % KILN_CUDA_BIAS_ALIGN == 0;
}

/* Whether the dims of `o` that are in `dims` are one dim, of this size and stride. */
static bool are_one(const kiln_operand *o, uint32_t dims, int64_t size, int64_t stride)
{
    int64_t covered = 1;
    for (int d = o->ndim; d-- > 0;) {
        if (!(dims >> d & 1) || o->shape[d] == 1)
            continue;
        if (o->stride[d] != stride * covered)
            return false;
        covered *= o->shape[d];
    }
    return covered == size;
}

/* Whether the group sums x, a matrix of a product, over its dim `gone` and leaves `kept`. */
static bool sums_up(const kiln_group *g, const kiln_operand *x, int kept, int gone)
{
    const kiln_operand *from = &g->loads[0];
    return from->buffer == x->buffer && from->offset == x->offset && from->dtype == x->dtype &&
           are_one(from, ~g->reduce_dims, x->shape[kept], x->stride[kept]) &&
           are_one(from, g->reduce_dims, x->shape[gone], x->stride[gone]);
}

/* What of the product the group is the sum of; 0: nothing. */
static int64_t summed(const kiln_kernel *product, const kiln_group *g)
{
    const kiln_operand *a = &product->in[0], *b = &product->in[1];
    return sums_up(g, a, a->ndim - 2, a->ndim - 1)   ? KILN_CUDA_SUM_OF_A
           : sums_up(g, b, b->ndim - 1, b->ndim - 2) ? KILN_CUDA_SUM_OF_B
                                                     : 0;
}

/* ---- Moving ---- */

/* Whether the sum can be made when the product is: where it goes is used for nothing else then, by the product or by
 * kernels between the two, and what it reads is the same. Memory is compared, not buffers: they may share it. */
static bool can_move(const kiln_plan *plan, int32_t sum, int32_t product)
{
    const kiln_group *g = plan->kernels[sum].group;
    int32_t from = g->loads[0].buffer, to = g->reduce_to.buffer, end = sum < product ? product : sum;
    if (kiln_cuda_touches(plan, &plan->kernels[product], to) || kiln_cuda_writes(plan, &plan->kernels[product], from))
        return false;
    for (int32_t k = (sum < product ? sum : product) + 1; k < end; k++)
        if (kiln_cuda_touches(plan, &plan->kernels[k], to) || kiln_cuda_writes(plan, &plan->kernels[k], from))
            return false;
    return true;
}

/* Lets the product make the sum, if the library can. False with an error. */
static bool absorb(kiln_cuda_device *d, kiln_plan *plan, int32_t sum, int32_t product, int64_t of, bool *done)
{
    kiln_kernel *k = &plan->kernels[product], before = *k;
    kiln_operand *out = KILN_ARENA_NEW(&plan->pool, kiln_operand, before.nout + 1);
    int64_t *ints = KILN_ARENA_NEW(&plan->pool, int64_t, 1);
    kiln_cuda_call c;
    if (!out || !ints)
        return false;
    for (int i = 0; i < before.nout; i++)
        out[i] = before.out[i];
    out[before.nout] = plan->kernels[sum].group->reduce_to;
    ints[0] = of;
    k->out = out;
    k->nout++;
    k->ints = ints;
    k->nints = 1;
    kiln_cuda_make_call(&c, d, plan, k, NULL, NULL);
    if (!kiln_cuda_matmul_can_sum(&c, done))
        return false;
    if (*done)
        plan->kernels[sum] = (kiln_kernel){.workspace = -1}; /* touches nothing */
    else
        *k = before;
    return true;
}

/* Finds a product for the sum; there may be none. False with an error. */
static bool absorb_one(kiln_cuda_device *d, kiln_plan *plan, int32_t sum, bool *done)
{
    *done = false;
    for (int32_t p = 0; !*done && p < plan->nkernels; p++) {
        const kiln_kernel *k = &plan->kernels[p];
        if (!k->op || k->op->cls != KILN_CLASS_MATMUL || k->nints)
            continue;
        int64_t of = summed(k, plan->kernels[sum].group);
        if (of && can_move(plan, sum, p) && !absorb(d, plan, sum, p, of, done))
            return false;
    }
    return true;
}

/* ---- Plans ---- */

static void close_gaps(kiln_plan *plan)
{
    int64_t kept = 0;
    for (int64_t k = 0; k < plan->nkernels; k++)
        if (plan->kernels[k].op || plan->kernels[k].group)
            plan->kernels[kept++] = plan->kernels[k];
    plan->nkernels = kept;
}

/* A sum that is a step of a chain stays there: it costs little, and what comes next in the chain would be launched for
 * itself. */
static bool absorb_in_parts(kiln_cuda_device *d, kiln_plan *plan, const kiln_cuda_part *parts, int64_t n,
                            int64_t *absorbed)
{
    for (int64_t i = 0; i < n; i++) {
        bool done = false;
        int32_t k = parts[i].first;
        if (parts[i].end - k > 1 || plan->kernels[k].choice.how || plan->kernels[k].choice.by ||
            !is_plain_sum(plan, &plan->kernels[k]))
            continue;
        if (!absorb_one(d, plan, k, &done))
            return false;
        *absorbed += done;
    }
    return true;
}

/* Sums that have to be made by a product, since they were. */
static bool absorb_chosen(kiln_cuda_device *d, kiln_plan *plan, int64_t *absorbed)
{
    for (int32_t k = 0; k < plan->nkernels; k++) {
        int32_t product = plan->kernels[k].choice.by - 1;
        int64_t of = product < 0 ? 0 : summed(&plan->kernels[product], plan->kernels[k].group);
        bool done = false;
        if (product < 0)
            continue;
        if (of && can_move(plan, k, product) && !absorb(d, plan, k, product, of, &done))
            return false;
        if (!done)
            return kiln_fail(KILN_E_DEVICE, "sum", "it cannot be made along with a product, as in the step as it was");
        ++*absorbed;
    }
    return true;
}

bool kiln_cuda_absorb_sums(kiln_cuda_device *d, const kiln_plan *plan, kiln_plan **absorbed)
{
    int64_t count = 0;
    kiln_cuda_part *parts = kiln_alloc_zero((size_t)plan->nkernels + 1, sizeof *parts);
    *absorbed = parts ? kiln_cuda_plan_copy(plan) : NULL;
    bool ok = *absorbed && absorb_chosen(d, *absorbed, &count) &&
              absorb_in_parts(d, *absorbed, parts, kiln_cuda_cut(d, plan, parts), &count);
    kiln_free(parts);
    if (ok && count) {
        close_gaps(*absorbed);
        return true;
    }
    kiln_cuda_plan_free(*absorbed);
    *absorbed = NULL;
    return ok;
}
