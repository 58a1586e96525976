/* Matrix products of a plan, and the tiles that finish them. */
#include "device/cpu/gemm/matmul.h"
#include "core/parallel.h"

typedef struct epilogue {
    kiln_cpu_tile tile;
    int64_t m, n;
    size_t unit; /* of a value in the block */
} epilogue;

static void finish_block(void *context, int64_t batch, int64_t row, int64_t col, int64_t rows, int64_t cols,
                         void *block, int64_t block_row_stride, int worker)
{
    const epilogue *e = context;
    int64_t start = (batch * e->m + row) * e->n + col;
    if (cols == e->n && block_row_stride == cols) {
        kiln_cpu_group_finish(&e->tile, start, rows * cols, block, e->unit, worker);
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        kiln_cpu_group_finish(&e->tile, start + i * e->n, cols,
                              (const char *)block + (size_t)(i * block_row_stride) * e->unit, e->unit, worker);
}

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
                     .epilogue = k->group ? finish_block : NULL,
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

/* Where the group only passes the product on to memory, it is computed there: if nothing the group reads lies there. */
static void store_product(kiln_cpu_matmul *m, const kiln_plan *plan)
{
    kiln_cpu_group *e = &m->group;
    for (int s = 0; s < e->nstores; s++) {
        kiln_cpu_store *st = &e->stores[s];
        if (st->src != e->head || st->dtype != m->shape.dtype || st->size < 4 ||
            kiln_cpu_group_reads(e, plan, st->buffer))
            continue;
        st->done = true;
        m->c_buffer = st->buffer;
        m->shape.store = 1;
        return;
    }
}

bool kiln_cpu_matmul_lower(kiln_cpu_matmul *m, const kiln_plan *plan, const kiln_kernel *k, kiln_arena *pool)
{
    set_shape(&m->shape, k);
    m->a_offset = k->in[0].offset;
    m->b_offset = k->in[1].offset;
    m->gemm_bytes = round_up(kiln_gemm_workspace(&m->shape, kiln_threads()));
    if (m->shape.batch > 1) {
        m->shape.a_batch = m->a_batch = batch_offsets(&k->in[0], &k->in[1], m->shape.batch, pool);
        m->shape.b_batch = m->b_batch = batch_offsets(&k->in[1], &k->in[0], m->shape.batch, pool);
        if (!m->a_batch || !m->b_batch)
            return false;
    }
    m->c_buffer = k->group ? -1 : k->out[0].buffer;
    return !k->group || (kiln_cpu_group_lower(&m->group, plan, k->group, pool) && (store_product(m, plan), true));
}

size_t kiln_cpu_matmul_workspace(const kiln_kernel *k, int threads)
{
    kiln_gemm g;
    set_shape(&g, k);
    return round_up(kiln_gemm_workspace(&g, threads)) + (k->group ? kiln_cpu_group_workspace(k->group, threads) : 0);
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
    g.epilogue_context = &e;
    if (m->c_buffer >= 0)
        g.c = (void *)(uintptr_t)kiln_buffer_address(plan, binding, m->c_buffer);
    kiln_gemm_run(&g, workspace);
}
