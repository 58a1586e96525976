/* Constants of the mathematical functions in f64. Polynomials are minimax fits, the highest power first; 2^-e is the
 * largest relative error of the function that they leave. */
#ifndef KILN_CPU_CONSTANTS_64_H
#define KILN_CPU_CONSTANTS_64_H

#include <stdint.h>

/* x + magic rounds x to a whole number, whose bits are the sum's lowest ones. */
static const double kiln_c64_magic = 0x1.8p52;
static const uint64_t kiln_c64_magic_bits = 0x4338000000000000u;
static const uint64_t kiln_c64_sign_bit = 0x8000000000000000u;
static const uint64_t kiln_c64_mantissa = 52, kiln_c64_mantissa_mask = 0xfffffffffffffu;
static const uint64_t kiln_c64_bias = 1023;
static const double kiln_c64_least_normal = 0x1p-1022, kiln_c64_infinity = __builtin_inf();

static const double kiln_c64_ln2 = 0x1.62e42fefa39efp-1, kiln_c64_ln2_rest = 0x1.abc9e3b39803fp-56;
static const double kiln_c64_ln2_short = 0x1.62e42fefa4p-1,
                    kiln_c64_ln2_short_rest = -0x1.8432a1b0e2634p-43; /* times n is exact */
static const double kiln_c64_log2e = 0x1.71547652b82fep+0, kiln_c64_log2e_rest = 0x1.777d0ffda0d24p-56;
static const double kiln_c64_log10e = 0x1.bcb7b1526e50ep-2;
static const double kiln_c64_log10_2 = 0x1.34413509f79ffp-2, kiln_c64_log10_2_rest = -0x1.9dc1da994fd21p-59;
static const double kiln_c64_pi = 0x1.921fb54442d18p+1, kiln_c64_pi_2 = 0x1.1a62633145c07p-53;
static const double kiln_c64_half_pi = 0x1.921fb54442d18p+0, kiln_c64_half_pi_2 = 0x1.1a62633145c07p-54,
                    kiln_c64_half_pi_3 = -0x1.f1976b7ed8fbcp-110;
static const double kiln_c64_two_over_pi = 0x1.45f306dc9c883p-1;
static const double kiln_c64_density = 0x1.9884533d43651p-2; /* 1 / sqrt(2π) */

/* Where functions end: below and above the result is 0, 1, infinite. */
static const double kiln_c64_exp_least = -746.0, kiln_c64_exp_most = 710.0;
static const double kiln_c64_exp2_least = -1076.0, kiln_c64_exp2_most = 1025.0;
static const double kiln_c64_expm1_least = -40.0;
static const double kiln_c64_sinh_most = 712.0;
static const double kiln_c64_erfc_most = 27.4, kiln_c64_erf_most = 6.0, kiln_c64_normal_most = 38.7;
static const double kiln_c64_circle_most = 0x1p30;   /* sin, cos, tan: the C library's from here on */
static const double kiln_c64_quotient_most = 0x1p51; /* fmod: the same */

static const double kiln_c64_erfc_shift = 4.0, kiln_c64_normal_shift = 5.5, kiln_c64_erf_shift = 3.0;

/* A mantissa from 2/3 to 4/3: subtracting the lower bound's bits leaves the exponent in the upper ones. */
static const uint64_t kiln_c64_log_from = 0x3fe5555555555555u;
static const uint64_t kiln_c64_log_bias = 1024, kiln_c64_log_one_bits = 0x4330000000000000u;
static const double kiln_c64_log_one = 0x1p52;      /* also what lifts numbers below the normal range into it */
static const double kiln_c64_log1p_huge = 0x1p54;   /* 1 + x is x */
static const double kiln_c64_inverse_huge = 0x1p60; /* asinh(x) is log(2x) */

static const double kiln_c64_two_thirds = 0x1.5555555555555p-1, kiln_c64_two_thirds_rest = 0x1.5555555555555p-55;

/* (exp(r) - 1 - r) / r² for |r| ≤ ln(2)/2: 2^-59.4 */
static const double kiln_c64_exp[] = {0x1.1ee85a846bea2p-29,
                                      0x1.af636ea154f34p-26,
                                      0x1.27e538962baddp-22,
                                      0x1.71ddf5d9e90bp-19,
                                      0x1.a01a017989547p-16,
                                      0x1.a01a01b0c8b2ap-13,
                                      0x1.6c16c16c1fb68p-10,
                                      0x1.111111110f4b5p-7,
                                      0x1.555555555553cp-5,
                                      0x1.5555555555559p-3,
                                      0x1p-1};

/* (log(1 + f) - f + f²/2) / f³ for |f| ≤ 1/3: 2^-59.2 */
static const double kiln_c64_log[] = {
    -0x1.556df4dea9a0cp-4, 0x1.5c07677247b91p-4,  -0x1.3a6fe7e90e46p-5,  0x1.563197e493f24p-5,  -0x1.d6cfa6261b457p-5,
    0x1.efb9394a0fe6fp-5,  -0x1.fe69e68e39a59p-5, 0x1.1069dc68228c5p-4,  -0x1.249f737aeba51p-4, 0x1.3b1daf94d123dp-4,
    -0x1.5554c81d44367p-4, 0x1.745cb63f24992p-4,  -0x1.99999d5583dbap-4, 0x1.c71c740a4adcbp-4,  -0x1.fffffff0fdae7p-4,
    0x1.24924920b72f2p-3,  -0x1.55555555651c2p-3, 0x1.99999999a00ccp-3,  -0x1.fffffffffff35p-3, 0x1.5555555555538p-2};

/* (sin(r)/r - 1) / r², in r², for |r| ≤ π/4: 2^-56.7 */
static const double kiln_c64_sin_quarter[] = {0x1.5d60ab32120f4p-33,  -0x1.ae5db8a5d39a4p-26, 0x1.71de349a79d01p-19,
                                              -0x1.a01a019b1391dp-13, 0x1.111111110f098p-7,   -0x1.5555555555544p-3};

/* (cos(r) - 1 + r²/2) / r⁴, in r², for |r| ≤ π/4: 2^-61.0 */
static const double kiln_c64_cos_quarter[] = {-0x1.8f70204e29714p-37, 0x1.1ee9721e08749p-29,  -0x1.27e4f75520f7dp-22,
                                              0x1.a01a019bb532cp-16,  -0x1.6c16c16c1474cp-10, 0x1.5555555555547p-5};

/* (asin(x)/x - 1) / x², in x², for |x| ≤ 1/2: 2^-55.7 */
static const double kiln_c64_asin[] = {0x1.0569ef1243349p-5, -0x1.09c6fd4c663a1p-6, 0x1.3feb9c4e9e21cp-6,
                                       0x1.abde835db23fcp-8, 0x1.8ec103b300c4cp-7,  0x1.c6fe16f7e8b27p-7,
                                       0x1.1c6bdcedeaf35p-6, 0x1.6e89f496788dbp-6,  0x1.f1c72c3529c13p-6,
                                       0x1.6db6db4286927p-5, 0x1.333333336e6e1p-4,  0x1.5555555555391p-3};

/* (atan(x)/x - 1) / x², in x², for |x| ≤ 1: 2^-57.1 */
static const double kiln_c64_atan[] = {
    -0x1.2263c4816af4cp-17, 0x1.b3ac78a00a982p-14, -0x1.36d9484f6ef65p-11, 0x1.1a03a8fdc94cdp-9,  -0x1.6fd08fca10348p-8,
    0x1.72db8eb9ac695p-7,   -0x1.30f9b9ab94929p-6, 0x1.ac7822daf3144p-6,   -0x1.0c940f54a0d0ap-5, 0x1.3904547d4094bp-5,
    -0x1.5f24240a07376p-5,  0x1.84b450cf31c13p-5,  -0x1.aeda5254bb7c3p-5,  0x1.e1d48731d0073p-5,  -0x1.1110326b2f15cp-4,
    0x1.3b139bcef82f1p-4,   -0x1.745d15d039ef5p-4, 0x1.c71c71b62990cp-4,   -0x1.2492492456ad7p-3, 0x1.9999999998c28p-3,
    -0x1.555555555554dp-2};

/* erf(x)/x - 1, in x², for |x| ≤ 1: 2^-56.3 */
static const double kiln_c64_erf[] = {0x1.0579a572a15c9p-34,  -0x1.386abe763572bp-30, 0x1.f7a4114be2a12p-27,
                                      -0x1.5f1d36a939779p-23, 0x1.b9def19a6527cp-20,  -0x1.f4d1df38f45a5p-17,
                                      0x1.f9a321a1181d6p-14,  -0x1.c02db3d8ece31p-11, 0x1.565bcd0db02c5p-8,
                                      -0x1.b82ce3128499bp-6,  0x1.ce2f21a042b2p-4,    -0x1.812746b0379e6p-2,
                                      0x1.06eba8214db69p-3};

/* (sinh(x)/x - 1) / x², in x², for |x| ≤ 1: 2^-56.6 */
static const double kiln_c64_sinh[] = {0x1.b4c718079de41p-41, 0x1.611a572b4798fp-33, 0x1.ae646717d18d2p-26,
                                       0x1.71de3a46600a3p-19, 0x1.a01a01a028929p-13, 0x1.11111111110a6p-7,
                                       0x1.5555555555556p-3};

/* (2·atanh(s)/s - 2 - 2s²/3) / s⁴, in s², for |s| ≤ 1/5: 2^-65.5 */
static const double kiln_c64_atanh[] = {0x1.018e3121455bp-3,  0x1.dacb2681dae03p-4, 0x1.113a43b96c06dp-3,
                                        0x1.3b1296ee695cbp-3, 0x1.745d1bcd5ddb7p-3, 0x1.c71c71bc5b854p-3,
                                        0x1.2492492498e72p-2, 0x1.9999999999967p-2};

/* exp(a²)·erfc(a)·(a + s)/2, in (a - s)/(a + s), s = erfc_shift, for a ≤ 27.4: 2^-53.9 */
static const double kiln_c64_erfc[] = {
    0x1.c8adf0e4f38bp-33,  0x1.20bad856b51fcp-30,  -0x1.cae03ee57c13bp-32, -0x1.3f61315904f48p-27,
    0x1.f06ceff73706p-31,  0x1.12e4b62f24476p-24,  -0x1.465e88efb2c61p-25, -0x1.c7c418228412dp-22,
    0x1.7e547f02dcabdp-21, 0x1.3b1e7558cd13fp-19,  -0x1.3c6eda03d530fp-17, -0x1.e7f3d35a4b197p-20,
    0x1.72cda7676a154p-14, -0x1.dd2841b537151p-13, -0x1.269b521465eecp-13, 0x1.908f471e80658p-9,
    -0x1.b00c052c3da16p-7, 0x1.38dbd2c8e7d3p-5,    -0x1.645fd8a4bc03cp-4,  0x1.52cac2371009dp-3,
    -0x1.14eacb1ad033dp-2, 0x1.8be202d26c707p-2,   -0x1.f3fe31ecb49bfp-2,  0x1.18932bf08e154p-1};

/* exp(x²/2)·cdf(-x)·(x + s)/2, in (x - s)/(x + s), s = normal_shift, for x ≤ 38.7: 2^-53.4 */
static const double kiln_c64_normal[] = {
    0x1.9caa08ce00fe2p-33, 0x1.d598ea42e9afcp-32,  -0x1.c88dccb6e1474p-30, -0x1.2279fffc70f62p-28,
    0x1.8d0d79d3b82a9p-27, 0x1.d1f6a9319a09bp-26,  -0x1.7bb8262d13743p-24, -0x1.2302cfa64714cp-23,
    0x1.8e0ea637120ecp-21, 0x1.e10da470860d4p-23,  -0x1.969f9870160fp-18,  0x1.11cb63cec0f8bp-17,
    0x1.2b88e77021592p-15, -0x1.54495a613cae9p-13, 0x1.1ab3488cb477ep-13,  0x1.4034e53c50d1p-10,
    -0x1.c83edf45bbb5bp-8, 0x1.71707b57842bp-6,    -0x1.c15806fa4401bp-5,  0x1.be33e6ee98d1bp-4,
    -0x1.77dbb5cdda9fdp-3, 0x1.1239b3f8c06e4p-2,   -0x1.5ed05c7e41a2dp-2,  0x1.8c2b8893b5c8dp-2};

/* as erfc, with s = erf_shift, for 1 ≤ a ≤ 6: good for 2^-56.5 of 1 */
static const double kiln_c64_erf_tail[] = {0x1.8790b7ba6c5fcp-16,  0x1.cac72bf375c34p-15, -0x1.2ac440641e87ep-13,
                                           -0x1.23830ed0b4ddcp-12, 0x1.8d34d64872d41p-10, -0x1.3e18f8de4d7dep-11,
                                           -0x1.b78a573f53b87p-7,  0x1.e995ec0e24335p-5,  -0x1.3deb21506dcadp-3,
                                           0x1.2e326945fb753p-2,   -0x1.c44c471ba4421p-2, 0x1.12f21ddd9f6eap-1};

/* (log(1 + f) - f + f²/2) / f³ to 2^-38: enough for a float */
static const double kiln_c64_log_short[] = {-0x1.a8bd007752733p-4, 0x1.bd7e9e417f9aep-4,  -0x1.3e4dd5130a96dp-4,
                                            0x1.5f78237c9d1d8p-4,  -0x1.9b8b00cdb9dd1p-4, 0x1.c8b2b265238f6p-4,
                                            -0x1.ffea69880bedcp-4, 0x1.248a9ec8ade7cp-3,  -0x1.55558efb10d4dp-3,
                                            0x1.9999bb2e15321p-3,  -0x1.ffffff8fd9a04p-3, 0x1.5555553d559cp-2};

/* (exp(r) - 1 - r) / r² to 2^-32: enough for a float */
static const double kiln_c64_exp_short[] = {0x1.a032430d96d0cp-13, 0x1.6d78df585bb2ep-10, 0x1.11118f17ea825p-7,
                                            0x1.5554aa9e28278p-5,  0x1.555554e8a2ab6p-3,  0x1.0000002833afep-1};

#endif
