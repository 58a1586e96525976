/* Batches out of a data set that lies on the device whole: see ops/samples.h. */
#include "device/cuda/kernels/samples.cuh"
#include "device/cuda/kernels/shape.cuh"

template <bool AUGMENTS> static __global__ void take(const __grid_constant__ kiln_cuda_samples s, const int32_t *stop)
{
    __shared__ kiln_cuda_samples_room room;
    if (stop && *stop)
        return;
    kiln_cuda_take_samples<AUGMENTS>(s, &room, (int)blockIdx.x, (int)gridDim.x, (int)threadIdx.x, (int)blockDim.x);
}

static int32_t how_of(const kiln_cuda_call *c)
{
    if (c->nin > 1 && c->in[1].data)
        return KILN_CUDA_BY_TABLE;
    if (c->in[0].dtype == c->out[0].dtype)
        return KILN_CUDA_AS_STORED;
    return c->in[0].dtype == KILN_U8 ? KILN_CUDA_U8_TO_I64 : KILN_CUDA_I32_TO_I64;
}

/* The widest unit, at most `most` bytes of what is stored, that all samples begin at and consist of. */
static uint64_t common_unit(const kiln_cuda_call *c, uint64_t most, uint64_t row_bytes)
{
    const uint64_t size = kiln_dtype_size(c->in[0].dtype);
    const uint64_t numbers[] = {(uint64_t)(uintptr_t)c->in[0].data, row_bytes,
                                (uint64_t)c->ints[KILN_SAMPLES_START] * size,
                                (uint64_t)c->ints[KILN_SAMPLES_DISTANCE] * size};
    for (uint64_t number : numbers)
        most = kiln_cuda_common(most, number);
    return most;
}

static bool augments(const kiln_cuda_samples *s)
{
    return s->flip || s->crop;
}

/* Images that are augmented, of `elements` elements each. Four at a time are of one line where lines are so long. */
static void describe_images(const kiln_cuda_call *c, kiln_cuda_samples *s, int64_t elements)
{
    const kiln_cuda_operand *out = &c->out[0];
    s->image_height = out->shape[out->ndim - 2];
    s->image_width = out->shape[out->ndim - 1];
    s->blank = (uint64_t)c->ints[KILN_SAMPLES_BLANK];
    bool fours = s->how == KILN_CUDA_BY_TABLE && (uintptr_t)out->data % 16 == 0 && s->image_width % 4 == 0;
    s->width = s->how == KILN_CUDA_BY_TABLE ? (fours ? 4 : 1) : (int32_t)kiln_dtype_size(c->in[0].dtype);
    s->units = fours ? elements / 4 : elements;
    s->start = c->ints[KILN_SAMPLES_START];
    s->distance = c->ints[KILN_SAMPLES_DISTANCE];
}

extern "C" void kiln_cuda_samples_describe(const kiln_cuda_call *c, kiln_cuda_samples *s)
{
    *s = kiln_cuda_samples{};
    const kiln_cuda_operand *out = &c->out[0];
    const int64_t size = (int64_t)kiln_dtype_size(c->in[0].dtype), all = kiln_cuda_count_of(out);
    const int64_t elements = out->shape[0] ? all / out->shape[0] : 0;
    s->data = c->in[0].data;
    s->table = c->nin > 1 ? (const float *)c->in[1].data : NULL;
    s->out = out->data;
    s->scalars = c->floats;
    s->order = kiln_order_size_of(c->ints[KILN_SAMPLES_COUNT], c->ints[KILN_SAMPLES_SHUFFLE] != 0);
    s->rows = out->shape[0];
    s->how = how_of(c);
    s->flip = (int32_t)c->ints[KILN_SAMPLES_FLIP];
    s->crop = (int32_t)c->ints[KILN_SAMPLES_CROP];
    if (augments(s)) {
        describe_images(c, s, elements);
        return;
    }
    const uint64_t to = (uint64_t)(uintptr_t)out->data;
    int64_t unit = size; /* bytes of what is stored */
    if (s->how == KILN_CUDA_AS_STORED)
        unit = (int64_t)kiln_cuda_common(common_unit(c, 16, (uint64_t)(elements * size)), to);
    else if (s->how == KILN_CUDA_BY_TABLE && to % 16 == 0 && common_unit(c, 4, (uint64_t)elements) == 4)
        unit = 4;
    s->width = (int32_t)unit;
    s->units = elements * size / unit;
    s->start = c->ints[KILN_SAMPLES_START] * size / unit;
    s->distance = c->ints[KILN_SAMPLES_DISTANCE] * size / unit;
}

static bool take_samples(const kiln_cuda_call *c)
{
    enum { MOST_BLOCKS = 4096 };
    kiln_cuda_samples s;
    kiln_cuda_samples_describe(c, &s);
    unsigned blocks = kiln_cuda_grid(s.rows * s.units, KILN_CUDA_BLOCK);
    if (blocks == 0)
        return true;
    blocks = blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS;
    if (augments(&s))
        take<true><<<blocks, KILN_CUDA_BLOCK, 0, c->stream>>>(s, c->stop);
    else
        take<false><<<blocks, KILN_CUDA_BLOCK, 0, c->stream>>>(s, c->stop);
    return kiln_cuda_launched(c);
}

extern "C" const kiln_cuda_kernel kiln_cuda_kernels_samples[] = {
    {"take_samples", KILN_CUDA_ALL, take_samples, NULL},
    {NULL, 0, NULL, NULL},
};
