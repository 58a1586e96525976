/* Failures on a device that works on while the host goes on, and who knows of them. A run that fails stops the device:
 * what was given behind it, by whichever thread, does not take place until the host has learned of it. Every thread
 * that uses the device is told once, when it next runs, waits or reads: its own work may be among what was skipped, and
 * may build on what another thread was to compute. Each is told what concerns it most: that its own run failed, that
 * one was skipped, or that another thread's failed.
 *
 * Work is numbered in the order in which it is given, from 1 on. Everything here is to be called with the device's lock
 * held. */
#ifndef KILN_DEVICE_FAILURES_H
#define KILN_DEVICE_FAILURES_H

#include "kiln/error.h"
#include "core/export.h"

enum { KILN_FAILURES = 16 }; /* whose words are kept */

typedef struct kiln_failure {
    uint64_t first, last; /* the run that failed, and the last work that was given before the device began anew */
    uint64_t thread;      /* which gave the first */
    kiln_error error;
} kiln_failure;

typedef struct kiln_failures {
    kiln_failure kept[KILN_FAILURES];
    uint64_t count;
    uint64_t told; /* how many of them some thread has been told of */
} kiln_failures;

typedef struct kiln_witness { /* what a thread has to do with a device: a thread-local variable, zero at first */
    uint64_t thread;          /* its number; 0: it is new here */
    uint64_t given;           /* the last work it gave */
    uint64_t knows;           /* how many failures it has been told of */
} kiln_witness;

/* The number of the calling thread, which no other has or had. One that is new to the device needs to know only of
 * those failures that nobody was told of. */
KILN_PLUGIN_API uint64_t kiln_witness_thread(const kiln_failures *f, kiln_witness *w);

KILN_PLUGIN_API void kiln_failures_add(kiln_failures *f, uint64_t first, uint64_t last, uint64_t thread,
                                       const kiln_error *error);

/* True if the thread knows of all failures of work up to number `until`; otherwise raises an error that tells of them.
 */
KILN_PLUGIN_API bool kiln_failures_tell(kiln_failures *f, kiln_witness *w, uint64_t until);

/* The caller has been told of the latest failure by other means. */
KILN_PLUGIN_API void kiln_failures_told(kiln_failures *f, kiln_witness *w);

/* Whether the work of that number failed or was skipped; also true if that is so long ago that nobody knows. */
KILN_PLUGIN_API bool kiln_failures_hit(const kiln_failures *f, uint64_t number);

#endif
