/* LSTM cells on the CPU: step after step, each spread over blocks of units. A block computes the products for its own
 * units and their gates, so that a step is one round of tasks. */
#include "device/cpu/rows/lstm.h"
#include <string.h>
#include "device/cpu/gemm/gemm_kernels.h"
#include "device/cpu/common/isa.h"
#include "device/cpu/group/pointwise.h"
#include "device/cpu/rows/rows.h"
#include "ops/op.h"

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
    bool half;
    float *copies[2]; /* of halves: what products of this step and the next read; steps take turns */
    int64_t copied;   /* elements of each */
} lstm;

/* Units in the block that starts at `unit`. */
static int64_t units_of(const lstm *p, int64_t unit)
{
    return p->h - unit < p->block ? p->h - unit : p->block;
}

static const char *element_of(const kiln_cpu_operand *x, int64_t at)
{
    return (const char *)x->data + (size_t)at * kiln_dtype_size(x->dtype);
}

#define KERNELS "device/cpu/sequence/lstm_kernels.h"
#include "device/cpu/common/reals.h"
#include "device/cpu/sequence/lstm_halves.h"

/* Both operations' first operand is [T, N, 4H]. */
static lstm measure(const kiln_cpu_call *c, bool backward)
{
    const kiln_gemm_kernels *gemm = kiln_isa_pick(kiln_gemm_plain, kiln_gemm_avx2, kiln_gemm_avx512);
    const kiln_rows_kernels *rows = kiln_isa_pick(kiln_rows_plain, kiln_rows_avx2, kiln_rows_avx512);
    const int64_t *shape = c->in[0].shape;
    bool f64 = c->in[0].dtype == KILN_F64;
    lstm p = {.c = c,
              .gemm = f64 ? &gemm->f64 : &gemm->f32,
              .pack = kiln_gemm_pack_of(gemm, c->in[0].dtype),
              .rows = f64 ? &rows->f64 : &rows->f32,
              .t = shape[0],
              .n = shape[1],
              .h = shape[2] / 4,
              .tall = gemm->f32.rows,
              .block_rows = gemm->f32.rows * BLOCK_TILES,
              .packed = c->workspace};
    size_t element = f64 ? 8 : 4;
    p.half = c->in[0].dtype == KILN_F16 || c->in[0].dtype == KILN_BF16;
    p.block = p.gemm->lanes * KILN_GEMM_VECTORS;
    p.blocks = (p.h + p.block - 1) / p.block;
    p.packed_bytes = (size_t)(p.blocks * p.block * 4 * p.h) * element;
    p.worker_bytes = (size_t)(p.tall * (p.half ? TILE_BLOCKS : 4) * p.block) * element;
    p.copied = p.half ? p.n * p.h * (backward ? 4 : 1) : 0;
    if (c->workspace) {
        p.copies[0] = (float *)(void *)((char *)c->workspace + p.packed_bytes);
        p.copies[1] = p.copies[0] + p.copied;
        p.scratch = (char *)(p.copies[1] + p.copied);
    }
    return p;
}

static size_t workspace_of(const lstm *p)
{
    return p->packed_bytes + 2 * (size_t)p->copied * sizeof(float) + p->worker_bytes * (size_t)kiln_threads();
}

static size_t workspace(const kiln_cpu_call *c)
{
    lstm p = measure(c, false);
    return workspace_of(&p);
}

static size_t grad_workspace(const kiln_cpu_call *c)
{
    lstm p = measure(c, true);
    return workspace_of(&p);
}

/* A task for each block of units and of rows. */
static int64_t tasks_of(const lstm *p)
{
    return p->blocks * ((p->n + p->block_rows - 1) / p->block_rows);
}

static void run_cells(const kiln_cpu_call *c)
{
    lstm p = measure(c, false);
    bool f64 = c->in[0].dtype == KILN_F64;
    size_t state = (size_t)(p.n * p.h);
    for (int k = 0; state && k < 2; k++)
        memcpy(c->out[k].data, c->in[1 + k].data, state * kiln_dtype_size(c->out[k].dtype));
    if (p.half && state)
        kiln_pw_best()->load[c->in[1].dtype](p.copies[0], c->in[1].data, (int64_t)state);
    kiln_parallel(4 * p.blocks, f64 ? pack_forward_f64 : pack_forward_f32, &p);
    for (p.step = 0; p.step < p.t; p.step++)
        kiln_parallel(tasks_of(&p), f64 ? forward_block_f64 : p.half ? forward_block_half : forward_block_f32, &p);
}

static void run_cells_grad(const kiln_cpu_call *c)
{
    lstm p = measure(c, true);
    bool f64 = c->in[0].dtype == KILN_F64;
    kiln_parallel(p.blocks, f64 ? pack_backward_f64 : pack_backward_f32, &p);
    for (p.step = p.t - 1; p.step >= -1; p.step--)
        kiln_parallel(tasks_of(&p), f64 ? backward_block_f64 : p.half ? backward_block_half : backward_block_f32, &p);
}

const kiln_cpu_kernel kiln_cpu_kernels_lstm[] = {
    {.op = "lstm_cells", .dtypes = KILN_T_FLOATS, .run = run_cells, .workspace = workspace},
    {.op = "lstm_cells_grad", .dtypes = KILN_T_FLOATS, .run = run_cells_grad, .workspace = grad_workspace},
    {0},
};
