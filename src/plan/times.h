/* Steps that are timed, kernel by kernel: what a device measured of a run becomes what kiln_step_times tells. */
#ifndef KILN_PLAN_TIMES_H
#define KILN_PLAN_TIMES_H

#include "plan/plan.h"
#include "trace/trace.h"

/* Before a run of the plan of what is pending, with an empty timing: room for what the device measures, and for all of
 * it among the step's times. False with an error. */
bool kiln_times_begin(kiln_trace *tr, const kiln_plan *plan, kiln_timing *timing);

/* After it, or an error before it: the step has these times too, if it ran; the timing is empty again. */
void kiln_times_end(kiln_trace *tr, const kiln_plan *plan, kiln_timing *timing, bool ok);

#endif
