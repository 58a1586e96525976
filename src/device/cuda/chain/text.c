/* The text of a chain: a struct for each group (group/text.c), and a kernel that goes through the waves. */
#include "device/cuda/chain/alike.h"

typedef kiln_cuda_author author;

#define say(a, ...) kiln_cuda_say(&(a)->w, __VA_ARGS__)
#define LL(x)       ((long long)(x))

kiln_cuda_naming kiln_cuda_naming_of(const author *a, const kiln_cuda_link *l)
{
    return (kiln_cuda_naming){.number = kiln_cuda_link_number(a, l),
                              .places = a->shared ? NULL : a->chain->places + l->pointers,
                              .view = a->shared != NULL,
                              .words = a->chain->alone ? l->words : -1,
                              .first_scalar = kiln_cuda_first_scalar(a->chain, l),
                              .first_at = a->shared ? 0 : kiln_cuda_scalars_before(a->chain, l),
                              .whole = l->kind->full_cells(l),
                              .product = l->kind->tiles};
}

void kiln_cuda_say_link_program(author *a, const kiln_cuda_link *l)
{
    say(a, "const program%d m = ", kiln_cuda_link_number(a, l));
    kiln_cuda_say_members(&a->w, l->group, kiln_cuda_naming_of(a, l));
    say(a, "; ");
}

/* ---- Declarations ---- */

/* As multirun.h lays them out. Steps see those of their run. */
static void say_parameters(author *a)
{
    const kiln_cuda_chain *c = a->chain;
    int firsts = kiln_cuda_scalars_before(c, c->links + c->nlinks);
    kiln_cuda_say_dtypes(&a->w);
    say(a, "#include \"device/cuda/chain/links.cuh\"\n\n");
    if (!c->alone) {
        say(a, "struct parameters { kiln_cuda_chain_parameters c; void *data[%lld]; const double *scalars; ",
            LL(c->nplaces));
        if (firsts)
            say(a, "uint64_t first[%d]; ", firsts);
        say(a, "};\n");
        return;
    }
    say(a, "struct multirun { kiln_cuda_chain_parameters c; void *data[%d][%lld]; ", c->multirun.most_sets,
        LL(c->nplaces));
    if (c->nwords)
        say(a, "uint64_t words[%d][%lld]; ", c->multirun.most, LL(c->nwords));
    say(a, "uint8_t set[%d]; };\n", c->multirun.most);
    say(a, "struct parameters { kiln_cuda_chain_parameters c; void *const *data; const uint64_t *words; };\n");
}

/* ---- Links ---- */

/* As block `unit` of all the link's, or as the only one; in a strand of slabs its block takes those of one slab. */
static void say_link(author *a, const kiln_cuda_link *l, int64_t first)
{
    char unit[32], seat[64];
    bool alone = l->strand >= 0 && !l->slab;
    snprintf(unit, sizeof unit, "u - %lldL", LL(first));
    if (alone)
        snprintf(seat, sizeof seat, "seat{0, 1, 0}");
    else
        snprintf(seat, sizeof seat, "seat{u - %lldL, %lldL, %lldL}", LL(first), LL(l->units),
                 LL(l->slab ? kiln_cuda_slab_items(a->chain, l) : 0));
    say(a, l->guarded && !l->kind->checks ? "if (!stopped) { " : "{ ");
    l->kind->text(a, l, &(kiln_cuda_seat){unit, seat, alone});
    say(a, "}\n");
}

/* ---- Waves ---- */

static void say_strand(author *a, int64_t begin, int64_t first)
{
    const kiln_cuda_chain *c = a->chain;
    for (int64_t i = begin; i < c->nlinks; i++)
        if (c->links[i].wave == c->links[begin].wave && c->links[i].strand == c->links[begin].strand) {
            say(a, "            ");
            say_link(a, &c->links[i], first);
            say(a, "            __syncthreads();\n");
        }
}

/* The members of a wave follow each other in the order in which blocks take their units. */
static void say_units(author *a, const kiln_cuda_alike *alike, int32_t wave)
{
    const kiln_cuda_chain *c = a->chain;
    int64_t units = 0;
    for (int64_t i = kiln_cuda_next_member(c, wave, -1); i >= 0; i = kiln_cuda_next_member(c, wave, i)) {
        int64_t first = units, together = kiln_cuda_count_alike(alike, c, i);
        if (!together)
            continue;
        units += together * kiln_cuda_member_units(c, i);
        say(a, "        %sif (u < %lldL) {\n", first > 0 ? "else " : "", LL(units));
        if (alike->like[i] >= 0)
            kiln_cuda_say_alike(a, alike, &c->links[i], first);
        else if (c->links[i].strand >= 0)
            say_strand(a, i, first);
        else {
            say(a, "            ");
            say_link(a, &c->links[i], first);
        }
        say(a, "        }\n");
    }
    say(a, "        __syncthreads();\n    }\n");
}

/* Dealt as parameters.h says. */
static void say_wave(author *a, const kiln_cuda_alike *alike, int32_t wave)
{
    say(a,
        "    for (int64_t u = blockIdx.x, step = KILN_CUDA_FIRST_STEP(blockIdx.x, gridDim.x); u < %lldL;\n"
        "         u += step, step = KILN_CUDA_NEXT_STEP(step, gridDim.x)) {\n",
        LL(kiln_cuda_wave_units(a->chain, wave)));
    say_units(a, alike, wave);
}

/* By the last blocks, which have nothing to do in this wave and the next one. The last run has no next one to gather
 * for. */
static void say_gathering_ahead(author *a, const kiln_cuda_alike *alike)
{
    say(a,
        "    if (run + 1 < all.c.runs) {\n"
        "    const parameters next = {k.c, all.data[all.set[run + 1]], all.words[run + 1]}, &k = next;\n"
        "    for (int64_t u = gridDim.x - 1 - blockIdx.x; u < %lldL; u += gridDim.x) {\n",
        LL(kiln_cuda_wave_units(a->chain, 0)));
    say_units(a, alike, 0);
    say(a, "    }\n");
}

/* What is gathered ahead is waited for at the next barrier only: blocks come to this one before. */
static void say_barrier(author *a, const kiln_cuda_alike *alike, int32_t wave)
{
    if (wave == 0 || wave != a->chain->prefetch) {
        say(a, "    stopped = barrier(k.c, %d, stopped);\n", wave + 1);
        return;
    }
    say(a, "    arrive(k.c);\n");
    say_gathering_ahead(a, alike);
    say(a, "    stopped = wait_for_all(k.c, %d, stopped);\n", wave + 1);
}

static void say_waves(author *a, const kiln_cuda_alike *alike)
{
    const kiln_cuda_chain *c = a->chain;
    for (int wave = 0; wave < c->nwaves; wave++) {
        bool gathered = c->prefetch && wave == 0;
        if (gathered)
            say(a, "    if (run == 0) {\n");
        say_wave(a, alike, wave);
        if (wave + 1 < c->nwaves)
            say_barrier(a, alike, wave);
        if (gathered)
            say(a, "    }\n");
    }
}

/* One run after the other, with a barrier between them as between waves. Where batches are gathered ahead only the
 * first has a first wave. */
static void say_runs(author *a, const kiln_cuda_alike *alike)
{
    const kiln_cuda_chain *c = a->chain;
    say(a,
        "#pragma unroll 1\n    for (unsigned run = 0; run < all.c.runs; run++) {\n"
        "    const parameters k = {begin_run(all.c, run, %d), all.data[all.set[run]], %s};\n",
        c->prefetch ? c->nwaves - 1 : c->nwaves, c->nwords ? "all.words[run]" : "0");
    if (c->ncounts) /* those of the run before, for the one behind this one */
        say(a, "    if (blockIdx.x == 0 && threadIdx.x < %d)\n        all.c.counts[(run + 1) & 1][threadIdx.x] = 0;\n",
            c->ncounts);
    say_waves(a, alike);
    say(a, "    if (run + 1 < all.c.runs)\n        stopped = barrier(k.c, %d, stopped);\n    }\n", c->nwaves);
}

/* What stands before the kernel. */
static void say_declarations(author *a, const kiln_cuda_alike *alike)
{
    for (int64_t i = 0; i < a->chain->nlinks; i++) {
        const kiln_cuda_link *l = &a->chain->links[i];
        if (alike->like[i] == i)
            kiln_cuda_declare_alike(a, alike, l);
        if (alike->like[i] >= 0)
            continue;
        if (l->group)
            kiln_cuda_say_program(&a->w, l->group, kiln_cuda_naming_of(a, l));
        if (l->kind->declare)
            l->kind->declare(a, l);
    }
}

char *kiln_cuda_chain_text(const kiln_cuda_chain *chain)
{
    author a = {.chain = chain};
    kiln_cuda_alike alike;
    if (!kiln_cuda_find_alike(&alike, chain)) {
        kiln_cuda_free_alike(&alike);
        return NULL;
    }
    say_parameters(&a);
    say_declarations(&a, &alike);
    say(&a,
        "\nextern \"C\" __global__ void __launch_bounds__(%d, 1) kiln_generated(const __grid_constant__ %s)\n{\n"
        "    extern __shared__ __align__(%d) uint64_t scratch[];\n    bool stopped = begin(%s);\n",
        KILN_CUDA_CHAIN_THREADS, chain->alone ? "multirun all" : "parameters k", KILN_CUDA_TILE_ALIGN,
        chain->alone ? "all.c" : "k.c");
    if (chain->alone)
        say_runs(&a, &alike);
    else
        say_waves(&a, &alike);
    say(&a, "}\n");
    kiln_cuda_free_alike(&alike);
    return kiln_cuda_written(&a.w);
}
