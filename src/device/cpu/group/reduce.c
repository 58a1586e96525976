/* Reductions at the end of a group. The elements are walked as [outer, reduced, inner]; the reduced dim is cut into
 * chunks that depend on the shape alone, each chunk gives a partial result, and partial results are combined in order.
 */
#include <string.h>
#include "core/parallel.h"
#include "device/cpu/group/group.h"

typedef struct reduction {
    kiln_cpu_tile tile;
    const kiln_cpu_group *e;
    kiln_pw_fold_fn fold, reduce;
    char *accumulators; /* per worker: three tiles */
    char *partials;     /* [outer, chunks, inner] of the register's type; NULL when there is one chunk */
    char *to;           /* the result's memory */
    uint8_t dtype;      /* the result's */
    int64_t size;       /* of a result element */
    size_t element;     /* bytes of one in a register */
    int64_t rows_a_task, blocks;
} reduction;

enum { ROW_WORK = 16 * KILN_TILE }; /* elements of short rows that make a task */

static char *accumulator(const reduction *r, int worker, int which)
{
    return r->accumulators + ((int64_t)worker * 3 + which) * 8 * KILN_TILE;
}

/* n results from a register to their place: partial results stay as they are, final ones get the result's dtype. */
static void put(const reduction *r, const void *values, int64_t outer, int64_t chunk, int64_t inner, int64_t n)
{
    const kiln_cpu_group *e = r->e;
    if (r->partials)
        memcpy(r->partials + (size_t)((outer * e->chunks + chunk) * e->inner + inner) * r->element, values,
               (size_t)n * r->element);
    else
        e->table->store[r->dtype](r->to + (outer * e->inner + inner) * r->size, values, n);
}

/* ---- Rows: the reduced dim is innermost ---- */

static void short_rows(void *context, int64_t task, int worker)
{
    const reduction *r = context;
    const kiln_cpu_group *e = r->e;
    int64_t row = task * r->rows_a_task, end = row + r->rows_a_task < e->outer ? row + r->rows_a_task : e->outer;
    int64_t at_once = e->reduced ? KILN_TILE / e->reduced : KILN_TILE;
    char *results = accumulator(r, worker, 0);
    for (; row < end; row += at_once) {
        int64_t rows = end - row < at_once ? end - row : at_once;
        const char *x = e->reduced ? kiln_cpu_group_tile(&r->tile, row * e->reduced, rows * e->reduced, NULL, worker,
                                                         false, e->group->reduce_src)
                                   : results; /* of rows without elements none is read */
        for (int64_t i = 0; i < rows; i++)
            r->reduce(results + (size_t)i * r->element, x + (size_t)(i * e->reduced) * r->element, e->reduced);
        put(r, results, row, 0, 0, rows);
    }
}

static void long_row(void *context, int64_t task, int worker)
{
    const reduction *r = context;
    const kiln_cpu_group *e = r->e;
    int64_t row = task / e->chunks, chunk = task % e->chunks, start = chunk * e->chunk;
    int64_t end = start + e->chunk < e->reduced ? start + e->chunk : e->reduced;
    char *tiles = accumulator(r, worker, 0);
    int64_t n = 0;
    for (; start < end; start += KILN_TILE, n++) {
        int64_t length = end - start < KILN_TILE ? end - start : KILN_TILE;
        const void *x =
            kiln_cpu_group_tile(&r->tile, row * e->reduced + start, length, NULL, worker, n > 0, e->group->reduce_src);
        r->reduce(tiles + (size_t)n * r->element, x, length);
    }
    char *result = accumulator(r, worker, 1);
    r->reduce(result, tiles, n);
    put(r, result, row, chunk, 0, 1);
}

/* ---- Columns: something is kept inside the reduced dim ---- */

/* Several rows at once while they fit a tile, else a block of columns of one row. */
static void columns(void *context, int64_t task, int worker)
{
    const reduction *r = context;
    const kiln_cpu_group *e = r->e;
    int64_t block = task % r->blocks, chunk = task / r->blocks % e->chunks, outer = task / r->blocks / e->chunks;
    int64_t from = block * KILN_TILE, width = e->inner - from < KILN_TILE ? e->inner - from : KILN_TILE;
    int64_t row = chunk * e->chunk, end = row + e->chunk < e->reduced ? row + e->chunk : e->reduced;
    int64_t at_once = r->blocks == 1 ? KILN_TILE / e->inner : 1;
    char *sum = accumulator(r, worker, 0);
    bool first = true;
    for (; row < end; row += at_once) {
        int64_t rows = end - row < at_once ? end - row : at_once;
        int64_t start = (outer * e->reduced + row) * e->inner + from;
        const char *x = kiln_cpu_group_tile(&r->tile, start, rows * width, NULL, worker, false, e->group->reduce_src);
        for (int64_t i = 0; i < rows; i++, first = false)
            if (first)
                memcpy(sum, x, (size_t)width * r->element);
            else
                r->fold(sum, x + (size_t)(i * width) * r->element, width);
    }
    if (first) /* nothing to reduce: the neutral element */
        for (int64_t i = 0; i < width; i++)
            r->reduce(sum + (size_t)i * r->element, NULL, 0);
    put(r, sum, outer, chunk, from, width);
}

/* ---- Combining ---- */

static void combine_rows(reduction *r)
{
    const kiln_cpu_group *e = r->e;
    char *partials = r->partials, *result = accumulator(r, 0, 0);
    r->partials = NULL;
    for (int64_t row = 0; row < e->outer; row++) {
        r->reduce(result, partials + (size_t)(row * e->chunks) * r->element, e->chunks);
        put(r, result, row, 0, 0, 1);
    }
}

static void combine_columns(void *context, int64_t task, int worker)
{
    reduction r = *(const reduction *)context;
    const kiln_cpu_group *e = r.e;
    int64_t block = task % r.blocks, outer = task / r.blocks;
    int64_t from = block * KILN_TILE, width = e->inner - from < KILN_TILE ? e->inner - from : KILN_TILE;
    const char *p = r.partials + (size_t)(outer * e->chunks * e->inner + from) * r.element;
    char *sum = accumulator(&r, worker, 0);
    memcpy(sum, p, (size_t)width * r.element);
    for (int64_t c = 1; c < e->chunks; c++)
        r.fold(sum, p + (size_t)(c * e->inner) * r.element, width);
    r.partials = NULL;
    put(&r, sum, outer, 0, from, width);
}

static void tasks(const reduction *r, int64_t n, void (*body)(void *, int64_t, int), bool parallel)
{
    if (parallel)
        kiln_parallel(n, body, (void *)(uintptr_t)r);
    else
        for (int64_t i = 0; i < n; i++)
            body((void *)(uintptr_t)r, i, 0);
}

void kiln_cpu_reduce_run(const kiln_cpu_group *e, const kiln_plan *plan, const kiln_kernel *kernel,
                         const kiln_binding *binding)
{
    const kiln_group *g = e->group;
    reduction r = {.tile = {e, plan, binding, NULL}, .e = e};
    r.tile.registers = (char *)(uintptr_t)kiln_buffer_address(plan, binding, kernel->workspace);
    r.fold = e->table->fold[e->cls][g->fold];
    r.reduce = e->table->reduce[e->cls][g->fold];
    int threads = kiln_threads();
    r.accumulators = r.tile.registers + (int64_t)threads * e->nregisters * e->register_bytes;
    r.partials = e->chunks > 1 ? r.accumulators + (int64_t)threads * 3 * 8 * KILN_TILE : NULL;
    r.to = (char *)(uintptr_t)kiln_buffer_address(plan, binding, g->reduce_to.buffer);
    r.dtype = g->reduce_to.dtype;
    r.size = (int64_t)kiln_dtype_size((kiln_dtype)r.dtype);
    r.element = kiln_pw_class_size(e->cls);
    r.blocks = (e->inner + KILN_TILE - 1) / KILN_TILE;
    bool parallel = g->count * (g->ninstrs + 1) > KILN_SERIAL_WORK;
    if (e->outer == 0 || e->inner == 0)
        return;
    if (e->inner > 1) {
        tasks(&r, e->outer * e->chunks * r.blocks, columns, parallel);
        if (r.partials)
            tasks(&r, e->outer * r.blocks, combine_columns, parallel);
    } else if (e->reduced > KILN_TILE) {
        tasks(&r, e->outer * e->chunks, long_row, parallel);
        if (r.partials)
            combine_rows(&r);
    } else {
        r.rows_a_task = e->reduced ? ROW_WORK / e->reduced : ROW_WORK;
        tasks(&r, (e->outer + r.rows_a_task - 1) / r.rows_a_task, short_rows, parallel);
    }
}
