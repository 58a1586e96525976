/* Fusion: which nodes run together. The nodes are visited from the last to the first, and groups run in the reverse of
 * the order they are opened in. A node joins the group that uses it first, if that group reads it element by element;
 * all its other users run later, and whatever it reads itself is visited later and therefore runs no later. So every
 * order that comes out is a right one, and one pass suffices.
 *
 * A group is pointwise work over one number of elements. It may end in one reduction (opened by it), and may begin with
 * one heavy operation (a matmul, or what else the device can), whose first result it then finishes while it is in
 * cache. It does both where the reduction is a count, whose bits no order changes, and the device can. Where an
 * operation reads an operand row by row, such as a norm, nodes that make it may be in the group, too: they lead. */
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

static void set_work(kiln_work_shape *to, const kiln_value *v)
{
    *to = (kiln_work_shape){v->ndim, v->shape};
}

unsigned kiln_draft_abilities(const kiln_draft *d, const kiln_node *n)
{
    const unsigned heavy =
        1u << KILN_CLASS_MATMUL | 1u << KILN_CLASS_CONV | 1u << KILN_CLASS_ROWS | 1u << KILN_CLASS_ATTENTION;
    if (!(heavy >> n->op->cls & 1))
        return 0;
    kiln_work w = {.nin = n->nin, .nout = n->nout, .ints = d->tr->ints + n->ints};
    for (int k = 0; k < n->nin; k++) {
        int32_t in = kiln_draft_in(d, n, k);
        if (in >= 0)
            set_work(&w.in[k], d->values[in].v);
    }
    for (int j = 0; j < n->nout; j++)
        set_work(&w.out[j], d->values[kiln_draft_of(d, n->out + j)].v);
    w.results = kiln_count(w.out[0].ndim, w.out[0].shape);
    kiln_dtype dtype = (kiln_dtype)d->values[kiln_draft_in(d, n, 0)].v->dtype;
    return kiln_backend_can(d->plan->device, n->op, dtype, &w);
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

/* Whether a node reads, element by element, the result of a heavy operation that a group may finish, or what a few
 * pointwise nodes make of it; nobody else that was met so far reads any of these. */
static bool goes_on_from_heavy(const kiln_draft *d, const kiln_node *n, int64_t count, int steps)
{
    for (int k = 0; k < n->nin; k++) {
        int32_t in = kiln_draft_in(d, n, k);
        const kiln_draft_value *x = in >= 0 ? &d->values[kiln_draft_base(d, in)] : NULL;
        if (!x || x->node < 0 || x->group >= 0 || !kiln_draft_in_order(d, in) || kiln_draft_numel(x->v) != count)
            continue;
        const kiln_node *maker = kiln_draft_node(d, x->node);
        bool pointwise = maker->op->cls == KILN_CLASS_POINTWISE;
        if (pointwise ? steps > 1 && goes_on_from_heavy(d, maker, count, steps - 1)
                      : kiln_draft_abilities(d, maker) & KILN_CAN_END)
            return true;
    }
    return false;
}

/* How far that is looked for: before another operation there may be a bias, a cast and a residual behind a product.
 * Before a reduction only the next node counts: a product of 16 bits that is read there takes less memory than what
 * comes of it in f32. */
enum { STEPS_BEFORE_HEAVY = 4, STEPS_BEFORE_REDUCTION = 1 };

/* True for a node that goes on from the result of a heavy operation and whose own is stored in any case: it does better
 * as the operation's end, where nothing has to be read, than before a reduction or another operation. */
static bool finishes_another(const kiln_draft *d, const kiln_node *n, int64_t count, int steps)
{
    const kiln_draft_value *out = &d->values[kiln_draft_of(d, n->out)];
    return (out->elsewhere || out->output >= 0 || out->commits) && goes_on_from_heavy(d, n, count, steps);
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

/* Whether the node reads a result of another that a group behind that has no part of: it then has to run behind the
 * group, and must not wait until the group is there. */
static bool reads_beside(const kiln_draft *d, const kiln_node *n, int32_t producer)
{
    const kiln_node *p = kiln_draft_node(d, producer);
    if (p->nout < 2 || !(kiln_draft_abilities(d, p) & KILN_CAN_END))
        return false;
    int32_t first = kiln_draft_base(d, kiln_draft_of(d, p->out));
    for (int k = 0; k < n->nin; k++) {
        int32_t b = kiln_draft_made(d, n, k);
        if (b >= 0 && b != first && d->values[b].node == producer)
            return true;
    }
    return false;
}

/* Who reads in a group what a node makes: the operation at its start and nodes that lead to it, or others. */
typedef struct readers {
    bool before, behind;
} readers;

/* `leads`: by node of the group, whether it leads. */
static readers readers_in(const kiln_draft *d, const kiln_node *n, const kiln_draft_group *g, const bool *leads)
{
    int32_t out = kiln_draft_base(d, kiln_draft_of(d, n->out));
    readers r = {false, false};
    for (int32_t i = g->head < 0 ? -1 : g->last; i >= 0; i = d->node_next[i]) {
        const kiln_node *reader = kiln_draft_node(d, i);
        for (int k = 0; k < reader->nin; k++) {
            int32_t in = kiln_draft_in(d, reader, k);
            if (in >= 0 && kiln_draft_base(d, in) == out)
                *(i == g->head || leads[i] ? &r.before : &r.behind) = true;
        }
    }
    return r;
}

/* Whether the node may join the group. What is read on both sides of the operation at its start is made by another one:
 * both read it from memory, with the same bits in 16 bits. */
static bool suits(const kiln_draft *d, const kiln_node *n, int64_t count, int32_t group, readers r)
{
    const kiln_draft_group *g = &d->groups[group];
    int steps = r.before ? STEPS_BEFORE_HEAVY : g->root >= 0 && !counts(d, g) ? STEPS_BEFORE_REDUCTION : 0;
    return !(r.before && r.behind) && !(steps && finishes_another(d, n, count, steps));
}

static void fuse_pointwise(kiln_draft *d, int32_t i, const kiln_node *n, bool *leads)
{
    int64_t count = kiln_draft_numel(d->values[kiln_draft_of(d, n->out)].v);
    int32_t group = n->alone                                        ? -1
                    : d->values[kiln_draft_of(d, n->out)].group < 0 ? companion(d, n, count)
                                                                    : candidate(d, n);
    readers r = {false, false};
    if (group >= 0)
        r = readers_in(d, n, &d->groups[group], leads);
    if (group < 0 || !suits(d, n, count, group, r))
        group = open_group(d, KILN_WORK_GROUP, count);
    else
        leads[i] = r.before;
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

/* Whether operand k of the operation at the group's start may be made on the way. */
static bool is_led(const kiln_draft *d, const kiln_node *n, int k, int64_t count)
{
    int32_t in = kiln_draft_in(d, n, k);
    return in >= 0 && n->op->led >> k & 1 && kiln_draft_in_order(d, in) && kiln_draft_numel(d->values[in].v) == count;
}

/* Who reads the other results of the node runs behind the group, which has no part of them. */
static bool others_wait(const kiln_draft *d, const kiln_node *n, int32_t group)
{
    for (int j = 1; j < n->nout; j++)
        if (d->values[kiln_draft_base(d, kiln_draft_of(d, n->out + j))].group >= group)
            return false;
    return true;
}

static void fuse_heavy(kiln_draft *d, int32_t i, const kiln_node *n, unsigned can)
{
    int32_t group = can & KILN_CAN_END ? candidate(d, n) : -1;
    int64_t count = kiln_draft_numel(d->values[kiln_draft_of(d, n->out)].v);
    const kiln_draft_group *g = group >= 0 ? &d->groups[group] : NULL;
    if (g && (g->head >= 0 || !others_wait(d, n, group) ||
              (g->root >= 0 && !(n->op->cls == KILN_CLASS_MATMUL && counts(d, g)))))
        group = -1;
    if (group < 0)
        group = open_group(d, can & KILN_CAN_LEAD ? KILN_WORK_GROUP : KILN_WORK_KERNEL, count);
    if (d->groups[group].work == KILN_WORK_GROUP)
        d->groups[group].head = i;
    join(d, i, group);
    for (int k = 0; k < n->nin; k++) {
        int32_t in = kiln_draft_in(d, n, k);
        if (in >= 0)
            use_by_order(d, in, group, can & KILN_CAN_LEAD && is_led(d, n, k, count));
    }
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

/* An operation that nothing came to stand around is a kernel like others. */
static void close_groups(kiln_draft *d)
{
    for (int32_t g = 0; g < d->ngroups; g++)
        if (d->groups[g].head >= 0 && d->groups[g].nnodes == 1) {
            d->groups[g].work = KILN_WORK_KERNEL;
            d->groups[g].head = -1;
        }
}

bool kiln_draft_fuse(kiln_draft *d)
{
    /* Results that nothing reads wait until the node that makes their operand is met: by then its other readers have
     * their groups, and one of them is the companion. */
    int32_t *waiting = KILN_ARENA_NEW(&d->scratch, int32_t, d->nnodes), *next = d->node_next;
    bool *leads = KILN_ARENA_NEW(&d->scratch, bool, d->nnodes);
    if (!waiting || !leads)
        return false;
    for (int32_t i = 0; i < d->nnodes; i++)
        d->node_group[i] = waiting[i] = -1;
    for (int32_t i = d->nnodes; i-- > 0;) {
        const kiln_node *n = kiln_draft_node(d, i);
        unsigned can;
        if (!d->node_live[i])
            continue;
        for (int32_t w = waiting[i], after; w >= 0; w = after) {
            after = next[w];
            fuse_pointwise(d, w, kiln_draft_node(d, w), leads);
        }
        int32_t producer = newest_producer(d, n);
        bool unread = n->op->cls == KILN_CLASS_POINTWISE && d->values[kiln_draft_of(d, n->out)].group < 0;
        if (unread && producer >= 0 && !reads_beside(d, n, producer)) {
            next[i] = waiting[producer];
            waiting[producer] = i;
        } else if (n->op->cls == KILN_CLASS_POINTWISE)
            fuse_pointwise(d, i, n, leads);
        else if (n->op->cls == KILN_CLASS_REDUCE)
            fuse_reduce(d, i, n);
        else if ((can = kiln_draft_abilities(d, n)))
            fuse_heavy(d, i, n, can);
        else
            fuse_other(d, i, n);
    }
    close_groups(d);
    return true;
}
