/* Which pointwise kernels this machine runs. */
#include "device/cpu/group/pointwise.h"

#include "device/cpu/common/isa.h"

const kiln_pw_table *kiln_pw_best(void)
{
    return kiln_isa_pick(kiln_pw_plain, kiln_pw_avx2, kiln_pw_avx512);
}
