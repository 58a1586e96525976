/* kiln bench: how long a training step takes here, beside what the device can do at most. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "cli/step.h"

static const option options[] = {
    {"model", 0, OPTION_TEXT, "MODEL", "name[:key=value,...] or FILE.yaml (mlp)", 0, 0, "<models>"},
    {"batch", 0, OPTION_COUNTS, "N,...", "batch sizes (32,128,512)", 1, 0, NULL},
    {"length", 0, OPTION_COUNT, "N", "bytes of text seen at once (the model's own)", 1, 1 << 20, NULL},
    {"optim", 0, OPTION_WORD, "NAME", "sgd adam adamw rmsprop adagrad lion (adam)", 0, 0, OPTIMIZERS},
    {"seconds", 0, OPTION_NUMBER, "S", "to measure each of them (2)", 0.01, 3600, NULL},
    OPTION_DEVICE,
    OPTION_THREADS,
    OPTION_MEM_LIMIT,
    OPTION_TF32,
    {0}};

enum { MOST_STEPS = 1 << 16 };

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* FLOP a second of a large product: as fast as this device gets with Kiln. */
static double measure_peak(kiln_device device)
{
    enum { N = 1024, ROUNDS = 16 };
    double best = INFINITY;
    kiln_scope
        kiln_no_grad {
            kiln_tensor *a = kiln_randn(KILN_SHAPE(N, N), KILN_F32), *b = kiln_randn(KILN_SHAPE(N, N), KILN_F32);
            kiln_eval();
            for (int i = 0; i < ROUNDS; i++) {
                kiln_device_wait(device);
                double start = seconds_now();
                kiln_scope {
                    kiln_tensor *c = kiln_matmul(a, b);
                    kiln_eval();
                    (void)c;
                }
                kiln_device_wait(device);
                best = fmin(best, seconds_now() - start);
            }
        }
    return kiln_ok() ? 2.0 * N * N * N / best : NAN;
}

static double time_step(step *s, kiln_device device)
{
    double start = seconds_now();
    kiln_step
        step_record(s);
    kiln_device_wait(device);
    return seconds_now() - start;
}

static void say_times(const step *s, int64_t batch, double first, double *times, int64_t n, double peak)
{
    kiln_plan_info info = {0};
    kiln_plan_last(&info);
    qsort(times, (size_t)n, sizeof *times, by_size);
    double median = times[n / 2], rate = (double)info.flops / times[0]; /* best beside best */
    int64_t samples = s->net->tokens ? batch * s->net->shape[0] : batch;
    printf("%8lld%12.1f%12.1f%12.1f%14s%10.1f", (long long)batch, first * 1e3, times[0] * 1e6, median * 1e6,
           show_count((int64_t)((double)samples / median)), rate / 1e9);
    if (!isnan(peak))
        printf("%7.0f %%", 100 * rate / peak);
    putchar('\n');
    fflush(stdout);
}

static int bench_batch(network *n, const char *optim, int64_t batch, double seconds, double peak, kiln_device device)
{
    step s;
    int code = step_make(&s, n, optim, batch, device);
    if (code) {
        step_free(&s);
        return code;
    }
    double *times = must_alloc(MOST_STEPS, sizeof *times), first = time_step(&s, device);
    for (int i = 0; i < 3 && kiln_ok(); i++)
        time_step(&s, device);
    double start = seconds_now();
    int64_t taken = 0;
    while (kiln_ok() && taken < MOST_STEPS && (taken < 3 || seconds_now() - start < seconds))
        times[taken++] = time_step(&s, device);
    if (kiln_ok())
        say_times(&s, batch, first, times, taken, peak);
    else
        code = fail_kiln();
    free(times);
    step_free(&s);
    return code;
}

static int bench_all(const arguments *a, network *n, kiln_device device)
{
    int64_t batches[MAX_COUNTS] = {32, 128, 512};
    int count = given(a, "batch") ? counts_of(a, "batch", batches) : n->tokens ? 1 : 3, code = 0;
    const char *optim = text_of(a, "optim", "adam");
    double peak = measure_peak(device);
    printf("%s, %s parameters, %s, on %s", n->name, show_count(kiln_parameter_count(n->module)), optim,
           kiln_device_name(device));
    if (device == KILN_CPU)
        printf(" with %d threads", kiln_get_num_threads());
    printf("; products reach %.0f GFLOP/s here\n\n", peak / 1e9);
    printf("%8s%12s%12s%12s%14s%10s%9s\n", "batch", "first ms", "best us", "median us",
           n->tokens ? "bytes/s" : "samples/s", "GFLOP/s", "of peak");
    for (int i = 0; i < count && !code; i++)
        code = bench_batch(n, optim, batches[i], number_of(a, "seconds", 2), peak, device);
    return code;
}

static int bench(const arguments *a)
{
    network n = {0};
    kiln_device device;
    int code = use_device(a, &device);
    if (!code)
        code = step_network(a, &n, device);
    if (!code)
        code = bench_all(a, &n, device);
    network_free(&n);
    return code;
}

const command command_bench = {.name = "bench",
                               .about = "Measures training steps on this machine",
                               .options = options,
                               .notes = "Examples: kiln bench\n"
                                        "          kiln bench --model lenet --batch 32,256 --threads 2\n",
                               .run = bench};
