/* Runs a matrix product that gemm_plan.c has cut into blocks, on all threads. */
#include "device/cpu/gemm/gemm.h"

#include <string.h>

#include "core/parallel.h"
#include "device/cpu/gemm/gemm_plan.h"
#include "device/cpu/group/pointwise.h"

enum {
    PACK_K = 256,     /* of k in a task that packs for all */
    PACK_PANELS = 16, /* panels of such a task where vectors lie in rows … */
    PACK_ROWS = 8,    /* … which it goes through, this many at a time, for all of its panels */
    SCALAR_PIECE = 16 /* of k, packed for all panels of scalars in turn where their rows lie side by side */
};

typedef kiln_gemm_operand operand;
typedef kiln_gemm_plan plan;

static bool is_empty(const kiln_gemm *g)
{
    return g->m <= 0 || g->n <= 0 || g->batch <= 0;
}

size_t kiln_gemm_workspace(const kiln_gemm *g, int threads)
{
    if (is_empty(g))
        return 0;
    plan p = kiln_gemm_plan_of(g);
    return p.shared + p.scalars + p.sums + kiln_gemm_worker_bytes(&p) * (size_t)threads;
}

/* ---- Where things lie ---- */

/* Blocks differ by at most one unit (a row, or a full tile's width), and depend on nothing but their number. */
static inline int64_t block_start(int64_t length, int64_t blocks, int64_t block, int64_t unit)
{
    return kiln_least(length, kiln_divide_up(length, unit) * block / blocks * unit);
}

static const char *operand_at(const plan *p, const operand *o, int64_t batch, int64_t along, int64_t k)
{
    return o->data + ((o->batch ? o->batch[batch] : 0) + along * o->along + k * o->k) * p->source;
}

static inline int64_t whole_vectors(const plan *p, int64_t cols)
{
    return kiln_divide_up(cols, p->real->lanes) * p->real->lanes;
}

/* ---- Packing ---- */

/* Elements of k that there are from `k` on, of `steps` pairs. */
static inline int64_t elements_there(const plan *p, int64_t k, int64_t steps)
{
    int64_t there = p->g->k - 2 * k;
    return there < 0 ? 0 : kiln_least(there, 2 * steps);
}

/* Some of an operand, from (along, k) on: `steps` rows of `count` elements, filled up to `width`, to_k apart. */
static void pack(const plan *p, char *to, int64_t to_k, const operand *o, int64_t batch, int64_t along, int64_t k,
                 int64_t count, int64_t width, int64_t steps)
{
    const char *from = operand_at(p, o, batch, along, k);
    if (p->pairs)
        p->pairs->pack(to, to_k, from, o->along, o->k / 2, count, width, steps, elements_there(p, k, steps));
    else
        p->pack(to, to_k, from, o->along, o->k, count, width, steps);
}

/* ---- Packed vector operands ---- */

/* A rectangle of the vector operand in packed form: step after step of k, within a step panel after panel, each panel
 * [steps][width] with the last one's width rounded up to whole vectors. */
typedef struct packed {
    char *data; /* NULL: nothing is packed ahead */
    int64_t col, col_end, k, k_end, padded;
} packed;

static packed packed_at(const plan *p, char *data, int64_t col, int64_t col_end, int64_t k, int64_t k_end)
{
    return (packed){data, col, col_end, k, k_end, whole_vectors(p, col_end - col)};
}

/* Where the panel that starts at `col` has its row `k`, in the step of `steps` that starts at `step`. */
static inline char *packed_row(const plan *p, const packed *v, int64_t col, int64_t width, int64_t step, int64_t steps,
                               int64_t k)
{
    return v->data + ((step - v->k) * v->padded + (col - v->col) * steps + (k - step) * width) * p->element;
}

/* Packs rows k to k_end of the panel that starts at `col`. */
static void pack_panel(const plan *p, const packed *v, int64_t batch, int64_t col, int64_t k, int64_t k_end)
{
    int64_t cols = kiln_least(p->width, v->col_end - col), width = whole_vectors(p, cols);
    while (k < k_end) {
        int64_t step = k - (k - v->k) % p->step, steps = kiln_least(p->step, v->k_end - step);
        int64_t rows = kiln_least(k_end, step + steps) - k;
        pack(p, packed_row(p, v, col, width, step, steps, k), width, &p->vector, batch, col, k, cols, width, rows);
        k += rows;
    }
}

/* The worker's own copy of one batch's vector operand; a note before it says which batch's it holds. */
static packed packed_by_worker(const plan *p, char *buffer, int64_t batch)
{
    int64_t *held = (int64_t *)buffer;
    packed v = packed_at(p, buffer + KILN_GEMM_ALIGNMENT, 0, p->cols, 0, p->k);
    for (int64_t col = 0; *held != batch && col < p->cols; col += p->width)
        pack_panel(p, &v, batch, col, 0, p->k);
    *held = batch;
    return v;
}

/* ---- Blocks ---- */

/* One rectangle of the product as computed, over part of k, and where its sums go. */
typedef struct block {
    const plan *p;
    int64_t batch, row, row_end, col, col_end, k, k_end;
    packed ahead;    /* panels packed before, if any */
    char *scalars;   /* the block's rows packed before, step after step of k; or NULL */
    char *out;       /* C's element of the block's corner */
    int64_t out_row; /* its row stride in elements */
    bool accumulate; /* onto what is there, from the first step on */
    char *scratch;   /* this worker's */
} block;

/* A panel of the vector operand, ready to be loaded. */
typedef struct panel {
    const char *data;
    const char *next;           /* the panel that comes after it; NULL: not known */
    int64_t k;                  /* distance between its rows */
    int64_t col, cols, width;   /* width: cols, rounded up to whole vectors */
    kiln_gemm_tile *const *far; /* tiles of that width, by rows - 1, for the scalar operand's two layouts */
    kiln_gemm_tile *const *near;
} panel;

static panel vector_panel(const block *b, int64_t col, int64_t k, int64_t steps)
{
    const plan *p = b->p;
    int64_t across = KILN_GEMM_VECTORS * p->real->lanes, left = b->col_end - col;
    panel v = {.col = col, .cols = left >= p->width ? p->width : kiln_least(left, across)};
    v.width = whole_vectors(p, v.cols);
    bool strip = v.width > across;
    v.far = strip ? &p->real->strip : p->real->tile[0][v.width / p->real->lanes - 1];
    v.near = strip ? &p->real->strip : p->real->tile[1][v.width / p->real->lanes - 1];
    if (b->ahead.data) {
        v.data = packed_row(p, &b->ahead, col, v.width, k, steps, k), v.k = v.width;
        v.next = left > v.cols ? packed_row(p, &b->ahead, col + v.cols, v.width, k, steps, k) : NULL;
        return v;
    }
    v.data = operand_at(p, &p->vector, b->batch, col, k), v.k = p->vector.k;
    if (p->vectors != KILN_GEMM_IN_PLACE || v.width != v.cols) {
        char *to = b->scratch + p->scalar_buffer;
        pack(p, to, v.width, &p->vector, b->batch, col, k, v.cols, v.width, steps);
        v.data = to, v.k = v.width;
    }
    return v;
}

/* Some rows of the scalar operand. */
typedef struct scalars {
    const char *data;
    int64_t along, k; /* strides */
    int64_t row, rows;
} scalars;

/* What a tile should fetch for later: tile after tile of a panel a part of the next packed panel, which lies in a
 * farther cache; where there is none, of what it works on itself. */
static inline const char *soon_needed(const panel *v, int64_t tile, int64_t steps)
{
    enum { PARTS = KILN_GEMM_PANEL_BYTES / KILN_GEMM_SOON_BYTES };
    return v->next && tile < PARTS ? v->next + tile * steps * KILN_GEMM_SOON_BYTES : v->data;
}

/* Multiplies one tile and puts it where it belongs, through a buffer if it does not fit C. */
static inline void run_tile(const block *b, const scalars *s, const panel *v, int64_t steps, bool accumulate,
                            const char *soon)
{
    const plan *p = b->p;
    kiln_gemm_tile *tile = (s->along == 1 ? v->near : v->far)[s->rows - 1];
    int64_t i = s->row - b->row, j = v->col - b->col, bytes = b->out_row * p->element;
    char *out = b->out + (p->turned ? j * b->out_row + i : i * b->out_row + j) * p->element;
    if (!p->turned && v->cols == v->width) {
        tile(steps, s->data, s->along, s->k, v->data, v->k, out, b->out_row, accumulate, soon);
        return;
    }
    char *buffer = b->scratch + p->scalar_buffer + p->vector_buffer;
    int64_t buffer_bytes = v->width * p->element;
    if (p->turned) {
        tile(steps, s->data, s->along, s->k, v->data, v->k, buffer, v->width, 0, soon);
        (p->element == 8 ? &p->kernels->f64 : &p->kernels->f32)
            ->turn(out, b->out_row, buffer, v->width, s->rows, v->cols, accumulate);
        return;
    }
    for (int64_t r = 0; accumulate && r < s->rows; r++)
        memcpy(buffer + r * buffer_bytes, out + r * bytes, (size_t)(v->cols * p->element));
    tile(steps, s->data, s->along, s->k, v->data, v->k, buffer, v->width, accumulate, soon);
    for (int64_t r = 0; r < s->rows; r++)
        memcpy(out + r * bytes, buffer + r * buffer_bytes, (size_t)(v->cols * p->element));
}

/* How high the tiles of a block are: as even as can be, or all but the last as high as that goes. */
static int64_t tile_height(const block *b)
{
    int64_t high = b->row_end - b->row, most = b->p->real->rows;
    return b->p->row_unit > 1 ? most : kiln_divide_up(high, kiln_divide_up(high, most));
}

/* Rows of scalars that a block has packed, with those that fill up the last square. */
static int64_t packed_rows(const block *b)
{
    enum { SQUARE = 16 };
    int64_t rows = b->row_end - b->row;
    return b->p->row_unit > 1 ? kiln_divide_up(rows, SQUARE) * SQUARE : rows;
}

/* The block's part of the scalar operand for one step of k: panel after panel of a tile's height. Where its rows lie
 * side by side, a piece of k goes to all panels before the next one is touched, which lies on another page. */
static void pack_scalars(const block *b, char *to, int64_t k, int64_t steps)
{
    const plan *p = b->p;
    if (p->pairs && p->pairs->pack_squares) {
        p->pairs->pack_squares(to, operand_at(p, &p->scalar, b->batch, b->row, k), p->scalar.along, p->scalar.k / 2,
                               b->row_end - b->row, steps, elements_there(p, k, steps));
        return;
    }
    int64_t height = tile_height(b), piece = p->scalar.along == 1 ? SCALAR_PIECE : steps;
    for (int64_t from = 0; from < steps; from += piece)
        for (int64_t row = b->row; row < b->row_end; row += height) {
            int64_t rows = kiln_least(height, b->row_end - row);
            pack(p, to + ((row - b->row) * steps + from * rows) * p->element, rows, &p->scalar, b->batch, row, k + from,
                 rows, rows, kiln_least(piece, steps - from));
        }
}

/* All tiles of a block for one step of k. */
static void run_step(const block *b, int64_t k, int64_t steps, bool accumulate)
{
    const plan *p = b->p;
    int64_t height = tile_height(b);
    char *packed_scalars = b->scalars ? b->scalars + packed_rows(b) * k * p->element : b->scratch;
    if (p->pack_scalar && !b->scalars)
        pack_scalars(b, packed_scalars, k, steps);
    panel v;
    for (int64_t col = b->col; col < b->col_end; col += v.cols) {
        v = vector_panel(b, col, k, steps);
        for (int64_t row = b->row, tile = 0; row < b->row_end; row += height, tile++) {
            scalars s = {
                .along = p->scalar.along, .k = p->scalar.k, .row = row, .rows = kiln_least(height, b->row_end - row)};
            s.data = operand_at(p, &p->scalar, b->batch, row, k);
            if (p->pack_scalar)
                s.data = packed_scalars + (row - b->row) * steps * p->element, s.along = 1, s.k = s.rows;
            run_tile(b, &s, &v, steps, accumulate, soon_needed(&v, tile, steps));
        }
    }
}

static void run_block(const block *b)
{
    const plan *p = b->p;
    if (p->dot) {
        p->real->dot(b->row_end - b->row, b->col_end - b->col, b->k_end - b->k,
                     operand_at(p, &p->scalar, b->batch, b->row, b->k), p->scalar.along,
                     operand_at(p, &p->vector, b->batch, b->col, b->k), p->vector.along, b->out, b->out_row);
        return;
    }
    int64_t k = b->k;
    if (p->pairs && p->pairs->begin)
        p->pairs->begin();
    do { /* once even when there is nothing to sum, to make C zero */
        int64_t steps = kiln_least(p->step, b->k_end - k);
        run_step(b, k, steps, b->accumulate || k > b->k);
        k += steps;
    } while (k < b->k_end);
    if (p->pairs && p->pairs->end)
        p->pairs->end();
}

/* Rounds a finished f32 block through f16 or bf16 into C, so that block and C agree. */
static void store_halves(const kiln_gemm *g, char *c, float *from, int64_t from_row, int64_t rows, int64_t cols)
{
    const kiln_pw_table *pw = kiln_pw_best();
    for (int64_t i = 0; i < rows; i++, c += 2 * g->c_row, from += from_row) {
        pw->round[g->dtype](from, cols);
        pw->store[g->dtype](c, from, cols);
    }
}

/* Stores a finished block of C and calls the epilogue. Rows and columns are C's. */
static void finish_block(const plan *p, int64_t batch, int64_t row, int64_t col, int64_t rows, int64_t cols, char *out,
                         int64_t out_row, int worker)
{
    const kiln_gemm *g = p->g;
    if (g->store) {
        char *c = (char *)g->c + (batch * g->c_batch + row * g->c_row + col) * p->source;
        if (p->source != p->element)
            store_halves(g, c, (float *)out, out_row, rows, cols);
        for (int64_t i = 0; p->source == p->element && c != out && i < rows; i++)
            memcpy(c + i * g->c_row * p->element, out + i * out_row * p->element, (size_t)(cols * p->element));
    }
    if (g->epilogue)
        g->epilogue(g->epilogue_context, batch, row, col, rows, cols, out, out_row, worker);
}

/* ---- Tasks ---- */

/* The part of a product that tasks are running, and where their memory is. */
typedef struct pass {
    const plan *plan;
    int64_t batch, batches;              /* first and number of matrices */
    int64_t first_col_block, col_blocks; /* of each */
    int64_t k, k_end;
    packed ahead; /* what all tasks share, if they do */
    char *scalars, *sums, *workers;
} pass;

static block task_block(const pass *s, int64_t task, int worker)
{
    const plan *p = s->plan;
    int64_t rb = task % p->row_blocks, cb = task / p->row_blocks % s->col_blocks + s->first_col_block;
    block b = {.p = p, .k = s->k, .k_end = s->k_end};
    b.batch = s->batch + task / p->row_blocks / s->col_blocks;
    b.row = block_start(p->rows, p->row_blocks, rb, p->row_unit);
    b.row_end = block_start(p->rows, p->row_blocks, rb + 1, p->row_unit);
    b.col = block_start(p->cols, p->col_blocks, cb, p->width);
    b.col_end = block_start(p->cols, p->col_blocks, cb + 1, p->width);
    b.accumulate = s->k > 0;
    b.scratch = s->workers + kiln_gemm_worker_bytes(p) * (size_t)worker;
    b.scalars = p->share_scalar ? s->scalars + b.row * p->k * p->element : NULL;
    return b;
}

static void block_task(void *context, int64_t task, int worker)
{
    const pass *s = context;
    const plan *p = s->plan;
    const kiln_gemm *g = p->g;
    block b = task_block(s, task, worker);
    int64_t row = p->turned ? b.col : b.row, rows = (p->turned ? b.col_end : b.row_end) - row;
    int64_t col = p->turned ? b.row : b.col, cols = (p->turned ? b.row_end : b.col_end) - col;
    if (rows <= 0 || cols <= 0)
        return;
    if (p->vectors == KILN_GEMM_PACKED_FOR_ALL)
        b.ahead = s->ahead;
    else if (p->vectors == KILN_GEMM_PACKED_BY_WORKER)
        b.ahead = packed_by_worker(p, b.scratch + p->scalar_buffer, b.batch);
    b.out_row = p->direct ? g->c_row : p->sums ? g->n : cols;
    if (p->direct)
        b.out = (char *)g->c + (b.batch * g->c_batch + row * g->c_row + col) * p->element;
    else if (p->sums)
        b.out = s->sums + (row * g->n + col) * p->element;
    else
        b.out = b.scratch + p->scalar_buffer + p->vector_buffer + p->tile_buffer;
    run_block(&b);
    if (s->k_end == p->k)
        finish_block(p, b.batch, row, col, rows, cols, b.out, b.out_row, worker);
}

static int64_t panels_a_task(const plan *p)
{
    return p->vector.along == 1 ? PACK_PANELS : 1;
}

/* Packs part of what all tasks use: PACK_K of k in one panel or, where vectors lie in rows, in several, so that rows
 * are read on and on. */
static void pack_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const pass *s = context;
    const plan *p = s->plan;
    int64_t panels = panels_a_task(p), piece = panels > 1 ? PACK_ROWS : PACK_K;
    int64_t parts = kiln_divide_up(s->k_end - s->k, PACK_K), k = s->k + task % parts * PACK_K;
    int64_t k_end = kiln_least(k + PACK_K, s->k_end), first = s->ahead.col + task / parts * panels * p->width;
    int64_t end = kiln_least(first + panels * p->width, s->ahead.col_end);
    for (; k < k_end; k += piece)
        for (int64_t col = first; col < end; col += p->width)
            pack_panel(p, &s->ahead, s->batch, col, k, kiln_least(k + piece, k_end));
}

/* Packs the scalar operand's part of one block of rows and one step of k. */
static void scalar_task(void *context, int64_t task, int worker)
{
    const pass *s = context;
    const plan *p = s->plan;
    block b = task_block(s, task % p->row_blocks, worker);
    int64_t k = task / p->row_blocks * p->step;
    pack_scalars(&b, b.scalars + packed_rows(&b) * k * p->element, k, kiln_least(p->step, p->k - k));
}

/* Multiplies some columns of some batches, packing the vector operand first where all tasks share it. */
static void run_shared(const plan *p, pass *s, char *shared)
{
    int64_t col = block_start(p->cols, p->col_blocks, s->first_col_block, p->width);
    int64_t col_end = block_start(p->cols, p->col_blocks, s->first_col_block + s->col_blocks, p->width);
    s->k = 0;
    do { /* once even if k is 0 */
        s->k_end = kiln_least(s->k + p->shared_k, p->k);
        if (p->vectors == KILN_GEMM_PACKED_FOR_ALL) {
            s->ahead = packed_at(p, shared, col, col_end, s->k, s->k_end);
            int64_t panels = kiln_divide_up(col_end - col, p->width);
            kiln_parallel(kiln_divide_up(panels, panels_a_task(p)) * kiln_divide_up(s->k_end - s->k, PACK_K), pack_task,
                          s);
        }
        kiln_parallel(s->batches * p->row_blocks * s->col_blocks, block_task, s);
        s->k = s->k_end;
    } while (s->k < p->k);
}

static void run_whole(const plan *p, char *workspace)
{
    static char nothing; /* what is not needed lies there: NULL has no offsets */
    workspace = workspace ? workspace : &nothing;
    pass s = {.plan = p, .scalars = workspace + p->shared, .col_blocks = p->col_blocks};
    s.sums = s.scalars + p->scalars;
    s.workers = s.sums + p->sums;
    s.batches = p->vectors == KILN_GEMM_PACKED_FOR_ALL ? 1 : p->g->batch;
    for (int worker = 0; p->vectors == KILN_GEMM_PACKED_BY_WORKER && worker < kiln_threads(); worker++)
        *(int64_t *)(s.workers + kiln_gemm_worker_bytes(p) * (size_t)worker + p->scalar_buffer) =
            -1; /* holds nothing yet */
    if (p->share_scalar)
        kiln_parallel(p->row_blocks * kiln_divide_up(p->k, p->step), scalar_task, &s);
    for (s.batch = 0; s.batch < p->g->batch; s.batch += s.batches) {
        for (s.first_col_block = 0; s.first_col_block < p->col_blocks; s.first_col_block += p->shared_cols) {
            s.col_blocks = kiln_least(p->shared_cols, p->col_blocks - s.first_col_block);
            run_shared(p, &s, workspace);
        }
    }
}

/* ---- Few tiles, long k ---- */

static char *partial(const pass *s, int64_t batch, int64_t split)
{
    const plan *p = s->plan;
    return s->sums + (batch * p->splits + split) * p->g->m * p->g->n * p->element;
}

static void split_task(void *context, int64_t task, int worker)
{
    const pass *s = context;
    const plan *p = s->plan;
    int64_t split = task % p->splits;
    block b = task_block(s, task / p->splits, worker);
    int64_t unit = p->pairs ? p->pairs->unit : 1, units = p->k / unit;
    b.k = units * split / p->splits * unit;
    b.k_end = units * (split + 1) / p->splits * unit;
    b.out_row = p->g->n;
    b.out =
        partial(s, b.batch, split) + (p->turned ? b.col * b.out_row + b.row : b.row * b.out_row + b.col) * p->element;
    if (b.row < b.row_end && b.col < b.col_end)
        run_block(&b);
}

/* Adds the partial products, in order, into the first of them. */
static void add_partials(const pass *s, int64_t batch)
{
    const plan *p = s->plan;
    int64_t elements = p->g->m * p->g->n;
    char *sum = partial(s, batch, 0);
    for (int64_t split = 1; split < p->splits; split++) {
        const char *add = partial(s, batch, split);
        for (int64_t i = 0; p->element == 8 && i < elements; i++)
            ((double *)sum)[i] += ((const double *)add)[i];
        for (int64_t i = 0; p->element == 4 && i < elements; i++)
            ((float *)sum)[i] += ((const float *)add)[i];
    }
}

static void run_split(const plan *p, char *workspace)
{
    const kiln_gemm *g = p->g;
    pass s = {.plan = p, .sums = workspace, .workers = workspace + p->sums, .batches = g->batch};
    s.col_blocks = p->col_blocks;
    kiln_parallel(g->batch * p->row_blocks * p->col_blocks * p->splits, split_task, &s);
    for (int64_t batch = 0; batch < g->batch; batch++) { /* few elements: not worth waking threads again */
        add_partials(&s, batch);
        finish_block(p, batch, 0, 0, g->m, g->n, partial(&s, batch, 0), g->n, 0);
    }
}

void kiln_gemm_run(const kiln_gemm *g, void *workspace)
{
    if (is_empty(g))
        return;
    plan p = kiln_gemm_plan_of(g);
    if (p.splits > 1)
        run_split(&p, workspace);
    else
        run_whole(&p, workspace);
}
