/* Copies beside the runs, and to the host later, for the layers above: by the device's own way, or at once where it
 * has none. */
#include "core/alloc.h"
#include "device/device.h"
#include "tensor/memory.h"

bool kiln_staging_take(kiln_device device, size_t bytes, kiln_staging *staging)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(device, &dev);
    *staging = (kiln_staging){0};
    if (!table)
        return false;
    staging->memory = table->pinned && bytes ? table->pinned(dev, bytes) : NULL;
    staging->pinned = staging->memory != NULL;
    return staging->memory || (staging->memory = kiln_alloc_aligned(bytes));
}

void kiln_staging_give(kiln_device device, kiln_staging *staging)
{
    void *dev;
    const kiln_device_table *table = staging->pinned ? kiln_device_opened(device, &dev) : NULL;
    if (table)
        table->unpin(dev, staging->memory);
    else if (!staging->pinned) /* otherwise it is the parent's of a forked process */
        kiln_free(staging->memory);
    *staging = (kiln_staging){0};
}

bool kiln_copy_mark(kiln_device device, uint64_t *mark)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(device, &dev);
    *mark = table && table->mark ? table->mark(dev) : 0;
    return table && (!table->mark || *mark);
}

bool kiln_copy_in_later(kiln_device device, kiln_address to, const void *from, size_t bytes, uint64_t mark,
                        uint64_t *ticket)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(device, &dev);
    *ticket = 0;
    if (!table || !table->copy_in_later)
        return table && table->copy_in(dev, to, from, bytes);
    return table->copy_in_later(dev, to, from, bytes, mark, ticket);
}

bool kiln_copy_await(kiln_device device, uint64_t ticket)
{
    void *dev;
    const kiln_device_table *table = ticket ? kiln_device_open(device, &dev) : NULL;
    return !ticket || (table && table->await_copy(dev, ticket));
}

/* Where the device is not open, since it is the parent's of a forked process, nothing is under way. */
bool kiln_copy_done(kiln_device device, uint64_t ticket, bool wait)
{
    void *dev;
    const kiln_device_table *table = ticket ? kiln_device_opened(device, &dev) : NULL;
    return !table || table->copied(dev, ticket, wait);
}

bool kiln_copy_out_later(kiln_device device, void *to, kiln_address from, size_t bytes, uint64_t *ticket)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(device, &dev);
    *ticket = 0;
    if (!table || !table->copy_out_later)
        return table && table->copy_out(dev, to, from, bytes);
    return table->copy_out_later(dev, to, from, bytes, ticket);
}

bool kiln_copied_out(kiln_device device, uint64_t ticket)
{
    void *dev;
    const kiln_device_table *table = ticket ? kiln_device_open(device, &dev) : NULL;
    return !ticket || (table && table->copied_out(dev, ticket));
}
