/* From trace to plan: the passes in their order. */
#include <string.h>
#include "core/alloc.h"
#include "core/counts.h"
#include "core/fail.h"
#include "plan/backend.h"
#include "plan/draft.h"
#include "plan/roof.h"
#include "tensor/memory.h"

static int64_t window_bytes(const kiln_operand *o)
{
    int64_t n = 1; /* repeated elements are read from cache: count what lies in memory */
    for (int i = 0; i < o->ndim; i++)
        n *= o->stride[i] ? o->shape[i] : 1;
    return n * (int64_t)kiln_dtype_size((kiln_dtype)o->dtype);
}

/* An operation with many operands (cat) marks none of those that its bits do not reach. */
static bool picks_from(const kiln_kernel *k, const kiln_access *a)
{
    enum { MARKED = 8 * sizeof k->op->picks };
    return a->kind == KILN_ACCESS_OPERAND && k->op && a->number < MARKED && k->op->picks >> a->number & 1;
}

/* Of an operand out of which elements are picked no more than the results are counted. Workspaces stay in caches. */
static int64_t access_bytes(const kiln_kernel *k, const kiln_access *a)
{
    int64_t all = a->operand ? window_bytes(a->operand) : 0;
    if (!picks_from(k, a))
        return all;
    int64_t results = window_bytes(&k->out[0]);
    return all < results ? all : results;
}

static int64_t kernel_flops(const kiln_kernel *k)
{
    int64_t n = k->group ? kiln_times(k->group->count, k->group->ninstrs + k->group->reduces) : 0;
    if (k->lead)
        n = kiln_plus(n, kiln_times(k->lead->count, k->lead->ninstrs));
    if (!k->op || k->op->cls == KILN_CLASS_REDUCE)
        return n;
    kiln_work w = {.nin = k->nin, .nout = k->nout, .ints = k->ints};
    for (int i = 0; i < k->nin; i++)
        w.in[i] = (kiln_work_shape){k->in[i].ndim, k->in[i].shape};
    for (int j = 0; j < k->nout; j++)
        w.out[j] = (kiln_work_shape){k->out[j].ndim, k->out[j].shape};
    w.results = k->group ? k->group->count : kiln_count(k->out[0].ndim, k->out[0].shape);
    if (k->op->flops)
        return kiln_plus(n, k->op->flops(&w));
    if (k->group && !k->nout)
        return kiln_plus(n, w.results);
    for (int j = 0; j < k->nout; j++)
        n = kiln_plus(n, kiln_count(k->out[j].ndim, k->out[j].shape));
    return n;
}

void kiln_draft_count(kiln_draft *d)
{
    kiln_plan *p = d->plan;
    for (int64_t i = 0; i < p->nkernels; i++) {
        kiln_kernel *k = &p->kernels[i];
        k->flops = kernel_flops(k);
        for (kiln_access a = {0}; kiln_next_access(k, &a);)
            k->bytes = kiln_plus(k->bytes, access_bytes(k, &a));
        p->flops = kiln_plus(p->flops, k->flops);
        p->bytes = kiln_plus(p->bytes, k->bytes);
        p->seconds += kiln_roof_seconds(p->device, (double)k->flops, (double)k->bytes);
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

/* What was made to fit takes no less than it may: see kiln_budget. */
static void leave_unused(kiln_plan *p, const kiln_budget *budget)
{
    int64_t need = p->arena_bytes + p->all_output_bytes, least = budget ? budget->floor + KILN_BLOCK_ALIGN : 0;
    if (need < least)
        p->arena_bytes += (least - need) / KILN_BLOCK_ALIGN * KILN_BLOCK_ALIGN;
}

static int64_t count_live(const kiln_draft *d)
{
    int64_t n = 0;
    for (int32_t i = 0; i < d->nnodes; i++)
        n += d->node_live[i];
    return n;
}

static bool run_passes(kiln_draft *d, const kiln_budget *budget)
{
    if (!kiln_draft_vary(d) || !kiln_draft_expand(d) || !kiln_draft_import(d) || !kiln_draft_merge(d) ||
        !kiln_draft_chunk(d))
        return false;
    d->plan->nnodes = d->nnodes;
    if (!kiln_draft_widen(d) || !kiln_draft_pitch(d))
        return false;
    kiln_draft_prune(d);
    int64_t nodes = count_live(d);
    if (!kiln_draft_fuse(d) || !kiln_draft_order(d) || !kiln_draft_recompute(d) ||
        (budget && kiln_draft_fit(d, budget) != KILN_FITS) || !kiln_draft_kernels(d) || !kiln_draft_place(d))
        return false;
    d->plan->recomputed = count_live(d) - nodes;
    leave_unused(d->plan, budget);
    kiln_draft_count(d);
    return true;
}

static kiln_plan *build(kiln_trace *tr, const kiln_wild *wild, int64_t nwild, const kiln_budget *budget, bool lower)
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
    ok = ok && run_passes(&d, budget);
    kiln_arena_free(&d.scratch);
    /* Kernels fall back to something plainer when they cannot prepare. For want of memory that is an error: the same
     * step would give other bits, and need other workspace, than it does on other days. */
    if (ok && (!lower || kiln_backend_lower(p)) && kiln_fail_count() == failures) {
        p->held = (int64_t)(sizeof *p + p->pool.total + (lower ? kiln_backend_held(p) : 0));
        return p;
    }
    kiln_plan_unref(p);
    return NULL;
}

kiln_plan *kiln_plan_build(kiln_trace *tr, const kiln_wild *wild, int64_t nwild, const kiln_budget *budget)
{
    return build(tr, wild, nwild, budget, true);
}

kiln_plan *kiln_plan_draw(kiln_trace *tr)
{
    return build(tr, NULL, 0, NULL, false);
}
