/* A model of a draft's memory over time, cheap enough to be asked thousands of times: which values take how much room
 * from which group to which, if some of them are run again. The placer has the last word. */
#ifndef KILN_PLAN_MODEL_H
#define KILN_PLAN_MODEL_H

#include "plan/draft.h"

typedef struct kiln_model {
    int32_t ngroups,
        nvalues;    /* groups are known by their place in the order; values: only those with room in the arena */
    int32_t *value; /* by value: its number in the draft */
    double *time;   /* by group: seconds; ngroups + 1 of `before` */
    double *before; /* by group: seconds until it begins */
    int64_t *work;  /* by group: workspace */
    int32_t *reads, *reads_at; /* values that group g reads: reads[reads_at[g]] … reads[reads_at[g + 1] - 1] */
    int32_t *from, *from_at;   /* by value: those that are read when it alone is run again */
    int64_t *bytes;            /* by value */
    int32_t *made;             /* by value: by which group */
    bool *may;                 /* by value: it may be run again */
    int32_t *member, *next;    /* values by group: lists */

    int32_t *until; /* by value: the last group that reads it itself; KILN_NEVER_GONE: all do */

    /* What kiln_model_run finds. */
    int32_t *last, *last_again; /* by value: who reads it last, and who reads it last when it was run again */
    int32_t *start;             /* by group: before which one it is run again; KILN_NEVER_GONE: it is not */
    int32_t *early, *late;      /* by value: its readers around group `around`: the last before, the first behind */
    int64_t *live;              /* by group: bytes while it runs */
    int32_t *stack;
    int64_t peak;
    int32_t peak_at, around;
    double extra; /* seconds of what is run again */
} kiln_model;

/* Of a draft whose groups are ordered, and its kernels (t, a trial of the same draft). From the draft's scratch memory;
 * false with an error. */
bool kiln_model_make(kiln_model *m, kiln_draft *d, const kiln_draft *t);

/* `until` by numbers of the draft, into all[], which has room for its values. */
void kiln_model_tell(const kiln_model *m, int32_t ndraft, int32_t *all);

/* Goes through the step with `until` as it is. `around`: for which group early and late are wanted; -1: none. */
void kiln_model_run(kiln_model *m, int32_t around);

#endif
