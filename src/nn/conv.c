/* Convolutions, plain and transposed, in one and two dimensions. One struct serves all four. */
#include <math.h>
#include "core/sized.h"
#include "nn/module.h"

typedef struct conv {
    kiln_module base;
    kiln_tensor *weight,
        *bias;           /* [out, in / groups, kernel…], transposed: [in, out / groups, kernel…]; [out] or NULL */
    kiln_conv_options o; /* complete; 1d layers use the first of each pair */
} conv;

static kiln_tensor *conv1d_forward(kiln_module *m, kiln_tensor *x)
{
    const conv *c = (const conv *)m;
    const kiln_conv_options *o = &c->o;
    return kiln_conv1d(x, c->weight, c->bias, o->stride[0], o->padding[0], o->dilation[0], o->groups);
}

static kiln_tensor *conv2d_forward(kiln_module *m, kiln_tensor *x)
{
    const conv *c = (const conv *)m;
    return kiln_conv2d_(x, c->weight, c->bias, &c->o);
}

static kiln_tensor *conv_transpose1d_forward(kiln_module *m, kiln_tensor *x)
{
    const conv *c = (const conv *)m;
    const kiln_conv_options *o = &c->o;
    return kiln_conv_transpose1d(x, c->weight, c->bias, o->stride[0], o->padding[0], o->output_padding[0], o->groups,
                                 o->dilation[0]);
}

static kiln_tensor *conv_transpose2d_forward(kiln_module *m, kiln_tensor *x)
{
    const conv *c = (const conv *)m;
    return kiln_conv_transpose2d_(x, c->weight, c->bias, &c->o);
}

static const kiln_module_class layers[] = {
    {"Conv1d", sizeof(conv), conv1d_forward, NULL, false},
    {"Conv2d", sizeof(conv), conv2d_forward, NULL, false},
    {"ConvTranspose1d", sizeof(conv), conv_transpose1d_forward, NULL, false},
    {"ConvTranspose2d", sizeof(conv), conv_transpose2d_forward, NULL, false},
};

/* A pair of numbers out of an option and the one for the width: 0 stands for the default, or for "as the other one", -1
 * for none. */
static bool pair(const char *layer, const char *what, int64_t both, int64_t width, int64_t otherwise, int64_t *out)
{
    out[0] = both ? both : otherwise;
    out[1] = width == -1 ? otherwise : width ? width : out[0];
    return kiln_module_at_least(layer, what, out[0], otherwise) && kiln_module_at_least(layer, what, out[1], otherwise);
}

static bool read_options(const kiln_module_class *layer, int64_t in, int64_t out, int64_t kernel,
                         const kiln_layer_conv_options *o, int64_t *kernels, kiln_conv_options *full)
{
    const char *name = layer->kind;
    full->groups = o->groups ? o->groups : 1;
    if (!kiln_module_at_least(name, "in", in, 1) || !kiln_module_at_least(name, "out", out, 1) ||
        !kiln_module_at_least(name, "kernel", kernel, 1) || !kiln_module_at_least(name, "groups", full->groups, 1) ||
        !pair(name, "kernel", kernel, o->kernel_w, 1, kernels) ||
        !pair(name, "stride", o->stride, o->stride_w, 1, full->stride) ||
        !pair(name, "padding", o->padding, o->padding_w, 0, full->padding) ||
        !pair(name, "dilation", o->dilation, o->dilation_w, 1, full->dilation) ||
        !pair(name, "output_padding", o->output_padding, o->output_padding_w, 0, full->output_padding))
        return false;
    if (in % full->groups || out % full->groups)
        return kiln_fail(KILN_E_ARGUMENT, name, "%lld channels in and %lld out do not both divide into %lld groups",
                         (long long)in, (long long)out, (long long)full->groups);
    return true;
}

static bool check_dims(const kiln_module_class *layer, const kiln_layer_conv_options *o, int dims, bool transposed)
{
    if (dims == 1 && (o->kernel_w || o->stride_w || o->padding_w || o->dilation_w || o->output_padding_w))
        return kiln_fail(KILN_E_ARGUMENT, layer->kind,
                         "an option for the width (its name ends in _w) is set, but a 1d "
                         "layer has none");
    if (!transposed && (o->output_padding || o->output_padding_w))
        return kiln_fail(KILN_E_ARGUMENT, layer->kind, "output_padding is for transposed convolutions");
    return true;
}

static kiln_module *make(int64_t in, int64_t out, int64_t kernel, const kiln_layer_conv_options *options, int dims,
                         bool transposed)
{
    const kiln_module_class *layer = &layers[(transposed ? 2 : 0) + dims - 1];
    kiln_layer_conv_options o;
    kiln_conv_options full = {.size = sizeof full};
    int64_t kernels[2];
    if (!KILN_TAKE_OPTIONS(layer->kind, o, options) || !check_dims(layer, &o, dims, transposed) ||
        !read_options(layer, in, out, kernel, &o, kernels, &full))
        return NULL;
    conv *c = (conv *)kiln_module_make(layer);
    if (!c)
        return NULL;
    c->o = full;
    const int64_t first = transposed ? in : out, second = (transposed ? out : in) / full.groups;
    bool ok = kiln_module_parameter(&c->base, "weight", 2 + dims,
                                    (const int64_t[]){first, second, kernels[0], kernels[1]}, &c->weight);
    double fan_in = (double)second * (double)kernels[0] * (dims > 1 ? (double)kernels[1] : 1), bound = 1 / sqrt(fan_in);
    ok = ok && kiln_init_uniform(c->weight, -bound, bound);
    if (ok && !o.no_bias)
        ok = kiln_module_parameter(&c->base, "bias", KILN_SHAPE(out), &c->bias) &&
             kiln_init_uniform(c->bias, -bound, bound);
    return kiln_module_built(&c->base, ok);
}

kiln_module *kiln_nn_conv1d_(int64_t in, int64_t out, int64_t kernel, const kiln_layer_conv_options *options)
{
    return make(in, out, kernel, options, 1, false);
}

kiln_module *kiln_nn_conv2d_(int64_t in, int64_t out, int64_t kernel, const kiln_layer_conv_options *options)
{
    return make(in, out, kernel, options, 2, false);
}

kiln_module *kiln_nn_conv_transpose1d_(int64_t in, int64_t out, int64_t kernel, const kiln_layer_conv_options *options)
{
    return make(in, out, kernel, options, 1, true);
}

kiln_module *kiln_nn_conv_transpose2d_(int64_t in, int64_t out, int64_t kernel, const kiln_layer_conv_options *options)
{
    return make(in, out, kernel, options, 2, true);
}
