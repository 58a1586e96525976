/* Convolutions and their two gradients ('x and 'w) by themselves, in f32, bf16 and f16, of the layers in conv.def:
 * microseconds of the best call. One JSON object a line; conv_peer.py prints PyTorch's.
 *
 * usage: kiln_bench_conv [f32] [bf16] [f16]    (all of them, if none is named) */
#include "bench.h"
#include "ops/op.h"

enum { WARM_UP = 2, LEAST = 5 };
#define SECONDS 0.1

typedef struct layer {
    const char *name;
    int64_t batch, channels, outputs, size, kernel, stride, groups;
} layer;

static const layer layers[] = {
#define LAYER(name, ...) {#name, __VA_ARGS__},
#include "conv.def"
#undef LAYER
};

extern const kiln_op kiln_op_convolution, kiln_op_convolution_input_grad, kiln_op_convolution_weight_grad;

typedef struct operands {
    kiln_tensor *x, *w, *gy;
} operands;

enum { FORWARD, INPUT_GRAD, WEIGHT_GRAD, KINDS };
static const char *const kinds[KINDS] = {"", "'x", "'w"};

static kiln_tensor *run(const layer *l, const operands *o, int kind)
{
    int64_t s = l->stride, p = l->kernel == l->stride ? 0 : l->kernel / 2, g = l->groups;
    if (kind == FORWARD)
        return KILN_OP(convolution, KILN_IN(o->x, o->w), KILN_I(s, s, p, p, 1, 1, g));
    if (kind == INPUT_GRAD)
        return KILN_OP(convolution_input_grad, KILN_IN(o->gy, o->w), KILN_I(s, s, p, p, 1, 1, g, l->size, l->size));
    return KILN_OP(convolution_weight_grad, KILN_IN(o->gy, o->x), KILN_I(s, s, p, p, 1, 1, g, l->kernel, l->kernel));
}

static operands draw(const layer *l, kiln_dtype dtype)
{
    operands o = {0};
    kiln_scope {
        o.x = kiln_keep(kiln_cast(kiln_randn(KILN_SHAPE(l->batch, l->channels, l->size, l->size), KILN_F32), dtype));
        o.w = kiln_keep(kiln_cast(
            kiln_randn(KILN_SHAPE(l->outputs, l->channels / l->groups, l->kernel, l->kernel), KILN_F32), dtype));
        kiln_eval();
        o.gy = kiln_keep(kiln_ones_like(run(l, &o, FORWARD)));
        kiln_eval();
    }
    return o;
}

static void measure(const layer *l, kiln_dtype dtype)
{
    operands o = draw(l, dtype);
    for (int kind = FORWARD; kind < KINDS; kind++) {
        double begun = kiln_seconds(), best = 1e300, last = begun;
        for (int n = 0; (n < LEAST || last - begun < SECONDS) && kiln_ok(); n++) {
            kiln_scope {
                run(l, &o, kind);
                kiln_eval();
            }
            double now = kiln_seconds();
            best = n >= WARM_UP && now - last < best ? now - last : best;
            last = now;
        }
        if (kiln_ok())
            printf("{\"work\": \"%s%s\", \"batch\": \"%s\", \"peer\": \"kiln\", \"us\": %.1f}\n", l->name, kinds[kind],
                   kiln_dtype_name(dtype), 1e6 * best);
        fflush(stdout);
    }
    kiln_release(o.x);
    kiln_release(o.w);
    kiln_release(o.gy);
}

int main(int argc, char **argv)
{
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_BF16, KILN_F16};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t i = 0; i < sizeof layers / sizeof *layers && kiln_ok(); i++)
            if (bench_wanted(kiln_dtype_name(dtypes[d]), argc, argv))
                measure(&layers[i], dtypes[d]);
    return kiln_report(stderr);
}
