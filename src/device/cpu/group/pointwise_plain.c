/* Pointwise kernels for any machine. */
#define KILN_PW_TABLE kiln_pw_plain
#define KILN_PW_ISA   "plain"
#include "device/cpu/group/pointwise_kernels.h"
