/* The last backward pass, memoised. What kiln_backward records follows from what the trace holds when it begins, and in
 * a training loop that is the same in each step: the same nodes, number by number. The last walk is therefore kept,
 * together with all that it followed from. A walk that starts from the same gets the nodes of the last one as they are:
 * no rule is asked, nothing is checked again, and only the gradients of leaves get handles. */
#ifndef KILN_TRACE_MEMO_H
#define KILN_TRACE_MEMO_H

#include "trace/trace.h"

/* How far the lists of a trace reach. */
typedef struct kiln_extent {
    int64_t nodes, values, operands, ints, floats, code;
} kiln_extent;

typedef struct kiln_arrival { /* a gradient and the leaf it arrived at, both as values */
    int32_t leaf, grad;
} kiln_arrival;

typedef struct kiln_walk_start { /* what a walk found when it began */
    kiln_extent extent;
    int32_t value; /* where it starts */
    kiln_device device, default_device;
    const kiln_op *composing;
} kiln_walk_start;

struct kiln_memo {
    bool complete; /* there is a walk that can be written again: all of these belong to it */
    kiln_walk_start start;
    kiln_extent end;
    int32_t *marks; /* of the values that it found: see mark_of */
    int64_t marks_capacity;
    int64_t *code; /* what it found, then what it wrote. So are those below */
    int64_t code_capacity;
    kiln_node *nodes;
    int64_t nodes_capacity;
    int32_t *operands;
    int64_t operands_capacity;
    double *floats;
    int64_t floats_capacity;
    int64_t *ints; /* only what it wrote: the code tells what it found. So are those below */
    int64_t ints_capacity;
    kiln_value *values; /* without storages */
    int64_t values_capacity;
    size_t *bytes; /* of the values' storages */
    int64_t bytes_capacity;
    kiln_arrival *arrivals;
    int64_t narrivals, arrivals_capacity;

    /* The walk under way, if there is one; it takes the place of the other when it turns out that it can be written
     * again. */
    kiln_walk_start begun;
    uint32_t segment;
    int64_t nimports;
    kiln_arrival *coming;
    int64_t ncoming, coming_capacity;
};

/* True if a walk from `value` would write what the last one wrote. There must be no hooks. */
bool kiln_memo_fits(const kiln_trace *tr, int32_t value);

/* Appends what the last walk wrote; false with an error, and nothing was appended. */
bool kiln_memo_append(kiln_trace *tr);

/* A walk from `value` begins. *memo: where to tell of its arrivals; NULL if it cannot be written again. False with
 * an error. */
bool kiln_memo_begin(kiln_trace *tr, int32_t value, kiln_memo **memo);

/* Gradient `grad` has arrived at a leaf that had none. */
bool kiln_memo_arrived(kiln_memo *s, int32_t leaf, int32_t grad);

/* The walk is over. Keeps what it wrote if that can be written again; false with an error when memory runs out. */
bool kiln_memo_end(kiln_memo *s, const kiln_trace *tr);

void kiln_memo_free(kiln_memo *s);

#endif
