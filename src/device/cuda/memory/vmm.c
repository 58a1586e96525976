/* The functions of the driver that reserve addresses and map memory. */
#include "device/cuda/memory/vmm.h"

enum { SINCE = 10020 }; /* the version of CUDA that brought virtual memory: its functions are asked for as of then */

static void *find(const char *name)
{
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found;
    cudaError_t e = cudaGetDriverEntryPointByVersion(name, &function, SINCE, cudaEnableDefault, &found);
    if (e == cudaSuccess && found == cudaDriverEntryPointSuccess)
        return function;
    cudaGetLastError(); /* plain memory does without it */
    return NULL;
}

static CUmemAllocationProp properties(int index)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = index}};
}

static bool supported(int index)
{
    __typeof__(&cuDeviceGet) get = (__typeof__(&cuDeviceGet))(uintptr_t)find("cuDeviceGet");
    __typeof__(&cuDeviceGetAttribute) attribute =
        (__typeof__(&cuDeviceGetAttribute))(uintptr_t)find("cuDeviceGetAttribute");
    CUdevice device;
    int yes = 0;
    return get && attribute && get(&device, index) == CUDA_SUCCESS &&
           attribute(&yes, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) == CUDA_SUCCESS && yes;
}

bool kiln_cuda_vmm_open(kiln_cuda_vmm *v, int index)
{
    const struct {
        const char *name;
        void **to;
    } functions[] = {{"cuMemAddressReserve", (void **)&v->reserve},
                     {"cuMemAddressFree", (void **)&v->unreserve},
                     {"cuMemCreate", (void **)&v->create},
                     {"cuMemRelease", (void **)&v->release},
                     {"cuMemMap", (void **)&v->map},
                     {"cuMemUnmap", (void **)&v->unmap},
                     {"cuMemSetAccess", (void **)&v->set_access}};
    *v = (kiln_cuda_vmm){.index = index};
    if (!supported(index))
        return false;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!(*functions[i].to = find(functions[i].name)))
            return false;
    __typeof__(&cuMemGetAllocationGranularity) granularity =
        (__typeof__(&cuMemGetAllocationGranularity))(uintptr_t)find("cuMemGetAllocationGranularity");
    CUmemAllocationProp p = properties(index);
    return granularity && granularity(&v->granule, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS && v->granule;
}

uint64_t kiln_cuda_vmm_reserve(const kiln_cuda_vmm *v, size_t bytes)
{
    CUdeviceptr address = 0;
    return v->reserve(&address, bytes, 0, 0, 0) == CUDA_SUCCESS ? (uint64_t)address : 0;
}

void kiln_cuda_vmm_unreserve(const kiln_cuda_vmm *v, uint64_t address, size_t bytes)
{
    if (address)
        v->unreserve((CUdeviceptr)address, bytes);
}

/* The handle is let go at once: the mapping alone keeps the memory. */
static CUresult map_piece(const kiln_cuda_vmm *v, uint64_t address, size_t size)
{
    CUmemAllocationProp p = properties(v->index);
    CUmemGenericAllocationHandle memory;
    CUresult r = v->create(&memory, size, &p, 0);
    if (r != CUDA_SUCCESS)
        return r;
    r = v->map((CUdeviceptr)address, size, 0, memory, 0);
    CUresult released = v->release(memory);
    return r != CUDA_SUCCESS ? r : released;
}

/* Errors of the driver and of the runtime have the same numbers. */
cudaError_t kiln_cuda_vmm_map(const kiln_cuda_vmm *v, uint64_t address, size_t size, uint64_t count)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = v->index},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult r = CUDA_SUCCESS;
    uint64_t n = 0;
    while (n < count && (r = map_piece(v, address + n * size, size)) == CUDA_SUCCESS)
        n++;
    if (r == CUDA_SUCCESS)
        r = v->set_access((CUdeviceptr)address, size * count, &access, 1);
    if (r != CUDA_SUCCESS)
        kiln_cuda_vmm_unmap(v, address, size, n);
    return (cudaError_t)r;
}

cudaError_t kiln_cuda_vmm_unmap(const kiln_cuda_vmm *v, uint64_t address, size_t size, uint64_t count)
{
    CUresult r = CUDA_SUCCESS;
    for (uint64_t n = 0; n < count; n++) {
        CUresult one = v->unmap((CUdeviceptr)(address + n * size), size);
        r = r != CUDA_SUCCESS ? r : one;
    }
    return (cudaError_t)r;
}
