/* The index kernels that need no indices: where each element goes is known from shapes alone. */
#ifndef KILN_CPU_STRIDED_H
#define KILN_CPU_STRIDED_H

#include "device/cpu/common/call.h"

/* Elements move as words of their size, whatever they stand for. */
typedef uint8_t __attribute__((may_alias)) kiln_word1;
typedef uint16_t __attribute__((may_alias)) kiln_word2;
typedef uint32_t __attribute__((may_alias)) kiln_word4;
typedef uint64_t __attribute__((may_alias)) kiln_word8;
#define KILN_WORDS(X) X(1) X(2) X(4) X(8)

/* Types that elements are added in: X(name, C type). Integers wrap, so they are added unsigned. */
#define KILN_ADDABLE(X) X(f32, float) X(f64, double) X(i64, uint64_t) X(i32, uint32_t) X(u8, uint8_t)

/* table[kiln_add_slot(dtype)] for a table written with KILN_ADDABLE. */
static inline int kiln_add_slot(kiln_dtype dtype)
{
    return dtype == KILN_F32 ? 0 : dtype == KILN_F64 ? 1 : dtype == KILN_I64 ? 2 : dtype == KILN_I32 ? 3 : 4;
}

/* table[kiln_word_slot(size)] for a table written with KILN_WORDS. */
static inline int kiln_word_slot(size_t size)
{
    return size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : 3;
}

/* Element (o, i, n) of an operand, split at `dim`, is number (o · at + i) · after + n. A number without dims is [1]. */
typedef struct kiln_extent {
    int64_t before, at, after;
} kiln_extent;
static inline kiln_extent kiln_extent_at(const kiln_cpu_operand *x, int64_t dim)
{
    kiln_extent s = {1, 1, 1};
    for (int d = 0; d < x->ndim; d++)
        *(d < dim ? &s.before : d == dim ? &s.at : &s.after) *= x->shape[d];
    return s;
}

/* to = from, `bytes` long, on all threads; nothing when they are the same memory. */
void kiln_copy_bytes(void *to, const void *from, int64_t bytes);

void kiln_cpu_cat(const kiln_cpu_call *c);
void kiln_cpu_constant_pad(const kiln_cpu_call *c);
void kiln_cpu_as_strided_add(const kiln_cpu_call *c);

#endif
