/* Layers that only change the shape: Unflatten, Upsample. (Flatten is a row of activation.c.) */
#include <string.h>
#include "nn/module.h"
#include "ops/op.h"

/* ---- Unflatten ---- */

typedef struct unflatten {
    kiln_module base;
    int n;
    int64_t shape[KILN_MAX_DIMS]; /* of one sample */
} unflatten;

static kiln_tensor *unflatten_forward(kiln_module *m, kiln_tensor *x)
{
    const unflatten *u = (const unflatten *)m;
    int64_t shape[KILN_MAX_DIMS];
    if (x->ndim != 2 || x->shape[1] != kiln_count(u->n, u->shape))
        return kiln_fail(KILN_E_SHAPE, "unflatten", "x %s is not [N, %lld], which becomes [N] and %s",
                         kiln_shape_text(x->ndim, x->shape), (long long)kiln_count(u->n, u->shape),
                         kiln_shape_text(u->n, u->shape));
    shape[0] = x->shape[0];
    memcpy(shape + 1, u->shape, (size_t)u->n * sizeof *shape);
    return kiln_reshape(x, u->n + 1, shape);
}

static const kiln_module_class unflatten_layer = {"Unflatten", sizeof(unflatten), unflatten_forward, NULL, KILN_DIRECT};

kiln_module *kiln_nn_unflatten(int n, const int64_t *shape)
{
    if (n < 1 || n >= KILN_MAX_DIMS || !shape)
        return kiln_fail(KILN_E_ARGUMENT, "Unflatten", "a shape of %d dims; it takes 1 to %d", shape ? n : 0,
                         KILN_MAX_DIMS - 1);
    if (kiln_count(n, shape) < 1)
        return kiln_fail(KILN_E_SHAPE, "Unflatten", "%s is no shape that a sample can have", kiln_shape_text(n, shape));
    unflatten *u = (unflatten *)kiln_module_make(&unflatten_layer);
    if (!u)
        return NULL;
    u->n = n;
    memcpy(u->shape, shape, (size_t)n * sizeof *shape);
    return &u->base;
}

/* ---- Upsample ---- */

typedef struct upsample {
    kiln_module base;
    int64_t scale;
    kiln_resize mode;
} upsample;

static kiln_tensor *upsample_forward(kiln_module *m, kiln_tensor *x)
{
    const upsample *u = (const upsample *)m;
    int64_t size[2];
    if (x->ndim < 3 || x->ndim > 4)
        return kiln_fail(KILN_E_SHAPE, "upsample", "x %s is neither [N, C, length] nor [N, C, height, width]",
                         kiln_shape_text(x->ndim, x->shape));
    for (int d = 2; d < x->ndim; d++)
        if (__builtin_mul_overflow(x->shape[d], u->scale, &size[d - 2]))
            return kiln_fail(KILN_E_SHAPE, "upsample", "x %s is too large to be scaled by %lld",
                             kiln_shape_text(x->ndim, x->shape), (long long)u->scale);
    return kiln_interpolate(x, x->ndim - 2, size, u->mode, false);
}

static const kiln_module_class upsample_layer = {"Upsample", sizeof(upsample), upsample_forward, NULL, KILN_DIRECT};

kiln_module *kiln_nn_upsample(int64_t scale, kiln_resize mode)
{
    if (!kiln_module_at_least("Upsample", "scale", scale, 1))
        return NULL;
    if (mode < KILN_NEAREST || mode > KILN_BICUBIC)
        return kiln_fail(KILN_E_ARGUMENT, "Upsample", "%d is no way to resize", (int)mode);
    upsample *u = (upsample *)kiln_module_make(&upsample_layer);
    if (!u)
        return NULL;
    u->scale = scale;
    u->mode = mode;
    return &u->base;
}
