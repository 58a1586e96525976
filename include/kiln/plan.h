/* Plans: what a recorded step becomes before it runs, for those who want to look. */
#ifndef KILN_PLAN_H
#define KILN_PLAN_H

#include "kiln/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Plans what this thread has recorded and not run yet, and describes it: kernels, fused groups, memory by role, peak,
 * FLOP and bytes. The text is freed with kiln_string_free; NULL with an error. Nothing runs; with a model made inside
 * kiln_shapes_only no memory is needed either. */
KILN_API char *kiln_plan_describe(void);

/* Figures of a plan. */
typedef struct kiln_plan_info {
    int64_t nodes, kernels;                   /* recorded operations; launches after fusion */
    int64_t arena_bytes;                      /* scratch memory: activations, gradients, workspace */
    int64_t output_bytes;                     /* memory of results that outlive the step */
    int64_t peak_bytes;                       /* all the step adds to what was in use before it */
    int64_t gradient_bytes, activation_bytes; /* all of them, also where they share memory one after the other */
    int64_t flops, bytes;                     /* arithmetic, and memory moved by the kernels; INT64_MAX: that or more */
    bool replayed;                            /* found in the cache */
    int64_t activation_peak_bytes;            /* the most of activations, their gradients included, at one time */
    int64_t
        recomputed; /* operations that run a second time, for the backward pass, instead of what they make being kept */
    double seconds; /* at best, from FLOP and bytes by a table of what devices can do: to compare plans by */
} kiln_plan_info;
KILN_API bool kiln_plan_last_(kiln_plan_info *info, size_t size);
static inline bool kiln_plan_last(kiln_plan_info *info) /* of the plan that ran last in this thread */
{
    return kiln_plan_last_(info, sizeof *info);
}

/* Of what this thread has recorded and not run yet; nothing runs. False with an error. */
KILN_API bool kiln_plan_pending_(kiln_plan_info *info, size_t size);
static inline bool kiln_plan_pending(kiln_plan_info *info)
{
    return kiln_plan_pending_(info, sizeof *info);
}

/* The same for a step that may add no more than `bytes` to what is in use: where it would, values are computed a second
 * time until it does not, as when it runs under such a limit. Smaller limits never give a larger peak. False with
 * KILN_E_MEMORY where that cannot be. */
KILN_API bool kiln_plan_pending_within_(uint64_t bytes, kiln_plan_info *info, size_t size);
static inline bool kiln_plan_pending_within(uint64_t bytes, kiln_plan_info *info)
{
    return kiln_plan_pending_within_(bytes, info, sizeof *info);
}

/* A part of a step that was timed: a kernel, or several that the device computes in one launch. */
typedef struct kiln_kernel_time {
    const char *operation; /* what was written: "linear", "adam" */
    const char *module;    /* where: the path of the module, "h.3.attn.c_attn", "" in the root of a tree; in an
                            * optimizer's step the name of the parameter; NULL: elsewhere. Both texts stay */
    bool backward;         /* it is part of the backward pass of that */
    char kernel[64];       /* what runs: "matmul then add·relu"; longer ones are cut */
    int64_t kernels;       /* 1; of several the above is that of the first */
    double microseconds;
    int64_t flops, bytes; /* arithmetic, and memory moved; INT64_MAX: that or more */
} kiln_kernel_time;

/* The next kiln_step of this thread runs kernel by kernel and is timed: the same step with the same results, which
 * takes longer as a whole. What is read in the middle of it counts too. False with an error; the step itself fails
 * with KILN_E_UNSUPPORTED on a device that cannot measure kernels. */
KILN_API bool kiln_time_next_step(void);

/* The last step of this thread that was timed, in the order things ran: how many parts it has, of which the first
 * `room` are listed. 0: no step was timed, or it failed. */
KILN_API int64_t kiln_step_times_(kiln_kernel_time *list, int64_t room, size_t size);
static inline int64_t kiln_step_times(kiln_kernel_time *list, int64_t room)
{
    return kiln_step_times_(list, room, sizeof *list);
}

/* Forgets what this thread has recorded and not run yet: tensors that were assigned to keep the values they had,
 * results never get one. To look at a step without running it. */
KILN_API void kiln_discard(void);

/* Plans that this process keeps. When they take more host memory than `byte_capacity` (128 MiB at first), or are more
 * than `capacity` (no limit at first), the least recently used ones are dropped; the newest one stays. */
typedef struct kiln_plan_cache {
    int64_t plans, capacity, hits, misses;
    int64_t bytes, byte_capacity;
} kiln_plan_cache;
KILN_API void kiln_plan_cache_stats_(kiln_plan_cache *stats, size_t size);
static inline kiln_plan_cache kiln_plan_cache_stats(void)
{
    kiln_plan_cache stats;
    kiln_plan_cache_stats_(&stats, sizeof stats);
    return stats;
}
KILN_API void kiln_plan_cache_set_capacity(int64_t plans); /* 0: keeps none */
KILN_API void kiln_plan_cache_set_bytes(int64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
