/* cuDNN: convolutions whose algorithm is chosen once for each shape. */
#ifndef KILN_CUDA_DNN_H
#define KILN_CUDA_DNN_H

#include "device/cuda/kernels/copy.h"
#include "device/cuda/common/cuda.h"

/* Whether cuDNN takes the convolution, and the scratch bytes it wants: always the same ones. False with an error, in
 * the name of `operation`, where cuDNN is not there. */
bool kiln_cuda_dnn_bytes(kiln_cuda_device *d, const char *operation, const kiln_cuda_conv *s, bool *takes,
                         size_t *bytes);

/* Puts the convolution on the device's stream, unless cuDNN turns out not to take it: *taken says so. `adds`: to what
 * the result holds. `bytes` is what the workspace has. */
bool kiln_cuda_dnn_run(kiln_cuda_device *d, const char *operation, const kiln_cuda_conv *s,
                       const kiln_cuda_conv_data *data, bool adds, void *workspace, size_t bytes, bool *taken);

/* For closing a device. */
void kiln_cuda_dnn_close(kiln_cuda_device *d);

#endif
