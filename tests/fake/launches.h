/* What a CUDA device that runs nothing has been given (launches.c): for the plugin of lowering.c, and for tests, which
 * find these functions by their names. */
#ifndef KILN_TEST_LAUNCHES_H
#define KILN_TEST_LAUNCHES_H

#include <stdbool.h>
#include "tensor/tensor.h"

KILN_PLUGIN_API int fake_launches(void);          /* of whole steps, so far */
KILN_PLUGIN_API int fake_runs(void);              /* in these launches */
KILN_PLUGIN_API int fake_most_runs(void);         /* that a launch of the last one's chain has room for */
KILN_PLUGIN_API int fake_runs_given(void);        /* of any plan, launched or not */
KILN_PLUGIN_API int fake_gathered_ahead(void);    /* launches of several runs that gather batches ahead */
KILN_PLUGIN_API int fake_single_launches(void);   /* of kernels of a step that is launched one by one */
KILN_PLUGIN_API int fake_delays(void);            /* before such launches */
KILN_PLUGIN_API int fake_wrong(void);             /* launches and runs that were not as they should be */
KILN_PLUGIN_API int fake_begin(int runs);         /* lets so many runs begin; how many have not begun yet */
KILN_PLUGIN_API int fake_fault(int run);          /* lets the launched run with this number meet a bad index; it */
KILN_PLUGIN_API int fake_fail_launches(int fail); /* 1: launches fail from now on; 2: one, for want of memory; it */
KILN_PLUGIN_API int fake_share(int shared);       /* whether other processes use the device, too; it */
KILN_PLUGIN_API int fake_give_way(int us);        /* whoever gives up the device's lock lets others go first; it */

#ifdef KILN_FAKE_PLUGIN
#include "device/cuda/launch/exec.h"

/* Sets up the device, and starts a run as exec.c does: with addresses and scalars that launches are compared with. */
bool fake_open(kiln_cuda_device *d);
void fake_close(kiln_cuda_device *d);
bool fake_run(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_binding *b);
bool fake_time(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_binding *b, kiln_timing *timing);
#endif

#endif
