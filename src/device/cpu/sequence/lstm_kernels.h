/* LSTM over a sequence: a template that lstm.c includes for REAL = float and double. A task is a block of units of some
 * rows of the batch; steps follow each other. The recurrent weights are packed once for all steps. */

/* c [rows, block] = s·panel over k, rows of s `s_row` apart: tile by tile of rows, in chains of CHAIN along k. */
static void NAME(block_product)(const lstm *p, int64_t rows, int64_t k, const REAL *s, int64_t s_row, const REAL *panel,
                                REAL *c, int64_t c_row)
{
    for (int64_t from = 0; from < k; from += CHAIN)
        p->gemm->tile[0][KILN_GEMM_VECTORS - 1][rows - 1](k - from < CHAIN ? k - from : CHAIN, s + from, s_row, 1,
                                                          panel + from * p->block, p->block, c, c_row, from > 0, panel);
}

/* ---- Forward ---- */

/* Four panels a block, one a kind of gate: [H][block] each. */
static void NAME(pack_forward)(void *context, int64_t task, int worker)
{
    (void)worker;
    const lstm *p = context;
    int64_t block = task / 4, kind = task % 4, unit = block * p->block, units = units_of(p, unit);
    const char *w = element_of(&p->c->in[3], (kind * p->h + unit) * p->h);
    p->pack((REAL *)p->packed + task * p->h * p->block, p->block, w, p->h, 1, units, p->block, p->h);
}

static void NAME(forward_block)(void *context, int64_t task, int worker)
{
    const lstm *p = context;
    int64_t block = task % p->blocks, unit = block * p->block, state = p->n * p->h, t = p->step;
    int64_t row = task / p->blocks * p->block_rows, end = row + p->block_rows < p->n ? row + p->block_rows : p->n;
    REAL *h = (REAL *)p->c->out[0].data + t * state, *c = (REAL *)p->c->out[1].data + t * state;
    REAL *product = (REAL *)(p->scratch + (size_t)worker * p->worker_bytes);
    for (int64_t rows; row < end; row += rows) {
        rows = end - row < p->tall ? end - row : p->tall;
        for (int64_t kind = 0; kind < 4; kind++)
            NAME(block_product)
        (p, rows, p->h, h + row * p->h, p->h, (const REAL *)p->packed + (block * 4 + kind) * p->h * p->block,
         product + kind * p->block, 4 * p->block);
        int64_t at = row * p->h + unit, gates = t * 4 * state + 4 * row * p->h + unit;
        p->rows->lstm(&(kiln_lstm_rows){.rows = rows,
                                        .units = units_of(p, unit),
                                        .row = p->h,
                                        .block = p->block,
                                        .product = product,
                                        .x = (const REAL *)p->c->in[0].data + gates,
                                        .c_before = c + at,
                                        .c_out = c + state + at,
                                        .h_out = h + state + at,
                                        .gates_out = (REAL *)p->c->out[2].data + gates});
    }
}

/* ---- Backward ---- */

/* A panel a block: [4H][block]. */
static void NAME(pack_backward)(void *context, int64_t task, int worker)
{
    (void)worker;
    const lstm *p = context;
    int64_t unit = task * p->block;
    p->pack((REAL *)p->packed + unit * 4 * p->h, p->block, element_of(&p->c->in[2], unit), 1, p->h, units_of(p, unit),
            p->block, 4 * p->h);
}

static const REAL *NAME(optional)(const lstm *p, int k, int64_t offset)
{
    return k < p->c->nin && p->c->in[k].data ? (const REAL *)p->c->in[k].data + offset : NULL;
}

/* What is left when the first step was done: the gradients of h0 and c0. */
static void NAME(finish_back)(const lstm *p, int64_t row, int64_t rows, int64_t unit, const REAL *product)
{
    REAL *gh = (REAL *)p->c->out[1].data, *gc = (REAL *)p->c->out[2].data;
    const REAL *from_h = NAME(optional)(p, 3, 0), *from_c = NAME(optional)(p, 4, 0);
    for (int64_t r = row; r < row + rows; r++)
        for (int64_t j = 0; j < units_of(p, unit); j++) {
            int64_t at = r * p->h + unit + j;
            gh[at] = (product ? product[(r - row) * p->block + j] : 0) + (from_h ? from_h[at] : 0);
            gc[at] = (p->t ? gc[at] : 0) + (from_c ? from_c[at] : 0);
        }
}

static void NAME(backward_block)(void *context, int64_t task, int worker)
{
    const lstm *p = context;
    int64_t block = task % p->blocks, unit = block * p->block, state = p->n * p->h, t = p->step;
    int64_t row = task / p->blocks * p->block_rows, end = row + p->block_rows < p->n ? row + p->block_rows : p->n;
    REAL *gx = (REAL *)p->c->out[0].data, *scratch = (REAL *)(p->scratch + (size_t)worker * p->worker_bytes);
    for (int64_t rows; row < end; row += rows) {
        rows = end - row < p->tall ? end - row : p->tall;
        REAL *product = t + 1 < p->t ? scratch : NULL;
        if (product)
            NAME(block_product)
        (p, rows, 4 * p->h, gx + 4 * ((t + 1) * state + row * p->h), 4 * p->h,
         (const REAL *)p->packed + unit * 4 * p->h, product, p->block);
        if (t < 0) {
            NAME(finish_back)(p, row, rows, unit, product);
            continue;
        }
        int64_t at = row * p->h + unit, gates = 4 * (t * state + row * p->h) + unit;
        const REAL *c = (const REAL *)p->c->in[1].data + t * state + at;
        p->rows->lstm_grad(&(kiln_lstm_rows){.rows = rows,
                                             .units = units_of(p, unit),
                                             .row = p->h,
                                             .block = p->block,
                                             .product = product,
                                             .c_before = c,
                                             .c = c + state,
                                             .gates = (const REAL *)p->c->in[0].data + gates,
                                             .gh = NAME(optional)(p, 3, (t + 1) * state + at),
                                             .gc = NAME(optional)(p, 4, (t + 1) * state + at),
                                             .ggates = NAME(optional)(p, 5, gates),
                                             .gx_out = gx + gates,
                                             .carry = (REAL *)p->c->out[2].data + at,
                                             .first = t + 1 == p->t});
    }
}
