/* Elements picked and placed by indices. An index outside its range is reported; what it should have read is zero, what
 * it should have written is left alone. */
#include "device/cuda/kernels/index.cuh"
#include "device/cuda/kernels/report.cuh"

/* ---- gather ---- */

template <typename W>
static __global__ void gather_words(const W *__restrict__ x, const int64_t *__restrict__ index, W *__restrict__ y,
                                    const __grid_constant__ kiln_cuda_lanes w, kiln_cuda_fault fault,
                                    const int32_t *stop)
{
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(p, w.count)
    {
        int64_t k = index[p];
        if ((uint64_t)k < (uint64_t)w.limit) {
            y[p] = x[kiln_cuda_spot_of(w, p).x + k * w.x_step];
        } else {
            kiln_cuda_report(fault, p, k, w.limit);
            y[p] = 0;
        }
    }
}

template <typename W> static void launch_gather(const kiln_cuda_call *c, const kiln_cuda_lanes &w)
{
    gather_words<W><<<kiln_cuda_grid(w.count, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(
        (const W *)c->in[0].data, (const int64_t *)c->in[1].data, (W *)c->out[0].data, w, c->fault, c->stop);
}

static bool gather(const kiln_cuda_call *c)
{
    kiln_cuda_lanes w = kiln_cuda_make_lanes(c, true);
    if (w.count == 0)
        return true;
    KILN_CUDA_BY_SIZE(kiln_dtype_size(c->in[0].dtype), launch_gather, c, w);
    return kiln_cuda_launched(c);
}

/* ---- scatter ---- */

/* Of several sources with one target the last counts: `last` holds, for each element of the result, 1 + the largest
 * place along dim of those that name it. */
static __global__ void claim_targets(const int64_t *__restrict__ index, uint32_t *last,
                                     const __grid_constant__ kiln_cuda_lanes w, kiln_cuda_fault fault)
{
    KILN_CUDA_EACH(p, w.count)
    {
        int64_t k = index[p];
        if ((uint64_t)k < (uint64_t)w.limit)
            atomicMax(&last[kiln_cuda_spot_of(w, p).x + k * w.x_step], (uint32_t)(p / w.index_step % w.length) + 1);
        else
            kiln_cuda_report(fault, p, k, w.limit);
    }
}

/* Without `last` all targets are distinct, and nobody has looked at the indices yet. */
template <typename W>
static __global__ void scatter_words(const int64_t *__restrict__ index, const W *__restrict__ src, W *y,
                                     const uint32_t *__restrict__ last, const __grid_constant__ kiln_cuda_lanes w,
                                     kiln_cuda_fault fault, const int32_t *stop)
{
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(p, w.count)
    {
        int64_t k = index[p];
        if ((uint64_t)k >= (uint64_t)w.limit) {
            if (!last)
                kiln_cuda_report(fault, p, k, w.limit);
            continue;
        }
        kiln_cuda_spot s = kiln_cuda_spot_of(w, p);
        int64_t to = s.x + k * w.x_step;
        if (!last || last[to] == (uint32_t)(p / w.index_step % w.length) + 1)
            y[to] = src[s.src];
    }
}

template <typename W> static void launch_scatter(const kiln_cuda_call *c, const kiln_cuda_lanes &w)
{
    unsigned grid = kiln_cuda_grid(w.count, KILN_CUDA_BLOCK);
    const int64_t *index = (const int64_t *)c->in[1].data;
    uint32_t *last = w.length > 1 ? (uint32_t *)c->workspace : NULL;
    if (last) {
        cudaMemsetAsync(last, 0, (size_t)kiln_cuda_count_of(&c->out[0]) * sizeof *last, c->stream);
        claim_targets<<<grid, KILN_CUDA_BLOCK, 0, c->stream>>>(index, last, w, c->fault);
    }
    scatter_words<W><<<grid, KILN_CUDA_BLOCK, 0, c->stream>>>(index, (const W *)c->in[2].data, (W *)c->out[0].data,
                                                              last, w, c->fault, c->stop);
}

static size_t scatter_workspace(const kiln_cuda_call *c)
{
    kiln_cuda_lanes w = kiln_cuda_make_lanes(c, true);
    return w.count && w.length > 1 ? ((size_t)kiln_cuda_count_of(&c->out[0]) + 1) * sizeof(uint32_t) : 0;
}

static bool scatter(const kiln_cuda_call *c)
{
    int64_t size = (int64_t)kiln_dtype_size(c->in[0].dtype);
    kiln_cuda_lanes w = kiln_cuda_make_lanes(c, true);
    if (w.length >= UINT32_MAX)
        return kiln_fail(KILN_E_UNSUPPORTED, c->name, "%lld indices along a dim are more than cuda's kernel counts",
                         (long long)w.length);
    kiln_cuda_copy(c, c->out[0].data, c->in[0].data, kiln_cuda_count_of(&c->out[0]) * size);
    if (w.count)
        KILN_CUDA_BY_SIZE(size, launch_scatter, c, w);
    return kiln_cuda_launched(c);
}

/* ---- index_select ---- */

/* The result as before × count rows of `words` words. */
typedef struct selecting {
    int64_t before, count, limit, words;
} selecting;

template <typename W> static __device__ W zero_word()
{
    return 0;
}

template <> __device__ uint4 zero_word<uint4>()
{
    return make_uint4(0, 0, 0, 0);
}

template <typename W>
static __global__ void select_rows(const W *__restrict__ x, const int64_t *__restrict__ index, W *__restrict__ y,
                                   selecting s, kiln_cuda_fault fault, const int32_t *stop)
{
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(p, s.before * s.count * s.words)
    {
        int64_t row = p / s.words, word = p - row * s.words, o = row / s.count, i = row - o * s.count, k = index[i];
        if ((uint64_t)k < (uint64_t)s.limit) {
            y[p] = x[(o * s.limit + k) * s.words + word];
            continue;
        }
        if (o == 0 && word == 0)
            kiln_cuda_report(fault, i, k, s.limit);
        y[p] = zero_word<W>();
    }
}

/* Where there is nothing to copy a bad index is one all the same. */
static __global__ void check_indices(const int64_t *__restrict__ index, int64_t n, int64_t limit, kiln_cuda_fault fault)
{
    KILN_CUDA_EACH(i, n)
    if ((uint64_t)index[i] >= (uint64_t)limit)
        kiln_cuda_report(fault, i, index[i], limit);
}

template <typename W> static void launch_select(const kiln_cuda_call *c, selecting s, int64_t row)
{
    s.words = row / (int64_t)sizeof(W);
    select_rows<W><<<kiln_cuda_grid(s.before * s.count * s.words, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(
        (const W *)c->in[0].data, (const int64_t *)c->in[1].data, (W *)c->out[0].data, s, c->fault, c->stop);
}

static bool index_select(const kiln_cuda_call *c)
{
    kiln_cuda_extent x = kiln_cuda_extent_at(&c->in[0], c->ints[0]);
    selecting s = {x.before, c->in[1].shape[0], x.at, 0};
    int64_t row = x.after * (int64_t)kiln_dtype_size(c->in[0].dtype);
    if (s.count == 0 || (row && s.before == 0))
        return true;
    if (row == 0) {
        check_indices<<<kiln_cuda_grid(s.count, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(
            (const int64_t *)c->in[1].data, s.count, s.limit, c->fault);
        return kiln_cuda_launched(c);
    }
    uint64_t word = kiln_cuda_common(16, (uint64_t)row);
    word = kiln_cuda_common(word, (uint64_t)(uintptr_t)c->in[0].data);
    word = kiln_cuda_common(word, (uint64_t)(uintptr_t)c->out[0].data);
    KILN_CUDA_BY_WORD(word, launch_select, c, s, row);
    return kiln_cuda_launched(c);
}

#define ADDED (KILN_CUDA_INTS | KILN_CUDA_T(KILN_F32) | KILN_CUDA_T(KILN_F64))

extern "C" const kiln_cuda_kernel kiln_cuda_kernels_index[] = {
    {"gather", KILN_CUDA_ALL, gather, NULL},
    {"scatter", KILN_CUDA_ALL, scatter, scatter_workspace},
    {"scatter_add", ADDED, kiln_cuda_scatter_add, kiln_cuda_scatter_add_workspace},
    {"index_select", KILN_CUDA_ALL, index_select, NULL},
    {"index_add", ADDED, kiln_cuda_index_add, kiln_cuda_index_add_workspace},
    {"cat", KILN_CUDA_ALL, kiln_cuda_cat, NULL},
    {"constant_pad", KILN_CUDA_ALL, kiln_cuda_constant_pad, NULL},
    {"as_strided_add", ADDED, kiln_cuda_as_strided_add, NULL},
    {"as_strided_put", KILN_CUDA_ALL, kiln_cuda_as_strided_put, NULL},
    {"strided_copy", KILN_CUDA_ALL, kiln_cuda_strided_copy, NULL},
    {NULL, 0, NULL, NULL},
};
