/* Which instructions the kernels may use: the best this machine has, or what KILN_ISA asks for. */
#ifndef KILN_CPU_ISA_H
#define KILN_CPU_ISA_H

#include <stddef.h>

/* From one to the next they only have more; the last two are for products of bf16. */
typedef enum kiln_isa { KILN_ISA_PLAIN, KILN_ISA_AVX2, KILN_ISA_AVX512, KILN_ISA_AVX512_BF16, KILN_ISA_AMX } kiln_isa;

/* KILN_ISA=plain, avx2, avx512, avx512bf16 or amx asks for one, and gets it if the machine has it. */
kiln_isa kiln_isa_best(void);

/* The best of three tables of kernels, of which those the compiler could not make are NULL. */
static inline const void *kiln_isa_pick(const void *plain, const void *avx2, const void *avx512)
{
    kiln_isa isa = kiln_isa_best();
    return isa >= KILN_ISA_AVX512 && avx512 ? avx512 : isa >= KILN_ISA_AVX2 && avx2 ? avx2 : plain;
}

#endif
