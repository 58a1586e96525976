/* A plugin from another time: its table has a version that Kiln does not know. */
#include "device/device.h"

KILN_PLUGIN_API const kiln_device_table *kiln_device_plugin(void);
const kiln_device_table *kiln_device_plugin(void)
{
    static const kiln_device_table table = {.version = KILN_DEVICE_VERSION - 1, .kind = "opencl"};
    return &table;
}
