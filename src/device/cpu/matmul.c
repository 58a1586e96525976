#include "device/cpu/matmul.h"
#include <string.h>
#include "core/parallel.h"

static void set_shape(kiln_gemm *g, const kiln_kernel *k)
{
    const kiln_operand *a = &k->in[0], *b = &k->in[1];
    *g = (kiln_gemm){.m = a->shape[a->ndim - 2],
                     .k = a->shape[a->ndim - 1],
                     .n = b->shape[b->ndim - 1],
                     .dtype = (kiln_dtype)a->dtype,
                     .a_row = a->stride[a->ndim - 2],
                     .a_col = a->stride[a->ndim - 1],
                     .b_row = b->stride[b->ndim - 2],
                     .b_col = b->stride[b->ndim - 1],
                     .store = !k->group};
    int ndim;
    int64_t batch[KILN_MAX_DIMS];
    kiln_broadcast(a->ndim - 2, a->shape, b->ndim - 2, b->shape, &ndim, batch);
    g->batch = kiln_count(ndim, batch);
    g->c_row = g->n;
    g->c_batch = g->m * g->n;
}

/* Element offsets of each batch's matrix, broadcast over the result's batch dims. */
static int64_t *batch_offsets(const kiln_operand *x, const kiln_operand *other, int64_t count, kiln_arena *pool)
{
    int ndim;
    int64_t shape[KILN_MAX_DIMS], *offsets = KILN_ARENA_NEW(pool, int64_t, count);
    kiln_broadcast(x->ndim - 2, x->shape, other->ndim - 2, other->shape, &ndim, shape);
    int missing = ndim - (x->ndim - 2);
    for (int64_t i = 0; offsets && i < count; i++) {
        int64_t rest = i;
        for (int d = ndim; d-- > 0; rest /= shape[d])
            if (d >= missing && x->shape[d - missing] != 1)
                offsets[i] += rest % shape[d] * x->stride[d - missing];
    }
    return offsets;
}

static size_t round_up(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

bool kiln_cpu_matmul_lower(kiln_cpu_matmul *m, const kiln_plan *plan, const kiln_kernel *k, kiln_arena *pool)
{
    set_shape(&m->shape, k);
    m->a_offset = k->in[0].offset;
    m->b_offset = k->in[1].offset;
    m->gemm_bytes = round_up(kiln_gemm_workspace(&m->shape, kiln_threads()));
    m->has_group = k->group != NULL;
    if (m->shape.batch > 1) {
        m->shape.a_batch = m->a_batch = batch_offsets(&k->in[0], &k->in[1], m->shape.batch, pool);
        m->shape.b_batch = m->b_batch = batch_offsets(&k->in[1], &k->in[0], m->shape.batch, pool);
        if (!m->a_batch || !m->b_batch)
            return false;
    }
    return !k->group || kiln_cpu_group_lower(&m->group, plan, k, pool);
}

size_t kiln_cpu_matmul_workspace(const kiln_kernel *k, int threads)
{
    kiln_gemm g;
    set_shape(&g, k);
    return round_up(kiln_gemm_workspace(&g, threads)) + (k->group ? kiln_cpu_group_workspace(k->group, threads) : 0);
}

typedef struct epilogue {
    kiln_cpu_tile tile;
    int64_t m, n;
    size_t unit; /* of a value in the block */
} epilogue;

/* `count` elements from `start` on, whose matmul values lie one behind the other at `values`. */
static void finish_run(const epilogue *e, int64_t start, int64_t count, const char *values, int worker)
{
    for (int64_t i = 0; i < count; i += KILN_TILE)
        kiln_cpu_group_tile(&e->tile, start + i, count - i < KILN_TILE ? count - i : KILN_TILE,
                            values + (size_t)i * e->unit, worker, -1);
}

/* Pieces of rows lie apart: too short for the processor to see where it goes next, so they are asked for this many
 * ahead. */
enum { AHEAD = 3 };

static void finish_block(void *context, int64_t batch, int64_t row, int64_t col, int64_t rows, int64_t cols,
                         void *block, int64_t block_row_stride, int worker)
{
    const epilogue *e = context;
    int64_t start = (batch * e->m + row) * e->n + col;
    if (cols == e->n && block_row_stride == cols) {
        finish_run(e, start, rows * cols, block, worker);
        return;
    }
    for (int64_t i = 0; i < rows && i < AHEAD; i++)
        kiln_cpu_group_prefetch(&e->tile, start + i * e->n, cols);
    for (int64_t i = 0; i < rows; i++) {
        if (i + AHEAD < rows)
            kiln_cpu_group_prefetch(&e->tile, start + (i + AHEAD) * e->n, cols);
        finish_run(e, start + i * e->n, cols, (const char *)block + (size_t)(i * block_row_stride) * e->unit, worker);
    }
}

void kiln_cpu_matmul_run(const kiln_cpu_matmul *m, const kiln_plan *plan, const kiln_kernel *k,
                         const kiln_binding *binding)
{
    kiln_gemm g = m->shape;
    int64_t size = (int64_t)kiln_dtype_size(g.dtype);
    char *workspace = k->workspace < 0 ? NULL : (char *)(uintptr_t)kiln_buffer_address(plan, binding, k->workspace);
    g.a = (const char *)(uintptr_t)kiln_buffer_address(plan, binding, k->in[0].buffer) + m->a_offset * size;
    g.b = (const char *)(uintptr_t)kiln_buffer_address(plan, binding, k->in[1].buffer) + m->b_offset * size;
    epilogue e = {{&m->group, plan, binding, workspace ? workspace + m->gemm_bytes : NULL},
                  g.m,
                  g.n,
                  kiln_pw_class_size(kiln_pw_class_of(g.dtype))};
    if (m->has_group) {
        g.epilogue = finish_block;
        g.epilogue_context = &e;
    } else
        g.c = (void *)(uintptr_t)kiln_buffer_address(plan, binding, k->out[0].buffer);
    kiln_gemm_run(&g, workspace);
}
