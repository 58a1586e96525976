/* Compiled kernels on disk, in $XDG_CACHE_HOME/kiln, else ~/.cache/kiln. What is found there runs on the GPU with the
 * rights of this process, so the folder and its files must belong to the user and be writable by nobody else; otherwise
 * nothing is read from there or written to it. A file is named by the SHA-256 of all that its kernel was compiled from,
 * carries that, and a digest of its contents; it appears by a rename, so it is whole or not there. What cannot be read
 * or written is compiled again. Knows nothing of CUDA, so that it can be tested anywhere. */
#ifndef KILN_CUDA_CUBINS_H
#define KILN_CUDA_CUBINS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kiln_cuda_key {
    uint8_t hash[32];
} kiln_cuda_key;

/* Of texts, one after the other, each ended. False, without an error, where there is no library that computes it. */
bool kiln_cuda_key_make(kiln_cuda_key *key, const char *const *texts, int count);

/* To be freed with kiln_free; NULL, without an error, if it is not there or cannot be trusted. */
void *kiln_cuda_cubin_read(const kiln_cuda_key *key, size_t *bytes);
void kiln_cuda_cubin_write(const kiln_cuda_key *key, const void *cubin, size_t bytes);

/* False, with the reason, where kernels are not kept. */
bool kiln_cuda_cubins_kept(char *why, size_t size);

#endif
