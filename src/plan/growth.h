/* A plan at another batch size: which of its buffers grow with the batch, and what memory the same kernels would need
 * with another one. Nothing is recorded or lowered again. */
#ifndef KILN_PLAN_GROWTH_H
#define KILN_PLAN_GROWTH_H

#include "core/arena.h"
#include "plan/plan.h"
#include "trace/trace.h"

typedef struct kiln_growth {
    const kiln_plan *plan;
    int64_t batch;      /* the size that the plan was made for */
    int64_t outputs;    /* kept results: the first ones of the plan's outputs */
    int64_t *inner;     /* by buffer: elements from one sample to the next; 0: it does not grow */
    int64_t *in_group;  /* by kernel: the same in the order of its group's elements */
    double data;        /* bytes of the batch itself: slots that grow */
    kiln_arena scratch; /* all of the above arrays */
} kiln_growth;

/* The batch size that a step was recorded with; 0 when that cannot be told. */
int64_t kiln_growth_batch(const kiln_trace *tr);

/* Follows the batch through the plan of the pending segment of `tr`. Freed also on failure, which is without an error.
 */
bool kiln_growth_find(kiln_growth *g, const kiln_trace *tr, const kiln_plan *plan, int64_t batch);
void kiln_growth_free(kiln_growth *g);

/* Scratch and results of the plan with another batch, in bytes; INT64_MAX when that cannot be told. */
int64_t kiln_growth_peak(const kiln_growth *g, int64_t batch);

#endif
