/* Parts of a cat that are made where they are joined.
 *
 * An operation may be able to write its results as windows (KILN_CAN_WINDOW). Where a cat joins several of them and
 * nobody else reads these, each is made at its place in the cat's result, and nothing is left for the cat to do: the
 * gradients of q, k and v become columns of the gradient of the product that they were slices of. All parts have to
 * come from one operation, so that the whole lies in memory no longer than its parts would. */
#include "plan/draft.h"

/* ---- Where a part lies ---- */

/* Elements of a part lie `run` behind each other; from one run to the next it is `apart`, the first is at `start`. */
typedef struct place {
    int64_t run, apart, start;
} place;

static place place_of(const kiln_draft *d, int32_t part, int32_t whole)
{
    const kiln_node *cat = kiln_draft_node(d, d->values[whole].node);
    const kiln_value *v = d->values[whole].v;
    int dim = (int)d->tr->ints[cat->ints];
    int64_t behind = 1, before = 0, mine = 0;
    for (int i = dim + 1; i < v->ndim; i++)
        behind *= v->shape[i];
    for (int k = 0; k < cat->nin; k++) {
        int32_t in = kiln_draft_in(d, cat, k);
        mine = d->values[in].v->shape[dim];
        if (kiln_draft_base(d, in) == part)
            break;
        before += mine;
    }
    return (place){mine * behind, v->shape[dim] * behind, before * behind};
}

bool kiln_draft_lay_part(const kiln_draft *d, int32_t part, int32_t whole, kiln_operand *o)
{
    const kiln_value *v = d->values[part].v;
    place p = place_of(d, part, whole);
    int64_t step = 1;
    for (int i = v->ndim; i-- > 0; step *= v->shape[i]) {
        if (v->shape[i] > 1 && step * v->shape[i] > p.run && step % p.run)
            return false; /* a run ends in the middle of the dim */
        o->stride[i] = step < p.run ? step : step / p.run * p.apart;
    }
    o->offset = p.start;
    o->dense = kiln_is_dense(o->ndim, o->shape, o->stride);
    return true;
}

/* ---- Which parts there are ---- */

/* How often each base value is read. */
static void count_readers(const kiln_draft *d, int32_t *readers)
{
    for (int32_t i = 0; i < d->nnodes; i++) {
        const kiln_node *n = kiln_draft_node(d, i);
        for (int k = 0; d->node_live[i] && k < n->nin; k++) {
            int32_t in = kiln_draft_in(d, n, k);
            if (in >= 0)
                readers[kiln_draft_base(d, in)]++;
        }
    }
}

/* Whether operand k of the cat is all of a value that a node makes and nobody else wants, and that can lie there. */
static bool is_its_own(const kiln_draft *d, const kiln_node *cat, int k, const int32_t *readers)
{
    int32_t in = kiln_draft_in(d, cat, k), b = kiln_draft_made(d, cat, k);
    const kiln_draft_value *x = b < 0 ? NULL : &d->values[b];
    kiln_operand o = {.ndim = 0};
    return x && readers[b] == 1 && x->output < 0 && !x->commits && kiln_draft_in_order(d, in) &&
           kiln_draft_numel(x->v) > 0 && kiln_draft_numel(d->values[in].v) == kiln_draft_numel(x->v) &&
           kiln_draft_lay_part(d, b, kiln_draft_of(d, cat->out), &o);
}

static bool may_write_windows(const kiln_draft *d, int32_t node)
{
    return d->groups[d->node_group[node]].work == KILN_WORK_KERNEL &&
           kiln_draft_abilities(d, kiln_draft_node(d, node)) & KILN_CAN_WINDOW;
}

static bool is_made_in_place(const kiln_draft *d, const kiln_node *cat, const int32_t *readers)
{
    int32_t maker = -1;
    for (int k = 0; k < cat->nin; k++) {
        if (!is_its_own(d, cat, k, readers))
            return false;
        int32_t by = d->values[kiln_draft_made(d, cat, k)].node;
        if (k && by != maker)
            return false;
        maker = by;
    }
    return may_write_windows(d, maker);
}

bool kiln_draft_find_parts(kiln_draft *d, int32_t *whole)
{
    extern const kiln_op kiln_op_cat;
    int32_t *readers = KILN_ARENA_NEW(&d->scratch, int32_t, d->nvalues);
    if (!readers)
        return false;
    count_readers(d, readers);
    for (int32_t v = 0; v < d->nvalues; v++)
        whole[v] = -1;
    for (int32_t i = 0; i < d->nnodes; i++) {
        const kiln_node *n = kiln_draft_node(d, i);
        if (!d->node_live[i] || n->op != &kiln_op_cat || !is_made_in_place(d, n, readers))
            continue;
        for (int k = 0; k < n->nin; k++)
            whole[kiln_draft_made(d, n, k)] = kiln_draft_of(d, n->out);
    }
    return true;
}
