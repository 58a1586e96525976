/* Timing the launches of a run: events on the stream before and behind each of them. */
#ifndef KILN_CUDA_LAPS_H
#define KILN_CUDA_LAPS_H

#include "device/cuda/common/cuda.h"

typedef struct kiln_cuda_laps {
    kiln_timing *timing;
    cudaEvent_t *events;
    int64_t room, nevents; /* events that are there; that were recorded */
} kiln_cuda_laps;

/* Makes events for so many launches at most; false with an error. */
bool kiln_cuda_laps_open(kiln_cuda_device *d, kiln_cuda_laps *laps, kiln_timing *timing, int64_t launches);
void kiln_cuda_laps_close(kiln_cuda_laps *laps);

/* Around a launch for the kernels first … end-1, with the device's lock held; NULL: the run is not timed. False with an
 * error. */
bool kiln_cuda_lap_begins(kiln_cuda_device *d, kiln_cuda_laps *laps);
bool kiln_cuda_lap_ends(kiln_cuda_device *d, kiln_cuda_laps *laps, int32_t first, int32_t end);

/* Waits for the last launch and sets the times. Kernels, numbered as in `plan`, get the numbers they have in `given`,
 * which may have more: sums that products make (sums.h). False with an error. */
bool kiln_cuda_laps_read(kiln_cuda_device *d, kiln_cuda_laps *laps, const kiln_plan *plan, const kiln_plan *given);

#endif
