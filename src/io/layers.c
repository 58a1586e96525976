/* What a model file can name: each layer with its options, their kinds and ranges, and the call that builds it. Sizes
 * that follow from the layer before are taken from the builder's shape. */
#include "io/layers.h"

#include <string.h>

#define BIG 1e9

/* ---- Options as builders see them ---- */

static const kiln_layer_value *value_of(const kiln_layer_args *a, const char *name)
{
    for (int i = 0; i < KILN_LAYER_OPTIONS && a->layer->options[i].name; i++)
        if (!strcmp(a->layer->options[i].name, name))
            return a->values[i].node ? &a->values[i] : NULL;
    return NULL;
}

static int64_t whole(const kiln_layer_args *a, const char *name, int64_t otherwise)
{
    const kiln_layer_value *v = value_of(a, name);
    return v ? v->whole[0] : otherwise;
}

/* What a width of its own is in kiln_layer_conv_options: 0 where it is the height's, -1 for none. */
static int64_t width_of(const kiln_layer_args *a, const char *name)
{
    const kiln_layer_value *v = value_of(a, name);
    return !v || v->n < 2 || v->whole[0] == v->whole[1] ? 0 : v->whole[1] ? v->whole[1] : -1;
}

static double number(const kiln_layer_args *a, const char *name, double otherwise)
{
    const kiln_layer_value *v = value_of(a, name);
    return v ? v->number : otherwise;
}

static bool flag(const kiln_layer_args *a, const char *name, bool otherwise)
{
    return whole(a, name, otherwise);
}

static int64_t last_size(const kiln_model_builder *b)
{
    return b->shape[b->ndim - 1];
}

/* ---- Layers with parameters ---- */

static kiln_module *build_linear(kiln_model_builder *b, const kiln_layer_args *a)
{
    int64_t in = last_size(b), out = whole(a, "out", 0);
    return kiln_model_room(b, a, (double)out * ((double)in + 1))
               ? kiln_nn_linear(in, out, .no_bias = !flag(a, "bias", true))
               : NULL;
}

static kiln_module *build_conv(kiln_model_builder *b, const kiln_layer_args *a)
{
    int64_t in = b->shape[1], out = whole(a, "out", 0), kernel = whole(a, "kernel", 1), groups = whole(a, "groups", 1);
    double width = b->ndim == 3 ? 1 : width_of(a, "kernel") ? (double)width_of(a, "kernel") : (double)kernel;
    kiln_layer_conv_options options = {
        .size = sizeof options,
        .stride = whole(a, "stride", 0),
        .padding = whole(a, "padding", 0),
        .dilation = whole(a, "dilation", 0),
        .output_padding = whole(a, "output_padding", 0),
        .groups = groups,
        .kernel_w = width_of(a, "kernel"),
        .stride_w = width_of(a, "stride"),
        .padding_w = width_of(a, "padding"),
        .dilation_w = width_of(a, "dilation"),
        .output_padding_w = width_of(a, "output_padding"),
        .no_bias = !flag(a, "bias", true),
    };
    if (!kiln_model_room(b, a, (double)out * ((double)in / (double)groups * (double)kernel * width + 1)))
        return NULL;
    bool transpose = !strncmp(a->layer->name, "conv_transpose", 14);
    if (b->ndim == 3)
        return transpose ? kiln_nn_conv_transpose1d_(in, out, kernel, &options)
                         : kiln_nn_conv1d_(in, out, kernel, &options);
    return transpose ? kiln_nn_conv_transpose2d_(in, out, kernel, &options)
                     : kiln_nn_conv2d_(in, out, kernel, &options);
}

static kiln_module *build_embedding(kiln_model_builder *b, const kiln_layer_args *a)
{
    int64_t count = whole(a, "count", b->vocabulary), width = whole(a, "width", 0);
    if (b->dtype != KILN_I64)
        return kiln_model_bad(b, a->line, "embedding takes tokens; write 'input: tokens' to begin with those");
    if (count < b->vocabulary)
        return kiln_model_bad(b, a->line, "the embedding has %lld rows for a vocabulary of %lld", (long long)count,
                              (long long)b->vocabulary);
    if (!kiln_model_room(b, a, (double)count * (double)width))
        return NULL;
    bool padding = value_of(a, "padding_idx") != NULL;
    kiln_module *m = kiln_nn_embedding(count, width, .has_padding = padding, .padding_idx = whole(a, "padding_idx", 0));
    return m;
}

static kiln_norm_options norm_options(const kiln_layer_args *a)
{
    return (kiln_norm_options){
        .size = sizeof(kiln_norm_options),
        .eps = number(a, "eps", 0),
        .momentum = number(a, "momentum", 0),
        .no_affine = !flag(a, "affine", true),
        .no_bias = !flag(a, "bias", true),
        .no_tracking = !flag(a, "tracking", true),
    };
}

/* Each of the four: what they are made with, unless the weights of so many channels would be too many. */
static bool norm_fits(kiln_model_builder *b, const kiln_layer_args *a, int64_t channels, kiln_norm_options *options)
{
    *options = norm_options(a);
    return kiln_model_room(b, a, 4 * (double)channels);
}

static kiln_module *build_batch_norm(kiln_model_builder *b, const kiln_layer_args *a)
{
    kiln_norm_options options;
    return norm_fits(b, a, b->shape[1], &options) ? kiln_nn_batch_norm_(b->shape[1], &options) : NULL;
}

static kiln_module *build_layer_norm(kiln_model_builder *b, const kiln_layer_args *a)
{
    kiln_norm_options options;
    return norm_fits(b, a, last_size(b), &options) ? kiln_nn_layer_norm_(last_size(b), &options) : NULL;
}

static kiln_module *build_rms_norm(kiln_model_builder *b, const kiln_layer_args *a)
{
    kiln_norm_options options;
    return norm_fits(b, a, last_size(b), &options) ? kiln_nn_rms_norm_(last_size(b), &options) : NULL;
}

static kiln_module *build_group_norm(kiln_model_builder *b, const kiln_layer_args *a)
{
    kiln_norm_options options;
    return norm_fits(b, a, b->shape[1], &options) ? kiln_nn_group_norm_(whole(a, "groups", 1), b->shape[1], &options)
                                                  : NULL;
}

static kiln_module *build_attention(kiln_model_builder *b, const kiln_layer_args *a)
{
    double width = (double)last_size(b);
    if (!kiln_model_room(b, a, 4 * width * (width + 1)))
        return NULL;
    return kiln_nn_multihead_attention(last_size(b), whole(a, "heads", 1), .dropout = number(a, "dropout", 0),
                                       .causal = flag(a, "causal", false), .no_bias = !flag(a, "bias", true));
}

typedef struct recurrent { /* what such a layer is made with */
    int64_t in, hidden;
    kiln_recurrent_options options;
} recurrent;

/* Each of the three, unless it would have too many weights. */
static bool recurrent_fits(kiln_model_builder *b, const kiln_layer_args *a, double gates, recurrent *r)
{
    int64_t in = last_size(b), hidden = whole(a, "hidden", 0), layers = whole(a, "layers", 1);
    bool both = flag(a, "bidirectional", false);
    double directions = both ? 2 : 1;
    double widest = (double)in > (double)hidden * directions ? (double)in : (double)hidden * directions;
    *r = (recurrent){.in = in,
                     .hidden = hidden,
                     .options = {
                         .size = sizeof r->options,
                         .layers = layers,
                         .dropout = number(a, "dropout", 0),
                         .batch_first = true,
                         .bidirectional = both,
                         .no_bias = !flag(a, "bias", true),
                         .relu = whole(a, "activation", 0) == 1,
                     }};
    return kiln_model_room(b, a, (double)layers * directions * gates * (double)hidden * (widest + (double)hidden + 2));
}

static kiln_module *build_lstm(kiln_model_builder *b, const kiln_layer_args *a)
{
    recurrent r;
    return recurrent_fits(b, a, 4, &r) ? kiln_nn_lstm_(r.in, r.hidden, &r.options) : NULL;
}

static kiln_module *build_gru(kiln_model_builder *b, const kiln_layer_args *a)
{
    recurrent r;
    return recurrent_fits(b, a, 3, &r) ? kiln_nn_gru_(r.in, r.hidden, &r.options) : NULL;
}

static kiln_module *build_rnn(kiln_model_builder *b, const kiln_layer_args *a)
{
    recurrent r;
    return recurrent_fits(b, a, 1, &r) ? kiln_nn_rnn_(r.in, r.hidden, &r.options) : NULL;
}

/* ---- Layers without ---- */

static kiln_layer_pool_options pool_options(const kiln_layer_args *a)
{
    return (kiln_layer_pool_options){
        .size = sizeof(kiln_layer_pool_options),
        .stride = whole(a, "stride", 0),
        .padding = whole(a, "padding", 0),
        .dilation = whole(a, "dilation", 0),
        .ceil_mode = flag(a, "ceil_mode", false),
        .exclude_pad = !flag(a, "count_include_pad", true),
    };
}

static kiln_module *build_max_pool(kiln_model_builder *b, const kiln_layer_args *a)
{
    int64_t kernel = whole(a, "kernel", 0);
    kiln_layer_pool_options options = pool_options(a);
    return b->ndim == 3 ? kiln_nn_max_pool1d_(kernel, &options) : kiln_nn_max_pool2d_(kernel, &options);
}

static kiln_module *build_avg_pool(kiln_model_builder *b, const kiln_layer_args *a)
{
    int64_t kernel = whole(a, "kernel", 0);
    kiln_layer_pool_options options = pool_options(a);
    return b->ndim == 3 ? kiln_nn_avg_pool1d_(kernel, &options) : kiln_nn_avg_pool2d_(kernel, &options);
}

static kiln_module *build_adaptive_max(kiln_model_builder *b, const kiln_layer_args *a)
{
    int64_t height = whole(a, "size", 1), width = width_of(a, "size") ? width_of(a, "size") : height;
    return b->ndim == 3 ? kiln_nn_adaptive_max_pool1d(height) : kiln_nn_adaptive_max_pool2d(height, width);
}

static kiln_module *build_adaptive_avg(kiln_model_builder *b, const kiln_layer_args *a)
{
    int64_t height = whole(a, "size", 1), width = width_of(a, "size") ? width_of(a, "size") : height;
    return b->ndim == 3 ? kiln_nn_adaptive_avg_pool1d(height) : kiln_nn_adaptive_avg_pool2d(height, width);
}

static kiln_module *build_unflatten(kiln_model_builder *b, const kiln_layer_args *a)
{
    (void)b;
    const kiln_layer_value *v = value_of(a, "shape");
    return kiln_nn_unflatten(v->n, v->whole);
}

static kiln_module *build_upsample(kiln_model_builder *b, const kiln_layer_args *a)
{
    (void)b;
    static const kiln_resize modes[] = {KILN_NEAREST, KILN_LINEAR, KILN_BICUBIC}; /* in the order of the words */
    return kiln_nn_upsample(whole(a, "scale", 2), modes[whole(a, "mode", 0)]);
}

/* One line a layer: its name, and the call that makes it. */
#define SIMPLE(layer, call)                                                                                            \
    static kiln_module *build_##layer(kiln_model_builder *b, const kiln_layer_args *a)                                 \
    {                                                                                                                  \
        (void)b, (void)a;                                                                                              \
        return call;                                                                                                   \
    }
SIMPLE(relu, kiln_nn_relu())
SIMPLE(relu6, kiln_nn_relu6())
SIMPLE(leaky_relu, kiln_nn_leaky_relu(number(a, "slope", 0.01)))
SIMPLE(elu, kiln_nn_elu(number(a, "alpha", 1)))
SIMPLE(selu, kiln_nn_selu())
SIMPLE(celu, kiln_nn_celu(number(a, "alpha", 1)))
SIMPLE(gelu, kiln_nn_gelu())
SIMPLE(gelu_tanh, kiln_nn_gelu_tanh())
SIMPLE(silu, kiln_nn_silu())
SIMPLE(sigmoid, kiln_nn_sigmoid())
SIMPLE(logsigmoid, kiln_nn_logsigmoid())
SIMPLE(softplus, kiln_nn_softplus(number(a, "beta", 1), number(a, "threshold", 20)))
SIMPLE(hardswish, kiln_nn_hardswish())
SIMPLE(hardsigmoid, kiln_nn_hardsigmoid())
SIMPLE(hardtanh, kiln_nn_hardtanh(number(a, "min", -1), number(a, "max", 1)))
SIMPLE(mish, kiln_nn_mish())
SIMPLE(softsign, kiln_nn_softsign())
SIMPLE(tanh, kiln_nn_tanh())
SIMPLE(softmax, kiln_nn_softmax((int)whole(a, "dim", -1)))
SIMPLE(log_softmax, kiln_nn_log_softmax((int)whole(a, "dim", -1)))
SIMPLE(dropout, kiln_nn_dropout(number(a, "p", 0.5)))
SIMPLE(flatten, kiln_nn_flatten())
SIMPLE(identity, kiln_nn_identity())

/* ---- Layers of layers ---- */

static kiln_module *build_sequential(kiln_model_builder *b, const kiln_layer_args *a)
{
    return kiln_model_sequence(b, value_of(a, "layers")->node, 1);
}

static kiln_module *build_repeat(kiln_model_builder *b, const kiln_layer_args *a)
{
    return kiln_model_sequence(b, value_of(a, "layers")->node, whole(a, "times", 1));
}

static kiln_module *build_residual(kiln_model_builder *b, const kiln_layer_args *a)
{
    int ndim = b->ndim;
    int64_t shape[KILN_MAX_DIMS];
    memcpy(shape, b->shape, sizeof shape);
    kiln_module *body = kiln_model_sequence(b, value_of(a, "body")->node, 1), *shortcut = NULL;
    if (!body)
        return NULL;
    int body_ndim = b->ndim;
    int64_t body_shape[KILN_MAX_DIMS];
    memcpy(body_shape, b->shape, sizeof shape);
    b->ndim = ndim;
    memcpy(b->shape, shape, sizeof shape);
    const kiln_layer_value *way = value_of(a, "shortcut");
    bool ok = !way || (shortcut = kiln_model_sequence(b, way->node, 1));
    if (ok && (b->ndim != body_ndim || memcmp(b->shape, body_shape, (size_t)body_ndim * sizeof *body_shape))) {
        ok = kiln_model_bad(b, a->line, "the body and the shortcut of residual end in different shapes");
    }
    if (ok)
        return kiln_nn_residual(body, shortcut);
    kiln_module_free(body);
    kiln_module_free(shortcut);
    return NULL;
}

/* ---- The table ---- */

#define WHOLE(name, least, most)                                                                                       \
    {                                                                                                                  \
        name, KILN_OPTION_WHOLE, false, least, most, NULL                                                              \
    }
#define NEEDED(name, least, most)                                                                                      \
    {                                                                                                                  \
        name, KILN_OPTION_WHOLE, true, least, most, NULL                                                               \
    }
#define PAIR(name, least)                                                                                              \
    {                                                                                                                  \
        name, KILN_OPTION_PAIR, false, least, BIG, NULL                                                                \
    }
#define NUMBER(name, least, most)                                                                                      \
    {                                                                                                                  \
        name, KILN_OPTION_NUMBER, false, least, most, NULL                                                             \
    }
#define FLAG(name)                                                                                                     \
    {                                                                                                                  \
        name, KILN_OPTION_FLAG, false, 0, 1, NULL                                                                      \
    }
#define LAYERS(name, required)                                                                                         \
    {                                                                                                                  \
        name, KILN_OPTION_LAYERS, required, 0, 0, NULL                                                                 \
    }
#define IMAGE  3, "[channels, height, width]"
#define SERIES 2, "[channels, length]"
#define STEPS  2, "[length, width]"

#define CONV(name, dims, KIND, ...)                                                                                    \
    {                                                                                                                  \
        name,                                                                                                          \
            {NEEDED("out", 1, BIG),                                                                                    \
             {"kernel", KILN_OPTION_##KIND, true, 1, BIG, NULL},                                                       \
             {"stride", KILN_OPTION_##KIND, false, 1, BIG, NULL},                                                      \
             {"padding", KILN_OPTION_##KIND, false, 0, BIG, NULL},                                                     \
             {"dilation", KILN_OPTION_##KIND, false, 1, BIG, NULL},                                                    \
             WHOLE("groups", 1, BIG),                                                                                  \
             FLAG("bias"),                                                                                             \
             ##__VA_ARGS__},                                                                                           \
            build_conv, dims                                                                                           \
    }
#define MAX_POOL(name, dims)                                                                                           \
    {                                                                                                                  \
        name,                                                                                                          \
            {NEEDED("kernel", 1, BIG), WHOLE("stride", 1, BIG), WHOLE("padding", 0, BIG), WHOLE("dilation", 1, BIG),   \
             FLAG("ceil_mode")},                                                                                       \
            build_max_pool, dims                                                                                       \
    }
#define AVG_POOL(name, dims)                                                                                           \
    {                                                                                                                  \
        name,                                                                                                          \
            {NEEDED("kernel", 1, BIG), WHOLE("stride", 1, BIG), WHOLE("padding", 0, BIG), FLAG("ceil_mode"),           \
             FLAG("count_include_pad")},                                                                               \
            build_avg_pool, dims                                                                                       \
    }
#define RECURRENT(layer, ...)                                                                                          \
    {                                                                                                                  \
#layer, {NEEDED("hidden", 1, BIG), WHOLE("layers", 1, 1000), NUMBER("dropout", 0, 1), FLAG("bidirectional"),   \
                 FLAG("bias"), ##__VA_ARGS__ },                                                                        \
                 build_##layer, STEPS                                                                                  \
    }
#define PLAIN(layer)                                                                                                   \
    {                                                                                                                  \
        .name = #layer, .build = build_##layer                                                                         \
    }

const kiln_layer kiln_layers[] = {
    {"linear", {NEEDED("out", 1, BIG), FLAG("bias")}, build_linear, 0, NULL},
    CONV("conv1d", SERIES, WHOLE),
    CONV("conv2d", IMAGE, PAIR),
    CONV("conv_transpose1d", SERIES, WHOLE, WHOLE("output_padding", 0, BIG)),
    CONV("conv_transpose2d", IMAGE, PAIR, PAIR("output_padding", 0)),
    {"embedding",
     {NEEDED("width", 1, BIG), WHOLE("count", 1, BIG), WHOLE("padding_idx", 0, BIG)},
     build_embedding,
     0,
     NULL},
    {"batch_norm",
     {NUMBER("eps", 1e-30, 1), NUMBER("momentum", 1e-30, 1), FLAG("affine"), FLAG("tracking")},
     build_batch_norm,
     0,
     NULL},
    {"layer_norm", {NUMBER("eps", 1e-30, 1), FLAG("affine"), FLAG("bias")}, build_layer_norm, 0, NULL},
    {"rms_norm", {NUMBER("eps", 1e-30, 1), FLAG("affine")}, build_rms_norm, 0, NULL},
    {"group_norm", {NEEDED("groups", 1, BIG), NUMBER("eps", 1e-30, 1), FLAG("affine")}, build_group_norm, 0, NULL},
    MAX_POOL("max_pool1d", SERIES),
    MAX_POOL("max_pool2d", IMAGE),
    AVG_POOL("avg_pool1d", SERIES),
    AVG_POOL("avg_pool2d", IMAGE),
    {"adaptive_avg_pool1d", {WHOLE("size", 1, BIG)}, build_adaptive_avg, SERIES},
    {"adaptive_max_pool1d", {WHOLE("size", 1, BIG)}, build_adaptive_max, SERIES},
    {"adaptive_avg_pool2d", {PAIR("size", 1)}, build_adaptive_avg, IMAGE},
    {"adaptive_max_pool2d", {PAIR("size", 1)}, build_adaptive_max, IMAGE},
    PLAIN(relu),
    PLAIN(relu6),
    {"leaky_relu", {NUMBER("slope", -BIG, BIG)}, build_leaky_relu, 0, NULL},
    {"elu", {NUMBER("alpha", -BIG, BIG)}, build_elu, 0, NULL},
    PLAIN(selu),
    {"celu", {NUMBER("alpha", 1e-9, BIG)}, build_celu, 0, NULL},
    PLAIN(gelu),
    PLAIN(gelu_tanh),
    PLAIN(silu),
    PLAIN(sigmoid),
    PLAIN(logsigmoid),
    {"softplus", {NUMBER("beta", 1e-9, BIG), NUMBER("threshold", -BIG, BIG)}, build_softplus, 0, NULL},
    PLAIN(hardswish),
    PLAIN(hardsigmoid),
    {"hardtanh", {NUMBER("min", -BIG, BIG), NUMBER("max", -BIG, BIG)}, build_hardtanh, 0, NULL},
    PLAIN(mish),
    PLAIN(softsign),
    PLAIN(tanh),
    {"softmax", {WHOLE("dim", -KILN_MAX_DIMS, KILN_MAX_DIMS - 1)}, build_softmax, 0, NULL},
    {"log_softmax", {WHOLE("dim", -KILN_MAX_DIMS, KILN_MAX_DIMS - 1)}, build_log_softmax, 0, NULL},
    {"dropout", {NUMBER("p", 0, 1)}, build_dropout, 0, NULL},
    PLAIN(flatten),
    {"unflatten", {{"shape", KILN_OPTION_SIZES, true, 1, BIG, NULL}}, build_unflatten, 0, NULL},
    {"upsample",
     {NEEDED("scale", 1, 1e4), {"mode", KILN_OPTION_WORD, false, 0, 0, "nearest linear bicubic"}},
     build_upsample,
     0,
     NULL},
    PLAIN(identity),
    {"attention",
     {NEEDED("heads", 1, BIG), NUMBER("dropout", 0, 1), FLAG("causal"), FLAG("bias")},
     build_attention,
     STEPS},
    RECURRENT(rnn, {"activation", KILN_OPTION_WORD, false, 0, 0, "tanh relu"}),
    RECURRENT(gru),
    RECURRENT(lstm),
    {"sequential", {LAYERS("layers", true)}, build_sequential, 0, NULL},
    {"residual", {LAYERS("body", true), LAYERS("shortcut", false)}, build_residual, 0, NULL},
    {"repeat", {LAYERS("layers", true), NEEDED("times", 1, 10000)}, build_repeat, 0, NULL},
};
const int kiln_layer_count = sizeof kiln_layers / sizeof *kiln_layers;
