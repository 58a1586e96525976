/* Links of a chain that do the same with other memory: written once, with a table that says which addresses are whose.
 * The updates of a hundred parameters have a handful of shapes. */
#ifndef KILN_CUDA_ALIKE_H
#define KILN_CUDA_ALIKE_H

#include "device/cuda/chain/link.h"

/* By link. Sets are numbered in the order of waves and of their members: those of a wave follow each other in the
 * table. */
typedef struct kiln_cuda_alike {
    int32_t *like; /* the first link that is like it, which may be itself; -1: it is written by itself */
    int32_t *set;  /* its line in the table of that one */
    char **texts;  /* while they are compared */
} kiln_cuda_alike;

/* False when there is no memory. */
bool kiln_cuda_find_alike(kiln_cuda_alike *to, const kiln_cuda_chain *chain);
void kiln_cuda_free_alike(kiln_cuda_alike *alike);

/* Before the kernel: what is written once for all that are like `link`, the first of them. */
void kiln_cuda_declare_alike(kiln_cuda_author *a, const kiln_cuda_alike *alike, const kiln_cuda_link *link);

/* How many members of a wave are written with this one, the first of them, itself included; 0: it is not the first. As
 * they take the same time, they may as well follow each other. */
int64_t kiln_cuda_count_alike(const kiln_cuda_alike *alike, const kiln_cuda_chain *chain, int64_t link);

/* Within it: all that are written with `link`, whose first unit is number `first` of the wave. */
void kiln_cuda_say_alike(kiln_cuda_author *a, const kiln_cuda_alike *alike, const kiln_cuda_link *link, int64_t first);

#endif
