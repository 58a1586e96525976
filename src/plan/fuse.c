/* Fusion: which nodes run together. The nodes are visited from the last to the first, and groups run in the reverse of
 * the order they are opened in. A node joins the group that uses it first, if that group reads it element by element;
 * all its other users run later, and whatever it reads itself is visited later and therefore runs no later. So every
 * order that comes out is a right one, and one pass suffices.
 *
 * A group is pointwise work over one number of elements. It may end in one reduction (opened by it), and may begin with
 * one product (a matmul, or a convolution where the device can), whose result it then finishes while it is in cache. It
 * does both where the reduction is a count, whose bits no order changes, and the device can. */
#include <string.h>
#include "plan/backend.h"
#include "plan/draft.h"

/* More than this in one group and its registers leave the first-level cache. */
enum { MAX_GROUP = 48 };

static int32_t open_group(kiln_draft *d, kiln_shape_of_work work, int64_t count)
{
    d->groups[d->ngroups] = (kiln_draft_group){.work = work, .last = -1, .head = -1, .root = -1, .count = count};
    return d->ngroups++;
}

static void join(kiln_draft *d, int32_t node, int32_t group)
{
    kiln_draft_group *g = &d->groups[group];
    d->node_group[node] = group;
    d->node_next[node] = g->last;
    g->last = node;
    g->nnodes++;
}

/* Notes that `group` reads the value; `in_order`: element by element along with the group's own. */
static void use(kiln_draft *d, int32_t value, int32_t group, bool in_order)
{
    kiln_draft_value *x = &d->values[kiln_draft_base(d, value)];
    if (x->group == group)
        x->fusable &= in_order;
    else {
        x->elsewhere = x->group >= 0;
        x->group = group; /* opened later than any seen so far, or the same: it runs first */
        x->fusable = in_order;
    }
}

/* Groups are opened in reverse order, but a node may join an older one: then it may not become "the first user". */
static void use_by_order(kiln_draft *d, int32_t value, int32_t group, bool in_order)
{
    kiln_draft_value *x = &d->values[kiln_draft_base(d, value)];
    if (x->group > group)
        x->elsewhere = true;
    else
        use(d, value, group, in_order);
}

static bool same_shape(const kiln_value *a, const kiln_value *b)
{
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape) == 0;
}

/* Memory order is [kept…, reduced…] or [reduced…, kept…]; anything else makes the reduction walk the elements in an
 * order of its own, and then nothing but the result can be stored. */
static bool reduction_permutes(const kiln_draft *d, const kiln_node *n, const kiln_value *x)
{
    uint32_t dims = 0;
    for (int i = 1; i < n->nints; i++)
        dims |= 1u << d->tr->ints[n->ints + i];
    int changes = 0, before = -1;
    for (int i = 0; i < x->ndim; i++) {
        if (x->shape[i] == 1)
            continue;
        int reduced = dims >> i & 1;
        changes += before >= 0 && reduced != before;
        before = reduced;
    }
    return changes > 1;
}

/* The group that node's first output may join, or -1. */
static int32_t candidate(const kiln_draft *d, const kiln_node *n)
{
    int32_t out = kiln_draft_of(d, n->out);
    const kiln_draft_value *x = &d->values[out];
    if (x->group < 0 || !x->fusable)
        return -1;
    const kiln_draft_group *g = &d->groups[x->group];
    if (g->work != KILN_WORK_GROUP || g->count != kiln_draft_numel(x->v) || g->nnodes >= MAX_GROUP)
        return -1;
    if (g->root >= 0) {
        const kiln_node *r = kiln_draft_node(d, g->root);
        if (!same_shape(x->v, d->values[kiln_draft_in(d, r, 0)].v))
            return -1;
        if (g->permuted && (x->elsewhere || x->output >= 0 || x->commits))
            return -1;
    }
    return x->group;
}

/* A result that nothing in the segment reads (an assignment, a kept value) can be computed at any time: best along with
 * something else that reads the same operand. */
static int32_t companion(const kiln_draft *d, const kiln_node *n, int64_t count)
{
    for (int k = 0; k < n->nin; k++) {
        int32_t in = kiln_draft_in(d, n, k);
        const kiln_draft_value *x = in >= 0 ? &d->values[kiln_draft_base(d, in)] : NULL;
        if (!x || x->node < 0 || x->group < 0 || !kiln_draft_in_order(d, in))
            continue;
        const kiln_draft_group *g = &d->groups[x->group];
        if (g->work == KILN_WORK_GROUP && g->count == count && g->root < 0 && g->nnodes < MAX_GROUP)
            return x->group;
    }
    return -1;
}

static bool is_product(const kiln_draft *d, const kiln_node *n)
{
    return n->op->cls == KILN_CLASS_MATMUL ||
           (n->op->cls == KILN_CLASS_CONV && kiln_backend_finishes_convolutions(d->plan->device));
}

/* Whether the group ends in a sum of integers, over all elements, that a product at its start can make on its way. */
static bool counts(const kiln_draft *d, const kiln_draft_group *g)
{
    extern const kiln_op kiln_op_sum;
    if (g->root < 0 || !kiln_backend_counts_products(d->plan->device))
        return false;
    const kiln_node *n = kiln_draft_node(d, g->root);
    const kiln_value *out = d->values[kiln_draft_of(d, n->out)].v;
    return n->op == &kiln_op_sum && out->dtype == KILN_I64 && kiln_draft_numel(out) == 1;
}

/* True for a node that reads a product element by element and whose result is stored in any case: it does better as the
 * product's end, where nothing has to be read, than as the beginning of a reduction. */
static bool finishes_product(const kiln_draft *d, const kiln_node *n, int64_t count)
{
    const kiln_draft_value *out = &d->values[kiln_draft_of(d, n->out)];
    if (!out->elsewhere && out->output < 0 && !out->commits)
        return false;
    for (int k = 0; k < n->nin; k++) {
        int32_t in = kiln_draft_in(d, n, k);
        const kiln_draft_value *x = in >= 0 ? &d->values[kiln_draft_base(d, in)] : NULL;
        if (x && x->node >= 0 && x->group < 0 && is_product(d, kiln_draft_node(d, x->node)) &&
            kiln_draft_in_order(d, in) && kiln_draft_numel(x->v) == count)
            return true;
    }
    return false;
}

/* The newest node that makes an operand of n; -1 when all come from outside. */
static int32_t newest_producer(const kiln_draft *d, const kiln_node *n)
{
    int32_t newest = -1;
    for (int k = 0; k < n->nin; k++) {
        int32_t in = kiln_draft_in(d, n, k);
        int32_t node = in >= 0 ? d->values[kiln_draft_base(d, in)].node : -1;
        newest = node > newest ? node : newest;
    }
    return newest;
}

static void fuse_pointwise(kiln_draft *d, int32_t i, const kiln_node *n)
{
    int64_t count = kiln_draft_numel(d->values[kiln_draft_of(d, n->out)].v);
    int32_t group = n->alone                                        ? -1
                    : d->values[kiln_draft_of(d, n->out)].group < 0 ? companion(d, n, count)
                                                                    : candidate(d, n);
    if (group >= 0 && d->groups[group].root >= 0 && finishes_product(d, n, count) && !counts(d, &d->groups[group]))
        group = -1;
    if (group < 0)
        group = open_group(d, KILN_WORK_GROUP, count);
    join(d, i, group);
    for (int k = 0; k < n->nin; k++) {
        int32_t in = kiln_draft_in(d, n, k);
        if (in >= 0)
            use_by_order(d, in, group, kiln_draft_in_order(d, in) && kiln_draft_numel(d->values[in].v) == count);
    }
}

static void fuse_reduce(kiln_draft *d, int32_t i, const kiln_node *n)
{
    int32_t in = kiln_draft_in(d, n, 0);
    const kiln_value *x = d->values[in].v;
    int32_t group = open_group(d, KILN_WORK_GROUP, kiln_draft_numel(x));
    d->groups[group].root = i;
    d->groups[group].permuted = reduction_permutes(d, n, x);
    join(d, i, group);
    const kiln_value *base = d->values[d->values[in].base].v;
    use_by_order(d, in, group, kiln_draft_in_order(d, in) && same_shape(x, base));
}

static void fuse_product(kiln_draft *d, int32_t i, const kiln_node *n)
{
    int32_t group = candidate(d, n);
    const kiln_draft_group *g = group >= 0 ? &d->groups[group] : NULL;
    if (g && g->head < 0 && (g->root < 0 || (n->op->cls == KILN_CLASS_MATMUL && counts(d, g))))
        d->groups[group].head = i;
    else
        group = open_group(d, KILN_WORK_KERNEL, 0);
    join(d, i, group);
    for (int k = 0; k < n->nin; k++)
        use_by_order(d, kiln_draft_in(d, n, k), group, false);
}

static void fuse_other(kiln_draft *d, int32_t i, const kiln_node *n)
{
    int32_t group = open_group(d, KILN_WORK_KERNEL, 0);
    join(d, i, group);
    for (int k = 0; k < n->nin; k++) {
        int32_t in = kiln_draft_in(d, n, k);
        if (in >= 0)
            use_by_order(d, in, group, false);
    }
}

bool kiln_draft_fuse(kiln_draft *d)
{
    /* Results that nothing reads wait until the node that makes their operand is met: by then its other readers have
     * their groups, and one of them is the companion. */
    int32_t *waiting = KILN_ARENA_NEW(&d->scratch, int32_t, d->nnodes), *next = d->node_next;
    if (!waiting)
        return false;
    for (int32_t i = 0; i < d->nnodes; i++)
        d->node_group[i] = waiting[i] = -1;
    for (int32_t i = d->nnodes; i-- > 0;) {
        const kiln_node *n = kiln_draft_node(d, i);
        if (!d->node_live[i])
            continue;
        for (int32_t w = waiting[i], after; w >= 0; w = after) {
            after = next[w];
            fuse_pointwise(d, w, kiln_draft_node(d, w));
        }
        int32_t producer = newest_producer(d, n);
        bool waits = n->op->cls == KILN_CLASS_POINTWISE && d->values[kiln_draft_of(d, n->out)].group < 0;
        if (waits && producer >= 0) {
            next[i] = waiting[producer];
            waiting[producer] = i;
        } else if (n->op->cls == KILN_CLASS_POINTWISE)
            fuse_pointwise(d, i, n);
        else if (n->op->cls == KILN_CLASS_REDUCE)
            fuse_reduce(d, i, n);
        else if (is_product(d, n))
            fuse_product(d, i, n);
        else
            fuse_other(d, i, n);
    }
    return true;
}
