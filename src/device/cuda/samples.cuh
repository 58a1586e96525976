/* take_samples from inside a kernel: which samples make up the batch, and what moves them. Some block of some number of
 * blocks does its share, so that a kernel of its own and a part of a larger one can call it. Compiled ahead into
 * samples.cu; as text it can be part of generated kernels, so it includes nothing of CUDA or C. */
#ifndef KILN_CUDA_SAMPLES_CUH
#define KILN_CUDA_SAMPLES_CUH

#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
#define KILN_PHILOX_FN static __device__ inline
#else
#include <stdint.h>
#define KILN_PHILOX_FN static __host__ __device__ inline
#endif
#include "device/cuda/samples.h"

enum { KILN_CUDA_SAMPLE_ROWS = 512 }; /* found at once, each by a thread */

/* Shared memory of a block. */
typedef struct kiln_cuda_samples_room {
    int64_t begin[KILN_CUDA_SAMPLE_ROWS]; /* where a row's sample begins, in units */
    uint32_t key[KILN_ORDER_ROUNDS];
    float table[KILN_SAMPLES_TABLE];
} kiln_cuda_samples_room;

/* The units low … high-1 of the batch, where `first` is the row that room->begin[0] belongs to. */
typedef struct kiln_cuda_samples_share {
    int64_t first, low, high;
} kiln_cuda_samples_share;

static __device__ __forceinline__ uint64_t kiln_cuda_joined(double low, double high)
{
    return (uint64_t)high << 32 | (uint64_t)low;
}

/* Where unit `u` of the batch is read from. Within so few rows numbers are small, unless samples are huge. */
static __device__ __forceinline__ int64_t kiln_cuda_sample_unit(const kiln_cuda_samples &s,
                                                                const kiln_cuda_samples_room *room, int64_t first,
                                                                int64_t u)
{
    uint64_t local = (uint64_t)(u - first * s.units), units = (uint64_t)s.units;
    uint64_t row = units >> 22 ? local / units : (uint32_t)local / (uint32_t)units;
    return room->begin[row] + (int64_t)(local - row * units);
}

/* Hands what `get` has of each unit of the share on to `put`; a few are under way at once. */
template <typename Get, typename Put>
static __device__ __forceinline__ void kiln_cuda_move_units(const kiln_cuda_samples_share &w, int thread, int threads,
                                                            Get get, Put put)
{
    enum { AHEAD = 4 };
    for (int64_t first = w.low + thread; first < w.high; first += (int64_t)threads * AHEAD) {
        decltype(get(first)) x[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (first + k * threads < w.high)
                x[k] = get(first + k * threads);
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (first + k * threads < w.high)
                put(first + k * threads, x[k]);
    }
}

template <typename From, typename To>
static __device__ __forceinline__ void kiln_cuda_move_as(const kiln_cuda_samples &s, const kiln_cuda_samples_room *room,
                                                         const kiln_cuda_samples_share &w, int thread, int threads)
{
    kiln_cuda_move_units(
        w, thread, threads,
        [&](int64_t u) { return ((const From *)s.data)[kiln_cuda_sample_unit(s, room, w.first, u)]; },
        [&](int64_t u, From x) { ((To *)s.out)[u] = x; });
}

static __device__ __forceinline__ void kiln_cuda_move_by_table(const kiln_cuda_samples &s,
                                                               const kiln_cuda_samples_room *room,
                                                               const kiln_cuda_samples_share &w, int thread,
                                                               int threads)
{
    const float *table = room->table;
    if (s.width == 4)
        kiln_cuda_move_units(
            w, thread, threads,
            [&](int64_t u) { return ((const uint32_t *)s.data)[kiln_cuda_sample_unit(s, room, w.first, u)]; },
            [&](int64_t u, uint32_t b) {
                ((float4 *)s.out)[u] =
                    make_float4(table[b & 255], table[b >> 8 & 255], table[b >> 16 & 255], table[b >> 24]);
            });
    else
        kiln_cuda_move_units(
            w, thread, threads,
            [&](int64_t u) { return ((const uint8_t *)s.data)[kiln_cuda_sample_unit(s, room, w.first, u)]; },
            [&](int64_t u, uint8_t b) { ((float *)s.out)[u] = table[b]; });
}

static __device__ __forceinline__ void kiln_cuda_move_samples(const kiln_cuda_samples &s,
                                                              const kiln_cuda_samples_room *room,
                                                              const kiln_cuda_samples_share &w, int thread, int threads)
{
    if (s.how == KILN_CUDA_BY_TABLE)
        kiln_cuda_move_by_table(s, room, w, thread, threads);
    else if (s.how == KILN_CUDA_U8_TO_I64)
        kiln_cuda_move_as<uint8_t, int64_t>(s, room, w, thread, threads);
    else if (s.how == KILN_CUDA_I32_TO_I64)
        kiln_cuda_move_as<int32_t, int64_t>(s, room, w, thread, threads);
    else if (s.width == 16)
        kiln_cuda_move_as<uint4, uint4>(s, room, w, thread, threads);
    else if (s.width == 8)
        kiln_cuda_move_as<uint2, uint2>(s, room, w, thread, threads);
    else if (s.width == 4)
        kiln_cuda_move_as<uint32_t, uint32_t>(s, room, w, thread, threads);
    else if (s.width == 2)
        kiln_cuda_move_as<unsigned short, unsigned short>(s, room, w, thread, threads);
    else
        kiln_cuda_move_as<uint8_t, uint8_t>(s, room, w, thread, threads);
}

/* The keys of the epoch's order and the table. */
static __device__ __forceinline__ void kiln_cuda_prepare_samples(const kiln_cuda_samples &s,
                                                                 kiln_cuda_samples_room *room, int thread, int threads)
{
    for (int i = thread * 4; i < s.order.rounds; i += threads * 4)
        kiln_order_keys(kiln_cuda_joined(s.scalars[KILN_SAMPLES_SEED_LOW], s.scalars[KILN_SAMPLES_SEED_HIGH]),
                        kiln_cuda_joined(s.scalars[KILN_SAMPLES_EPOCH_LOW], s.scalars[KILN_SAMPLES_EPOCH_HIGH]), i,
                        room->key + i);
    if (s.how == KILN_CUDA_BY_TABLE)
        for (int i = thread; i < KILN_SAMPLES_TABLE; i += threads)
            room->table[i] = s.table[i];
}

/* The share of block `block` of `blocks`, done by all `threads` of it, which must call this together; afterwards they
 * have met, and the room can be used for something else. */
static __device__ __forceinline__ void kiln_cuda_take_samples(const kiln_cuda_samples &s, kiln_cuda_samples_room *room,
                                                              int block, int blocks, int thread, int threads)
{
    int64_t all = s.rows * s.units, each = (all + blocks - 1) / blocks, begin = block * each, end = begin + each;
    end = end < all ? end : all;
    if (begin >= end)
        return;
    kiln_cuda_prepare_samples(s, room, thread, threads);
    int64_t position = (int64_t)s.scalars[KILN_SAMPLES_POSITION], last = s.order.n - 1, stop = (end - 1) / s.units + 1;
    __syncthreads();
    for (int64_t first = begin / s.units; first < stop; first += KILN_CUDA_SAMPLE_ROWS) {
        int64_t rows = stop - first < KILN_CUDA_SAMPLE_ROWS ? stop - first : KILN_CUDA_SAMPLE_ROWS;
        for (int64_t r = thread; r < rows; r += threads) {
            int64_t at = position + first + r; /* none beyond the last is asked for; memory is safe if one is */
            room->begin[r] = s.start + kiln_order_find(&s.order, room->key, at < last ? at : last) * s.distance;
        }
        __syncthreads();
        kiln_cuda_samples_share share = {first, first * s.units, (first + rows) * s.units};
        share.low = share.low > begin ? share.low : begin;
        share.high = share.high < end ? share.high : end;
        kiln_cuda_move_samples(s, room, share, thread, threads);
        __syncthreads();
    }
}

#endif
