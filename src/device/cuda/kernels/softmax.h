/* What launchers and generated kernels must know of softmax. Read by both. */
#ifndef KILN_CUDA_SOFTMAX_H
#define KILN_CUDA_SOFTMAX_H

enum { KILN_CUDA_SHORT_ROW = 16 /* elements of a row that half a warp takes */ };

#endif
