/* Decides from a product's sizes and strides how it is cut into blocks.
 *
 * The plan. Each tile of C has a scalar operand along its rows and a vector operand along its columns. Usually these
 * are A and B; when that saves packing they are Bᵀ and Aᵀ, and the tiles are tiles of Cᵀ, turned as they are stored.
 * The vector operand is read in place where its vectors lie contiguous and would be used too seldom to repay packing;
 * otherwise panels of it are packed, by the one task that needs them or, before the tasks start, for all of them.
 * Products with a side of a few elements and both operands contiguous along k are dot products.
 *
 * Sameness of bits. What a sum's order depends on (steps of k, partial products, which operand is which) follows from
 * the product's sizes and strides. How C is cut into tasks does not change a bit. */
#include "device/cpu/gemm/gemm_plan.h"
#include "device/cpu/common/isa.h"

/* Sizes chosen by bench/gemm_bench on Zen 4 (L1 32 KiB, L2 1 MiB) and Sapphire Rapids (48 KiB, 2 MiB). */
enum {
    STEP_K = 1024,                  /* most of k summed in one chain: a packed block of ROWS × STEP_K stays in L2 */
    BLOCK_ROWS = 144,               /* most rows of a task, a multiple of every tile height */
    BLOCK_COLS = 512,               /* most columns of a task */
    WHOLE_ROW_ELEMENTS = 256 << 10, /* a vector operand up to this size is read whole by tasks with an epilogue */
    STRIP_STEP_K = 32,              /* the same for a vector × matrix: few enough rows for the TLB, however long */
    STRIP_COLS = 4096,              /* and the columns of its tasks */
    SHARED_K = 4096,                /* most of k packed for all tasks at once */
    SHARED_ELEMENTS = 4 << 20,      /* about how many elements are packed for all tasks at once */
    WORKER_ELEMENTS = 32 << 10,     /* up to this many, each worker packs the vector operand for itself */
    SHARED_SCALARS = 1 << 20,       /* elements of a scalar operand up to which it is packed once, for all tasks … */
    SHARED_NEAR_SCALARS = 4 << 20,  /* … if its rows lie side by side, where packing takes longer … */
    SHARED_WORK = 32 << 20,         /* … and multiply-adds that repay it */
    PACKED_COLS = 128,              /* least columns of a task that packs panels, as long as it has rows to spare … */
    PACKED_TASKS = 16,              /* … and tasks of such a product that are enough */
    TASK_WORK = 128 << 10,          /* multiply-adds that repay a task of its own */
    TASKS = 32,                     /* tasks wanted of a large product, so that threads finish together */
    SPLIT_TASKS = 8,                /* with fewer tasks than this, k is split too … */
    SPLIT_K = 256,                  /* … into parts of at least this much */
    DOT_SIDE = 16,                  /* the shorter side of C up to which dot products are considered */
};
#define QUICKEST 0.25 /* times what they take in f32: packing and what is done with the result take their time */

typedef kiln_gemm_operand operand;
typedef kiln_gemm_plan plan;

static inline int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline size_t aligned(int64_t bytes)
{
    return ((size_t)bytes + KILN_GEMM_ALIGNMENT - 1) / KILN_GEMM_ALIGNMENT * KILN_GEMM_ALIGNMENT;
}

static const kiln_gemm_kernels *kernels(void)
{
    return kiln_isa_pick(kiln_gemm_plain, kiln_gemm_avx2, kiln_gemm_avx512);
}

const kiln_gemm_pairs *kiln_gemm_pairs_best(void)
{
    kiln_isa isa = kiln_isa_best();
    return isa == KILN_ISA_AMX && kiln_gemm_amx ? kiln_gemm_amx
           : isa >= KILN_ISA_AVX512_BF16        ? kiln_gemm_avx512_bf16
                                                : NULL;
}

/* Whether a vector operand is better packed: it must be where vectors cannot be loaded from it, and it pays where many
 * rows use it and its lines lie too far apart to stay in the first-level cache. */
static bool must_pack(const plan *p, const operand *v, int64_t rows)
{
    if (v->along != 1 || p->source != p->element)
        return true;
    int64_t reach = (v->k < 0 ? -v->k : v->k) * kiln_least(p->k, STEP_K) * p->element;
    return rows >= 32 && reach > 256 << 10;
}

/* Estimated cycles of a product with these operands as scalars and vectors; weights measured on Zen 4. */
static double cost(const plan *p, const operand *v, int64_t rows, int64_t cols, bool turned)
{
    double lanes = p->real->lanes, k = (double)p->k;
    double chains =
        (double)kiln_least(rows, 4) * (double)kiln_least(kiln_divide_up(cols, (int64_t)lanes), KILN_GEMM_VECTORS);
    double stall = chains < 4 ? 4 / chains : 1; /* a chain waits four cycles for its last sum */
    double cycles = (double)rows * (double)kiln_divide_up(cols, (int64_t)lanes) * k * stall;
    if (p->pairs)
        cycles *= p->pairs->cycles;
    if (must_pack(p, v, rows))
        cycles += (double)cols * k * (v->along == 1 ? 0.15 : v->k == 1 ? 0.35 : 1.0);
    return cycles + (turned ? 0.4 * (double)rows * (double)cols : 0);
}

static void choose_orientation(plan *p, operand a, operand b)
{
    const kiln_gemm *g = p->g;
    double straight = cost(p, &b, g->m, g->n, false), turned = cost(p, &a, g->n, g->m, true);
    bool contiguous = a.k == 1 && b.k == 1 && p->source == p->element && g->k > 0;
    if (contiguous && kiln_least(g->m, g->n) <= DOT_SIDE) {
        double vectors_of_k = (double)kiln_divide_up(g->k, p->real->lanes);
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
    int64_t tall = p->real->rows, most_blocks = kiln_divide_up(p->rows, tall);
    if (p->turned || p->dot || p->strips || p->cols * p->k > WHOLE_ROW_ELEMENTS ||
        p->g->batch * most_blocks < kiln_least(wanted, 8))
        return;
    p->col_blocks = 1;
    p->row_blocks = kiln_divide_up(p->rows, kiln_divide_up(kiln_divide_up(p->rows, wanted), tall) * tall);
}

/* Cuts C into tasks: large enough to be worth one, and many enough to keep threads busy. */
static void choose_blocks(plan *p)
{
    int64_t tall = p->real->rows;
    double work = (double)p->g->batch * (double)p->rows * (double)p->cols * (double)p->k;
    if (p->pairs)
        work *= p->pairs->cycles < QUICKEST ? QUICKEST : p->pairs->cycles;
    int64_t wanted = work > (double)TASKS * TASK_WORK ? TASKS : most(1, (int64_t)work / TASK_WORK);
    p->row_blocks = kiln_divide_up(p->rows, BLOCK_ROWS);
    p->col_blocks = kiln_divide_up(p->cols, p->strips ? STRIP_COLS : BLOCK_COLS);
    int64_t spare = p->strips ? most(1, p->k / SPLIT_K) : 1; /* strips are better split along k, into whole rows */
    bool packs = !p->dot && !p->strips && must_pack(p, &p->vector, p->rows);
    while (p->g->batch * p->row_blocks * p->col_blocks * spare < wanted) {
        int64_t block_rows = kiln_divide_up(p->rows, p->row_blocks),
                block_cols = kiln_divide_up(p->cols, p->col_blocks);
        if (packs && block_cols >= 2 * PACKED_COLS) /* what is packed should serve all rows */
            p->col_blocks = kiln_least(2 * p->col_blocks, kiln_divide_up(p->cols, p->width));
        else if (packs && p->g->batch * p->row_blocks * p->col_blocks >= PACKED_TASKS)
            break;
        else if (block_rows >= 2 * tall && (block_rows >= 4 * tall || block_cols < 2 * p->width))
            p->row_blocks = kiln_least(2 * p->row_blocks, kiln_divide_up(p->rows, tall));
        else if (block_cols >= 2 * p->width)
            p->col_blocks = kiln_least(2 * p->col_blocks, kiln_divide_up(p->cols, p->width));
        else
            break;
    }
    int64_t tasks = p->g->batch * p->row_blocks * p->col_blocks;
    p->splits = 1;
    if (tasks < kiln_least(wanted, SPLIT_TASKS))
        p->splits = most(1, kiln_least(kiln_divide_up(kiln_least(wanted, SPLIT_TASKS), tasks), p->k / SPLIT_K));
    if (p->splits == 1 && p->g->epilogue)
        prefer_whole_rows(p, wanted);
}

static void choose_packing(plan *p)
{
    int64_t reuse = kiln_divide_up(kiln_divide_up(p->cols, p->col_blocks), p->width); /* of a task's scalar panels */
    int64_t along = p->scalar.along, k = p->scalar.k;
    bool scattered = along != 1 && k != 1; /* every element on a line of its own */
    bool collide = along * p->element % 4096 == 0 || k * p->element % 4096 == 0; /* for the same places in the cache */
    double work = (double)p->rows * (double)p->cols * (double)p->k;
    p->share_scalar = !p->dot && !p->strips && p->splits == 1 && p->g->batch == 1 && work >= SHARED_WORK &&
                      p->rows * p->k <= (along == 1 ? SHARED_NEAR_SCALARS : SHARED_SCALARS) &&
                      p->cols >= 4 * p->width && (scattered || collide || along == 1 || p->source != p->element);
    p->pack_scalar = !p->dot && (p->share_scalar || p->source != p->element || (reuse >= 4 && (scattered || collide)));
    if (p->dot || !must_pack(p, &p->vector, p->rows))
        p->vectors = KILN_GEMM_IN_PLACE;
    else if (p->row_blocks == 1 || p->splits > 1)
        p->vectors = KILN_GEMM_PACKED_BY_TASK;
    else if (p->cols * p->k <= WORKER_ELEMENTS)
        p->vectors = KILN_GEMM_PACKED_BY_WORKER;
    else
        p->vectors = KILN_GEMM_PACKED_FOR_ALL;
    p->shared_cols = p->col_blocks;
    p->shared_k = most(p->k, 1);
    if (p->vectors == KILN_GEMM_PACKED_FOR_ALL) {
        int64_t block_cols = kiln_divide_up(p->cols, p->col_blocks);
        p->shared_k = kiln_least(p->k, SHARED_K / p->step * p->step);
        p->shared_cols = most(1, kiln_least(p->col_blocks, SHARED_ELEMENTS / (p->shared_k * block_cols)));
    }
}

static void measure_workspace(plan *p)
{
    const kiln_gemm *g = p->g;
    int64_t block_rows = kiln_divide_up(kiln_divide_up(p->rows, p->row_unit), p->row_blocks) * p->row_unit;
    int64_t block_cols = kiln_divide_up(kiln_divide_up(p->cols, p->width), p->col_blocks) * p->width;
    int64_t steps = kiln_least(p->step, p->k), full_tile = p->real->rows * p->width;
    p->direct = g->store && p->source == p->element;
    if (p->vectors == KILN_GEMM_PACKED_FOR_ALL)
        p->shared = aligned(kiln_least(p->shared_cols * block_cols, kiln_divide_up(p->cols, p->width) * p->width) *
                            p->shared_k * p->element);
    if (p->splits > 1)
        p->sums = aligned(g->batch * p->splits * g->m * g->n * p->element);
    else if (!p->direct && p->shared_k < p->k)
        p->sums = aligned(g->m * g->n * p->element);
    if (p->share_scalar)
        p->scalars = aligned(kiln_divide_up(p->rows, p->row_unit) * p->row_unit * p->k * p->element);
    else if (p->pack_scalar)
        p->scalar_buffer = aligned(block_rows * steps * p->element);
    if (!p->dot)
        p->vector_buffer = aligned(p->width * steps * p->element), p->tile_buffer = aligned(full_tile * p->element);
    if (p->vectors == KILN_GEMM_PACKED_BY_WORKER)
        p->vector_buffer =
            KILN_GEMM_ALIGNMENT + aligned(kiln_divide_up(p->cols, p->width) * p->width * p->k * p->element);
    if (!p->direct && !p->sums)
        p->block_buffer = aligned(block_rows * block_cols * p->element);
}

/* Counts k in pairs, filled up to what a tile takes at a time. */
static void take_pairs(plan *p)
{
    const int64_t unit = p->pairs->unit;
    p->real = &p->pairs->real;
    p->k = kiln_divide_up(kiln_divide_up(p->k, 2), unit) * unit;
    if (p->pairs->pack_squares)
        p->row_unit = p->real->rows;
}

/* So many of k at a time, all but the last ones equal. */
static int64_t step_of(const plan *p, int64_t most_of_k)
{
    const int64_t unit = p->pairs ? p->pairs->unit : 1, k = most(p->k, 1);
    return kiln_divide_up(kiln_divide_up(k, kiln_divide_up(k, most_of_k)), unit) * unit;
}

plan kiln_gemm_plan_of(const kiln_gemm *g)
{
    plan p = {.g = g, .kernels = kernels(), .k = g->k, .row_unit = 1};
    bool f64 = g->dtype == KILN_F64, half = g->dtype == KILN_F16 || g->dtype == KILN_BF16;
    p.real = f64 ? &p.kernels->f64 : &p.kernels->f32;
    p.element = f64 ? 8 : 4;
    p.source = half ? 2 : p.element;
    p.pack = kiln_gemm_pack_of(p.kernels, g->dtype);
    p.pairs = g->dtype == KILN_BF16 ? kiln_gemm_pairs_best() : NULL;
    if (p.pairs)
        take_pairs(&p);
    const int64_t each = p.pairs ? 2 : 1;
    p.width = p.real->lanes * KILN_GEMM_VECTORS;
    choose_orientation(&p, (operand){g->a, g->a_batch, g->a_row, each * g->a_col},
                       (operand){g->b, g->b_batch, g->b_col, each * g->b_row});
    p.strips = p.rows == 1 && !p.dot && !must_pack(&p, &p.vector, 1);
    if (p.strips)
        p.width = p.real->lanes * KILN_GEMM_STRIP;
    p.step = p.dot ? most(p.k, 1) : step_of(&p, p.strips ? STRIP_STEP_K : STEP_K);
    choose_blocks(&p);
    choose_packing(&p);
    measure_workspace(&p);
    return p;
}

size_t kiln_gemm_worker_bytes(const plan *p)
{
    return p->scalar_buffer + p->vector_buffer + p->tile_buffer + p->block_buffer;
}
