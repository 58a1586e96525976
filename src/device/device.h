/* The device table: everything Kiln asks of a device. A plugin `libkiln-<kind>.so` exports one function,
 * `const kiln_device_table *kiln_device_plugin(void)`, which answers with its table or NULL. Slots marked (optional)
 * may be NULL; the comment says what happens then. All functions may be called from any thread. Failures return false
 * (or NULL, or 0) after raising an error with kiln_fail. */
#ifndef KILN_DEVICE_DEVICE_H
#define KILN_DEVICE_DEVICE_H

#include "plan/plan.h"

enum { KILN_DEVICE_VERSION = 8 };

/* Kinds of devices that the registry knows, and how many there can be of each. */
enum { KILN_DEVICE_KINDS = 4, KILN_DEVICES_OF_A_KIND = 16 };

typedef struct kiln_device_table {
    uint32_t version; /* KILN_DEVICE_VERSION */
    const char *kind; /* "cuda" */
    bool runs_on;  /* run returns before the work is done: bindings come with a kiln_run, whose `failed` the device sets
                    * when the run is stopped or skipped, and to which it holds a reference until then */
    int64_t roomy; /* kernels of a plan may run side by side here, unless they share memory: a plan whose scratch takes
                    * less than this is laid out without using room twice */
    bool counts_products; /* a group that begins with a product may also end in a sum of integers, of all elements */
    int64_t row_bytes; /* large products of 16 bits, and of f32 that may be TF32, take a fraction of the time where rows
                        * of their matrices begin and end at multiples of so many bytes; 0: it makes no difference */
    bool apart; /* for finding errors: blocks are of exactly the size asked for, come from the device and go back to it
                 * one by one, and buffers of a plan share no room */

    /* How many devices there are; 0 with the reason in `why`, which is empty otherwise or says what may hide others.
     * Opens none. */
    int (*count)(char *why, size_t size);
    bool (*describe)(int index, kiln_device_info *info);

    /* The first use of a device; the result is passed to everything below. */
    void *(*open)(int index);
    void (*close)(void *dev);

    /* Plain memory. The pool above it caches, counts and limits. 64-byte aligned; 0 when the device has no more. */
    kiln_address (*allocate)(void *dev, size_t bytes);
    void (*release)(void *dev, kiln_address address, size_t bytes);

    /* Gives what blocks that were released still hold back to the system. (optional: releasing does) */
    void (*trim)(void *dev);

    /* One piece of memory that grows and shrinks at its end while its address stays the same: scratch for runs, which
     * share it, so only a device that does one run after the other has it. Makes it `bytes` long and returns how long
     * it is then: less than `bytes` when the device has no more, which is no error. What lies below both lengths is
     * left as it was. *address is 0 where there is no arena after all. (optional: each run gets a block) */
    size_t (*arena)(void *dev, size_t bytes, kiln_address *address);

    /* Bytes that the device takes beside blocks and arena: its context, libraries, what is lost to rounding up. They
     * count towards the limit. (optional: 0) */
    uint64_t (*overhead)(void *dev);

    /* Host memory that the device reads and writes directly, of the size asked for and no more (whole pages of it), for
     * the staging of batches; NULL when there is no more, with no error raised: any host memory does instead.
     * (optional: NULL, both or none) */
    void *(*pinned)(void *dev, size_t bytes);
    void (*unpin)(void *dev, void *memory);

    /* Copies are ordered with runs: a copy sees all runs given before it. The host memory may be reused on return. */
    bool (*copy_in)(void *dev, kiln_address to, const void *from, size_t bytes);
    bool (*copy_out)(void *dev, void *to, kiln_address from, size_t bytes);

    /* Copies beside the runs, on a way of their own, one after the other: a copy begins once everything given up to a
     * mark is over and returns at once; what it copies from, pinned as a rule, must stay as it is until it is done.
     * `mark` sets a mark behind all that was given so far (0 with an error); after `await_copy` what is given comes
     * after the copy; `copied` tells whether it is done, or waits for it. (optional, all four or none: copy_in) */
    uint64_t (*mark)(void *dev);
    bool (*copy_in_later)(void *dev, kiln_address to, const void *from, size_t bytes, uint64_t mark, uint64_t *ticket);
    bool (*await_copy)(void *dev, uint64_t ticket);
    bool (*copied)(void *dev, uint64_t ticket, bool wait);

    /* Copies to the host that are begun now and waited for later. Such a copy keeps its place in the order of runs and
     * copies: it sees all runs given before it and none after; `to`, pinned as a rule, belongs to it until it is done.
     * `copied_out` waits for that, but for nothing given after the copy; false if a run before it failed, with the
     * error of that run where the thread was not told of it yet. Tickets can be asked about again, however many there
     * are. (optional, both or none: copy_out) */
    bool (*copy_out_later)(void *dev, void *to, kiln_address from, size_t bytes, uint64_t *ticket);
    bool (*copied_out)(void *dev, uint64_t ticket);

    /* Is there a kernel for the operation with a first operand of this dtype? */
    bool (*supports)(void *dev, const kiln_op *op, kiln_dtype dtype);

    /* What it can do with an operation with a first operand of this dtype: KILN_CAN_* of plan.h. A kernel with a group
     * gets no place for its first result, one with a lead none for the operands that this makes. (optional: groups may
     * finish products) */
    unsigned (*can)(void *dev, const kiln_op *op, kiln_dtype dtype, const kiln_work *work);

    /* Scratch bytes a kernel wants beside its operands (shapes are known, buffers are not yet). (optional: 0) */
    size_t (*workspace)(void *dev, const kiln_kernel *kernel);

    /* How it would compute the kernels of a plan, where more than their shapes decides that and bits depend on it:
     * tiles of a product that others share a launch with, what a library does on the way. A plan whose kernels have
     * choices is lowered by these, and asks for their workspaces; that is how values computed a second time get the
     * bits of the first. Fills a choice for each kernel, all of them zero before. (optional: shapes alone decide) */
    bool (*choose)(void *dev, const kiln_plan *plan, kiln_choice *choices);

    /* Turns a finished plan into something that can be run many times, also at the same time from several threads. */
    void *(*lower)(void *dev, const kiln_plan *plan);
    void (*dispose)(void *dev, void *exec);

    /* Host memory that it takes, by which plans that are not used any more are dropped. (optional: 0) */
    size_t (*held)(void *dev, const void *exec);

    /* Starts the run and may return before it is done; the binding is copied if need be. The order of runs and copies
     * is that of the calls. A bad index stops the run before anything in a slot was written. */
    bool (*run)(void *dev, void *exec, const kiln_binding *binding);

    /* The same run, with the same bits, kernel by kernel; returns when it is over, with what each took in *timing. What
     * goes wrong is told as `run` tells it: a run that is stopped later, or skipped, has times that mean nothing. A
     * kernel that another one makes along with its own has none. (optional: steps cannot be timed) */
    bool (*time)(void *dev, void *exec, const kiln_binding *binding, kiln_timing *timing);

    /* Waits for all that was started; false with the error of a run that failed, if the thread was not told of it yet
     * (failures.h). So do `run`, which starts nothing then, and `copy_out`. */
    bool (*wait)(void *dev);

    /* False, with the reason in `why`, for a device that is there but must not be opened. (optional: true) */
    bool (*usable)(int index, char *why, size_t size);

    /* The libraries it works with, at most `room`; how many. May take its time. (optional: 0) */
    int (*libraries)(kiln_device_library *list, int room);
} kiln_device_table;

typedef const kiln_device_table *(*kiln_device_plugin_fn)(void);

/* The open device behind a number, opening it on first use; NULL with an error that says why. */
typedef struct kiln_open_device kiln_open_device;
const kiln_device_table *kiln_device_open(kiln_device device, void **dev);

/* The same for a device that is open already; NULL without an error for one that nobody has used. */
const kiln_device_table *kiln_device_opened(kiln_device device, void **dev);

extern const kiln_device_table kiln_cpu_table;

/* The error of a run in which a kernel of `plan` met a bad index (NULL: the plan is gone), to be raised by whoever is
 * to be told; the second raises it and is always false. */
KILN_PLUGIN_API kiln_error kiln_bad_index_error(const kiln_plan *plan, const kiln_bad_index *bad);
bool kiln_fail_bad_index(const kiln_plan *plan, const kiln_bad_index *bad);

#endif
