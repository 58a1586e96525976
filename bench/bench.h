/* What the training benchmarks share: parameters with Adam written with plain operations, and the timing of a step.
 * They print one JSON object a line, so that bench/run.sh can set them beside PyTorch and JAX. */
#ifndef KILN_BENCH_H
#define KILN_BENCH_H

#include <kiln.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* A parameter and Adam's moments of it. */
typedef struct bench_parameter {
    kiln_tensor *value, *m, *v;
} bench_parameter;

static inline bench_parameter bench_parameter_of(kiln_tensor *initial)
{
    bench_parameter p = {.value = kiln_keep(initial)};
    p.m = kiln_keep(kiln_zeros_like(p.value));
    p.v = kiln_keep(kiln_zeros_like(p.value));
    kiln_eval();
    kiln_requires_grad(p.value, true);
    return p;
}

/* Drawn from a normal distribution, with a deviation of 1/√fan_in. */
static inline bench_parameter bench_weight(int ndim, const int64_t *shape)
{
    int64_t fan_in = 1;
    for (int d = 1; d < ndim; d++)
        fan_in *= shape[d];
    return bench_parameter_of(kiln_mul_scalar(kiln_randn(ndim, shape, KILN_F32), 1 / sqrt((double)fan_in)));
}

static inline bench_parameter bench_bias(int64_t n)
{
    return bench_parameter_of(kiln_zeros(KILN_SHAPE(n), KILN_F32));
}

/* Step number t, counted from 1. */
static inline void bench_adam(const bench_parameter *p, int64_t t)
{
    kiln_tensor *g = kiln_grad_of(p->value);
    double c1 = 1 - pow(0.9, (double)t), c2 = 1 - pow(0.999, (double)t);
    kiln_tensor *m1 = kiln_add(kiln_mul_scalar(p->m, 0.9), kiln_mul_scalar(g, 0.1));
    kiln_tensor *v1 = kiln_add(kiln_mul_scalar(p->v, 0.999), kiln_mul_scalar(kiln_mul(g, g), 0.001));
    kiln_tensor *root = kiln_add_scalar(kiln_sqrt(kiln_mul_scalar(v1, 1 / c2)), 1e-8);
    kiln_assign(p->m, m1);
    kiln_assign(p->v, v1);
    kiln_assign(p->value, kiln_sub(p->value, kiln_div(kiln_mul_scalar(m1, 1e-3 / c1), root)));
}

static inline int bench_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Times steps that `record` records, and prints the median of several rounds. */
static inline void bench_steps(const char *work, int64_t batch, void (*record)(void *context), void *context)
{
    enum { ROUNDS = 5 };
    double rounds[ROUNDS], recording = 0;
    for (int i = 0; i < 10; i++)
        kiln_step
            record(context);
    for (int r = 0; r < ROUNDS; r++) {
        double start = now_us(), spent = 0;
        int n = 0;
        while (now_us() - start < 0.8e6) {
            double t0 = now_us();
            kiln_step {
                record(context);
                spent += now_us() - t0;
            }
            n++;
        }
        rounds[r] = (now_us() - start) / n;
        recording += spent / n / ROUNDS;
    }
    qsort(rounds, ROUNDS, sizeof *rounds, bench_compare);
    kiln_plan_info info;
    kiln_plan_last(&info);
    printf("{\"work\": \"%s\", \"batch\": %lld, \"peer\": \"kiln\", \"us\": %.1f, \"record_us\": %.2f, "
           "\"nodes\": %lld, \"kernels\": %lld, \"ns_a_node\": %.0f}\n",
           work, (long long)batch, rounds[ROUNDS / 2], recording, (long long)info.nodes, (long long)info.kernels,
           1e3 * recording / (double)info.nodes);
    fflush(stdout);
}

#endif
