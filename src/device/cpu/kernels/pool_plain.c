/* Pooling loops for any machine. */
#define POOL_TABLE kiln_pool_plain
#include "device/cpu/kernels/pool_kernels.h"
