/* Sums into places that indices name. Sources are sorted by their target, stably, so each target finds its sources side
 * by side and in their order; who sums what depends on the indices alone. */
#include "device/cuda/kernels/index.cuh"
#include "device/cuda/kernels/radix.cuh"
#include "device/cuda/kernels/report.cuh"

enum {
    FEW = 32,  /* sources that a lane adds one after another */
    LONG = 64, /* sources of one target that a thread adds */
    STEP = LONG / 2,
    MARKS = 8,  /* places a block looks for targets with more at … */
    CREW = 512, /* … whose sources its threads share */
    BY_LANES = 0,
    BY_SORTING = 1
};

/* `limit` targets, rows of `width` elements, in each of `before` parts; n sources likewise. */
typedef struct summing {
    int64_t before, limit, width, n;
    const uint32_t *keys, *places; /* targets in order, `limit` for bad indices; the sources that name them */
    kiln_cuda_lanes lanes;         /* scatter_add: where a source lies */
    bool mapped;
} summing;

/* Column `column` of source `place` of part `part`. */
template <bool MAPPED>
static inline __device__ int64_t source_of(const summing &s, int64_t part, uint32_t place, int64_t column)
{
    return MAPPED ? kiln_cuda_spot_of(s.lanes, place).src : (part * s.n + place) * s.width + column;
}

/* The first position from `from` on, below `to`, whose key is at least `key`; `to` if there is none. */
static inline __device__ int64_t first_from(const uint32_t *keys, int64_t from, int64_t to, uint64_t key)
{
    while (from < to) {
        int64_t middle = from + (to - from) / 2;
        if (keys[middle] < key)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* The first of a target's sources adds all of them, unless there are many. How many is found out first: sources are on
 * their way from memory together then. */
template <typename T, bool MAPPED>
static __global__ void add_few(const T *x, const T *__restrict__ src, T *y, const __grid_constant__ summing s,
                               const int32_t *stop)
{
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(item, s.before * s.n * s.width)
    {
        int64_t row = item / s.width, column = item - row * s.width, part = row / s.n, first = row - part * s.n;
        uint32_t key = s.keys[first];
        if (key >= s.limit || (first > 0 && s.keys[first - 1] == key) ||
            (first + LONG < s.n && s.keys[first + LONG] == key))
            continue;
        int64_t to = (part * s.limit + key) * s.width + column;
        T sum = x[to];
        int64_t end = first_from(s.keys, first, first + LONG < s.n ? first + LONG : s.n, (uint64_t)key + 1);
#pragma unroll 8
        for (int64_t i = first; i < end; i++)
            sum = (T)(sum + src[source_of<MAPPED>(s, part, s.places[i], column)]);
        y[to] = sum;
    }
}

/* Whether position `mark`, a multiple of STEP, is the first such one of a target's sources, and the next one is theirs
 * too: so it is for one position of every target with more than LONG of them, and for few others. */
static inline __device__ bool may_be_long(const summing &s, int64_t mark)
{
    if (mark + STEP >= s.n)
        return false;
    uint32_t key = s.keys[mark];
    return key < s.limit && s.keys[mark + STEP] == key && (mark == 0 || s.keys[mark - STEP] != key);
}

/* Behind the last source of the target that position `mark` and the next mark are of: looked for in steps that double. */
static inline __device__ int64_t end_of(const summing &s, int64_t mark, uint32_t key)
{
    int64_t last = mark + STEP, step = STEP;
    for (; last + step < s.n && s.keys[last + step] == key; step *= 2)
        last += step;
    return first_from(s.keys, last, last + step < s.n ? last + step : s.n, (uint64_t)key + 1);
}

/* A block looks at MARKS marks and adds for the targets it finds there, `across` columns, the sources shared out to CREW /
 * across threads a column. */
template <typename T, bool MAPPED>
static __global__ void __launch_bounds__(CREW)
    add_many(const T *x, const T *__restrict__ src, T *y, const __grid_constant__ summing s, int across, int64_t pieces,
             int64_t spans, const int32_t *stop)
{
    __shared__ T sums[CREW];
    __shared__ unsigned found;
    if (stop && *stop)
        return;
    const int lane = (int)threadIdx.x / across, lanes = CREW / across;
    for (int64_t item = blockIdx.x; item < s.before * spans * pieces; item += gridDim.x) {
        int64_t piece = item % pieces, start = item / pieces % spans * (MARKS * STEP);
        int64_t part = item / pieces / spans, column = piece * across + (int)threadIdx.x % across;
        if (threadIdx.x < 32) {
            unsigned those = __ballot_sync(
                0xffffffffu, threadIdx.x < MARKS && may_be_long(s, start + (int)threadIdx.x * STEP));
            if (threadIdx.x == 0)
                found = those;
        }
        __syncthreads();
        for (unsigned left = found; left; left &= left - 1) {
            int64_t mark = start + (__ffs((int)left) - 1) * STEP;
            uint32_t key = s.keys[mark];
            int64_t begin = first_from(s.keys, mark < STEP ? 0 : mark - STEP, mark, key), end = end_of(s, mark, key);
            if (end - begin <= LONG)
                continue;
            T sum = 0;
            if (column < s.width) {
#pragma unroll 16
                for (int64_t i = begin + lane; i < end; i += lanes)
                    sum = (T)(sum + src[source_of<MAPPED>(s, part, s.places[i], column)]);
            }
            sums[threadIdx.x] = sum;
            __syncthreads();
            for (int half = lanes / 2; half > 0; half /= 2) {
                if (lane < half)
                    sums[threadIdx.x] = (T)(sums[threadIdx.x] + sums[threadIdx.x + half * across]);
                __syncthreads();
            }
            if (lane == 0 && column < s.width) {
                int64_t to = (part * s.limit + key) * s.width + column;
                y[to] = (T)(x[to] + sums[threadIdx.x]);
            }
            __syncthreads();
        }
        __syncthreads();
    }
}

template <typename T> static void launch_sums(const kiln_cuda_call *c, const summing &s)
{
    const T *x = (const T *)c->in[0].data, *src = (const T *)c->in[2].data;
    T *y = (T *)c->out[0].data;
    int64_t items = s.before * s.n * s.width;
    auto few = s.mapped ? add_few<T, true> : add_few<T, false>;
    few<<<kiln_cuda_grid(items, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(x, src, y, s, c->stop);
    if (s.n <= LONG)
        return;
    int across = kiln_cuda_power(s.width, 32);
    int64_t pieces = kiln_cuda_ceil(s.width, across), spans = kiln_cuda_ceil(s.n, MARKS * STEP);
    auto many = s.mapped ? add_many<T, true> : add_many<T, false>;
    many<<<kiln_cuda_grid(s.before * spans * pieces, 1), CREW, 0, c->stream>>>(x, src, y, s, across, pieces, spans,
                                                                              c->stop);
}

#define BY_TYPE(dtype, launch, ...)                                                                                    \
    ((dtype) == KILN_F32   ? launch<float>(__VA_ARGS__)                                                                \
     : (dtype) == KILN_F64 ? launch<double>(__VA_ARGS__)                                                               \
     : (dtype) == KILN_I64 ? launch<uint64_t>(__VA_ARGS__) /* unsigned, so that they may wrap */                       \
     : (dtype) == KILN_I32 ? launch<uint32_t>(__VA_ARGS__)                                                             \
                           : launch<uint8_t>(__VA_ARGS__))

static int bits_for(int64_t limit) /* of keys up to and including limit */
{
    int bits = 1;
    while (limit >> bits)
        bits++;
    return bits;
}

static void start_from_x(const kiln_cuda_call *c)
{
    kiln_cuda_copy(c, c->out[0].data, c->in[0].data,
                   kiln_cuda_count_of(&c->out[0]) * (int64_t)kiln_dtype_size(c->out[0].dtype));
}

/* Keys are filled in: sorts and sums. */
static bool sum_by_keys(const kiln_cuda_call *c, const kiln_cuda_pairs *pairs, summing *s)
{
    int sorted = kiln_cuda_sort_pairs(c, pairs, bits_for(s->limit));
    s->keys = (const uint32_t *)pairs->keys[sorted];
    s->places = pairs->places[sorted];
    start_from_x(c);
    BY_TYPE(c->in[0].dtype, launch_sums, c, *s);
    return kiln_cuda_launched(c);
}

/* ---- index_add ---- */

static __global__ void rows_as_keys(const int64_t *__restrict__ index, uint32_t *__restrict__ keys,
                                    uint32_t *__restrict__ places, int64_t n, int64_t limit, kiln_cuda_fault fault)
{
    KILN_CUDA_EACH(i, n)
    {
        int64_t k = index[i];
        bool good = (uint64_t)k < (uint64_t)limit;
        if (!good)
            kiln_cuda_report(fault, i, k, limit);
        keys[i] = (uint32_t)(good ? k : limit);
        places[i] = (uint32_t)i;
    }
}

size_t kiln_cuda_index_add_workspace(const kiln_cuda_call *c)
{
    return kiln_cuda_pairs_at(NULL, 1, c->in[1].shape[0], false).bytes;
}

bool kiln_cuda_index_add(const kiln_cuda_call *c)
{
    kiln_cuda_extent x = kiln_cuda_extent_at(&c->in[0], c->ints[0]);
    summing s = {x.before, x.at, x.after, c->in[1].shape[0], NULL, NULL, {}, false};
    if (s.n >= INT32_MAX || s.limit >= UINT32_MAX)
        return kiln_fail(KILN_E_UNSUPPORTED, c->name, "%lld indices into %lld rows are more than cuda's kernel counts",
                         (long long)s.n, (long long)s.limit);
    if (s.n == 0) {
        start_from_x(c);
        return kiln_cuda_launched(c);
    }
    kiln_cuda_pairs pairs = kiln_cuda_pairs_at(c->workspace, 1, s.n, false);
    rows_as_keys<<<kiln_cuda_grid(s.n, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(
        (const int64_t *)c->in[1].data, (uint32_t *)pairs.keys[0], pairs.places[0], s.n, s.limit, c->fault);
    if (s.before * s.limit * s.width == 0) /* nothing to add to, but the indices were looked at */
        return kiln_cuda_launched(c);
    return sum_by_keys(c, &pairs, &s);
}

/* ---- scatter_add ---- */

/* Few sources in each lane along dim, which share no targets: a thread adds them in turn. */
template <typename T>
static __global__ void add_lanes(const int64_t *__restrict__ index, const T *__restrict__ src, T *y,
                                 const __grid_constant__ kiln_cuda_lanes w, kiln_cuda_fault fault, const int32_t *stop)
{
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(lane, w.count)
    {
        kiln_cuda_spot s = kiln_cuda_spot_of(w, lane);
        for (int64_t i = 0; i < w.length; i++) {
            int64_t p = s.index + i * w.index_step, k = index[p];
            if ((uint64_t)k >= (uint64_t)w.limit) {
                kiln_cuda_report(fault, p, k, w.limit);
                continue;
            }
            T *to = y + s.x + k * w.x_step;
            *to = (T)(*to + src[s.src + i * w.src_step]);
        }
    }
}

template <typename T> static void launch_lanes(const kiln_cuda_call *c, const kiln_cuda_lanes &w)
{
    enum { THREADS = 64 }; /* lanes may be few */
    add_lanes<T><<<kiln_cuda_grid(w.count, THREADS), THREADS, 0, c->stream>>>(
        (const int64_t *)c->in[1].data, (const T *)c->in[2].data, (T *)c->out[0].data, w, c->fault, c->stop);
}

static __global__ void targets_as_keys(const int64_t *__restrict__ index, uint32_t *__restrict__ keys,
                                       uint32_t *__restrict__ places, const __grid_constant__ kiln_cuda_lanes w,
                                       int64_t targets, kiln_cuda_fault fault)
{
    KILN_CUDA_EACH(p, w.count)
    {
        int64_t k = index[p], to = targets;
        if ((uint64_t)k < (uint64_t)w.limit)
            to = kiln_cuda_spot_of(w, p).x + k * w.x_step;
        else
            kiln_cuda_report(fault, p, k, w.limit);
        keys[p] = (uint32_t)to;
        places[p] = (uint32_t)p;
    }
}

/* Numbers of sources and targets that keys cannot hold are left to lanes, however long they are. */
static int way_of(const kiln_cuda_call *c, const kiln_cuda_lanes *w)
{
    bool fits = w->count < INT32_MAX && kiln_cuda_count_of(&c->out[0]) < UINT32_MAX;
    return w->length > FEW && fits ? BY_SORTING : BY_LANES;
}

size_t kiln_cuda_scatter_add_workspace(const kiln_cuda_call *c)
{
    kiln_cuda_lanes w = kiln_cuda_make_lanes(c, true);
    return way_of(c, &w) == BY_SORTING ? kiln_cuda_pairs_at(NULL, 1, w.count, false).bytes : 0;
}

bool kiln_cuda_scatter_add(const kiln_cuda_call *c)
{
    kiln_cuda_lanes w = kiln_cuda_make_lanes(c, true);
    if (w.count == 0 || way_of(c, &w) == BY_LANES) {
        start_from_x(c);
        w = kiln_cuda_make_lanes(c, false);
        if (w.count > 0 && w.length > 0)
            BY_TYPE(c->in[0].dtype, launch_lanes, c, w);
        return kiln_cuda_launched(c);
    }
    summing s = {1, kiln_cuda_count_of(&c->out[0]), 1, w.count, NULL, NULL, w, true};
    kiln_cuda_pairs pairs = kiln_cuda_pairs_at(c->workspace, 1, w.count, false);
    targets_as_keys<<<kiln_cuda_grid(w.count, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(
        (const int64_t *)c->in[1].data, (uint32_t *)pairs.keys[0], pairs.places[0], w, s.limit, c->fault);
    return sum_by_keys(c, &pairs, &s);
}
