/* Groups on CUDA: a group becomes a program (group.h) and a launch or two. Everything is decided from shapes, so it is
 * the same whenever the group is captured. */
#include "core/alloc.h"
#include "device/cuda/compile/codegen.h"
#include "device/cuda/group/text.h"

enum {
    MOST_SHARED = 160 * 1024,
    FREE_SHARED = 48 * 1024,
    COLUMN_THREADS = 256,
    MANY_ROWS = 1024,      /* that need not be cut, however long they are: there are enough for all blocks */
    FEW_ROWS = 8,          /* that a thread folds, or twice as many where lanes are NARROWEST */
    NARROWEST = 2,         /* lanes: what they read of a row is a sector of the cache */
    LEAST_BLOCKS = 8,      /* below which rows are rather shared */
    MOST_NARROW = 1 << 20, /* elements of which reads may be short */
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t at_least(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t power_of_2_from(int64_t n, int64_t limit)
{
    int64_t p = 1;
    while (p < n && p < limit)
        p *= 2;
    return p;
}

/* ---- The shape of a reduction ---- */

/* [kept…, reduced…], or [kept…, reduced…, kept…] when the innermost dim stays. */
static void walk(kiln_cuda_reduction *r, const kiln_group *g, int *order)
{
    int n = 0, last = g->reduce_ndim;
    while (last > 0 && g->reduce_shape[last - 1] == 1)
        last--;
    int inner_from = g->reduce_ndim;
    bool inner_stays = last > 0 && !(g->reduce_dims >> (last - 1) & 1);
    while (inner_stays && inner_from > 0 &&
           (g->reduce_shape[inner_from - 1] == 1 || !(g->reduce_dims >> (inner_from - 1) & 1)))
        inner_from--;
    r->outer = r->reduced = r->inner = 1;
    for (int i = 0; i < inner_from; i++)
        if (!(g->reduce_dims >> i & 1)) {
            order[n++] = i;
            r->outer *= g->reduce_shape[i];
        }
    for (int i = 0; i < inner_from; i++)
        if (g->reduce_dims >> i & 1) {
            order[n++] = i;
            r->reduced *= g->reduce_shape[i];
        }
    for (int i = inner_from; i < g->reduce_ndim; i++) {
        order[n++] = i;
        r->inner *= g->reduce_shape[i];
    }
}

/* Short rows go to parts of a warp, long ones or few ones to blocks. A row is cut where it would keep its block busy
 * for long while others have nothing to do. */
static void cut_rows(kiln_cuda_reduction *r)
{
    r->chunk = r->reduced;
    if (r->reduced <= 256 || (r->reduced <= 1024 && r->outer >= 512)) {
        r->threads = 128;
        r->lanes = (int32_t)power_of_2_from(ceil_div(r->reduced, 4), 32);
        return;
    }
    r->threads = r->lanes = 256;
    if (r->reduced > 8192 && r->outer < MANY_ROWS)
        r->chunk = at_most(at_least(ceil_div(ceil_div(r->outer * r->reduced, 512), 4) * 4, 4096), 32768);
}

/* With lanes for fewer columns, and as many more lines, no thread has many rows: nothing needs to be folded once more,
 * and what follows can go on with the same columns. For tensors that caches hold: reads get shorter. */
static bool narrow_columns(kiln_cuda_reduction *r, int64_t quads)
{
    int64_t lanes = power_of_2_from(quads, 32);
    while (lanes > NARROWEST && r->reduced > FEW_ROWS * (COLUMN_THREADS / lanes))
        lanes /= 2;
    int64_t lines = COLUMN_THREADS / lanes, blocks = r->outer * ceil_div(quads, lanes);
    if (r->outer * r->reduced * r->inner > MOST_NARROW || r->reduced > 2 * FEW_ROWS * lines || blocks < LEAST_BLOCKS)
        return false;
    r->lanes = (int32_t)lanes;
    r->threads = COLUMN_THREADS;
    r->chunk = ceil_div(r->reduced, lines) * lines;
    return true;
}

/* Few columns are those of classes, whose rows a strand of slabs made (slabs.c): chunks are as long as its tiles are
 * high, such that there are enough for all blocks. */
static int64_t most_lines(int64_t rows, int64_t lanes)
{
    int64_t most = COLUMN_THREADS / lanes, high = at_least(power_of_2_from(ceil_div(rows, 128), most), 16);
    bool few = lanes == 2 || lanes == 4;
    return few && rows > 2 * most ? at_most(high, most) : most;
}

/* Columns are read side by side; their rows are shared by the threads of a block and by blocks. What chunks leave is
 * folded once more, by as many threads more as there are fewer columns: so the fewer, the shorter chunks may be. */
static void cut_columns(kiln_cuda_reduction *r)
{
    int64_t quads = ceil_div(r->inner, 4), lanes = power_of_2_from(quads, 32);
    int64_t lines = at_least(power_of_2_from(r->reduced, most_lines(r->reduced, lanes)), 32 / lanes);
    int64_t blocks = r->outer * ceil_div(quads, lanes), each = at_least(lanes / 4, 1); /* rows of a thread */
    int64_t chunks = at_most(ceil_div(512, at_least(blocks, 1)), ceil_div(r->reduced, lines * each));
    if (r->reduced <= lines * at_least(each, 2))
        chunks = 1;
    chunks = at_least(at_least(chunks, ceil_div(r->reduced, lines * 128)), 1);
    if (chunks > 1 && narrow_columns(r, quads))
        return;
    r->lanes = (int32_t)lanes;
    r->threads = (int32_t)(lanes * lines);
    r->chunk = ceil_div(ceil_div(r->reduced, chunks), lines) * lines;
}

void kiln_cuda_lower_reduction(kiln_cuda_reduction *r, const kiln_group *g, int *order)
{
    walk(r, g, order);
    if (r->inner == 1)
        cut_rows(r);
    else
        cut_columns(r);
    r->chunks = r->reduced > r->chunk ? ceil_div(r->reduced, r->chunk) : 1;
}

size_t kiln_cuda_group_workspace(const kiln_cuda_device *d, const kiln_group *g)
{
    (void)d;
    kiln_cuda_reduction r = {0};
    int order[KILN_MAX_DIMS];
    if (!g->reduces)
        return 0;
    kiln_cuda_lower_reduction(&r, g, order);
    return r.chunks > 1 ? (size_t)(r.outer * r.chunks * r.inner) * sizeof *r.partials : 0;
}

/* ---- Launching ---- */

static size_t shared_bytes(const kiln_cuda_program *p, int threads)
{
    return (size_t)ceil_div(p->bytes, 16) * 16 + (size_t)p->nops * 16 + (size_t)p->nregisters * (size_t)threads * 16 +
           (p->shape == KILN_CUDA_MAP ? 0 : (size_t)threads * 32);
}

static bool launch(const kiln_cuda_call *c, const void *kernel, int64_t blocks, int threads, size_t shared,
                   const void *parameter)
{
    dim3 grid = {(unsigned)at_most(blocks, (int64_t)c->multiprocessors * 32), 1, 1}, block = {(unsigned)threads, 1, 1};
    void *arguments[] = {(void *)(uintptr_t)parameter};
    if (shared > MOST_SHARED)
        return kiln_fail(KILN_E_UNSUPPORTED, c->name,
                         "a group that needs %zu bytes of shared memory is too long for cuda", shared);
    if (shared > FREE_SHARED &&
        !kiln_cuda_ok(c->device, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MOST_SHARED),
                      "shared memory is too small for a group"))
        return false;
    cudaLaunchKernel(kernel, grid, block, arguments, shared, c->stream);
    return kiln_cuda_launched(c);
}

static bool launch_map(const kiln_cuda_call *c, const kiln_cuda_lowered *w, const void *kernel)
{
    const kiln_cuda_program *p = &w->k.p;
    int cell = w->wide ? 2 : 4, threads = 128;
    while (threads > 32 && p->count <= (int64_t)threads / 2 * cell * c->multiprocessors)
        threads /= 2; /* little work: rather on all multiprocessors than in full blocks */
    while (threads > 32 && shared_bytes(p, threads) > FREE_SHARED)
        threads /= 2;
    return launch(c, kernel, ceil_div(p->count, (int64_t)threads * cell), threads, shared_bytes(p, threads), &w->k);
}

static int64_t reduction_blocks(const kiln_cuda_reduction *r)
{
    return r->inner == 1 ? ceil_div(r->outer * r->chunks, r->threads / r->lanes)
                         : r->outer * r->chunks * ceil_div(r->inner, 4 * (int64_t)r->lanes);
}

static bool launch_combine(const kiln_cuda_call *c, const kiln_cuda_reduction *r)
{
    int64_t blocks = r->outer * ceil_div(r->inner, KILN_CUDA_COMBINED);
    return r->chunks == 1 || launch(c, kiln_cuda_combine_kernel(), blocks, KILN_CUDA_COMBINE, 0, r);
}

static bool launch_interpreted(const kiln_cuda_call *c, const kiln_cuda_lowered *w)
{
    const kiln_cuda_program *p = &w->k.p;
    const kiln_cuda_reduction *r = &p->r;
    const void *kernel = kiln_cuda_group_kernel(p->shape, w->wide, p->bytes > KILN_CUDA_SMALL);
    if (p->shape == KILN_CUDA_MAP)
        return launch_map(c, w, kernel);
    return launch(c, kernel, reduction_blocks(r), r->threads, shared_bytes(p, r->threads), &w->k) &&
           launch_combine(c, r);
}

/* By the kernel generated for it: the registers are the compiler's, shared memory is for folding alone. */
static bool launch_generated(const kiln_cuda_call *c, const kiln_cuda_lowered *w, const void *kernel)
{
    const kiln_cuda_program *p = &w->k.p;
    const kiln_cuda_reduction *r = &p->r;
    kiln_cuda_generated k;
    kiln_cuda_group_parameters(&k, w);
    if (p->shape != KILN_CUDA_MAP)
        return launch(c, kernel, reduction_blocks(r), r->threads, (size_t)r->threads * 32, &k) && launch_combine(c, r);
    int cell = w->wide ? 2 : 4, threads = KILN_CUDA_MAP_THREADS;
    while (threads > 32 && p->count <= (int64_t)threads / 2 * cell * c->multiprocessors)
        threads /= 2;
    return launch(c, kernel, ceil_div(p->count, (int64_t)threads * cell), threads, 0, &k);
}

/* *kernel: generated for the group, NULL where there is none. */
static bool find_generated(const kiln_cuda_call *c, const kiln_cuda_lowered *w, const void **kernel)
{
    *kernel = NULL;
    if (kiln_cuda_compiles() == 0 || c->chained || w->k.p.nloads + w->k.p.nstores > KILN_CUDA_POINTERS)
        return true;
    char *text = kiln_cuda_group_text(w);
    bool ok = text &&
              kiln_cuda_codegen_find(c->device, text, false, (double)c->kernel->bytes + KILN_CUDA_LAUNCH_WORK, kernel);
    kiln_free(text);
    return ok;
}

static bool is_empty(const kiln_group *g)
{
    if (!g->reduces)
        return g->count == 0;
    for (int i = 0; i < g->reduce_ndim; i++)
        if (g->reduce_shape[i] == 0 && !(g->reduce_dims >> i & 1))
            return true;
    return false;
}

bool kiln_cuda_group_launch(const kiln_cuda_call *c, const kiln_group *g, const void *head)
{
    if (is_empty(g))
        return true;
    kiln_cuda_lowered *w = kiln_alloc_zero(1, sizeof *w);
    const void *generated = NULL;
    bool ok = w && kiln_cuda_lower_group(w, c, g, head) && find_generated(c, w, &generated) &&
              (generated ? launch_generated(c, w, generated) : launch_interpreted(c, w));
    kiln_free(w);
    return ok;
}
