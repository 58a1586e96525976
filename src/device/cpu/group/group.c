/* Lowering and running fused groups: register allocation, loads, instructions, stores. */
#include "device/cpu/group/group.h"
#include <string.h>
#include "core/parallel.h"
#include "device/cpu/group/join.h"

static bool is_direct(kiln_dtype dtype)
{
    return dtype == KILN_F32 || dtype == KILN_F64 || dtype == KILN_I64;
}

/* ---- Lowering ---- */

static void join_dims(kiln_cpu_load *l)
{
    int n = 0;
    for (int i = 0; i < l->ndim; i++) {
        if (l->shape[i] == 1)
            continue;
        if (n && l->stride[n - 1] == l->stride[i] * l->shape[i])
            l->shape[n - 1] *= l->shape[i];
        else
            l->shape[n++] = l->shape[i];
        l->stride[n - 1] = l->stride[i];
    }
    l->ndim = (uint8_t)n;
}

static void lower_load(kiln_cpu_load *l, const kiln_operand *o, const int *order, int64_t count)
{
    *l = (kiln_cpu_load){.dtype = o->dtype,
                         .ndim = o->ndim,
                         .buffer = o->buffer,
                         .size = (int64_t)kiln_dtype_size((kiln_dtype)o->dtype),
                         .offset = o->offset,
                         .physical = -1};
    for (int i = 0; i < o->ndim; i++) {
        l->shape[i] = o->shape[order ? order[i] : i];
        l->stride[i] = o->stride[order ? order[i] : i];
    }
    join_dims(l);
    if (count <= 1 || l->ndim == 0 || (l->ndim == 1 && l->stride[0] == 0))
        l->kind = KILN_LOAD_SCALAR;
    else if (l->ndim == 1 && l->stride[0] == 1)
        l->kind = is_direct((kiln_dtype)o->dtype) ? KILN_LOAD_DIRECT : KILN_LOAD_DENSE;
    else
        l->kind = l->stride[l->ndim - 1] == 0 && l->shape[l->ndim - 1] > KILN_TILE ? KILN_LOAD_ROWS : KILN_LOAD_STRIDED;
}

static void lower_instr(kiln_cpu_instr *x, const kiln_instr *in, const kiln_pw_table *table)
{
    kiln_pw_class from = kiln_pw_class_of((kiln_dtype)in->from), to = kiln_pw_class_of((kiln_dtype)in->dtype);
    bool cast = in->row == KILN_PW_cast;
    x->fn = cast ? table->cast[from][to] : table->fn[from][in->row];
    if (cast && in->dtype == KILN_I32 && table->to_i32[from])
        x->fn = table->to_i32[from];
    x->after = cast && table->round[in->dtype] ? table->round[in->dtype] : table->wrap[in->dtype];
    x->row = in->row;
    x->dtype = in->dtype;
    x->from = in->from;
    x->dst = in->dst;
    x->store = x->joined = -1;
    x->scalars = in->scalars;
    memcpy(x->src, in->src, sizeof x->src);
}

/* ---- Casts that change nothing ---- */

/* What is of 16 bits is held as f32, and only a cast to 16 bits rounds it: one to f32 changes nothing, nor does one to
 * 16 bits that is only stored, or given, which rounds as well. */
static bool is_in_f32(uint8_t dtype)
{
    return kiln_pw_class_of((kiln_dtype)dtype) == KILN_PW_F32;
}

static bool is_only_stored(const kiln_cpu_group *e, const kiln_cpu_instr *cast)
{
    if (e->group->reduces && e->group->reduce_src == cast->dst)
        return false;
    for (int i = 0; i < e->ninstrs; i++)
        for (int s = 0; s < 3; s++)
            if (e->instrs[i].src[s] == cast->dst)
                return false;
    for (int i = 0; i < e->nstores; i++)
        if (e->stores[i].src == cast->dst && e->stores[i].dtype != cast->dtype)
            return false;
    return true;
}

static bool overlap(const kiln_buffer *a, const kiln_buffer *b)
{
    if (a->place != b->place)
        return false;
    if (a->place != KILN_IN_ARENA)
        return a->index == b->index;
    return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/* Whether a register is memory that a store may write to before others have read it. */
static bool may_be_overwritten(const kiln_cpu_group *e, const kiln_plan *plan, int16_t reg)
{
    if (reg >= e->nloads || e->loads[reg].kind != KILN_LOAD_DIRECT)
        return false;
    for (int i = 0; i < e->nstores; i++)
        if (overlap(&plan->buffers[e->loads[reg].buffer], &plan->buffers[e->stores[i].buffer]))
            return true;
    return false;
}

/* Such casts are left out: who reads their register reads the one they cast. */
static void leave_out_casts(kiln_cpu_group *e, const kiln_plan *plan)
{
    int kept = 0;
    for (int r = 0; r < e->nregisters; r++)
        e->same[r] = (int16_t)r;
    for (int i = 0; i < e->ninstrs; i++) {
        const kiln_cpu_instr *in = &e->instrs[i];
        if (in->row == KILN_PW_cast && is_in_f32(in->from) && is_in_f32(in->dtype) &&
            (!in->after || is_only_stored(e, in)) && !may_be_overwritten(e, plan, e->same[in->src[0]]))
            e->same[in->dst] = e->same[in->src[0]];
    }
    for (int i = 0; i < e->ninstrs; i++) {
        kiln_cpu_instr *in = &e->instrs[kept];
        *in = e->instrs[i];
        for (int s = 0; s < 3; s++)
            in->src[s] = in->src[s] < 0 ? in->src[s] : e->same[in->src[s]];
        kept += e->same[in->dst] == in->dst;
    }
    e->ninstrs = kept;
    for (int i = 0; i < e->nstores; i++)
        e->stores[i].src = e->same[e->stores[i].src];
}

/* ---- Registers ---- */

/* How often each register is read. */
static void count_uses(const kiln_cpu_group *e, int *uses)
{
    const kiln_group *g = e->group;
    for (int r = 0; r < e->nregisters; r++)
        uses[r] = 0;
    for (int i = 0; i < e->ninstrs; i++)
        for (int s = 0; s < 3; s++)
            if (e->instrs[i].src[s] >= 0)
                uses[e->instrs[i].src[s]]++;
    for (int i = 0; i < e->nstores; i++)
        uses[e->stores[i].src]++;
    if (g->reduces)
        uses[e->same[g->reduce_src]]++;
    for (int i = 0; i < g->ngifts; i++)
        uses[e->same[g->gifts[i].src]]++;
}

/* The last instruction that reads each register; stores, the reduction and what is given come after all of them. */
static void find_last_uses(const kiln_cpu_group *e, int *last)
{
    const kiln_group *g = e->group;
    for (int r = 0; r < e->nregisters; r++)
        last[r] = -1;
    for (int i = 0; i < e->ninstrs; i++)
        for (int s = 0; s < 3; s++)
            if (e->instrs[i].src[s] >= 0)
                last[e->instrs[i].src[s]] = i;
    for (int i = 0; i < e->nstores; i++)
        last[e->stores[i].src] = e->ninstrs;
    if (g->reduces)
        last[e->same[g->reduce_src]] = e->ninstrs;
    for (int i = 0; i < g->ngifts; i++)
        last[e->same[g->gifts[i].src]] = e->ninstrs;
}

bool kiln_cpu_group_reads(const kiln_cpu_group *e, const kiln_plan *plan, int32_t buffer)
{
    for (int l = 0; l < e->nloads; l++)
        if (overlap(&plan->buffers[e->loads[l].buffer], &plan->buffers[buffer]))
            return true;
    return false;
}

/* An instruction may write its result straight to memory if no later instruction reads what lies there. */
static void find_direct_stores(kiln_cpu_group *e, const kiln_plan *plan, const int *last)
{
    for (int s = 0; s < e->nstores; s++) {
        kiln_cpu_store *st = &e->stores[s];
        int i = e->ninstrs - 1;
        while (i >= 0 && e->instrs[i].dst != st->src)
            i--;
        if (i < 0 || !is_direct((kiln_dtype)st->dtype) || e->instrs[i].store >= 0)
            continue;
        bool safe = true;
        for (int l = 0; l < e->nloads; l++)
            safe &= last[l] <= i || e->loads[l].kind == KILN_LOAD_SCALAR ||
                    !overlap(&plan->buffers[e->loads[l].buffer], &plan->buffers[st->buffer]);
        if (safe) {
            e->instrs[i].store = (int16_t)s;
            st->done = true;
        }
    }
}

/* Scratch registers by liveness: a result takes the place of an operand of its class that dies there, or any free one.
 */
static void allocate_registers(kiln_cpu_group *e, const int *last, int16_t *free_list)
{
    int nfree = 0;
    for (int r = 0; r < e->nregisters; r++)
        e->physical[r] = -1;
    for (int l = 0; l < e->nloads; l++) {
        if (e->loads[l].kind != KILN_LOAD_DIRECT)
            e->loads[l].physical = (int16_t)e->nphysical++;
        if (e->loads[l].kind != KILN_LOAD_ROWS) /* these keep theirs for the next tile */
            e->physical[l] = e->loads[l].physical;
    }
    for (int i = 0; i < e->ninstrs; i++) {
        const kiln_cpu_instr *in = &e->instrs[i];
        kiln_pw_class to = kiln_pw_class_of((kiln_dtype)in->dtype);
        int16_t place = -1, dying[3];
        int ndying = 0;
        for (int s = 0; s < 3; s++) {
            int16_t r = in->src[s];
            bool again = (s > 0 && r == in->src[0]) || (s > 1 && r == in->src[1]);
            if (r < 0 || again || last[r] != i || e->physical[r] < 0)
                continue;
            bool condition = kiln_pw_rows[in->row].kind == KILN_PW_IS_PICK && s == 0;
            kiln_pw_class cls = condition ? KILN_PW_BOOL : kiln_pw_class_of((kiln_dtype)in->from);
            if (place < 0 && cls == to)
                place = e->physical[r];
            else
                dying[ndying++] = e->physical[r];
        }
        if (e->instrs[i].store >= 0) { /* its result lives in memory */
            if (place >= 0)
                free_list[nfree++] = place;
        } else {
            if (place < 0)
                place = nfree ? free_list[--nfree] : (int16_t)e->nphysical++;
            e->physical[in->dst] = place;
            if (last[in->dst] < 0) /* nobody reads it */
                free_list[nfree++] = place;
        }
        for (int k = 0; k < ndying; k++)
            free_list[nfree++] = dying[k];
    }
}

/* [kept…, reduced…], or [kept…, reduced…, kept…] when the innermost dim stays. */
static void lower_reduction(kiln_cpu_group *e, const kiln_group *g, int *order)
{
    int n = 0, last = g->reduce_ndim, inner_from;
    while (last > 0 && g->reduce_shape[last - 1] == 1)
        last--;
    bool inner_stays = last > 0 && !(g->reduce_dims >> (last - 1) & 1);
    inner_from = g->reduce_ndim;
    while (inner_stays && inner_from > 0 &&
           (g->reduce_shape[inner_from - 1] == 1 || !(g->reduce_dims >> (inner_from - 1) & 1)))
        inner_from--;
    e->outer = e->reduced = e->inner = 1;
    for (int i = 0; i < inner_from; i++)
        if (!(g->reduce_dims >> i & 1)) {
            order[n++] = i;
            e->outer *= g->reduce_shape[i];
        }
    for (int i = 0; i < inner_from; i++)
        if (g->reduce_dims >> i & 1) {
            order[n++] = i;
            e->reduced *= g->reduce_shape[i];
        }
    for (int i = inner_from; i < g->reduce_ndim; i++) {
        order[n++] = i;
        e->inner *= g->reduce_shape[i];
    }
    /* Rows: long ones are cut so that threads can share them. Columns: short runs of additions lose least precision. */
    e->chunk = e->inner == 1 ? 64 * KILN_TILE : 128;
    e->chunks = e->reduced > e->chunk ? (e->reduced + e->chunk - 1) / e->chunk : 1;
}

static int count_registers(const kiln_group *g)
{
    return g->nloads + (g->head >= 0) + g->ninstrs;
}

static int64_t register_bytes(const kiln_group *g)
{
    size_t size = 4;
    for (int i = 0; i < g->nloads; i++)
        if (kiln_pw_class_size(kiln_pw_class_of((kiln_dtype)g->loads[i].dtype)) > size)
            size = 8;
    for (int i = 0; i < g->ninstrs; i++)
        if (kiln_pw_class_size(kiln_pw_class_of((kiln_dtype)g->instrs[i].dtype)) > size)
            size = 8;
    return (int64_t)size * KILN_TILE;
}

static kiln_dtype register_dtype(const kiln_group *g, int16_t reg)
{
    for (int i = 0; i < g->ninstrs; i++)
        if (g->instrs[i].dst == reg)
            return (kiln_dtype)g->instrs[i].dtype;
    return (kiln_dtype)g->loads[reg].dtype;
}

/* Everything that does not need memory to be known: also used to size the workspace. */
static void lower_shapes(kiln_cpu_group *e, const kiln_group *g, int *order)
{
    e->group = g;
    e->table = kiln_pw_best();
    e->nloads = g->nloads;
    e->ninstrs = g->ninstrs;
    e->nstores = g->nstores;
    e->nregisters = count_registers(g);
    e->register_bytes = register_bytes(g);
    e->head = g->head;
    if (g->reduces) {
        lower_reduction(e, g, order);
        e->cls = kiln_pw_class_of(register_dtype(g, g->reduce_src));
    }
}

bool kiln_cpu_group_lower(kiln_cpu_group *e, const kiln_plan *plan, const kiln_group *g, kiln_arena *pool)
{
    int order[KILN_MAX_DIMS];
    *e = (kiln_cpu_group){0};
    lower_shapes(e, g, order);
    e->loads = KILN_ARENA_NEW(pool, kiln_cpu_load, e->nloads);
    e->instrs = KILN_ARENA_NEW(pool, kiln_cpu_instr, e->ninstrs);
    e->stores = KILN_ARENA_NEW(pool, kiln_cpu_store, e->nstores);
    e->physical = KILN_ARENA_NEW(pool, int16_t, e->nregisters);
    e->same = KILN_ARENA_NEW(pool, int16_t, e->nregisters);
    int *last = KILN_ARENA_NEW(pool, int, e->nregisters);
    int16_t *free_list = KILN_ARENA_NEW(pool, int16_t, 3 * (int64_t)e->nregisters + 3);
    if (!e->loads || !e->instrs || !e->stores || !e->physical || !e->same || !last || !free_list)
        return false;
    for (int i = 0; i < e->nloads; i++)
        lower_load(&e->loads[i], &g->loads[i], g->reduces ? order : NULL, g->count);
    for (int i = 0; i < e->ninstrs; i++)
        lower_instr(&e->instrs[i], &g->instrs[i], e->table);
    for (int i = 0; i < e->nstores; i++)
        e->stores[i] = (kiln_cpu_store){.src = g->stores[i].src,
                                        .dtype = g->stores[i].to.dtype,
                                        .buffer = g->stores[i].to.buffer,
                                        .size = (int64_t)kiln_dtype_size((kiln_dtype)g->stores[i].to.dtype)};
    leave_out_casts(e, plan);
    count_uses(e, last);
    kiln_cpu_join(e, last);
    find_last_uses(e, last);
    find_direct_stores(e, plan, last);
    allocate_registers(e, last, free_list);
    return true;
}

/* Before memory is placed it is not known which results go straight to memory: room for all registers is asked for. */
size_t kiln_cpu_group_workspace(const kiln_group *g, int threads)
{
    kiln_cpu_group e = {0};
    int order[KILN_MAX_DIMS];
    lower_shapes(&e, g, order);
    size_t bytes = (size_t)threads * (size_t)e.nregisters * (size_t)e.register_bytes;
    if (g->reduces) {
        bytes += (size_t)threads * 3 * 8 * KILN_TILE; /* accumulators */
        if (e.chunks > 1)
            bytes += (size_t)(e.outer * e.chunks * e.inner) * 8;
    }
    return bytes;
}

/* ---- Running ---- */

/* Elements start … start+n-1 of a strided walk, run by run along the innermost dim. */
static void load_strided(const kiln_pw_table *t, const kiln_cpu_load *l, const char *memory, char *reg, int64_t start,
                         int64_t n)
{
    int64_t at[KILN_MAX_DIMS], rest = start, place = l->offset;
    size_t unit = kiln_pw_class_size(kiln_pw_class_of((kiln_dtype)l->dtype));
    int inner = l->ndim - 1;
    for (int d = inner; d >= 0; d--) {
        at[d] = rest % l->shape[d];
        rest /= l->shape[d];
        place += at[d] * l->stride[d];
    }
    while (n > 0) {
        int64_t run = l->shape[inner] - at[inner] < n ? l->shape[inner] - at[inner] : n;
        const char *from = memory + place * l->size;
        if (l->stride[inner] == 1)
            t->load[l->dtype](reg, from, run);
        else if (l->stride[inner] == 0)
            t->splat[l->dtype](reg, from, run);
        else
            t->load_strided[l->dtype](reg, from, l->stride[inner], run);
        reg += (size_t)run * unit;
        n -= run;
        place -= at[inner] * l->stride[inner];
        at[inner] = 0;
        for (int d = inner - 1; d >= 0; d--) { /* carry */
            place += l->stride[d];
            if (++at[d] < l->shape[d])
                break;
            place -= at[d] * l->stride[d];
            at[d] = 0;
        }
    }
}

/* Whether the tile before and this one are of one row. */
static bool is_in_one_row(const kiln_cpu_load *l, int64_t start, int64_t n)
{
    int64_t row = l->shape[l->ndim - 1], at = start % row;
    return at >= KILN_TILE && at + n <= row;
}

static const void *load_register(const kiln_cpu_tile *t, const kiln_cpu_load *l, char *registers, int64_t start,
                                 int64_t n, bool goes_on)
{
    const char *memory = (const char *)(uintptr_t)kiln_buffer_address(t->plan, t->binding, l->buffer);
    if (l->kind == KILN_LOAD_DIRECT)
        return memory + (l->offset + start) * l->size;
    char *reg = registers + l->physical * t->e->register_bytes;
    if (l->kind == KILN_LOAD_ROWS && goes_on && is_in_one_row(l, start, n))
        return reg;
    if (l->kind == KILN_LOAD_DENSE)
        t->e->table->load[l->dtype](reg, memory + (l->offset + start) * l->size, n);
    else if (l->kind == KILN_LOAD_SCALAR)
        t->e->table->splat[l->dtype](reg, memory + l->offset * l->size, n);
    else
        load_strided(t->e->table, l, memory, reg, start, n);
    return reg;
}

static char *store_memory(const kiln_cpu_tile *t, const kiln_cpu_store *s, int64_t start)
{
    return (char *)(uintptr_t)kiln_buffer_address(t->plan, t->binding, s->buffer) + start * s->size;
}

enum { MAX_REGISTERS = 256 };

/* Leaves in at[r] where register r is. */
static void run_tile(const kiln_cpu_tile *t, int64_t start, int64_t n, const void *head, int worker, bool goes_on,
                     const void **at)
{
    const kiln_cpu_group *e = t->e;
    char *registers = t->registers + (int64_t)worker * e->nphysical * e->register_bytes;
    for (int i = 0; i < e->nloads; i++)
        at[i] = load_register(t, &e->loads[i], registers, start, n, goes_on);
    if (e->head >= 0)
        at[e->head] = head;
    for (int i = 0; i < e->ninstrs; i++) {
        const kiln_cpu_instr *in = &e->instrs[i];
        const double *scalars = t->binding->scalars + in->scalars;
        double own[3];
        if (in->joined >= 0) {
            for (int s = 0; s < in->nscalars; s++)
                own[s] = t->binding->scalars[in->scalar[s]];
            scalars = own;
        } else if (in->row == KILN_PW_iota) {
            own[0] = scalars[0];
            own[1] = scalars[1];
            own[2] = (double)start;
            scalars = own;
        }
        void *to = in->store >= 0 ? (void *)store_memory(t, &e->stores[in->store], start)
                                  : (void *)(registers + e->physical[in->dst] * e->register_bytes);
        in->fn(to, in->src[0] >= 0 ? at[in->src[0]] : NULL, in->src[1] >= 0 ? at[in->src[1]] : NULL,
               in->src[2] >= 0 ? at[in->src[2]] : NULL, scalars, n);
        if (in->after)
            in->after(to, n);
        at[in->dst] = to;
    }
    for (int i = 0; i < e->nstores; i++)
        if (!e->stores[i].done)
            e->table->store[e->stores[i].dtype](store_memory(t, &e->stores[i], start), at[e->stores[i].src], n);
}

const void *kiln_cpu_group_tile(const kiln_cpu_tile *t, int64_t start, int64_t n, const void *head, int worker,
                                bool goes_on, int16_t wanted)
{
    const void *at[MAX_REGISTERS];
    run_tile(t, start, n, head, worker, goes_on, at);
    return wanted >= 0 ? at[t->e->same[wanted]] : NULL;
}

/* Copies what the tile at `start` made to operand k's room, or, where all is in one tile, tells where it is. */
static void give(const kiln_cpu_tile *t, const kiln_gift *gift, const void *from, int64_t start, int64_t n, bool all,
                 void **to)
{
    kiln_dtype dtype = register_dtype(t->e->group, gift->src);
    size_t unit = kiln_pw_class_size(kiln_pw_class_of(dtype));
    char *there = (char *)to[gift->operand] + (size_t)start * unit;
    if (all && !t->e->table->round[dtype]) {
        to[gift->operand] = (void *)(uintptr_t)from;
        return;
    }
    memcpy(there, from, (size_t)n * unit);
    if (t->e->table->round[dtype])
        t->e->table->round[dtype](there, n);
}

/* Has what the tile at `start` reads and writes brought near, while there is other work to be done. */
static void fetch_ahead(const kiln_cpu_tile *t, int64_t start, int64_t n)
{
    const kiln_cpu_group *e = t->e;
    if (start + n > e->group->count)
        return;
    for (int i = 0; i < e->nloads; i++) {
        const kiln_cpu_load *l = &e->loads[i];
        const char *from = (const char *)(uintptr_t)kiln_buffer_address(t->plan, t->binding, l->buffer);
        if (l->kind == KILN_LOAD_DIRECT || l->kind == KILN_LOAD_DENSE)
            for (int64_t at = (l->offset + start) * l->size, end = at + n * l->size; at < end; at += 64)
                __builtin_prefetch(from + at, 0, 2);
    }
    for (int i = 0; i < e->nstores; i++)
        for (int64_t at = 0; at < n * e->stores[i].size; at += 64)
            __builtin_prefetch(store_memory(t, &e->stores[i], start) + at, 1, 2);
}

void kiln_cpu_group_give(const kiln_cpu_tile *t, int64_t start, int64_t count, void **to, int worker)
{
    const kiln_group *g = t->e->group;
    const void *at[MAX_REGISTERS];
    for (int64_t i = 0; i < count; i += KILN_TILE) {
        int64_t n = count - i < KILN_TILE ? count - i : KILN_TILE;
        run_tile(t, start + i, n, NULL, worker, i > 0, at);
        fetch_ahead(t, start + i + n, n);
        for (int k = 0; k < g->ngifts; k++)
            give(t, &g->gifts[k], at[t->e->same[g->gifts[k].src]], i, n, count <= KILN_TILE, to);
    }
}

void kiln_cpu_group_finish(const kiln_cpu_tile *t, int64_t start, int64_t count, const void *values, size_t unit,
                           int worker)
{
    for (int64_t i = 0; i < count; i += KILN_TILE)
        kiln_cpu_group_tile(t, start + i, count - i < KILN_TILE ? count - i : KILN_TILE,
                            (const char *)values + (size_t)i * unit, worker, i > 0, -1);
}

enum { TILES_A_TASK = 16 };

typedef struct group_run {
    kiln_cpu_tile tile;
    int64_t count;
} group_run;

static void run_task(void *context, int64_t task, int worker)
{
    const group_run *r = context;
    int64_t start = task * TILES_A_TASK * KILN_TILE, end = start + TILES_A_TASK * KILN_TILE;
    if (end > r->count)
        end = r->count;
    for (int64_t at = start; at < end; at += KILN_TILE)
        kiln_cpu_group_tile(&r->tile, at, end - at < KILN_TILE ? end - at : KILN_TILE, NULL, worker, at > start, -1);
}

void kiln_cpu_group_run(const kiln_cpu_group *e, const kiln_plan *plan, const kiln_kernel *kernel,
                        const kiln_binding *binding)
{
    group_run r = {{e, plan, binding, NULL}, e->group->count};
    if (kernel->workspace >= 0)
        r.tile.registers = (char *)(uintptr_t)kiln_buffer_address(plan, binding, kernel->workspace);
    int64_t tasks = (r.count + TILES_A_TASK * KILN_TILE - 1) / (TILES_A_TASK * KILN_TILE);
    if (r.count * (e->ninstrs + 1) > KILN_SERIAL_WORK)
        kiln_parallel(tasks, run_task, &r);
    else
        for (int64_t i = 0; i < tasks; i++)
            run_task(&r, i, 0);
}
