/* What scores become before the softmax: with a mask, and minus infinity where a query must not look; and what dropout makes
 * of weights behind it. */
#ifndef KILN_CUDA_ATTENTION_VIEW_CUH
#define KILN_CUDA_ATTENTION_VIEW_CUH

#include "device/cuda/attention/problem.cuh"

#define KILN_PHILOX_FN static __device__ __forceinline__
#include "core/philox_words.h"

/* Bytes of an element of the mask. */
static __device__ __forceinline__ int kiln_attention_mask_size(const kiln_attention_problem &p)
{
    return p.mask_dtype == KILN_BOOL ? 1 : p.mask_dtype == KILN_F32 ? 4 : 8;
}

/* Of one head. T counts queries and keys: int for kernels that are fast, int64_t for those that do all. */
template <typename T> struct kiln_attention_view {
    const kiln_attention_problem &p;
    int64_t head;
    T queries, keys;  /* those that there are */
    const char *mask; /* NULL: none */
    float factor;     /* scale, for scores in units of log 2 */

    __device__ __forceinline__ kiln_attention_view(const kiln_attention_problem &p, const kiln_attention_head &head)
        : p(p), head(head.number), queries((T)p.l), keys((T)p.s), mask(NULL),
          factor((float)p.scale[0] * kiln_half_element::log2_of_e)
    {
        if (p.lengths.at) {
            const int64_t length = *head.of<int64_t>(p, p.lengths);
            keys = length < 0 ? 0 : length < keys ? (T)length : keys;
        }
        if (p.mask.at)
            mask = (const char *)p.mask.at + head.offset(p, p.mask) * kiln_attention_mask_size(p);
    }

    /* Where keys end for queries up to `row`, excluded. */
    __device__ __forceinline__ T end(T row) const
    {
        return p.causal && row < keys ? row : keys;
    }

    /* Whether all of `rows` queries see all of `columns` keys, as they are. */
    __device__ __forceinline__ bool is_open(T query, int rows, T key, int columns) const
    {
        return key + columns <= keys && query + rows <= queries && (!p.causal || key + columns - 1 <= query) && !mask;
    }

    __device__ __forceinline__ bool sees(T query, T key) const
    {
        return key < keys && query < queries && (!p.causal || key <= query);
    }

    /* What the mask, if there is one, adds to a score that is seen. Not inlined: it is asked for by kernels that are not
     * fast in any case. */
    __device__ __noinline__ double added(T query, T key) const
    {
        const int64_t at = query * p.mask.row + key * p.mask.column;
        return !mask                        ? 0
               : p.mask_dtype == KILN_BOOL ? (((const uint8_t *)mask)[at] ? 0 : -INFINITY)
               : p.mask_dtype == KILN_F32  ? ((const float *)mask)[at]
                                           : ((const double *)mask)[at];
    }

    /* Calls each(added), where added(query, key) is what the mask, bool or f32, adds to a score that is seen, in units of
     * log 2; once, so that elements are not asked for its dtype one by one. */
    template <typename Each> __device__ __forceinline__ void with_mask(const Each &each) const
    {
        if (!mask)
            each([](T, T) { return 0.0f; });
        else if (p.mask_dtype == KILN_BOOL)
            each([&](T query, T key) {
                return ((const uint8_t *)mask)[query * p.mask.row + key * p.mask.column] ? 0.0f : -INFINITY;
            });
        else
            each([&](T query, T key) {
                return ((const float *)mask)[query * p.mask.row + key * p.mask.column] * kiln_half_element::log2_of_e;
            });
    }

    /* What a weight is multiplied by: the number that random_uniform draws for its place decides (core/philox.h). */
    __device__ __noinline__ float kept(T query, T key) const
    {
        const uint64_t place = (uint64_t)((head * p.l + query) * p.s + key), seed = (uint64_t)p.scale[2];
        const uint64_t block = (uint64_t)p.scale[3] + place / 4;
        const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), 0, 0};
        uint32_t words[4];
        kiln_philox_words((uint32_t)seed, (uint32_t)(seed >> 32), counter, words);
        const uint32_t low = place & 1 ? words[1] : words[0], high = place & 1 ? words[3] : words[2];
        const float uniform = (float)(int32_t)((place & 2 ? high : low) >> 8) * 0x1p-24f;
        return uniform >= (float)p.scale[1] ? (float)(1 / (1 - p.scale[1])) : 0;
    }
};

#endif
