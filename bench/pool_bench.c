/* What the memory pool costs: steps of a small network on a fresh pool, and on one that has been given back 100,000
 * tensors of many sizes; and loops that take and release tensors of random sizes, with how often the device was asked
 * and the most that the pool held beside the most that was in use. One JSON object a line.
 *
 * usage: kiln_bench_pool [--device sim] */
#include "bench.h"

enum { SMALL = 100000, SIZES = 100, ROUNDS = 5, STEPS = 2000, HELD = 64, TURNS = 200000, LARGEST = 1 << 18 };

static kiln_device device;

static uint32_t next_number(uint32_t *state)
{
    return *state = *state * 1664525u + 1013904223u;
}

static kiln_memory_stats stats(void)
{
    kiln_memory_stats s = {0};
    kiln_memory_get_stats(device, &s);
    return s;
}

/* Microseconds a step, the median of a few rounds. */
static double mlp_step(void)
{
    kiln_module *m = kiln_nn_sequential(kiln_nn_linear(16, 32), kiln_nn_relu(), kiln_nn_linear(32, 4));
    kiln_module_to(m, device);
    kiln_optim *sgd = kiln_optim_sgd(kiln_parameters(m), .lr = 1e-3);
    kiln_tensor *x = kiln_keep(kiln_randn(KILN_SHAPE(8, 16), KILN_F32));
    kiln_tensor *y = kiln_keep(kiln_zeros(KILN_SHAPE(8), KILN_I64));
    kiln_eval();
    double times[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        double start = kiln_seconds();
        for (int i = 0; i < STEPS; i++)
            kiln_step {
                kiln_zero_grad(sgd);
                kiln_backward(kiln_cross_entropy(kiln_forward(m, x), y));
                kiln_optim_step(sgd);
            }
        kiln_device_wait(device);
        times[round] = 1e6 * (kiln_seconds() - start) / STEPS;
    }
    kiln_release(x);
    kiln_release(y);
    kiln_optim_free(sgd);
    kiln_module_free(m);
    return bench_median(times, ROUNDS);
}

/* Nanoseconds to release one of many. */
static double release_many(void)
{
    kiln_tensor **all = malloc(SMALL * sizeof *all);
    for (int i = 0; i < SMALL; i++)
        all[i] = kiln_keep(kiln_tensor_new(NULL, KILN_U8, KILN_SHAPE(64 * (1 + i * 7 % SIZES)), device));
    double start = kiln_seconds();
    for (int i = 0; i < SMALL; i++)
        kiln_release(all[i]);
    double each = 1e9 * (kiln_seconds() - start) / SMALL;
    free(all);
    return each;
}

typedef struct figures { /* of a loop */
    double begun;
    uint64_t asked, most;
} figures;

static figures begin_loop(void)
{
    kiln_memory_trim(device);
    kiln_memory_reset_peak(device);
    return (figures){kiln_seconds(), stats().allocations, 0};
}

static void look(figures *f)
{
    kiln_memory_stats s = stats();
    f->most = s.in_use + s.cached > f->most ? s.in_use + s.cached : f->most;
}

static void end_loop(const figures *f, const char *work, int tensors)
{
    double each = 1e6 * (kiln_seconds() - f->begun) / tensors;
    kiln_memory_stats s = stats();
    printf("{\"work\": \"%s\", \"us\": %.2f, \"asked\": %llu, \"peak_mib\": %.1f, \"held_mib\": %.1f}\n", work, each,
           (unsigned long long)(s.allocations - f->asked), (double)s.peak / (1 << 20), (double)f->most / (1 << 20));
}

static kiln_tensor *bytes(int64_t n)
{
    return kiln_keep(kiln_tensor_new(NULL, KILN_U8, KILN_SHAPE(n), device));
}

static void bench_random_sizes(void)
{
    kiln_tensor *held[HELD] = {0};
    uint32_t seed = 1;
    figures f = begin_loop();
    for (int i = 0; i < TURNS; i++) {
        uint32_t at = next_number(&seed) >> 16, size = next_number(&seed) >> 8;
        kiln_release(held[at % HELD]);
        held[at % HELD] = bytes(size % LARGEST);
        look(&f);
    }
    end_loop(&f, "random sizes", TURNS);
    for (int i = 0; i < HELD; i++)
        kiln_release(held[i]);
}

/* As many bytes each time, in another number of pieces. */
static void bench_random_pieces(void)
{
    kiln_tensor *held[HELD];
    uint32_t seed = 1;
    int tensors = 0;
    figures f = begin_loop();
    for (int i = 0; i < TURNS / HELD; i++) {
        int n = 1 + (int)(next_number(&seed) >> 16) % HELD;
        for (int k = 0; k < n; k++)
            held[k] = bytes(HELD * LARGEST / n);
        look(&f);
        for (int k = 0; k < n; k++)
            kiln_release(held[k]);
        tensors += n;
    }
    end_loop(&f, "random pieces", tensors);
}

int main(int argc, char **argv)
{
    device = bench_device(&argc, argv, "cpu");
    double fresh = mlp_step(), release = release_many(), after = mlp_step();
    printf("{\"work\": \"mlp step\", \"us_fresh\": %.1f, \"us_after\": %.1f, \"release_ns\": %.0f}\n", fresh, after,
           release);
    bench_random_sizes();
    bench_random_pieces();
    return kiln_report(stderr);
}
