/* Short rows are sorted by one block each, longer ones digit by digit from the lowest: tiles count their digits, the
 * counts become positions, tiles place their pairs. Pairs with equal digits keep their order in every step, so the
 * result does not depend on how blocks are scheduled. */
#include "device/cuda/kernels/radix.cuh"

enum {
    SHORT = 2048, /* pairs one block sorts in shared memory */
    WARPS = 8,
    ITEMS = 8, /* pairs of a thread */
    TILE = WARPS * 32 * ITEMS,
    DIGITS = 256 /* as many as a tile has threads */
};
static_assert(DIGITS == WARPS * 32, "a thread looks after one digit");

static int64_t tiles_of(int64_t n)
{
    return kiln_cuda_ceil(n, TILE);
}

kiln_cuda_pairs kiln_cuda_pairs_at(void *memory, int64_t rows, int64_t n, bool wide)
{
    kiln_cuda_pairs p = {rows, n, wide, {}, {}, NULL, NULL, 0};
    size_t counted = n > SHORT ? (size_t)(rows * DIGITS) : 0;
    size_t sizes[6] = {(size_t)(rows * n) * (wide ? 8 : 4),
                       (size_t)(rows * n) * (wide ? 8 : 4),
                       (size_t)(rows * n) * 4,
                       (size_t)(rows * n) * 4,
                       counted * (size_t)tiles_of(n) * 4,
                       counted * 4};
    char *parts[6];
    for (int i = 0; i < 6; i++) {
        parts[i] = memory ? (char *)memory + p.bytes : NULL;
        p.bytes += (sizes[i] + 255) / 256 * 256;
    }
    p.keys[0] = parts[0];
    p.keys[1] = parts[1];
    p.places[0] = (uint32_t *)parts[2];
    p.places[1] = (uint32_t *)parts[3];
    p.counts = (uint32_t *)parts[4];
    p.totals = (uint32_t *)parts[5];
    return p;
}

/* ---- Short rows ---- */

/* A bitonic network over `size` pairs (a power of two). Places differ, so comparing them as well makes it stable. */
template <typename K>
static __global__ void __launch_bounds__(SHORT / 2)
    sort_short(const K *__restrict__ keys, const uint32_t *__restrict__ places, K *__restrict__ keys_to,
               uint32_t *__restrict__ places_to, int64_t rows, int n, int size)
{
    __shared__ K key[SHORT];
    __shared__ uint32_t place[SHORT];
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        for (int i = (int)threadIdx.x; i < size; i += (int)blockDim.x) {
            key[i] = i < n ? keys[row * n + i] : (K) ~(K)0;
            place[i] = i < n ? places[row * n + i] : UINT32_MAX;
        }
        __syncthreads();
        for (int run = 2; run <= size; run *= 2)
            for (int step = run / 2; step > 0; step /= 2) {
                for (int t = (int)threadIdx.x; t < size / 2; t += (int)blockDim.x) {
                    int i = 2 * t - (t & (step - 1)), j = i + step;
                    K a = key[i], b = key[j];
                    uint32_t pa = place[i], pb = place[j];
                    bool after = a > b || (a == b && pa > pb), upwards = (i & run) == 0;
                    if (after == upwards) {
                        key[i] = b;
                        key[j] = a;
                        place[i] = pb;
                        place[j] = pa;
                    }
                }
                __syncthreads();
            }
        for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) {
            keys_to[row * n + i] = key[i];
            places_to[row * n + i] = place[i];
        }
        __syncthreads();
    }
}

/* ---- Long rows ---- */

/* counts[row][digit][tile] = how often the tile of the row has the digit. */
template <typename K>
static __global__ void count_digits(const K *__restrict__ keys, uint32_t *__restrict__ counts, int64_t rows, int64_t n,
                                    int64_t tiles, int shift)
{
    __shared__ uint32_t counted[DIGITS];
    for (int64_t item = blockIdx.x; item < rows * tiles; item += gridDim.x) {
        int64_t row = item / tiles, tile = item - row * tiles, first = tile * TILE;
        counted[threadIdx.x] = 0;
        __syncthreads();
        for (int k = 0; k < ITEMS; k++) {
            int64_t i = first + k * DIGITS + threadIdx.x;
            if (i < n)
                atomicAdd(&counted[(unsigned)(keys[row * n + i] >> shift) & (DIGITS - 1)], 1u);
        }
        __syncthreads();
        counts[(row * DIGITS + threadIdx.x) * tiles + tile] = counted[threadIdx.x];
        __syncthreads();
    }
}

/* The sum of `value` over the block's threads up to and including this one; `sums` has a place for each thread. */
static __device__ uint32_t running_sum(uint32_t value, uint32_t *sums)
{
    sums[threadIdx.x] = value;
    __syncthreads();
    for (unsigned step = 1; step < blockDim.x; step *= 2) {
        uint32_t other = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
        __syncthreads();
        sums[threadIdx.x] += other;
        __syncthreads();
    }
    return sums[threadIdx.x];
}

/* Counts of a digit become the number of its pairs in the tiles before; totals[row][digit] is that in all. */
static __global__ void scan_counts(uint32_t *counts, uint32_t *__restrict__ totals, int64_t lists, int64_t tiles)
{
    __shared__ uint32_t sums[DIGITS];
    for (int64_t list = blockIdx.x; list < lists; list += gridDim.x) {
        uint32_t before = 0;
        for (int64_t first = 0; first < tiles; first += blockDim.x) {
            int64_t tile = first + threadIdx.x;
            uint32_t own = tile < tiles ? counts[list * tiles + tile] : 0, sum = running_sum(own, sums);
            if (tile < tiles)
                counts[list * tiles + tile] = before + sum - own;
            before += sums[blockDim.x - 1];
            __syncthreads();
        }
        if (threadIdx.x == 0)
            totals[list] = before;
    }
}

/* A warp has a span of the tile and goes through it 32 pairs at a time. */
template <typename K>
static __global__ void place_pairs(const K *__restrict__ keys, const uint32_t *__restrict__ places,
                                   K *__restrict__ keys_to, uint32_t *__restrict__ places_to,
                                   const uint32_t *__restrict__ counts, const uint32_t *__restrict__ totals,
                                   int64_t rows, int64_t n, int64_t tiles, int shift)
{
    __shared__ uint32_t seen[WARPS][DIGITS], sums[DIGITS];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    for (int64_t item = blockIdx.x; item < rows * tiles; item += gridDim.x) {
        int64_t row = item / tiles, tile = item - row * tiles;
        int64_t first = tile * TILE + warp * (32 * ITEMS) + lane;
        K key[ITEMS];
        uint32_t rank[ITEMS];
        for (int w = 0; w < WARPS; w++)
            seen[w][threadIdx.x] = 0;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            int64_t i = first + k * 32;
            key[k] = i < n ? keys[row * n + i] : 0;
            unsigned digit = i < n ? (unsigned)(key[k] >> shift) & (DIGITS - 1) : DIGITS;
            unsigned same = __match_any_sync(0xffffffffu, digit);
            int before = __popc(same & ((1u << lane) - 1));
            rank[k] = i < n ? seen[warp][digit] + (uint32_t)before : 0;
            __syncwarp();
            if (i < n && before == 0)
                seen[warp][digit] += (uint32_t)__popc(same);
            __syncwarp();
        }
        uint32_t total = totals[row * DIGITS + threadIdx.x];
        uint32_t at = running_sum(total, sums) - total + counts[(row * DIGITS + threadIdx.x) * tiles + tile];
        for (int w = 0; w < WARPS; w++) {
            uint32_t mine = seen[w][threadIdx.x];
            seen[w][threadIdx.x] = at;
            at += mine;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            int64_t i = first + k * 32;
            if (i < n) {
                int64_t to = row * n + seen[warp][(unsigned)(key[k] >> shift) & (DIGITS - 1)] + rank[k];
                keys_to[to] = key[k];
                places_to[to] = places[row * n + i];
            }
        }
        __syncthreads();
    }
}

template <typename K> static int sort_rows(const kiln_cuda_call *c, const kiln_cuda_pairs *p, int bits)
{
    K *keys[2] = {(K *)p->keys[0], (K *)p->keys[1]};
    if (p->n <= SHORT) {
        int size = kiln_cuda_power(p->n, SHORT), threads = size / 2 < 32 ? 32 : size / 2;
        sort_short<K><<<kiln_cuda_grid(p->rows, 1), threads, 0, c->stream>>>(keys[0], p->places[0], keys[1],
                                                                             p->places[1], p->rows, (int)p->n, size);
        return 1;
    }
    int64_t tiles = tiles_of(p->n);
    int from = 0;
    for (int shift = 0; shift < bits; shift += 8, from ^= 1) {
        unsigned grid = kiln_cuda_grid(p->rows * tiles, 1);
        count_digits<K><<<grid, DIGITS, 0, c->stream>>>(keys[from], p->counts, p->rows, p->n, tiles, shift);
        scan_counts<<<kiln_cuda_grid(p->rows * DIGITS, 1), DIGITS, 0, c->stream>>>(p->counts, p->totals,
                                                                                   p->rows * DIGITS, tiles);
        place_pairs<K><<<grid, DIGITS, 0, c->stream>>>(keys[from], p->places[from], keys[from ^ 1], p->places[from ^ 1],
                                                       p->counts, p->totals, p->rows, p->n, tiles, shift);
    }
    return from;
}

int kiln_cuda_sort_pairs(const kiln_cuda_call *c, const kiln_cuda_pairs *p, int bits)
{
    return p->wide ? sort_rows<uint64_t>(c, p, bits) : sort_rows<uint32_t>(c, p, bits);
}
