/* Attention and its gradient on the CPU: a task a head (or, where heads are few, a block of queries), each of which
 * keeps its scores in cache. */
#include "device/cpu/sequence/attention.h"
#include <math.h>
#include <string.h>
#include "device/cpu/common/isa.h"
#include "plan/plan.h"

#define KERNELS "device/cpu/sequence/attention_kernels.h"
#include "device/cpu/common/reals.h"

enum { BLOCK_TILES = 8, ENOUGH_HEADS = 16 };

static bool is_f64(const kiln_attention *a)
{
    return a->c->in[0].dtype == KILN_F64;
}

static kiln_attention measure(const kiln_cpu_call *c, bool backward)
{
    const kiln_cpu_operand *q = &c->in[0], *v = &c->in[2];
    const kiln_gemm_kernels *gemm = kiln_isa_pick(kiln_gemm_plain, kiln_gemm_avx2, kiln_gemm_avx512);
    const kiln_rows_kernels *rows = kiln_isa_pick(kiln_rows_plain, kiln_rows_avx2, kiln_rows_avx512);
    int n = q->ndim;
    bool f64 = q->dtype == KILN_F64;
    kiln_attention a = {.c = c,
                        .gemm = f64 ? &gemm->f64 : &gemm->f32,
                        .pack = kiln_gemm_pack_of(gemm, q->dtype),
                        .rows = f64 ? &rows->f64 : &rows->f32,
                        .half = q->dtype == KILN_F16 || q->dtype == KILN_BF16,
                        .element = kiln_dtype_size(q->dtype),
                        .heads = kiln_count(n - 2, q->shape),
                        .l = q->shape[n - 2],
                        .e = q->shape[n - 1],
                        .s = v->shape[n - 2],
                        .ev = v->shape[n - 1],
                        .tall = gemm->f32.rows,
                        .causal = c->ints[0] != 0};
    int64_t lanes = a.gemm->lanes;
    a.panel = lanes * KILN_GEMM_VECTORS;
    a.e_wide = kiln_round_up(a.e, lanes);
    a.ev_wide = kiln_round_up(a.ev, lanes);
    /* Room for whole lines of cache, and one more: else rows would meet in the same places of the cache. */
    int64_t cache_line = 64 / (f64 ? 8 : 4);
    a.line = kiln_round_up(kiln_round_up(a.s, a.panel), cache_line) + cache_line;
    a.block = a.tall * BLOCK_TILES;
    a.blocks = a.heads >= ENOUGH_HEADS || backward ? 1 : (a.l + a.block - 1) / a.block;
    size_t bytes = backward ? (f64 ? backward_bytes_f64(&a) : backward_bytes_f32(&a))
                            : (f64 ? forward_bytes_f64(&a) : forward_bytes_f32(&a));
    a.worker_bytes = (bytes + 63) / 64 * 64;
    return a;
}

static void forward_task(void *context, int64_t task, int worker)
{
    const kiln_attention *a = context;
    char *scratch = (char *)a->c->workspace + (size_t)worker * a->worker_bytes;
    int64_t rows = a->blocks == 1 ? a->l : a->block, row = task % a->blocks * rows;
    int64_t end = row + rows < a->l ? row + rows : a->l;
    (is_f64(a) ? forward_f64 : forward_f32)(a, task / a->blocks, row, end, scratch, worker);
}

static void run_attention(const kiln_cpu_call *c)
{
    kiln_attention a = measure(c, false);
    a.scale = c->floats[0];
    kiln_parallel(a.heads * a.blocks, forward_task, &a);
}

static void backward_task(void *context, int64_t task, int worker)
{
    const kiln_attention *a = context;
    char *scratch = (char *)a->c->workspace + (size_t)worker * a->worker_bytes;
    (is_f64(a) ? backward_f64 : backward_f32)(a, task, scratch);
}

static void run_attention_grad(const kiln_cpu_call *c)
{
    kiln_attention a = measure(c, true);
    a.scale = c->floats[0];
    kiln_parallel(a.heads, backward_task, &a);
}

static size_t forward_workspace(const kiln_cpu_call *c)
{
    return measure(c, false).worker_bytes * (size_t)kiln_threads();
}

static size_t backward_workspace(const kiln_cpu_call *c)
{
    return measure(c, true).worker_bytes * (size_t)kiln_threads();
}

const kiln_cpu_kernel kiln_cpu_kernels_attention[] = {
    {.op = "attention",
     .dtypes = KILN_T_FLOATS,
     .can = KILN_CAN_END,
     .run = run_attention,
     .workspace = forward_workspace},
    {.op = "attention_grad",
     .dtypes = KILN_T_FLOATS,
     .can = KILN_CAN_WINDOW,
     .run = run_attention_grad,
     .workspace = backward_workspace},
    {0},
};
