/* Random numbers: element i is a function of seed, offset and i (see core/philox.h), so any range can be made alone. */
#include "core/philox.h"
#include "device/cpu/common/call.h"
#include "device/cpu/common/ranges.h"
#include "ops/op.h"

enum { BATCH = 16 }; /* blocks made together, so that the rounds vectorise */

typedef struct words {
    uint32_t w[4][BATCH]; /* word j of block k is w[j][k] */
} words;

/* The words of BATCH blocks from `block` on: kiln_philox, side by side. */
static void make_words(uint64_t seed, uint64_t block, words *out)
{
    uint32_t a[BATCH], b[BATCH], c[BATCH] = {0}, d[BATCH] = {0};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int k = 0; k < BATCH; k++) {
        a[k] = (uint32_t)(block + (uint64_t)k);
        b[k] = (uint32_t)((block + (uint64_t)k) >> 32);
    }
    for (int round = 0; round < 10; round++) {
        for (int k = 0; k < BATCH; k++) {
            uint64_t p = (uint64_t)a[k] * 0xD2511F53u, q = (uint64_t)c[k] * 0xCD9E8D57u;
            a[k] = (uint32_t)(q >> 32) ^ b[k] ^ k0;
            c[k] = (uint32_t)(p >> 32) ^ d[k] ^ k1;
            b[k] = (uint32_t)q;
            d[k] = (uint32_t)p;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int k = 0; k < BATCH; k++) {
        out->w[0][k] = a[k];
        out->w[1][k] = b[k];
        out->w[2][k] = c[k];
        out->w[3][k] = d[k];
    }
}

/* The numbers of one batch of blocks, in element order. */
static void uniform_f32(const words *in, void *out)
{
    float *y = out;
    for (int k = 0; k < BATCH; k++)
        for (int j = 0; j < 4; j++)
            y[4 * k + j] = kiln_uniform_f32(in->w[j][k]);
}

static void uniform_f64(const words *in, void *out)
{
    double *y = out;
    for (int k = 0; k < BATCH; k++) {
        y[2 * k] = kiln_uniform_f64(in->w[0][k], in->w[1][k]);
        y[2 * k + 1] = kiln_uniform_f64(in->w[2][k], in->w[3][k]);
    }
}

static void normal_f64(const words *in, void *out)
{
    double *y = out, z[4][BATCH];
    for (int half = 0; half < 4; half += 2)
        for (int k = 0; k < BATCH; k++)
            kiln_normal_pair(in->w[half][k], in->w[half + 1][k], &z[half][k], &z[half + 1][k]);
    for (int k = 0; k < BATCH; k++)
        for (int j = 0; j < 4; j++)
            y[4 * k + j] = z[j][k];
}

static void normal_f32(const words *in, void *out)
{
    float *y = out;
    double z[4 * BATCH];
    normal_f64(in, z);
    for (int i = 0; i < 4 * BATCH; i++)
        y[i] = (float)z[i];
}

typedef struct drawing {
    const kiln_cpu_call *call;
    void (*make)(const words *in, void *out);
    int64_t count, batches, tasks;
    int per_batch; /* elements */
} drawing;

static void draw_range(void *context, int64_t task, int worker)
{
    (void)worker;
    const drawing *d = context;
    const kiln_cpu_operand *out = &d->call->out[0];
    uint64_t seed = (uint64_t)d->call->floats[0], offset = (uint64_t)d->call->floats[1];
    size_t size = out->dtype == KILN_F64 ? 8 : 4;
    int64_t begin = kiln_range_begin(d->batches, d->tasks, task),
            end = kiln_range_begin(d->batches, d->tasks, task + 1);
    for (int64_t b = begin; b < end; b++) {
        words w;
        double rest[4 * BATCH];
        int64_t first = b * d->per_batch, left = d->count - first;
        char *to = (char *)out->data + (size_t)first * size;
        make_words(seed, offset + (uint64_t)b * BATCH, &w);
        if (left >= d->per_batch) {
            d->make(&w, to);
        } else {
            d->make(&w, rest);
            __builtin_memcpy(to, rest, (size_t)left * size);
        }
    }
}

static void draw(const kiln_cpu_call *c, void (*make)(const words *in, void *out), int per_block, int64_t cost)
{
    drawing d = {.call = c, .make = make, .count = 1, .per_batch = per_block * BATCH};
    for (int i = 0; i < c->out[0].ndim; i++)
        d.count *= c->out[0].shape[i];
    d.batches = (d.count + d.per_batch - 1) / d.per_batch;
    d.tasks = kiln_range_count(d.batches, d.per_batch * cost);
    kiln_parallel(d.tasks, draw_range, &d);
}

static void run_uniform(const kiln_cpu_call *c)
{
    bool wide = c->out[0].dtype == KILN_F64;
    draw(c, wide ? uniform_f64 : uniform_f32, wide ? 2 : 4, 2);
}

static void run_normal(const kiln_cpu_call *c)
{
    draw(c, c->out[0].dtype == KILN_F64 ? normal_f64 : normal_f32, 4, 8);
}

enum { WIDE = 1 << KILN_F32 | 1 << KILN_F64 };

const kiln_cpu_kernel kiln_cpu_kernels_random[] = {
    {.op = "random_uniform", .dtypes = WIDE, .run = run_uniform},
    {.op = "random_normal", .dtypes = WIDE, .run = run_normal},
    {0},
};
