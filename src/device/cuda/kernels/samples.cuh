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
#include "device/cuda/kernels/samples.h"

enum { KILN_CUDA_SAMPLE_ROWS = 512 }; /* found at once, each by a thread */

/* Shared memory of a block. */
typedef struct kiln_cuda_samples_room {
    int64_t begin[KILN_CUDA_SAMPLE_ROWS];  /* where a row's sample begins, in units */
    kiln_pose pose[KILN_CUDA_SAMPLE_ROWS]; /* where images are augmented */
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

static __device__ __forceinline__ uint64_t kiln_cuda_seed_of(const kiln_cuda_samples &s)
{
    return kiln_cuda_joined(s.scalars[KILN_SAMPLES_SEED_LOW], s.scalars[KILN_SAMPLES_SEED_HIGH]);
}

static __device__ __forceinline__ uint64_t kiln_cuda_epoch_of(const kiln_cuda_samples &s)
{
    return kiln_cuda_joined(s.scalars[KILN_SAMPLES_EPOCH_LOW], s.scalars[KILN_SAMPLES_EPOCH_HIGH]);
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

/* ---- Images that are augmented: a line of the result is a piece of a line of the data, forwards or backwards ---- */

/* Elements that follow each other in the result, all of one line: element v of them is element begin + x + v · step of
 * the data, if that is there, and x + v · step is a place of the line. */
typedef struct kiln_cuda_line_piece {
    int64_t begin, x;
    int32_t step;
    bool there;
} kiln_cuda_line_piece;

/* Rows found at once are so few that numbers are small, unless samples are huge. */
static __device__ __forceinline__ uint64_t kiln_cuda_quotient(const kiln_cuda_samples &s, uint64_t a, int64_t b)
{
    return s.units >> 22 ? a / (uint64_t)b : (uint32_t)a / (uint32_t)b;
}

/* What unit `u` of the batch, `n` elements, consists of. */
static __device__ __forceinline__ kiln_cuda_line_piece kiln_cuda_piece_of(const kiln_cuda_samples &s,
                                                                          const kiln_cuda_samples_room *room,
                                                                          int64_t first, int64_t u, int n)
{
    uint64_t local = (uint64_t)(u - first * s.units), row = kiln_cuda_quotient(s, local, s.units);
    uint64_t e = (local - row * (uint64_t)s.units) * (uint64_t)n, line = kiln_cuda_quotient(s, e, s.image_width);
    uint64_t plane = kiln_cuda_quotient(s, line, s.image_height);
    const kiln_pose pose = room->pose[row];
    int64_t x = (int64_t)e - (int64_t)line * s.image_width, y = (int64_t)line - (int64_t)plane * s.image_height;
    kiln_cuda_line_piece piece;
    piece.begin = room->begin[row] + ((int64_t)line + pose.down) * s.image_width;
    piece.x = (pose.mirrored ? s.image_width - 1 - x : x) + pose.right;
    piece.step = pose.mirrored ? -1 : 1;
    piece.there = (uint64_t)(y + pose.down) < (uint64_t)s.image_height;
    return piece;
}

/* Where element v of the piece lies in the data; -1: outside of the image. */
static __device__ __forceinline__ int64_t kiln_cuda_piece_at(const kiln_cuda_samples &s, const kiln_cuda_line_piece &p,
                                                             int v)
{
    int64_t x = p.x + v * p.step;
    return p.there && (uint64_t)x < (uint64_t)s.image_width ? p.begin + x : -1;
}

template <typename From, typename To>
static __device__ __forceinline__ void kiln_cuda_move_pixels(const kiln_cuda_samples &s,
                                                             const kiln_cuda_samples_room *room,
                                                             const kiln_cuda_samples_share &w, int thread, int threads)
{
    for (int64_t u = w.low + thread; u < w.high; u += threads) {
        int64_t at = kiln_cuda_piece_at(s, kiln_cuda_piece_of(s, room, w.first, u, 1), 0);
        ((To *)s.out)[u] = at < 0 ? (To)s.blank : (To)((const From *)s.data)[at];
    }
}

template <int N>
static __device__ __forceinline__ void
kiln_cuda_move_pixels_by_table(const kiln_cuda_samples &s, const kiln_cuda_samples_room *room,
                               const kiln_cuda_samples_share &w, int thread, int threads)
{
    const float blank = __uint_as_float((uint32_t)s.blank);
    for (int64_t u = w.low + thread; u < w.high; u += threads) {
        const kiln_cuda_line_piece piece = kiln_cuda_piece_of(s, room, w.first, u, N);
        float x[N];
        for (int v = 0; v < N; v++) {
            int64_t at = kiln_cuda_piece_at(s, piece, v);
            x[v] = at < 0 ? blank : room->table[((const uint8_t *)s.data)[at]];
        }
        if (N == 4)
            ((float4 *)s.out)[u] = make_float4(x[0], x[1 % N], x[2 % N], x[3 % N]);
        else
            ((float *)s.out)[u] = x[0];
    }
}

static __device__ __forceinline__ void kiln_cuda_move_images(const kiln_cuda_samples &s,
                                                             const kiln_cuda_samples_room *room,
                                                             const kiln_cuda_samples_share &w, int thread, int threads)
{
    if (s.how == KILN_CUDA_BY_TABLE && s.width == 4)
        kiln_cuda_move_pixels_by_table<4>(s, room, w, thread, threads);
    else if (s.how == KILN_CUDA_BY_TABLE)
        kiln_cuda_move_pixels_by_table<1>(s, room, w, thread, threads);
    else if (s.how == KILN_CUDA_U8_TO_I64)
        kiln_cuda_move_pixels<uint8_t, int64_t>(s, room, w, thread, threads);
    else if (s.how == KILN_CUDA_I32_TO_I64)
        kiln_cuda_move_pixels<int32_t, int64_t>(s, room, w, thread, threads);
    else if (s.width == 8)
        kiln_cuda_move_pixels<uint64_t, uint64_t>(s, room, w, thread, threads);
    else if (s.width == 4)
        kiln_cuda_move_pixels<uint32_t, uint32_t>(s, room, w, thread, threads);
    else if (s.width == 2)
        kiln_cuda_move_pixels<unsigned short, unsigned short>(s, room, w, thread, threads);
    else
        kiln_cuda_move_pixels<uint8_t, uint8_t>(s, room, w, thread, threads);
}

/* ---- Batches ---- */

/* The keys of the epoch's order and the table. */
static __device__ __forceinline__ void kiln_cuda_prepare_samples(const kiln_cuda_samples &s,
                                                                 kiln_cuda_samples_room *room, int thread, int threads)
{
    for (int i = thread * 4; i < s.order.rounds; i += threads * 4)
        kiln_order_keys(kiln_cuda_seed_of(s), kiln_cuda_epoch_of(s), i, room->key + i);
    if (s.how == KILN_CUDA_BY_TABLE)
        for (int i = thread; i < KILN_SAMPLES_TABLE; i += threads)
            room->table[i] = s.table[i];
}

/* The share of block `block` of `blocks`, done by all `threads` of it, which must call this together; afterwards they
 * have met, and the room can be used for something else. AUGMENTS: images are flipped or cropped. */
template <bool AUGMENTS>
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
            int64_t sample = kiln_order_find(&s.order, room->key, at < last ? at : last);
            room->begin[r] = s.start + sample * s.distance;
            if (AUGMENTS)
                room->pose[r] =
                    kiln_pose_draw(kiln_cuda_seed_of(s), kiln_cuda_epoch_of(s), sample, s.flip != 0, s.crop);
        }
        __syncthreads();
        kiln_cuda_samples_share share = {first, first * s.units, (first + rows) * s.units};
        share.low = share.low > begin ? share.low : begin;
        share.high = share.high < end ? share.high : end;
        if (AUGMENTS)
            kiln_cuda_move_images(s, room, share, thread, threads);
        else
            kiln_cuda_move_samples(s, room, share, thread, threads);
        __syncthreads();
    }
}

#endif
