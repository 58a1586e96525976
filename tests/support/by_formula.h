/* Weights and batches by formula, the same as golden/make_models.py makes. */
#ifndef KILN_TEST_BY_FORMULA_H
#define KILN_TEST_BY_FORMULA_H

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kiln.h"

static inline uint32_t hash_of(uint32_t i, uint32_t stream)
{
    uint32_t h = i * 2654435761u + (stream + 1) * 2246822519u;
    for (int k = 0; k < 2; k++)
        h = (h ^ h >> 16) * 0x45D9F3Bu;
    return h ^ h >> 16;
}

static inline float uniform(uint32_t i, uint32_t stream)
{
    return (float)(hash_of(i, stream) >> 8) * 0x1p-23f - 1.0f;
}

static inline bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* What a parameter begins with, in memory to be freed. */
static inline float *initial(kiln_tensor *t, const char *name, uint32_t stream)
{
    int64_t n = kiln_numel(t);
    float *v = malloc((size_t)n * sizeof *v);
    float bound = kiln_ndim(t) >= 2 ? (float)sqrt(1.0 / (double)(n / kiln_size(t, 0))) : 0;
    for (int64_t i = 0; i < n; i++) {
        float u = uniform((uint32_t)i, stream);
        v[i] = kiln_ndim(t) >= 2 ? u * bound : ends_with(name, "weight") ? 1.0f + u * 0.25f : u * 0.125f;
    }
    return v;
}

/* shape: two sizes are tokens, four an image. */
static inline void make_batch(const int64_t *shape, int ndim, int step, kiln_tensor **x, kiln_tensor **y)
{
    uint32_t stream = 1000 + (uint32_t)(step % 2);
    int64_t n = shape[0];
    if (ndim == 2) { /* tokens: y is one further than x */
        int64_t *a = malloc((size_t)(n * shape[1]) * sizeof *a), *b = malloc((size_t)(n * shape[1]) * sizeof *b);
        for (int64_t i = 0; i < n; i++)
            for (int64_t t = 0; t < shape[1]; t++) {
                uint32_t at = (uint32_t)(i * (shape[1] + 1) + t);
                a[i * shape[1] + t] = hash_of(at, stream) % 256;
                b[i * shape[1] + t] = hash_of(at + 1, stream) % 256;
            }
        *x = kiln_tensor_new(a, KILN_I64, 2, shape, kiln_default_device());
        *y = kiln_tensor_new(b, KILN_I64, 2, shape, kiln_default_device());
        free(a);
        free(b);
        return;
    }
    int64_t count = n * shape[1] * shape[2] * shape[3], labels[64];
    float *pixels = malloc((size_t)count * sizeof *pixels);
    for (int64_t i = 0; i < count; i++)
        pixels[i] = uniform((uint32_t)i, stream);
    for (int64_t i = 0; i < n; i++)
        labels[i] = hash_of((uint32_t)i, stream + 1000) % 10;
    *x = kiln_tensor_new(pixels, KILN_F32, 4, shape, kiln_default_device());
    *y = kiln_tensor_new(labels, KILN_I64, 1, shape, kiln_default_device());
    free(pixels);
}

#endif
