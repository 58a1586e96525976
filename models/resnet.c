/* ResNet-18 and ResNet-50 with torchvision's names: conv1, bn1, layer1.0.conv1, …, layer4.1.bn2, fc. Small images
 * (below 64 pixels) get a 3x3 stem without pooling, as is usual for CIFAR. */
#include <stdio.h>
#include "parts.h"

/* A convolution without bias, padded so that stride 1 keeps the size. */
static kiln_module *conv(int64_t in, int64_t out, int64_t kernel, int64_t stride)
{
    return kiln_nn_conv2d(in, out, kernel, .stride = stride, .padding = kernel / 2, .no_bias = true);
}

/* He's initialisation, as torchvision has it. */
static void initialise(kiln_module *m)
{
    kiln_params p = kiln_parameters(m);
    for (int64_t i = 0; i < p.count; i++)
        if (kiln_ndim(p.tensors[i]) == 4)
            kiln_init_kaiming_normal(p.tensors[i], 0, true);
}

/* ---- A block: relu(bn(conv(… relu(bn(conv(x)))))) + shortcut) ---- */

typedef struct block {
    int n; /* convolutions */
    kiln_module *conv[3], *bn[3], *downsample;
} block;

static kiln_tensor *block_forward(kiln_module *self, kiln_tensor *x, void *context)
{
    (void)self;
    const block *b = context;
    kiln_tensor *y = x;
    for (int i = 0; i < b->n; i++) {
        y = kiln_forward(b->bn[i], kiln_forward(b->conv[i], y));
        if (i + 1 < b->n)
            y = kiln_relu(y);
    }
    return kiln_relu(kiln_add(y, b->downsample ? kiln_forward(b->downsample, x) : x));
}

static void add_conv(kiln_module *m, block *b, int64_t in, int64_t out, int64_t kernel, int64_t stride)
{
    char name[16];
    int i = b->n++;
    snprintf(name, sizeof name, "conv%d", i + 1);
    b->conv[i] = kiln_module_add(m, name, conv(in, out, kernel, stride));
    snprintf(name, sizeof name, "bn%d", i + 1);
    b->bn[i] = kiln_module_add(m, name, kiln_nn_batch_norm(out));
}

/* width: channels inside; bottleneck blocks have four times as many at their end. */
static kiln_module *make_block(int64_t in, int64_t width, int64_t stride, bool bottleneck)
{
    block *b;
    kiln_module *m = model_new(bottleneck ? "Bottleneck" : "BasicBlock", block_forward, sizeof *b, &b);
    if (!m)
        return NULL;
    int64_t out = bottleneck ? 4 * width : width;
    if (bottleneck) {
        add_conv(m, b, in, width, 1, 1);
        add_conv(m, b, width, width, 3, stride);
        add_conv(m, b, width, out, 1, 1);
    } else {
        add_conv(m, b, in, width, 3, stride);
        add_conv(m, b, width, width, 3, 1);
    }
    if (stride != 1 || in != out)
        b->downsample =
            kiln_module_add(m, "downsample", kiln_nn_sequential(conv(in, out, 1, stride), kiln_nn_batch_norm(out)));
    return m;
}

/* ---- The network ---- */

typedef struct resnet {
    kiln_module *conv1, *bn1, *maxpool, *layer[4], *fc;
} resnet;

static kiln_tensor *resnet_forward(kiln_module *self, kiln_tensor *x, void *context)
{
    (void)self;
    const resnet *r = context;
    x = kiln_relu(kiln_forward(r->bn1, kiln_forward(r->conv1, x)));
    if (r->maxpool)
        x = kiln_forward(r->maxpool, x);
    for (int i = 0; i < 4; i++)
        x = kiln_forward(r->layer[i], x);
    return kiln_forward(r->fc, kiln_mean(x, KILN_DIMS(2, 3), false));
}

static kiln_module *make_layer(int64_t in, int64_t width, int blocks, int64_t stride, bool bottleneck)
{
    kiln_module *layer = kiln_nn_sequence(0, NULL);
    int64_t out = bottleneck ? 4 * width : width;
    for (int i = 0; i < blocks; i++)
        model_add_numbered(layer, i, make_block(i ? out : in, width, i ? 1 : stride, bottleneck));
    return layer;
}

static kiln_module *make_resnet(model_options o, const int blocks[4], bool bottleneck, int64_t side)
{
    resnet *r;
    kiln_module *m = model_new("ResNet", resnet_forward, sizeof *r, &r);
    if (!m)
        return NULL;
    int64_t channels = model_or(o.channels, 3), in = 64;
    bool small = model_or(o.height, side) < 64;
    r->conv1 = kiln_module_add(m, "conv1", small ? conv(channels, 64, 3, 1) : conv(channels, 64, 7, 2));
    r->bn1 = kiln_module_add(m, "bn1", kiln_nn_batch_norm(64));
    if (!small)
        r->maxpool = kiln_module_add(m, "maxpool", kiln_nn_max_pool2d(3, .stride = 2, .padding = 1));
    for (int i = 0; i < 4; i++) {
        char name[16];
        int64_t width = (int64_t)64 << i;
        snprintf(name, sizeof name, "layer%d", i + 1);
        r->layer[i] = kiln_module_add(m, name, make_layer(in, width, blocks[i], i ? 2 : 1, bottleneck));
        in = bottleneck ? 4 * width : width;
    }
    r->fc = kiln_module_add(m, "fc", kiln_nn_linear(in, model_or(o.classes, 10)));
    initialise(m);
    return model_finish(m);
}

kiln_module *model_resnet18(model_options o)
{
    return make_resnet(o, (const int[]){2, 2, 2, 2}, false, 32);
}

kiln_module *model_resnet50(model_options o)
{
    return make_resnet(o, (const int[]){3, 4, 6, 3}, true, 224);
}
