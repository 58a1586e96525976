/* How long work takes at best, by a table: what recomputing costs is weighed with it, and kiln plan shows it. Never a
 * measurement, so that the same step has the same plan in every process. */
#ifndef KILN_PLAN_ROOF_H
#define KILN_PLAN_ROOF_H

#include "kiln/device.h"

/* Seconds that the device needs for so much arithmetic and so much memory traffic, whichever takes longer. */
double kiln_roof_seconds(kiln_device device, double flops, double bytes);

#endif
