/* The code of a segment, read back: which words of it say where windows begin. Two segments that differ in such words
 * alone are the same step at another place (the next rows of a data set, the next position of a cache), and can share a
 * plan that is given these offsets with each run. */
#ifndef KILN_PLAN_CODE_H
#define KILN_PLAN_CODE_H

#include "ops/op.h"

/* An import or a node. Start with {0}. */
typedef struct kiln_code_part {
    int64_t at, end;   /* its words */
    const kiln_op *op; /* NULL: an import */
    int nin, nints;
    int64_t ints;           /* where its integers begin */
    int64_t imports, nodes; /* how many of them came before it */
} kiln_code_part;

/* Goes on to the next one; false at the end, where what is kept is listed. */
bool kiln_code_next(const int64_t *code, int64_t ncode, kiln_code_part *p);

/* The words of the part that are offsets, if any: of a slice where it begins and where it ends. */
int kiln_code_places(const kiln_code_part *p, int64_t place[2]);

/* The code with all offsets taken out, but for the length of slices; `out` has room for it. */
void kiln_code_without_places(const int64_t *code, int64_t ncode, int64_t *out);

/* "slice(start)", "the shape of an operand of matmul", …: in what two codes differ first, in words. */
void kiln_code_difference(const int64_t *a, int64_t na, const int64_t *b, int64_t nb, char *text, size_t size);

#endif
