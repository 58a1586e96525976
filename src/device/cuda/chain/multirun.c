/* Runs for one launch: where their words and addresses lie, and when to launch them. */
#include "device/cuda/chain/multirun.h"
#include <stdlib.h>
#include <string.h>
#include "core/alloc.h"

/* ---- Room ---- */

static size_t bytes_of(const kiln_cuda_multirun *b, int sets, int runs)
{
    uint64_t addresses = (uint64_t)sets * (uint64_t)b->npointers, words = (uint64_t)runs * (uint64_t)b->nwords;
    return b->head + (addresses + words) * sizeof(uint64_t) + ((size_t)runs + 7) / 8 * 8;
}

/* As many sets as leave half of the room to words; then as many runs as there is room for, and few where that would
 * make launches dear. */
static void share_room(kiln_cuda_multirun *b, int most)
{
    b->most_sets = most < KILN_CUDA_MOST_SETS ? most : KILN_CUDA_MOST_SETS;
    while (b->most_sets > 1 && bytes_of(b, b->most_sets, 1) > KILN_CUDA_MOST_PARAMETERS / 2)
        b->most_sets--;
    b->most = most;
    while (b->most > KILN_CUDA_ENOUGH_RUNS && bytes_of(b, b->most_sets, b->most) > KILN_CUDA_CHEAP_PARAMETERS)
        b->most--;
    while (b->most > 0 && bytes_of(b, b->most_sets, b->most) > KILN_CUDA_MOST_PARAMETERS)
        b->most--;
    b->bytes = bytes_of(b, b->most_sets, b->most);
}

bool kiln_cuda_multirun_init(kiln_cuda_multirun *b, size_t head, int64_t npointers, int64_t nwords, int most)
{
    *b = (kiln_cuda_multirun){.npointers = npointers, .nwords = nwords, .head = head};
    share_room(b, most);
    if (!b->most)
        return true;
    b->parameters = kiln_alloc_zero(1, b->bytes);
    b->given = kiln_alloc_zero((size_t)npointers + 1, sizeof *b->given);
    if (b->parameters && b->given)
        return true;
    kiln_cuda_multirun_free(b);
    return false;
}

void kiln_cuda_multirun_free(kiln_cuda_multirun *b)
{
    kiln_free(b->parameters);
    kiln_free(b->given);
    *b = (kiln_cuda_multirun){0};
}

/* ---- Runs ---- */

static unsigned char *set_at(const kiln_cuda_multirun *b, int set)
{
    return b->parameters + b->head + (size_t)set * (size_t)b->npointers * sizeof(uint64_t);
}

/* Which set has the given addresses; -1: none, and there is no room for one more. */
static int find_set(kiln_cuda_multirun *b)
{
    size_t bytes = (size_t)b->npointers * sizeof *b->given;
    for (int i = 0; i < b->sets; i++)
        if (!memcmp(set_at(b, i), b->given, bytes))
            return i;
    if (b->sets == b->most_sets)
        return -1;
    memcpy(set_at(b, b->sets), b->given, bytes);
    return b->sets++;
}

uint64_t *kiln_cuda_multirun_add(kiln_cuda_multirun *b)
{
    int set = b->runs < b->most ? find_set(b) : -1;
    if (set < 0)
        return NULL;
    uint64_t *words = (uint64_t *)(void *)set_at(b, b->most_sets);
    unsigned char *sets = (unsigned char *)(words + b->most * b->nwords);
    sets[b->runs] = (unsigned char)set;
    return words + b->runs++ * b->nwords;
}

uint64_t kiln_cuda_multirun_address(const kiln_cuda_multirun *b, int64_t i)
{
    uint64_t address;
    memcpy(&address, set_at(b, 0) + (size_t)i * sizeof address, sizeof address);
    return address;
}

void kiln_cuda_multirun_clear(kiln_cuda_multirun *b)
{
    b->runs = b->sets = 0;
}

/* ---- When ---- */

enum {
    LONELY = 4, /* launches of one run in a row, after which there are */
    A_FEW = 12  /* in each */
};
static const double quick = 50e-6; /* seconds between runs; launching takes about a tenth of that */

bool kiln_cuda_multirun_due(const kiln_cuda_multirun *b, kiln_cuda_pace *pace, uint64_t launched, uint64_t done,
                            double now)
{
    bool soon = now - pace->given_at < quick;
    pace->given_at = now;
    if (b->runs == b->most)
        return true;
    if (!b->runs || launched > done + 1)
        return false;
    if (b->runs > A_FEW || !soon) /* the host is ahead, or has other things to do */
        pace->lonely = 0;
    else if (pace->lonely < LONELY)
        pace->lonely = b->runs == 1 ? pace->lonely + 1 : 0;
    else
        return b->runs >= A_FEW;
    return true;
}

int kiln_cuda_runs_wanted(void)
{
    const char *text = getenv("KILN_CUDA_RUNS");
    long n = text ? strtol(text, NULL, 10) : 0;
    return n >= 1 && n < KILN_CUDA_MOST_RUNS ? (int)n : KILN_CUDA_MOST_RUNS;
}
