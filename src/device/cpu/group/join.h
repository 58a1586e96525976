/* Joining chains of instructions: see join.def. */
#ifndef KILN_CPU_JOIN_H
#define KILN_CPU_JOIN_H

#include "device/cpu/group/group.h"

/* Replaces chains in e->instrs whose inner results nobody else reads. `uses` has a count for every register. */
void kiln_cpu_join(kiln_cpu_group *e, int *uses);

#endif
