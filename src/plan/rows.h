/* Which operations can be computed a few rows at a time: slices of their operands along one dim give a slice of their
 * results, or a part of a sum. */
#ifndef KILN_PLAN_ROWS_H
#define KILN_PLAN_ROWS_H

#include "trace/trace.h"

enum { KILN_NO_ROWS = -1 };

typedef struct kiln_rows {
    bool sums;                  /* the results of the slices are to be added up */
    int8_t out;                 /* the dim of all results along which rows lie; KILN_NO_ROWS where they are summed */
    int8_t in[KILN_MAX_INPUTS]; /* that of each operand; KILN_NO_ROWS: all of it is needed for every slice */
    int8_t size;                /* which integer, and 1, says how many rows the result has; 0: none does */
} kiln_rows;

/* The dim of a window onto `elements` elements in memory along which the rows of all of them lie: the outermost one,
 * and nothing else in the window leads from one row to the next. KILN_NO_ROWS: there is none. */
int kiln_rows_dim(int ndim, const int64_t *shape, const int64_t *stride, int64_t offset, int64_t elements);

/* How the node is cut if its operands are cut along these dims; KILN_NO_ROWS: an operand that may lie in memory as a
 * whole, one at least does not. False: it cannot be cut so. */
bool kiln_rows_from(const kiln_trace *tr, const kiln_node *n, const int8_t *cut, kiln_rows *rows);

/* How the node is cut to give rows along dim `out` of its result. False: it cannot be. */
bool kiln_rows_to(const kiln_trace *tr, const kiln_node *n, int out, kiln_rows *rows);

#endif
