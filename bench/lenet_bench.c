/* LeNet with cross-entropy and Adam, written with plain operations: microseconds a step at batch 32 and 1024. */
#include "bench.h"

enum { LAYERS = 5, CONVOLUTIONS = 2 };

typedef struct model {
    bench_parameter weight[LAYERS], bias[LAYERS];
    kiln_tensor *x, *y;
    int64_t steps;
} model;

static void model_make(model *net)
{
    static const int64_t shapes[LAYERS][4] = {{6, 1, 5, 5}, {16, 6, 5, 5}, {120, 400}, {84, 120}, {10, 84}};
    for (int i = 0; i < LAYERS; i++) {
        net->weight[i] = bench_weight(i < CONVOLUTIONS ? 4 : 2, shapes[i]);
        net->bias[i] = bench_bias(shapes[i][0]);
    }
}

static kiln_tensor *forward(const model *net)
{
    kiln_tensor *h = net->x;
    for (int i = 0; i < LAYERS; i++) {
        kiln_tensor *w = net->weight[i].value, *b = net->bias[i].value;
        if (i == CONVOLUTIONS)
            h = kiln_flatten(h, 1, -1);
        h = i == 0             ? kiln_conv2d(h, w, b, .padding = {2, 2})
            : i < CONVOLUTIONS ? kiln_conv2d(h, w, b)
                               : kiln_linear(h, w, b);
        if (i < LAYERS - 1)
            h = kiln_relu(h);
        if (i < CONVOLUTIONS)
            h = kiln_max_pool2d(h, 2, 2);
    }
    return h;
}

static void record_step(void *context)
{
    model *net = context;
    for (int i = 0; i < LAYERS; i++) {
        kiln_zero_grad_of(net->weight[i].value);
        kiln_zero_grad_of(net->bias[i].value);
    }
    kiln_backward(kiln_cross_entropy(forward(net), net->y));
    net->steps++;
    kiln_no_grad
        for (int i = 0; i < LAYERS; i++) {
            bench_adam(&net->weight[i], net->steps);
            bench_adam(&net->bias[i], net->steps);
        }
}

static void bench_lenet(int64_t batch)
{
    model net = {.steps = 0};
    model_make(&net);
    net.x = kiln_keep(kiln_randn(KILN_SHAPE(batch, 1, 28, 28), KILN_F32));
    net.y = kiln_keep(kiln_randint(0, 10, KILN_SHAPE(batch), KILN_I64));
    kiln_eval();
    bench_steps("lenet", batch, record_step, &net);
}

int main(void)
{
    bench_lenet(32);
    bench_lenet(1024);
    return kiln_report(stderr);
}
