/* The gradient of few weights: of convolutions with few channels, such as the first ones of a network. As a
 * product it has a small result, and sums that run over every pixel of a batch: cut by its result alone it keeps a few
 * blocks busy for long. Here blocks take bands of images, each makes sums for all weights, and a second kernel adds
 * those in a fixed order. What is cut into how much follows from the shape alone. f16 and bf16 are summed in f32, and
 * rounded at the end. */
#include "device/cuda/gemm/panel.cuh"
#include "device/cuda/kernels/copy.h"

enum {
    THREADS = 256,
    MOST_PAIRS = 256,    /* of an output and an input channel: from there on the product has enough tiles */
    MOST_CHUNKS = 256,   /* blocks that share the images, and sums of each weight to be added at the end */
    ENOUGH_UNITS = 128,  /* bands in all: below, images are cut into more of them */
    ROOM = 48 * 1024 / 4 /* floats of shared memory */
};

/* An item is a row of taps, (output, channel, tap row): a thread has its sums in registers. Threads of a block that are
 * more than there are items share its rows of pixels. */
typedef struct few {
    int channels, outputs, taps; /* taps: rows of them */
    int height, width, out_height, out_width, pad_y, pad_x;
    int rows, bands;              /* of pixels in a band; bands of an image */
    int in_rows, in_width, plane; /* of the band's pixels in shared memory; `plane`: of an output's gradient there */
    int units, chunks;
    int items, in_block, parts; /* in_block: items of a block; parts: threads that share one */
} few;

/* The band's rows of all channels, with the padding as zeros, and of the output's gradient. */
template <typename T>
static __device__ void load_band(const few &s, const T *gy, const T *x, int64_t image, int top, float *xs, float *gs)
{
    for (int i = (int)threadIdx.x; i < s.channels * s.in_rows * s.in_width; i += THREADS) {
        int column = i % s.in_width, row = i / s.in_width % s.in_rows, channel = i / s.in_width / s.in_rows;
        int iy = top + row - s.pad_y, ix = column - s.pad_x;
        bool inside = iy >= 0 && iy < s.height && ix >= 0 && ix < s.width;
        xs[i] = inside ? kiln_cuda_float_of(x[((image * s.channels + channel) * s.height + iy) * s.width + ix]) : 0;
    }
    int rows = s.out_height - top < s.rows ? s.out_height - top : s.rows, pixels = rows * s.out_width;
    for (int i = (int)threadIdx.x; i < s.outputs * pixels; i += THREADS) {
        int output = i / pixels, pixel = i % pixels;
        gs[output * s.plane + pixel] =
            kiln_cuda_float_of(gy[((image * s.outputs + output) * s.out_height + top) * s.out_width + pixel]);
    }
}

/* A row of pixels, the window of TAPS inputs moving along. */
template <int TAPS>
static __device__ __forceinline__ void add_row(const float *g, const float *line, int n, float (&sums)[TAPS])
{
    float window[TAPS];
    for (int v = 0; v < TAPS - 1; v++)
        window[v] = line[v];
    for (int j = 0; j < n; j++) {
        window[TAPS - 1] = line[j + TAPS - 1];
        for (int v = 0; v < TAPS; v++)
            sums[v] += g[j] * window[v];
        for (int v = 0; v < TAPS - 1; v++)
            window[v] = window[v + 1];
    }
}

/* partial[chunk, weight] */
template <int TAPS, typename T>
static __global__ void __launch_bounds__(THREADS)
    sum_bands(const __grid_constant__ few s, const T *__restrict__ gy, const T *__restrict__ x, float *partial)
{
    extern __shared__ float room[];
    float *xs = room, *gs = room + s.channels * s.in_rows * s.in_width;
    int place = (int)threadIdx.x % s.in_block, part = (int)threadIdx.x / s.in_block;
    int item = (int)blockIdx.y * s.in_block + place;
    int tap = item % s.taps, channel = item / s.taps % s.channels, output = item / s.taps / s.channels;
    bool works = item < s.items && part < s.parts;
    float sums[TAPS] = {0};
    for (int unit = (int)blockIdx.x; unit < s.units; unit += s.chunks) {
        int top = unit % s.bands * s.rows;
        int rows = s.out_height - top < s.rows ? s.out_height - top : s.rows;
        load_band(s, gy, x, unit / s.bands, top, xs, gs);
        __syncthreads();
        for (int row = part; works && row < rows; row += s.parts)
            add_row<TAPS>(gs + output * s.plane + row * s.out_width,
                          xs + (channel * s.in_rows + row + tap) * s.in_width, s.out_width, sums);
        __syncthreads();
    }
    for (int v = 0; works && v < TAPS; v++)
        room[(part * s.in_block + place) * TAPS + v] = sums[v];
    __syncthreads();
    for (int v = 0; works && part == 0 && v < TAPS; v++) {
        float sum = sums[v];
        for (int p = 1; p < s.parts; p++)
            sum += room[(p * s.in_block + place) * TAPS + v];
        partial[((int64_t)blockIdx.x * s.items + item) * TAPS + v] = sum;
    }
}

enum { ABREAST = 32, LANES = THREADS / ABREAST }; /* weights of a block; threads that add for one */

template <typename T>
static __global__ void add_chunks(const float *__restrict__ partial, int chunks, int weights, T *to)
{
    __shared__ float sums[LANES][ABREAST];
    int place = (int)threadIdx.x % ABREAST, lane = (int)threadIdx.x / ABREAST;
    int weight = (int)blockIdx.x * ABREAST + place;
    float sum = 0;
    for (int c = lane; weight < weights && c < chunks; c += LANES)
        sum += partial[(int64_t)c * weights + weight];
    sums[lane][place] = sum;
    __syncthreads();
    if (lane > 0 || weight >= weights)
        return;
    for (int l = 1; l < LANES; l++)
        sum += sums[l][place];
    kiln_cuda_store_one(to + weight, sum);
}

/* ---- On the host ---- */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static void set_rows(few *f, int64_t rows)
{
    f->rows = (int)rows;
    f->in_rows = f->rows + f->taps - 1;
    f->plane = f->rows * f->out_width | 1; /* odd: side by side in different banks */
}

static int64_t floats_of(const few *f)
{
    int64_t band = (int64_t)f->channels * f->in_rows * f->in_width + (int64_t)f->outputs * f->plane;
    int64_t sums = (int64_t)THREADS * (f->in_width - f->out_width + 1);
    return band > sums ? band : sums;
}

static bool suits(const kiln_cuda_conv *s)
{
    enum { LONGEST = 1 << 12 };
    int64_t taps = s->kernel[1];
    bool small = s->size[0] <= LONGEST && s->size[1] <= LONGEST && s->out[0] <= LONGEST && s->out[1] <= LONGEST &&
                 s->padding[0] <= LONGEST && s->padding[1] <= LONGEST && s->batch <= 1 << 18;
    bool plain = s->groups == 1 && s->stride[0] == 1 && s->stride[1] == 1 && s->dilation[0] == 1 && s->dilation[1] == 1;
    return s->kind == KILN_CUDA_CONV_WEIGHT_GRAD && s->dtype != KILN_F64 && plain && small &&
           s->channels * s->outputs <= MOST_PAIRS && (taps == 3 || taps == 5 || taps == 7) && s->kernel[0] <= 7;
}

static bool plan(const kiln_cuda_conv *s, few *f)
{
    if (!suits(s))
        return false;
    *f = (few){};
    f->channels = (int)s->channels;
    f->outputs = (int)s->outputs;
    f->taps = (int)s->kernel[0];
    f->height = (int)s->size[0];
    f->width = (int)s->size[1];
    f->out_height = (int)s->out[0];
    f->out_width = (int)s->out[1];
    f->pad_y = (int)s->padding[0];
    f->pad_x = (int)s->padding[1];
    f->in_width = (f->out_width + (int)s->kernel[1] - 1) | 1;
    int64_t rows = ceil_div(s->out[0], ceil_div(ENOUGH_UNITS, s->batch));
    for (set_rows(f, rows); rows > 1 && floats_of(f) > ROOM; rows--)
        set_rows(f, rows - 1);
    f->bands = (int)ceil_div(s->out[0], f->rows);
    f->units = (int)s->batch * f->bands;
    f->chunks = f->units < MOST_CHUNKS ? f->units : MOST_CHUNKS;
    f->items = f->outputs * f->channels * f->taps;
    f->in_block = f->items < THREADS ? f->items : THREADS;
    f->parts = THREADS / f->in_block < f->rows ? THREADS / f->in_block : f->rows;
    return floats_of(f) <= ROOM;
}

extern "C" size_t kiln_cuda_few_weights_bytes(const kiln_cuda_conv *s)
{
    few f;
    return plan(s, &f) ? (size_t)f.chunks * (size_t)f.items * (size_t)s->kernel[1] * sizeof(float) : 0;
}

template <int TAPS, typename T>
static void launch(cudaStream_t stream, const few &f, const kiln_cuda_conv_data &d, float *partial)
{
    dim3 grid((unsigned)f.chunks, (unsigned)ceil_div(f.items, f.in_block));
    sum_bands<TAPS, T><<<grid, THREADS, (size_t)floats_of(&f) * sizeof(float), stream>>>(f, (const T *)d.y,
                                                                                         (const T *)d.x, partial);
    add_chunks<<<(unsigned)ceil_div(f.items * TAPS, ABREAST), THREADS, 0, stream>>>(partial, f.chunks, f.items * TAPS,
                                                                                    (T *)d.w);
}

template <typename T>
static void launch_for(cudaStream_t stream, const few &f, int64_t taps, const kiln_cuda_conv_data &d, float *partial)
{
    switch (taps) {
    case 3: launch<3, T>(stream, f, d, partial); break;
    case 5: launch<5, T>(stream, f, d, partial); break;
    default: launch<7, T>(stream, f, d, partial); break;
    }
}

extern "C" void kiln_cuda_few_weights(cudaStream_t stream, const kiln_cuda_conv *s, const kiln_cuda_conv_data *data,
                                      void *workspace)
{
    few f;
    if (!plan(s, &f))
        return;
    float *partial = (float *)workspace;
    switch (s->dtype) {
    case KILN_F16: launch_for<kiln_f16>(stream, f, s->kernel[1], *data, partial); break;
    case KILN_BF16: launch_for<kiln_bf16>(stream, f, s->kernel[1], *data, partial); break;
    default: launch_for<float>(stream, f, s->kernel[1], *data, partial); break;
    }
}
