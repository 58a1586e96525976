#include "device/cpu/common/isa.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static kiln_isa best;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void look(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) /* what has both converts f16, too */
        best = KILN_ISA_AVX2;
    if (best == KILN_ISA_AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        best = KILN_ISA_AVX512;
#endif
    const char *wanted = getenv("KILN_ISA");
    if (wanted && strcmp(wanted, "plain") == 0)
        best = KILN_ISA_PLAIN;
    if (wanted && strcmp(wanted, "avx2") == 0 && best > KILN_ISA_AVX2)
        best = KILN_ISA_AVX2;
}

kiln_isa kiln_isa_best(void)
{
    pthread_once(&once, look);
    return best;
}
