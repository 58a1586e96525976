/* The device layer's side of planning, copying and running: finds the open device and calls its table. */
#include "plan/backend.h"
#include "core/fail.h"
#include "core/fork.h"
#include "core/parallel.h"
#include "device/device.h"
#include "tensor/memory.h"
#include "trace/trace.h"

bool kiln_device_supports(kiln_device device, const kiln_op *op, kiln_dtype dtype)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(device, &dev);
    return table && table->supports(dev, op, dtype);
}

bool kiln_copy_in(kiln_device device, kiln_address to, const void *from, size_t bytes)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(device, &dev);
    return table && table->copy_in(dev, to, from, bytes);
}

bool kiln_copy_out(kiln_device device, void *to, kiln_address from, size_t bytes)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(device, &dev);
    return table && table->copy_out(dev, to, from, bytes);
}

size_t kiln_backend_workspace(kiln_device device, const kiln_kernel *kernel)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(device, &dev);
    return table && table->workspace ? table->workspace(dev, kernel) : 0;
}

bool kiln_backend_lower(kiln_plan *plan)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(plan->device, &dev);
    plan->exec = table ? table->lower(dev, plan) : NULL;
    return plan->exec != NULL;
}

void kiln_backend_dispose(kiln_plan *plan)
{
    void *dev;
    const kiln_device_table *table = kiln_device_opened(plan->device, &dev);
    if (table) /* otherwise it is the parent's of a forked process */
        table->dispose(dev, plan->exec);
}

size_t kiln_backend_held(const kiln_plan *plan)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(plan->device, &dev);
    return table && table->held ? table->held(dev, plan->exec) : 0;
}

bool kiln_backend_runs_on(kiln_device device)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(device, &dev);
    return table && table->runs_on;
}

bool kiln_backend_chooses(kiln_device device)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(device, &dev);
    return table && table->choose;
}

bool kiln_backend_choose(const kiln_plan *plan, kiln_choice *choices)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(plan->device, &dev);
    return table && table->choose && table->choose(dev, plan, choices);
}

int64_t kiln_backend_roomy(kiln_device device)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(device, &dev);
    return table ? table->roomy : 0;
}

unsigned kiln_backend_can(kiln_device device, const kiln_op *op, kiln_dtype dtype, const kiln_work *work)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(device, &dev);
    return table && table->can ? table->can(dev, op, dtype, work) : op->cls == KILN_CLASS_MATMUL ? KILN_CAN_END : 0;
}

bool kiln_backend_counts_products(kiln_device device)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(device, &dev);
    return table && table->counts_products;
}

int64_t kiln_backend_row_bytes(kiln_device device)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(device, &dev);
    return table ? table->row_bytes : 0;
}

bool kiln_backend_apart(kiln_device device)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(device, &dev);
    return table && table->apart;
}

/* A device that takes memory of its own for a run may find none because the pool keeps it. */
static bool may_find_more(const kiln_device_table *table, void *dev)
{
    return kiln_last_error()->code == KILN_E_MEMORY && table->overhead && table->overhead(dev) > 0;
}

static bool give(const kiln_device_table *table, void *dev, const kiln_plan *plan, const kiln_binding *binding,
                 kiln_timing *timing)
{
    if (!timing)
        return table->run(dev, plan->exec, binding);
    if (table->time)
        return table->time(dev, plan->exec, binding, timing);
    kiln_fail(KILN_E_UNSUPPORTED, "time_next_step", "%s does not measure the kernels of a step",
              kiln_device_name(plan->device));
    return kiln_hint("nothing was changed. Time the whole step, with kiln_device_wait before and after it");
}

bool kiln_backend_run(const kiln_plan *plan, const kiln_binding *binding, kiln_timing *timing)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(plan->device, &dev);
    uint64_t failures = kiln_fail_count();
    bool was_ok = kiln_ok(), ok = table && give(table, dev, plan, binding, timing);
    if (ok || !was_ok || !table || !may_find_more(table, dev) || !kiln_memory_trim(plan->device))
        return ok;
    kiln_fail_forget(failures);
    return give(table, dev, plan, binding, timing);
}

int64_t kiln_backend_version(kiln_device device)
{
    (void)device;
    /* Scratch memory is sized for the threads; in a forked child another thread may have been in the middle of a run,
     * with the locks that belong to its plan. */
    return (int64_t)kiln_forks() << 32 | kiln_threads();
}

kiln_error kiln_bad_index_error(const kiln_plan *plan, const kiln_bad_index *bad)
{
    const kiln_kernel *kernel = plan ? &plan->kernels[bad->kernel] : NULL;
    const kiln_op *op = kernel ? kernel->origin : NULL;
    kiln_error e = {.code = KILN_E_INDEX};
    snprintf(e.operation, sizeof e.operation, "%s", op ? op->name : "");
    if (kernel && kernel->op && kernel->op->explain) {
        kernel->op->explain(&e, kernel->ints, bad->index);
        return e;
    }
    snprintf(e.message, sizeof e.message, "index %lld is out of range: it must be at least 0 and below %lld",
             (long long)bad->index, (long long)bad->limit);
    snprintf(e.hint, sizeof e.hint,
             "the step was discarded: nothing was changed. Check the labels or indices given to %s",
             op ? op->name : "it");
    return e;
}

bool kiln_fail_bad_index(const kiln_plan *plan, const kiln_bad_index *bad)
{
    kiln_error e = kiln_bad_index_error(plan, bad);
    return kiln_fail_again(&e);
}
