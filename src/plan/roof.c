/* The roofs of devices: see roof.h. */
#include "plan/roof.h"
#include <string.h>

/* Orders of magnitude, rounded down from what vendors promise: one core's share of a server for the CPU (and for sim,
 * which computes there), an H200's f32 products and memory for GPUs. What they decide is a matter of their ratio. */
static const struct roof {
    const char *kind;
    double flops, bytes; /* a second */
} roofs[] = {{"cuda", 5e13, 4e12}, {"opencl", 1e13, 5e11}, {"cpu", 1e11, 1e10}};

double kiln_roof_seconds(kiln_device device, double flops, double bytes)
{
    const char *name = kiln_device_name(device);
    const struct roof *r = roofs;
    while (strncmp(name, r->kind, strlen(r->kind)) != 0 && r < roofs + sizeof roofs / sizeof *roofs - 1)
        r++;
    double arithmetic = flops / r->flops, traffic = bytes / r->bytes;
    return arithmetic > traffic ? arithmetic : traffic;
}
