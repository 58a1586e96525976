/* Random programs and their functional twins. A program works on a few registers: arithmetic, views, assignments to
 * tensors and to views of them, in and outside kiln_no_grad, detached handles, handles released early, values looked at
 * on the way. Its twin computes the same without a single view or assignment: every piece of memory is one value, a
 * view picks elements out of it, and an assignment makes a new value from the old one and the source. Both must end
 * with the same values and the same gradients. */
#ifndef KILN_TEST_TWIN_H
#define KILN_TEST_TWIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TWIN_INSTRUCTION = 5, TWIN_LENGTH = 40 }; /* bytes of an instruction; instructions of the longest program */

/* Any bytes are a program. Runs it and its twin on the default device; false when they differ, or when something was
 * refused, which `why` explains. */
bool twin_check(const uint8_t *bytes, size_t count, char *why, size_t size);

/* The program as text, an instruction a line, for a person who looks for the cause. */
void twin_print(const uint8_t *bytes, size_t count);

#endif
