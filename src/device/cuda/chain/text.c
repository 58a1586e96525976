/* The text of a chain: a struct for each group (group/text.c), and a kernel that goes through the waves. */
#include <string.h>
#include "device/cuda/chain/chain.h"
#include "device/cuda/group/text.h"

typedef struct author {
    kiln_cuda_writer w;
    const kiln_cuda_chain *chain;
} author;

#define say(a, ...) kiln_cuda_say(&(a)->w, __VA_ARGS__)
#define LL(x)       ((long long)(x))

static const kiln_kernel *kernel_of(const author *a, const kiln_cuda_step *s)
{
    return &a->chain->plan->kernels[s->kernel];
}

/* Whether elements always come in full cells, so that the code for parts of one can be left out. */
static bool in_full_cells(const kiln_cuda_step *s)
{
    const kiln_cuda_program *p = &s->group->k.p;
    if (s->kind == KILN_CUDA_STEP_PRODUCT)
        return s->product.n % 4 == 0;
    if (s->kind == KILN_CUDA_STEP_MAP)
        return p->count % (s->group->wide ? 2 : 4) == 0;
    return (p->r.inner > 1 ? p->r.inner : p->r.reduced) % 4 == 0;
}

static kiln_cuda_naming naming_of(const author *a, const kiln_cuda_step *s)
{
    return (kiln_cuda_naming){.number = s->kernel,
                              .pointers = s->pointers,
                              .words = a->chain->alone ? s->words : -1,
                              .whole = in_full_cells(s),
                              .product = s->kind == KILN_CUDA_STEP_PRODUCT};
}

/* ---- Declarations ---- */

/* As multirun.h lays them out. Steps see those of their run. */
static void say_parameters(author *a)
{
    const kiln_cuda_chain *c = a->chain;
    kiln_cuda_say_dtypes(&a->w);
    say(a, "#include \"device/cuda/chain/steps.cuh\"\n\n");
    if (!c->alone) {
        say(a, "struct parameters { kiln_cuda_chain_parameters c; void *data[%lld]; const double *scalars; };\n",
            LL(c->npointers));
        return;
    }
    say(a, "struct multirun { kiln_cuda_chain_parameters c; void *data[%d][%lld]; ", c->multirun.most_sets,
        LL(c->npointers));
    if (c->nwords)
        say(a, "uint64_t words[%d][%lld]; ", c->multirun.most, LL(c->nwords));
    say(a, "uint8_t set[%d]; };\n", c->multirun.most);
    say(a, "struct parameters { kiln_cuda_chain_parameters c; void *const *data; const uint64_t *words; };\n");
}

/* Where a product's addresses are: a, b and, without a group, the result. */
static int product_pointers(const kiln_cuda_step *s)
{
    return s->pointers + (s->group ? s->group->k.p.nloads + s->group->k.p.nstores : 0);
}

/* A product's sizes are constants, so that its tiles know them. */
static void say_shape(author *a, const kiln_cuda_step *s)
{
    const kiln_cuda_matrices *m = &s->product;
    const kiln_cuda_pointer *p = a->chain->pointers + product_pointers(s);
    say(a,
        "struct shape%d { const float *a, *b; static constexpr int64_t m = %lldL, n = %lldL, k = %lldL, a_row = %lldL, "
        "a_col = %lldL, b_row = %lldL, b_col = %lldL, a_matrix = %lldL, b_matrix = %lldL; "
        "static constexpr bool aligned = %s; };\n",
        s->kernel, LL(m->m), LL(m->n), LL(m->k), LL(m->a_row), LL(m->a_col), LL(m->b_row), LL(m->b_col),
        LL(m->a_matrix), LL(m->b_matrix), p[0].bytes % 16 == 0 && p[1].bytes % 16 == 0 ? "true" : "false");
}

/* ---- Steps ---- */

static void say_program(author *a, const kiln_cuda_step *s)
{
    say(a, "const program%d m = ", s->kernel);
    kiln_cuda_say_members(&a->w, s->group, naming_of(a, s));
    say(a, "; ");
}

/* A reduction, or its second half, which has its addresses from the first. */
static void say_reduction(author *a, const kiln_cuda_step *s, const char *seat)
{
    bool second = s->kind == KILN_CUDA_STEP_COMBINE;
    const kiln_cuda_program *p = &(second ? s - 1 : s)->group->k.p;
    const kiln_cuda_reduction *r = &p->r;
    int to = s->pointers + p->nloads + p->nstores;
    char partials[32] = "0";
    if (r->chunks > 1)
        snprintf(partials, sizeof partials, "k.data[%d]", to + 1);
    say(a,
        "const kiln_cuda_reduction r = {%lldL, %lldL, %lldL, %lldL, %lldL, 0, %d, %d, %d, %d, %d, (uint64_t *)%s, "
        "k.data[%d], 0}; ",
        LL(r->outer), LL(r->reduced), LL(r->inner), LL(r->chunk), LL(r->chunks), r->cls, r->fold, r->dtype, r->lanes,
        r->threads, partials, to);
    if (second) {
        say(a, "combine(r, scratch, %s); ", seat);
        return;
    }
    say_program(a, s);
    say(a, "%s(r, m, %s); ", s->kind == KILN_CUDA_STEP_ROWS ? "rows" : "columns", seat);
}

/* Where a product's elements go; `at`: its pointers. */
static void say_sink(author *a, const kiln_cuda_step *s, int at)
{
    if (s->group)
        say(a, "group_sink<program%d>{m}", s->kernel);
    else
        say(a, "plain_sink<%s>{(float *)k.data[%d]}",
            s->product.n % 4 == 0 && a->chain->pointers[at + 2].bytes % 16 == 0 ? "true" : "false", at + 2);
}

static void say_product(author *a, const kiln_cuda_step *s, const char *unit)
{
    const kiln_cuda_tiling *t = &s->tiling;
    int at = product_pointers(s);
    say(a, "const shape%d p = {(const float *)k.data[%d], (const float *)k.data[%d]}; ", s->kernel, at, at + 1);
    if (s->group && t->cuts == 1)
        say_program(a, s);
    say(a, "kiln_cuda_tile<%d, %d, %d>(p, %lldL, %d, %s, scratch, ", t->rows, t->cols, t->slices,
        LL(kiln_cuda_tiling_matrices(t)), t->cuts, unit);
    if (t->cuts == 1)
        say_sink(a, s, at);
    else
        say(a, "plain_sink<%s>{(float *)k.data[%d]}", s->product.n % 4 ? "false" : "true", at + (s->group ? 2 : 3));
    say(a, "); ");
}

/* What the product before it left in cuts. */
static void say_join(author *a, const kiln_cuda_step *s, const char *unit, int64_t units)
{
    const kiln_cuda_step *p = s - 1;
    int at = product_pointers(p);
    int64_t count = p->product.m * p->product.n * kiln_cuda_tiling_matrices(&p->tiling);
    if (p->group)
        say_program(a, p);
    say(a,
        "kiln_cuda_join((const float *)k.data[%d], %lldL, %lldL, %d, (%s) * blockDim.x + threadIdx.x, %lldL * "
        "blockDim.x, ",
        at + (p->group ? 2 : 3), LL(count), LL(p->product.n), p->tiling.cuts, unit, LL(units));
    say_sink(a, p, at);
    say(a, "); ");
}

static void say_softmax(author *a, const kiln_cuda_step *s, int64_t rows, int64_t n, const char *seat)
{
    const kiln_kernel *k = kernel_of(a, s);
    const char *log_of = strcmp(k->op->name, "log_softmax") == 0 ? "true" : "false";
    const char *type = k->in[0].dtype == KILN_F16 ? "kiln_f16" : k->in[0].dtype == KILN_BF16 ? "kiln_bf16" : "float";
    const kiln_cuda_pointer *p = a->chain->pointers + s->pointers;
    if (n <= KILN_CUDA_SHORT_ROW)
        say(a, "softmax_short_step<%s>(k.data[%d], k.data[%d], %lldL, %d, %s, %s); ", type, s->pointers,
            s->pointers + 1, LL(rows), (int)n, log_of, seat);
    else
        say(a, "softmax_step<%s, %d, %s>(k.data[%d], k.data[%d], %lldL, %s, %s); ", type, (int)n,
            p[0].bytes % 16 == 0 && p[1].bytes % 16 == 0 ? "true" : "false", s->pointers, s->pointers + 1, LL(rows),
            log_of, seat);
}

static void say_rows(author *a, const kiln_cuda_step *s, const char *seat)
{
    const kiln_kernel *k = kernel_of(a, s);
    int64_t dim = k->ints[0], outer = 1, n = 1, inner = 1;
    const kiln_operand *x = s->kind == KILN_CUDA_STEP_PLACE ? &k->out[0] : &k->in[0];
    for (int d = 0; d < x->ndim; d++)
        *(d < dim ? &outer : d == dim ? &n : &inner) *= x->shape[d];
    if (s->kind == KILN_CUDA_STEP_SOFTMAX) {
        say_softmax(a, s, outer, n, seat);
        return;
    }
    if (s->kind == KILN_CUDA_STEP_FIND) {
        say(a, "find_step(k.data[%d], k.data[%d], %lldL, %d, %s, %s); ", s->pointers, s->pointers + 1, LL(outer),
            (int)n, strcmp(k->op->name, "argmin") == 0 ? "true" : "false", seat);
        return;
    }
    say(a, "%s<float>(picks_in(k.c, %d, k.data[%d], %lldL, %lldL, %lldL, %lldL), k.data[%d], k.data[%d], %s, %s); ",
        s->kind == KILN_CUDA_STEP_PICK ? "pick_step" : "place_step", s->kernel, s->pointers + 1, LL(outer), LL(n),
        LL(inner), LL(k->ints[1]), s->pointers, s->pointers + 2, s->guarded ? "!stopped" : "true", seat);
}

static void say_samples(author *a, const kiln_cuda_step *s, const char *unit)
{
    const kiln_cuda_samples *q = &s->samples;
    char scalars[48];
    if (a->chain->alone)
        snprintf(scalars, sizeof scalars, "(const double *)(k.words + %d)", s->words);
    else
        snprintf(scalars, sizeof scalars, "k.scalars + %d", kernel_of(a, s)->scalars);
    say(a,
        "const kiln_cuda_samples q = {k.data[%d], (const float *)k.data[%d], k.data[%d], %s, {%lldL, %d, %d, %d}, "
        "%lldL, %lldL, %lldL, %lldL, %d, %d, %d, %d, %lldL, %lldL, %lluUL}; ",
        s->pointers, s->pointers + 1, s->pointers + 2, scalars, LL(q->order.n), q->order.low_bits, q->order.high_bits,
        q->order.rounds, LL(q->rows), LL(q->units), LL(q->start), LL(q->distance), q->how, q->width, q->flip, q->crop,
        LL(q->image_height), LL(q->image_width), (unsigned long long)q->blank);
    say(a, "kiln_cuda_take_samples<%s>(q, (kiln_cuda_samples_room *)scratch, %s, %lld, threadIdx.x, blockDim.x); ",
        q->flip || q->crop ? "true" : "false", unit, LL(s->units));
}

/* As block `unit` of all the step's, or as the only one; in a strand of slabs its block takes those of one slab. */
static void say_step(author *a, const kiln_cuda_step *s, int64_t first)
{
    char unit[32], seat[64];
    bool alone = s->strand >= 0 && !s->slab;
    snprintf(unit, sizeof unit, "u - %lldL", LL(first));
    if (alone)
        snprintf(seat, sizeof seat, "seat{0, 1, 0}");
    else
        snprintf(seat, sizeof seat, "seat{u - %lldL, %lldL, %lldL}", LL(first), LL(s->units),
                 LL(s->slab ? kiln_cuda_slab_items(a->chain, s) : 0));
    bool pick = s->kind == KILN_CUDA_STEP_PICK || s->kind == KILN_CUDA_STEP_PLACE;
    say(a, s->guarded && !pick ? "if (!stopped) { " : "{ ");
    switch (s->kind) {
    case KILN_CUDA_STEP_PRODUCT: say_product(a, s, unit); break;
    case KILN_CUDA_STEP_JOIN: say_join(a, s, alone ? "0" : unit, alone ? 1 : s->units); break;
    case KILN_CUDA_STEP_SAMPLES: say_samples(a, s, unit); break;
    case KILN_CUDA_STEP_MAP:
        say_program(a, s);
        say(a, "map(%lldL, m, %s); ", LL(s->group->k.p.count), seat);
        break;
    case KILN_CUDA_STEP_ROWS:
    case KILN_CUDA_STEP_COLUMNS:
    case KILN_CUDA_STEP_COMBINE: say_reduction(a, s, seat); break;
    default: say_rows(a, s, seat);
    }
    say(a, "}\n");
}

/* ---- Waves ---- */

static void say_strand(author *a, int64_t begin, int64_t first)
{
    const kiln_cuda_chain *c = a->chain;
    for (int64_t i = begin; i < c->nsteps; i++)
        if (c->steps[i].wave == c->steps[begin].wave && c->steps[i].strand == c->steps[begin].strand) {
            say(a, "            ");
            say_step(a, &c->steps[i], first);
            say(a, "            __syncthreads();\n");
        }
}

/* The parts of a wave follow each other in the order in which blocks take their units. */
static void say_units(author *a, int32_t wave)
{
    const kiln_cuda_chain *c = a->chain;
    int64_t units = 0;
    for (int64_t i = kiln_cuda_next_part(c, wave, -1); i >= 0; i = kiln_cuda_next_part(c, wave, i)) {
        int64_t first = units;
        units += kiln_cuda_part_units(c, i);
        say(a, "        %sif (u < %lldL) {\n", first > 0 ? "else " : "", LL(units));
        if (c->steps[i].strand >= 0)
            say_strand(a, i, first);
        else {
            say(a, "            ");
            say_step(a, &c->steps[i], first);
        }
        say(a, "        }\n");
    }
    say(a, "        __syncthreads();\n    }\n");
}

/* Dealt as parameters.h says. */
static void say_wave(author *a, int32_t wave)
{
    say(a,
        "    for (int64_t u = blockIdx.x, step = KILN_CUDA_FIRST_STEP(blockIdx.x, gridDim.x); u < %lldL;\n"
        "         u += step, step = KILN_CUDA_NEXT_STEP(step, gridDim.x)) {\n",
        LL(kiln_cuda_wave_units(a->chain, wave)));
    say_units(a, wave);
}

/* By the last blocks, which have nothing to do in this wave and the next one. The last run has no next one to gather
 * for. */
static void say_gathering_ahead(author *a)
{
    say(a,
        "    if (run + 1 < all.c.runs) {\n"
        "    const parameters next = {k.c, all.data[all.set[run + 1]], all.words[run + 1]}, &k = next;\n"
        "    for (int64_t u = gridDim.x - 1 - blockIdx.x; u < %lldL; u += gridDim.x) {\n",
        LL(kiln_cuda_wave_units(a->chain, 0)));
    say_units(a, 0);
    say(a, "    }\n");
}

/* What is gathered ahead is waited for at the next barrier only: blocks come to this one before. */
static void say_barrier(author *a, int32_t wave)
{
    if (wave == 0 || wave != a->chain->prefetch) {
        say(a, "    stopped = barrier(k.c, %d, stopped);\n", wave + 1);
        return;
    }
    say(a, "    arrive(k.c);\n");
    say_gathering_ahead(a);
    say(a, "    stopped = wait_for_all(k.c, %d, stopped);\n", wave + 1);
}

static void say_waves(author *a)
{
    const kiln_cuda_chain *c = a->chain;
    for (int wave = 0; wave < c->nwaves; wave++) {
        bool gathered = c->prefetch && wave == 0;
        if (gathered)
            say(a, "    if (run == 0) {\n");
        say_wave(a, wave);
        if (wave + 1 < c->nwaves)
            say_barrier(a, wave);
        if (gathered)
            say(a, "    }\n");
    }
}

/* One run after the other, with a barrier between them as between waves. Where batches are gathered ahead only the
 * first has a first wave. */
static void say_runs(author *a)
{
    const kiln_cuda_chain *c = a->chain;
    say(a,
        "#pragma unroll 1\n    for (unsigned run = 0; run < all.c.runs; run++) {\n"
        "    const parameters k = {begin_run(all.c, run, %d), all.data[all.set[run]], %s};\n",
        c->prefetch ? c->nwaves - 1 : c->nwaves, c->nwords ? "all.words[run]" : "0");
    say_waves(a);
    say(a, "    if (run + 1 < all.c.runs)\n        stopped = barrier(k.c, %d, stopped);\n    }\n", c->nwaves);
}

char *kiln_cuda_chain_text(const kiln_cuda_chain *chain)
{
    author a = {.chain = chain};
    say_parameters(&a);
    for (int64_t i = 0; i < chain->nsteps; i++) {
        const kiln_cuda_step *s = &chain->steps[i];
        if (s->group)
            kiln_cuda_say_program(&a.w, s->group, naming_of(&a, s));
        if (s->kind == KILN_CUDA_STEP_PRODUCT)
            say_shape(&a, s);
    }
    say(&a,
        "\nextern \"C\" __global__ void __launch_bounds__(%d, 1) kiln_generated(const __grid_constant__ %s)\n{\n"
        "    extern __shared__ __align__(%d) uint64_t scratch[];\n    bool stopped = begin(%s);\n",
        KILN_CUDA_CHAIN_THREADS, chain->alone ? "multirun all" : "parameters k", KILN_CUDA_TILE_ALIGN,
        chain->alone ? "all.c" : "k.c");
    if (chain->alone)
        say_runs(&a);
    else
        say_waves(&a);
    say(&a, "}\n");
    return kiln_cuda_written(&a.w);
}
