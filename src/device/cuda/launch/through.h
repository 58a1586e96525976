/* Chains that read through kernels: what a small kernel makes, its readers make for themselves, with the same bits. In
 * a chain that kernel would be a wave of its own, or lengthen one. So chains are made of a plan that is rewritten:
 * operands and loads of the readers are those of the small kernel, which is gone where nobody reads it any more.
 * Kernels keep their numbers. Kernels that run one by one are those of the plan as it was. */
#ifndef KILN_CUDA_THROUGH_H
#define KILN_CUDA_THROUGH_H

#include "device/cuda/launch/exec.h"

/* *through: the plan for chains (rewrite.h), NULL where that is the plan itself. False with an error. */
bool kiln_cuda_read_through(const kiln_plan *plan, const kiln_cuda_part *parts, int64_t nparts, kiln_plan **through);

/* ---- Its two parts. *absorbed: how often something was read through; false with an error ---- */

/* Casts to 16 bits (casts.c). */
bool kiln_cuda_read_casts(kiln_plan *plan, const kiln_cuda_part *part, int64_t *absorbed);

/* Numbers that follow from counts (numbers.c). */
bool kiln_cuda_read_numbers(kiln_plan *plan, const kiln_cuda_part *part, int64_t *absorbed);

/* ---- For both ---- */

bool kiln_cuda_reads(const kiln_kernel *k, int32_t buffer);

/* Whether what is in the buffer when kernel `maker` runs is still the same when the reader runs, and while it does. */
bool kiln_cuda_stays(const kiln_plan *plan, int32_t maker, int32_t reader, int32_t buffer);

#endif
