#include "device/cpu/common/isa.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static kiln_isa best;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#if defined(__x86_64__)

enum { BF16 = 1 << 5, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 }; /* of leaf 7: subleaf 1, eax; subleaf 0, edx, twice */

/* Where pairs of bf16 are multiplied no faster than they are converted and multiplied as f32, they are not unless that
 * is asked for: 165 against 295 GFLOP/s on two cores of an Intel Xeon of 2023, where AMX is what counts. AMD's do twice
 * as much. */
static bool has_bf16(bool asked)
{
    unsigned a = 0, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a & BF16 && (asked || __builtin_cpu_is("amd"));
}

/* Its registers are 8 KiB a thread, so Linux gives them to those alone who ask. */
static bool may_use_amx(void)
{
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum { ASK_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    unsigned a, b, c, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & AMX_BF16) && (d & AMX_TILE) &&
           syscall(SYS_arch_prctl, ASK_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

static kiln_isa find_best(kiln_isa most, bool asked)
{
    __builtin_cpu_init();
    if (most < KILN_ISA_AVX2 || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return KILN_ISA_PLAIN; /* what has both converts f16, too */
    if (most < KILN_ISA_AVX512 || !__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq"))
        return KILN_ISA_AVX2;
    if (most == KILN_ISA_AMX && may_use_amx())
        return KILN_ISA_AMX;
    return most >= KILN_ISA_AVX512_BF16 && has_bf16(asked) ? KILN_ISA_AVX512_BF16 : KILN_ISA_AVX512;
}

#else

static kiln_isa find_best(kiln_isa most, bool asked)
{
    (void)most, (void)asked;
    return KILN_ISA_PLAIN;
}

#endif

static void look(void)
{
    static const char *const names[] = {"plain", "avx2", "avx512", "avx512bf16", "amx"};
    const char *wanted = getenv("KILN_ISA");
    kiln_isa most = KILN_ISA_AMX;
    bool asked = false;
    for (int i = 0; wanted && i <= KILN_ISA_AMX; i++)
        if (strcmp(wanted, names[i]) == 0) {
            most = (kiln_isa)i;
            asked = true;
        }
    best = find_best(most, asked);
}

kiln_isa kiln_isa_best(void)
{
    pthread_once(&once, look);
    return best;
}
