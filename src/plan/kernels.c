/* Kernels and buffers: writes each group down as a device will run it, and decides for every value that needs memory
 * whether that is a slot, an output or the arena. */
#include <string.h>
#include "core/intern.h"
#include "plan/draft.h"

typedef struct writer {
    kiln_draft *d;
    kiln_plan *p;
    int64_t buffers_capacity;
    int32_t *slot_buffer; /* by slot */
    int32_t *slot_read;   /* by slot: when it is read last; -1 */
    int32_t last_check;   /* when a bad index can be met last; -1 */
    int32_t *whole;       /* by draft value: what it is made as a part of (parts.c); -1 */
    /* The group being written. */
    kiln_group *g;
    int32_t group;
    int32_t program; /* which of its programs: its number, or, of what leads, so many further as there are groups */
    int32_t *kernel; /* by group: its kernel; -1: it needs none */
    int16_t *reg_of; /* by draft value: its register in this program, if reg_program says so */
    int32_t *reg_program;
    bool *leads; /* by node: it makes what the operation at the start of its group reads */
} writer;

/* Instructions are numbered from the first until the number of loads is known; the second is the head. */
enum { INSTR_REGISTER = 4096, HEAD_REGISTER = INSTR_REGISTER - 1 };

/* ---- Buffers ---- */

static int32_t new_buffer(writer *w, kiln_place place, int32_t index, int64_t bytes, int role)
{
    int32_t at = (int32_t)w->p->nbuffers++;
    int32_t now = (int32_t)w->p->nkernels;
    w->p->buffers[at] = (kiln_buffer){
        .place = place, .index = index, .offset = -1, .bytes = bytes, .role = (int8_t)role, .first = now, .last = now};
    return at;
}

static int64_t bytes_of(const kiln_value *v)
{
    return kiln_draft_numel(v) * (int64_t)kiln_dtype_size((kiln_dtype)v->dtype);
}

/* The buffer of a slot, wherever it is first met. */
static int32_t slot_buffer(writer *w, int32_t slot)
{
    if (w->slot_buffer[slot] < 0) {
        const kiln_storage *s = w->d->tr->slots[slot];
        w->slot_buffer[slot] = new_buffer(w, KILN_IN_SLOT, slot, (int64_t)s->bytes, s->role);
    }
    return w->slot_buffer[slot];
}

static void describe_buffer(writer *w, const kiln_draft_value *x)
{
    kiln_buffer *b = &w->p->buffers[x->buffer];
    b->origin = kiln_draft_node(w->d, x->node)->origin;
    b->ndim = x->v->ndim;
    memcpy(b->shape, x->v->shape, x->v->ndim * sizeof *b->shape);
}

/* The buffer behind a base value, made when the value is first written or read. */
static int32_t buffer_of(writer *w, int32_t base)
{
    kiln_draft_value *x = &w->d->values[base];
    if (x->node < 0)
        x->buffer = slot_buffer(w, x->slot);
    else if (x->buffer < 0) {
        /* A kept value has the role of the storage it is kept in, which after merging may be another one than its own.
         */
        const kiln_trace *tr = w->d->tr;
        const kiln_storage *s = x->output >= 0 ? tr->values[tr->kept[x->output]].storage : x->v->storage;
        int role = s->role == KILN_ROLE_DATA ? KILN_ROLE_ACTIVATION : s->role;
        x->buffer = x->output >= 0 ? new_buffer(w, KILN_IN_OUTPUT, x->output, bytes_of(x->v), role)
                                   : new_buffer(w, KILN_IN_ARENA, -1, bytes_of(x->v), role);
        describe_buffer(w, x);
    }
    w->p->buffers[x->buffer].last = (int32_t)w->p->nkernels;
    return x->buffer;
}

/* What is known of a value that has no memory. */
static kiln_operand outline(const writer *w, int32_t value)
{
    const kiln_value *v = w->d->values[value].v;
    kiln_operand o = {.buffer = -1, .dtype = v->dtype, .ndim = v->ndim, .offset = v->offset};
    o.dense = kiln_is_dense(v->ndim, v->shape, v->stride);
    memcpy(o.shape, v->shape, v->ndim * sizeof *v->shape);
    memcpy(o.stride, v->stride, v->ndim * sizeof *v->stride);
    return o;
}

static kiln_operand window(writer *w, int32_t value)
{
    if (value < 0)
        return (kiln_operand){.buffer = -1};
    kiln_operand o = outline(w, value);
    int32_t base = kiln_draft_base(w->d, value), whole = w->whole[base];
    if (whole >= 0)
        kiln_draft_lay_part(w->d, base, whole, &o);
    o.buffer = buffer_of(w, whole >= 0 ? whole : base);
    return o;
}

/* ---- Geometry of loads ---- */

/* Repeats a window over a larger shape: stride 0 where it has size 1 or no dim. */
static void broadcast_to(kiln_operand *o, int ndim, const int64_t *shape)
{
    int64_t stride[KILN_MAX_DIMS];
    int missing = ndim - o->ndim;
    for (int i = 0; i < ndim; i++)
        stride[i] = i < missing || o->shape[i - missing] == 1 ? 0 : o->stride[i - missing];
    o->ndim = (uint8_t)ndim;
    memcpy(o->shape, shape, (size_t)ndim * sizeof *shape);
    memcpy(o->stride, stride, (size_t)ndim * sizeof *stride);
    o->dense = kiln_is_dense(o->ndim, o->shape, o->stride);
}

/* Joins dims that lie behind each other in memory, so that equal walks look equal and inner loops get long. */
static void collapse(kiln_operand *o)
{
    int n = 0;
    for (int i = 0; i < o->ndim; i++) {
        if (o->shape[i] == 1)
            continue;
        if (n && o->stride[n - 1] == o->stride[i] * o->shape[i])
            o->shape[n - 1] *= o->shape[i];
        else
            o->shape[n++] = o->shape[i];
        o->stride[n - 1] = o->stride[i];
    }
    memset(o->shape + n, 0, sizeof o->shape - (size_t)n * sizeof *o->shape);
    memset(o->stride + n, 0, sizeof o->stride - (size_t)n * sizeof *o->stride);
    o->ndim = (uint8_t)n;
    o->dense = kiln_is_dense(o->ndim, o->shape, o->stride);
}

static int16_t load(writer *w, int32_t value, const kiln_value *over, bool keep_dims)
{
    kiln_operand o = window(w, value);
    broadcast_to(&o, over->ndim, over->shape);
    if (!keep_dims)
        collapse(&o);
    kiln_group *g = w->g;
    for (int i = 0; i < g->nloads; i++) {
        const kiln_operand *l = &g->loads[i];
        if (l->buffer == o.buffer && l->dtype == o.dtype && l->ndim == o.ndim && l->offset == o.offset &&
            memcmp(l->shape, o.shape, o.ndim * sizeof *o.shape) == 0 &&
            memcmp(l->stride, o.stride, o.ndim * sizeof *o.stride) == 0)
            return (int16_t)i;
    }
    g->loads[g->nloads] = o;
    return (int16_t)g->nloads++;
}

/* ---- Instructions ---- */

static void set_register(writer *w, int32_t value, int16_t reg)
{
    w->reg_of[value] = reg;
    w->reg_program[value] = w->program;
}

/* The register that holds operand `value` for a node whose result has the shape of `over`. */
static int16_t operand_register(writer *w, int32_t value, const kiln_value *over, bool keep_dims)
{
    int32_t base = kiln_draft_base(w->d, value);
    return w->reg_program[base] == w->program ? w->reg_of[base] : load(w, value, over, keep_dims);
}

/* The register of an equal instruction that the group has already: planning makes values again for each reader. -1:
 * none. */
static int16_t equal_register(const writer *w, const kiln_instr *wanted, bool scalars)
{
    for (int i = 0; i < w->g->ninstrs; i++) {
        const kiln_instr *in = &w->g->instrs[i];
        if (in->row == wanted->row && in->dtype == wanted->dtype && !memcmp(in->src, wanted->src, sizeof in->src) &&
            (!scalars || in->scalars == wanted->scalars))
            return in->dst;
    }
    return -1;
}

static void write_instr(writer *w, const kiln_node *n, int32_t number, bool keep_dims)
{
    const kiln_draft *d = w->d;
    int32_t out = kiln_draft_of(d, n->out);
    const kiln_value *v = d->values[out].v;
    kiln_instr in = {.row = n->op->pointwise,
                     .dtype = v->dtype,
                     .from = v->dtype,
                     .src = {-1, -1, -1},
                     .scalars = n->floats - d->tr->first_float,
                     .node = number};
    for (int i = 0; i < n->nin; i++) {
        int32_t x = kiln_draft_in(d, n, i);
        in.src[i] = operand_register(w, x, v, keep_dims);
        in.from = d->values[x].v->dtype;
    }
    if (in.row == KILN_PW_copy) { /* a register is never overwritten: the copy is the same register */
        set_register(w, out, in.src[0]);
        return;
    }
    int16_t same = n->again ? equal_register(w, &in, n->nfloats) : -1;
    if (same >= 0) {
        set_register(w, out, same);
        return;
    }
    in.dst = (int16_t)(INSTR_REGISTER + w->g->ninstrs);
    set_register(w, out, in.dst);
    w->g->instrs[w->g->ninstrs++] = in;
}

static bool needs_memory(const writer *w, int32_t value)
{
    const kiln_draft_value *x = &w->d->values[value];
    return x->output >= 0 || x->commits || x->elsewhere || (x->group >= 0 && x->group != w->group);
}

static int16_t final_register(const writer *w, int16_t reg)
{
    if (reg < 0)
        return reg;
    return reg >= INSTR_REGISTER ? (int16_t)(reg - INSTR_REGISTER + w->g->nloads + (w->g->head >= 0)) : reg;
}

/* ---- Commits ---- */

/* True if a register that was only loaded is stored or reduced as it is: a device may still read its memory then. */
static bool passes_on(const writer *w, int load)
{
    const kiln_draft *d = w->d;
    for (int32_t i = d->groups[w->group].last; i >= 0; i = d->node_next[i]) {
        int32_t out = kiln_draft_of(d, kiln_draft_node(d, i)->out);
        if (w->reg_program[out] == w->program && w->reg_of[out] == load && needs_memory(w, out))
            return true;
    }
    return w->g->reduces && w->g->reduce_src == load;
}

/* A value that replaces a slot's contents may be written there at once if no one needs the old contents afterwards, not
 * even a step that is called off because of a bad index. */
static bool may_write_slot(const writer *w, const kiln_draft_value *x, const kiln_kernel *k)
{
    int32_t now = w->d->ngroups - 1 - w->group; /* counted as in order.c: with groups that are left out */
    if (w->slot_read[x->slot] > now || w->last_check > now || (w->g->reduces && w->d->groups[w->group].permuted))
        return false;
    int32_t buffer = w->slot_buffer[x->slot];
    for (int i = 0; i < k->nin; i++)
        if (k->in[i].buffer == buffer && buffer >= 0)
            return false; /* the operation at the group's start reads it */
    if (w->program != w->group)
        return false; /* what comes behind the operation may */
    for (int i = 0; k->lead && i < k->lead->nloads; i++)
        if (k->lead->loads[i].buffer == buffer && buffer >= 0)
            return false;
    for (int i = 0; i < w->g->nloads; i++) {
        const kiln_operand *l = &w->g->loads[i];
        if (l->buffer == buffer && buffer >= 0 &&
            (!l->dense || l->offset || kiln_count(l->ndim, l->shape) != w->g->count || passes_on(w, i)))
            return false;
    }
    for (int i = 0; i < w->g->nstores;
         i++) /* two values for one slot cannot happen; two windows of one storage could */
        if (w->g->stores[i].to.buffer == buffer && buffer >= 0)
            return false;
    return bytes_of(x->v) == (int64_t)w->d->tr->slots[x->slot]->bytes;
}

static void add_store(writer *w, int32_t value, kiln_kernel *k)
{
    kiln_draft_value *x = &w->d->values[value];
    if (x->commits && x->buffer < 0 && may_write_slot(w, x, k))
        x->buffer = slot_buffer(w, x->slot);
    kiln_store *s = &w->g->stores[w->g->nstores++];
    s->src = final_register(w, w->reg_of[value]);
    s->to = window(w, value);
    s->to.shape[0] = w->g->count;
    s->to.stride[0] = 1;
    s->to.ndim = 1;
    s->to.dense = true;
    k->commits |= w->p->buffers[s->to.buffer].place == KILN_IN_SLOT;
}

/* ---- Kernels ---- */

/* The node of the group being written that makes operand k of another; -1: it comes from elsewhere. */
static int32_t maker_inside(const writer *w, const kiln_node *n, int k)
{
    int32_t b = kiln_draft_made(w->d, n, k), maker = b < 0 ? -1 : w->d->values[b].node;
    return maker >= 0 && w->d->node_group[maker] == w->group ? maker : -1;
}

/* Whether what leads to the operation makes its operand k. */
static bool is_given(const writer *w, const kiln_node *n, int k)
{
    int32_t maker = maker_inside(w, n, k);
    return maker >= 0 && w->leads[maker];
}

static bool kernel_of_node(writer *w, int32_t number, kiln_kernel *k)
{
    kiln_draft *d = w->d;
    const kiln_node *n = kiln_draft_node(d, number);
    int64_t *ints = KILN_ARENA_NEW(d->pool, int64_t, n->nints);
    k->op = n->op;
    k->node = number;
    k->nin = n->nin;
    k->nints = n->nints;
    k->ints = ints;
    k->scalars = n->floats - d->tr->first_float;
    k->nscalars = n->nfloats;
    k->in = KILN_ARENA_NEW(d->pool, kiln_operand, n->nin);
    k->out = KILN_ARENA_NEW(d->pool, kiln_operand, n->nout);
    if (!ints || !k->in || !k->out)
        return false;
    for (int i = 0; i < n->nints; i++)
        ints[i] = d->tr->ints[n->ints + i];
    for (int i = 0; i < n->nin; i++)
        k->in[i] = is_given(w, n, i) ? outline(w, kiln_draft_in(d, n, i)) : window(w, kiln_draft_in(d, n, i));
    return true;
}

/* An assignment to a part of a slot need not touch the rest, under the same conditions as above: nobody reads the old
 * contents afterwards, not even a step that is called off. */
static bool may_put_in_place(const writer *w, const kiln_node *n, const kiln_kernel *k)
{
    extern const kiln_op kiln_op_as_strided_put;
    const kiln_draft_value *x = &w->d->values[kiln_draft_of(w->d, n->out)];
    if (n->op != &kiln_op_as_strided_put || !x->commits || x->buffer >= 0)
        return false;
    int32_t now = w->d->ngroups - 1 - w->group, slot = w->slot_buffer[x->slot];
    const kiln_operand *base = &k->in[0];
    return w->slot_read[x->slot] <= now && w->last_check <= now && base->buffer == slot && k->in[1].buffer != slot &&
           base->dense && !base->offset && bytes_of(x->v) == w->p->buffers[slot].bytes;
}

/* With `finished` the first goes to the group behind the operation; where it is the only one, the kernel has none. */
static void write_results(writer *w, const kiln_node *n, bool finished, kiln_kernel *k)
{
    k->nout = finished && n->nout == 1 ? 0 : n->nout;
    for (int j = 0; j < k->nout; j++) {
        int32_t out = kiln_draft_of(w->d, n->out + j);
        k->out[j] = finished && !j ? outline(w, out) : window(w, out);
    }
}

static bool write_kernel(writer *w, int32_t group, kiln_kernel *k)
{
    int32_t number = w->d->groups[group].last;
    const kiln_node *n = kiln_draft_node(w->d, number);
    w->group = group;
    if (!kernel_of_node(w, number, k))
        return false;
    if (may_put_in_place(w, n, k)) {
        kiln_draft_value *x = &w->d->values[kiln_draft_of(w->d, n->out)];
        x->buffer = slot_buffer(w, x->slot);
        k->commits = true;
    }
    write_results(w, n, false, k);
    return true;
}

static void write_reduction(writer *w, int32_t number)
{
    kiln_draft *d = w->d;
    kiln_group *g = w->g;
    const kiln_node *n = kiln_draft_node(d, number);
    int32_t in = kiln_draft_in(d, n, 0);
    const kiln_value *x = d->values[in].v;
    g->reduces = true;
    g->fold = (kiln_fold)n->op->fold;
    g->reduce_src = operand_register(w, in, x, true);
    g->reduce_ndim = x->ndim;
    memcpy(g->reduce_shape, x->shape, x->ndim * sizeof *x->shape);
    for (int i = 1; i < n->nints; i++)
        g->reduce_dims |= 1u << d->tr->ints[n->ints + i];
}

/* Begins a program of the group, with room for so many nodes. */
static kiln_group *begin_program(writer *w, bool lead, int32_t nodes)
{
    kiln_draft *d = w->d;
    kiln_group *g = KILN_ARENA_NEW(d->pool, kiln_group, 1);
    if (!g)
        return NULL;
    g->loads = KILN_ARENA_NEW(d->pool, kiln_operand, 3 * (int64_t)nodes + KILN_MAX_LED);
    g->instrs = KILN_ARENA_NEW(d->pool, kiln_instr, nodes);
    g->stores = KILN_ARENA_NEW(d->pool, kiln_store, nodes);
    g->count = d->groups[w->group].count;
    g->head = -1;
    w->g = g;
    w->program = lead ? w->group + d->ngroups : w->group;
    return g->loads && g->instrs && g->stores ? g : NULL;
}

/* Now that the loads are counted, the registers get their final numbers: loads, the head, instructions. */
static void number_registers(const writer *w)
{
    kiln_group *g = w->g;
    int16_t head = g->head >= 0 ? (int16_t)g->nloads : -1;
    g->head = head;
    for (int i = 0; i < g->ninstrs; i++) {
        kiln_instr *in = &g->instrs[i];
        in->dst = final_register(w, in->dst);
        for (int s = 0; s < 3; s++)
            in->src[s] = in->src[s] == HEAD_REGISTER ? head : final_register(w, in->src[s]);
    }
    if (g->reduces)
        g->reduce_src = final_register(w, g->reduce_src);
    for (int i = 0; i < g->ngifts; i++)
        g->gifts[i].src = final_register(w, g->gifts[i].src);
}

/* Stores what nodes of the program made, where it is wanted. */
static void store_results(writer *w, bool lead, kiln_kernel *k)
{
    const kiln_draft *d = w->d;
    const kiln_draft_group *dg = &d->groups[w->group];
    for (int32_t i = dg->last; i >= 0; i = d->node_next[i]) {
        int32_t out = kiln_draft_of(d, kiln_draft_node(d, i)->out);
        if (w->leads[i] != lead)
            continue;
        if (w->reg_of[out] == HEAD_REGISTER && w->reg_program[out] == w->program)
            w->reg_of[out] = w->g->head;
        if (i != dg->root && needs_memory(w, out))
            add_store(w, out, k);
    }
}

/* ---- What leads ---- */

/* Marks the nodes of the group that make operands of the operation at its start; how many there are. */
static int32_t find_leads(writer *w)
{
    const kiln_draft *d = w->d;
    const kiln_draft_group *dg = &d->groups[w->group];
    int32_t count = 0;
    for (int32_t before = -1; before != count;) { /* seldom more than three times */
        before = count;
        for (int32_t i = dg->last; i >= 0; i = d->node_next[i])
            for (int k = 0; (i == dg->head || w->leads[i]) && k < kiln_draft_node(d, i)->nin; k++) {
                int32_t maker = maker_inside(w, kiln_draft_node(d, i), k);
                if (maker >= 0 && !w->leads[maker]) {
                    w->leads[maker] = true;
                    count++;
                }
            }
    }
    return count;
}

/* The program before the operation. */
static bool write_lead(writer *w, int32_t nodes, kiln_kernel *k)
{
    const kiln_draft *d = w->d;
    const kiln_draft_group *dg = &d->groups[w->group];
    const kiln_node *head = kiln_draft_node(d, dg->head);
    kiln_group *g = k->lead = begin_program(w, true, nodes);
    if (!g)
        return false;
    for (int32_t i = dg->last; i >= 0; i = d->node_next[i])
        if (w->leads[i])
            write_instr(w, kiln_draft_node(d, i), i, false);
    for (int i = 0; i < head->nin; i++)
        if (is_given(w, head, i)) {
            int32_t in = kiln_draft_in(d, head, i);
            g->gifts[g->ngifts++] = (kiln_gift){operand_register(w, in, d->values[in].v, false), (int8_t)i};
        }
    number_registers(w);
    store_results(w, true, k);
    return true;
}

static bool write_group(writer *w, int32_t group, kiln_kernel *k)
{
    kiln_draft *d = w->d;
    const kiln_draft_group *dg = &d->groups[group];
    w->group = group;
    int32_t leading = dg->head >= 0 ? find_leads(w) : 0, others = dg->nnodes - leading;
    k->node = dg->last;
    if (leading && !write_lead(w, leading, k))
        return false;
    kiln_group *g = k->group = begin_program(w, false, others);
    if (!g)
        return false;
    if (dg->head >= 0) {
        const kiln_node *head = kiln_draft_node(d, dg->head);
        if (!kernel_of_node(w, dg->head, k))
            return false;
        write_results(w, head, others > 1, k);
        if (others == 1) { /* nothing comes behind it */
            k->group = NULL;
            return true;
        }
        g->head = 0; /* known to be there; its number is set below */
        set_register(w, kiln_draft_of(d, head->out), HEAD_REGISTER);
    }
    for (int32_t i = dg->last; i >= 0; i = d->node_next[i])
        if (i == dg->root)
            write_reduction(w, i);
        else if (i != dg->head && !w->leads[i])
            write_instr(w, kiln_draft_node(d, i), i, dg->root >= 0);
    number_registers(w);
    store_results(w, false, k);
    if (g->reduces) {
        const kiln_node *root = kiln_draft_node(d, dg->root);
        if (dg->head < 0) {
            k->op = root->op;
            k->node = dg->root;
        }
        g->reduce_to = window(w, kiln_draft_of(d, root->out));
    }
    return true;
}

/* Copies what could not be written to its slot at once, after everything else has run. */
static bool write_commit(writer *w, int32_t value, kiln_kernel *k)
{
    kiln_draft *d = w->d;
    kiln_group *g = k->group = KILN_ARENA_NEW(d->pool, kiln_group, 1);
    kiln_draft_value *x = &d->values[value];
    if (!g || !(g->loads = KILN_ARENA_NEW(d->pool, kiln_operand, 1)) ||
        !(g->stores = KILN_ARENA_NEW(d->pool, kiln_store, 1)))
        return false;
    k->node = x->node;
    g->count = kiln_draft_numel(x->v);
    g->head = -1;
    g->nloads = g->nstores = 1;
    g->loads[0] = window(w, value);
    collapse(&g->loads[0]);
    g->stores[0] = (kiln_store){.src = 0, .to = g->loads[0]};
    g->stores[0].to.buffer = slot_buffer(w, x->slot);
    k->commits = true;
    w->p->buffers[g->stores[0].to.buffer].last = (int32_t)w->p->nkernels;
    return true;
}

/* ---- All of them ---- */

/* What another kernel makes along with its own has room from then on. */
static void join_kernels(writer *w)
{
    const kiln_draft *d = w->d;
    for (int32_t group = 0; group < d->ngroups; group++) {
        int32_t by = d->groups[group].choice.by, other = by ? w->kernel[d->node_group[by - 1]] : -1;
        if (other < 0 || w->kernel[group] < 0)
            continue;
        kiln_kernel *k = &w->p->kernels[w->kernel[group]];
        k->choice.by = other + 1;
        for (kiln_access a = {0}; kiln_next_access(k, &a);)
            if (a.writes && w->p->buffers[a.buffer].first > other)
                w->p->buffers[a.buffer].first = other;
    }
}

/* Whether a node makes nothing and cannot call the step off either: it need not run. */
static bool is_idle(const kiln_draft *d, const kiln_node *n)
{
    bool empty = !n->op->demand;
    for (int j = 0; j < n->nout; j++)
        empty &= kiln_draft_numel(d->values[kiln_draft_of(d, n->out + j)].v) == 0;
    return empty;
}

/* Leaves out a group that makes only values of no elements (the receipts of an optimizer are such). Those that outlive
 * the step still get their storage. */
static bool skip_idle(writer *w, int32_t group)
{
    const kiln_draft *d = w->d;
    for (int32_t i = d->groups[group].last; i >= 0; i = d->node_next[i])
        if (!is_idle(d, kiln_draft_node(d, i)))
            return false;
    for (int32_t i = d->groups[group].last; i >= 0; i = d->node_next[i])
        for (int j = 0; j < kiln_draft_node(d, i)->nout; j++) {
            int32_t out = kiln_draft_of(d, kiln_draft_node(d, i)->out + j);
            if (d->values[out].output >= 0)
                buffer_of(w, out);
        }
    return true;
}

/* A cat whose parts are made where they belong: nothing is left to do. */
static bool has_its_parts(const writer *w, int32_t group)
{
    const kiln_draft_group *g = &w->d->groups[group];
    const kiln_node *n = kiln_draft_node(w->d, g->last);
    int32_t first = g->work == KILN_WORK_KERNEL && n->nin ? kiln_draft_made(w->d, n, 0) : -1;
    return first >= 0 && w->whole[first] == kiln_draft_of(w->d, n->out);
}

/* When each slot is read last. */
static void find_hazards(writer *w)
{
    const kiln_draft *d = w->d;
    for (int32_t i = 0; i < d->nnodes; i++) {
        if (!d->node_live[i])
            continue;
        const kiln_node *n = kiln_draft_node(d, i);
        int32_t when = d->ngroups - 1 - d->node_group[i];
        for (int k = 0; k < n->nin; k++) {
            int32_t in = kiln_draft_in(d, n, k);
            const kiln_draft_value *x = in < 0 ? NULL : &d->values[kiln_draft_base(d, in)];
            if (x && x->node < 0 && when > w->slot_read[x->slot])
                w->slot_read[x->slot] = when;
        }
    }
}

static bool prepare(writer *w)
{
    kiln_draft *d = w->d;
    w->p->nslots = (int32_t)d->tr->nslots;
    w->slot_buffer = KILN_ARENA_NEW(&d->scratch, int32_t, w->p->nslots);
    w->slot_read = KILN_ARENA_NEW(&d->scratch, int32_t, w->p->nslots);
    w->kernel = KILN_ARENA_NEW(&d->scratch, int32_t, d->ngroups);
    w->reg_of = KILN_ARENA_NEW(&d->scratch, int16_t, d->nvalues);
    w->reg_program = KILN_ARENA_NEW(&d->scratch, int32_t, d->nvalues);
    w->leads = KILN_ARENA_NEW(&d->scratch, bool, d->nnodes);
    w->whole = KILN_ARENA_NEW(&d->scratch, int32_t, d->nvalues);
    /* A buffer a value and slot, and a workspace a kernel, at most. */
    int64_t kernels = (int64_t)d->ngroups + d->tr->ncommits;
    w->p->kernels = KILN_ARENA_NEW(d->pool, kiln_kernel, kernels);
    w->p->buffers = KILN_ARENA_NEW(d->pool, kiln_buffer, d->nvalues + w->p->nslots + kernels);
    if (!w->slot_buffer || !w->slot_read || !w->kernel || !w->reg_of || !w->reg_program || !w->leads || !w->whole ||
        !w->p->kernels || !w->p->buffers)
        return false;
    memset(w->slot_buffer, -1, (size_t)w->p->nslots * sizeof *w->slot_buffer);
    memset(w->slot_read, -1, (size_t)w->p->nslots * sizeof *w->slot_read);
    memset(w->reg_program, -1, (size_t)d->nvalues * sizeof *w->reg_program);
    return true;
}

/* For messages: what the user wrote that it comes from, and where. */
static void describe_kernel(const kiln_draft *d, kiln_kernel *k)
{
    const kiln_node *n = kiln_draft_node(d, k->node);
    k->origin = n->origin;
    k->module = kiln_interned(n->module);
    k->number = n->number;
    k->back = n->back;
}

bool kiln_draft_kernels(kiln_draft *d)
{
    writer w = {.d = d, .p = d->plan};
    if (!prepare(&w) || !kiln_draft_find_parts(d, w.whole) || !kiln_draft_find_checks(d, &w.last_check))
        return false;
    find_hazards(&w);
    for (int32_t group = d->ngroups; group-- > 0;) {
        w.kernel[group] = -1;
        if (skip_idle(&w, group) || has_its_parts(&w, group))
            continue;
        w.kernel[group] = (int32_t)w.p->nkernels;
        kiln_kernel *k = &w.p->kernels[w.p->nkernels];
        k->workspace = -1;
        k->choice.how = d->groups[group].choice.how;
        k->tf32 = d->tr->tf32;
        bool ok = d->groups[group].work == KILN_WORK_GROUP ? write_group(&w, group, k) : write_kernel(&w, group, k);
        if (!ok)
            return false;
        describe_kernel(d, k);
        w.p->nkernels++;
    }
    for (int64_t c = 0; c < d->tr->ncommits; c++) {
        int32_t value = kiln_draft_of(d, d->tr->commits[c]);
        const kiln_draft_value *x = &d->values[value];
        bool written = x->buffer >= 0 && w.p->buffers[x->buffer].place == KILN_IN_SLOT;
        if (written || kiln_draft_numel(x->v) == 0)
            continue;
        kiln_kernel *k = &w.p->kernels[w.p->nkernels];
        k->workspace = -1;
        if (!write_commit(&w, value, k))
            return false;
        describe_kernel(d, k);
        w.p->nkernels++;
    }
    join_kernels(&w);
    return true;
}
