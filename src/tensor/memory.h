/* Memory on devices, as tensors and steps ask for it. Implemented by the device layer. */
#ifndef KILN_TENSOR_MEMORY_H
#define KILN_TENSOR_MEMORY_H

#include "tensor/tensor.h"

enum { KILN_BLOCK_ALIGN = 64 };

/* A block of at least `bytes`; false with KILN_E_MEMORY when the device or its limit refuses. */
bool kiln_memory_take(kiln_device device, size_t bytes, kiln_block *block);
void kiln_memory_give(kiln_device device, kiln_block block);

/* Copies between host and device; the host side may be reused when they return. False with an error. */
bool kiln_copy_in(kiln_device device, kiln_address to, const void *from, size_t bytes);
bool kiln_copy_out(kiln_device device, void *to, kiln_address from, size_t bytes);

#endif
