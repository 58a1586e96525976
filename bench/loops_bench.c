/* Loops as people write them: training without kiln_step, a loss that is read within the step, slices at places that
 * change from step to step as in the cache of a text generator. What a step takes early and late, and the memory that
 * such a loop holds. One JSON object a line.
 *
 * usage: kiln_bench_loops [plain] [read] [places] */
#include "bench.h"
#include <unistd.h>

enum {
    BATCH = 32,
    INPUTS = 64,
    HIDDEN = 128,
    CLASSES = 10,
    SOME = 200,
    FEW = 15,
    PLACES = 2048,
    BEFORE = 64,
    WIDTH = 64
};

typedef struct training {
    kiln_module *model;
    kiln_optim *adam;
    kiln_tensor *x, *y;
} training;

static training training_new(int64_t batch, int64_t inputs, int64_t hidden)
{
    training t = {.model =
                      kiln_nn_sequential(kiln_nn_linear(inputs, hidden), kiln_nn_relu(), kiln_nn_linear(hidden, hidden),
                                         kiln_nn_relu(), kiln_nn_linear(hidden, CLASSES))};
    t.adam = kiln_optim_adam(kiln_parameters(t.model), .lr = 1e-3);
    t.x = kiln_keep(kiln_randn(KILN_SHAPE(batch, inputs), KILN_F32));
    t.y = kiln_keep(kiln_randint(0, CLASSES, KILN_SHAPE(batch), KILN_I64));
    kiln_eval();
    return t;
}

static void training_free(training *t)
{
    kiln_optim_free(t->adam);
    kiln_module_free(t->model);
    kiln_release(t->x);
    kiln_release(t->y);
}

static double resident_mib(void)
{
    long pages = 0, all;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%ld %ld", &all, &pages) != 2)
        pages = 0;
    if (f)
        fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

/* What began then, in time and in processor time. */
typedef struct span {
    double begun, processor;
} span;

static span begin(void)
{
    return (span){kiln_seconds(), bench_processor_seconds()};
}

static void report(const char *work, const char *which, span s, int steps, const char *more, double amount)
{
    printf("{\"work\": \"%s\", \"batch\": \"%s\", \"us\": %.2f, \"cpu_us\": %.2f, \"%s\": %.1f}\n", work, which,
           1e6 * (kiln_seconds() - s.begun) / steps, 1e6 * (bench_processor_seconds() - s.processor) / steps, more,
           amount);
    fflush(stdout);
}

/* ---- Without kiln_step ---- */

static void plain_step(const training *t)
{
    kiln_zero_grad(t->adam);
    kiln_tensor *z = kiln_forward(t->model, t->x), *loss = kiln_cross_entropy(z, t->y);
    kiln_backward(loss);
    kiln_optim_step(t->adam);
    kiln_release(loss);
    kiln_release(z);
}

static void bench_plain(void)
{
    static const int stops[] = {0, 4000, 8000};
    training t = training_new(BATCH, INPUTS, HIDDEN);
    for (int i = 0, stop = 0; stop < 3 && kiln_ok(); stop++) {
        while (i < stops[stop] && kiln_ok())
            plain_step(&t), i++;
        char which[40];
        snprintf(which, sizeof which, "after %d", stops[stop]);
        span s = begin();
        for (int k = 0; k < SOME && kiln_ok(); k++)
            plain_step(&t), i++;
        kiln_eval();
        report("no kiln_step", which, s, SOME, "resident_mib", resident_mib());
    }
    training_free(&t);
}

/* ---- A loss that is read ---- */

typedef enum reading { NOT, AT_THE_END, BEFORE_BACKWARD } reading;

static void read_step(const training *t, reading when)
{
    kiln_step {
        kiln_zero_grad(t->adam);
        kiln_tensor *loss = kiln_cross_entropy(kiln_forward(t->model, t->x), t->y);
        if (when == BEFORE_BACKWARD)
            kiln_item(loss);
        kiln_backward(loss);
        kiln_optim_step(t->adam);
        if (when == AT_THE_END)
            kiln_item(loss);
    }
}

static void bench_read(void)
{
    static const char *const names[] = {"not read", "read at the end", "read before backward"};
    for (reading when = NOT; when <= BEFORE_BACKWARD && kiln_ok(); when++) {
        training t = training_new(1024, 784, 512);
        for (int i = 0; i < 5; i++)
            read_step(&t, when);
        kiln_memory_stats s = {0};
        kiln_memory_reset_peak(KILN_CPU);
        kiln_memory_get_stats(KILN_CPU, &s);
        double held = (double)s.in_use;
        span all = begin();
        for (int i = 0; i < FEW; i++)
            read_step(&t, when);
        kiln_memory_get_stats(KILN_CPU, &s);
        report("loss", names[when], all, FEW, "step_mib", ((double)s.peak - held) / (1 << 20));
        training_free(&t);
    }
}

/* ---- Slices at changing places ---- */

/* A row is written at the next place and the last rows before it are read, a query attending to them. */
static void place_step(kiln_tensor *cache, kiln_tensor *row, kiln_tensor *sum, int64_t at)
{
    kiln_step {
        kiln_assign(kiln_slice(cache, 0, at, at + 1, 1), row);
        kiln_tensor *seen = kiln_slice(cache, 0, at - BEFORE + 1, at + 1, 1);
        kiln_tensor *scores = kiln_softmax(kiln_matmul(row, kiln_transpose(seen, 0, 1)), 1);
        kiln_assign(sum, kiln_matmul(scores, seen));
    }
}

static void bench_places(void)
{
    kiln_tensor *cache = kiln_keep(kiln_zeros(KILN_SHAPE(PLACES + BEFORE, WIDTH), KILN_F32));
    kiln_tensor *row = kiln_keep(kiln_randn(KILN_SHAPE(1, WIDTH), KILN_F32));
    kiln_tensor *sum = kiln_keep(kiln_zeros(KILN_SHAPE(1, WIDTH), KILN_F32));
    kiln_eval();
    int64_t before = kiln_plan_cache_stats().misses;
    span s = begin();
    for (int64_t i = 0; i < PLACES && kiln_ok(); i++)
        place_step(cache, row, sum, BEFORE - 1 + i);
    report("slices", "changing places", s, PLACES, "plans_made", (double)(kiln_plan_cache_stats().misses - before));
    kiln_release(cache);
    kiln_release(row);
    kiln_release(sum);
}

int main(int argc, char **argv)
{
    if (bench_wanted("places", argc, argv))
        bench_places();
    if (bench_wanted("read", argc, argv))
        bench_read();
    if (bench_wanted("plain", argc, argv))
        bench_plain();
    return kiln_report(stderr);
}
