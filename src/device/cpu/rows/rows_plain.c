/* Row kernels for any machine. */
#define ROWS_TABLE kiln_rows_plain
#include "device/cpu/rows/rows_isa.h"
