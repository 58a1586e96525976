/* LSTM steps in f16 and bf16: a part of lstm.c. A tile of rows is brought into f32 in scratch memory, where rows are a
 * block of units apart, computed as in f32, rounded and stored. Products read what was stored as well: the h of the
 * step before, or the gradient of the gates of the step behind, of which an f32 copy is kept. */

/* What a tile of rows takes: gates are four blocks wide. */
typedef struct tile_room {
    float *product, *x, *gates, *more; /* four blocks */
    float *h, *c, *before, *carry;     /* one */
} tile_room;

enum { TILE_BLOCKS = 4 * 4 + 4 };

static tile_room room_of(const lstm *p, int worker)
{
    float *at = (float *)(void *)(p->scratch + (size_t)worker * p->worker_bytes);
    int64_t one = p->tall * p->block, four = 4 * one;
    return (tile_room){at,
                       at + four,
                       at + 2 * four,
                       at + 3 * four,
                       at + 4 * four,
                       at + 4 * four + one,
                       at + 4 * four + 2 * one,
                       at + 4 * four + 3 * one};
}

/* A tile of `rows` rows and `units` units, of states or (kinds = 4) of gates. */
typedef struct tile_of {
    int64_t row, rows, unit, units;
} tile_of;

static int64_t place_of(const lstm *p, const tile_of *t, int64_t step, int64_t kinds, int64_t r, int64_t kind)
{
    return (step * p->n + t->row + r) * kinds * p->h + kind * p->h + t->unit;
}

/* Operand or result k at a step; zeros where it is absent. */
static void bring(const lstm *p, const tile_of *t, const kiln_cpu_operand *from, int64_t step, int64_t kinds, float *to)
{
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t kind = 0; kind < kinds; kind++) {
            float *line = to + (r * kinds + kind) * p->block;
            const char *at = from && from->data ? (const char *)from->data : NULL;
            if (at)
                kiln_pw_best()->load[from->dtype](
                    line, at + (size_t)place_of(p, t, step, kinds, r, kind) * kiln_dtype_size(from->dtype), t->units);
            else
                memset(line, 0, (size_t)t->units * sizeof *line);
        }
}

/* Stores what was computed, rounded; `copy`: where products of the next step find it, or NULL. */
static void put(const lstm *p, const tile_of *t, const kiln_cpu_operand *to, int64_t step, int64_t kinds, float *from,
                float *copy)
{
    const kiln_pw_table *pw = kiln_pw_best();
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t kind = 0; kind < kinds; kind++) {
            float *line = from + (r * kinds + kind) * p->block;
            char *at = (char *)to->data + (size_t)place_of(p, t, step, kinds, r, kind) * kiln_dtype_size(to->dtype);
            if (pw->round[to->dtype])
                pw->round[to->dtype](line, t->units);
            pw->store[to->dtype](at, line, t->units);
            if (copy)
                memcpy(copy + place_of(p, t, 0, kinds, r, kind), line, (size_t)t->units * sizeof *line);
        }
}

static tile_of task_tile(const lstm *p, int64_t task)
{
    int64_t unit = task % p->blocks * p->block;
    return (tile_of){.row = task / p->blocks * p->block_rows, .unit = unit, .units = units_of(p, unit)};
}

/* Goes through the rows of a task tile by tile. */
static bool next_tile(const lstm *p, int64_t task, tile_of *t)
{
    int64_t end = (task / p->blocks + 1) * p->block_rows;
    end = end < p->n ? end : p->n;
    t->row += t->rows;
    t->rows = end - t->row < p->tall ? end - t->row : p->tall;
    return t->rows > 0;
}

static void forward_block_half(void *context, int64_t task, int worker)
{
    const lstm *p = context;
    const kiln_cpu_operand *in = p->c->in, *out = p->c->out;
    const int64_t step = p->step, block = task % p->blocks;
    const float *h = p->copies[step % 2];
    tile_room m = room_of(p, worker);
    for (tile_of t = task_tile(p, task); next_tile(p, task, &t);) {
        for (int64_t kind = 0; kind < 4; kind++)
            block_product_f32(p, t.rows, p->h, h + t.row * p->h, p->h,
                              (const float *)p->packed + (block * 4 + kind) * p->h * p->block,
                              m.product + kind * p->block, 4 * p->block);
        bring(p, &t, &in[0], step, 4, m.x);
        bring(p, &t, &out[1], step, 1, m.before);
        p->rows->lstm(&(kiln_lstm_rows){.rows = t.rows,
                                        .units = t.units,
                                        .row = p->block,
                                        .block = p->block,
                                        .product = m.product,
                                        .x = m.x,
                                        .c_before = m.before,
                                        .c_out = m.c,
                                        .h_out = m.h,
                                        .gates_out = m.gates});
        put(p, &t, &out[0], step + 1, 1, m.h, p->copies[(step + 1) % 2]);
        put(p, &t, &out[1], step + 1, 1, m.c, NULL);
        put(p, &t, &out[2], step, 4, m.gates, NULL);
    }
}

static const kiln_cpu_operand *given(const lstm *p, int k)
{
    return k < p->c->nin && p->c->in[k].data ? &p->c->in[k] : NULL;
}

/* What is left when the first step was done: the gradients of h0 and c0. */
static void finish_back_half(const lstm *p, const tile_of *t, tile_room *m, bool product)
{
    const kiln_cpu_operand *out = p->c->out;
    bring(p, t, given(p, 3), 0, 1, m->h);
    bring(p, t, given(p, 4), 0, 1, m->c);
    if (p->t)
        bring(p, t, &out[2], 0, 1, m->carry);
    for (int64_t i = 0; i < t->rows * p->block; i++) {
        m->h[i] += product ? m->product[i] : 0;
        m->c[i] += p->t ? m->carry[i] : 0;
    }
    put(p, t, &out[1], 0, 1, m->h, NULL);
    put(p, t, &out[2], 0, 1, m->c, NULL);
}

static void backward_block_half(void *context, int64_t task, int worker)
{
    const lstm *p = context;
    const kiln_cpu_operand *in = p->c->in, *out = p->c->out;
    const int64_t step = p->step;
    const float *gx = p->copies[(step + 1) & 1];
    tile_room m = room_of(p, worker);
    for (tile_of t = task_tile(p, task); next_tile(p, task, &t);) {
        bool product = step + 1 < p->t;
        if (product)
            block_product_f32(p, t.rows, 4 * p->h, gx + t.row * 4 * p->h, 4 * p->h,
                              (const float *)p->packed + t.unit * 4 * p->h, m.product, p->block);
        if (step < 0) {
            finish_back_half(p, &t, &m, product);
            continue;
        }
        float *gh = m.product + 3 * p->tall * p->block, *gc = gh - p->tall * p->block;
        bring(p, &t, &in[0], step, 4, m.gates);
        bring(p, &t, &in[1], step, 1, m.before);
        bring(p, &t, &in[1], step + 1, 1, m.c);
        bring(p, &t, given(p, 3), step + 1, 1, gh);
        bring(p, &t, given(p, 4), step + 1, 1, gc);
        bring(p, &t, given(p, 5), step, 4, m.more);
        if (step + 1 < p->t)
            bring(p, &t, &out[2], 0, 1, m.carry);
        p->rows->lstm_grad(&(kiln_lstm_rows){.rows = t.rows,
                                             .units = t.units,
                                             .row = p->block,
                                             .block = p->block,
                                             .product = product ? m.product : NULL,
                                             .c_before = m.before,
                                             .c = m.c,
                                             .gates = m.gates,
                                             .gh = gh,
                                             .gc = gc,
                                             .ggates = m.more,
                                             .gx_out = m.x,
                                             .carry = m.carry,
                                             .first = step + 1 == p->t});
        put(p, &t, &out[0], step, 4, m.x, p->copies[step & 1]);
        put(p, &t, &out[2], 0, 1, m.carry, NULL);
    }
}
