/* What the benchmarks share: where they run, medians, and taking turns with a peer. */
#ifndef KILN_BENCH_H
#define KILN_BENCH_H

#include <kiln.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "core/clock.h"

/* Takes "--device NAME" out of the arguments and makes that device the default; `standard` where there is none. Where
 * the device is not there the program says so and ends well: it has nothing to measure. */
static inline kiln_device bench_device(int *argc, char **argv, const char *standard)
{
    const char *name = standard;
    int kept = 1;
    for (int i = 1; i < *argc; i++)
        if (strcmp(argv[i], "--device") == 0 && i + 1 < *argc)
            name = argv[++i];
        else
            argv[kept++] = argv[i];
    *argc = kept;
    kiln_device device = kiln_device_parse(name);
    if (device != KILN_NO_DEVICE && kiln_set_default_device(device))
        return device;
    printf("no %s device: skipped (%s)\n", strncmp(name, "cuda", 4) ? name : "CUDA", kiln_last_error()->message);
    exit(0);
}

/* What a benchmark of the GPU does where it was built without CUDA's headers. */
static inline int bench_without_cuda(int argc, char **argv)
{
    bench_device(&argc, argv, "cuda");
    printf("built without CUDA's headers: skipped\n");
    return 0;
}

/* What KILN_BENCH_AMP asks autocast for; KILN_F32: nothing. */
static inline kiln_dtype bench_amp(void)
{
    const char *asked = getenv("KILN_BENCH_AMP");
    return !asked || !*asked ? KILN_F32 : strcmp(asked, "bf16") == 0 ? KILN_BF16 : KILN_F16;
}

static inline bool bench_wanted(const char *name, int argc, char **argv)
{
    bool listed = argc < 2;
    for (int i = 1; i < argc; i++)
        listed |= strcmp(argv[i], name) == 0;
    return listed;
}

static inline int bench_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double bench_median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, bench_compare);
    return values[n / 2];
}

/* Of all threads: with one thread that is the time that the work itself takes, whatever others do on the machine. */
static inline double bench_processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- In turn ---- */

/* One who does the work: run may return before it is done, wait does not. */
typedef struct bench_contender {
    void (*run)(void *context);
    void (*wait)(void *context);
    void *context;
} bench_contender;

static inline double bench_time(const bench_contender *c, int calls)
{
    double start = kiln_seconds();
    for (int i = 0; i < calls; i++)
        c->run(c->context);
    c->wait(c->context);
    return (kiln_seconds() - start) / calls;
}

/* Seconds a call of each of two, the medians of rounds taken in turn, so that a machine that changes its speed changes
 * it for both. */
static inline void bench_in_turn(const bench_contender who[2], double seconds[2])
{
    enum { ROUNDS = 7, MOST = 20000 };
    double rounds[2][ROUNDS];
    int calls[2];
    for (int k = 0; k < 2; k++) {
        bench_time(&who[k], 2); /* planned, compiled, chosen */
        double once = bench_time(&who[k], 3), fit = 0.03 / once;
        calls[k] = fit < 3 ? 3 : fit > MOST ? MOST : (int)fit;
    }
    for (int r = 0; r < ROUNDS; r++)
        for (int k = 0; k < 2; k++)
            rounds[k][r] = bench_time(&who[k], calls[k]);
    for (int k = 0; k < 2; k++)
        seconds[k] = bench_median(rounds[k], ROUNDS);
}

#endif
