/* Memory on devices, as tensors and steps ask for it. Implemented by the device layer. */
#ifndef KILN_TENSOR_MEMORY_H
#define KILN_TENSOR_MEMORY_H

#include "tensor/tensor.h"

enum { KILN_BLOCK_ALIGN = 64 };

/* A block of at least `bytes`; false with KILN_E_MEMORY when the device or its limit refuses. */
bool kiln_memory_take(kiln_device device, size_t bytes, kiln_block *block);
void kiln_memory_give(kiln_device device, kiln_block block);

/* Blocks of these sizes, one after the other; how many were there, with the error of the first one that was not. */
int64_t kiln_memory_take_all(kiln_device device, const int64_t *bytes, int64_t n, kiln_block *blocks);

/* Copies between host and device; the host side may be reused when they return. False with an error. */
bool kiln_copy_in(kiln_device device, kiln_address to, const void *from, size_t bytes);
bool kiln_copy_out(kiln_device device, void *to, kiln_address from, size_t bytes);

/* Copies that go on beside the runs, where a device can do that; elsewhere they are done at once, with the same result.
 * A copy begins when all that was given to the device before `mark` is over. `from` must stay as it is until
 * kiln_copy_done. All but that give false with an error. */
typedef struct kiln_staging { /* host memory to copy from or to; pinned, if the device has such */
    void *memory;
    bool pinned;
} kiln_staging;
bool kiln_staging_take(kiln_device device, size_t bytes, kiln_staging *staging);
void kiln_staging_give(kiln_device device, kiln_staging *staging);

bool kiln_copy_mark(kiln_device device, uint64_t *mark);
bool kiln_copy_in_later(kiln_device device, kiln_address to, const void *from, size_t bytes, uint64_t mark,
                        uint64_t *ticket);
bool kiln_copy_await(kiln_device device, uint64_t ticket); /* what is given from now on comes after the copy */
bool kiln_copy_done(kiln_device device, uint64_t ticket, bool wait);

/* A copy to the host that is begun here and waited for later, if the device can do that; else it is done at once, and
 * the ticket is 0. It sees what was given to the device before it and nothing that is given after it. `to`, of a
 * kiln_staging as a rule, must be left alone until kiln_copied_out, which can be asked again. Both give false with an
 * error, the second one also if a run before the copy failed. */
bool kiln_copy_out_later(kiln_device device, void *to, kiln_address from, size_t bytes, uint64_t *ticket);
bool kiln_copied_out(kiln_device device, uint64_t ticket);

#endif
