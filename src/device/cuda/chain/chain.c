/* Chains: which kernels can be steps, and what each needs. Their order is set by waves.c. */
#include "device/cuda/chain/chain.h"
#include <string.h>
#include "core/alloc.h"
#include "device/cuda/compile/codegen.h"
#include "device/cuda/dispatch/call.h"

enum {
    MOST_BYTES = 48 << 20, /* that a kernel moves: above, launching it by itself costs little */
    WARP_ROW = 256,        /* softmax: shorter rows never belong to more than a warp */
    FOUND_BY_ONE = 64,     /* argmax: elements of a row that one thread goes through */
    MOST_UNITS = 264,      /* of a step whose threads go on with the next elements by themselves: two a block */
    FOLDING = 16 * 1024,   /* bytes of shared memory that reductions take */
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static bool is(const kiln_kernel *k, const char *name)
{
    return strcmp(k->op->name, name) == 0;
}

/* ---- Kinds ---- */

/* [outer, n, inner] around a dim. */
typedef struct extent {
    int64_t outer, n, inner;
} extent;

static extent extent_of(const kiln_operand *x, int64_t dim)
{
    extent e = {1, 1, 1};
    for (int d = 0; d < x->ndim; d++)
        *(d < dim ? &e.outer : d == dim ? &e.n : &e.inner) *= x->shape[d];
    return e;
}

static bool is_softmax(const kiln_kernel *k)
{
    return is(k, "softmax") || is(k, "log_softmax");
}

static bool is_half(const kiln_operand *o)
{
    return o->dtype == KILN_F16 || o->dtype == KILN_BF16;
}

static bool is_find(const kiln_kernel *k)
{
    return is(k, "argmax") || is(k, "argmin");
}

static bool is_pick(const kiln_kernel *k)
{
    return is(k, "nll_loss_pick") || is(k, "nll_loss_place");
}

static bool can_be_step(const kiln_cuda_call *c, bool large)
{
    const kiln_kernel *k = c->kernel;
    kiln_cuda_matrices m;
    kiln_cuda_tiling t;
    if (k->op && k->op->cls == KILN_CLASS_MATMUL)
        return kiln_cuda_small_of(c, &m, &t) && (large || !t.large);
    if (k->group)
        return k->group->count > 0;
    if (is(k, "take_samples"))
        return kiln_cuda_count_of(&c->out[0]) > 0;
    if (!k->nin || (k->in[0].dtype != KILN_F32 && !(is_softmax(k) && is_half(&k->in[0]))))
        return false;
    if (is_softmax(k)) {
        extent e = extent_of(&k->in[0], k->ints[0]);
        return e.inner == 1 && e.n > 0 && e.n < WARP_ROW && e.outer > 0;
    }
    if (is_find(k)) {
        extent e = extent_of(&k->in[0], k->ints[0]);
        return e.inner == 1 && e.n > 0 && e.n <= FOUND_BY_ONE && e.outer > 0;
    }
    if (is_pick(k)) {
        extent e = extent_of(is(k, "nll_loss_pick") ? &k->in[0] : &k->out[0], k->ints[0]);
        return e.outer * e.inner > 0 && k->out[0].offset % 4 == 0;
    }
    return false;
}

bool kiln_cuda_can_chain(const kiln_cuda_call *c, bool large)
{
    const kiln_kernel *k = c->kernel;
    bool product = k->op && k->op->cls == KILN_CLASS_MATMUL; /* which have limits of their own */
    return (product || k->bytes <= MOST_BYTES) && can_be_step(c, large);
}

/* ---- Parameters of steps ---- */

static bool add_pointer(kiln_cuda_chain *chain, const kiln_operand *o)
{
    if (!KILN_GROW(chain->pointers, chain->pointers_capacity, chain->npointers + 1))
        return false;
    int64_t bytes = o->offset * (int64_t)kiln_dtype_size((kiln_dtype)o->dtype);
    chain->pointers[chain->npointers++] = (kiln_cuda_pointer){.buffer = o->buffer, .bytes = bytes};
    return true;
}

/* A group's loads and stores, in the order its program numbers them; then the reduction's result and partial sums. */
static bool add_group_pointers(kiln_cuda_chain *chain, const kiln_kernel *k)
{
    const kiln_group *g = k->group;
    const kiln_operand nothing = {.buffer = -1}, workspace = {.buffer = k->workspace};
    bool ok = true;
    for (int i = 0; ok && i < g->nloads; i++)
        ok = add_pointer(chain, &g->loads[i]);
    if (g->head >= 0)
        ok = ok && add_pointer(chain, &nothing);
    for (int i = 0; ok && i < g->nstores; i++)
        ok = add_pointer(chain, &g->stores[i].to);
    if (g->reduces)
        ok = ok && add_pointer(chain, &g->reduce_to) && add_pointer(chain, &workspace);
    return ok;
}

static bool add_words(kiln_cuda_chain *chain, const kiln_cuda_lowered *g)
{
    const kiln_cuda_op *ops = (const kiln_cuda_op *)(const void *)g->k.body;
    for (int i = 0; i < g->k.p.nops; i++)
        for (int s = 0; s < ops[i].nscalars; s++) {
            if (!KILN_GROW(chain->words, chain->words_capacity, chain->nwords + 1))
                return false;
            chain->words[chain->nwords++] = (kiln_cuda_word){ops[i].scalars + s, (uint8_t)(ops[i].code - KILN_CUDA_ROW),
                                                             ops[i].row == KILN_PW_iota};
        }
    return true;
}

/* A product hands on its elements in fours only if its rows consist of fours. */
static void take_one_by_one(kiln_cuda_lowered *g)
{
    kiln_cuda_op *ops = (kiln_cuda_op *)(void *)g->k.body;
    kiln_cuda_load *loads = (kiln_cuda_load *)(void *)(ops + g->k.p.nops);
    kiln_cuda_store *stores = (kiln_cuda_store *)(void *)(loads + g->k.p.nloads);
    for (int i = 0; i < g->k.p.nloads; i++)
        loads[i].vector = false;
    for (int i = 0; i < g->k.p.nstores; i++)
        stores[i].vector = false;
}

/* ---- Steps ---- */

static bool lower_group(kiln_cuda_chain *chain, kiln_cuda_step *s, const kiln_cuda_call *c)
{
    s->group = kiln_alloc_zero(1, sizeof *s->group);
    return s->group && kiln_cuda_lower_group(s->group, c, c->kernel->group, NULL) && add_words(chain, s->group) &&
           add_group_pointers(chain, c->kernel);
}

static kiln_cuda_step *add_step(kiln_cuda_chain *chain, int32_t kernel, bool guarded)
{
    if (!KILN_GROW(chain->steps, chain->steps_capacity, chain->nsteps + 1))
        return NULL;
    kiln_cuda_step *s = &chain->steps[chain->nsteps++];
    *s = (kiln_cuda_step){
        .kernel = kernel, .guarded = guarded, .pointers = (int)chain->npointers, .words = (int)chain->nwords};
    return s;
}

static bool add_join(kiln_cuda_chain *chain, int64_t product)
{
    kiln_cuda_step *s = add_step(chain, chain->steps[product].kernel, chain->steps[product].guarded);
    if (!s)
        return false;
    const kiln_cuda_step *first = &chain->steps[product];
    int64_t cells = ceil_div(first->product.m * first->product.n, first->product.n % 4 ? 1 : 4);
    s->kind = KILN_CUDA_STEP_JOIN;
    s->pointers = first->pointers;
    s->tiling = first->tiling;
    s->units = ceil_div(cells * kiln_cuda_tiling_matrices(&first->tiling), KILN_CUDA_CHAIN_THREADS);
    return true;
}

/* The operands, the result where no group takes it, partial sums where there are cuts. */
static bool make_product(kiln_cuda_chain *chain, kiln_cuda_step *s, const kiln_cuda_call *c)
{
    const kiln_kernel *k = c->kernel;
    const kiln_operand workspace = {.buffer = k->workspace};
    int64_t number = s - chain->steps;
    s->kind = KILN_CUDA_STEP_PRODUCT;
    s->tf32 = k->tf32;
    kiln_cuda_small_of(c, &s->product, &s->tiling);
    s->units = s->tiling.tiles;
    bool cut = s->tiling.cuts > 1;
    if (k->group) {
        if (!lower_group(chain, s, c))
            return false;
        if (s->product.n % 4)
            take_one_by_one(s->group);
    }
    return add_pointer(chain, &k->in[0]) && add_pointer(chain, &k->in[1]) &&
           (k->group || add_pointer(chain, &k->out[0])) &&
           (!cut || (add_pointer(chain, &workspace) && add_join(chain, number)));
}

static int64_t reduction_units(const kiln_cuda_reduction *r)
{
    if (r->inner > 1)
        return ceil_div(r->outer * r->chunks * ceil_div(r->inner, 4 * (int64_t)r->lanes),
                        KILN_CUDA_CHAIN_THREADS / r->threads);
    return ceil_div(r->outer * r->chunks, r->lanes > 32 ? 1 : KILN_CUDA_CHAIN_THREADS / r->lanes);
}

static bool make_group(kiln_cuda_chain *chain, kiln_cuda_step *s, const kiln_cuda_call *c)
{
    if (!lower_group(chain, s, c))
        return false;
    const kiln_cuda_program *p = &s->group->k.p;
    if (p->shape == KILN_CUDA_MAP) {
        s->kind = KILN_CUDA_STEP_MAP;
        s->units = ceil_div(p->count, KILN_CUDA_CHAIN_THREADS * (s->group->wide ? 2 : 4));
        return true;
    }
    s->kind = p->shape == KILN_CUDA_ROWS ? KILN_CUDA_STEP_ROWS : KILN_CUDA_STEP_COLUMNS;
    s->units = reduction_units(&p->r);
    if (p->r.chunks == 1)
        return true;
    kiln_cuda_reduction r = p->r;
    int pointers = s->pointers;
    kiln_cuda_step *second = add_step(chain, s->kernel, s->guarded); /* s may have moved */
    if (!second)
        return false;
    second->kind = KILN_CUDA_STEP_COMBINE;
    second->pointers = pointers;
    second->units = r.outer * ceil_div(r.inner, KILN_CUDA_COMBINED);
    return true;
}

static bool make_rows(kiln_cuda_chain *chain, kiln_cuda_step *s, const kiln_cuda_call *c)
{
    const kiln_kernel *k = c->kernel;
    int64_t threads = KILN_CUDA_CHAIN_THREADS;
    bool pick = is(k, "nll_loss_pick");
    extent e = extent_of(pick || is_softmax(k) || is_find(k) ? &k->in[0] : &k->out[0], k->ints[0]);
    if (is_find(k)) {
        s->kind = KILN_CUDA_STEP_FIND;
        s->units = ceil_div(e.outer, threads);
    } else if (is_softmax(k)) {
        s->kind = KILN_CUDA_STEP_SOFTMAX;
        s->units = ceil_div(e.outer, threads / (e.n <= KILN_CUDA_SHORT_ROW ? KILN_CUDA_SHORT_ROW : 32));
    } else {
        s->kind = pick ? KILN_CUDA_STEP_PICK : KILN_CUDA_STEP_PLACE;
        int64_t targets = ceil_div(e.outer * e.inner, threads), placed = ceil_div(e.outer * e.n * e.inner, threads * 4);
        s->units = pick || targets > placed ? targets : placed;
    }
    bool ok = true;
    for (int i = 0; ok && i < k->nin; i++)
        ok = add_pointer(chain, &k->in[i]);
    return ok && add_pointer(chain, &k->out[0]);
}

/* The data, the table or nothing, the batch; scalars stay the doubles they are. */
static bool make_samples(kiln_cuda_chain *chain, kiln_cuda_step *s, const kiln_cuda_call *c)
{
    const kiln_kernel *k = c->kernel;
    const kiln_operand nothing = {.buffer = -1};
    s->kind = KILN_CUDA_STEP_SAMPLES;
    kiln_cuda_samples_describe(c, &s->samples);
    int64_t blocks = ceil_div(s->samples.rows * s->samples.units, KILN_CUDA_CHAIN_THREADS / 2);
    s->units = blocks < KILN_CUDA_TILE_BLOCKS ? blocks : KILN_CUDA_TILE_BLOCKS; /* each finds its rows first */
    for (int i = 0; i < KILN_SAMPLES_SCALARS; i++) {
        if (!KILN_GROW(chain->words, chain->words_capacity, chain->nwords + 1))
            return false;
        chain->words[chain->nwords++] = (kiln_cuda_word){.scalar = k->scalars + i, .cls = KILN_PW_F64};
    }
    return add_pointer(chain, &k->in[0]) && add_pointer(chain, k->nin > 1 ? &k->in[1] : &nothing) &&
           add_pointer(chain, &k->out[0]);
}

static bool make_step(kiln_cuda_chain *chain, const kiln_cuda_call *c, int32_t kernel)
{
    const kiln_kernel *k = c->kernel;
    kiln_cuda_step *s = add_step(chain, kernel, kiln_cuda_writes_slot(chain->plan, k));
    if (!s)
        return false;
    if (k->op && k->op->cls == KILN_CLASS_MATMUL)
        return make_product(chain, s, c);
    if (k->group)
        return make_group(chain, s, c);
    return is(k, "take_samples") ? make_samples(chain, s, c) : make_rows(chain, s, c);
}

/* ---- Making ---- */

/* Between units a block waits for all its threads, within one they need not wait for each other. */
static void limit_units(kiln_cuda_step *s)
{
    bool goes_on = s->kind == KILN_CUDA_STEP_MAP || s->kind == KILN_CUDA_STEP_ROWS ||
                   s->kind == KILN_CUDA_STEP_SOFTMAX || s->kind == KILN_CUDA_STEP_FIND ||
                   s->kind == KILN_CUDA_STEP_PICK || s->kind == KILN_CUDA_STEP_PLACE;
    if (goes_on && s->units > MOST_UNITS)
        s->units = MOST_UNITS;
}

static bool make_steps(kiln_cuda_chain *chain, const kiln_cuda_call *c)
{
    for (int32_t i = chain->first; i < chain->end; i++) {
        kiln_cuda_call one;
        kiln_cuda_make_call(&one, c->device, c->plan, &c->plan->kernels[i], c->binding,
                            (double *)(uintptr_t)c->scalars);
        if (!make_step(chain, &one, i))
            return false;
    }
    for (int64_t i = 0; i < chain->nsteps; i++)
        limit_units(&chain->steps[i]);
    return true;
}

/* Scalars are words of the parameters, or one word says where they are. */
static bool make_multirun(kiln_cuda_chain *chain)
{
    return kiln_cuda_multirun_init(&chain->multirun, sizeof(kiln_cuda_chain_parameters), chain->npointers,
                                   chain->alone ? chain->nwords : 1, chain->alone ? kiln_cuda_runs_wanted() : 1);
}

kiln_cuda_chain *kiln_cuda_chain_new(const kiln_cuda_call *c, const kiln_cuda_waits *w, int32_t first, int32_t end,
                                     unsigned long long *barrier)
{
    kiln_cuda_chain *chain = kiln_alloc_zero(1, sizeof *chain);
    if (!chain)
        return NULL;
    chain->plan = c->plan;
    chain->first = first;
    chain->end = end;
    chain->alone = first == 0 && end == c->plan->nkernels;
    chain->barrier = barrier;
    chain->shared = FOLDING; /* what folding takes */
    if (make_steps(chain, c) && kiln_cuda_chain_arrange(chain, w) && make_multirun(chain)) {
        kiln_cuda_chain_look_ahead(chain);
        return chain;
    }
    kiln_cuda_chain_free(chain);
    return NULL;
}

void kiln_cuda_chain_free(kiln_cuda_chain *chain)
{
    if (!chain)
        return;
    for (int64_t i = 0; i < chain->nsteps; i++)
        kiln_free(chain->steps[i].group);
    kiln_free(chain->steps);
    kiln_free(chain->pointers);
    kiln_free(chain->words);
    kiln_free(chain->text);
    kiln_cuda_multirun_free(&chain->multirun);
    kiln_free(chain);
}

/* ---- Its kernel ---- */

bool kiln_cuda_chain_kernel(kiln_cuda_device *d, kiln_cuda_chain *chain, const void **kernel)
{
    *kernel = NULL;
    if (kiln_cuda_compiles() == 0 || !chain->multirun.most)
        return true;
    if (!chain->text && !(chain->text = kiln_cuda_chain_text(chain)))
        return false;
    return kiln_cuda_codegen_find(d, chain->text, true, kernel) &&
           (!*kernel || kiln_cuda_ok(d,
                                     cudaKernelSetAttributeForDevice((cudaKernel_t)(uintptr_t)*kernel,
                                                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                                     (int)chain->shared, d->index),
                                     "shared memory is too small for a chain"));
}
