/* Which pointwise kernels this machine runs. */
#include "device/cpu/pointwise.h"

#include <stdlib.h>
#include <string.h>

static bool has_avx2(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
    return false;
#endif
}

static bool has_avx512(void)
{
#if defined(__x86_64__)
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
#else
    return false;
#endif
}

const kiln_pw_table *kiln_pw_best(void)
{
    const kiln_pw_table *avx512 = has_avx512() ? kiln_pw_avx512 : NULL;
    const kiln_pw_table *avx2 = has_avx2() ? kiln_pw_avx2 : NULL;
    const char *wanted = getenv("KILN_ISA");
    if (wanted && strcmp(wanted, "plain") == 0)
        return kiln_pw_plain;
    if (wanted && strcmp(wanted, "avx2") == 0 && avx2)
        return avx2;
    return avx512 ? avx512 : avx2 ? avx2 : kiln_pw_plain;
}
