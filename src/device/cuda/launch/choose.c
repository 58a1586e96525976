/* How a plan's products would be computed if it were lowered: the tiles of a product follow from what else is in its
 * chain, a library may do what comes behind a product, and a product may make a sum. Nothing of it is kept. */
#include "core/alloc.h"
#include "device/cuda/gemm/choice.h"
#include "device/cuda/gemm/matmul.h"
#include "device/cuda/launch/exec.h"

typedef struct choosing {
    kiln_cuda_device *d;
    kiln_cuda_exec e;
    const kiln_plan *plan;
    kiln_choice *choices;
} choosing;

static bool is_product(const kiln_kernel *k)
{
    return k->op && k->op->cls == KILN_CLASS_MATMUL;
}

/* Sums that products make are no kernels any more; all others have kept their order. */
static bool is_same(const kiln_kernel *a, const kiln_kernel *b)
{
    return a->in == b->in && a->group == b->group && a->node == b->node;
}

/* The product that makes a sum. */
static int32_t maker_of(const choosing *c, const kiln_kernel *sum)
{
    int32_t now = 0;
    for (int32_t k = 0; now < c->e.plan->nkernels && k < c->plan->nkernels; k++) {
        int64_t of;
        const kiln_kernel *x = &c->e.plan->kernels[now];
        if (!is_same(&c->plan->kernels[k], x))
            continue;
        now++;
        const kiln_operand *made = is_product(x) ? kiln_cuda_sum(x, &of) : NULL;
        if (made && made->buffer == sum->group->reduce_to.buffer)
            return k;
    }
    return -1;
}

static bool choose_product(const choosing *c, int32_t now, uint64_t *how)
{
    const kiln_cuda_part *p = &c->e.parts[c->e.part_of[now]];
    kiln_cuda_call call;
    kiln_cuda_make_call(&call, c->d, c->e.plan, &c->e.plan->kernels[now], NULL, NULL);
    call.tiling = p->chain ? kiln_cuda_chain_tiling(p->chain, now) : NULL;
    return kiln_cuda_matmul_choose(&call, how);
}

static bool choose_all(choosing *c)
{
    int32_t now = 0;
    for (int32_t k = 0; k < c->plan->nkernels; k++) {
        const kiln_kernel *x = &c->plan->kernels[k];
        if (now == c->e.plan->nkernels || !is_same(x, &c->e.plan->kernels[now])) {
            c->choices[k].by = maker_of(c, x) + 1;
            continue;
        }
        if (is_product(x) && !choose_product(c, now, &c->choices[k].how))
            return false;
        if (x->group && x->group->reduces && !is_product(x))
            c->choices[k].how = KILN_CUDA_BY_ITSELF;
        now++;
    }
    return true;
}

/* Addresses decide nothing, but kernels that share memory must be seen to. */
static kiln_address *distinct_addresses(const kiln_plan *plan)
{
    int64_t n = (int64_t)plan->nslots + plan->noutputs;
    kiln_address *at = kiln_alloc((size_t)n + 1, sizeof *at);
    for (int64_t i = 0; at && i < n; i++)
        at[i] = (kiln_address)(i + 2) << 40;
    return at;
}

bool kiln_cuda_choose(void *dev, const kiln_plan *plan, kiln_choice *choices)
{
    choosing c = {.d = dev, .plan = plan, .choices = choices};
    kiln_address *at = distinct_addresses(plan);
    if (!at)
        return false;
    const kiln_binding b = {.slots = at, .outputs = at + plan->nslots, .arena = (kiln_address)1 << 40};
    bool ok = kiln_cuda_enter(dev) && kiln_cuda_make_parts(dev, &c.e, plan) && kiln_cuda_make_chains(dev, &c.e, &b) &&
              choose_all(&c);
    kiln_cuda_free_parts(&c.e);
    kiln_free(at);
    return ok;
}
