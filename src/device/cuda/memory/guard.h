/* Blocks for finding errors, with KILN_CUDA_MEMCHECK=1: each is an allocation of its own, of exactly its size, between
 * two zones that nobody may write to. They are looked at when the block is released and when the device is waited for.
 * With KILN_CUDA_MEMCHECK=exact there are no zones, so that compute-sanitizer sees every access beyond a block. Blocks
 * are never filled, so that it sees what is read before it was written, too; it does not know what nodes of a graph
 * fill or copy, so nothing is captured then.
 *
 * Whoever calls holds the device's lock, since all of this goes through the stream. */
#ifndef KILN_CUDA_GUARD_H
#define KILN_CUDA_GUARD_H

#include "device/cuda/common/cuda.h"

typedef struct kiln_cuda_guards {
    bool on;
    size_t zone; /* bytes before and behind each block */
    struct kiln_cuda_block {
        char *address; /* of the block, behind the first zone */
        size_t bytes;
    } * blocks;
    int64_t nblocks, capacity;
} kiln_cuda_guards;

/* As the environment asks. */
kiln_cuda_guards kiln_cuda_guards_wanted(void);

/* 0 when there is no memory. */
kiln_address kiln_cuda_guards_allocate(kiln_cuda_device *d, kiln_cuda_guards *g, size_t bytes);

/* Releasing a block whose zones were written to raises an error that names its size. */
void kiln_cuda_guards_release(kiln_cuda_device *d, kiln_cuda_guards *g, kiln_address address);

/* Looks at all blocks; false with the error of the first that was damaged. */
bool kiln_cuda_guards_check(kiln_cuda_device *d, const kiln_cuda_guards *g);

#endif
