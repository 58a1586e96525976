/* Generated kernels: CUDA C (group/text.h, chain/text.c), compiled by NVRTC on threads of their own and kept, in memory
 * and on disk (codegen.c). Until a kernel is there, and wherever NVRTC is not, others do its work. */
#ifndef KILN_CUDA_CODEGEN_H
#define KILN_CUDA_CODEGEN_H

#include "device/cuda/common/cuda.h"

/* Bytes that a device moves in about the time in which a kernel is launched. */
#define KILN_CUDA_LAUNCH_WORK 8e6

/* The kernel of this text, for cudaLaunchKernel. *kernel is NULL if it is not there (yet): then it is being compiled,
 * or cannot be. `urgent`: before all that is not; `work`: how much there is for it each time the caller runs, in
 * bytes, so that what has the most comes first. False with an error when memory runs out. */
bool kiln_cuda_codegen_find(kiln_cuda_device *d, const char *text, bool urgent, double work, const void **kernel);

/* Changes when kernels have become available that graphs captured before do without. */
uint64_t kiln_cuda_codegen_generation(kiln_cuda_device *d);

/* Ends the threads and forgets all kernels; no graph may use them any more. */
void kiln_cuda_codegen_close(kiln_cuda_device *d);

/* ---- nvrtc.c ---- */

/* 0: texts are not compiled; 1: in the background; 2: while the caller waits. KILN_CUDA_JIT=0 and =wait ask for the
 * first and the last. */
int kiln_cuda_compiles(void);

/* Gets a cubin for a device of `capability` from the cache on disk or from NVRTC and hands it to `take`. False when
 * there is none (with an error of the calling thread), or when take returns false. */
bool kiln_cuda_compile(const char *text, int capability, bool (*take)(void *context, const void *cubin, size_t bytes),
                       void *context);

/* To be called before a text is given to another thread to compile. Where it will take the
 * compiler, that is opened and compiles next to nothing, once: all it sets up is set up then, and what it has
 * registered for the end of the process comes after `at_exit`. */
void kiln_cuda_compiler_prepare(const char *text, int capability, void (*at_exit)(void));

#endif
