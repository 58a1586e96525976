/* Copies beside the runs: a stream of their own, tied to the device's by events. Copies to the host that are waited for
 * later are on the device's stream. */
#ifndef KILN_CUDA_STAGING_H
#define KILN_CUDA_STAGING_H

#include "device/cuda/common/cuda.h"

uint64_t kiln_cuda_mark(void *dev);
bool kiln_cuda_copy_in_later(void *dev, kiln_address to, const void *from, size_t bytes, uint64_t mark,
                             uint64_t *ticket);
bool kiln_cuda_await_copy(void *dev, uint64_t ticket);
bool kiln_cuda_copied(void *dev, uint64_t ticket, bool wait);

bool kiln_cuda_copy_out_later(void *dev, void *to, kiln_address from, size_t bytes, uint64_t *ticket);
bool kiln_cuda_copied_out(void *dev, uint64_t ticket);

/* Waits for all copies and frees what they needed. */
void kiln_cuda_staging_close(kiln_cuda_device *d);

#endif
