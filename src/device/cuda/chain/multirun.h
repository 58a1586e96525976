/* Several runs of a chain for one launch: what each brings, laid out as the kernel's parameters:
 *
 *     head | data[most_sets][npointers] | words[most][nwords] | set[most]
 *
 * Words, which are scalars, differ from run to run. Addresses hardly do: parameters of a network stay where they are,
 * and what is freed after a step and taken again in the next comes back in one of a few orders. So runs share sets of
 * addresses, and each says which is its own. Nothing of CUDA is known here. */
#ifndef KILN_CUDA_MULTIRUN_H
#define KILN_CUDA_MULTIRUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "device/cuda/common/pace.h"

enum {
    KILN_CUDA_MOST_RUNS = 50, /* as many as kiln_fit has between two looks at its sums */
    KILN_CUDA_MOST_SETS = 4,
    KILN_CUDA_ENOUGH_RUNS = 24,        /* what a launch costs is shared by so many: more are of no use … */
    KILN_CUDA_CHEAP_PARAMETERS = 8192, /* … if they take more bytes than these, which launches copy in no time */
    KILN_CUDA_MOST_PARAMETERS = 32000  /* bytes: what a kernel may have, and a little less */
};

typedef struct kiln_cuda_multirun {
    int most, most_sets; /* that there is room for; 0 where not even one run has it */
    int64_t npointers, nwords;
    size_t head, bytes;
    unsigned char *parameters;
    uint64_t *given; /* the addresses of a run that is to be added */
    int runs, sets;
} kiln_cuda_multirun;

/* For at most `most` runs, behind `head` bytes (a multiple of 8) of something else. False with an error. */
bool kiln_cuda_multirun_init(kiln_cuda_multirun *b, size_t head, int64_t npointers, int64_t nwords, int most);
void kiln_cuda_multirun_free(kiln_cuda_multirun *b);

/* Adds a run with the addresses in `given`, and returns where its words go; NULL, without an error, if there is no
 * room. */
uint64_t *kiln_cuda_multirun_add(kiln_cuda_multirun *b);
void kiln_cuda_multirun_clear(kiln_cuda_multirun *b);

/* Address i of the first set. */
uint64_t kiln_cuda_multirun_address(const kiln_cuda_multirun *b, int64_t i);

/* Whether its runs, the last of which was given `now`, are to be launched. `launched` is the number of the last run
 * that was; all up to `done` are over, which a device tells when it begins the next one.
 *
 * A device that is about to run out of work gets what there is: so a run that is given to an idle one starts at once,
 * and one that is held back has another before it that has not begun. Until that changes more runs can join it. What is
 * held back when the program turns to other things waits for its next call, whichever that is.
 *
 * A host that takes about as long for a run as the device does would never get ahead that way, since each launch takes
 * it some time, too. Where launches of single runs follow each other, runs are therefore held back until there are a
 * few, as long as they come quickly. */
bool kiln_cuda_multirun_due(const kiln_cuda_multirun *b, kiln_cuda_pace *pace, uint64_t launched, uint64_t done,
                            double now);

/* KILN_CUDA_RUNS, or as many as there can be. */
int kiln_cuda_runs_wanted(void);

#endif
