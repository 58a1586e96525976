/* Which links are alike: those whose texts are the same once their addresses are numbered by themselves. The text asks
 * a view of its own for addresses, `k.data[0]` and so on, which is filled from the chain's by the table. */
#include "device/cuda/chain/alike.h"
#include <string.h>
#include "core/alloc.h"

#define say(a, ...) kiln_cuda_say(&(a)->w, __VA_ARGS__)
#define LL(x)       ((long long)(x))

/* ---- One by one ---- */

/* The group whose pointers a link has: the second half of a reduction has those of the first. */
static const kiln_cuda_lowered *group_of(const kiln_cuda_link *l)
{
    return l->kind->second ? l[-1].group : l->group;
}

/* Whether no other link goes on with the link's strand: a tiny one may begin a strand and stay alone there. */
static bool is_sole(const kiln_cuda_chain *chain, const kiln_cuda_link *l)
{
    int64_t n = 0;
    for (int64_t i = 0; i < chain->nlinks; i++)
        n += chain->links[i].wave == l->wave && chain->links[i].strand == l->strand;
    return n == 1 && !l->slab;
}

/* Only groups: they touch nothing but their pointers and scalars. In a chain that is the whole plan scalars are words
 * of each run instead. */
static bool can_be_shared(const kiln_cuda_chain *chain, const kiln_cuda_link *l)
{
    return !chain->alone && (l->strand < 0 || is_sole(chain, l)) && !l->kind->tiles && !l->kind->checks && !l->counts &&
           !l->kind->declare && group_of(l);
}

static int pointers_of(const kiln_cuda_link *l)
{
    const kiln_cuda_program *p = &group_of(l)->k.p;
    return p->nloads + p->nstores + (p->shape == KILN_CUDA_MAP ? 0 : 2);
}

/* What a block does of unit `v` of a link, as if it stood alone. */
static void say_body(kiln_cuda_author *a, const kiln_cuda_link *l)
{
    char seat[48] = "seat{0, 1, 0}";
    if (l->strand < 0)
        snprintf(seat, sizeof seat, "seat{v, %lldL, 0}", LL(l->units));
    say(a, l->guarded ? "if (!stopped) { " : "{ ");
    l->kind->text(a, l, &(kiln_cuda_seat){"v", seat, l->strand >= 0});
    say(a, "}\n");
}

static void say_program(kiln_cuda_author *a, const kiln_cuda_link *l)
{
    if (l->group)
        kiln_cuda_say_program(&a->w, l->group, kiln_cuda_naming_of(a, l));
}

/* All that is said of a link, whichever it is. */
static char *text_of(const kiln_cuda_chain *chain, const kiln_cuda_link *l)
{
    kiln_cuda_author a = {.chain = chain, .shared = l, .number = 0};
    say_program(&a, l);
    say_body(&a, l);
    say(&a, "%d\n", pointers_of(l));
    return kiln_cuda_written(&a.w);
}

/* ---- All of them ---- */

static bool compare(kiln_cuda_alike *to, const kiln_cuda_chain *chain, int64_t link)
{
    to->texts[link] = text_of(chain, &chain->links[link]);
    if (!to->texts[link])
        return false;
    to->like[link] = (int32_t)link;
    for (int64_t i = 0; i < chain->nlinks; i++)
        if (i != link && to->like[i] == i && strcmp(to->texts[i], to->texts[link]) == 0) {
            to->like[link] = (int32_t)i;
            to->set[link] = ++to->set[i]; /* of the first: the last line so far */
            break;
        }
    return true;
}

/* A link that no other is like is written by itself; the first of several has the first line. */
static void settle(kiln_cuda_alike *to, const kiln_cuda_chain *chain)
{
    for (int64_t i = 0; i < chain->nlinks; i++) {
        if (to->like[i] == i && to->set[i] == 0)
            to->like[i] = -1;
        if (to->like[i] == i)
            to->set[i] = 0;
    }
}

bool kiln_cuda_find_alike(kiln_cuda_alike *to, const kiln_cuda_chain *chain)
{
    size_t n = (size_t)chain->nlinks + 1;
    *to = (kiln_cuda_alike){kiln_alloc(n, sizeof *to->like), kiln_alloc_zero(n, sizeof *to->set),
                            kiln_alloc_zero(n, sizeof *to->texts)};
    bool ok = to->like && to->set && to->texts;
    for (int64_t i = 0; ok && i < chain->nlinks; i++)
        to->like[i] = -1;
    for (int32_t wave = 0; ok && wave < chain->nwaves; wave++)
        for (int64_t i = kiln_cuda_next_member(chain, wave, -1); ok && i >= 0;
             i = kiln_cuda_next_member(chain, wave, i))
            ok = !can_be_shared(chain, &chain->links[i]) || compare(to, chain, i);
    if (ok)
        settle(to, chain);
    for (int64_t i = 0; to->texts && i < chain->nlinks; i++)
        kiln_free(to->texts[i]);
    kiln_free(to->texts);
    to->texts = NULL;
    return ok;
}

int64_t kiln_cuda_count_alike(const kiln_cuda_alike *alike, const kiln_cuda_chain *chain, int64_t link)
{
    int64_t n = 1;
    for (int64_t i = 0; alike->like[link] >= 0 && i < chain->nlinks; i++) {
        bool other =
            i != link && alike->like[i] == alike->like[link] && chain->links[i].wave == chain->links[link].wave;
        if (other && alike->set[i] < alike->set[link])
            return 0;
        n += other;
    }
    return n;
}

void kiln_cuda_free_alike(kiln_cuda_alike *alike)
{
    kiln_free(alike->like);
    kiln_free(alike->set);
    *alike = (kiln_cuda_alike){0};
}

/* ---- Text ---- */

static int64_t with_set(const kiln_cuda_alike *alike, const kiln_cuda_chain *chain, int32_t like, int32_t set)
{
    for (int64_t i = 0; i < chain->nlinks; i++)
        if (alike->like[i] == like && alike->set[i] == set)
            return i;
    return -1;
}

/* A line a link: its pointers' places, and which of k.first is its own. */
static void say_table(kiln_cuda_author *a, const kiln_cuda_alike *alike, int32_t like)
{
    const kiln_cuda_chain *chain = a->chain;
    int pointers = pointers_of(&chain->links[like]);
    say(a, "static __constant__ const unsigned short table%d[][%d] = {\n", (int)like, pointers + 1);
    for (int32_t set = 0;; set++) {
        int64_t i = with_set(alike, chain, like, set);
        if (i < 0)
            break;
        say(a, "    {");
        for (int p = 0; p < pointers; p++)
            say(a, "%d, ", chain->places[chain->links[i].pointers + p]);
        say(a, "%d},\n", kiln_cuda_scalars_before(chain, &chain->links[i]));
    }
    say(a, "};\n");
}

void kiln_cuda_declare_alike(kiln_cuda_author *a, const kiln_cuda_alike *alike, const kiln_cuda_link *link)
{
    int32_t like = (int32_t)(link - a->chain->links);
    int pointers = pointers_of(link);
    bool scalars = kiln_cuda_has_scalars(a->chain, link);
    say_table(a, alike, like);
    say(a,
        "struct view%d {\n    void *data[%d]; const double *scalars; uint64_t first[1];\n"
        "    __device__ __forceinline__ view%d(const parameters &k, int64_t set) : scalars(k.scalars)\n    {\n",
        (int)like, pointers, (int)like);
    if (scalars)
        say(a, "        first[0] = k.first[table%d[set][%d]];\n", (int)like, pointers);
    say(a, "        _Pragma(\"unroll\") for (int i = 0; i < %d; i++) data[i] = k.data[table%d[set][i]];\n    }\n};\n",
        pointers, (int)like);
    a->shared = link;
    a->number = (int)like;
    say_program(a, link);
    a->shared = NULL;
}

void kiln_cuda_say_alike(kiln_cuda_author *a, const kiln_cuda_alike *alike, const kiln_cuda_link *link, int64_t first)
{
    int32_t number = (int32_t)(link - a->chain->links), like = alike->like[number];
    int64_t units = kiln_cuda_member_units(a->chain, number);
    say(a,
        "            const int64_t set = %d + (u - %lldL) / %lldL, v = (u - %lldL) %% %lldL;\n"
        "            const parameters &all = k;\n            const view%d k(all, set);\n            ",
        alike->set[number], LL(first), LL(units), LL(first), LL(units), (int)like);
    a->shared = &a->chain->links[like];
    a->number = (int)like;
    say_body(a, a->shared);
    a->shared = NULL;
}
