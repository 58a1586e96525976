/* Numbers of every dtype as doubles and back, and the generator of test data. Written independently of the library's
 * own conversions, which are among what is tested. */
#ifndef KILN_TEST_NUMBERS_H
#define KILN_TEST_NUMBERS_H

#include "kiln.h"

/* The nearest value the dtype can hold (halves to even; integers wrap around as C's do). */
double number_round(double value, kiln_dtype dtype);

/* `count` doubles (already rounded) into memory of the dtype, and back. */
void number_store(void *out, kiln_dtype dtype, const double *values, int64_t count);
void number_load(double *values, kiln_dtype dtype, const void *in, int64_t count);

/* The distance from 1 to the next value; 0 for integers and bools. */
/* Half the distance between two neighbours of the dtype around v: what rounding once may change. 0 for integers. */
double number_rounding(double v, kiln_dtype dtype);

double number_epsilon(kiln_dtype dtype);

/* A small generator (splitmix64): the same sequence everywhere. */
typedef struct number_rng {
    uint64_t state;
} number_rng;
number_rng number_seed(const char *text, int a, int b);
uint64_t number_next(number_rng *rng);
double number_uniform(number_rng *rng); /* in [0, 1) */

#endif
