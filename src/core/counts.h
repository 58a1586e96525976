/* The largest count (of steps, epochs, samples) that is believed where it comes from a file or a caller. Whole numbers
 * up to it are exact in JSON and as doubles, and go on being counted without overflow. */
#ifndef KILN_CORE_COUNTS_H
#define KILN_CORE_COUNTS_H

#include <stdint.h>

#define KILN_COUNT_MAX ((int64_t)1 << 53)

#endif
