/* Pooling: windows of a fixed size, and windows that give a fixed number of results. */
#include "core/sized.h"
#include "nn/module.h"

typedef struct pool {
    kiln_module base;
    int64_t kernel, stride, padding, dilation; /* complete */
    bool ceil_mode, exclude_pad;
} pool;

static kiln_tensor *max_pool1d_forward(kiln_module *m, kiln_tensor *x)
{
    const pool *p = (const pool *)m;
    return kiln_max_pool1d(x, p->kernel, p->stride, p->padding, p->dilation, p->ceil_mode);
}

static kiln_tensor *max_pool2d_forward(kiln_module *m, kiln_tensor *x)
{
    const pool *p = (const pool *)m;
    return kiln_max_pool2d(x, p->kernel, p->kernel, .stride = {p->stride, p->stride},
                           .padding = {p->padding, p->padding}, .dilation = {p->dilation, p->dilation},
                           .ceil_mode = p->ceil_mode);
}

static kiln_tensor *avg_pool1d_forward(kiln_module *m, kiln_tensor *x)
{
    const pool *p = (const pool *)m;
    return kiln_avg_pool1d(x, p->kernel, p->stride, p->padding, p->ceil_mode, !p->exclude_pad);
}

static kiln_tensor *avg_pool2d_forward(kiln_module *m, kiln_tensor *x)
{
    const pool *p = (const pool *)m;
    return kiln_avg_pool2d(x, p->kernel, p->kernel, .stride = {p->stride, p->stride},
                           .padding = {p->padding, p->padding}, .ceil_mode = p->ceil_mode,
                           .exclude_pad = p->exclude_pad);
}

static const kiln_module_class max_pool1d_layer = {"MaxPool1d", sizeof(pool), max_pool1d_forward, NULL, KILN_DIRECT};
static const kiln_module_class max_pool2d_layer = {"MaxPool2d", sizeof(pool), max_pool2d_forward, NULL, KILN_DIRECT};
static const kiln_module_class avg_pool1d_layer = {"AvgPool1d", sizeof(pool), avg_pool1d_forward, NULL, KILN_DIRECT};
static const kiln_module_class avg_pool2d_layer = {"AvgPool2d", sizeof(pool), avg_pool2d_forward, NULL, KILN_DIRECT};

static kiln_module *make(const kiln_module_class *layer, int64_t kernel, const kiln_layer_pool_options *options)
{
    kiln_layer_pool_options o;
    const char *kind = layer->kind;
    if (!KILN_TAKE_OPTIONS(kind, o, options))
        return NULL;
    bool max = layer == &max_pool1d_layer || layer == &max_pool2d_layer;
    if (!kiln_module_at_least(kind, "kernel", kernel, 1) || !kiln_module_at_least(kind, "stride", o.stride, 0) ||
        !kiln_module_at_least(kind, "padding", o.padding, 0) || !kiln_module_at_least(kind, "dilation", o.dilation, 0))
        return NULL;
    if (o.padding > kernel / 2)
        return kiln_fail(KILN_E_ARGUMENT, kind, "padding is %lld; it is at most half the kernel, %lld",
                         (long long)o.padding, (long long)(kernel / 2));
    if (max ? o.exclude_pad : o.dilation > 1)
        return kiln_fail(KILN_E_ARGUMENT, kind, "%s is an option of %s pooling", max ? "exclude_pad" : "dilation",
                         max ? "average" : "max");
    pool *p = (pool *)kiln_module_make(layer);
    if (!p)
        return NULL;
    p->kernel = kernel;
    p->stride = o.stride ? o.stride : kernel;
    p->padding = o.padding;
    p->dilation = o.dilation ? o.dilation : 1;
    p->ceil_mode = o.ceil_mode;
    p->exclude_pad = o.exclude_pad;
    return &p->base;
}

kiln_module *kiln_nn_max_pool1d_(int64_t kernel, const kiln_layer_pool_options *options)
{
    return make(&max_pool1d_layer, kernel, options);
}

kiln_module *kiln_nn_max_pool2d_(int64_t kernel, const kiln_layer_pool_options *options)
{
    return make(&max_pool2d_layer, kernel, options);
}

kiln_module *kiln_nn_avg_pool1d_(int64_t kernel, const kiln_layer_pool_options *options)
{
    return make(&avg_pool1d_layer, kernel, options);
}

kiln_module *kiln_nn_avg_pool2d_(int64_t kernel, const kiln_layer_pool_options *options)
{
    return make(&avg_pool2d_layer, kernel, options);
}

/* ---- Adaptive ---- */

typedef struct adaptive {
    kiln_module base;
    int64_t size[2];
} adaptive;

#define ADAPTIVE(name, kind, ...)                                                                                      \
    static kiln_tensor *name##_forward(kiln_module *m, kiln_tensor *x)                                                 \
    {                                                                                                                  \
        const int64_t *size = ((const adaptive *)m)->size;                                                             \
        return kiln_##name(x, __VA_ARGS__);                                                                            \
    }                                                                                                                  \
    static const kiln_module_class name##_layer = {kind, sizeof(adaptive), name##_forward, NULL, KILN_DIRECT};

ADAPTIVE(adaptive_avg_pool1d, "AdaptiveAvgPool1d", size[0])
ADAPTIVE(adaptive_max_pool1d, "AdaptiveMaxPool1d", size[0])
ADAPTIVE(adaptive_avg_pool2d, "AdaptiveAvgPool2d", size[0], size[1])
ADAPTIVE(adaptive_max_pool2d, "AdaptiveMaxPool2d", size[0], size[1])

static kiln_module *make_adaptive(const kiln_module_class *layer, int64_t first, int64_t second)
{
    if (!kiln_module_at_least(layer->kind, "the size", first, 1) ||
        !kiln_module_at_least(layer->kind, "the size", second, 1))
        return NULL;
    adaptive *a = (adaptive *)kiln_module_make(layer);
    if (!a)
        return NULL;
    a->size[0] = first;
    a->size[1] = second;
    return &a->base;
}

kiln_module *kiln_nn_adaptive_avg_pool1d(int64_t length)
{
    return make_adaptive(&adaptive_avg_pool1d_layer, length, 1);
}

kiln_module *kiln_nn_adaptive_max_pool1d(int64_t length)
{
    return make_adaptive(&adaptive_max_pool1d_layer, length, 1);
}

kiln_module *kiln_nn_adaptive_avg_pool2d(int64_t height, int64_t width)
{
    return make_adaptive(&adaptive_avg_pool2d_layer, height, width);
}

kiln_module *kiln_nn_adaptive_max_pool2d(int64_t height, int64_t width)
{
    return make_adaptive(&adaptive_max_pool2d_layer, height, width);
}
