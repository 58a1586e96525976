/* A CUDA device that lowers plans and computes nothing: every chain of a plan is written and compiled, for the
 * capabilities that Kiln's own kernels are built for, on a machine that has the compiler and no GPU. It is made of the
 * real plugin's files but device.c. Lowering fails with the compiler's words where a text does not compile; with
 * KILN_CUDA_JIT=0 nothing is compiled. Steps that are one launch are launched, as far as launches.c has it. */
#define KILN_FAKE_PLUGIN
#include <stdlib.h>
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "core/hash.h"
#include "device/cuda/compile/codegen.h"
#include "device/cuda/dispatch/call.h"
#include "device/cuda/gemm/choice.h"
#include "device/cuda/group/around.h"
#include "device/cuda/launch/through.h"
#include "device/cuda/launch/rewrite.h"
#include "device/cuda/group/text.h"
#include "device/cuda/group/program.h"
#include "launches.h"

/* ---- What device.c would be ---- */

kiln_code kiln_cuda_code(kiln_cuda_device *d, cudaError_t e)
{
    (void)d;
    return e == cudaErrorMemoryAllocation ? KILN_E_MEMORY : KILN_E_DEVICE;
}

bool kiln_cuda_ok(kiln_cuda_device *d, cudaError_t e, const char *what)
{
    return e == cudaSuccess || kiln_fail(kiln_cuda_code(d, e), NULL, "%s", what);
}

bool kiln_cuda_has_memory(kiln_cuda_device *d, cudaError_t e)
{
    return kiln_cuda_ok(d, e, "no memory");
}

bool kiln_cuda_enter(kiln_cuda_device *d)
{
    (void)d;
    return true;
}

bool kiln_cuda_idle(kiln_cuda_device *d)
{
    (void)d;
    return true;
}

static int count(char *why, size_t size)
{
    (void)why;
    (void)size;
    return 1;
}

static bool describe(int index, kiln_device_info *info)
{
    (void)index;
    info->memory_total = info->memory_free = UINT64_C(1) << 40;
    return true;
}

static void *open_device(int index)
{
    kiln_cuda_device *d = kiln_alloc_zero(1, sizeof *d);
    if (!d)
        return NULL;
    d->index = index;
    d->multiprocessors = 132;
    d->capability = 90;
    d->costs = kiln_cuda_costs_of(90, 132);
    d->costs = kiln_cuda_costs_of(90, 132);
    if (fake_open(d))
        return d;
    fake_close(d);
    kiln_free(d);
    return NULL;
}

static void close_device(void *dev)
{
    fake_close(dev);
    kiln_free(dev);
}

static kiln_address allocate(void *dev, size_t bytes)
{
    (void)dev;
    return (kiln_address)(uintptr_t)kiln_alloc_aligned(bytes);
}

static void release(void *dev, kiln_address address, size_t bytes)
{
    (void)dev;
    (void)bytes;
    kiln_free((void *)(uintptr_t)address);
}

/* What says that it may find memory when the pool gives some back. */
static uint64_t overhead(void *dev)
{
    (void)dev;
    return 1;
}

static bool flush(kiln_cuda_device *d)
{
    pthread_mutex_lock(&d->lock);
    bool ok = kiln_cuda_stream(d) != NULL;
    pthread_mutex_unlock(&d->lock);
    return ok;
}

static bool copy_in(void *dev, kiln_address to, const void *from, size_t bytes)
{
    if (!flush(dev))
        return false;
    memcpy((void *)(uintptr_t)to, from, bytes);
    return true;
}

static bool copy_out(void *dev, void *to, kiln_address from, size_t bytes)
{
    if (!kiln_cuda_drain(dev))
        return false;
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return true;
}

/* ---- Lowering ---- */

static int texts, chains, groups, whole_steps, slabs, wrong_waves, waves, all_waves, longest, links, chosen, unlike,
    around;

KILN_PLUGIN_API int fake_chains(void);      /* how many were compiled */
KILN_PLUGIN_API int fake_texts(void);       /* how many different ones, of all kinds */
KILN_PLUGIN_API int fake_groups(void);      /* of groups that are in none */
KILN_PLUGIN_API int fake_around(void);      /* of groups around an operation */
KILN_PLUGIN_API int fake_whole_steps(void); /* chains that were a whole plan */
KILN_PLUGIN_API int fake_slabs(void);       /* their steps that are done in slabs */
KILN_PLUGIN_API int fake_waves(void);       /* of the last chain */
KILN_PLUGIN_API int fake_links(void);       /* likewise */
KILN_PLUGIN_API int fake_all_waves(void);   /* of all chains */
KILN_PLUGIN_API int fake_longest(void);     /* text of a chain since it was last asked for, in bytes */
KILN_PLUGIN_API int fake_wrong_waves(void); /* whose parts are not all of their steps, each once, longest first */
KILN_PLUGIN_API int fake_chosen(void); /* products that are to be computed as they were in another plan, by tiles … */
KILN_PLUGIN_API int fake_unlike(void); /* … and kernels that are not computed as they are to be */

int fake_texts(void)
{
    return texts;
}

int fake_chains(void)
{
    return chains;
}

int fake_groups(void)
{
    return groups;
}

int fake_around(void)
{
    return around;
}

int fake_whole_steps(void)
{
    return whole_steps;
}

int fake_slabs(void)
{
    return slabs;
}

int fake_waves(void)
{
    return waves;
}

int fake_all_waves(void)
{
    return all_waves;
}

int fake_longest(void)
{
    int was = longest;
    longest = 0;
    return was;
}

int fake_links(void)
{
    return links;
}

int fake_chosen(void)
{
    return chosen;
}

int fake_unlike(void)
{
    return unlike;
}

int fake_wrong_waves(void)
{
    return wrong_waves;
}

/* Whether the part has the step. */
static bool has(const kiln_cuda_chain *chain, int64_t part, int64_t step)
{
    const kiln_cuda_link *a = &chain->links[part], *b = &chain->links[step];
    return part == step || (a->wave == b->wave && a->strand >= 0 && a->strand == b->strand);
}

static bool is_in_order(const kiln_cuda_chain *chain, int32_t wave)
{
    int64_t units = 0, last = INT64_MAX;
    for (int64_t p = kiln_cuda_next_member(chain, wave, -1); p >= 0; p = kiln_cuda_next_member(chain, wave, p)) {
        int64_t time = kiln_cuda_member_time(chain, p);
        if (time > last || kiln_cuda_member_units(chain, p) < 1)
            return false;
        last = time;
        units += kiln_cuda_member_units(chain, p);
    }
    for (int64_t i = 0; i < chain->nlinks; i++) {
        int parts = 0;
        for (int64_t p = kiln_cuda_next_member(chain, wave, -1); p >= 0; p = kiln_cuda_next_member(chain, wave, p))
            parts += has(chain, p, i);
        if (parts != (chain->links[i].wave == wave))
            return false;
    }
    return units == kiln_cuda_wave_units(chain, wave) && units > 0 && units <= chain->most_units;
}

static bool take(void *context, const void *cubin, size_t bytes)
{
    (void)context;
    (void)cubin;
    return bytes > 0;
}

/* Whether the text is a new one; the texts of a test fit. */
static bool is_new(const char *text)
{
    static uint64_t seen[1024];
    uint64_t hash = 1;
    for (const char *t = text; *t; t++)
        hash = kiln_mix(hash, (unsigned char)*t);
    for (int i = 0; i < texts; i++)
        if (seen[i] == hash)
            return false;
    seen[texts % 1024] = hash;
    return true;
}

static bool compiles(const char *text)
{
    texts += is_new(text);
    return kiln_cuda_compiles() == 0 ||
           (kiln_cuda_compile(text, 80, take, NULL) && kiln_cuda_compile(text, 90, take, NULL));
}

KILN_PLUGIN_API int
fake_compiles(void); /* whether a kernel can be compiled, as a step's is: the compiler is made ready */

static void nothing(void)
{
}

int fake_compiles(void)
{
    static const char text[] = "extern \"C\" __global__ void kiln_generated() {}";
    kiln_cuda_compiler_prepare(text, 90, nothing);
    return compiles(text);
}

static bool compile_group(const kiln_cuda_call *c)
{
    kiln_cuda_lowered *w = kiln_alloc_zero(1, sizeof *w);
    char *text = w && kiln_cuda_lower_group(w, c, c->kernel->group, NULL) ? kiln_cuda_group_text(w) : NULL;
    bool ok = text && compiles(text);
    groups += ok;
    kiln_free(text);
    kiln_free(w);
    return ok;
}

/* Groups around an operation, with it. */
static bool compile_around(const kiln_cuda_call *c)
{
    char *text = kiln_cuda_around_text(c, kiln_cuda_kernel_of(c));
    bool ok = text ? compiles(text) : kiln_ok();
    around += text && ok;
    kiln_free(text);
    return ok;
}

static bool compile_part(const kiln_cuda_call *c, const kiln_cuda_waits *w, const kiln_cuda_part *p)
{
    unsigned long long barrier;
    kiln_cuda_chain *chain = kiln_cuda_chain_new(c, w, p->first, p->end, &barrier);
    char *text = chain ? kiln_cuda_chain_text(chain) : NULL;
    bool ok = text && compiles(text);
    chains += ok;
    whole_steps += ok && chain->alone;
    waves = ok ? chain->nwaves : waves;
    all_waves += ok ? chain->nwaves : 0;
    longest = ok && (int)strlen(text) > longest ? (int)strlen(text) : longest;
    links = ok ? (int)chain->nlinks : links;
    for (int64_t i = 0; ok && i < chain->nlinks; i++)
        slabs += chain->links[i].slab > 0;
    for (int32_t wave = 0; ok && wave < chain->nwaves; wave++)
        wrong_waves += !is_in_order(chain, wave);
    kiln_free(text);
    kiln_cuda_chain_free(chain);
    return ok;
}

/* With addresses that differ, as those of real memory do. */
static bool compile_plan(kiln_cuda_device *d, const kiln_plan *given, kiln_address *addresses, kiln_cuda_part *parts)
{
    kiln_cuda_waits w;
    kiln_plan *through = NULL;
    int64_t n = kiln_cuda_cut(d, given, parts);
    bool ok = kiln_cuda_read_through(given, parts, n, &through);
    const kiln_plan *plan = through ? through : given;
    ok = kiln_cuda_find_waits(&w, plan) && ok;
    for (int32_t i = 0; i < plan->nslots + plan->noutputs; i++)
        addresses[i] = (kiln_address)(i + 2) << 32;
    kiln_binding b = {.slots = addresses, .outputs = addresses + plan->nslots, .arena = (kiln_address)1 << 32};
    for (int64_t i = 0; ok && i < n; i++) {
        kiln_cuda_call c;
        kiln_cuda_make_call(&c, d, plan, &plan->kernels[parts[i].first], &b, NULL);
        if (parts[i].end - parts[i].first > 1)
            ok = compile_part(&c, &w, &parts[i]);
        else if (kiln_cuda_is_around(&c))
            ok = compile_around(&c);
        else if (c.kernel->group && c.kernel->group->head < 0 && c.kernel->group->count > 0)
            ok = compile_group(&c);
    }
    kiln_cuda_free_waits(&w);
    kiln_cuda_plan_free(through);
    return ok;
}

/* What chains need: partial results of groups. Libraries are not asked. */
static size_t workspace(void *dev, const kiln_kernel *k)
{
    bool product = k->op && k->op->cls == KILN_CLASS_MATMUL;
    return k->group && !product ? kiln_cuda_group_workspace(dev, k->group) : 0;
}

/* Compares what was chosen for a plan's kernels with what the device makes of it. */
static bool count_choices(kiln_cuda_device *d, const kiln_plan *plan)
{
    kiln_choice *now = kiln_alloc_zero((size_t)plan->nkernels + 1, sizeof *now);
    bool ok = now && kiln_cuda_choose(d, plan, now);
    for (int64_t k = 0; ok && k < plan->nkernels; k++) {
        const kiln_choice *wanted = &plan->kernels[k].choice;
        chosen += kiln_cuda_way_of(wanted->how) == KILN_CUDA_BY_TILES;
        unlike += (wanted->how && wanted->how != now[k].how) || wanted->by != (wanted->by ? now[k].by : 0);
    }
    kiln_free(now);
    return ok;
}

static void *lower(void *dev, const kiln_plan *plan)
{
    kiln_address *addresses = kiln_alloc((size_t)plan->nslots + (size_t)plan->noutputs + 1, sizeof *addresses);
    kiln_cuda_part *parts = kiln_alloc_zero((size_t)plan->nkernels + 1, sizeof *parts);
    bool ok = addresses && parts && compile_plan(dev, plan, addresses, parts) && count_choices(dev, plan);
    kiln_free(addresses);
    kiln_free(parts);
    return ok ? kiln_cuda_lower(dev, plan) : NULL;
}

static bool run(void *dev, void *exec, const kiln_binding *b)
{
    return fake_run(dev, exec, b);
}

static bool time_run(void *dev, void *exec, const kiln_binding *b, kiln_timing *timing)
{
    return fake_time(dev, exec, b, timing);
}

static bool wait_for_all(void *dev)
{
    return kiln_cuda_drain(dev);
}

static const kiln_device_table table = {.version = KILN_DEVICE_VERSION,
                                        .kind = "cuda",
                                        .runs_on = true,
                                        .counts_products = true,
                                        .roomy = 128 << 20,
                                        .count = count,
                                        .describe = describe,
                                        .open = open_device,
                                        .close = close_device,
                                        .allocate = allocate,
                                        .release = release,
                                        .overhead = overhead,
                                        .copy_in = copy_in,
                                        .copy_out = copy_out,
                                        .supports = kiln_cuda_supports,
                                        .can = kiln_cuda_can,
                                        .workspace = workspace,
                                        .choose = kiln_cuda_choose,
                                        .lower = lower,
                                        .dispose = kiln_cuda_dispose,
                                        .run = run,
                                        .time = time_run,
                                        .wait = wait_for_all};

KILN_PLUGIN_API const kiln_device_table *kiln_device_plugin(void);
const kiln_device_table *kiln_device_plugin(void)
{
    return &table;
}
