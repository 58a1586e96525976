/* take_samples on CUDA: a batch as plain numbers, for launchers, for generated kernels and for the device code of
 * samples.cuh alike. */
#ifndef KILN_CUDA_SAMPLES_H
#define KILN_CUDA_SAMPLES_H

#include "core/order.h"
#include "core/pose.h"
#include "ops/samples.h"

/* What becomes of what is stored. */
enum { KILN_CUDA_AS_STORED, KILN_CUDA_BY_TABLE, KILN_CUDA_U8_TO_I64, KILN_CUDA_I32_TO_I64 };

/* All is counted in units: what a thread moves at once. Unit u of row r is unit start + sample · distance + u of the
 * data, and unit r · units + u of the result. Where images are augmented that holds for the result alone: what is read
 * is counted in elements. */
typedef struct kiln_cuda_samples {
    const void *data;
    const float *table; /* for KILN_CUDA_BY_TABLE */
    void *out;
    const double *scalars; /* KILN_SAMPLES_POSITION and so on, in device memory */
    kiln_order_size order;
    int64_t rows, units; /* of the batch; of a row */
    int64_t start, distance;
    int32_t how;
    int32_t width;      /* elements a unit (by table: 1 or 4), or its bytes (as stored: 1 to 16) */
    int32_t flip, crop; /* both 0: nothing is augmented, and what follows is not used */
    int64_t image_height, image_width;
    uint64_t blank; /* the bits of an element that comes from outside of an image */
} kiln_cuda_samples;

#ifndef __CUDACC_RTC__
#include "device/cuda/common/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Describes a call of take_samples, whose addresses are known. */
void kiln_cuda_samples_describe(const kiln_cuda_call *c, kiln_cuda_samples *s);

#ifdef __cplusplus
}
#endif
#endif

#endif
