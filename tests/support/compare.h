/* Results against references: how close is close enough. */
#ifndef KILN_TEST_COMPARE_H
#define KILN_TEST_COMPARE_H

#include "support/ref.h"

/* Compares a result (its raw bits) with the reference; `loose` widens the tolerance, `roundings` is how often a 16-bit
 * one may have been rounded. On a difference false, and a text that names element and values. */
bool compare_result(const ref_tensor *want, const void *bits, double loose, int roundings, char why[200]);

/* Checks dtype and shape; false with a text. */
bool compare_kind(const ref_tensor *want, const kiln_tensor *got, char why[200]);

#endif
