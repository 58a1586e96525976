/* LSTM cells on the CPU: step after step, each spread over blocks of units. A block computes the products for its own
 * units and their gates, so that a step is one round of tasks. */
#include "device/cpu/rows/lstm.h"
#include <string.h>
#include "device/cpu/gemm/gemm_kernels.h"
#include "device/cpu/common/isa.h"
#include "device/cpu/rows/rows.h"

enum { CHAIN = 1024, BLOCK_TILES = 4 };

typedef struct lstm {
    const kiln_cpu_call *c;
    const kiln_gemm_real *gemm;
    kiln_gemm_pack *pack;
    const kiln_rows_real *rows;
    int64_t t, n, h;          /* steps, rows of the batch, units */
    int64_t block, blocks;    /* units of a task; such blocks */
    int64_t block_rows, tall; /* rows of a task and of a tile */
    int64_t step;
    void *packed;
    char *scratch;
    size_t packed_bytes, worker_bytes;
} lstm;

/* Units in the block that starts at `unit`. */
static int64_t units_of(const lstm *p, int64_t unit)
{
    return p->h - unit < p->block ? p->h - unit : p->block;
}

#define KERNELS "device/cpu/sequence/lstm_kernels.h"
#include "device/cpu/common/reals.h"

/* Both operations' first operand is [T, N, 4H]. */
static lstm measure(const kiln_cpu_call *c)
{
    const kiln_gemm_kernels *gemm = kiln_isa_pick(kiln_gemm_plain, kiln_gemm_avx2, kiln_gemm_avx512);
    const kiln_rows_kernels *rows = kiln_isa_pick(kiln_rows_plain, kiln_rows_avx2, kiln_rows_avx512);
    const int64_t *shape = c->in[0].shape;
    bool f64 = c->in[0].dtype == KILN_F64;
    lstm p = {.c = c,
              .gemm = f64 ? &gemm->f64 : &gemm->f32,
              .pack = f64 ? gemm->pack_f64 : gemm->pack_f32,
              .rows = f64 ? &rows->f64 : &rows->f32,
              .t = shape[0],
              .n = shape[1],
              .h = shape[2] / 4,
              .tall = gemm->f32.rows,
              .block_rows = gemm->f32.rows * BLOCK_TILES,
              .packed = c->workspace};
    size_t element = kiln_dtype_size(c->in[0].dtype);
    p.block = p.gemm->lanes * KILN_GEMM_VECTORS;
    p.blocks = (p.h + p.block - 1) / p.block;
    p.packed_bytes = (size_t)(p.blocks * p.block * 4 * p.h) * element;
    p.worker_bytes = (size_t)(p.tall * 4 * p.block) * element;
    p.scratch = c->workspace ? (char *)c->workspace + p.packed_bytes : NULL;
    return p;
}

static size_t workspace(const kiln_cpu_call *c)
{
    lstm p = measure(c);
    return p.packed_bytes + p.worker_bytes * (size_t)kiln_threads();
}

/* A task for each block of units and of rows. */
static int64_t tasks_of(const lstm *p)
{
    return p->blocks * ((p->n + p->block_rows - 1) / p->block_rows);
}

static void run_cells(const kiln_cpu_call *c)
{
    lstm p = measure(c);
    bool f64 = c->in[0].dtype == KILN_F64;
    size_t state = (size_t)(p.n * p.h) * kiln_dtype_size(c->in[0].dtype);
    for (int k = 0; state && k < 2; k++)
        memcpy(c->out[k].data, c->in[1 + k].data, state);
    kiln_parallel(4 * p.blocks, f64 ? pack_forward_f64 : pack_forward_f32, &p);
    for (p.step = 0; p.step < p.t; p.step++)
        kiln_parallel(tasks_of(&p), f64 ? forward_block_f64 : forward_block_f32, &p);
}

static void run_cells_grad(const kiln_cpu_call *c)
{
    lstm p = measure(c);
    bool f64 = c->in[0].dtype == KILN_F64;
    kiln_parallel(p.blocks, f64 ? pack_backward_f64 : pack_backward_f32, &p);
    for (p.step = p.t - 1; p.step >= -1; p.step--)
        kiln_parallel(tasks_of(&p), f64 ? backward_block_f64 : backward_block_f32, &p);
}

const kiln_cpu_kernel kiln_cpu_kernels_lstm[] = {
    {.op = "lstm_cells", .dtypes = 1 << KILN_F32 | 1 << KILN_F64, .run = run_cells, .workspace = workspace},
    {.op = "lstm_cells_grad", .dtypes = 1 << KILN_F32 | 1 << KILN_F64, .run = run_cells_grad, .workspace = workspace},
    {0},
};
