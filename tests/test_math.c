/* How exact the CPU's pointwise functions are, in units of the last place, over their whole range: random bits, numbers
 * as they come up in networks, and special values, against the C library in long double. And that an element has the
 * same bits for all instruction sets, anywhere in a vector and alone. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "device/cpu/common/isa.h"
#include "device/cpu/group/pointwise.h"

typedef long double real;

enum { RANDOM = 60000, SPECIALS = 40, MOST = RANDOM + SPECIALS * SPECIALS };

/* A row of pointwise.def, what it is to compute, the largest error in f32 and f64, and what operands are drawn from
 * beside random bits. A `product` is a times a factor that may be below the normal range: there it is as exact as that.
 */
typedef struct function {
    kiln_pw_id row;
    real (*reference)(real a, real b);
    double f32, f64;
    double low, high;
    bool product;
} function;

/* ---- References ---- */

#define ONE(name, ...)                                                                                                 \
    static real ref_##name(real a, real b)                                                                             \
    {                                                                                                                  \
        (void)b;                                                                                                       \
        return __VA_ARGS__;                                                                                            \
    }
#define LIBM(name) ONE(name, name##l(a))
LIBM(exp)
LIBM(exp2)
LIBM(expm1)
LIBM(log)
LIBM(log2)
LIBM(log10)
LIBM(log1p)
LIBM(sin)
LIBM(cos)
LIBM(tan)
LIBM(asin)
LIBM(acos)
LIBM(atan)
LIBM(sinh)
LIBM(cosh)
LIBM(tanh)
LIBM(asinh)
LIBM(acosh)
LIBM(atanh)
LIBM(erf)
LIBM(erfc)
ONE(atan2, atan2l(a, b))
ONE(hypot, hypotl(a, b))
ONE(pow, powl(a, b))
ONE(fmod, fmodl(a, b))
ONE(gelu, isinf(a) && a < 0 ? NAN : a * erfcl(-a * 0.70710678118654752440084436210484903928L) / 2)

static real ref_remainder(real a, real b)
{
    real rest = fmodl(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

/* exp(-|x|) keeps its precision where the sigmoid is near 0. */
static real sigmoid(real x)
{
    real e = expl(-fabsl(x));
    return (x < 0 ? e : 1) / (1 + e);
}
ONE(sigmoid, sigmoid(a))
ONE(silu, isinf(a) && a < 0 ? NAN : a * sigmoid(a))
ONE(softplus, a * 1.0L > 20 ? a : log1pl(expl(1.0L * a)) / 1.0L)
ONE(logsigmoid, a < 0 ? a - log1pl(expl(a)) : -log1pl(expl(-a)))
ONE(elu, a > 0 ? a : 1.0L * expm1l(a))
ONE(sqrt, sqrtl(a))

static const function functions[] = {
#define ROW(name, f32, f64, low, high)                                                                                 \
    {                                                                                                                  \
        KILN_PW_##name, ref_##name, f32, f64, low, high, false                                                         \
    }
#define PRODUCT(name, f32, f64, low, high)                                                                             \
    {                                                                                                                  \
        KILN_PW_##name, ref_##name, f32, f64, low, high, true                                                          \
    }
    ROW(sqrt, 0.5, 0.5, 0, 10),
    ROW(exp, 1, 1, -10, 10),
    ROW(exp2, 1, 1, -10, 10),
    ROW(expm1, 1.5, 2, -3, 3),
    ROW(log, 1, 1, 0, 3),
    ROW(log2, 2, 2, 0, 3),
    ROW(log10, 3, 3, 0, 3),
    ROW(log1p, 2, 2, -1, 3),
    ROW(sin, 2, 2, -10, 10),
    ROW(cos, 2, 2, -10, 10),
    ROW(tan, 3.5, 3.5, -10, 10),
    ROW(asin, 2.5, 2.5, -1, 1),
    ROW(acos, 1.5, 1.5, -1, 1),
    ROW(atan, 1.5, 2.5, -3, 3),
    ROW(sinh, 0.51, 2, -3, 3),
    ROW(cosh, 0.51, 1.5, -3, 3),
    ROW(tanh, 2.5, 3, -3, 3),
    ROW(asinh, 2, 2, -3, 3),
    ROW(acosh, 2.5, 2.5, 1, 4),
    ROW(atanh, 2.5, 2.5, -1, 1),
    ROW(erf, 1, 1.5, -3, 3),
    ROW(erfc, 4, 5, -3, 10),
    ROW(atan2, 1.5, 2.5, -3, 3),
    ROW(hypot, 0.51, 1.5, -3, 3),
    ROW(pow, 0.51, 1, 0, 3),
    ROW(fmod, 0, 0, -10, 10),
    ROW(remainder, 0.5, 0.5, -10, 10),
    ROW(sigmoid, 2.5, 2.5, -10, 10),
    ROW(logsigmoid, 2.5, 2.5, -10, 10),
    ROW(softplus, 2.5, 2.5, -10, 10),
    ROW(elu, 1.5, 1.5, -3, 3),
    PRODUCT(gelu, 5, 6, -6, 6),
    PRODUCT(silu, 3, 3, -10, 10),
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

/* ---- Operands ---- */

static uint64_t random_state = 88172645463325252u;

static uint64_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

static double uniform(double low, double high)
{
    return low + (high - low) * (double)(random_bits() >> 11) * 0x1p-53;
}

/* Signs are added: every other one is negative. */
static const double specials[SPECIALS / 2] = {0,         INFINITY,  NAN,      1,          0.5,      2,
                                              3,         1.5,       0x1p-149, 0x1.8p-127, 0x1p-126, 0x1.fffffep127,
                                              0x1p-1074, 0x1p-1022, DBL_MAX,  0x1p24,     0x1p53,   1.5707963267948966,
                                              88.8,      1e5};

typedef union number {
    float f;
    double d;
    uint32_t bits;
    uint64_t long_bits;
} number;

static void set(void *array, int i, kiln_pw_class cls, double x)
{
    if (cls == KILN_PW_F32)
        ((float *)array)[i] = (float)x;
    else
        ((double *)array)[i] = x;
}

static double get(const void *array, int i, kiln_pw_class cls)
{
    return cls == KILN_PW_F32 ? (double)((const float *)array)[i] : ((const double *)array)[i];
}

static double any_number(kiln_pw_class cls)
{
    number n = {.long_bits = random_bits()};
    return cls == KILN_PW_F32 ? (double)n.f : n.d;
}

/* Random bits, uniform numbers, uniform exponents around 0, and all pairs of special values. */
static int fill(const function *f, kiln_pw_class cls, void *a, void *b)
{
    for (int i = 0; i < RANDOM; i++) {
        double x = uniform(f->low, f->high), y = uniform(f->low, f->high);
        if (i % 3 == 1)
            x = ldexp(x, -(int)(random_bits() % 40)), y = ldexp(y, (int)(random_bits() % 16) - 8);
        if (i % 3 == 2)
            x = any_number(cls), y = i % 2 ? any_number(cls) : y;
        set(a, i, cls, x);
        set(b, i, cls, y);
    }
    for (int i = 0; i < SPECIALS * SPECIALS; i++) {
        int k = i / SPECIALS, l = i % SPECIALS;
        set(a, RANDOM + i, cls, k % 2 ? -specials[k / 2] : specials[k / 2]);
        set(b, RANDOM + i, cls, l % 2 ? -specials[l / 2] : specials[l / 2]);
    }
    return MOST;
}

/* ---- Errors ---- */

/* The distance between neighbours of the class around x. */
static real unit(real x, kiln_pw_class cls)
{
    int least = cls == KILN_PW_F32 ? -149 : -1074, bits = cls == KILN_PW_F32 ? 24 : 53, exponent;
    frexpl(x, &exponent);
    return ldexpl(1, exponent - bits < least ? least : exponent - bits);
}

/* In units of the last place; infinite where the kind of number is not right. What rounds beyond the largest number may
 * be infinite or that number. A unit is not less than `factor` times the smallest number. */
static double error(double got, real want, kiln_pw_class cls, double factor)
{
    real largest = cls == KILN_PW_F32 ? (real)FLT_MAX : (real)DBL_MAX;
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got) ? 0 : INFINITY;
    if (fabsl(want) > largest)
        return !signbit(got) == !signbit(want) && (isinf(got) || (double)fabsl(got) == (double)largest) ? 0 : INFINITY;
    if (isinf(got))
        return fabsl(want) > largest - unit(largest, cls) * 4 ? 0 : INFINITY;
    if (got == 0 && want == 0)
        return !signbit(got) == !signbit(want) ? 0 : INFINITY;
    real least = fabsl((real)factor) * unit(0, cls), one = unit(want, cls);
    return (double)(fabsl(got - want) / (one > least && !isnan(factor) ? one : least));
}

static const char *name_of(kiln_pw_class cls)
{
    return cls == KILN_PW_F32 ? "f32" : "f64";
}

static void check_errors(const function *f, kiln_pw_class cls)
{
    static double a[MOST], b[MOST], y[MOST];
    const double scalars[3] = {1, 20, 0};
    double worst = 0, bound = cls == KILN_PW_F32 ? f->f32 : f->f64;
    int at = 0, n = fill(f, cls, a, b);
    kiln_pw_best()->fn[cls][f->row](y, a, b, b, scalars, n);
    for (int i = 0; i < n; i++) {
        double x = get(a, i, cls), e = error(get(y, i, cls), f->reference(x, get(b, i, cls)), cls, f->product ? x : 1);
        if (e > worst)
            worst = e, at = i;
    }
    if (worst > bound)
        fail_msg("%s(%a, %a) in %s is %a, not %La: off by %.3g units in the last place, which is more than %g",
                 kiln_pw_rows[f->row].name, get(a, at, cls), get(b, at, cls), name_of(cls), get(y, at, cls),
                 f->reference(get(a, at, cls), get(b, at, cls)), worst, bound);
}

static void test_errors(void **unused)
{
    (void)unused;
    for (int i = 0; i < FUNCTIONS; i++)
        for (kiln_pw_class cls = KILN_PW_F32; cls <= KILN_PW_F64; cls++)
            check_errors(&functions[i], cls);
}

/* ---- Roots ---- */

/* The odd r below 2^bits with r² = k modulo 2^bits that is 1 modulo 8, for a k that is; the others are -r, and both
 * with the highest bit changed. */
static uint64_t root_modulo(int64_t k, int bits)
{
    uint64_t r = 1;
    for (int bit = 3; bit < bits; bit++)
        if ((r * r - (uint64_t)k) & (uint64_t)1 << bit)
            r += (uint64_t)1 << (bit - 1);
    return r & (((uint64_t)1 << bits) - 1);
}

/* A root of a double is never in the middle between two of them. It is nearest where the square of the middle m, an odd
 * number of 54 bits, is a double but for a small rest k: x = (m² - k) / 2^bits. All such x, and their neighbours. */
static int nearly_in_the_middle(double *x)
{
    int n = 0;
    for (int bits = 54; bits <= 55; bits++) /* x from 1 to 2 and from 2 to 4 */
        for (int64_t k = -127; k <= 129; k += 8)
            for (int which = 0; which < 4; which++) {
                uint64_t r = root_modulo(k, bits), high = (uint64_t)1 << (bits - 1), m = which & 1 ? -r : r;
                m = (which & 2 ? m ^ high : m) & (2 * high - 1);
                if (m < (uint64_t)1 << 53 || m >= (uint64_t)1 << 54)
                    continue;
                __extension__ unsigned __int128 square = (unsigned __int128)m * m - (unsigned __int128)(__int128)k;
                double y = ldexp((double)(uint64_t)(square >> bits), bits - 106);
                if ((bits == 54) == (y < 2))
                    x[n++] = y, x[n++] = nextafter(y, 0), x[n++] = nextafter(y, 9);
            }
    return n;
}

/* Roots of doubles are computed without the instruction for them where that is faster, and rounded as it does. */
static void test_roots_near_the_middle_of_two_doubles(void **unused)
{
    (void)unused;
    static double x[1000], y[1000];
    int n = nearly_in_the_middle(x);
    assert_true(n > 100);
    for (int scale = -1070; scale <= 1020; scale += 190) { /* even, so that roots keep their digits */
        for (int i = 0; i < n; i++)
            x[i] = ldexp(x[i], scale);
        kiln_pw_best()->fn[KILN_PW_F64][KILN_PW_sqrt](y, x, NULL, NULL, NULL, n);
        for (int i = 0; i < n; i++)
            if (y[i] != sqrt(x[i]))
                fail_msg("sqrt(%a) is %a, not %a", x[i], y[i], sqrt(x[i]));
        nearly_in_the_middle(x);
    }
}

/* ---- Bits ---- */

static bool same(const void *x, const void *y, int i, kiln_pw_class cls)
{
    size_t size = kiln_pw_class_size(cls);
    bool nan = cls <= KILN_PW_F64 && isnan(get(x, i, cls)) && isnan(get(y, i, cls));
    return nan || memcmp((const char *)x + (size_t)i * size, (const char *)y + (size_t)i * size, size) == 0;
}

/* What a row's results are of. */
static kiln_pw_class result_class(int row, kiln_pw_class cls)
{
    return kiln_pw_rows[row].kind == KILN_PW_IS_TEST ? KILN_PW_BOOL : cls;
}

static const function anything = {.low = -3, .high = 3};

/* Every row of floats, with all instruction sets that this machine has. */
static void test_same_bits_for_all_instructions(void **unused)
{
    (void)unused;
    static double a[MOST], b[MOST], x[MOST], y[MOST];
    const kiln_pw_table *tables[] = {kiln_isa_best() >= KILN_ISA_AVX2 ? kiln_pw_avx2 : NULL,
                                     kiln_isa_best() >= KILN_ISA_AVX512 ? kiln_pw_avx512 : NULL};
    const double scalars[3] = {1.25, 20, 0};
    for (kiln_pw_class cls = KILN_PW_F32; cls <= KILN_PW_F64; cls++) {
        int n = fill(&anything, cls, a, b);
        for (int row = 0; row < KILN_PW_ROWS; row++) {
            bool pick = kiln_pw_rows[row].kind == KILN_PW_IS_PICK;
            for (int t = 0; t < 2 && kiln_pw_plain->fn[cls][row] && !pick; t++) {
                if (!tables[t])
                    continue;
                kiln_pw_plain->fn[cls][row](x, a, b, b, scalars, n);
                tables[t]->fn[cls][row](y, a, b, b, scalars, n);
                for (int i = 0; i < n; i++)
                    if (!same(x, y, i, result_class(row, cls)))
                        fail_msg("%s(%a, %a) in %s has other bits with %s", kiln_pw_rows[row].name, get(a, i, cls),
                                 get(b, i, cls), name_of(cls), tables[t]->isa);
            }
        }
    }
}

/* An element alone, at the end of a vector, and in place of an operand. */
static void test_same_bits_at_any_place(void **unused)
{
    (void)unused;
    enum { SOME = 500 };
    static double a[MOST], b[MOST], x[MOST], y[MOST];
    const double scalars[3] = {1.25, 20, 0};
    const kiln_pw_table *table = kiln_pw_best();
    for (kiln_pw_class cls = KILN_PW_F32; cls <= KILN_PW_F64; cls++)
        for (int row = 0; row < KILN_PW_ROWS; row++) {
            int kind = kiln_pw_rows[row].kind;
            if (!table->fn[cls][row] || (kind != KILN_PW_IS_SAME && kind != KILN_PW_IS_RING))
                continue;
            size_t size = kiln_pw_class_size(cls);
            fill(&anything, cls, a, b);
            table->fn[cls][row](x, a, b, b, scalars, SOME);
            for (int i = 0; i < SOME;) { /* pieces of 1, 2, 3, … elements */
                int count = i % 37 + 1 < SOME - i ? i % 37 + 1 : SOME - i;
                size_t at = (size_t)i * size;
                table->fn[cls][row]((char *)y + at, (char *)a + at, (char *)b + at, (char *)b + at, scalars, count);
                i += count;
            }
            table->fn[cls][row](a, a, b, b, scalars, SOME);
            for (int i = 0; i < SOME; i++)
                if (!same(x, y, i, cls) || !same(x, a, i, cls))
                    fail_msg("%s in %s: element %d has other bits in a piece or in place", kiln_pw_rows[row].name,
                             name_of(cls), i);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_roots_near_the_middle_of_two_doubles),
        cmocka_unit_test(test_same_bits_for_all_instructions),
        cmocka_unit_test(test_same_bits_at_any_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
