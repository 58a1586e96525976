/* Numbers of every dtype as doubles and back, and the generator of test data. */
#include <math.h>
#include <string.h>
#include "support/numbers.h"

/* A binary format of `bits` mantissa bits (the hidden one included) with exponents from `emin` to `emax`. */
typedef struct float_format {
    int bits, emin, emax;
} float_format;
static const float_format half_format = {11, -14, 15}, bfloat_format = {8, -126, 127};

static double round_float(double v, float_format f)
{
    if (v == 0 || !isfinite(v))
        return v;
    int e;
    frexp(v, &e); /* v = m·2^e with 0.5 ≤ |m| < 1 */
    int exponent = e - 1 < f.emin ? f.emin : e - 1;
    double unit = ldexp(1, exponent - f.bits + 1);
    double rounded = nearbyint(v / unit) * unit;
    return fabs(rounded) >= ldexp(1, f.emax + 1) ? copysign(INFINITY, v) : rounded;
}

double number_round(double v, kiln_dtype dtype)
{
    switch (dtype) {
    case KILN_BOOL: return v != 0;
    case KILN_U8: return (double)(uint8_t)(int64_t)v;
    case KILN_I32: return (double)(int32_t)(int64_t)v;
    case KILN_I64: return (double)(int64_t)v;
    case KILN_F16: return round_float(v, half_format);
    case KILN_BF16: return round_float(v, bfloat_format);
    case KILN_F32: return (double)(float)v;
    default: return v;
    }
}

/* The 16 bits of a value the format holds exactly. */
static uint16_t encode(double v, float_format f)
{
    int stored = f.bits - 1, width = 15 - stored, bias = f.emax;
    uint16_t sign = signbit(v) ? 0x8000 : 0, top = (uint16_t)(((1 << width) - 1) << stored);
    if (isnan(v))
        return sign | top | (uint16_t)(1 << (stored - 1));
    if (isinf(v))
        return sign | top;
    if (v == 0)
        return sign;
    int e;
    frexp(v, &e);
    int exponent = e - 1 < f.emin ? f.emin : e - 1;
    int mantissa = (int)fabs(ldexp(v, stored - exponent));
    if (mantissa < 1 << stored)
        return sign | (uint16_t)mantissa; /* subnormal */
    return sign | (uint16_t)((exponent + bias) << stored) | (uint16_t)(mantissa - (1 << stored));
}

static double decode(uint16_t b, float_format f)
{
    int stored = f.bits - 1, exponent = (b & 0x7fff) >> stored, mantissa = b & ((1 << stored) - 1);
    double sign = b & 0x8000 ? -1 : 1;
    if (exponent == 2 * f.emax + 1)
        return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, f.emin - stored);
    return sign * ldexp(mantissa + (1 << stored), exponent - f.emax - stored);
}

void number_store(void *out, kiln_dtype dtype, const double *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double v = number_round(values[i], dtype);
        switch (dtype) {
        case KILN_BOOL: ((uint8_t *)out)[i] = v != 0; break;
        case KILN_U8: ((uint8_t *)out)[i] = (uint8_t)v; break;
        case KILN_I32: ((int32_t *)out)[i] = (int32_t)v; break;
        case KILN_I64: ((int64_t *)out)[i] = (int64_t)v; break;
        case KILN_F16: ((uint16_t *)out)[i] = encode(v, half_format); break;
        case KILN_BF16: ((uint16_t *)out)[i] = encode(v, bfloat_format); break;
        case KILN_F32: ((float *)out)[i] = (float)v; break;
        default: ((double *)out)[i] = v;
        }
    }
}

void number_load(double *values, kiln_dtype dtype, const void *in, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        switch (dtype) {
        case KILN_BOOL:
        case KILN_U8: values[i] = ((const uint8_t *)in)[i]; break;
        case KILN_I32: values[i] = ((const int32_t *)in)[i]; break;
        case KILN_I64: values[i] = (double)((const int64_t *)in)[i]; break;
        case KILN_F16: values[i] = decode(((const uint16_t *)in)[i], half_format); break;
        case KILN_BF16: values[i] = decode(((const uint16_t *)in)[i], bfloat_format); break;
        case KILN_F32: values[i] = ((const float *)in)[i]; break;
        default: values[i] = ((const double *)in)[i];
        }
    }
}

double number_epsilon(kiln_dtype dtype)
{
    switch (dtype) {
    case KILN_F16: return 0x1p-10;
    case KILN_BF16: return 0x1p-7;
    case KILN_F32: return 0x1p-23;
    case KILN_F64: return 0x1p-52;
    default: return 0;
    }
}

double number_rounding(double v, kiln_dtype dtype)
{
    double least = dtype == KILN_F16 ? 0x1p-14 : dtype == KILN_F64 ? 0x1p-1022 : 0x1p-126;
    int e;
    frexp(fmax(fabs(v), least), &e);
    return ldexp(number_epsilon(dtype), e - 2);
}

number_rng number_seed(const char *text, int a, int b)
{
    uint64_t h = 1469598103934665603u;
    for (const char *p = text; *p; p++)
        h = (h ^ (uint8_t)*p) * 1099511628211u;
    return (number_rng){h ^ (uint64_t)a * 0x9e3779b97f4a7c15u ^ (uint64_t)b * 0xc2b2ae3d27d4eb4fu};
}

uint64_t number_next(number_rng *rng)
{
    uint64_t z = rng->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double number_uniform(number_rng *rng)
{
    return (double)(number_next(rng) >> 11) * 0x1p-53;
}
