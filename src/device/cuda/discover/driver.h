/* The driver's own interface, opened at run time: it counts and describes devices without making a context on any. */
#ifndef KILN_CUDA_DRIVER_H
#define KILN_CUDA_DRIVER_H

#include <cuda.h>
#include "device/cuda/discover/reason.h"

typedef struct kiln_cuda_driver {
    int count;      /* devices; 0: see why */
    int version;    /* the CUDA it knows: 13000 for 13.0; 0: there is no driver */
    unsigned forks; /* as kiln_forks said when it was asked: it works in that process alone */
    char why[480];
    __typeof__(&cuInit) init;
    __typeof__(&cuGetErrorString) error_text;
    __typeof__(&cuDriverGetVersion) get_version;
    __typeof__(&cuDeviceGetCount) get_count;
    __typeof__(&cuDeviceGet) get;
    __typeof__(&cuDeviceGetName) name;
    __typeof__(&cuDeviceTotalMem) memory;
    __typeof__(&cuDeviceGetAttribute) attribute;
    __typeof__(&cuDeviceGetPCIBusId) bus;
    __typeof__(&cuDevicePrimaryCtxGetState) context;
} kiln_cuda_driver;

/* The driver, asked when first called. Never NULL; nothing but `count`, `version` and `why` may be used when count is
 * 0.
 */
const kiln_cuda_driver *kiln_cuda_driver_get(void);

/* What is missing from the machine, beside what the driver says itself. */
void kiln_cuda_look_around(kiln_cuda_signs *s);

#endif
