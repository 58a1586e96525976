/* What the pass that cuts large results into chunks of rows (chunk.c) has found out of a segment, for the one that
 * writes it anew (pieces.c). */
#ifndef KILN_PLAN_CHUNK_H
#define KILN_PLAN_CHUNK_H

#include "plan/copy.h"
#include "plan/rows.h"

typedef struct kiln_cut_node {
    bool cuts;   /* it can be cut as `rows` says: it reads something of the region */
    bool large;  /* it reads or makes a large value */
    bool behind; /* it reads what follows from one that does … */
    bool leads;  /* … or is needed for such a one */
    bool inside; /* it is of the region */
    bool ahead;  /* the region needs it */
    kiln_rows rows;
} kiln_cut_node;

typedef struct kiln_cut_value {
    bool rows;     /* a base value that consists of rows */
    bool leaves;   /* it is of the region, and read outside */
    bool feeds;    /* it is from outside, and nobody but the region reads it, by rows */
    bool read;     /* somebody does */
    bool gone;     /* nothing makes it any more */
    int32_t piece; /* what stands for it in the chunk that is being written, in the copy; -1: nothing */
    int32_t sum;   /* of the chunks so far */
} kiln_cut_value;

typedef struct kiln_chunking {
    kiln_draft *d;
    kiln_copy copy;
    int32_t seed; /* the node that makes the largest value … */
    int64_t elements;
    int64_t most;           /* bytes that it should have at most */
    kiln_cut_node *nodes;   /* by node of the segment */
    kiln_cut_value *values; /* by draft value */
    int64_t units;          /* rows are cut between these only: views join them into larger ones */
    int n;                  /* chunks */
    int64_t lo, hi;         /* units of the chunk that is being written */
    int32_t *pieces;        /* what leaves and is not summed: n of each, in order of nodes and results */
    int64_t npieces;
    bool broken;
} kiln_chunking;

static inline bool kiln_chunk_large(const kiln_chunking *c, int32_t base)
{
    return kiln_draft_numel(c->d->values[base].v) >= c->elements / 2;
}

/* Writes the segment into a copy of the trace, c->copy: what comes before the region, the region once for each chunk,
 * what comes behind. False with an error; c->broken: it cannot be written so. */
bool kiln_chunk_write(kiln_chunking *c);

#endif
