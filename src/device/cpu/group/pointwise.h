/* The CPU's pointwise kernels: one function for every row of pointwise.def and register class, working on registers
 * (arrays of up to a tile's elements), plus what moves elements between memory and registers and folds them together.
 * Three tables of them exist, for plain C, AVX2 and AVX-512; all three give the same bits. */
#ifndef KILN_CPU_POINTWISE_H
#define KILN_CPU_POINTWISE_H

#include "ops/pointwise.h"
#include "plan/plan.h"

/* d[i] = row(a[i], b[i], c[i]). Operands a row does not have are ignored, as are scalars beyond its count. d may be one
 * of the operands if that is of d's class; otherwise it overlaps none. `iota` takes the first place's index from
 * scalars[2]. */
typedef void (*kiln_pw_fn)(void *d, const void *a, const void *b, const void *c, const double *scalars, int64_t n);

/* n elements of x into acc, of one class. MAX and MIN of floats give NaN where one takes part; ANY and ALL give 0 or 1;
 * bools have no SUM and PROD. */
typedef void (*kiln_pw_fold_fn)(void *acc, const void *x, int64_t n);

/* Chains of rows that are one function: see join.def. */
typedef enum kiln_join {
#define KILN_JOIN(name, ...) KILN_JOIN_##name,
#include "device/cpu/group/join.def"
#undef KILN_JOIN
    KILN_JOINS
} kiln_join;

typedef struct kiln_pw_table {
    const char *isa; /* "plain", "avx2", "avx512" */

    /* fn[class of the operands (PICK: of operand 1)][row]; NULL where the class has no such row. */
    const kiln_pw_fn *fn[KILN_PW_CLASSES];

    /* joined[class][join]; NULL for classes that are no floats. */
    const kiln_pw_fn *joined[KILN_PW_CLASSES];

    /* cast[from][to]. Floats become integers by truncation; what does not fit, and NaN, becomes the lowest i64, and 0
     * where u8 takes the low bits of that. i32 has its own lowest number: to_i32[from], NULL where `from` is no float.
     */
    kiln_pw_fn cast[KILN_PW_CLASSES][KILN_PW_CLASSES];
    kiln_pw_fn to_i32[KILN_PW_CLASSES];

    /* Between memory of a dtype and a register of its class. Stores to f16 and bf16 round to nearest even, those to u8
     * and i32 keep the low bits; bools come in and go out as 0 or 1. Strides are in elements. splat repeats mem[0]. */
    void (*load[KILN_DTYPES])(void *reg, const void *mem, int64_t n);
    void (*load_strided[KILN_DTYPES])(void *reg, const void *mem, int64_t stride, int64_t n);
    void (*splat[KILN_DTYPES])(void *reg, const void *mem, int64_t n);
    void (*store[KILN_DTYPES])(void *mem, const void *reg, int64_t n);

    /* What a store and a load after it would leave of a register. NULL where that changes nothing. `wrap` is needed
     * after integer instructions; `round` after a cast to f16 or bf16 that stays in a register. */
    void (*wrap[KILN_DTYPES])(void *reg, int64_t n);
    void (*round[KILN_DTYPES])(void *reg, int64_t n);

    /* fold[class][fold]: acc[i] = acc[i] ∘ x[i] */
    const kiln_pw_fold_fn *fold[KILN_PW_CLASSES];

    /* reduce[class][fold]: *acc = x[0] ∘ … ∘ x[n-1] in an order that depends on n alone; the neutral element for n = 0
     */
    const kiln_pw_fold_fn *reduce[KILN_PW_CLASSES];
} kiln_pw_table;

/* NULL where the compiler's target has no such instructions. */
extern const kiln_pw_table *const kiln_pw_plain, *const kiln_pw_avx2, *const kiln_pw_avx512;

/* The best of them this machine runs; KILN_ISA=plain, avx2 or avx512 asks for one (and gets it if the machine has it).
 */
const kiln_pw_table *kiln_pw_best(void);

#endif
