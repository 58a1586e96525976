/* What a chain's kernel gets beside addresses and scalars. Read by C and by generated kernels. */
#ifndef KILN_CUDA_CHAIN_PARAMETERS_H
#define KILN_CUDA_CHAIN_PARAMETERS_H

#include "device/cuda/common/fault.h"

typedef struct kiln_cuda_chain_parameters {
    unsigned long long *barrier; /* blocks that have come to any barrier so far; KILN_CUDA_STOPPED after a fault */
    unsigned long long base;     /* its count when the run begins */
    unsigned long long run;      /* the run's number, or the first one's; 0: the prologue of the graph has told it */
    unsigned long long runs;     /* how many there are, one after the other */
    kiln_cuda_status *state;
    kiln_cuda_record *record;
    unsigned long long *counts[2]; /* words that links add to: of the first run, and of the next; used in turn */
} kiln_cuda_chain_parameters;

enum { KILN_CUDA_CHAIN_THREADS = 512 };

/* Blocks take the units of a wave in rounds, every other one backwards: where units come longest first, the second
 * round begins with the blocks that have least to do. A block's first unit has its own number; `step` further on is its
 * next, and from there as many as the next step. */
#define KILN_CUDA_FIRST_STEP(block, blocks) (2 * ((blocks) - (block)) - 1)
#define KILN_CUDA_NEXT_STEP(step, blocks)   (2 * (blocks) - (step))

#endif
