/* Texts that stay for as long as the library is loaded, each of them once: equal texts have equal numbers. So a number
 * may be kept by what outlives its maker (a plan outlives the modules it was recorded in), and a program that makes and
 * frees things of the same names for ever adds nothing. For names that a program is written with, not for its data. */
#ifndef KILN_CORE_INTERN_H
#define KILN_CORE_INTERN_H

#include <stdint.h>

/* The number of a text, never 0; 0 where there is no memory for it, and no error: such texts are for messages. */
uint32_t kiln_intern(const char *text);

/* The text of a number; NULL for 0. */
const char *kiln_interned(uint32_t number);

#endif
