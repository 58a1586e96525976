/* Matrix multiplication: decides from the shape how to cut a product into blocks, and runs the blocks on all threads.
 *
 * The plan. Each tile of C has a scalar operand along its rows and a vector operand along its columns. Usually these
 * are A and B; when that saves packing they are Bᵀ and Aᵀ, and the tiles are tiles of Cᵀ, turned as they are stored.
 * The vector operand is read in place where its vectors lie contiguous and would be used too seldom to repay packing;
 * otherwise panels of it are packed, by the one task that needs them or, before the tasks start, for all of them.
 * Products with a side of a few elements and both operands contiguous along k are dot products.
 *
 * Sameness of bits. A plan depends on sizes and strides only. An element is a sum over steps of k, each step a chain in
 * the order of k; a product with few tiles and a long k is summed in several partial products, added in order. */
#include "device/cpu/gemm.h"

#include <string.h>

#include "core/half.h"
#include "core/parallel.h"
#include "device/cpu/gemm_kernels.h"
#include "device/cpu/isa.h"

/* Sizes chosen by bench/gemm_bench on Zen 4 (L1 32 KiB, L2 1 MiB). */
enum {
    STEP_K = 1024,                 /* most of k summed in one chain: a packed block of ROWS × STEP_K stays in L2 */
    BLOCK_ROWS = 120,              /* most rows of a task, a multiple of every tile height */
    BLOCK_COLS = 512,              /* most columns of a task */
    WHOLE_ROW_ELEMENTS = 64 << 10, /* a vector operand up to this size is read whole by tasks with an epilogue */
    STRIP_STEP_K = 32,             /* the same for a vector × matrix: few enough rows for the TLB, however long */
    STRIP_COLS = 4096,             /* and the columns of its tasks */
    SHARED_K = 4096,               /* most of k packed for all tasks at once */
    SHARED_ELEMENTS = 4 << 20,     /* about how many elements are packed for all tasks at once */
    WORKER_ELEMENTS = 32 << 10,    /* up to this many, each worker packs the vector operand for itself */
    PACK_K = 256,                  /* of k in a task that packs for all */
    TASK_WORK = 128 << 10,         /* multiply-adds that repay a task of its own */
    TASKS = 32,                    /* tasks wanted of a large product, so that threads finish together */
    SPLIT_TASKS = 8,               /* with fewer tasks than this, k is split too … */
    SPLIT_K = 256,                 /* … into parts of at least this much */
    DOT_SIDE = 16,                 /* the shorter side of C up to which dot products are considered */
    ALIGNMENT = 64,
};

typedef struct operand {
    const char *data;
    const int64_t *batch; /* offsets of the matrices, or NULL */
    int64_t along, k;     /* strides in elements along C's rows or columns, and along k */
} operand;

/* PACKED_BY_WORKER: each worker packs all of one matrix, and keeps it for its next task. */
typedef enum vectors { IN_PLACE, PACKED_BY_TASK, PACKED_BY_WORKER, PACKED_FOR_ALL } vectors;

typedef struct plan {
    const kiln_gemm *g;
    const kiln_gemm_kernels *kernels;
    const kiln_gemm_real *real;
    kiln_gemm_pack *pack;
    int64_t source, element; /* bytes of an element of A and B, and of one while computing */
    operand scalar, vector;
    int64_t rows, cols, k; /* of the product as computed: C's or Cᵀ's */
    bool turned, dot, strips, pack_scalar;
    vectors vectors;
    bool direct;                    /* tiles are summed in C itself */
    int64_t width;                  /* columns of a full tile */
    int64_t step;                   /* of k */
    int64_t row_blocks, col_blocks; /* of one matrix */
    int64_t splits;                 /* partial products along k */
    int64_t slab, shared_k;         /* columns (in blocks) and k that are packed for all tasks at once */
    size_t shared, sums, scalar_buffer, vector_buffer, tile_buffer, block_buffer; /* bytes */
} plan;

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline size_t aligned(int64_t bytes)
{
    return ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static const kiln_gemm_kernels *kernels(void)
{
    return kiln_isa_pick(kiln_gemm_plain, kiln_gemm_avx2, kiln_gemm_avx512);
}

/* ---- The plan ---- */

/* Whether a vector operand is better packed: it must be where vectors cannot be loaded from it, and it pays where many
 * rows use it and its lines lie too far apart to stay in the first-level cache. */
static bool must_pack(const plan *p, const operand *v, int64_t rows)
{
    if (v->along != 1 || p->source != p->element)
        return true;
    int64_t reach = (v->k < 0 ? -v->k : v->k) * least(p->k, STEP_K) * p->element;
    return rows >= 96 && reach > 256 << 10;
}

/* Estimated cycles of a product with these operands as scalars and vectors; weights measured on Zen 4. */
static double cost(const plan *p, const operand *v, int64_t rows, int64_t cols, bool turned)
{
    double lanes = p->real->lanes, k = (double)p->k;
    double chains = (double)least(rows, 4) * (double)least(divide_up(cols, (int64_t)lanes), KILN_GEMM_VECTORS);
    double stall = chains < 4 ? 4 / chains : 1; /* a chain waits four cycles for its last sum */
    double cycles = (double)rows * (double)divide_up(cols, (int64_t)lanes) * k * stall;
    if (must_pack(p, v, rows))
        cycles += (double)cols * k * (v->along == 1 ? 0.15 : v->k == 1 ? 0.35 : 1.0);
    return cycles + (turned ? 0.4 * (double)rows * (double)cols : 0);
}

static void choose_orientation(plan *p, operand a, operand b)
{
    const kiln_gemm *g = p->g;
    double straight = cost(p, &b, g->m, g->n, false), turned = cost(p, &a, g->n, g->m, true);
    bool contiguous = a.k == 1 && b.k == 1 && p->source == p->element && g->k > 0;
    if (contiguous && least(g->m, g->n) <= DOT_SIDE) {
        double vectors_of_k = (double)divide_up(g->k, p->real->lanes);
        double dot = (double)g->m * (double)g->n * (vectors_of_k + 8);
        p->dot = dot < straight && dot < turned;
    }
    p->turned = !p->dot && turned * 1.1 < straight; /* straight ones leave longer rows to an epilogue */
    p->scalar = p->turned ? b : a;
    p->vector = p->turned ? a : b;
    p->rows = p->turned ? g->n : g->m;
    p->cols = p->turned ? g->m : g->n;
}

/* An epilogue goes through other memory in C's order: whole rows of C let it run on and be prefetched. Taken where that
 * still makes enough tasks, and where every task can keep all of the vector operand in cache. Sums do not depend on how
 * C is cut. */
static void prefer_whole_rows(plan *p, int64_t wanted)
{
    int64_t tall = p->kernels->rows, most_blocks = divide_up(p->rows, tall);
    if (p->turned || p->dot || p->strips || p->cols * p->k > WHOLE_ROW_ELEMENTS ||
        p->g->batch * most_blocks < least(wanted, 8))
        return;
    p->col_blocks = 1;
    p->row_blocks = divide_up(p->rows, divide_up(divide_up(p->rows, wanted), tall) * tall);
}

/* Cuts C into tasks: large enough to be worth one, and many enough to keep threads busy. */
static void choose_blocks(plan *p)
{
    int64_t tall = p->kernels->rows;
    double work = (double)p->g->batch * (double)p->rows * (double)p->cols * (double)p->k;
    int64_t wanted = work > (double)TASKS * TASK_WORK ? TASKS : most(1, (int64_t)work / TASK_WORK);
    p->row_blocks = divide_up(p->rows, BLOCK_ROWS);
    p->col_blocks = divide_up(p->cols, p->strips ? STRIP_COLS : BLOCK_COLS);
    int64_t spare = p->strips ? most(1, p->k / SPLIT_K) : 1; /* strips are better split along k, into whole rows */
    while (p->g->batch * p->row_blocks * p->col_blocks * spare < wanted) {
        int64_t block_rows = divide_up(p->rows, p->row_blocks), block_cols = divide_up(p->cols, p->col_blocks);
        if (block_rows >= 2 * tall && (block_rows >= 4 * tall || block_cols < 2 * p->width))
            p->row_blocks = least(2 * p->row_blocks, divide_up(p->rows, tall));
        else if (block_cols >= 2 * p->width)
            p->col_blocks = least(2 * p->col_blocks, divide_up(p->cols, p->width));
        else
            break;
    }
    int64_t tasks = p->g->batch * p->row_blocks * p->col_blocks;
    p->splits = 1;
    if (tasks < least(wanted, SPLIT_TASKS))
        p->splits = most(1, least(divide_up(least(wanted, SPLIT_TASKS), tasks), p->k / SPLIT_K));
    if (p->splits == 1 && p->g->epilogue)
        prefer_whole_rows(p, wanted);
}

static void choose_packing(plan *p)
{
    int64_t reuse = divide_up(divide_up(p->cols, p->col_blocks), p->width); /* of a task's scalar panels */
    int64_t along = p->scalar.along, k = p->scalar.k;
    bool scattered = along != 1 && k != 1; /* every element on a line of its own */
    bool collide = along * p->element % 4096 == 0 || k * p->element % 4096 == 0; /* for the same places in the cache */
    p->pack_scalar = !p->dot && (p->source != p->element || (reuse >= 4 && (scattered || collide)));
    if (p->dot || !must_pack(p, &p->vector, p->rows))
        p->vectors = IN_PLACE;
    else if (p->row_blocks == 1 || p->splits > 1)
        p->vectors = PACKED_BY_TASK;
    else if (p->cols * p->k <= WORKER_ELEMENTS)
        p->vectors = PACKED_BY_WORKER;
    else
        p->vectors = PACKED_FOR_ALL;
    p->slab = p->col_blocks;
    p->shared_k = most(p->k, 1);
    if (p->vectors == PACKED_FOR_ALL) {
        int64_t block_cols = divide_up(p->cols, p->col_blocks);
        p->shared_k = least(p->k, SHARED_K / p->step * p->step);
        p->slab = most(1, least(p->col_blocks, SHARED_ELEMENTS / (p->shared_k * block_cols)));
    }
}

static void measure_workspace(plan *p)
{
    const kiln_gemm *g = p->g;
    int64_t block_rows = divide_up(p->rows, p->row_blocks);
    int64_t block_cols = divide_up(divide_up(p->cols, p->width), p->col_blocks) * p->width;
    int64_t steps = least(p->step, p->k), full_tile = p->kernels->rows * p->width;
    p->direct = g->store && p->source == p->element;
    if (p->vectors == PACKED_FOR_ALL)
        p->shared =
            aligned(least(p->slab * block_cols, divide_up(p->cols, p->width) * p->width) * p->shared_k * p->element);
    if (p->splits > 1)
        p->sums = aligned(g->batch * p->splits * g->m * g->n * p->element);
    else if (!p->direct && p->shared_k < p->k)
        p->sums = aligned(g->m * g->n * p->element);
    if (p->pack_scalar)
        p->scalar_buffer = aligned(block_rows * steps * p->element);
    if (!p->dot)
        p->vector_buffer = aligned(p->width * steps * p->element), p->tile_buffer = aligned(full_tile * p->element);
    if (p->vectors == PACKED_BY_WORKER)
        p->vector_buffer = ALIGNMENT + aligned(divide_up(p->cols, p->width) * p->width * p->k * p->element);
    if (!p->direct && !p->sums)
        p->block_buffer = aligned(block_rows * block_cols * p->element);
}

static plan make_plan(const kiln_gemm *g)
{
    plan p = {.g = g, .kernels = kernels(), .k = g->k};
    bool f64 = g->dtype == KILN_F64, half = g->dtype == KILN_F16 || g->dtype == KILN_BF16;
    p.real = f64 ? &p.kernels->f64 : &p.kernels->f32;
    p.element = f64 ? 8 : 4;
    p.source = half ? 2 : p.element;
    p.pack = f64                     ? p.kernels->pack_f64
             : g->dtype == KILN_F16  ? p.kernels->pack_f16
             : g->dtype == KILN_BF16 ? p.kernels->pack_bf16
                                     : p.kernels->pack_f32;
    p.width = p.real->lanes * KILN_GEMM_VECTORS;
    choose_orientation(&p, (operand){g->a, g->a_batch, g->a_row, g->a_col},
                       (operand){g->b, g->b_batch, g->b_col, g->b_row});
    p.strips = p.rows == 1 && !p.dot && !must_pack(&p, &p.vector, 1);
    if (p.strips)
        p.width = p.real->lanes * KILN_GEMM_STRIP;
    int64_t k = most(p.k, 1);
    p.step = p.dot ? k : divide_up(k, divide_up(k, p.strips ? STRIP_STEP_K : STEP_K));
    choose_blocks(&p);
    choose_packing(&p);
    measure_workspace(&p);
    return p;
}

static bool is_empty(const kiln_gemm *g)
{
    return g->m <= 0 || g->n <= 0 || g->batch <= 0;
}

static size_t worker_bytes(const plan *p)
{
    return p->scalar_buffer + p->vector_buffer + p->tile_buffer + p->block_buffer;
}

size_t kiln_gemm_workspace(const kiln_gemm *g, int threads)
{
    if (is_empty(g))
        return 0;
    plan p = make_plan(g);
    return p.shared + p.sums + worker_bytes(&p) * (size_t)threads;
}

/* ---- Where things lie ---- */

/* Blocks differ by at most one unit (a row, or a full tile's width), and depend on nothing but their number. */
static inline int64_t block_start(int64_t length, int64_t blocks, int64_t block, int64_t unit)
{
    return least(length, divide_up(length, unit) * block / blocks * unit);
}

static const char *operand_at(const plan *p, const operand *o, int64_t batch, int64_t along, int64_t k)
{
    return o->data + ((o->batch ? o->batch[batch] : 0) + along * o->along + k * o->k) * p->source;
}

static inline int64_t whole_vectors(const plan *p, int64_t cols)
{
    return divide_up(cols, p->real->lanes) * p->real->lanes;
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
    int64_t cols = least(p->width, v->col_end - col), width = whole_vectors(p, cols);
    while (k < k_end) {
        int64_t step = k - (k - v->k) % p->step, steps = least(p->step, v->k_end - step);
        int64_t rows = least(k_end, step + steps) - k;
        p->pack(packed_row(p, v, col, width, step, steps, k), width, operand_at(p, &p->vector, batch, col, k),
                p->vector.along, p->vector.k, cols, width, rows);
        k += rows;
    }
}

/* The worker's own copy of one batch's vector operand; a note before it says which batch's it holds. */
static packed packed_by_worker(const plan *p, char *buffer, int64_t batch)
{
    int64_t *held = (int64_t *)buffer;
    packed v = packed_at(p, buffer + ALIGNMENT, 0, p->cols, 0, p->k);
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
    char *out;       /* C's element of the block's corner */
    int64_t out_row; /* its row stride in elements */
    bool accumulate; /* onto what is there, from the first step on */
    char *scratch;   /* this worker's */
} block;

/* A panel of the vector operand, ready to be loaded. */
typedef struct panel {
    const char *data;
    int64_t k;                  /* distance between its rows */
    int64_t col, cols, width;   /* width: cols, rounded up to whole vectors */
    kiln_gemm_tile *const *far; /* tiles of that width, by rows - 1, for the scalar operand's two layouts */
    kiln_gemm_tile *const *near;
} panel;

static panel vector_panel(const block *b, int64_t col, int64_t k, int64_t steps)
{
    const plan *p = b->p;
    int64_t across = KILN_GEMM_VECTORS * p->real->lanes, left = b->col_end - col;
    panel v = {.col = col, .cols = left >= p->width ? p->width : least(left, across)};
    v.width = whole_vectors(p, v.cols);
    bool strip = v.width > across;
    v.far = strip ? &p->real->strip : p->real->tile[0][v.width / p->real->lanes - 1];
    v.near = strip ? &p->real->strip : p->real->tile[1][v.width / p->real->lanes - 1];
    if (b->ahead.data) {
        v.data = packed_row(p, &b->ahead, col, v.width, k, steps, k), v.k = v.width;
        return v;
    }
    v.data = operand_at(p, &p->vector, b->batch, col, k), v.k = p->vector.k;
    if (p->vectors != IN_PLACE || v.width != v.cols) {
        char *to = b->scratch + p->scalar_buffer;
        p->pack(to, v.width, v.data, p->vector.along, p->vector.k, v.cols, v.width, steps);
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

/* Multiplies one tile and puts it where it belongs, through a buffer if it does not fit C. */
static inline void run_tile(const block *b, const scalars *s, const panel *v, int64_t steps, bool accumulate)
{
    const plan *p = b->p;
    kiln_gemm_tile *tile = (s->along == 1 ? v->near : v->far)[s->rows - 1];
    int64_t i = s->row - b->row, j = v->col - b->col, bytes = b->out_row * p->element;
    char *out = b->out + (p->turned ? j * b->out_row + i : i * b->out_row + j) * p->element;
    if (!p->turned && v->cols == v->width) {
        tile(steps, s->data, s->along, s->k, v->data, v->k, out, b->out_row, accumulate);
        return;
    }
    char *buffer = b->scratch + p->scalar_buffer + p->vector_buffer;
    int64_t buffer_bytes = v->width * p->element;
    if (p->turned) {
        tile(steps, s->data, s->along, s->k, v->data, v->k, buffer, v->width, 0);
        p->real->turn(out, b->out_row, buffer, v->width, s->rows, v->cols, accumulate);
        return;
    }
    for (int64_t r = 0; accumulate && r < s->rows; r++)
        memcpy(buffer + r * buffer_bytes, out + r * bytes, (size_t)(v->cols * p->element));
    tile(steps, s->data, s->along, s->k, v->data, v->k, buffer, v->width, accumulate);
    for (int64_t r = 0; r < s->rows; r++)
        memcpy(out + r * bytes, buffer + r * buffer_bytes, (size_t)(v->cols * p->element));
}

/* All tiles of a block for one step of k. */
static void run_step(const block *b, int64_t k, int64_t steps, bool accumulate)
{
    const plan *p = b->p;
    int64_t high = b->row_end - b->row, height = divide_up(high, divide_up(high, p->kernels->rows));
    panel v;
    for (int64_t col = b->col; col < b->col_end; col += v.cols) {
        v = vector_panel(b, col, k, steps);
        for (int64_t row = b->row; row < b->row_end; row += height) {
            scalars s = {
                .along = p->scalar.along, .k = p->scalar.k, .row = row, .rows = least(height, b->row_end - row)};
            s.data = operand_at(p, &p->scalar, b->batch, row, k);
            if (p->pack_scalar) {
                char *to = b->scratch + (row - b->row) * steps * p->element;
                if (col == b->col)
                    p->pack(to, s.rows, s.data, s.along, s.k, s.rows, s.rows, steps);
                s.data = to, s.along = 1, s.k = s.rows;
            }
            run_tile(b, &s, &v, steps, accumulate);
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
    do { /* once even when there is nothing to sum, to make C zero */
        int64_t steps = least(p->step, b->k_end - k);
        run_step(b, k, steps, b->accumulate || k > b->k);
        k += steps;
    } while (k < b->k_end);
}

/* Rounds a finished f32 block through f16 or bf16 into C, so that block and C agree. */
static void store_halves(const kiln_gemm *g, char *c_, float *from, int64_t from_row, int64_t rows, int64_t cols)
{
    uint16_t *c = (uint16_t *)c_;
    for (int64_t i = 0; i < rows; i++, c += g->c_row, from += from_row) {
        if (g->dtype == KILN_F16) {
            for (int64_t j = 0; j < cols; j++)
                c[j] = kiln_f32_to_f16(from[j]), from[j] = kiln_f16_to_f32(c[j]);
        } else {
            for (int64_t j = 0; j < cols; j++)
                c[j] = kiln_f32_to_bf16(from[j]), from[j] = kiln_bf16_to_f32(c[j]);
        }
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
    char *sums, *workers;
} pass;

static block task_block(const pass *s, int64_t task, int worker)
{
    const plan *p = s->plan;
    int64_t rb = task % p->row_blocks, cb = task / p->row_blocks % s->col_blocks + s->first_col_block;
    block b = {.p = p, .k = s->k, .k_end = s->k_end};
    b.batch = s->batch + task / p->row_blocks / s->col_blocks;
    b.row = block_start(p->rows, p->row_blocks, rb, 1);
    b.row_end = block_start(p->rows, p->row_blocks, rb + 1, 1);
    b.col = block_start(p->cols, p->col_blocks, cb, p->width);
    b.col_end = block_start(p->cols, p->col_blocks, cb + 1, p->width);
    b.accumulate = s->k > 0;
    b.scratch = s->workers + worker_bytes(p) * (size_t)worker;
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
    if (p->vectors == PACKED_FOR_ALL)
        b.ahead = s->ahead;
    else if (p->vectors == PACKED_BY_WORKER)
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

/* Packs part of what all tasks use: one panel, PACK_K of k. */
static void pack_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const pass *s = context;
    int64_t parts = divide_up(s->k_end - s->k, PACK_K), k = s->k + task % parts * PACK_K;
    pack_panel(s->plan, &s->ahead, s->batch, s->ahead.col + task / parts * s->plan->width, k,
               least(k + PACK_K, s->k_end));
}

/* Multiplies some columns of some batches, packing the vector operand first where all tasks share it. */
static void run_slab(const plan *p, pass *s, char *shared)
{
    int64_t col = block_start(p->cols, p->col_blocks, s->first_col_block, p->width);
    int64_t col_end = block_start(p->cols, p->col_blocks, s->first_col_block + s->col_blocks, p->width);
    s->k = 0;
    do { /* once even if k is 0 */
        s->k_end = least(s->k + p->shared_k, p->k);
        if (p->vectors == PACKED_FOR_ALL) {
            s->ahead = packed_at(p, shared, col, col_end, s->k, s->k_end);
            kiln_parallel(divide_up(col_end - col, p->width) * divide_up(s->k_end - s->k, PACK_K), pack_task, s);
        }
        kiln_parallel(s->batches * p->row_blocks * s->col_blocks, block_task, s);
        s->k = s->k_end;
    } while (s->k < p->k);
}

static void run_whole(const plan *p, char *workspace)
{
    pass s = {.plan = p, .sums = workspace + p->shared, .workers = workspace + p->shared + p->sums};
    s.batches = p->vectors == PACKED_FOR_ALL ? 1 : p->g->batch;
    for (int worker = 0; p->vectors == PACKED_BY_WORKER && worker < kiln_threads(); worker++)
        *(int64_t *)(s.workers + worker_bytes(p) * (size_t)worker + p->scalar_buffer) = -1; /* holds nothing yet */
    for (s.batch = 0; s.batch < p->g->batch; s.batch += s.batches) {
        for (s.first_col_block = 0; s.first_col_block < p->col_blocks; s.first_col_block += p->slab) {
            s.col_blocks = least(p->slab, p->col_blocks - s.first_col_block);
            run_slab(p, &s, workspace);
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
    b.k = p->k * split / p->splits;
    b.k_end = p->k * (split + 1) / p->splits;
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
    plan p = make_plan(g);
    if (p.splits > 1)
        run_split(&p, workspace);
    else
        run_whole(&p, workspace);
}
