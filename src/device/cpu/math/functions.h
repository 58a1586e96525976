/* All functions of this folder for one precision and one kind of vector: see lanes.h. The includer defines BITS, and
 * VECTORS as 0 for single numbers (kiln_f32_exp, kiln_f64_exp, …) or 1 for the vectors of the instruction set that is
 * compiled for (kiln_v32_exp, …). There is no include guard on purpose. */
#include "device/cpu/math/constants_32.h"
#include "device/cpu/math/constants_64.h"
#include "device/cpu/math/lanes.h"
#if VECTORS
#include <immintrin.h>
#endif

/* F(exp): the function of this instance. C(pi): the constant of its precision, K(pi): in every lane. */
#define F(name)              MATH_NAME(PREFIX, name)
#define MATH_NAME(a, b)      MATH_NAME_(a, b)
#define MATH_NAME_(a, b)     kiln_##a##_##b
#define C(name)              MATH_CONSTANT(BITS, name)
#define MATH_CONSTANT(a, b)  MATH_CONSTANT_(a, b)
#define MATH_CONSTANT_(a, b) kiln_c##a##_##b
#define K(name)              v_set(C(name))

#if BITS == 32
#define E            float
#define NOT_A_NUMBER __builtin_nanf("")
#define LIBM(name)   __builtin_##name##f
#else
#define E            double
#define NOT_A_NUMBER __builtin_nan("")
#define LIBM(name)   __builtin_##name
#endif

#if !VECTORS
#if BITS == 32
#define PREFIX f32
#define U      uint32_t
#else
#define PREFIX f64
#define U      uint64_t
#endif
#define V     E
#define M     int
#define LANES 1
#include "device/cpu/math/lanes_one.h"

#else
#if BITS == 32
#define PREFIX v32
#else
#define PREFIX v64
#endif
#define U F(lane_unsigned)
#if defined(__AVX512F__)
#define BYTES 64
#else
#define BYTES 32
#endif
#define LANES (BYTES * 8 / BITS)
#if BITS == 32
typedef uint32_t U __attribute__((vector_size(BYTES)));
#else
typedef uint64_t U __attribute__((vector_size(BYTES)));
#endif
#if defined(__AVX512F__) && BITS == 32
#define V              __m512
#define M              __mmask16
#define MM(name)       _mm512_##name##_ps
#define MASKED(name)   _mm512_##name##_ps_mask
#define INTEGERS(name) _mm512_##name##_epi32
#elif defined(__AVX512F__)
#define V              __m512d
#define M              __mmask8
#define MM(name)       _mm512_##name##_pd
#define MASKED(name)   _mm512_##name##_pd_mask
#define INTEGERS(name) _mm512_##name##_epi64
#elif BITS == 32
#define V        __m256
#define M        U
#define MM(name) _mm256_##name##_ps
#else
#define V        __m256d
#define M        U
#define MM(name) _mm256_##name##_pd
#endif
#if defined(__AVX512F__)
#include "device/cpu/math/lanes_avx512.h"
#else
#include "device/cpu/math/lanes_avx2.h"
#endif
#endif

typedef V F(vector);
enum { F(lanes) = LANES };
#include "device/cpu/math/lanes_common.h"

#include "device/cpu/math/exp.h"
#include "device/cpu/math/log.h"
#include "device/cpu/math/circle.h"
#include "device/cpu/math/erf.h"
#include "device/cpu/math/activation.h"
#include "device/cpu/math/power.h"

#undef F
#undef C
#undef K
#undef MATH_NAME
#undef MATH_NAME_
#undef MATH_CONSTANT
#undef MATH_CONSTANT_
#undef BITS
#undef VECTORS
#undef BYTES
#undef PREFIX
#undef LANES
#undef E
#undef V
#undef U
#undef M
#undef MM
#undef MASKED
#undef INTEGERS
#undef LIBM
#undef NOT_A_NUMBER
#undef POLYNOMIAL
#undef ERFC_FACTOR
