/* From trace to plan: the passes in their order. */
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "plan/backend.h"
#include "plan/draft.h"

/* Figures end where 64 bits do: a step of any size can be planned, if not run. */
static int64_t plus(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

static int64_t times(int64_t a, int64_t b)
{
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

static int64_t window_bytes(const kiln_plan *p, const kiln_operand *o)
{
    if (o->buffer >= 0 && p->buffers[o->buffer].role == KILN_ROLE_DATASET)
        return 0;  /* a few samples of it: as much as the batch they become, which is counted */
    int64_t n = 1; /* repeated elements are read from cache: count what lies in memory */
    for (int i = 0; i < o->ndim; i++)
        n *= o->stride[i] ? o->shape[i] : 1;
    return o->buffer < 0 ? 0 : n * (int64_t)kiln_dtype_size((kiln_dtype)o->dtype);
}

static int64_t kernel_flops(const kiln_kernel *k)
{
    int64_t n = k->group ? times(k->group->count, k->group->ninstrs + k->group->reduces) : 0;
    if (!k->op || k->op->cls == KILN_CLASS_REDUCE)
        return n;
    if (k->op->cls == KILN_CLASS_MATMUL) {
        const kiln_operand *a = &k->in[0];
        int64_t result = k->group ? k->group->count : kiln_count(k->out[0].ndim, k->out[0].shape);
        return plus(n, times(2 * result, a->shape[a->ndim - 1]));
    }
    if (k->op->cls == KILN_CLASS_CONV) { /* x·w, gy·w or gy·x: every product belongs to an output place and a weight */
        bool weight_grad = k->out[0].shape[2] == k->ints[7] && k->nints == 9 && k->in[1].shape[0] == k->in[0].shape[0];
        const kiln_operand *w = weight_grad ? &k->out[0] : &k->in[1];
        const kiln_operand *y = k->nints == 7 ? &k->out[0] : &k->in[0];
        return times(2 * y->shape[0] * y->shape[2] * y->shape[3], kiln_count(w->ndim, w->shape));
    }
    if (k->op->cls == KILN_CLASS_ATTENTION) { /* two products of the scores' size, or five; causal ones half of it */
        const kiln_operand *q = &k->in[0], *v = &k->in[2];
        int64_t scores = times(kiln_count(q->ndim - 1, q->shape), v->shape[v->ndim - 2]), e = q->shape[q->ndim - 1];
        int64_t both = k->nin == 3 ? e + v->shape[v->ndim - 1] : 3 * e + 2 * v->shape[v->ndim - 1];
        return times(scores, k->ints[0] ? both : 2 * both);
    }
    for (int j = 0; j < k->nout; j++)
        n = plus(n, kiln_count(k->out[j].ndim, k->out[j].shape));
    return n;
}

void kiln_draft_count(kiln_draft *d)
{
    kiln_plan *p = d->plan;
    for (int64_t i = 0; i < p->nkernels; i++) {
        kiln_kernel *k = &p->kernels[i];
        const kiln_group *g = k->group;
        k->flops = kernel_flops(k);
        for (int j = 0; j < k->nin; j++)
            k->bytes = plus(k->bytes, window_bytes(p, &k->in[j]));
        for (int j = 0; j < k->nout; j++)
            k->bytes = plus(k->bytes, window_bytes(p, &k->out[j]));
        for (int j = 0; g && j < g->nloads; j++)
            k->bytes = plus(k->bytes, window_bytes(p, &g->loads[j]));
        for (int j = 0; g && j < g->nstores; j++)
            k->bytes = plus(k->bytes, window_bytes(p, &g->stores[j].to));
        if (g && g->reduces)
            k->bytes = plus(k->bytes, window_bytes(p, &g->reduce_to));
        p->flops = plus(p->flops, k->flops);
        p->bytes = plus(p->bytes, k->bytes);
    }
}

void kiln_plan_unref(kiln_plan *plan)
{
    if (!plan || atomic_fetch_sub(&plan->refs, 1) != 1)
        return;
    if (plan->exec)
        kiln_backend_dispose(plan);
    kiln_arena_free(&plan->pool);
    kiln_free(plan);
}

static bool run_passes(kiln_draft *d)
{
    if (!kiln_draft_vary(d) || !kiln_draft_expand(d) || !kiln_draft_import(d) || !kiln_draft_merge(d))
        return false;
    d->plan->nnodes = d->nnodes;
    kiln_draft_prune(d);
    if (!kiln_draft_fuse(d) || !kiln_draft_order(d) || !kiln_draft_kernels(d) || !kiln_draft_place(d))
        return false;
    kiln_draft_count(d);
    return true;
}

kiln_plan *kiln_plan_build(kiln_trace *tr, const kiln_wild *wild, int64_t nwild)
{
    kiln_plan *p = kiln_alloc_zero(1, sizeof *p);
    if (!p)
        return NULL;
    atomic_init(&p->refs, 1);
    p->device = tr->device;
    p->hash = tr->hash;
    p->ncode = tr->ncode;
    p->noutputs = (int32_t)tr->nkept;
    p->nscalars = (int32_t)tr->nfloats - tr->first_float;
    p->code = KILN_ARENA_NEW(&p->pool, int64_t, tr->ncode);
    p->wild = KILN_ARENA_NEW(&p->pool, kiln_wild, nwild);
    p->nwild = nwild;
    kiln_draft d = {.tr = tr, .plan = p, .pool = &p->pool, .wild = wild, .nwild = nwild};
    uint64_t failures = kiln_fail_count();
    bool ok = p->code && p->wild;
    if (ok)
        memcpy(p->code, tr->code, (size_t)tr->ncode * sizeof *p->code);
    if (ok && nwild)
        memcpy(p->wild, wild, (size_t)nwild * sizeof *p->wild);
    ok = ok && run_passes(&d);
    kiln_arena_free(&d.scratch);
    /* Kernels fall back to something plainer when they cannot prepare. For want of memory that is an error: the same
     * step would give other bits, and need other workspace, than it does on other days. */
    if (ok && kiln_backend_lower(p) && kiln_fail_count() == failures) {
        p->held = (int64_t)(sizeof *p + p->pool.total + kiln_backend_held(p));
        return p;
    }
    kiln_plan_unref(p);
    return NULL;
}
