/* Chains: their links are made here, by their kinds (links/). Their order is set by waves.c. */
#include "device/cuda/chain/link.h"
#include <string.h>
#include "core/alloc.h"
#include "device/cuda/compile/codegen.h"
#include "device/cuda/dispatch/call.h"

enum {
    MOST_BYTES = 48 << 20, /* that a kernel moves: above, launching it by itself costs little */
    MOST_UNITS = 264,      /* of a link whose threads go on with the next elements by themselves: two a block */
    FOLDING = 16 * 1024,   /* bytes of shared memory that reductions take */
};

/* ---- Kinds ---- */

extern const kiln_cuda_link_kind kiln_cuda_link_product, kiln_cuda_link_group_kind, kiln_cuda_link_samples,
    kiln_cuda_link_softmax, kiln_cuda_link_find, kiln_cuda_link_pick, kiln_cuda_link_place;

const kiln_cuda_link_kind *const kiln_cuda_link_kinds[] = {
    &kiln_cuda_link_product, &kiln_cuda_link_group_kind, &kiln_cuda_link_samples, &kiln_cuda_link_softmax,
    &kiln_cuda_link_find,    &kiln_cuda_link_pick,       &kiln_cuda_link_place,   NULL};

static const kiln_cuda_link_kind *kind_of(const kiln_cuda_call *c, bool large)
{
    for (const kiln_cuda_link_kind *const *kind = kiln_cuda_link_kinds; *kind; kind++)
        if ((*kind)->can(c, large))
            return *kind;
    return NULL;
}

bool kiln_cuda_can_chain(const kiln_cuda_call *c, bool large)
{
    const kiln_cuda_link_kind *kind = kind_of(c, large);
    return kind && (kind->tiles || c->kernel->bytes <= MOST_BYTES); /* products have limits of their own */
}

/* ---- What links have ---- */

bool kiln_cuda_add_pointer(kiln_cuda_chain *chain, const kiln_operand *o)
{
    if (!KILN_GROW(chain->pointers, chain->pointers_capacity, chain->npointers + 1))
        return false;
    int64_t bytes = o->offset * (int64_t)kiln_dtype_size((kiln_dtype)o->dtype);
    chain->pointers[chain->npointers++] = (kiln_cuda_pointer){.buffer = o->buffer, .bytes = bytes};
    return true;
}

bool kiln_cuda_add_operands(kiln_cuda_chain *chain, const kiln_kernel *k)
{
    bool ok = true;
    for (int i = 0; ok && i < k->nin; i++)
        ok = kiln_cuda_add_pointer(chain, &k->in[i]);
    return ok && kiln_cuda_add_pointer(chain, &k->out[0]);
}

bool kiln_cuda_add_word(kiln_cuda_chain *chain, kiln_cuda_word word)
{
    if (!KILN_GROW(chain->words, chain->words_capacity, chain->nwords + 1))
        return false;
    chain->words[chain->nwords++] = word;
    return true;
}

/* A group's loads and stores, in the order its program numbers them; then the reduction's result and partial sums. */
static bool add_group_pointers(kiln_cuda_chain *chain, const kiln_kernel *k)
{
    const kiln_group *g = k->group;
    const kiln_operand nothing = {.buffer = -1}, workspace = {.buffer = k->workspace};
    bool ok = true;
    for (int i = 0; ok && i < g->nloads; i++)
        ok = kiln_cuda_add_pointer(chain, &g->loads[i]);
    if (g->head >= 0)
        ok = ok && kiln_cuda_add_pointer(chain, &nothing);
    for (int i = 0; ok && i < g->nstores; i++)
        ok = kiln_cuda_add_pointer(chain, &g->stores[i].to);
    if (g->reduces)
        ok = ok && kiln_cuda_add_pointer(chain, &g->reduce_to) && kiln_cuda_add_pointer(chain, &workspace);
    return ok;
}

static bool add_words(kiln_cuda_chain *chain, const kiln_cuda_lowered *g)
{
    const kiln_cuda_op *ops = (const kiln_cuda_op *)(const void *)g->k.body;
    for (int i = 0; i < g->k.p.nops; i++)
        for (int s = 0; s < ops[i].nscalars; s++)
            if (!kiln_cuda_add_word(chain, (kiln_cuda_word){ops[i].scalars + s, (uint8_t)(ops[i].code - KILN_CUDA_ROW),
                                                            ops[i].row == KILN_PW_iota}))
                return false;
    return true;
}

bool kiln_cuda_link_group(kiln_cuda_chain *chain, kiln_cuda_link *l, const kiln_cuda_call *c)
{
    l->group = kiln_alloc_zero(1, sizeof *l->group);
    return l->group && kiln_cuda_lower_group(l->group, c, c->kernel->group, NULL) && add_words(chain, l->group) &&
           add_group_pointers(chain, c->kernel);
}

kiln_cuda_link *kiln_cuda_add_link(kiln_cuda_chain *chain, const kiln_cuda_link_kind *kind, int32_t kernel,
                                   bool guarded)
{
    if (!KILN_GROW(chain->links, chain->links_capacity, chain->nlinks + 1))
        return NULL;
    kiln_cuda_link *l = &chain->links[chain->nlinks++];
    *l = (kiln_cuda_link){.kind = kind,
                          .kernel = kernel,
                          .guarded = guarded,
                          .pointers = (int)chain->npointers,
                          .words = (int)chain->nwords};
    return l;
}

/* ---- What several kinds ask ---- */

kiln_cuda_around kiln_cuda_around_dim(const kiln_operand *x, int64_t dim)
{
    kiln_cuda_around e = {1, 1, 1};
    for (int d = 0; d < x->ndim; d++)
        *(d < dim ? &e.outer : d == dim ? &e.n : &e.inner) *= x->shape[d];
    return e;
}

bool kiln_cuda_is_float(const kiln_kernel *k, const char *op)
{
    return k->op && strcmp(k->op->name, op) == 0 && k->nin &&
           (k->in[0].dtype == KILN_F32 || k->in[0].dtype == KILN_F16 || k->in[0].dtype == KILN_BF16);
}

bool kiln_cuda_cut_rows(const kiln_operand *x, int64_t dim, kiln_cuda_cut *c)
{
    kiln_cuda_around e = kiln_cuda_around_dim(x, dim);
    *c = (kiln_cuda_cut){.rows = e.outer};
    return e.inner == 1;
}

/* ---- Making ---- */

/* Between units a block waits for all its threads, within one they need not wait for each other. */
static void limit_units(kiln_cuda_link *l)
{
    if (l->kind->goes_on && l->units > MOST_UNITS)
        l->units = MOST_UNITS;
}

static bool make_link(kiln_cuda_chain *chain, const kiln_cuda_call *c, int32_t kernel)
{
    const kiln_cuda_link_kind *kind = kind_of(c, true);
    kiln_cuda_link *l = kiln_cuda_add_link(chain, kind, kernel, kiln_cuda_writes_slot(chain->plan, c->kernel));
    return l && kind->make(chain, l, c);
}

static bool make_links(kiln_cuda_chain *chain, const kiln_cuda_call *c)
{
    for (int32_t i = chain->first; i < chain->end; i++) {
        kiln_cuda_call one;
        if (!c->plan->kernels[i].op && !c->plan->kernels[i].group)
            continue; /* a cast that all read through (launch/casts.h) */
        kiln_cuda_make_call(&one, c->device, c->plan, &c->plan->kernels[i], c->binding,
                            (double *)(uintptr_t)c->scalars);
        if (!make_link(chain, &one, i))
            return false;
    }
    for (int64_t i = 0; i < chain->nlinks; i++)
        limit_units(&chain->links[i]);
    return true;
}

static int64_t words_end(const kiln_cuda_chain *chain, const kiln_cuda_link *l)
{
    return l + 1 < chain->links + chain->nlinks ? l[1].words : chain->nwords;
}

bool kiln_cuda_has_scalars(const kiln_cuda_chain *chain, const kiln_cuda_link *l)
{
    return l->words < words_end(chain, l);
}

int32_t kiln_cuda_first_scalar(const kiln_cuda_chain *chain, const kiln_cuda_link *l)
{
    int32_t first = INT32_MAX;
    for (int64_t i = l->words; i < words_end(chain, l); i++)
        first = chain->words[i].scalar < first ? chain->words[i].scalar : first;
    return first < INT32_MAX ? first : 0;
}

int kiln_cuda_scalars_before(const kiln_cuda_chain *chain, const kiln_cuda_link *l)
{
    int n = 0;
    for (const kiln_cuda_link *before = chain->links; before < l; before++)
        n += kiln_cuda_has_scalars(chain, before);
    return n;
}

static int64_t find_place(const kiln_cuda_chain *chain, const kiln_cuda_pointer *p)
{
    for (int64_t i = 0; i < chain->nplaces; i++) {
        const kiln_cuda_pointer *other = &chain->pointers[chain->firsts[i]];
        if (other->buffer == p->buffer && other->bytes == p->bytes)
            return i;
    }
    return chain->nplaces;
}

/* All parameters are copied with each launch: addresses that several links use are there once. */
static bool find_places(kiln_cuda_chain *chain)
{
    chain->places = kiln_alloc((size_t)chain->npointers + 1, sizeof *chain->places);
    chain->firsts = kiln_alloc((size_t)chain->npointers + 1, sizeof *chain->firsts);
    if (!chain->places || !chain->firsts)
        return false;
    for (int64_t i = 0; i < chain->npointers; i++) {
        int64_t place = find_place(chain, &chain->pointers[i]);
        chain->places[i] = (int)place;
        if (place == chain->nplaces)
            chain->firsts[chain->nplaces++] = (int32_t)i;
    }
    return true;
}

/* Scalars are words of the parameters, or one word says where they are, and one for each link that has any which its
 * first one is. */
static bool make_multirun(kiln_cuda_chain *chain)
{
    return kiln_cuda_multirun_init(&chain->multirun, sizeof(kiln_cuda_chain_parameters), chain->nplaces,
                                   chain->alone ? chain->nwords
                                                : 1 + kiln_cuda_scalars_before(chain, chain->links + chain->nlinks),
                                   chain->alone ? kiln_cuda_runs_wanted() : 1);
}

kiln_cuda_chain *kiln_cuda_chain_new(const kiln_cuda_call *c, const kiln_cuda_waits *w, int32_t first, int32_t end,
                                     unsigned long long *barrier)
{
    kiln_cuda_chain *chain = kiln_alloc_zero(1, sizeof *chain);
    if (!chain)
        return NULL;
    chain->plan = c->plan;
    chain->costs = c->costs;
    chain->first = first;
    chain->end = end;
    chain->alone = first == 0 && end == c->plan->nkernels;
    chain->barrier = barrier;
    chain->shared = FOLDING; /* what folding takes */
    if (make_links(chain, c) && find_places(chain) && kiln_cuda_chain_arrange(chain, w) && make_multirun(chain)) {
        kiln_cuda_chain_counts(chain);
        kiln_cuda_chain_prefetch(chain);
        return chain;
    }
    kiln_cuda_chain_free(chain);
    return NULL;
}

void kiln_cuda_chain_free(kiln_cuda_chain *chain)
{
    if (!chain)
        return;
    for (int64_t i = 0; i < chain->nlinks; i++)
        kiln_free(chain->links[i].group);
    kiln_free(chain->links);
    kiln_free(chain->pointers);
    kiln_free(chain->places);
    kiln_free(chain->firsts);
    kiln_free(chain->words);
    kiln_free(chain->text);
    kiln_cuda_multirun_free(&chain->multirun);
    kiln_free(chain);
}

void kiln_cuda_chain_own(kiln_cuda_chain *chain, int32_t buffer, size_t at)
{
    for (int64_t i = 0; i < chain->npointers; i++)
        if (chain->pointers[i].buffer == buffer)
            chain->pointers[i].own = (int64_t)at + 1;
}

/* ---- Its kernel ---- */

/* In bytes: what its kernels move, and what could be moved while they are launched. */
static double work_of(const kiln_cuda_chain *chain)
{
    double bytes = 0;
    for (int64_t i = 0; i < chain->nlinks; i++)
        bytes += (double)chain->plan->kernels[chain->links[i].kernel].bytes + KILN_CUDA_LAUNCH_WORK;
    return bytes;
}

bool kiln_cuda_chain_kernel(kiln_cuda_device *d, kiln_cuda_chain *chain, const void **kernel)
{
    *kernel = NULL;
    if (kiln_cuda_compiles() == 0 || !chain->multirun.most)
        return true;
    if (!chain->text && !(chain->text = kiln_cuda_chain_text(chain)))
        return false;
    return kiln_cuda_codegen_find(d, chain->text, chain->alone, work_of(chain), kernel) &&
           (!*kernel || kiln_cuda_ok(d,
                                     cudaKernelSetAttributeForDevice((cudaKernel_t)(uintptr_t)*kernel,
                                                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                                     (int)chain->shared, d->index),
                                     "shared memory is too small for a chain"));
}
