/* Following the batch through a plan.
 *
 * In a buffer that grows with the batch the samples follow each other every `inner` elements: 784 for [N, 784], H for
 * [T, N, H]. A dim of a window onto the buffer carries the batch if its range covers that distance, also where a view
 * has joined it with other dims ([N·T, F]). Kernels hand the batch on: groups element by element, products by rows and
 * columns, other operations from a dim to the same dim of equal size. Where that leads nowhere a buffer is taken for
 * fixed, so that the memory of a smaller batch rather comes out too large. */
#include "plan/growth.h"
#include <string.h>
#include "core/fail.h"
#include "plan/backend.h"
#include "plan/draft.h"

extern const kiln_op kiln_op_take_samples, kiln_op_lstm_cells, kiln_op_convolution_weight_grad, kiln_op_index_add,
    kiln_op_scatter, kiln_op_scatter_add, kiln_op_as_strided_add, kiln_op_as_strided_put;

/* ---- Which size is the batch ---- */

static const kiln_storage *import_storage(const kiln_trace *tr, int64_t i)
{
    return tr->values[tr->values[tr->imports[i]].base].storage;
}

/* Running means and other sums that the step updates. */
static bool is_assigned(const kiln_trace *tr, const kiln_storage *s)
{
    for (int64_t i = 0; i < tr->ncommits; i++)
        if (tr->slots[tr->commit_slots[i]] == s)
            return true;
    return false;
}

/* What a step begins with beside parameters and states: tensors from before it, which come first here, and what it
 * draws. NULL: value i is none of these. */
static const kiln_value *source(const kiln_trace *tr, int64_t i)
{
    bool imported = i < tr->nimports;
    const kiln_value *v = &tr->values[imported ? tr->imports[i] : tr->first_value + i - tr->nimports];
    if (v->ndim == 0 || v->shape[0] < 2)
        return NULL;
    if (imported)
        return import_storage(tr, i)->role == KILN_ROLE_DATA && !is_assigned(tr, import_storage(tr, i)) ? v : NULL;
    return v->node >= tr->first_node && tr->nodes[v->node].op->cls == KILN_CLASS_RANDOM ? v : NULL;
}

typedef struct vote {
    int64_t size;
    int leads;    /* sources whose first dim has this size */
    int seconds;  /* sources [T, N, …] whose second one has it */
    bool items;   /* one of them has more dims than that: it is no list of numbers by channel or class */
    double bytes; /* of the sources that it leads */
} vote;

static void count_vote(const kiln_value *v, vote *of)
{
    of->leads += v->shape[0] == of->size;
    of->seconds += v->ndim >= 3 && v->shape[1] == of->size;
    of->items |= (v->ndim >= 2 && v->shape[0] == of->size) || (v->ndim >= 3 && v->shape[1] == of->size);
    if (v->shape[0] == of->size)
        of->bytes += (double)kiln_count(v->ndim, v->shape) * (double)kiln_dtype_size((kiln_dtype)v->dtype);
}

static bool is_better(const vote *a, const vote *b)
{
    if (a->items != b->items)
        return a->items;
    if (a->leads != b->leads)
        return a->leads > b->leads;
    return a->seconds != b->seconds ? a->seconds > b->seconds : a->bytes > b->bytes;
}

/* Inputs and targets have it as their first dim; sequences may have time before it, and their targets tell. */
static int64_t elected(const kiln_trace *tr)
{
    vote best = {0};
    int64_t n = tr->nimports + tr->nvalues - tr->first_value;
    for (int64_t i = 0; i < n; i++) {
        const kiln_value *v = source(tr, i), *other;
        if (!v || v->shape[0] == best.size)
            continue;
        vote here = {.size = v->shape[0]};
        for (int64_t j = 0; j < n; j++)
            if ((other = source(tr, j)))
                count_vote(other, &here);
        if (is_better(&here, &best))
            best = here;
    }
    return best.size;
}

int64_t kiln_growth_batch(const kiln_trace *tr)
{
    int64_t rows = 0; /* of recurrent layers, which know which dim it is */
    if (!tr->nimports)
        return 0; /* a step that reads nothing has no batch: it draws weights */
    for (int64_t i = tr->first_node; i < tr->nnodes; i++) {
        const kiln_node *n = &tr->nodes[i];
        if (n->op == &kiln_op_take_samples)
            return tr->values[n->out].shape[0];
        if (n->op == &kiln_op_lstm_cells && !rows)
            rows = tr->values[tr->operands[n->in]].shape[1];
    }
    return rows ? rows : elected(tr);
}

/* ---- Windows ---- */

/* The dim of a window that carries the batch; -1: none. *within: how many of its steps lead to the next sample. */
static int carrying_dim(const kiln_operand *o, int64_t inner, int64_t batch, int64_t *within)
{
    for (int d = 0; inner && d < o->ndim; d++) {
        if (o->stride[d] <= 0 || o->stride[d] > inner || inner % o->stride[d] || o->shape[d] % batch ||
            o->stride[d] * o->shape[d] < inner * batch)
            continue;
        *within = inner / o->stride[d];
        return d;
    }
    return -1;
}

static int64_t behind(int ndim, const int64_t *shape, int dim)
{
    int64_t n = 1;
    for (int d = dim + 1; d < ndim; d++)
        n *= shape[d];
    return n;
}

/* The dim that covers this distance in row-major order; -1: none. */
static int covering_dim(int ndim, const int64_t *shape, int64_t distance, int64_t batch)
{
    for (int d = 0; distance && d < ndim; d++) {
        int64_t step = behind(ndim, shape, d);
        if (step <= distance && shape[d] % batch == 0 && step * shape[d] >= distance * batch)
            return d;
    }
    return -1;
}

static int dim_of(const kiln_growth *g, const kiln_operand *o, int64_t *within)
{
    return o->buffer < 0 ? -1 : carrying_dim(o, g->inner[o->buffer], g->batch, within);
}

/* From one sample to the next in the window's elements, row by row; 0: it does not grow. */
static int64_t distance_in(const kiln_growth *g, const kiln_operand *o)
{
    int64_t within;
    int d = dim_of(g, o, &within);
    return d < 0 ? 0 : behind(o->ndim, o->shape, d) * within;
}

static void grows(const kiln_growth *g, int32_t buffer, int64_t inner)
{
    const kiln_buffer *b = &g->plan->buffers[buffer];
    if (inner && b->place != KILN_IN_SLOT && b->bytes % g->batch == 0)
        g->inner[buffer] = inner;
}

/* ---- Kernels ---- */

static int64_t product_distance(const kiln_growth *g, const kiln_kernel *k)
{
    const kiln_operand *a = &k->in[0], *b = &k->in[1];
    int ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
    int64_t shape[KILN_MAX_DIMS], within;
    for (int d = 0; d < ndim - 2; d++) {
        int64_t m = d < ndim - a->ndim ? 1 : a->shape[d - (ndim - a->ndim)];
        int64_t n = d < ndim - b->ndim ? 1 : b->shape[d - (ndim - b->ndim)];
        shape[d] = m > n ? m : n;
    }
    shape[ndim - 2] = a->shape[a->ndim - 2];
    shape[ndim - 1] = b->shape[b->ndim - 1];
    int of_a = dim_of(g, a, &within);
    if (of_a >= 0 && of_a < a->ndim - 1)
        return behind(ndim, shape, of_a + ndim - a->ndim) * within;
    int of_b = dim_of(g, b, &within);
    return of_b >= 0 && of_b != b->ndim - 2 ? behind(ndim, shape, of_b + ndim - b->ndim) * within : 0;
}

/* Of a result in which images, or texts, lead, as they do in what it is made of. */
static int64_t leading_distance(const kiln_growth *g, const kiln_kernel *k)
{
    int64_t within;
    bool grows = k->op != &kiln_op_convolution_weight_grad && dim_of(g, &k->in[0], &within) == 0;
    return grows ? k->group->count / k->in[0].shape[0] * within : 0;
}

static int64_t loads_distance(const kiln_growth *g, const kiln_group *group)
{
    int64_t distance = 0;
    for (int i = 0; group && i < group->nloads && !distance; i++)
        distance = distance_in(g, &group->loads[i]);
    return distance;
}

/* Of the first result of an operation that groups stand around. */
static int64_t result_distance(const kiln_growth *g, const kiln_kernel *k)
{
    if (k->op->cls == KILN_CLASS_MATMUL)
        return product_distance(g, k);
    if (k->op->cls != KILN_CLASS_ROWS)
        return leading_distance(g, k);
    int64_t distance = loads_distance(g, k->lead); /* all are of one shape */
    for (int i = 0; i < k->nin && !distance; i++)
        if (k->op->led >> i & 1 || i == 0)
            distance = distance_in(g, &k->in[i]);
    return distance;
}

/* Of the shape of a parameter: its gradient, or a copy of it. */
static bool like_parameter(const kiln_trace *tr, const kiln_buffer *b)
{
    for (int64_t i = 0; i < tr->nimports; i++) {
        const kiln_value *v = &tr->values[tr->imports[i]];
        if (import_storage(tr, i)->role == KILN_ROLE_PARAMETER && v->ndim == b->ndim &&
            memcmp(v->shape, b->shape, b->ndim * sizeof *b->shape) == 0)
            return true;
    }
    return false;
}

/* Of what is drawn, filled or taken from a data set: no operand tells where the batch is, which leads as a rule. */
static int64_t source_distance(const kiln_growth *g, const kiln_trace *tr, int32_t buffer)
{
    const kiln_buffer *b = &g->plan->buffers[buffer];
    if (!b->ndim || b->place == KILN_IN_SLOT || like_parameter(tr, b))
        return 0;
    if (b->shape[0] % g->batch == 0)
        return behind(b->ndim, b->shape, 0) * (b->shape[0] / g->batch);
    return b->ndim > 1 && b->shape[1] == g->batch ? behind(b->ndim, b->shape, 1) : 0;
}

/* A group that reads nothing, or repeats single numbers, fills memory. */
static int64_t filled_distance(const kiln_growth *g, const kiln_trace *tr, const kiln_group *group)
{
    bool varies = group->nstores == 0;
    for (int i = 0; i < group->nloads; i++)
        for (int d = 0; d < group->loads[i].ndim; d++)
            varies |= group->loads[i].stride[d] != 0;
    return varies ? 0 : source_distance(g, tr, group->stores[0].to.buffer);
}

static int64_t reduced_distance(const kiln_growth *g, const kiln_group *group, int64_t distance)
{
    int d = covering_dim(group->reduce_ndim, group->reduce_shape, distance, g->batch);
    if (d < 0 || (group->reduce_dims >> d & 1))
        return 0;
    int64_t left = distance / behind(group->reduce_ndim, group->reduce_shape, d);
    for (int i = d + 1; i < group->reduce_ndim; i++)
        left *= group->reduce_dims >> i & 1 ? 1 : group->reduce_shape[i];
    return left;
}

/* What others are put into or added to is the result: they do not make it grow. */
static bool follows_first(const kiln_op *op)
{
    return op == &kiln_op_index_add || op == &kiln_op_scatter || op == &kiln_op_scatter_add ||
           op == &kiln_op_as_strided_add || op == &kiln_op_as_strided_put;
}

/* The dim of y that an operand's dim becomes: the same one, or another of its size; -1: none. */
static int same_dim(const kiln_operand *y, const kiln_operand *x, int d)
{
    if (d < y->ndim && y->shape[d] == x->shape[d])
        return d;
    for (int i = 0; i < y->ndim; i++)
        if (y->shape[i] == x->shape[d])
            return i;
    return -1;
}

/* A result beside the first one, whose rows it has a number each of, or sums over. */
static void pass_beside(const kiln_growth *g, const kiln_kernel *k, const kiln_operand *y, int64_t distance)
{
    const kiln_operand *x = &k->out[0];
    int d = covering_dim(x->ndim, x->shape, distance, g->batch), to = d < 0 || d >= y->ndim ? -1 : same_dim(y, x, d);
    if (to == d && d >= 0)
        grows(g, y->buffer, y->stride[to] * (distance / behind(x->ndim, x->shape, d)));
}

static void pass_group(const kiln_growth *g, const kiln_trace *tr, const kiln_kernel *k, int64_t number)
{
    const kiln_group *group = k->group, *lead = k->lead;
    bool heavy = lead || group->head >= 0;
    int64_t distance = heavy ? result_distance(g, k) : filled_distance(g, tr, group);
    distance = distance ? distance : loads_distance(g, group);
    g->in_group[number] = distance;
    for (int i = 0; lead && i < lead->nstores; i++)
        grows(g, lead->stores[i].to.buffer, distance);
    for (int i = 0; group && i < group->nstores; i++)
        grows(g, group->stores[i].to.buffer, distance);
    for (int j = 0; j < k->nout && distance; j++)
        if (k->out[j].buffer >= 0)
            pass_beside(g, k, &k->out[j], distance);
    if (group && group->reduces && distance)
        grows(g, group->reduce_to.buffer, reduced_distance(g, group, distance));
}

static void pass_operation(const kiln_growth *g, const kiln_trace *tr, const kiln_kernel *k)
{
    if (k->op == &kiln_op_convolution_weight_grad)
        return;
    int64_t within;
    bool product = k->op->cls == KILN_CLASS_MATMUL;
    for (int j = 0; j < k->nout; j++) {
        const kiln_operand *y = &k->out[j];
        if (y->buffer < 0)
            continue;
        if (k->nin == 0 || k->op == &kiln_op_take_samples)
            grows(g, y->buffer, source_distance(g, tr, y->buffer));
        if (product)
            grows(g, y->buffer, product_distance(g, k));
        for (int i = 0; i < (follows_first(k->op) ? 1 : k->nin) && !product && !g->inner[y->buffer]; i++) {
            int d = dim_of(g, &k->in[i], &within), to = d < 0 ? -1 : same_dim(y, &k->in[i], d);
            if (to >= 0)
                grows(g, y->buffer, y->stride[to] * within);
        }
    }
}

static void find_slots(kiln_growth *g, const kiln_trace *tr)
{
    const kiln_plan *p = g->plan;
    for (int64_t b = 0; b < p->nbuffers; b++)
        for (int64_t i = 0; p->buffers[b].place == KILN_IN_SLOT && i < tr->nimports && !g->inner[b]; i++) {
            const kiln_value *v = &tr->values[tr->imports[i]];
            const kiln_storage *s = import_storage(tr, i);
            if (s != tr->slots[p->buffers[b].index] || s->role != KILN_ROLE_DATA)
                continue;
            for (int d = 0; d < v->ndim && d < 2 && !g->inner[b]; d++)
                if (v->shape[d] == g->batch)
                    g->inner[b] = v->stride[d];
            g->data += g->inner[b] ? (double)s->bytes : 0;
        }
}

bool kiln_growth_find(kiln_growth *g, const kiln_trace *tr, const kiln_plan *p, int64_t batch)
{
    *g = (kiln_growth){.plan = p, .batch = batch, .outputs = tr->nkept};
    g->inner = KILN_ARENA_NEW(&g->scratch, int64_t, p->nbuffers + 1);
    g->in_group = KILN_ARENA_NEW(&g->scratch, int64_t, p->nkernels + 1);
    if (!g->inner || !g->in_group)
        return false;
    find_slots(g, tr);
    for (int64_t i = 0; i < p->nkernels; i++)
        if (p->kernels[i].group || p->kernels[i].lead)
            pass_group(g, tr, &p->kernels[i], i);
        else
            pass_operation(g, tr, &p->kernels[i]);
    return true;
}

void kiln_growth_free(kiln_growth *g)
{
    kiln_arena_free(&g->scratch);
}

/* ---- The plan with another batch ---- */

typedef struct resizing {
    const kiln_growth *g;
    int64_t to;
    kiln_arena pool;
} resizing;

static int64_t resized(const resizing *r, int64_t n)
{
    return n / r->g->batch * r->to;
}

/* Distances that span whole batches change with them. */
static void resize_strides(const resizing *r, kiln_operand *o)
{
    int64_t inner = o->buffer < 0 ? 0 : r->g->inner[o->buffer];
    for (int d = 0; inner && d < o->ndim; d++)
        if (o->stride[d] >= inner * r->g->batch && o->stride[d] % r->g->batch == 0)
            o->stride[d] = resized(r, o->stride[d]);
}

static void resize_operand(const resizing *r, kiln_operand *o)
{
    int64_t within;
    int d = dim_of(r->g, o, &within);
    resize_strides(r, o);
    if (d >= 0)
        o->shape[d] = resized(r, o->shape[d]);
}

static kiln_operand *resize_operands(resizing *r, const kiln_operand *from, int n)
{
    kiln_operand *to = KILN_ARENA_NEW(&r->pool, kiln_operand, n);
    if (to && n)
        memcpy(to, from, (size_t)n * sizeof *to);
    for (int i = 0; to && i < n; i++)
        resize_operand(r, &to[i]);
    return to;
}

/* Loads repeat what does not grow over the dim that does. */
static void resize_load(const resizing *r, kiln_operand *o, int64_t distance)
{
    int d = covering_dim(o->ndim, o->shape, distance, r->g->batch);
    resize_strides(r, o);
    if (d >= 0)
        o->shape[d] = resized(r, o->shape[d]);
}

/* What groups make, or finish, has a shape but no memory. */
static void resize_outlines(const resizing *r, kiln_operand *o, int n, int64_t distance)
{
    for (int i = 0; distance && i < n; i++)
        if (o[i].buffer < 0)
            resize_load(r, &o[i], distance);
}

static kiln_group *resize_group(resizing *r, const kiln_group *from, int64_t distance)
{
    kiln_group *to = KILN_ARENA_NEW(&r->pool, kiln_group, 1);
    kiln_operand *loads = to ? KILN_ARENA_NEW(&r->pool, kiln_operand, from->nloads) : NULL;
    kiln_store *stores = loads ? KILN_ARENA_NEW(&r->pool, kiln_store, from->nstores) : NULL;
    if (!stores)
        return NULL;
    *to = *from;
    to->loads = loads;
    to->stores = stores;
    if (from->nloads)
        memcpy(loads, from->loads, (size_t)from->nloads * sizeof *loads);
    if (from->nstores)
        memcpy(stores, from->stores, (size_t)from->nstores * sizeof *stores);
    if (!distance || from->count % r->g->batch)
        return to;
    to->count = resized(r, from->count);
    for (int i = 0; i < to->nloads; i++)
        resize_load(r, &loads[i], distance);
    for (int i = 0; i < to->nstores; i++)
        if (stores[i].to.ndim == 1)
            stores[i].to.shape[0] = to->count;
    int d = from->reduces ? covering_dim(from->reduce_ndim, from->reduce_shape, distance, r->g->batch) : -1;
    if (d >= 0)
        to->reduce_shape[d] = resized(r, to->reduce_shape[d]);
    if (from->reduces)
        resize_operand(r, &to->reduce_to);
    return to;
}

static bool resize_kernel(resizing *r, const kiln_kernel *from, kiln_kernel *to, int64_t distance)
{
    *to = *from;
    to->workspace = -1;
    to->in = resize_operands(r, from->in, from->nin);
    to->out = resize_operands(r, from->out, from->nout);
    if (!to->in || !to->out)
        return false;
    resize_outlines(r, to->in, to->nin, distance);
    resize_outlines(r, to->out, to->nout, distance);
    if (from->lead)
        to->lead = resize_group(r, from->lead, distance);
    if (from->group)
        to->group = resize_group(r, from->group, distance);
    return (!from->lead || to->lead) && (!from->group || to->group);
}

/* Buffers but workspaces, which are asked for again. They are the last ones. */
static int64_t resize_buffers(const resizing *r, kiln_buffer *to)
{
    const kiln_plan *p = r->g->plan;
    int64_t n = 0;
    while (n < p->nbuffers && p->buffers[n].role != KILN_ROLE_WORKSPACE) {
        kiln_buffer *b = &to[n];
        *b = p->buffers[n];
        if (b->place == KILN_IN_OUTPUT && b->index >= r->g->outputs) /* one that lies apart from the others */
            b->place = KILN_IN_ARENA;
        if (b->place == KILN_IN_ARENA)
            b->offset = -1;
        if (r->g->inner[n] && b->place != KILN_IN_SLOT)
            b->bytes = resized(r, b->bytes);
        b->last = b->first;
        n++;
    }
    return n;
}

static bool resize_plan(resizing *r, kiln_plan *q)
{
    const kiln_plan *p = r->g->plan;
    *q = (kiln_plan){.device = p->device, .nkernels = p->nkernels, .noutputs = (int32_t)r->g->outputs};
    q->kernels = KILN_ARENA_NEW(&r->pool, kiln_kernel, p->nkernels);
    q->buffers = KILN_ARENA_NEW(&r->pool, kiln_buffer, p->nbuffers + p->nkernels);
    if (!q->kernels || !q->buffers)
        return false;
    q->nbuffers = resize_buffers(r, q->buffers);
    for (int64_t i = 0; i < p->nkernels; i++) {
        if (!resize_kernel(r, &p->kernels[i], &q->kernels[i], r->g->in_group[i]))
            return false;
        for (kiln_access a = {0}; kiln_next_access(&q->kernels[i], &a);)
            q->buffers[a.buffer].last = (int32_t)i; /* placing changes it */
    }
    return true;
}

int64_t kiln_growth_peak(const kiln_growth *g, int64_t batch)
{
    resizing r = {.g = g, .to = batch};
    kiln_plan q;
    kiln_draft d = {.plan = &q, .pool = &r.pool};
    bool was_ok = kiln_ok();
    uint64_t failures = kiln_fail_count();
    bool ok = resize_plan(&r, &q) && kiln_draft_place(&d);
    kiln_arena_free(&d.scratch);
    kiln_arena_free(&r.pool);
    if (!ok && was_ok)
        kiln_fail_forget(failures);
    return ok ? q.arena_bytes + q.all_output_bytes : INT64_MAX;
}
