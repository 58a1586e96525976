/* Plans on CUDA: lowering and running (exec.c), graphs of their kernels (graph.c), what has become of runs
 * (outcome.c). */
#ifndef KILN_CUDA_EXEC_H
#define KILN_CUDA_EXEC_H

#include "device/cuda/chain/chain.h"
#include "device/cuda/dispatch/call.h"
#include "device/cuda/launch/laps.h"
#include "device/cuda/launch/prologue.h"

/* ---- For the device table ---- */
bool kiln_cuda_choose(void *dev, const kiln_plan *plan, kiln_choice *choices); /* choose.c */
void *kiln_cuda_lower(void *dev, const kiln_plan *plan);
void kiln_cuda_dispose(void *dev, void *exec);
bool kiln_cuda_run(void *dev, void *exec, const kiln_binding *binding);
bool kiln_cuda_time(void *dev, void *exec, const kiln_binding *binding, kiln_timing *timing);

/* ---- What has become of runs (outcome.c) ---- */

/* Waits until all that was given is over and lets go of finished runs; if one met a bad index, it and all that were
 * given after it have failed. False with an error if that, or an earlier failure, is news to the calling thread. */
bool kiln_cuda_drain(kiln_cuda_device *d);

/* The rest with the device's lock held. The same without a word of failures; false if something else went wrong. */
bool kiln_cuda_wait_for_all(kiln_cuda_device *d);

/* Lets go of runs that are over, as the device has told before the next one; once they are half of all, so that the
 * others are seldom moved. None while there is a fault that the host has not dealt with: it comes to be known before
 * the number does. */
void kiln_cuda_let_go_of_finished(kiln_cuda_device *d);

/* What was given as number … has met a bad index, and the host has not dealt with that yet; 0: nothing has. */
uint64_t kiln_cuda_faulty(const kiln_cuda_device *d);

/* All flights from `first` on have failed, and whatever was given up to number `last`. */
void kiln_cuda_flights_failed(kiln_cuda_device *d, int64_t first, uint64_t last, const kiln_error *error);

/* ---- Graphs ---- */

/* A part of a plan: a kernel, or several that are a chain. */
typedef struct kiln_cuda_part {
    int32_t first, end;
    kiln_cuda_chain *chain; /* made with the first run; NULL: none */
} kiln_cuda_part;

/* Cuts a plan into parts and returns how many there are; `parts` has room for as many as kernels, or is NULL. */
int64_t kiln_cuda_cut(kiln_cuda_device *d, const kiln_plan *plan, kiln_cuda_part *parts);

typedef struct kiln_cuda_graph { /* of one set of addresses */
    kiln_address *addresses;     /* slots, outputs, arena */
    cudaGraph_t graph;
    cudaGraphExec_t exec; /* NULL: the addresses were met, and that is all */
    bool compiling;       /* kernels were asked for when it was captured */
    uint64_t generation;  /* which generated kernels were there when it was captured */
    uint64_t used;
} kiln_cuda_graph;

enum { KILN_CUDA_GRAPHS = 8 };

typedef struct kiln_cuda_exec {
    const kiln_plan *given; /* the plan */
    const kiln_plan *plan;  /* as it was given, or … */
    kiln_plan *absorbed;    /* … with sums that products make (sums.h); NULL: it has none */
    kiln_plan *through; /* what chains are made of instead: with casts that are read through (casts.h); NULL: nothing */
    kiln_cuda_waits waits, through_waits;
    kiln_cuda_part *parts;
    int64_t nparts;
    int32_t *part_of;             /* by kernel */
    double *scalars;              /* on the device */
    unsigned long long *barriers; /* on the device: one a part */
    const void *whole;            /* the kernel of a chain that is the whole plan; NULL: not there (yet) */
    uint64_t asked;               /* for it: in which generation; 0: never */
    void *batches;                /* on the device: the chain's own memory, if it wants some */
    uint64_t runs;
    kiln_cuda_graph graphs[KILN_CUDA_GRAPHS];
    uint64_t clock;
    uint64_t strangers; /* runs up to the last one with addresses that none of `graphs` knew */
} kiln_cuda_exec;

/* Cuts the plan of an empty exec into parts, and makes their chains, with the first run: only then are there addresses.
 * False with an error. What was made is freed either way with the third. */
bool kiln_cuda_make_parts(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_plan *plan);
bool kiln_cuda_make_chains(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_binding *b);
void kiln_cuda_free_parts(kiln_cuda_exec *e);

/* Whether the plan runs often enough that kernels are generated for it. */
bool kiln_cuda_worth_compiling(const kiln_cuda_exec *e);

/* How a run of a plan is launched (exec.c chooses). */
typedef enum kiln_cuda_mode {
    KILN_CUDA_AS_CHAIN, /* the plan is one chain whose kernel is there: one launch, of this run or of several */
    KILN_CUDA_AS_GRAPH, /* a graph of its parts, kernels and chains, captured for these addresses */
    KILN_CUDA_SINGLY    /* its parts one after the other */
} kiln_cuda_mode;

/* The rest with the device's lock held. The graph for these addresses, which may have to be captured yet; one that was
 * not used for longest is given up for new addresses. NULL with an error. */
kiln_cuda_graph *kiln_cuda_graph_for(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_binding *b);

/* Launches it, or what it would consist of, as run number `run`. `laps`: that is timed; NULL: it is not. */
bool kiln_cuda_launch_graph(kiln_cuda_device *d, kiln_cuda_exec *e, kiln_cuda_graph *g, const kiln_binding *b,
                            uint64_t run);
bool kiln_cuda_launch_singly(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_binding *b, uint64_t run,
                             kiln_cuda_laps *laps);
void kiln_cuda_graph_free(kiln_cuda_graph *g);

#endif
