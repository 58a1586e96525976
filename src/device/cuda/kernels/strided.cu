/* cat, constant_pad, as_strided_add, as_strided_put and strided_copy: elements go where shapes and integers say. Each
 * element of a result is made by one thread, which finds what it is made of. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "device/cuda/kernels/index.cuh"

/* ---- cat ---- */

/* The result as rows: each is one span of every operand in turn. In words. */
typedef struct joining {
    int n;
    int64_t begin[KILN_CUDA_INPUTS + 1]; /* of each span in a row; then the row's length */
    const void *from[KILN_CUDA_INPUTS];
    int64_t words; /* of the result */
} joining;

template <typename W>
static __global__ void join_words(W *__restrict__ y, const __grid_constant__ joining j, const int32_t *stop)
{
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(p, j.words)
    {
        int64_t row = p / j.begin[j.n], within = p - row * j.begin[j.n];
        int low = 0, high = j.n; /* the last span that begins at or before it */
        while (high - low > 1) {
            int middle = (low + high) / 2;
            if (j.begin[middle] <= within)
                low = middle;
            else
                high = middle;
        }
        int64_t span = j.begin[low + 1] - j.begin[low];
        y[p] = ((const W *)j.from[low])[row * span + within - j.begin[low]];
    }
}

template <typename W> static void launch_join(const kiln_cuda_call *c, joining j)
{
    for (int i = 0; i <= j.n; i++)
        j.begin[i] /= (int64_t)sizeof(W);
    j.words /= (int64_t)sizeof(W);
    join_words<W>
        <<<kiln_cuda_grid(j.words, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>((W *)c->out[0].data, j, c->stop);
}

bool kiln_cuda_cat(const kiln_cuda_call *c)
{
    joining j = {};
    int64_t size = (int64_t)kiln_dtype_size(c->out[0].dtype), at = 0;
    uint64_t word = kiln_cuda_common(16, (uint64_t)(uintptr_t)c->out[0].data);
    for (int i = 0; i < c->nin; i++) {
        kiln_cuda_extent x = kiln_cuda_extent_at(&c->in[i], c->ints[0]);
        int64_t span = x.at * x.after * size;
        if (span == 0)
            continue;
        word = kiln_cuda_common(kiln_cuda_common(word, (uint64_t)(uintptr_t)c->in[i].data), (uint64_t)span);
        j.begin[j.n] = at;
        j.from[j.n++] = c->in[i].data;
        at += span;
    }
    j.begin[j.n] = at;
    j.words = kiln_cuda_count_of(&c->out[0]) * size;
    if (j.words == 0)
        return true;
    KILN_CUDA_BY_WORD(word, launch_join, c, j);
    return kiln_cuda_launched(c);
}

/* ---- constant_pad ---- */

/* Dims last first; unpadded ones are part of their neighbour. */
typedef struct padding {
    int n;
    int64_t size[KILN_MAX_DIMS], inner[KILN_MAX_DIMS], low[KILN_MAX_DIMS]; /* of result and operand; elements before */
    int64_t count;
    kiln_dtype dtype;
} padding;

static __device__ int64_t whole(double v)
{
    return v >= 0x1p63 ? INT64_MAX : v > -0x1p63 ? (int64_t)v : v <= -0x1p63 ? INT64_MIN : 0;
}

/* The bits of a number as an element, in the lowest bytes. */
static __device__ uint64_t bits_of(kiln_dtype dtype, double v)
{
    switch (dtype) {
    case KILN_BOOL: return v != 0;
    case KILN_U8:
    case KILN_I32:
    case KILN_I64: return (uint64_t)whole(v);
    case KILN_F16: return __half_as_ushort(__float2half_rn((float)v));
    case KILN_BF16: return __bfloat16_as_ushort(__float2bfloat16_rn((float)v));
    case KILN_F32: return __float_as_uint((float)v);
    default: return (uint64_t)__double_as_longlong(v);
    }
}

template <typename W>
static __global__ void pad_words(const W *__restrict__ x, W *__restrict__ y, const double *__restrict__ value,
                                 const __grid_constant__ padding p, const int32_t *stop)
{
    if (stop && *stop)
        return;
    W fill = (W)bits_of(p.dtype, value[0]);
    KILN_CUDA_EACH(number, p.count)
    {
        int64_t rest = number, from = 0, step = 1;
        bool inside = true;
        for (int d = 0; d < p.n; d++) {
            int64_t next = rest / p.size[d], i = rest - next * p.size[d] - p.low[d];
            inside = inside && i >= 0 && i < p.inner[d];
            from += i * step;
            step *= p.inner[d];
            rest = next;
        }
        y[number] = inside ? x[from] : fill;
    }
}

template <typename W> static void launch_pad(const kiln_cuda_call *c, const padding &p)
{
    pad_words<W><<<kiln_cuda_grid(p.count, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(
        (const W *)c->in[0].data, (W *)c->out[0].data, c->floats, p, c->stop);
}

bool kiln_cuda_constant_pad(const kiln_cuda_call *c)
{
    padding p = {};
    const kiln_cuda_operand *x = &c->in[0], *y = &c->out[0];
    p.dtype = y->dtype;
    p.count = kiln_cuda_count_of(y);
    bool plain = false; /* the dim behind is unpadded */
    for (int d = y->ndim - 1; d >= 0; d--) {
        bool unpadded = c->ints[2 * d] == 0 && c->ints[2 * d + 1] == 0;
        int e = plain ? p.n - 1 : p.n++;
        p.low[e] = c->ints[2 * d] * (plain ? p.inner[e] : 1);
        p.size[e] = y->shape[d] * (plain ? p.size[e] : 1);
        p.inner[e] = x->shape[d] * (plain ? p.inner[e] : 1);
        plain = unpadded;
    }
    if (p.count == 0)
        return true;
    KILN_CUDA_BY_SIZE(kiln_dtype_size(p.dtype), launch_pad, c, p);
    return kiln_cuda_launched(c);
}

/* ---- as_strided_add, as_strided_put ---- */

/* A strided window onto the result, longest step first: element i₀, i₁, … of the window, in[number + Σ i·from], lies at
 * offset + Σ i·step with steps of 0 or more. `reach` is how far all later dims together go. */
typedef struct window {
    int n;
    int64_t size[KILN_MAX_DIMS], step[KILN_MAX_DIMS], from[KILN_MAX_DIMS], reach[KILN_MAX_DIMS];
    int64_t offset, number, count; /* count: elements of the result */
    bool empty;
} window;

/* Calls found(number) for each element of the window that lies `rest` behind its beginning, dims from D on. Only those
 * indices are tried from which the later dims can get there, so hardly more is tried than found. A window has at most
 * MOST dims: most have one or two, for which the loops below take few registers. */
template <int D, int MOST, typename Found>
static __device__ __forceinline__ void find_from(const window &w, int64_t rest, int64_t number, Found &found)
{
    if (D == w.n) {
        found(number);
        return;
    }
    if constexpr (D < MOST) {
        int64_t step = w.step[D], low = rest - w.reach[D];
        int64_t first = low <= 0 ? 0 : step == 0 ? w.size[D] : (low + step - 1) / step;
        int64_t last = step == 0 ? w.size[D] - 1 : rest / step;
        last = last < w.size[D] ? last : w.size[D] - 1;
        for (int64_t i = first; i <= last; i++)
            find_from<D + 1, MOST>(w, rest - i * step, number + i * w.from[D], found);
    }
}

/* `begin`: where the window begins in this run, if that is not part of the plan. */
template <int MOST, typename Found>
static __device__ __forceinline__ void find_elements(const window &w, const double *begin, int64_t place, Found found)
{
    int64_t rest = place - w.offset - (begin ? (int64_t)*begin : 0);
    if (!w.empty && rest >= 0 && (w.n > 0 || rest == 0))
        find_from<0, MOST>(w, rest, w.number, found);
}

template <typename T, int MOST>
static __global__ void add_window(const T *__restrict__ x, T *__restrict__ y, const __grid_constant__ window w,
                                  const double *begin, const int32_t *stop)
{
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(place, w.count)
    {
        T sum = 0;
        find_elements<MOST>(w, begin, place, [&](int64_t number) { sum = (T)(sum + x[number]); });
        y[place] = sum;
    }
}

/* Of several elements at one place the last counts. In place the rest stays as it is. */
template <typename W, int MOST>
static __global__ void put_window(const W *base, const W *__restrict__ x, W *y, const __grid_constant__ window w,
                                  const double *begin, const int32_t *stop)
{
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(place, w.count)
    {
        int64_t last = -1;
        find_elements<MOST>(w, begin, place, [&](int64_t number) { last = number > last ? number : last; });
        if (last >= 0 || base != y)
            y[place] = last >= 0 ? x[last] : base[place];
    }
}

/* x as a window with these strides. */
static window make_window(const kiln_cuda_operand *x, const int64_t *stride, int64_t offset, int64_t count)
{
    window w = {};
    int64_t from = 1;
    w.offset = offset;
    w.count = count;
    for (int d = x->ndim - 1; d >= 0; d--) {
        int64_t size = x->shape[d], e = w.n - 1;
        w.empty = w.empty || size == 0;
        if (size > 1 && e >= 0 && w.step[e] * w.size[e] == stride[d] && w.from[e] * w.size[e] == from) {
            w.size[e] *= size; /* goes on where the dim behind it ends */
        } else if (size > 1) {
            w.size[w.n] = size;
            w.step[w.n] = stride[d];
            w.from[w.n++] = from;
        }
        from *= size;
    }
    for (int d = 0; d < w.n; d++)
        if (w.step[d] < 0) { /* from its other end */
            w.offset += (w.size[d] - 1) * w.step[d];
            w.number += (w.size[d] - 1) * w.from[d];
            w.step[d] = -w.step[d];
            w.from[d] = -w.from[d];
        }
    for (int d = 1; d < w.n; d++)
        for (int e = d; e > 0 && w.step[e] > w.step[e - 1]; e--)
            for (int64_t *list : {w.size, w.step, w.from}) {
                int64_t t = list[e];
                list[e] = list[e - 1];
                list[e - 1] = t;
            }
    for (int d = w.n - 2; d >= 0; d--)
        w.reach[d] = w.reach[d + 1] + (w.size[d + 1] - 1) * w.step[d + 1];
    return w;
}

enum { FEW = 2 };

/* Where a window begins that begins elsewhere in each run; NULL: it is the last integer. */
static const double *begin_of(const kiln_cuda_call *c)
{
    return c->nfloats ? c->floats : NULL;
}

template <typename T> static void launch_add(const kiln_cuda_call *c, const window &w)
{
    unsigned grid = kiln_cuda_grid(w.count, KILN_CUDA_BLOCK);
    const T *x = (const T *)c->in[0].data;
    T *y = (T *)c->out[0].data;
    if (w.n <= FEW)
        add_window<T, FEW><<<grid, KILN_CUDA_BLOCK, 0, c->stream>>>(x, y, w, begin_of(c), c->stop);
    else
        add_window<T, KILN_MAX_DIMS><<<grid, KILN_CUDA_BLOCK, 0, c->stream>>>(x, y, w, begin_of(c), c->stop);
}

template <typename W> static void launch_put(const kiln_cuda_call *c, const window &w)
{
    unsigned grid = kiln_cuda_grid(w.count, KILN_CUDA_BLOCK);
    const W *base = (const W *)c->in[0].data, *x = (const W *)c->in[1].data;
    W *y = (W *)c->out[0].data;
    if (w.n <= FEW)
        put_window<W, FEW><<<grid, KILN_CUDA_BLOCK, 0, c->stream>>>(base, x, y, w, begin_of(c), c->stop);
    else
        put_window<W, KILN_MAX_DIMS><<<grid, KILN_CUDA_BLOCK, 0, c->stream>>>(base, x, y, w, begin_of(c), c->stop);
}

bool kiln_cuda_as_strided_add(const kiln_cuda_call *c)
{
    const int64_t *stride = c->ints + 1 + c->ints[0];
    int64_t offset = c->nfloats ? 0 : stride[c->in[0].ndim];
    window w = make_window(&c->in[0], stride, offset, kiln_cuda_count_of(&c->out[0]));
    if (w.count == 0)
        return true;
    switch (c->in[0].dtype) {
    case KILN_F32: launch_add<float>(c, w); break;
    case KILN_F64: launch_add<double>(c, w); break;
    case KILN_I64: launch_add<uint64_t>(c, w); break; /* unsigned, so that they may wrap */
    case KILN_I32: launch_add<uint32_t>(c, w); break;
    default: launch_add<uint8_t>(c, w); break;
    }
    return kiln_cuda_launched(c);
}

bool kiln_cuda_as_strided_put(const kiln_cuda_call *c)
{
    int64_t offset = c->nfloats ? 0 : c->ints[c->in[1].ndim];
    window w = make_window(&c->in[1], c->ints, offset, kiln_cuda_count_of(&c->out[0]));
    if (w.count == 0)
        return true;
    KILN_CUDA_BY_SIZE(kiln_dtype_size(c->out[0].dtype), launch_put, c, w);
    return kiln_cuda_launched(c);
}

/* ---- strided_copy ---- */

typedef struct lines { /* a dense result, and how far apart its elements lie in what it is copied from */
    int n;
    int64_t size[KILN_MAX_DIMS], step[KILN_MAX_DIMS], count;
} lines;

template <typename W>
static __global__ void copy_lines(const W *__restrict__ x, W *__restrict__ y, const __grid_constant__ lines l,
                                  const double *begin, const int32_t *stop)
{
    if (stop && *stop)
        return;
    const W *from = x + (int64_t)*begin;
    KILN_CUDA_EACH(i, l.count)
    {
        int64_t rest = i, at = 0;
        for (int d = 0; d < l.n; d++) { /* the last dim first */
            at += rest % l.size[d] * l.step[d];
            rest /= l.size[d];
        }
        y[i] = from[at];
    }
}

template <typename W> static void launch_lines(const kiln_cuda_call *c, const lines &l)
{
    copy_lines<W><<<kiln_cuda_grid(l.count, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(
        (const W *)c->in[0].data, (W *)c->out[0].data, l, c->floats, c->stop);
}

bool kiln_cuda_strided_copy(const kiln_cuda_call *c)
{
    const kiln_cuda_operand *y = &c->out[0];
    const int64_t *stride = c->ints + 1 + y->ndim;
    lines l = {};
    l.count = kiln_cuda_count_of(y);
    for (int d = y->ndim - 1; d >= 0; d--) {
        int64_t e = l.n - 1;
        if (e >= 0 && l.step[e] * l.size[e] == stride[d]) {
            l.size[e] *= y->shape[d]; /* goes on where the dim behind it ends */
        } else if (y->shape[d] > 1) {
            l.size[l.n] = y->shape[d];
            l.step[l.n++] = stride[d];
        }
    }
    if (l.count == 0)
        return true;
    KILN_CUDA_BY_SIZE(kiln_dtype_size(y->dtype), launch_lines, c, l);
    return kiln_cuda_launched(c);
}
