/* Convolution on the CPU: chooses who computes it. */
#include "device/cpu/conv/conv.h"

#include "device/cpu/gemm/gemm_plan.h"
#include "device/cpu/group/pointwise.h"
#include "plan/plan.h"

/* From the operands alone: a result that is handed over has no place in the call. */
static kiln_conv shape_of(const kiln_cpu_call *c, kiln_conv_kind kind)
{
    const int64_t *i = c->ints, *first = c->in[0].shape, *second = c->in[1].shape;
    kiln_conv s = {.kind = kind,
                   .dtype = c->in[0].dtype,
                   .batch = first[0],
                   .groups = i[6],
                   .stride = {i[0], i[1]},
                   .padding = {i[2], i[3]},
                   .dilation = {i[4], i[5]}};
    s.handed_over = c->finish || kiln_conv_is_half(&s);
    s.channels = kind == KILN_CONV_FORWARD ? first[1] : kind == KILN_CONV_INPUT_GRAD ? second[1] * i[6] : second[1];
    s.outputs = kind == KILN_CONV_FORWARD ? second[0] : first[1];
    for (int a = 0; a < 2; a++) {
        s.size[a] = kind == KILN_CONV_FORWARD ? first[2 + a] : kind == KILN_CONV_INPUT_GRAD ? i[7 + a] : second[2 + a];
        s.kernel[a] = kind == KILN_CONV_WEIGHT_GRAD ? i[7 + a] : second[2 + a];
        s.out[a] = first[2 + a];
        if (kind == KILN_CONV_FORWARD)
            s.out[a] = (s.size[a] + 2 * s.padding[a] - s.dilation[a] * (s.kernel[a] - 1) - 1) / s.stride[a] + 1;
    }
    return s;
}

/* ---- Choosing ---- */

enum { FULL_TILE = 32 }; /* rows of a product of pairs */

typedef enum way { DIRECT, PAIRS, COLUMNS, DNNL } way; /* the last: columns, if it refuses */

/* Where matrix products beat oneDNN, by measurement on Zen 4 and Sapphire Rapids against oneDNN 2.6: 1×1 kernels (1.1
 * to 1.5 times as fast, since nothing has to be brought into another format, and 2 to 4 times at a stride), and the
 * gradient of an input of a few channels (2 to 8 times). */
static bool columns_are_faster(const kiln_conv *s)
{
    if (s->groups > 1)
        return false;
    if (s->dtype == KILN_BF16 && kiln_gemm_pairs_best() && s->outputs >= FULL_TILE)
        return true; /* oneDNN would get f32 */
    if (s->kernel[0] * s->kernel[1] == 1)
        return s->kind == KILN_CONV_INPUT_GRAD || s->out[0] * s->out[1] >= 256 || s->stride[0] * s->stride[1] > 1;
    return s->kind == KILN_CONV_INPUT_GRAD && s->channels <= 4;
}

static way choose(const kiln_conv *s)
{
    if (kiln_conv_direct_takes(s))
        return DIRECT;
    if (kiln_conv_pairs_takes(s))
        return PAIRS;
    return columns_are_faster(s) ? COLUMNS : DNNL;
}

/* ---- The kernels ---- */

static void *prepare(const kiln_cpu_call *c, kiln_conv_kind kind)
{
    kiln_conv s = shape_of(c, kind);
    return choose(&s) == DNNL ? kiln_conv_dnnl_new(&s) : NULL;
}

static size_t workspace(const kiln_cpu_call *c, kiln_conv_kind kind)
{
    kiln_conv s = shape_of(c, kind);
    way by = choose(&s);
    if (by == DIRECT)
        return kiln_conv_direct_workspace(&s);
    if (by == PAIRS)
        return kind == KILN_CONV_WEIGHT_GRAD ? kiln_conv_pairs_weight_workspace(&s) : kiln_conv_pairs_workspace(&s);
    size_t columns = kiln_conv_columns_workspace(&s), fast = by == DNNL ? kiln_conv_dnnl_workspace(&s) : 0;
    return fast > columns ? fast : columns; /* columns stay possible */
}

/* Results of 16 bits that no group finishes. */
static void store_halves(void *context, int64_t start, int64_t count, const void *values, int worker)
{
    (void)worker;
    const kiln_cpu_operand *to = context;
    kiln_pw_best()->store[to->dtype]((char *)to->data + 2 * start, values, count);
}

static void run(const kiln_cpu_call *c, kiln_conv_kind kind)
{
    kiln_conv s = shape_of(c, kind);
    void *first = c->in[0].data, *second = c->in[1].data, *result = c->finish ? NULL : c->out[0].data;
    kiln_conv_data data = kind == KILN_CONV_FORWARD      ? (kiln_conv_data){.x = first, .w = second, .y = result}
                          : kind == KILN_CONV_INPUT_GRAD ? (kiln_conv_data){.x = result, .w = second, .y = first}
                                                         : (kiln_conv_data){.x = second, .w = result, .y = first};
    data.finish = c->finish ? c->finish : s.handed_over ? store_halves : NULL;
    data.context = c->finish ? c->finish_context : (void *)&c->out[0];
    way by = choose(&s);
    if (by == DIRECT)
        kiln_conv_direct_run(&s, &data, c->workspace);
    else if (by == PAIRS && kind == KILN_CONV_WEIGHT_GRAD)
        kiln_conv_pairs_weight_run(&s, &data, c->workspace);
    else if (by == PAIRS)
        kiln_conv_pairs_run(&s, &data, c->workspace);
    else if (c->state)
        kiln_conv_dnnl_run(c->state, &data, c->workspace);
    else
        kiln_conv_columns_run(&s, &data, c->workspace);
}

#define KERNEL(name, kind)                                                                                             \
    static void name##_run(const kiln_cpu_call *c)                                                                     \
    {                                                                                                                  \
        run(c, kind);                                                                                                  \
    }                                                                                                                  \
    static size_t name##_workspace(const kiln_cpu_call *c)                                                             \
    {                                                                                                                  \
        return workspace(c, kind);                                                                                     \
    }                                                                                                                  \
    static void *name##_prepare(const kiln_cpu_call *c)                                                                \
    {                                                                                                                  \
        return prepare(c, kind);                                                                                       \
    }
KERNEL(convolution, KILN_CONV_FORWARD)
KERNEL(convolution_input_grad, KILN_CONV_INPUT_GRAD)
KERNEL(convolution_weight_grad, KILN_CONV_WEIGHT_GRAD)

#define ROW(name)                                                                                                      \
    {                                                                                                                  \
        .op = #name, .dtypes = KILN_T_FLOATS, .can = KILN_CAN_END, .run = name##_run, .workspace = name##_workspace,   \
        .prepare = name##_prepare, .dispose = kiln_conv_dnnl_free                                                      \
    }

const kiln_cpu_kernel kiln_cpu_kernels_conv[] = {
    ROW(convolution),
    ROW(convolution_input_grad),
    ROW(convolution_weight_grad),
    {0},
};
