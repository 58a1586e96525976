/* The CUDA device from inside: what its files share. A plan is cut into parts (exec.h): single kernels, and chains of
 * small ones (chain.h). A plan that is one chain is one launch, or several runs of it are; any other becomes a CUDA
 * graph, for which every kernel of the plan has a launcher that puts work on a stream while it is captured. */
#ifndef KILN_CUDA_CUDA_H
#define KILN_CUDA_CUDA_H

#include <pthread.h>
#include "device/cuda/common/costs.h"
#include "device/cuda/common/launch.h"
#include "device/cuda/common/pace.h"
#include "device/device.h"
#include "device/failures.h"

typedef struct kiln_cuda_flight { /* a run that may not be over yet */
    uint64_t number; /* as the device knows it: one that is not launched after all leaves its number to the next */
    uint64_t given;  /* as failures know it: never used twice */
    uint64_t thread; /* which gave it */
    kiln_run *run;
    const kiln_plan *plan; /* NULL: it is gone */
} kiln_cuda_flight;

enum { KILN_CUDA_AHEAD = 2 }; /* graphs under way when the host goes on */

typedef struct kiln_cuda_device {
    int index;
    cudaStream_t run_stream;  /* for what belongs to a run that is being launched; all else uses kiln_cuda_stream */
    kiln_cuda_status *status; /* on the device */
    kiln_cuda_record *record; /* on the host */
    kiln_cuda_record *mapped; /* the same, as kernels address it */
    int multiprocessors;
    kiln_cuda_costs costs;
    int capability;            /* 90 for 9.0 */
    bool shared;               /* other processes may run kernels beside ours */
    pthread_mutex_t lock;      /* of everything below, and of the order of work on the stream */
    uint64_t runs;             /* given so far */
    uint64_t given;            /* runs, and copies to the host that are asked about later */
    kiln_failures failures;    /* of what was given */
    kiln_cuda_flight *flights; /* oldest first, their numbers without gaps */
    int64_t nflights, flights_capacity;
    uint64_t graphs;                         /* launched so far … */
    cudaEvent_t graph_ends[KILN_CUDA_AHEAD]; /* … and the ends of the last ones */
    struct kiln_cuda_chain *pending; /* has runs that were given and are not launched yet (pending.h); NULL: none do */
    const void *pending_kernel;      /* what they are launched with */
    kiln_cuda_pace pace;             /* at which they come */
    atomic_bool lost;                /* without the lock */
    struct kiln_cuda_memory *memory; /* memory.c; with a lock of its own */
    struct kiln_cuda_lt *lt;         /* cuBLASLt, opened by matmul.c on first use */
    struct kiln_cuda_dnn *dnn;       /* cuDNN, opened by conv.c on first use */
    struct kiln_cuda_codegen *gen;   /* compiled groups, opened by group.c on first use */
    struct kiln_cuda_staging *staging; /* copies beside the runs, opened by staging.c on first use */
} kiln_cuda_device;

/* What an error of the runtime means: KILN_E_MEMORY, KILN_E_LOST when the context does not work any more, which is then
 * noted, or KILN_E_DEVICE. */
kiln_code kiln_cuda_code(kiln_cuda_device *d, cudaError_t e);

/* True when a call of the runtime went well; otherwise raises an error that names `what`. */
bool kiln_cuda_ok(kiln_cuda_device *d, cudaError_t e, const char *what);

/* The same for asking for memory: that there is none is no error, since the pool may make room, and says it if not. */
bool kiln_cuda_has_memory(kiln_cuda_device *d, cudaError_t e);

/* Makes the device current for the calling thread. */
bool kiln_cuda_enter(kiln_cuda_device *d);

/* The stream, for work that comes after all that was given so far: runs that are pending are launched first. NULL with
 * an error if that fails. With the lock held. */
cudaStream_t kiln_cuda_stream(kiln_cuda_device *d);

/* Waits until all that was given is over; false with an error if something failed. Takes the lock: a stream cannot be
 * waited for while another thread captures on it. */
bool kiln_cuda_idle(kiln_cuda_device *d);

/* What the calling thread knows of the device's failures. */
kiln_witness *kiln_cuda_witness(const kiln_cuda_device *d);

/* The address of an operand of a group. */
static inline void *kiln_cuda_address(const kiln_cuda_call *c, const kiln_operand *o)
{
    return o->buffer < 0 ? NULL
                         : (void *)(uintptr_t)(kiln_buffer_address(c->plan, c->binding, o->buffer) +
                                               (uint64_t)o->offset * kiln_dtype_size((kiln_dtype)o->dtype));
}

#endif
