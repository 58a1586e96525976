/* Virtual memory by the driver: addresses are reserved, and memory is put behind them and taken away in granules. The
 * driver's functions are found at run time, so that nothing links its library. */
#ifndef KILN_CUDA_VMM_H
#define KILN_CUDA_VMM_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kiln_cuda_vmm {
    int index;      /* of the device */
    size_t granule; /* the smallest piece of memory there is: 2 MiB */
    __typeof__(&cuMemAddressReserve) reserve;
    __typeof__(&cuMemAddressFree) unreserve;
    __typeof__(&cuMemCreate) create;
    __typeof__(&cuMemRelease) release;
    __typeof__(&cuMemMap) map;
    __typeof__(&cuMemUnmap) unmap;
    __typeof__(&cuMemSetAccess) set_access;
} kiln_cuda_vmm;

/* False, without an error, where the driver or the device does not know virtual memory. */
bool kiln_cuda_vmm_open(kiln_cuda_vmm *v, int index);

/* A range of addresses, without memory; 0 when there is none. */
uint64_t kiln_cuda_vmm_reserve(const kiln_cuda_vmm *v, size_t bytes);
void kiln_cuda_vmm_unreserve(const kiln_cuda_vmm *v, uint64_t address, size_t bytes);

/* Puts memory behind `count` pieces of `size` bytes each (whole granules), all or none. Each can be unmapped by itself;
 * its memory goes back to the system then. The caller has made sure that nothing uses it any more. */
cudaError_t kiln_cuda_vmm_map(const kiln_cuda_vmm *v, uint64_t address, size_t size, uint64_t count);
cudaError_t kiln_cuda_vmm_unmap(const kiln_cuda_vmm *v, uint64_t address, size_t size, uint64_t count);

#endif
