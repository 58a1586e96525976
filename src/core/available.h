/* How much memory of the host can still be taken: asked before a file's contents are brought into it. */
#ifndef KILN_CORE_AVAILABLE_H
#define KILN_CORE_AVAILABLE_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes that can be taken without others having to be put out of memory, in the limits of the container; UINT64_MAX
 * where the system does not tell. */
uint64_t kiln_available(void);

/* Bytes of memory that this process has; 0 where the system does not tell. */
uint64_t kiln_resident_set(void);

/* False with KILN_E_MEMORY when `what` ("mnist.gz"), which takes so many bytes, does not fit. Small ones are not looked
 * at. */
bool kiln_fits_memory(uint64_t bytes, const char *what, const char *operation);

#endif
