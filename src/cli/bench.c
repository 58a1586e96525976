/* kiln bench: how long a training step takes here, beside what the device can do at most. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "cli/profile.h"

static const option options[] = {
    {"model", 0, OPTION_TEXT, "MODEL", "name[:key=value,...] or FILE.yaml (mlp)", 0, 0, "<models>"},
    {"batch", 0, OPTION_COUNTS, "N,...", "batch sizes (32,128,512)", 1, 0, NULL},
    {"length", 0, OPTION_COUNT, "N", "bytes of text seen at once (the model's own)", 1, 1 << 20, NULL},
    {"optim", 0, OPTION_WORD, "NAME", "(adam)", 0, 0, "<optimizers>"},
    {"seconds", 0, OPTION_NUMBER, "S", "to measure each of them (2)", 0.01, 3600, NULL},
    {"kernels", 0, OPTION_FLAG, NULL, "also the time of kernels, by operation and module", 0, 0, NULL},
    OPTION_DEVICE,
    OPTION_THREADS,
    OPTION_MEM_LIMIT,
    OPTION_TF32,
    OPTION_AMP,
    {0}};

enum { MOST_STEPS = 1 << 16 };

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* FLOP a second of a large product, the best of those within `seconds`: as fast as this device gets with Kiln, unless
 * others were at work on it all the time. */
static double measure_product(kiln_device device, double seconds)
{
    enum { N = 1024, LEAST = 16 };
    double best = INFINITY;
    kiln_scope
        kiln_no_grad {
            kiln_tensor *a = kiln_randn(KILN_SHAPE(N, N), KILN_F32), *b = kiln_randn(KILN_SHAPE(N, N), KILN_F32);
            kiln_eval();
            double begun = seconds_now();
            for (int i = 0; kiln_ok() && (i < LEAST || seconds_now() - begun < seconds); i++) {
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
    return kiln_ok() && best > 0 ? 2.0 * N * N * N / best : 0;
}

static double time_step(step *s, kiln_device device)
{
    double start = seconds_now();
    kiln_step
        step_record(s);
    kiln_device_wait(device);
    return seconds_now() - start;
}

/* What was measured of one batch size. Times in seconds, rates in FLOP a second. */
typedef struct measured {
    int64_t batch, samples; /* samples: bytes of a text */
    double first, best, median;
    double rate;    /* of the best step: best beside best */
    double product; /* of a large product just before */
    profile kernels;
} measured;

static void take_times(measured *m, const step *s, double *times, int64_t n)
{
    kiln_plan_info info = {0};
    kiln_plan_last(&info);
    qsort(times, (size_t)n, sizeof *times, by_size);
    m->samples = s->net->tokens ? m->batch * s->net->shape[0] : m->batch;
    m->best = times[0];
    m->median = times[n / 2];
    m->rate = m->best > 0 ? (double)info.flops / m->best : 0;
}

static int bench_batch(const arguments *a, network *n, kiln_device device, measured *m)
{
    const char *optim = text_of(a, "optim", "adam");
    double seconds = number_of(a, "seconds", 2);
    step s;
    int code = step_make(&s, n, optim, m->batch, device);
    if (code) {
        step_free(&s);
        return code;
    }
    m->product = measure_product(device, seconds / 2);
    double *times = must_alloc(MOST_STEPS, sizeof *times);
    m->first = time_step(&s, device);
    for (int i = 0; i < 3 && kiln_ok(); i++)
        time_step(&s, device);
    double start = seconds_now();
    int64_t taken = 0;
    while (kiln_ok() && taken < MOST_STEPS && (taken < 3 || seconds_now() - start < seconds))
        times[taken++] = time_step(&s, device);
    if (kiln_ok())
        take_times(m, &s, times, taken);
    else
        code = fail_kiln();
    if (!code && given(a, "kernels"))
        code = profile_take(&m->kernels, &s);
    free(times);
    step_free(&s);
    return code;
}

/* The peak is the fastest that was seen at all, in products or in steps: a machine that others use as well may never
 * have been quiet while the products ran. */
static void say_all(const measured *all, int count, bool text)
{
    double peak = 0;
    for (int i = 0; i < count; i++)
        peak = fmax(peak, fmax(all[i].product, all[i].rate));
    printf("%8s%12s%12s%12s%14s%10s%9s\n", "batch", "first ms", "best us", "median us", text ? "bytes/s" : "samples/s",
           "GFLOP/s", "of peak");
    for (int i = 0; i < count; i++) {
        const measured *m = &all[i];
        printf("%8lld%12.1f%12.1f%12.1f%14s%10.1f", (long long)m->batch, m->first * 1e3, m->best * 1e6, m->median * 1e6,
               show_count(m->median > 0 ? (int64_t)((double)m->samples / m->median) : 0), m->rate / 1e9);
        if (peak > 0)
            printf("%7.0f %%", 100 * m->rate / peak);
        putchar('\n');
    }
    printf("\npeak: %.0f GFLOP/s, the most that a large product or a step reached meanwhile\n", peak / 1e9);
}

static int bench_all(const arguments *a, network *n, kiln_device device)
{
    int64_t batches[MAX_COUNTS] = {32, 128, 512};
    int count = given(a, "batch") ? counts_of(a, "batch", batches) : n->tokens ? 1 : 3, code = 0;
    measured all[MAX_COUNTS] = {0};
    say("%s, %s parameters, %s, on %s", n->name, show_count(kiln_parameter_count(n->module)),
        text_of(a, "optim", "adam"), kiln_device_name(device));
    if (device == KILN_CPU)
        printf(" with %d threads", kiln_get_num_threads());
    printf("\n\n");
    fflush(stdout);
    for (int i = 0; i < count && !code; i++) {
        all[i].batch = batches[i];
        code = bench_batch(a, n, device, &all[i]);
    }
    if (!code)
        say_all(all, count, n->tokens);
    for (int i = 0; i < count; i++) {
        if (!code && given(a, "kernels"))
            profile_say(&all[i].kernels, all[i].batch, all[i].median);
        profile_free(&all[i].kernels);
    }
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
                               .notes =
                                   "Examples: kiln bench\n"
                                   "          kiln bench --model lenet --batch 32,256 --threads 2\n"
                                   "          kiln bench --model gpt2:layers=4,embed=128,heads=4 --batch 8 --kernels\n",
                               .run = bench};
