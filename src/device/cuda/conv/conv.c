/* Convolution and its two adjoints: gradients of few weights by a kernel of our own, the rest by cuDNN where it takes
 * the shape, by the plain kernels where it does not. cuDNN knows no tensor of 2^31 elements: of larger ones it gets
 * some images at a time. */
#include "device/cuda/conv/cudnn.h"
#include "device/cuda/common/library.h"

enum { ALIGNMENT = 256 }; /* of cuDNN's scratch; buffers are aligned to less */

static kiln_cuda_conv shape_of(const kiln_cuda_call *c, kiln_cuda_conv_kind kind)
{
    const kiln_cuda_operand *x = kind == KILN_CUDA_CONV_FORWARD      ? &c->in[0]
                                 : kind == KILN_CUDA_CONV_INPUT_GRAD ? &c->out[0]
                                                                     : &c->in[1];
    const kiln_cuda_operand *w = kind == KILN_CUDA_CONV_WEIGHT_GRAD ? &c->out[0] : &c->in[1];
    const kiln_cuda_operand *y = kind == KILN_CUDA_CONV_FORWARD ? &c->out[0] : &c->in[0];
    const int64_t *i = c->ints;
    return (kiln_cuda_conv){.kind = kind,
                            .dtype = c->in[0].dtype,
                            .tf32 = c->kernel->tf32 && c->in[0].dtype == KILN_F32,
                            .batch = x->shape[0],
                            .channels = x->shape[1],
                            .outputs = w->shape[0],
                            .groups = i[6],
                            .size = {x->shape[2], x->shape[3]},
                            .kernel = {w->shape[2], w->shape[3]},
                            .out = {y->shape[2], y->shape[3]},
                            .stride = {i[0], i[1]},
                            .padding = {i[2], i[3]},
                            .dilation = {i[4], i[5]}};
}

/* An operand without elements: the result has none either, or is all zeros. */
static bool sums_nothing(const kiln_cuda_call *c)
{
    return !kiln_cuda_count_of(&c->in[0]) || !kiln_cuda_count_of(&c->in[1]) || !kiln_cuda_count_of(&c->out[0]);
}

/* ---- Some images at a time ---- */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* How many: pieces of about the same size. */
static int64_t at_once(const kiln_cuda_conv *s)
{
    int64_t x = s->channels * s->size[0] * s->size[1], y = s->outputs * s->out[0] * s->out[1];
    int64_t most = INT32_MAX / (x > y ? x : y);
    return most < 1 ? 1 : ceil_div(s->batch, ceil_div(s->batch, most));
}

static kiln_cuda_conv piece_of(const kiln_cuda_conv *s, int64_t first)
{
    kiln_cuda_conv piece = *s;
    int64_t n = at_once(s);
    piece.batch = s->batch - first < n ? s->batch - first : n;
    return piece;
}

/* Where image number `first` is; w is that of all. */
static kiln_cuda_conv_data data_from(const kiln_cuda_conv *s, const kiln_cuda_conv_data *data, int64_t first)
{
    size_t element = kiln_dtype_size((kiln_dtype)s->dtype);
    size_t x = (size_t)(first * s->channels * s->size[0] * s->size[1]);
    size_t y = (size_t)(first * s->outputs * s->out[0] * s->out[1]);
    return (kiln_cuda_conv_data){(char *)data->x + x * element, data->w, (char *)data->y + y * element};
}

static size_t workspace(const kiln_cuda_call *c, kiln_cuda_conv_kind kind)
{
    kiln_cuda_conv s = shape_of(c, kind);
    size_t bytes = sums_nothing(c) ? 0 : kiln_cuda_few_weights_bytes(&s);
    if (bytes || sums_nothing(c) || !kiln_cuda_libraries_wanted() || !kiln_cuda_enter(c->device))
        return bytes;
    for (int64_t first = 0; first < s.batch; first += at_once(&s)) {
        kiln_cuda_conv piece = piece_of(&s, first);
        bool takes;
        size_t own;
        if (!kiln_cuda_dnn_bytes(c->device, c->name, &piece, &takes, &own))
            return 0; /* what is wrong is said when it is launched */
        bytes = own > bytes ? own : bytes;
    }
    return bytes ? bytes + ALIGNMENT : 0;
}

/* Puts all pieces on the stream; *taken: cuDNN took them all. A weight's gradient is the sum of theirs. */
static bool run_pieces(const kiln_cuda_call *c, const kiln_cuda_conv *s, const kiln_cuda_conv_data *data, void *room,
                       size_t bytes, bool *taken)
{
    *taken = true;
    for (int64_t first = 0; *taken && first < s->batch; first += at_once(s)) {
        kiln_cuda_conv piece = piece_of(s, first);
        kiln_cuda_conv_data at = data_from(s, data, first);
        bool adds = s->kind == KILN_CUDA_CONV_WEIGHT_GRAD && first > 0;
        if (!kiln_cuda_dnn_run(c->device, c->name, &piece, &at, adds, room, bytes, taken))
            return false;
    }
    return true;
}

static size_t scratch_bytes(const kiln_cuda_call *c)
{
    int32_t buffer = c->kernel->workspace;
    return buffer < 0 ? 0 : (size_t)c->plan->buffers[buffer].bytes - ALIGNMENT;
}

/* The result goes straight to a slot, with `stop`, in no plan of today's (groups write them); the plain kernels heed it
 * without taking scratch memory from everybody else. */
static bool launch(const kiln_cuda_call *c, kiln_cuda_conv_kind kind)
{
    void *in0 = c->in[0].data, *in1 = c->in[1].data, *out = c->out[0].data;
    kiln_cuda_conv s = shape_of(c, kind);
    kiln_cuda_conv_data data = kind == KILN_CUDA_CONV_FORWARD ? (kiln_cuda_conv_data){.x = in0, .w = in1, .y = out}
                               : kind == KILN_CUDA_CONV_INPUT_GRAD
                                   ? (kiln_cuda_conv_data){.x = out, .w = in1, .y = in0}
                                   : (kiln_cuda_conv_data){.x = in1, .w = out, .y = in0};
    bool taken = false;
    if (sums_nothing(c)) {
        kiln_cuda_zero(c->stream, out, (size_t)kiln_cuda_count_of(&c->out[0]) * kiln_dtype_size(c->out[0].dtype),
                       c->stop);
        return kiln_cuda_launched(c);
    }
    if (!c->stop && kiln_cuda_few_weights_bytes(&s)) {
        kiln_cuda_few_weights(c->stream, &s, &data, c->workspace);
        return kiln_cuda_launched(c);
    }
    if (!c->stop && kiln_cuda_libraries_wanted()) {
        uintptr_t room = ((uintptr_t)c->workspace + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        if (!run_pieces(c, &s, &data, (void *)room, scratch_bytes(c), &taken))
            return false;
    }
    if (!taken)
        kiln_cuda_plain_conv(c->stream, &s, &data, c->stop);
    return kiln_cuda_launched(c);
}

#define KERNEL(name, kind)                                                                                             \
    static bool name##_launch(const kiln_cuda_call *c)                                                                 \
    {                                                                                                                  \
        return launch(c, kind);                                                                                        \
    }                                                                                                                  \
    static size_t name##_workspace(const kiln_cuda_call *c)                                                            \
    {                                                                                                                  \
        return workspace(c, kind);                                                                                     \
    }
KERNEL(convolution, KILN_CUDA_CONV_FORWARD)
KERNEL(convolution_input_grad, KILN_CUDA_CONV_INPUT_GRAD)
KERNEL(convolution_weight_grad, KILN_CUDA_CONV_WEIGHT_GRAD)

#define ROW(name)                                                                                                      \
    {                                                                                                                  \
        .op = #name, .dtypes = KILN_CUDA_FLOATS, .launch = name##_launch, .workspace = name##_workspace                \
    }
const kiln_cuda_kernel kiln_cuda_kernels_conv[] = {
    ROW(convolution),
    ROW(convolution_input_grad),
    ROW(convolution_weight_grad),
    {0},
};
