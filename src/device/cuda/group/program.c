/* A group as a program: the order of loads, instructions and stores, registers by liveness, geometry of loads. */
#include "device/cuda/group/program.h"
#include <limits.h>
#include <string.h>
#include "core/alloc.h"

_Static_assert(KILN_PW_F32 == 0 && KILN_PW_F64 == 1 && KILN_PW_I64 == 2 && KILN_PW_BOOL == 3, "as in words.cuh");
_Static_assert(KILN_FOLD_SUM == 0 && KILN_FOLD_PROD == 1 && KILN_FOLD_MAX == 2 && KILN_FOLD_MIN == 3 &&
                   KILN_FOLD_ANY == 4 && KILN_FOLD_ALL == 5,
               "as in words.cuh");
_Static_assert((int)KILN_CUDA_GIFTS == KILN_MAX_LED, "as many as an operation takes");
_Static_assert(KILN_PW_ROWS <= 256, "a row's number must fit its operation");

enum { REGISTERS = 1024, STORES = 256 }; /* far above what the planner puts into a group */

typedef struct span {
    uintptr_t start, end;
} span;

typedef struct event { /* a load or an instruction, in the order they are done */
    bool load;
    int index;
} event;

typedef struct lowering {
    const kiln_cuda_call *c;
    const kiln_group *g;
    const void *head;
    bool vectors; /* a thread's first element is always one of 0, 4, 8, … */
    int order[KILN_MAX_DIMS];
    int nloads;              /* with the head */
    int16_t same[REGISTERS]; /* by register: what stands for it; itself unless its cast is left out */
    span reads[REGISTERS];
    event events[REGISTERS];
    int nevents;
    int made[REGISTERS]; /* by register: the event that makes it; -1 */
    int last[REGISTERS]; /* by register: the last event after which it is used */
    int after[STORES];   /* by store: the event it follows */
    int16_t physical[REGISTERS];
    int16_t free_list[REGISTERS];
    int nfree;
    kiln_cuda_op ops[REGISTERS + STORES];
    kiln_cuda_load loads[REGISTERS];
    kiln_cuda_store stores[STORES];
    kiln_cuda_dim dims[REGISTERS * KILN_MAX_DIMS];
    int ndims;
    kiln_cuda_lowered *to;
    kiln_cuda_program *p; /* of `to` */
} lowering;

static bool is_wide(kiln_dtype dtype)
{
    kiln_pw_class cls = kiln_pw_class_of(dtype);
    return cls == KILN_PW_F64 || cls == KILN_PW_I64;
}

static kiln_dtype head_dtype(const lowering *w)
{
    const kiln_group *g = w->g;
    for (int i = 0; i < g->ninstrs; i++)
        for (int s = 0; s < 3; s++)
            if (g->instrs[i].src[s] == g->head)
                return (kiln_dtype)g->instrs[i].from;
    for (int i = 0; i < g->nstores; i++)
        if (g->stores[i].src == g->head)
            return (kiln_dtype)g->stores[i].to.dtype;
    return w->c->in[0].dtype;
}

static kiln_dtype dtype_of(const lowering *w, int16_t reg)
{
    const kiln_group *g = w->g;
    if (reg < g->nloads)
        return (kiln_dtype)g->loads[reg].dtype;
    return reg == g->head ? head_dtype(w) : (kiln_dtype)g->instrs[reg - w->nloads].dtype;
}

/* ---- Casts between integers and flags that need not be made ----
 * They would make all of the group wide, which halves what a thread does at a time. */

static bool is_cast(const kiln_instr *in, kiln_dtype from, kiln_dtype to)
{
    return in->row == KILN_PW_cast && in->from == from && in->dtype == to;
}

static bool is_stored(const kiln_group *g, int16_t reg)
{
    for (int i = 0; i < g->nstores; i++)
        if (g->stores[i].src == reg)
            return true;
    return false;
}

/* Whether no instruction but casts to flags reads an integer that was loaded, so that it can be loaded as a flag. */
static bool is_flag(const kiln_group *g, int16_t load)
{
    bool cast = false;
    for (int i = 0; i < g->ninstrs; i++)
        for (int s = 0; s < 3; s++)
            if (g->instrs[i].src[s] == load) {
                if (!is_cast(&g->instrs[i], KILN_I64, KILN_BOOL))
                    return false;
                cast = true;
            }
    return cast && !is_stored(g, load) && !(g->reduces && g->reduce_src == load);
}

/* Whether a register is read by nobody but a sum of integers: flags can be summed as they are. */
static bool is_summed(const kiln_group *g, int16_t reg)
{
    for (int i = 0; i < g->ninstrs; i++)
        for (int s = 0; s < 3; s++)
            if (g->instrs[i].src[s] == reg)
                return false;
    return g->reduces && g->fold == KILN_FOLD_SUM && g->reduce_src == reg && !is_stored(g, reg);
}

static bool is_left_out(const lowering *w, const kiln_instr *in)
{
    return w->same[in->dst] != in->dst;
}

static void leave_out_casts(lowering *w)
{
    const kiln_group *g = w->g;
    for (int r = 0; r < w->nloads + g->ninstrs; r++)
        w->same[r] = (int16_t)r;
    for (int i = 0; i < g->ninstrs; i++) {
        const kiln_instr *in = &g->instrs[i];
        bool loaded = in->row == KILN_PW_cast && in->src[0] < g->nloads;
        if ((is_cast(in, KILN_I64, KILN_BOOL) && loaded && is_flag(g, in->src[0])) ||
            (is_cast(in, KILN_BOOL, KILN_I64) && is_summed(g, in->dst)))
            w->same[in->dst] = w->same[in->src[0]];
    }
}

/* The register that an operand is in. */
static int16_t source(const lowering *w, int16_t reg)
{
    return reg < 0 ? reg : w->same[reg];
}

static bool is_wide_register(const lowering *w, int16_t reg)
{
    if (w->same[reg] != reg || (reg < w->g->nloads && is_flag(w->g, reg)))
        return false;
    return is_wide(dtype_of(w, reg));
}

static bool aligned(const void *p, int64_t elements, kiln_dtype dtype)
{
    return (uintptr_t)p % ((size_t)elements * kiln_dtype_size(dtype)) == 0;
}

static kiln_cuda_dim dim_of(int64_t size, int64_t stride)
{
    kiln_cuda_dim d = {.size = size, .stride = stride};
    while (((int64_t)1 << d.shift) < size && d.shift < 31)
        d.shift++;
    if (size > 0 && size <= INT_MAX)
        d.magic = (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << d.shift) - (uint64_t)size)) / (uint64_t)size + 1);
    return d;
}

static void lower_load(lowering *w, int number)
{
    const kiln_group *g = w->g;
    kiln_cuda_load *l = &w->loads[number];
    int cell = w->to->wide ? 2 : 4;
    if (number == g->nloads) { /* the head */
        kiln_dtype dtype = head_dtype(w);
        *l = (kiln_cuda_load){.data = w->head, .step = 1, .dtype = (uint8_t)dtype, .kind = KILN_CUDA_LINE};
        l->vector = w->vectors && aligned(w->head, cell, dtype);
        w->reads[number].start = (uintptr_t)w->head;
        w->reads[number].end = (uintptr_t)w->head + (size_t)g->count * kiln_dtype_size(dtype);
        return;
    }
    const kiln_operand *o = &g->loads[number];
    int64_t shape[KILN_MAX_DIMS], stride[KILN_MAX_DIMS];
    int n = 0;
    for (int i = 0; i < o->ndim; i++) {
        int d = g->reduces ? w->order[i] : i;
        if (o->shape[d] == 1)
            continue;
        if (n && stride[n - 1] == o->stride[d] * o->shape[d])
            shape[n - 1] *= o->shape[d];
        else
            shape[n++] = o->shape[d];
        stride[n - 1] = o->stride[d];
    }
    bool flag = o->dtype == KILN_I64 && is_flag(g, (int16_t)number);
    *l = (kiln_cuda_load){
        .data = kiln_cuda_address(w->c, o), .dtype = flag ? KILN_CUDA_NOT_ZERO : o->dtype, .dims = w->ndims};
    w->reads[number].start = (uintptr_t)kiln_buffer_address(w->c->plan, w->c->binding, o->buffer);
    w->reads[number].end = w->reads[number].start + (size_t)w->c->plan->buffers[o->buffer].bytes;
    l->step = n ? stride[n - 1] : 0;
    /* Where rows are folded, quads begin at multiples of four from where a row does, and none goes on in the next. */
    bool in_rows = g->reduces && w->p->r.inner == 1, row = in_rows && n > 1 && shape[n - 1] == w->p->r.reduced;
    bool line =
        n <= 1 || (w->vectors && shape[n - 1] % 4 == 0) || (in_rows && n > 1 && shape[n - 1] % w->p->r.reduced == 0);
    l->kind = n == 0 || (n == 1 && l->step == 0) ? KILN_CUDA_SPLAT : line ? KILN_CUDA_LINE : KILN_CUDA_ANY;
    l->vector = line && l->step == 1 && (w->vectors || row) && !flag && aligned(l->data, cell, (kiln_dtype)o->dtype);
    if (n <= 1)
        return;
    l->ndim = (uint8_t)n;
    for (int i = n - 1; i >= 0; i--) {
        w->dims[w->ndims++] = dim_of(shape[i], stride[i]);
        l->vector &= i == n - 1 || stride[i] % 4 == 0;
    }
}

/* Loads come right before their first use. */
static void need(lowering *w, int16_t reg)
{
    if (reg < 0 || reg >= w->nloads || w->made[reg] >= 0)
        return;
    w->made[reg] = w->nevents;
    w->events[w->nevents++] = (event){true, reg};
}

static void list_events(lowering *w)
{
    const kiln_group *g = w->g;
    for (int i = 0; i < w->nloads + g->ninstrs; i++)
        w->made[i] = -1;
    for (int i = 0; i < g->ninstrs; i++) {
        if (is_left_out(w, &g->instrs[i]))
            continue;
        for (int s = 0; s < 3; s++)
            need(w, source(w, g->instrs[i].src[s]));
        w->made[g->instrs[i].dst] = w->nevents;
        w->events[w->nevents++] = (event){false, i};
    }
    for (int i = 0; i < g->nstores; i++)
        need(w, source(w, g->stores[i].src));
    if (g->reduces)
        need(w, source(w, g->reduce_src));
    for (int i = 0; i < g->ngifts; i++)
        need(w, source(w, g->gifts[i].src));
}

/* A store comes as soon as its value is there and what lies in its memory has been read. That concerns this thread's
 * elements alone: a group writes over its operands only where it reads them in the order it writes them. */
static void place_stores(lowering *w)
{
    const kiln_group *g = w->g;
    for (int s = 0; s < g->nstores; s++) {
        uintptr_t start = (uintptr_t)kiln_cuda_address(w->c, &g->stores[s].to);
        uintptr_t end = start + (size_t)g->count * kiln_dtype_size((kiln_dtype)g->stores[s].to.dtype);
        w->after[s] = w->made[source(w, g->stores[s].src)];
        for (int l = 0; l < w->nloads; l++)
            if (w->made[l] > w->after[s] && w->reads[l].start < end && start < w->reads[l].end)
                w->after[s] = w->made[l];
        w->stores[s] = (kiln_cuda_store){.data = (void *)start, .dtype = g->stores[s].to.dtype};
        w->stores[s].vector =
            w->vectors && aligned((void *)start, w->to->wide ? 2 : 4, (kiln_dtype)g->stores[s].to.dtype);
    }
}

static void find_last_uses(lowering *w)
{
    const kiln_group *g = w->g;
    for (int r = 0; r < w->nloads + g->ninstrs; r++)
        w->last[r] = 2 * w->made[r] + 1;
    for (int e = 0; e < w->nevents; e++)
        for (int s = 0; s < 3 && !w->events[e].load; s++) {
            int16_t reg = source(w, g->instrs[w->events[e].index].src[s]);
            if (reg >= 0)
                w->last[reg] = 2 * e;
        }
    for (int s = 0; s < g->nstores; s++) {
        int16_t reg = source(w, g->stores[s].src);
        if (2 * w->after[s] + 1 > w->last[reg])
            w->last[reg] = 2 * w->after[s] + 1;
    }
    if (g->reduces)
        w->last[source(w, g->reduce_src)] = INT_MAX;
    for (int i = 0; i < g->ngifts; i++)
        w->last[source(w, g->gifts[i].src)] = INT_MAX;
}

/* ---- Operations ---- */

static uint16_t take(lowering *w, int16_t reg)
{
    if (w->nfree)
        w->physical[reg] = w->free_list[--w->nfree];
    else
        w->physical[reg] = (int16_t)w->p->nregisters++;
    return (uint16_t)w->physical[reg];
}

static void give(lowering *w, int16_t reg, int now)
{
    if (reg < 0 || w->last[reg] != now || w->physical[reg] < 0)
        return;
    w->free_list[w->nfree++] = w->physical[reg];
    w->physical[reg] = -1;
}

static unsigned after_of(const kiln_instr *in)
{
    bool cast = in->row == KILN_PW_cast;
    switch (in->dtype) {
    case KILN_U8: return KILN_CUDA_WRAP_U8;
    case KILN_I32: return KILN_CUDA_WRAP_I32;
    case KILN_F16: return cast ? KILN_CUDA_ROUND_F16 : KILN_CUDA_AS_IS;
    case KILN_BF16: return cast ? KILN_CUDA_ROUND_BF16 : KILN_CUDA_AS_IS;
    default: return KILN_CUDA_AS_IS;
    }
}

static kiln_cuda_op lower_instr(lowering *w, const kiln_instr *in, int now)
{
    const kiln_pw_row *row = &kiln_pw_rows[in->row];
    kiln_pw_class from = kiln_pw_class_of((kiln_dtype)in->from), to = kiln_pw_class_of((kiln_dtype)in->dtype);
    bool cast = row->kind == KILN_PW_IS_CAST;
    kiln_cuda_op op = {.code = (uint8_t)(cast ? KILN_CUDA_CAST : KILN_CUDA_ROW + from),
                       .row = (uint8_t)(cast ? (int)from * 4 + (int)to : in->row),
                       .arity = (uint8_t)row->arity,
                       .scalars = in->scalars};
    op.after = after_of(in) & 15;
    op.nscalars = (unsigned)row->scalars & 15;
    for (int s = 0; s < row->arity; s++)
        op.src[s] = (uint16_t)w->physical[source(w, in->src[s])];
    for (int s = 0; s < row->arity; s++) /* the result may take an operand's place: all are read before */
        give(w, source(w, in->src[s]), 2 * now);
    op.dst = take(w, in->dst);
    return op;
}

static void lower_events(lowering *w)
{
    const kiln_group *g = w->g;
    kiln_cuda_program *p = w->p;
    for (int e = 0; e < w->nevents; e++) {
        const event *x = &w->events[e];
        int16_t reg = x->load ? (int16_t)x->index : g->instrs[x->index].dst;
        kiln_cuda_op *op = &w->ops[p->nops++];
        if (x->load) {
            *op = (kiln_cuda_op){.code = KILN_CUDA_LOAD};
            op->src[0] = (uint16_t)x->index;
            op->dst = take(w, reg);
        } else
            *op = lower_instr(w, &g->instrs[x->index], e);
        for (int s = 0; s < g->nstores; s++)
            if (w->after[s] == e) {
                op = &w->ops[p->nops++];
                *op = (kiln_cuda_op){.code = KILN_CUDA_STORE, .arity = 1};
                op->src[0] = (uint16_t)w->physical[source(w, g->stores[s].src)];
                op->src[1] = (uint16_t)s;
            }
        for (int s = 0; s < g->nstores; s++)
            if (w->after[s] == e)
                give(w, source(w, g->stores[s].src), 2 * e + 1);
        give(w, reg, 2 * e + 1);
    }
}

static void append(lowering *w, const void *from, size_t bytes)
{
    if ((size_t)w->p->bytes + bytes <= sizeof w->to->k.body)
        memcpy(w->to->k.body + w->p->bytes, from, bytes);
    w->p->bytes += (int32_t)bytes;
}

static bool lower(lowering *w)
{
    const kiln_group *g = w->g;
    kiln_cuda_program *p = w->p;
    w->nloads = g->nloads + (g->head >= 0);
    if (w->nloads + g->ninstrs > REGISTERS || g->nstores > STORES)
        return kiln_fail(KILN_E_UNSUPPORTED, w->c->name, "a group of %d registers and %d results is too long for cuda",
                         w->nloads + g->ninstrs, g->nstores);
    leave_out_casts(w);
    for (int r = 0; r < w->nloads + g->ninstrs; r++) {
        w->to->wide |= is_wide_register(w, (int16_t)r);
        w->physical[r] = -1;
    }
    *p = (kiln_cuda_program){.count = g->count,
                             .scalars = w->c->scalars,
                             .stop = w->c->stop,
                             .nloads = w->nloads,
                             .nstores = g->nstores,
                             .below_2_31 = g->count < INT_MAX};
    w->vectors = true;
    if (g->reduces) {
        kiln_cuda_lower_reduction(&p->r, g, w->order);
        p->shape = p->r.inner == 1 ? KILN_CUDA_ROWS : KILN_CUDA_COLUMNS;
        w->vectors = p->r.inner == 1 ? p->r.reduced % 4 == 0 || p->r.outer == 1 : p->r.inner % 4 == 0;
    }
    for (int l = 0; l < w->nloads; l++)
        lower_load(w, l);
    list_events(w);
    place_stores(w);
    find_last_uses(w);
    lower_events(w);
    append(w, w->ops, (size_t)p->nops * sizeof *w->ops);
    append(w, w->loads, (size_t)p->nloads * sizeof *w->loads);
    append(w, w->stores, (size_t)p->nstores * sizeof *w->stores);
    append(w, w->dims, (size_t)w->ndims * sizeof *w->dims);
    return p->bytes <= KILN_CUDA_LARGE ||
           kiln_fail(KILN_E_UNSUPPORTED, w->c->name, "a group whose program takes %d bytes is too long for cuda",
                     (int)p->bytes);
}

bool kiln_cuda_lower_group(kiln_cuda_lowered *to, const kiln_cuda_call *c, const kiln_group *g, const void *head)
{
    lowering *w = kiln_alloc_zero(1, sizeof *w);
    if (!w)
        return false;
    w->c = c;
    w->g = g;
    w->head = head;
    w->to = to;
    w->p = &to->k.p;
    bool ok = lower(w);
    if (ok && g->reduces) {
        kiln_cuda_reduction *r = &w->p->r;
        r->src = (uint16_t)w->physical[source(w, g->reduce_src)];
        r->cls = (uint8_t)kiln_pw_class_of(dtype_of(w, g->reduce_src));
        r->fold = (uint8_t)g->fold;
        r->dtype = g->reduce_to.dtype;
        r->partials = r->chunks > 1 ? c->workspace : NULL;
        r->to = kiln_cuda_address(c, &g->reduce_to);
        r->stop = c->stop;
    }
    w->p->ngifts = g->ngifts;
    for (int i = 0; ok && i < g->ngifts; i++)
        w->p->gifts[i] = (uint16_t)w->physical[source(w, g->gifts[i].src)];
    kiln_free(w);
    return ok;
}
