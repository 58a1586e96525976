/* What the parts of the operation tests share: complaints, the loop over cases, the digest of results. */
#ifndef KILN_TEST_SUITE_H
#define KILN_TEST_SUITE_H

#include "support/cases.h"
#include "support/devices.h"

/* Complaints are printed (not more than a few an operation) and counted. */
void complain(const char *op, const char *format, ...) __attribute__((format(printf, 2, 3)));
int64_t complaints(void);

/* False when KILN_TEST_ONLY names other operations ("matmul,conv2d"), or when another process is to do it:
 * KILN_TEST_SHARD=2/8 takes every eighth, the third first. */
bool suite_wants(const kiln_op *op);
bool suite_wants_named(const char *name, int64_t number);
bool suite_first_shard(void); /* what belongs to no operation is done by one process */

/* KILN_TEST_SMALL=1: a few cases of each operation, each in one layout a dtype. For checkers under which a kernel takes
 * a hundred times as long. */
bool suite_small(void);

/* Calls f with each case of the operation, its record's and the extra ones. */
void suite_cases(const kiln_op *op, void (*f)(const test_case *c, void *context), void *context);

/* Collects the bits of results by operation and dtype; written to the file KILN_TEST_DIGEST names, a line each:
 * "operation dtype hash". */
void digest_add(const char *op, kiln_dtype dtype, const void *bits, size_t size);
bool digest_write(void); /* false when the file cannot be written */

/* Gradient checks of all operations, first and second order, in f64. */
typedef struct gradient_counts {
    int64_t operations, first, second;
    int64_t none;     /* operations whose results are integers or bools, or that are listed as constant */
    char names[2048]; /* of those */
} gradient_counts;
gradient_counts gradients_check(void);
bool gradient_is_listed(const char *op);                /* as having none */
bool gradient_is_constant(const char *op, int operand); /* in the operation's definition */

/* Gradients in 16 bits on the CPU, and on the devices after the first in every float dtype, against those in f64; how
 * many were compared. */
int64_t backward_check(const kiln_device *devices, int n);

/* Range, moments and repeatability of random numbers on the devices. */
void random_check(const kiln_device *devices, int n);

#endif
