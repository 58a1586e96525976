/* Random numbers have no reference: their range, moments and repeatability are checked, and that every device draws the
 * same ones. Tolerances are five standard deviations of what is estimated; seeds are fixed, so results do not vary. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "support/numbers.h"
#include "support/suite.h"

enum { DRAWS = 20000 };
static const int64_t shape[] = {DRAWS};

/* What a draw is made by. */
typedef kiln_tensor *(*drawer)(kiln_dtype dtype);

static kiln_tensor *uniform(kiln_dtype dtype)
{
    return kiln_rand(1, shape, dtype);
}

static kiln_tensor *normal(kiln_dtype dtype)
{
    return kiln_randn(1, shape, dtype);
}

static kiln_tensor *dice(kiln_dtype dtype)
{
    return kiln_randint(-2, 4, 1, shape, dtype);
}

static kiln_tensor *coins(kiln_dtype dtype)
{
    return kiln_bernoulli(kiln_full(1, shape, 0.25, dtype));
}

static kiln_tensor *order(kiln_dtype dtype)
{
    return kiln_randperm(DRAWS, dtype);
}

typedef struct distribution {
    const char *name;
    drawer draw;
    uint32_t dtypes;
    double least, most, mean, variance; /* values lie in least … most */
} distribution;

static const distribution distributions[] = {
    {"rand", uniform, KILN_T_FLOATS, 0, 1, 0.5, 1.0 / 12},
    {"randn", normal, KILN_T_FLOATS, -8, 8, 0, 1},
    {"randint", dice, KILN_T_FLOATS | 1 << KILN_I32 | 1 << KILN_I64, -2, 3, 0.5, 35.0 / 12},
    {"bernoulli", coins, KILN_T_FLOATS, 0, 1, 0.25, 0.1875},
    {"randperm", order, 1 << KILN_I32 | 1 << KILN_I64 | 1 << KILN_F32, 0, DRAWS - 1, (DRAWS - 1) / 2.0,
     ((double)DRAWS * DRAWS - 1) / 12},
};

/* Seeds, draws on a device, reads the bits. */
static void *draw_bits(const distribution *d, kiln_dtype dtype, uint64_t seed, kiln_device device)
{
    size_t size = DRAWS * kiln_dtype_size(dtype);
    void *bits = calloc(size, 1);
    kiln_scope {
        kiln_on_device (device) {
            kiln_manual_seed(seed);
            if (!kiln_read(d->draw(dtype), bits, size))
                complain(d->name, "%s on %s: %s", kiln_dtype_name(dtype), kiln_device_name(device),
                         kiln_last_error()->message);
        }
    }
    kiln_error_clear();
    return bits;
}

static void check_moments(const distribution *d, kiln_dtype dtype, const double *v)
{
    double mean = 0, variance = 0, fourth = 0;
    for (int i = 0; i < DRAWS; i++) {
        bool inside = v[i] >= d->least && v[i] <= d->most && !(d->draw == uniform && v[i] == 1);
        if (!inside) {
            complain(d->name, "%s: %g is outside its range", kiln_dtype_name(dtype), v[i]);
            return;
        }
        mean += v[i] / DRAWS;
    }
    for (int i = 0; i < DRAWS; i++) {
        variance += pow(v[i] - mean, 2) / DRAWS;
        fourth += pow(v[i] - mean, 4) / DRAWS;
    }
    double spread = sqrt(d->variance / DRAWS), coarse = number_epsilon(dtype);
    if (fabs(mean - d->mean) > 5 * spread + coarse)
        complain(d->name, "%s: the mean is %g instead of %g", kiln_dtype_name(dtype), mean, d->mean);
    double of_variance = sqrt((fourth - variance * variance) / DRAWS);
    if (fabs(variance - d->variance) > 5 * of_variance + coarse * 2)
        complain(d->name, "%s: the variance is %g instead of %g", kiln_dtype_name(dtype), variance, d->variance);
    if (d->draw == normal && fabs(fourth / (variance * variance) - 3) > 5 * sqrt(96.0 / DRAWS))
        complain(d->name, "%s: the kurtosis is %g instead of 3", kiln_dtype_name(dtype), fourth);
}

/* Neighbours have nothing to do with each other. */
static void check_correlation(const distribution *d, kiln_dtype dtype, const double *v)
{
    for (int lag = 1; lag <= 4; lag++) {
        double sum = 0;
        for (int i = 0; i + lag < DRAWS; i++)
            sum += (v[i] - d->mean) * (v[i + lag] - d->mean);
        if (fabs(sum / DRAWS) > 5.5 * d->variance / sqrt(DRAWS))
            complain(d->name, "%s: elements %d apart are correlated", kiln_dtype_name(dtype), lag);
    }
}

static void check_permutation(const distribution *d, const double *v)
{
    char *seen = calloc(DRAWS, 1);
    for (int i = 0; i < DRAWS; i++)
        if (v[i] < 0 || v[i] >= DRAWS || seen[(int)v[i]]++)
            complain(d->name, "%g stands there twice", v[i]);
    free(seen);
}

static void check_distribution(const distribution *d, kiln_dtype dtype, const kiln_device *devices, int n)
{
    size_t size = DRAWS * kiln_dtype_size(dtype);
    void *first = draw_bits(d, dtype, 7, devices[0]), *other = draw_bits(d, dtype, 8, devices[0]);
    double *v = calloc(DRAWS, sizeof *v);
    number_load(v, dtype, first, DRAWS);
    check_moments(d, dtype, v);
    check_correlation(d, dtype, v);
    if (d->draw == order)
        check_permutation(d, v);
    if (!memcmp(first, other, size))
        complain(d->name, "%s: another seed gives the same numbers", kiln_dtype_name(dtype));
    for (int k = 0; k < n; k++) {
        void *again = draw_bits(d, dtype, 7, devices[k]);
        if (memcmp(first, again, size))
            complain(d->name, "%s: %s draws other numbers from the same seed", kiln_dtype_name(dtype),
                     kiln_device_name(devices[k]));
        free(again);
    }
    free(first);
    free(other);
    free(v);
}

/* A step that is replayed draws new numbers, and the same ones as a step that is planned for the first time. */
static void check_replay(kiln_device device)
{
    float v[3][8];
    kiln_on_device (device) {
        for (int round = 0; round < 2; round++) {
            kiln_manual_seed(99);
            for (int step = 0; step < 3; step++)
                kiln_scope {
                    float now[8];
                    kiln_tensor *t = kiln_mul_scalar(kiln_rand(1, (int64_t[]){8}, KILN_F32), 2);
                    if (!kiln_read(t, now, sizeof now))
                        complain("rand", "replay: %s", kiln_last_error()->message);
                    if (round == 1 && memcmp(now, v[step], sizeof now))
                        complain("rand", "step %d of a replay differs from its first run", step);
                    memcpy(v[step], now, sizeof now);
                }
            if (!memcmp(v[0], v[1], sizeof v[0]) || !memcmp(v[1], v[2], sizeof v[0]))
                complain("rand", "a replayed step draws the same numbers again");
        }
    }
    kiln_error_clear();
}

/* Kept elements are x / (1 - p), the share of the others is p, and the gradient has the same mask. */
static void check_dropout(kiln_device device, kiln_dtype dtype)
{
    const double p = 0.3;
    double *v = calloc(DRAWS, sizeof *v), *g = calloc(DRAWS, sizeof *g);
    void *bits = calloc(DRAWS, 8);
    size_t size = DRAWS * kiln_dtype_size(dtype);
    int64_t zeros = 0;
    kiln_on_device (device)
        kiln_scope {
            kiln_manual_seed(5);
            for (int i = 0; i < DRAWS; i++)
                v[i] = 1;
            number_store(bits, dtype, v, DRAWS);
            kiln_tensor *x = kiln_requires_grad(kiln_tensor_new(bits, dtype, 1, shape, device), true), *grad;
            kiln_tensor *y = kiln_dropout(x, p, true);
            bool ok = y && kiln_grad(y, NULL, &x, 1, &grad) && kiln_read(y, bits, size);
            number_load(v, dtype, bits, DRAWS);
            ok = ok && kiln_read(grad, bits, size);
            number_load(g, dtype, bits, DRAWS);
            if (!ok)
                complain("dropout", "%s: %s", kiln_dtype_name(dtype), kiln_last_error()->message);
            if (kiln_dropout(x, p, false) != x)
                complain("dropout", "it does something when not training");
        }
    for (int i = 0; i < DRAWS; i++) {
        zeros += v[i] == 0;
        if ((v[i] != 0 && fabs(v[i] - 1 / (1 - p)) > 2 * number_epsilon(dtype)) || g[i] != v[i]) {
            complain("dropout", "%s: element %d is %g, its gradient %g", kiln_dtype_name(dtype), i, v[i], g[i]);
            break;
        }
    }
    if (fabs((double)zeros / DRAWS - p) > 5 * sqrt(p * (1 - p) / DRAWS))
        complain("dropout", "%s: %lld of %d elements are 0", kiln_dtype_name(dtype), (long long)zeros, DRAWS);
    kiln_error_clear();
    free(v);
    free(g);
    free(bits);
}

void random_check(const kiln_device *devices, int n)
{
    for (size_t k = 0; k < sizeof distributions / sizeof *distributions; k++)
        for (int d = 0; d < KILN_DTYPES; d++)
            if (distributions[k].dtypes >> d & 1)
                check_distribution(&distributions[k], (kiln_dtype)d, devices, n);
    for (int k = 0; k < n; k++) {
        check_replay(devices[k]);
        for (int d = KILN_F16; d <= KILN_F64; d++)
            check_dropout(devices[k], (kiln_dtype)d);
    }
}
