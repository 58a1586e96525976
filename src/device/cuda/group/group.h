/* Groups as CUDA runs them: what group.c makes of a plan's group and the kernels of group.cu interpret. A program is a
 * kernel parameter: a head of fixed size, then operations, loads, stores and dims one after the other. Threads take a
 * few consecutive elements through all operations; registers are cells of 16 bytes a thread in shared memory, which
 * hold four elements of a narrow group (floats and bools) or two of a wide one (f64 or integers take part).
 *
 * Sums are made of quads, four consecutive elements, in an order that depends on the reduction's shape alone: not on
 * what else is in the group. */
#ifndef KILN_CUDA_GROUP_H
#define KILN_CUDA_GROUP_H

#include "device/cuda/common/launch.h"
#include "device/cuda/group/reduction.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What an operation does. */
enum {
    KILN_CUDA_LOAD,
    KILN_CUDA_STORE,
    KILN_CUDA_CAST, /* `row` is class from * 4 + class to */
    KILN_CUDA_ROW   /* + the operands' class (kiln_pw_class): `row` of pointwise.def */
};

typedef struct kiln_cuda_op {
    uint8_t code, row, arity;
    uint8_t after : 4, nscalars : 4;
    uint16_t dst, src[3]; /* registers; src[0] of a load and src[1] of a store is the number of its description */
    int32_t scalars;      /* the first of them */
} kiln_cuda_op;

enum {                  /* how a load gets its elements i, i+1, … */
       KILN_CUDA_SPLAT, /* all are data[0] */
       KILN_CUDA_LINE,  /* place(i), place(i) + step, …; place(i) = i·step where there are no dims */
       KILN_CUDA_ANY    /* place(i), place(i+1), … */
};

typedef struct kiln_cuda_load {
    const void *data;
    int64_t step;
    uint8_t dtype, kind, vector, ndim; /* vector: as one access of all the elements of a thread */
    int32_t dims;                      /* the first of them, innermost first */
} kiln_cuda_load;

typedef struct kiln_cuda_store {
    void *data;
    uint8_t dtype, vector;
} kiln_cuda_store;

typedef struct kiln_cuda_dim {
    int64_t size, stride;
    uint32_t magic, shift; /* n / size = (high 32 bits of n·magic + n) >> shift for n below 2^31 */
} kiln_cuda_dim;

enum { KILN_CUDA_GIFTS = 2 };
typedef struct kiln_cuda_program {
    int64_t count;
    const double *scalars;
    const int32_t *stop;
    int32_t nops, nloads, nstores, nregisters, bytes; /* bytes: of the body */
    int32_t below_2_31;                               /* places can be computed in 32 bits */
    int32_t shape;                                    /* KILN_CUDA_MAP, … */
    int32_t ngifts; /* registers that are operands of an operation (around.c); the interpreter knows of none */
    uint16_t gifts[KILN_CUDA_GIFTS];
    kiln_cuda_reduction r;
} kiln_cuda_program;

enum { KILN_CUDA_SMALL = 2048, KILN_CUDA_LARGE = 32256 };
typedef struct kiln_cuda_small {
    kiln_cuda_program p;
    unsigned char body[KILN_CUDA_SMALL];
} kiln_cuda_small;
typedef struct kiln_cuda_large { /* parameters may take 32,764 bytes */
    kiln_cuda_program p;
    unsigned char body[KILN_CUDA_LARGE];
} kiln_cuda_large;

enum { KILN_CUDA_MAP, KILN_CUDA_ROWS, KILN_CUDA_COLUMNS };

/* Kernels: of one parameter, kiln_cuda_small or kiln_cuda_large. Dynamic shared memory: the body, 16 bytes an
 * operation, a cell a register and thread. */
const void *kiln_cuda_group_kernel(int shape, bool wide, bool large);

/* Of one parameter, kiln_cuda_reduction: partial results to results. A block of KILN_CUDA_COMBINE threads a part of
 * KILN_CUDA_COMBINED columns. */
const void *kiln_cuda_combine_kernel(void);

#ifdef __cplusplus
}
#endif
#endif
