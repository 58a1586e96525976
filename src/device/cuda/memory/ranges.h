/* Where blocks lie in a range of addresses of which only parts have memory behind them. Memory comes and goes in
 * granules, which blocks share; whoever owns the range maps and unmaps them. Knows nothing of CUDA, so that it can be
 * tested anywhere. Not safe for several threads at once. */
#ifndef KILN_CUDA_RANGES_H
#define KILN_CUDA_RANGES_H

#include "device/cuda/memory/holes.h"

enum { KILN_RANGES_ALIGN = 256 }; /* of blocks: what libraries and vector loads want at most */

typedef struct kiln_granules {
    void *owner;
    bool (*map)(void *owner, uint64_t first, uint64_t count); /* all of them, or none and false */
    void (*unmap)(void *owner, uint64_t first, uint64_t count);
} kiln_granules;

typedef struct kiln_ranges {
    uint64_t granule; /* bytes */
    kiln_granules granules;
    kiln_holes holes; /* never adjacent; there is room for all that giving blocks back can make */
    int64_t blocks;
    uint8_t *backed; /* by granule, up to the last one that ever had memory */
    int64_t nbacked, backed_capacity;
    uint64_t mapped; /* bytes that have memory */
} kiln_ranges;

/* A range of `bytes` addresses, a multiple of `granule`. False with an error for want of host memory. */
bool kiln_ranges_init(kiln_ranges *r, uint64_t bytes, uint64_t granule, kiln_granules granules);

/* Unmaps everything, whether blocks are left or not, and forgets it. */
void kiln_ranges_free(kiln_ranges *r);

/* A place for a block of so many bytes, with memory behind it. False when there is no memory (with an error if it is
 * the host's); nothing has changed then. */
bool kiln_ranges_take(kiln_ranges *r, uint64_t bytes, uint64_t *offset);

/* Gives a place back that was taken with so many bytes. The memory behind it stays. */
void kiln_ranges_give(kiln_ranges *r, uint64_t offset, uint64_t bytes);

/* Unmaps all granules that no block touches. */
void kiln_ranges_trim(kiln_ranges *r);

#endif
