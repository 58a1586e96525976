/* Normalisation: BatchNorm, LayerNorm, RMSNorm, GroupNorm. One struct serves all four. */
#include <float.h>
#include "kiln/grad.h"
#include "core/sized.h"
#include "nn/module.h"

typedef struct norm {
    kiln_module base;
    kiln_tensor *weight, *bias;           /* NULL where there is none */
    kiln_tensor *mean, *variance, *count; /* batch norm's running figures and the batches they are of; or NULL */
    int64_t width, groups;
    double eps, momentum;
} norm;

/* One batch more, recorded: a step that is discarded does not count. */
static bool count_batch(const norm *n)
{
    bool ok = false;
    kiln_inner_scope {
        kiln_no_grad
            ok = kiln_assign(n->count, kiln_add_scalar(n->count, 1));
    }
    return ok;
}

static kiln_tensor *batch_norm_forward(kiln_module *m, kiln_tensor *x)
{
    const norm *n = (const norm *)m;
    bool training = kiln_module_trains(m);
    kiln_tensor *y =
        kiln_batch_norm(x, n->mean, n->variance, n->weight, n->bias, training || !n->mean, n->momentum, n->eps);
    return y && training && n->count && !count_batch(n) ? NULL : y;
}

static kiln_tensor *layer_norm_forward(kiln_module *m, kiln_tensor *x)
{
    const norm *n = (const norm *)m;
    return kiln_layer_norm(x, 1, &n->width, n->weight, n->bias, n->eps);
}

static kiln_tensor *rms_norm_forward(kiln_module *m, kiln_tensor *x)
{
    const norm *n = (const norm *)m;
    return kiln_rms_norm(x, 1, &n->width, n->weight, n->eps);
}

static kiln_tensor *group_norm_forward(kiln_module *m, kiln_tensor *x)
{
    const norm *n = (const norm *)m;
    return kiln_group_norm(x, n->groups, n->weight, n->bias, n->eps);
}

static const kiln_module_class batch_norm_layer = {"BatchNorm", sizeof(norm), batch_norm_forward, NULL, KILN_DIRECT};
static const kiln_module_class layer_norm_layer = {"LayerNorm", sizeof(norm), layer_norm_forward, NULL, KILN_DIRECT};
static const kiln_module_class rms_norm_layer = {"RMSNorm", sizeof(norm), rms_norm_forward, NULL, KILN_DIRECT};
static const kiln_module_class group_norm_layer = {"GroupNorm", sizeof(norm), group_norm_forward, NULL, KILN_DIRECT};

static bool check(const kiln_module_class *layer, int64_t width, const kiln_norm_options *o)
{
    const char *kind = layer->kind;
    if (!kiln_module_at_least(kind, layer == &batch_norm_layer || layer == &group_norm_layer ? "channels" : "width",
                              width, 1))
        return false;
    if (!(o->eps >= 0))
        return kiln_fail(KILN_E_ARGUMENT, kind, "eps is %g; it must not be negative", o->eps);
    if (layer != &batch_norm_layer && (o->momentum != 0 || o->no_tracking))
        return kiln_fail(KILN_E_ARGUMENT, kind, "momentum and no_tracking are options of batch_norm");
    if (!(o->momentum >= 0 && o->momentum <= 1))
        return kiln_fail(KILN_E_ARGUMENT, kind, "momentum is %g; it lies between 0 and 1", o->momentum);
    if (layer != &layer_norm_layer && o->no_bias)
        return kiln_fail(KILN_E_ARGUMENT, kind, "no_bias is an option of layer_norm");
    return true;
}

static norm *make(const kiln_module_class *layer, int64_t width, const kiln_norm_options *options)
{
    kiln_norm_options o;
    norm *n =
        KILN_TAKE_OPTIONS(layer->kind, o, options) && check(layer, width, &o) ? (norm *)kiln_module_make(layer) : NULL;
    if (!n)
        return NULL;
    n->width = width;
    n->eps = o.eps > 0 ? o.eps : layer == &rms_norm_layer ? FLT_EPSILON : 1e-5;
    n->momentum = o.momentum > 0 ? o.momentum : 0.1;
    bool ok = true;
    if (!o.no_affine) {
        ok = kiln_module_parameter(&n->base, "weight", 1, &width, &n->weight) && kiln_init_constant(n->weight, 1);
        if (ok && !o.no_bias && layer != &rms_norm_layer)
            ok = kiln_module_parameter(&n->base, "bias", 1, &width, &n->bias);
    }
    if (ok)
        return n;
    kiln_module_free(&n->base);
    return NULL;
}

static kiln_module *built(norm *n)
{
    return n ? kiln_module_built(&n->base, true) : NULL;
}

kiln_module *kiln_nn_batch_norm_(int64_t channels, const kiln_norm_options *options)
{
    kiln_norm_options o;
    norm *n = KILN_TAKE_OPTIONS(batch_norm_layer.kind, o, options) ? make(&batch_norm_layer, channels, &o) : NULL;
    if (!n || o.no_tracking)
        return built(n);
    bool ok = kiln_module_buffer(&n->base, "running_mean", 1, &channels, KILN_F32, &n->mean) &&
              kiln_module_buffer(&n->base, "running_var", 1, &channels, KILN_F32, &n->variance) &&
              kiln_module_buffer(&n->base, "num_batches_tracked", 0, NULL, KILN_I64, &n->count) &&
              kiln_init_constant(n->variance, 1);
    return kiln_module_built(&n->base, ok);
}

kiln_module *kiln_nn_layer_norm_(int64_t width, const kiln_norm_options *options)
{
    return built(make(&layer_norm_layer, width, options));
}

kiln_module *kiln_nn_rms_norm_(int64_t width, const kiln_norm_options *options)
{
    return built(make(&rms_norm_layer, width, options));
}

kiln_module *kiln_nn_group_norm_(int64_t groups, int64_t channels, const kiln_norm_options *options)
{
    if (!kiln_module_at_least("GroupNorm", "groups", groups, 1))
        return NULL;
    if (channels % groups)
        return kiln_fail(KILN_E_ARGUMENT, "GroupNorm", "%lld channels do not divide into %lld groups",
                         (long long)channels, (long long)groups);
    norm *n = make(&group_norm_layer, channels, options);
    if (n)
        n->groups = groups;
    return built(n);
}
