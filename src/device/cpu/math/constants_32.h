/* Constants of the mathematical functions in f32. Polynomials are minimax fits, the highest power first; 2^-e is the
 * largest relative error of the function that they leave. */
#ifndef KILN_CPU_CONSTANTS_32_H
#define KILN_CPU_CONSTANTS_32_H

#include <stdint.h>

/* x + magic rounds x to a whole number, whose bits are the sum's lowest ones. */
static const float kiln_c32_magic = 0x1.8p23f;
static const uint32_t kiln_c32_magic_bits = 0x4b400000u;
static const uint32_t kiln_c32_sign_bit = 0x80000000u;
static const uint32_t kiln_c32_mantissa = 23, kiln_c32_mantissa_mask = 0x7fffffu;
static const uint32_t kiln_c32_bias = 127;
static const float kiln_c32_least_normal = 0x1p-126f, kiln_c32_infinity = __builtin_inff();

static const float kiln_c32_ln2 = 0x1.62e430p-1f, kiln_c32_ln2_rest = -0x1.05c610p-29f;
static const float kiln_c32_ln2_short = 0x1.62e4p-1f, kiln_c32_ln2_short_rest = 0x1.7f7d1cp-20f; /* times n is exact */
static const float kiln_c32_log2e = 0x1.715476p+0f, kiln_c32_log10e = 0x1.bcb7b2p-2f;
static const float kiln_c32_log10_2 = 0x1.344136p-2f, kiln_c32_log10_2_rest = -0x1.ec10c0p-27f;
static const float kiln_c32_pi = 0x1.921fb6p+1f, kiln_c32_pi_2 = -0x1.777a5cp-24f;
static const float kiln_c32_half_pi = 0x1.921fb6p+0f, kiln_c32_half_pi_2 = -0x1.777a5cp-25f,
                   kiln_c32_half_pi_3 = -0x1.ee59dap-50f;
static const float kiln_c32_two_over_pi = 0x1.45f306p-1f;
static const float kiln_c32_density = 0x1.988454p-2f; /* 1 / sqrt(2π) */

/* Where functions end: below and above the result is 0, 1, infinite. */
static const float kiln_c32_exp_least = -104.0f, kiln_c32_exp_most = 89.0f;
static const float kiln_c32_exp2_least = -151.0f, kiln_c32_exp2_most = 129.0f;
static const float kiln_c32_expm1_least = -20.0f;
static const float kiln_c32_erfc_most = 10.2f, kiln_c32_erf_most = 4.0f, kiln_c32_normal_most = 14.5f;
static const float kiln_c32_circle_most = 0x1p17f;   /* sin, cos, tan: the C library's from here on */
static const float kiln_c32_quotient_most = 0x1p22f; /* fmod: the same */

static const float kiln_c32_erfc_shift = 3.0f, kiln_c32_normal_shift = 3.0f, kiln_c32_erf_shift = 2.0f;

/* A mantissa from 2/3 to 4/3: subtracting the lower bound's bits leaves the exponent in the upper ones. */
static const uint32_t kiln_c32_log_from = 0x3f2aaaabu;
static const uint32_t kiln_c32_log_bias = 128, kiln_c32_log_one_bits = 0x4b000000u;
static const float kiln_c32_log_one = 0x1p23f;      /* also what lifts numbers below the normal range into it */
static const float kiln_c32_log1p_huge = 0x1p25f;   /* 1 + x is x */
static const float kiln_c32_inverse_huge = 0x1p30f; /* asinh(x) is log(2x) */

/* (exp(r) - 1 - r) / r² for |r| ≤ ln(2)/2: 2^-28.3 */
static const float kiln_c32_exp[] = {0x1.6a0d3p-10f, 0x1.1239b4p-7f, 0x1.55590ep-5f, 0x1.555492p-3f, 0x1.fffffcp-2f};

/* (log(1 + f) - f + f²/2) / f³ for |f| ≤ 1/3: 2^-27.7 */
static const float kiln_c32_log[] = {-0x1.07d57p-3f,  0x1.1e6b14p-3f, -0x1.f32c56p-4f, 0x1.1ed5ccp-3f,
                                     -0x1.559c8cp-3f, 0x1.99d04ap-3f, -0x1.fffefap-3f, 0x1.555506p-2f};

/* (sin(r)/r - 1) / r², in r², for |r| ≤ π/4: 2^-27.6 */
static const float kiln_c32_sin_quarter[] = {-0x1.98da8ap-13f, 0x1.1106p-7f, -0x1.555542p-3f};

/* (cos(r) - 1 + r²/2) / r⁴, in r², for |r| ≤ π/4: 2^-32.6 */
static const float kiln_c32_cos_quarter[] = {0x1.99911cp-16f, -0x1.6c0af4p-10f, 0x1.555548p-5f};

/* (asin(x)/x - 1) / x², in x², for |x| ≤ 1/2: 2^-27.6 */
static const float kiln_c32_asin[] = {0x1.595c6p-5f, 0x1.8c3e5p-6f, 0x1.747bb8p-5f, 0x1.330204p-4f, 0x1.5555c8p-3f};

/* (atan(x)/x - 1) / x², in x², for |x| ≤ 1: 2^-28.5 */
static const float kiln_c32_atan[] = {-0x1.d35a82p-10f, 0x1.6424eep-7f,  -0x1.fd7e1cp-6f,
                                      0x1.da2a0ep-5f,   -0x1.58091cp-4f, 0x1.c08c4ep-4f,
                                      -0x1.242086p-3f,  0x1.9991e4p-3f,  -0x1.55553ep-2f};

/* erf(x)/x - 1, in x², for |x| ≤ 1: 2^-29.4 */
static const float kiln_c32_erf[] = {0x1.4771fcp-14f, -0x1.a3515ep-11f, 0x1.53f224p-8f, -0x1.b7f71ap-6f,
                                     0x1.ce2ce6p-4f,  -0x1.81273ep-2f,  0x1.06eba8p-3f};

/* exp(a²)·erfc(a)·(a + s)/2, in (a - s)/(a + s), s = erfc_shift, for a ≤ 10.2: 2^-26.9 */
static const float kiln_c32_erfc[] = {-0x1.479ea6p-13f, -0x1.e9d9p-13f, 0x1.923fd4p-10f, -0x1.45dde8p-11f,
                                      -0x1.b7b26p-7f,   0x1.e99ccap-5f, -0x1.3deadep-3f, 0x1.2e3256p-2f,
                                      -0x1.c44c48p-2f,  0x1.12f21ep-1f};

/* exp(x²/2)·cdf(-x)·(x + s)/2, in (x - s)/(x + s), s = normal_shift, for x ≤ 14.5: 2^-24.2 */
static const float kiln_c32_normal[] = {-0x1.13db9ep-13f, -0x1.d6b9aep-12f, 0x1.19c218p-11f,
                                        0x1.c583aap-9f,   -0x1.5769aep-8f,  -0x1.831d8ep-6f,
                                        0x1.d7146ap-4f,   -0x1.04c734p-2f,  0x1.754a74p-2f};

/* as erfc, with s = erf_shift, for 1 ≤ a ≤ 4: good for 2^-29.5 of 1 */
static const float kiln_c32_erf_tail[] = {-0x1.9fbbf6p-7f, -0x1.322f64p-6f, 0x1.1e18b8p-3f, -0x1.5fd36ap-2f,
                                          0x1.058676p-1f};

#endif
