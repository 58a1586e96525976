/* Hostile calls: bytes become calls of the public functions, with NULL, shapes and dtypes that do not fit, sizes from
 * negative to huge, numbers that are none, and out-parameters full of garbage. Whatever comes, a call must return, say
 * why when it fails, leave its out-parameters NULL or valid, and keep no memory. */
#ifndef KILN_FUZZ_CALLS_H
#define KILN_FUZZ_CALLS_H

#include "fuzz.h"

/* The functions that are called: calls.def lists them, and must list all that the headers declare. */
int calls_count(void);
const char *calls_name(int i);

/* Decodes the bytes to calls and makes them; `only` is one function's number, or -1. */
void calls_make(const uint8_t *data, size_t size, int only);

#endif
