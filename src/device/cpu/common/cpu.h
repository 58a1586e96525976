/* The CPU's kernels for whoever runs plans on the host: the CPU device itself, simulated devices, and plugins that
 * begin with them. */
#ifndef KILN_CPU_CPU_H
#define KILN_CPU_CPU_H

#include "device/device.h"

KILN_PLUGIN_API bool kiln_cpu_supports(void *dev, const kiln_op *op, kiln_dtype dtype);
KILN_PLUGIN_API unsigned kiln_cpu_can(void *dev, const kiln_op *op, kiln_dtype dtype, const kiln_work *work);
KILN_PLUGIN_API size_t kiln_cpu_workspace(void *dev, const kiln_kernel *kernel);
KILN_PLUGIN_API void *kiln_cpu_lower(void *dev, const kiln_plan *plan);
KILN_PLUGIN_API void kiln_cpu_dispose(void *dev, void *exec);
KILN_PLUGIN_API size_t kiln_cpu_held(void *dev, const void *exec);

/* Runs all kernels with host addresses. A bad index ends the run at its kernel and is told in *bad. `timing`: each
 * kernel is timed; NULL: none is. */
KILN_PLUGIN_API void kiln_cpu_execute(const void *exec, const kiln_binding *binding, kiln_timing *timing,
                                      kiln_bad_index *bad);

/* The same as a device that is done when it returns has it: the bad index is raised as an error. */
KILN_PLUGIN_API bool kiln_cpu_run(void *dev, void *exec, const kiln_binding *binding);
KILN_PLUGIN_API bool kiln_cpu_time(void *dev, void *exec, const kiln_binding *binding, kiln_timing *timing);

#endif
