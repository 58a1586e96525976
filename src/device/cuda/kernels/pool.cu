/* Pooling over planes. Each element of a result, and of a gradient, is made by one thread or one warp, which goes
 * through what it is made of in a fixed order. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "device/cuda/kernels/report.cuh"
#include "device/cuda/kernels/shape.cuh"

/* ---- Windows ---- */

typedef struct axis {
    int64_t size, out; /* of input and output */
    int64_t kernel, stride, padding, dilation;
    bool adaptive;
} axis;

typedef struct pooling {
    axis y, x;
    bool include_pad;
    int64_t planes;
} pooling;

/* A window along one axis: `n` elements first, first + step, …. `span` counts the padding it covers, for means. */
typedef struct window {
    int64_t first, n, step, span;
} window;

static inline __device__ window window_at(const axis &a, int64_t o)
{
    if (a.adaptive) {
        int64_t first = o * a.size / a.out, n = ((o + 1) * a.size + a.out - 1) / a.out - first;
        return {first, n, 1, n};
    }
    int64_t first = o * a.stride - a.padding, end = first + a.dilation * (a.kernel - 1) + 1;
    int64_t padded_end = end < a.size + a.padding ? end : a.size + a.padding, span = padded_end - first;
    if (first < 0)
        first += (-first + a.dilation - 1) / a.dilation * a.dilation;
    end = end < a.size ? end : a.size;
    return {first, end > first ? (end - first + a.dilation - 1) / a.dilation : 0, a.dilation, span};
}

static inline __device__ int64_t divisor(const pooling &p, const window &wy, const window &wx)
{
    return p.include_pad ? wy.span * wx.span : wy.n * wx.n;
}

/* The windows first … last along an axis (means: without dilation) that hold element i. */
static inline __device__ void windows_of(const axis &a, int64_t i, int64_t *first, int64_t *last)
{
    if (a.adaptive) {
        *first = i * a.out / a.size;
        *last = ((i + 1) * a.out + a.size - 1) / a.size - 1;
        return;
    }
    int64_t low = i + a.padding - a.kernel + 1, high = (i + a.padding) / a.stride;
    *first = low > 0 ? (low + a.stride - 1) / a.stride : 0;
    *last = high < a.out - 1 ? high : a.out - 1;
}

/* ---- Elements: half precision is computed in f32 ---- */

template <typename T> struct wide_type {
    typedef float type;
};
template <> struct wide_type<double> {
    typedef double type;
};

static inline __device__ float widen(float v)
{
    return v;
}
static inline __device__ double widen(double v)
{
    return v;
}
static inline __device__ float widen(__half v)
{
    return __half2float(v);
}
static inline __device__ float widen(__nv_bfloat16 v)
{
    return __bfloat162float(v);
}
template <typename T> static inline __device__ T narrow(double v)
{
    return (T)v;
}
template <> __device__ inline __half narrow<__half>(double v)
{
    return __float2half_rn((float)v);
}
template <> __device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(double v)
{
    return __float2bfloat16_rn((float)v);
}

/* ---- Results: LANES threads an element, which take turns in its window ---- */

/* In a window's order the last NaN is kept, else the first of the largest. */
template <typename C> static inline __device__ bool replaces(C value, int64_t place, C best, int64_t best_place)
{
    if (value != value || best != best)
        return value != value && (best == best || place > best_place);
    return value > best || (value == best && place < best_place);
}

template <typename T, int LANES>
static __global__ void take_maxima(const T *__restrict__ x, T *__restrict__ values, int64_t *__restrict__ places,
                                   const __grid_constant__ pooling p, const int32_t *stop)
{
    typedef typename wide_type<T>::type C;
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(item, p.planes * p.y.out * p.x.out * LANES)
    {
        int64_t e = item / LANES, row = e / p.x.out, ox = e - row * p.x.out, plane = row / p.y.out;
        window wy = window_at(p.y, row - plane * p.y.out), wx = window_at(p.x, ox);
        const T *from = x + plane * p.y.size * p.x.size;
        int64_t best = wy.first * p.x.size + wx.first;
        C value = widen(from[best]);
        if (LANES == 1) {
            for (int64_t i = 0; i < wy.n; i++)
                for (int64_t k = 0; k < wx.n; k++) {
                    int64_t at = (wy.first + i * wy.step) * p.x.size + wx.first + k * wx.step;
                    C other = widen(from[at]);
                    bool better = other > value || other != other;
                    best = better ? at : best;
                    value = better ? other : value;
                }
        } else {
            for (int64_t i = item % LANES; i < wy.n * wx.n; i += LANES) {
                int64_t down = i / wx.n;
                int64_t at = (wy.first + down * wy.step) * p.x.size + wx.first + (i - down * wx.n) * wx.step;
                C other = widen(from[at]);
                if (replaces(other, at, value, best)) {
                    best = at;
                    value = other;
                }
            }
            for (int step = LANES / 2; step > 0; step /= 2) {
                C other = __shfl_down_sync(0xffffffffu, value, step);
                int64_t at = __shfl_down_sync(0xffffffffu, best, step);
                if (replaces(other, at, value, best)) {
                    best = at;
                    value = other;
                }
            }
        }
        if (LANES == 1 || item % LANES == 0) {
            values[e] = from[best];
            places[e] = best;
        }
    }
}

/* Sums are made in double: windows of adaptive pooling can be whole planes. */
template <typename T, int LANES>
static __global__ void take_means(const T *__restrict__ x, T *__restrict__ y, const __grid_constant__ pooling p,
                                  const int32_t *stop)
{
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(item, p.planes * p.y.out * p.x.out * LANES)
    {
        int64_t e = item / LANES, row = e / p.x.out, ox = e - row * p.x.out, plane = row / p.y.out;
        window wy = window_at(p.y, row - plane * p.y.out), wx = window_at(p.x, ox);
        const T *corner = x + (plane * p.y.size + wy.first) * p.x.size + wx.first;
        double sum = 0;
        if (LANES == 1) {
            for (int64_t i = 0; i < wy.n; i++)
                for (int64_t k = 0; k < wx.n; k++)
                    sum += (double)widen(corner[i * p.x.size + k]);
        } else {
            for (int64_t i = item % LANES; i < wy.n * wx.n; i += LANES) {
                int64_t down = i / wx.n;
                sum += (double)widen(corner[down * p.x.size + i - down * wx.n]);
            }
            for (int step = LANES / 2; step > 0; step /= 2)
                sum += __shfl_down_sync(0xffffffffu, sum, step);
        }
        if (LANES == 1 || item % LANES == 0)
            y[e] = narrow<T>(wy.n * wx.n ? sum / (double)divisor(p, wy, wx) : 0);
    }
}

/* ---- Gradients ---- */

template <typename T>
static __global__ void spread_means(const T *__restrict__ gy, T *__restrict__ gx, const __grid_constant__ pooling p,
                                    const int32_t *stop)
{
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(e, p.planes * p.y.size * p.x.size)
    {
        int64_t row = e / p.x.size, plane = row / p.y.size, top, bottom, left, right;
        windows_of(p.y, row - plane * p.y.size, &top, &bottom);
        windows_of(p.x, e - row * p.x.size, &left, &right);
        double sum = 0;
        for (int64_t oy = top; oy <= bottom; oy++) {
            window wy = window_at(p.y, oy);
            for (int64_t ox = left; ox <= right; ox++) {
                window wx = window_at(p.x, ox);
                sum += (double)widen(gy[(plane * p.y.out + oy) * p.x.out + ox]) / (double)divisor(p, wy, wx);
            }
        }
        gx[e] = narrow<T>(sum);
    }
}

/* Which maxima lie at an element is told by a list: heads[element · stride] is one of them, next[] of it another, in
 * any order; the element then sums them in theirs. Few windows share a maximum, so lists are short. */
enum { NOBODY = -1, MOST = 8 };

static __global__ void clear_heads(uint32_t *heads, int64_t words, const int32_t *stop)
{
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(i, words)
    heads[i] = (uint32_t)NOBODY;
}

static __global__ void link_maxima(const int64_t *__restrict__ index, uint32_t *heads, int stride,
                                   uint32_t *__restrict__ next, int64_t planes, int64_t in, int64_t out,
                                   kiln_cuda_fault fault, const int32_t *stop)
{
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(p, planes * in)
    {
        int64_t plane = p / in, k = index[p];
        if ((uint64_t)k < (uint64_t)out)
            next[p] = atomicExch(&heads[(plane * out + k) * stride], (uint32_t)(p - plane * in));
        else
            kiln_cuda_report(fault, p, k, out);
    }
}

/* heads may lie in gx itself: each is read before its element is written. */
template <typename T>
static __global__ void place_maxima(const T *__restrict__ gy, const int64_t *__restrict__ index, const uint32_t *heads,
                                    int stride, const uint32_t *__restrict__ next, T *gx, int64_t planes, int64_t in,
                                    int64_t out, const int32_t *stop)
{
    typedef typename wide_type<T>::type C;
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(e, planes * out)
    {
        uint32_t at = heads[e * stride], list[MOST];
        if (at == (uint32_t)NOBODY) {
            gx[e] = narrow<T>(0);
            continue;
        }
        int64_t plane = e / out, first = plane * in, target = e - plane * out;
        int n = 0;
        for (; at != (uint32_t)NOBODY && n < MOST; at = next[first + at], n++) {
            int k = n;
            for (; k > 0 && list[k - 1] > at; k--)
                list[k] = list[k - 1];
            list[k] = at;
        }
        C sum = 0;
        if (at == (uint32_t)NOBODY) {
            for (int k = 0; k < n; k++)
                sum += widen(gy[first + list[k]]);
        } else { /* too many to be put in order here */
            for (int64_t i = 0; i < in; i++)
                if (index[first + i] == target)
                    sum += widen(gy[first + i]);
        }
        gx[e] = narrow<T>((double)sum);
    }
}

/* ---- Launchers ---- */

/* Calls launch<element type>(…). */
#define BY_TYPE(dtype, launch, ...)                                                                                    \
    ((dtype) == KILN_F32   ? launch<float>(__VA_ARGS__)                                                                \
     : (dtype) == KILN_F64 ? launch<double>(__VA_ARGS__)                                                               \
     : (dtype) == KILN_F16 ? launch<__half>(__VA_ARGS__)                                                               \
                           : launch<__nv_bfloat16>(__VA_ARGS__))

/* Elements of a usual window. */
static int64_t area(const pooling &p)
{
    int64_t y = p.y.adaptive ? kiln_cuda_ceil(p.y.size, p.y.out) : p.y.kernel;
    int64_t x = p.x.adaptive ? kiln_cuda_ceil(p.x.size, p.x.out) : p.x.kernel;
    return y * x;
}

static int64_t results(const pooling &p)
{
    return p.planes * p.y.out * p.x.out;
}

enum { LARGE = 32 }; /* windows that a warp goes through */

template <typename T> static void launch_maxima(const kiln_cuda_call *c, const pooling &p)
{
    const T *x = (const T *)c->in[0].data;
    T *y = (T *)c->out[0].data;
    int64_t *places = (int64_t *)c->out[1].data, n = results(p);
    if (area(p) < LARGE)
        take_maxima<T, 1>
            <<<kiln_cuda_grid(n, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(x, y, places, p, c->stop);
    else
        take_maxima<T, 32>
            <<<kiln_cuda_grid(n * 32, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(x, y, places, p, c->stop);
}

template <typename T> static void launch_means(const kiln_cuda_call *c, const pooling &p)
{
    const T *x = (const T *)c->in[0].data;
    T *y = (T *)c->out[0].data;
    int64_t n = results(p);
    if (area(p) < LARGE)
        take_means<T, 1><<<kiln_cuda_grid(n, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(x, y, p, c->stop);
    else
        take_means<T, 32><<<kiln_cuda_grid(n * 32, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(x, y, p, c->stop);
}

template <typename T> static void launch_spread(const kiln_cuda_call *c, const pooling &p)
{
    int64_t n = p.planes * p.y.size * p.x.size;
    spread_means<T><<<kiln_cuda_grid(n, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(
        (const T *)c->in[0].data, (T *)c->out[0].data, p, c->stop);
}

static int64_t planes_of(const kiln_cuda_call *c)
{
    return c->in[0].shape[0] * c->in[0].shape[1];
}

static bool max_pool(const kiln_cuda_call *c)
{
    const int64_t *i = c->ints, *size = c->in[0].shape + 2;
    pooling p = {{size[0], i[8], i[0], i[2], i[4], i[6], false},
                 {size[1], i[9], i[1], i[3], i[5], i[7], false},
                 false,
                 planes_of(c)};
    if (results(p))
        BY_TYPE(c->in[0].dtype, launch_maxima, c, p);
    return kiln_cuda_launched(c);
}

static pooling averaging(const kiln_cuda_call *c, const int64_t *size)
{
    const int64_t *i = c->ints;
    return {{size[0], i[6], i[0], i[2], i[4], 1, false},
            {size[1], i[7], i[1], i[3], i[5], 1, false},
            i[8] != 0,
            planes_of(c)};
}

static pooling adaptive(const kiln_cuda_call *c, const int64_t *size, const int64_t *out)
{
    return {{size[0], out[0], 1, 1, 0, 1, true}, {size[1], out[1], 1, 1, 0, 1, true}, false, planes_of(c)};
}

static bool take(const kiln_cuda_call *c, const pooling &p)
{
    if (results(p))
        BY_TYPE(c->in[0].dtype, launch_means, c, p);
    return kiln_cuda_launched(c);
}

static bool spread(const kiln_cuda_call *c, const pooling &p)
{
    if (results(p))
        BY_TYPE(c->in[0].dtype, launch_spread, c, p);
    return kiln_cuda_launched(c);
}

static bool avg_pool(const kiln_cuda_call *c)
{
    return take(c, averaging(c, c->in[0].shape + 2));
}

static bool avg_pool_grad(const kiln_cuda_call *c)
{
    return spread(c, averaging(c, c->out[0].shape + 2));
}

static bool adaptive_avg_pool(const kiln_cuda_call *c)
{
    return take(c, adaptive(c, c->in[0].shape + 2, c->out[0].shape + 2));
}

static bool adaptive_avg_pool_grad(const kiln_cuda_call *c)
{
    return spread(c, adaptive(c, c->out[0].shape + 2, c->in[0].shape + 2));
}

static bool adaptive_max_pool(const kiln_cuda_call *c)
{
    pooling p = adaptive(c, c->in[0].shape + 2, c->out[0].shape + 2);
    if (results(p))
        BY_TYPE(c->in[0].dtype, launch_maxima, c, p);
    return kiln_cuda_launched(c);
}

/* ---- max_pool_grad ---- */

/* Elements of half precision have no room for a head: theirs lie in the workspace, before the lists. */
static bool has_room(kiln_dtype dtype)
{
    return kiln_dtype_size(dtype) >= sizeof(uint32_t);
}

static size_t max_pool_grad_workspace(const kiln_cuda_call *c)
{
    int64_t heads = has_room(c->in[0].dtype) ? 0 : kiln_cuda_count_of(&c->out[0]);
    return (size_t)(heads + kiln_cuda_count_of(&c->in[0])) * sizeof(uint32_t);
}

template <typename T> static void launch_places(const kiln_cuda_call *c, int64_t planes, int64_t in, int64_t out)
{
    bool room = sizeof(T) >= sizeof(uint32_t);
    uint32_t *heads = (uint32_t *)(room ? c->out[0].data : c->workspace);
    uint32_t *next = (uint32_t *)c->workspace + (room ? 0 : planes * out);
    const int64_t *index = (const int64_t *)c->in[1].data;
    int stride = room ? (int)(sizeof(T) / sizeof(uint32_t)) : 1;
    clear_heads<<<kiln_cuda_grid(planes * out * stride, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(
        heads, planes * out * stride, c->stop);
    if (in)
        link_maxima<<<kiln_cuda_grid(planes * in, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(
            index, heads, stride, next, planes, in, out, c->fault, c->stop);
    place_maxima<T><<<kiln_cuda_grid(planes * out, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(
        (const T *)c->in[0].data, index, heads, stride, next, (T *)c->out[0].data, planes, in, out, c->stop);
}

static bool max_pool_grad(const kiln_cuda_call *c)
{
    const int64_t *size = c->ints, *from = c->in[0].shape + 2;
    int64_t planes = planes_of(c), in = from[0] * from[1], out = size[0] * size[1];
    if (in >= UINT32_MAX)
        return kiln_fail(KILN_E_UNSUPPORTED, c->name, "planes of %lld maxima are more than cuda's kernel counts",
                         (long long)in);
    if (planes > 0)
        BY_TYPE(c->in[0].dtype, launch_places, c, planes, in, out);
    return kiln_cuda_launched(c);
}

extern "C" const kiln_cuda_kernel kiln_cuda_kernels_pool[] = {
    {"max_pool", KILN_CUDA_FLOATS, max_pool, NULL},
    {"max_pool_grad", KILN_CUDA_FLOATS, max_pool_grad, max_pool_grad_workspace},
    {"avg_pool", KILN_CUDA_FLOATS, avg_pool, NULL},
    {"avg_pool_grad", KILN_CUDA_FLOATS, avg_pool_grad, NULL},
    {"adaptive_avg_pool", KILN_CUDA_FLOATS, adaptive_avg_pool, NULL},
    {"adaptive_avg_pool_grad", KILN_CUDA_FLOATS, adaptive_avg_pool_grad, NULL},
    {"adaptive_max_pool", KILN_CUDA_FLOATS, adaptive_max_pool, NULL},
    {NULL, 0, NULL, NULL},
};
