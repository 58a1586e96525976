/* Times Kiln's f32 matrix multiplication beside BLIS and oneDNN, where they are linked (KILN_HAVE_BLIS,
 * KILN_HAVE_DNNL), in the same run: rounds of each library take turns, and each library's fastest round counts.
 *
 *     gemm_bench [threads [group]]     BLIS_NUM_THREADS and OMP_NUM_THREADS set the peers' threads. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/parallel.h"
#include "device/cpu/gemm/gemm.h"

#ifdef KILN_HAVE_BLIS
#include <cblas.h>
#endif
#ifdef KILN_HAVE_DNNL
#include <dnnl.h>
#endif

enum { KILN, BLIS, DNNL, LIBRARIES };
static const char *const library_names[LIBRARIES] = {"kiln", "blis", "onednn"};

/* C[m,n] = op(A) · op(B), all dense and row-major as stored; a transposed operand is stored [k,m] or [n,k]. */
typedef struct product {
    const char *group;
    int64_t m, n, k, batch;
    bool transpose_a, transpose_b;
} product;

#define MLP(group, B)                                                                                                  \
    {group, B, 256, 784, 1, false, true}, {group, B, 128, 256, 1, false, true}, {group, B, 10, 128, 1, false, true},   \
        {group, B, 128, 10, 1, false, false}, {group, B, 256, 128, 1, false, false},                                   \
        {group, 10, 128, B, 1, true, false}, {group, 128, 256, B, 1, true, false},                                     \
    {                                                                                                                  \
        group, 256, 784, B, 1, true, false                                                                             \
    }

/* 784-2048-2048-10: weights that no cache but the last holds. */
#define WIDE(group, B)                                                                                                 \
    {group, B, 2048, 784, 1, false, true}, {group, B, 2048, 2048, 1, false, true},                                     \
        {group, B, 10, 2048, 1, false, true}, {group, B, 2048, 10, 1, false, false},                                   \
        {group, B, 2048, 2048, 1, false, false}, {group, 10, 2048, B, 1, true, false},                                 \
        {group, 2048, 2048, B, 1, true, false},                                                                        \
    {                                                                                                                  \
        group, 2048, 784, B, 1, true, false                                                                            \
    }

static const product products[] = {
    MLP("mlp, batch 32", 32),
    MLP("mlp, batch 1024", 1024),
    {"square", 64, 64, 64, 1, false, false},
    {"square", 256, 256, 256, 1, false, false},
    {"square", 512, 512, 512, 1, false, false},
    {"square", 1024, 1024, 1024, 1, false, false},
    {"square", 1024, 1024, 1024, 1, false, true},
    {"square", 1024, 1024, 1024, 1, true, false},
    {"square", 2048, 2048, 2048, 1, false, false},
    {"gpt", 2048, 384, 128, 1, false, true},
    {"gpt", 2048, 128, 512, 1, false, true},
    {"gpt", 2048, 512, 128, 1, false, true},
    {"gpt", 2048, 128, 384, 1, false, false},
    {"gpt", 384, 128, 2048, 1, true, false},
    {"gpt", 512, 128, 2048, 1, true, false},
    {"gpt", 128, 512, 2048, 1, true, false},
    {"gpt", 128, 128, 2048, 1, true, false},
    {"gpt", 256, 128, 2048, 1, true, false},
    WIDE("wide mlp, batch 128", 128),
    WIDE("wide mlp, batch 512", 512),
    {"large", 1024, 1024, 4096, 1, false, false},
    {"large", 1024, 1024, 4096, 1, false, true},
    {"large", 1024, 1024, 4096, 1, true, false},
    {"large", 1024, 1024, 4096, 1, true, true},
    {"large", 4096, 1024, 1024, 1, false, true},
    {"large", 1024, 4096, 1024, 1, false, true},
    {"large", 2048, 2048, 2048, 1, false, true},
    {"large", 2048, 2048, 2048, 1, true, false},
    {"large", 2000, 2000, 2000, 1, false, true},
    {"attention", 128, 128, 32, 64, false, true},
    {"attention", 128, 32, 128, 64, false, false},
    {"attention", 128, 32, 128, 64, true, false},
    {"vector", 1, 1024, 1024, 1, false, false},
    {"vector", 1, 1024, 1024, 1, false, true},
    {"vector", 1024, 1, 1024, 1, false, false},
    {"vector", 8, 1024, 1024, 1, false, true},
    {"vector", 1, 4096, 4096, 1, false, false},
    {"vector", 1, 4096, 4096, 1, false, true},
};

typedef struct buffers {
    float *a, *b, *c[LIBRARIES];
    void *workspace;
} buffers;

static bool linked(int library)
{
#ifndef KILN_HAVE_BLIS
    if (library == BLIS)
        return false;
#endif
#ifndef KILN_HAVE_DNNL
    if (library == DNNL)
        return false;
#endif
    return library < LIBRARIES;
}

static kiln_gemm describe(const product *t, const buffers *x, const int64_t *a_batch, const int64_t *b_batch)
{
    kiln_gemm g = {.m = t->m, .n = t->n, .k = t->k, .batch = t->batch, .dtype = KILN_F32, .store = 1};
    g.a = x->a, g.b = x->b, g.c = x->c[KILN];
    g.a_row = t->transpose_a ? 1 : t->k, g.a_col = t->transpose_a ? t->m : 1;
    g.b_row = t->transpose_b ? 1 : t->n, g.b_col = t->transpose_b ? t->k : 1;
    g.c_row = t->n, g.c_batch = t->m * t->n;
    g.a_batch = a_batch, g.b_batch = b_batch;
    return g;
}

static void run_peer(int library, const product *t, const buffers *x)
{
    int64_t lda = t->transpose_a ? t->m : t->k, ldb = t->transpose_b ? t->k : t->n;
    for (int64_t i = 0; i < t->batch; i++) {
        const float *a = x->a + i * t->m * t->k, *b = x->b + i * t->k * t->n;
        float *c = x->c[library] + i * t->m * t->n;
#ifdef KILN_HAVE_BLIS
        if (library == BLIS)
            cblas_sgemm(CblasRowMajor, t->transpose_a ? CblasTrans : CblasNoTrans,
                        t->transpose_b ? CblasTrans : CblasNoTrans, (int)t->m, (int)t->n, (int)t->k, 1, a, (int)lda, b,
                        (int)ldb, 0, c, (int)t->n);
#endif
#ifdef KILN_HAVE_DNNL
        if (library == DNNL)
            dnnl_sgemm(t->transpose_a ? 'T' : 'N', t->transpose_b ? 'T' : 'N', t->m, t->n, t->k, 1, a, lda, b, ldb, 0,
                       c, t->n);
#endif
        (void)a, (void)b, (void)c, (void)lda, (void)ldb;
    }
}

static float *filled(int64_t elements)
{
    float *x = aligned_alloc(64, ((size_t)elements * sizeof *x + 127) / 64 * 64);
    for (int64_t i = 0; x && i < elements; i++)
        x[i] = (float)((i * 7919) % 1009 - 504) / 512;
    if (!x) {
        fprintf(stderr, "gemm_bench: out of memory\n");
        exit(1);
    }
    return x;
}

/* Fastest time of one call, in seconds, for each library. */
static void measure(const product *t, double best[LIBRARIES])
{
    buffers x = {.a = filled(t->batch * t->m * t->k), .b = filled(t->batch * t->k * t->n)};
    int64_t a_batch[64], b_batch[64];
    for (int64_t i = 0; i < t->batch; i++)
        a_batch[i] = i * t->m * t->k, b_batch[i] = i * t->k * t->n;
    for (int i = 0; i < LIBRARIES; i++)
        x.c[i] = filled(t->batch * t->m * t->n), best[i] = INFINITY;
    kiln_gemm g = describe(t, &x, a_batch, b_batch);
    x.workspace = filled((int64_t)kiln_gemm_workspace(&g, kiln_threads()) / 4 + 1);
    double flops = 2.0 * (double)t->m * (double)t->n * (double)t->k * (double)t->batch;
    int calls = (int)fmax(1, 5e8 / flops / 8), rounds = flops > 5e9 ? 7 : 15;
    for (int round = 0; round < rounds; round++) {
        for (int library = 0; library < LIBRARIES; library++) {
            if (!linked(library))
                continue;
            double start = 0;
            for (int i = -1; i < calls; i++) { /* the first call warms the caches */
                if (i == 0)
                    start = kiln_seconds();
                if (library == KILN)
                    kiln_gemm_run(&g, x.workspace);
                else
                    run_peer(library, t, &x);
            }
            best[library] = fmin(best[library], (kiln_seconds() - start) / calls);
        }
    }
    for (int i = 0; i < LIBRARIES; i++)
        free(x.c[i]);
    free(x.a), free(x.b), free(x.workspace);
}

static void print_times(const char *label, const double best[LIBRARIES], double flops)
{
    printf("%-34s %10.1f us %7.1f GF/s", label, best[KILN] * 1e6, flops / best[KILN] * 1e-9);
    for (int i = BLIS; i < LIBRARIES; i++) {
        if (linked(i))
            printf("  | %s %10.1f us, %5.2f x", library_names[i], best[i] * 1e6, best[i] / best[KILN]);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    if (argc > 1)
        kiln_threads_set(atoi(argv[1]));
    printf("%d threads; x: how many times as long as kiln\n", kiln_threads());
    double sum[LIBRARIES] = {0}, sum_flops = 0;
    int count = (int)(sizeof products / sizeof *products);
    for (int i = 0; i < count; i++) {
        const product *t = &products[i];
        if (argc > 2 && strncmp(argv[2], t->group, strlen(argv[2])) != 0)
            continue;
        double best[LIBRARIES], flops = 2.0 * (double)t->m * (double)t->n * (double)t->k * (double)t->batch;
        char label[64];
        measure(t, best);
        snprintf(label, sizeof label, "%3dx %dx%dx%d %c%c", (int)t->batch, (int)t->m, (int)t->n, (int)t->k,
                 t->transpose_a ? 'T' : 'N', t->transpose_b ? 'T' : 'N');
        print_times(label, best, flops);
        for (int l = 0; l < LIBRARIES; l++)
            sum[l] += best[l];
        sum_flops += flops;
        if (i + 1 == count || strcmp(products[i + 1].group, t->group) != 0) {
            print_times(t->group, sum, sum_flops);
            printf("\n");
            memset(sum, 0, sizeof sum), sum_flops = 0;
        }
    }
    return 0;
}
