/* Layers that are one product with a weight, or one look-up in it: Linear, Embedding. */
#include <math.h>
#include "core/sized.h"
#include "nn/module.h"

/* ---- Linear ---- */

typedef struct linear {
    kiln_module base;
    kiln_tensor *weight, *bias; /* [out, in], [out] or NULL */
} linear;

static kiln_tensor *linear_forward(kiln_module *m, kiln_tensor *x)
{
    const linear *l = (const linear *)m;
    return kiln_linear(x, l->weight, l->bias);
}

static const kiln_module_class linear_layer = {"Linear", sizeof(linear), linear_forward, NULL, KILN_DIRECT};

kiln_module *kiln_nn_linear_(int64_t in, int64_t out, const kiln_linear_options *options)
{
    kiln_linear_options o;
    if (!KILN_TAKE_OPTIONS("Linear", o, options) || !kiln_module_at_least("Linear", "in", in, 1) ||
        !kiln_module_at_least("Linear", "out", out, 1))
        return NULL;
    linear *l = (linear *)kiln_module_make(&linear_layer);
    if (!l)
        return NULL;
    double bound = 1 / sqrt((double)in);
    bool ok = kiln_module_parameter(&l->base, "weight", KILN_SHAPE(out, in), &l->weight) &&
              kiln_init_uniform(l->weight, -bound, bound);
    if (ok && !o.no_bias)
        ok = kiln_module_parameter(&l->base, "bias", KILN_SHAPE(out), &l->bias) &&
             kiln_init_uniform(l->bias, -bound, bound);
    return kiln_module_built(&l->base, ok);
}

/* ---- Embedding ---- */

typedef struct embedding {
    kiln_module base;
    kiln_tensor *weight; /* [count, width] */
    int64_t padding;     /* -1: none */
} embedding;

static kiln_tensor *embedding_forward(kiln_module *m, kiln_tensor *x)
{
    const embedding *e = (const embedding *)m;
    return kiln_embedding(e->weight, x, e->padding);
}

static const kiln_module_class embedding_layer = {"Embedding", sizeof(embedding), embedding_forward, NULL, KILN_DIRECT};

static bool zero_row(kiln_tensor *weight, int64_t row)
{
    bool ok = false;
    kiln_inner_scope {
        kiln_no_grad
            ok = kiln_init_constant(kiln_select(weight, 0, row), 0) != NULL;
    }
    return ok;
}

kiln_module *kiln_nn_embedding_(int64_t count, int64_t width, const kiln_embedding_options *options)
{
    kiln_embedding_options o;
    if (!KILN_TAKE_OPTIONS("Embedding", o, options) || !kiln_module_at_least("Embedding", "count", count, 1) ||
        !kiln_module_at_least("Embedding", "width", width, 1))
        return NULL;
    int64_t padding = o.padding_idx < 0 ? o.padding_idx + count : o.padding_idx;
    if (o.has_padding && (padding < 0 || padding >= count))
        return kiln_fail(KILN_E_ARGUMENT, "Embedding", "padding_idx %lld is none of its %lld rows",
                         (long long)o.padding_idx, (long long)count);
    if (!o.has_padding && o.padding_idx) {
        kiln_fail(KILN_E_ARGUMENT, "Embedding", "padding_idx is %lld, but has_padding is not set",
                  (long long)o.padding_idx);
        return kiln_hint("kiln_nn_embedding(count, width, .has_padding = true, .padding_idx = …)");
    }
    embedding *e = (embedding *)kiln_module_make(&embedding_layer);
    if (!e)
        return NULL;
    e->padding = o.has_padding ? padding : -1;
    bool ok = kiln_module_parameter(&e->base, "weight", KILN_SHAPE(count, width), &e->weight) &&
              kiln_init_normal(e->weight, 0, 1) && (e->padding < 0 || zero_row(e->weight, e->padding));
    return kiln_module_built(&e->base, ok);
}
