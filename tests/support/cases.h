/* The cases of an operation's record, read from their text (see ops/op.h) and filled with data. */
#ifndef KILN_TEST_CASES_H
#define KILN_TEST_CASES_H

#include "ops/op.h"

enum { CASE_LISTED = 64 };

typedef struct case_operand {
    char kind; /* the letter in front of the brackets; '-' for an absent operand */
    int ndim;
    int64_t shape[KILN_MAX_DIMS];
    int64_t limit; /* of 'i': indices are below it */
    int listed;    /* of 'n': how many elements are given */
    int64_t list[CASE_LISTED];
} case_operand;

typedef struct test_case {
    const kiln_op *op;
    int number; /* which one of the operation's: part of the seed of its data */
    const char *text;
    bool big;  /* one layout is enough: it is about how work is split */
    bool path; /* it is the one that takes a device down some path: never left out */
    int nin;
    case_operand in[KILN_MAX_INPUTS];
    kiln_attrs attrs;
} test_case;

/* Reads the text; false when it cannot be read, and then `why` says so. */
bool case_parse(test_case *c, const kiln_op *op, int number, const char *text, char why[160]);

/* The dtype an operand has when `dtype` is under test. */
kiln_dtype case_dtype(const test_case *c, int operand, kiln_dtype dtype);

/* True for operands that hold numbers a gradient can be taken for. */
bool case_is_real(const case_operand *o);

/* Fills `data` with the operand's elements, each exactly a value of its dtype. */
void case_fill(const test_case *c, int operand, kiln_dtype dtype, double *data);

int64_t case_count(const case_operand *o); /* elements */

/* Larger and odder cases than those in the records, for the same operations; ended by a NULL op. */
typedef struct extra_case {
    const char *op, *text;
} extra_case;
extern const extra_case extra_cases[], big_cases[], path_cases[];

#endif
