/* Attention and its gradient by tensor cores: a template over what multiplies (mma.cuh, wgmma.cuh) and the width of
 * heads, rounded up. A warp has 16 rows, of which it keeps scores and sums in registers, and goes over tiles of columns
 * that the block brings to shared memory, one ahead. Scores are never in memory, every sum has one warp and one order.
 *
 * The gradient computes scores anew, once for the gradients of queries, whose rows are queries, and once for those of keys
 * and values, whose rows are keys: two more products than if all came from one pass, which would have to add up the
 * gradients of queries in memory, in an order that is not the step's, or one block after the other. */
#ifndef KILN_CUDA_ATTENTION_TENSOR_CUH
#define KILN_CUDA_ATTENTION_TENSOR_CUH

#include "device/cuda/attention/tiles.cuh"
#include "device/cuda/attention/view.cuh"

/* GROUPS of four warps share tiles; at least BLOCKS blocks share a multiprocessor; COLUMNS: of a tile that is
 * gone over. */
template <typename Engine, int WIDE, int GROUPS, int BLOCKS, int COLUMNS> struct kiln_attention_kernel {
    typedef Engine E;
    typedef typename Engine::S S;
    static constexpr int width = WIDE, blocks = BLOCKS, threads = 128 * GROUPS, rows = 64 * GROUPS;
    static constexpr int columns = COLUMNS;
    typedef kiln_attention_tile<S, rows, WIDE> row_tile;
    typedef kiln_attention_tile<S, columns, WIDE> column_tile;
    typedef float scores[columns / 8][4];
    typedef float sums[WIDE / 8][4];
    static constexpr int align = 1024;             /* of tiles */

    static __device__ __forceinline__ int warp()
    {
        return (int)(threadIdx.x / 32);
    }
    static __device__ __forceinline__ int down() /* of the first of a thread's two rows, in the warp's */
    {
        return (int)(threadIdx.x % 32 / 4);
    }
    static __device__ __forceinline__ int across() /* of the first of its two columns, in eight */
    {
        return (int)(threadIdx.x % 4 * 2);
    }

    static __device__ __forceinline__ char *aligned(char *memory)
    {
        return memory + (align - (unsigned)__cvta_generic_to_shared(memory) % align) % align;
    }

    /* Sums times a factor by row, through the warp's 16 rows of a tile of its own, to rows `to` … of x. */
    static __device__ __forceinline__ void put(sums &x, float first, float second, char *tile,
                                               const kiln_attention_rows<S> &to, int row)
    {
        const int line = warp() * 16 + down();
#pragma unroll
        for (int n = 0; n < WIDE / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float factor = half ? second : first;
                const float low = x[n][half * 2] * factor, high = x[n][half * 2 + 1] * factor;
                const int column = n * 8 + across(); /* elements */
                char *at = tile + row_tile::place(line + half * 8, column / row_tile::pack) +
                           column % row_tile::pack * (int)sizeof(S);
                if constexpr (sizeof(S) == 2)
                    *(uint32_t *)at = kiln_pair_of(low, high, S{});
                else
                    *(float2 *)at = float2{low, high};
            }
        __syncwarp();
        kiln_attention_store<S, rows, WIDE>(tile, warp() * 16, to, row + warp() * 16);
    }
};

/* A warp's 16 rows of a tile as a left operand. They are read anew for each product: kept in registers across products of
 * wgmma, the assembler of CUDA 13.0 gives the same registers to others in between. */
template <typename K> struct kiln_attention_left {
    const char *tile;

    __device__ __forceinline__ void operator()(uint32_t (&a)[4], int i) const
    {
        K::E::template left<K::rows, K::width>(a, tile, K::warp() * 16, i);
    }
};

/* Two operands that are gone over tile by tile, in two stages of shared memory: one is worked on while the next comes. */
template <typename K> struct kiln_attention_pairs {
    typedef typename K::S S;
    typedef typename K::column_tile tile;
    static constexpr int bytes = 4 * tile::bytes;
    const kiln_attention_rows<S> &first, &second;
    char *memory;

    __device__ __forceinline__ void load(int from, int stage) const
    {
        kiln_attention_load<S, K::columns, K::width, K::threads>(at(stage), first, from);
        kiln_attention_load<S, K::columns, K::width, K::threads>(at(stage) + tile::bytes, second, from);
    }
    __device__ __forceinline__ char *at(int stage) const
    {
        return memory + stage * 2 * tile::bytes;
    }
};

/* All that was begun is there, for all threads and for tensor cores; and all threads are done with what was there before.
 * The next tile is begun behind this: the fence before the barrier would wait for it, too. */
template <typename K> static __device__ __forceinline__ void kiln_attention_arrive()
{
    kiln_cuda_copies_end();
    kiln_cuda_copies_wait<0>();
    K::E::loaded();
    __syncthreads();
}

/* ---- Forward ---- */

template <typename K> static __device__ __forceinline__ float kiln_row_max(const typename K::scores &x, int half)
{
    float top = kiln_larger(x[0][half * 2], x[0][half * 2 + 1]);
#pragma unroll
    for (int n = 1; n < K::columns / 8; n++)
        top = kiln_larger(top, kiln_larger(x[n][half * 2], x[n][half * 2 + 1]));
    return kiln_lanes_max<4>(top);
}

/* The softmax of a thread's two rows so far: their largest scores, and its parts of Σ exp(score - largest). */
template <typename K> struct kiln_attention_softmax {
    float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};

    /* Scores, times a factor that is not negative, become weights; sums of products with earlier ones are brought to the
     * new largest score. -inf is no score to subtract: rows that have had no other keep weights of 0. */
    __device__ __forceinline__ void take(typename K::scores &x, float factor, typename K::sums &sums)
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float top = kiln_larger(max[half], factor * kiln_row_max<K>(x, half));
            const float shift = top == -INFINITY ? 0 : top, shrink = kiln_exp2_of_half(max[half] - shift);
            float part = 0;
#pragma unroll
            for (int n = 0; n < K::columns / 8; n++)
#pragma unroll
                for (int i = half * 2; i < half * 2 + 2; i++)
                    part += x[n][i] = kiln_exp2_of_half(__fmaf_rn(x[n][i], factor, -shift));
            sum[half] = __fmaf_rn(sum[half], shrink, part);
            max[half] = top;
#pragma unroll
            for (int n = 0; n < K::width / 8; n++) {
                sums[n][half * 2] *= shrink;
                sums[n][half * 2 + 1] *= shrink;
            }
        }
    }
};

/* Calls f(x, query, key) for a thread's elements of a tile whose rows are queries from `query` on and columns keys. */
template <typename K, typename F>
static __device__ __forceinline__ void kiln_attention_each(typename K::scores &x, int query, int key, const F &f)
{
#pragma unroll
    for (int n = 0; n < K::columns / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            f(x[n][i], query + K::down() + i / 2 * 8, key + K::across() + n * 8 + i % 2);
}

template <typename K> struct kiln_attention_forward {
    typedef typename K::E E;
    typedef typename K::S S;
    typedef kiln_attention_pairs<K> pairs;
    static constexpr int bytes = K::row_tile::bytes + pairs::bytes + K::align;

    /* Queries from `row` on. */
    static __device__ __forceinline__ void run(const kiln_attention_problem &p, const kiln_attention_head &head,
                                               int row, char *memory)
    {
        const kiln_attention_rows<S> q(p, head, p.q, p.l, p.e), k(p, head, p.k, p.s, p.e), v(p, head, p.v, p.s, p.ev);
        const kiln_attention_view<int> view(p, head);
        const pairs kv = {k, v, memory + K::row_tile::bytes};
        const int first = row + K::warp() * 16, end = view.end(row + K::rows);
        typename K::sums sums = {};
        kiln_attention_softmax<K> softmax;
        const kiln_attention_left<K> left = {memory};
        kiln_attention_load<S, K::rows, K::width, K::threads>(memory, q, row);
        kv.load(0, 0);
        int stage = 0;
        for (int from = 0; from < end; from += K::columns, stage ^= 1) {
            kiln_attention_arrive<K>();
            if (from + K::columns < end)
                kv.load(from + K::columns, stage ^ 1);
            const int valid = end - from;
            typename K::scores x;
            E::template by_rows<K::columns, K::width>(x, left, kv.at(stage), valid);
            E::end(x);
            if (view.factor >= 0 && view.is_open(first, 16, from, K::columns)) {
                softmax.take(x, view.factor, sums);
            } else {
                hide(x, view, first, from);
                softmax.take(x, 1, sums);
            }
            if (p.dropout)
                kiln_attention_each<K>(
                    x, first, from, [&](float &weight, int query, int key) { weight *= view.kept(query, key); });
            uint32_t weights[K::columns / E::step][4];
            E::template left_of<K::columns>(weights, x);
            E::template by_columns<K::columns, K::width>(sums, weights, kv.at(stage) + K::column_tile::bytes, valid);
            E::end(sums);
        }
        kiln_attention_arrive<K>(); /* what was begun where there are no keys */
        finish(p, head, softmax, sums, row, memory);
    }

    /* Scores become what the softmax gets. */
    static __device__ __forceinline__ void hide(typename K::scores &x, const kiln_attention_view<int> &view, int first,
                                                int from)
    {
        auto each = [&](auto added) {
            kiln_attention_each<K>(x, first, from, [&](float &score, int query, int key) {
                score = view.sees(query, key) ? score * view.factor + added(query, key) : -INFINITY;
            });
        };
        view.with_mask(each);
    }

    static __device__ __forceinline__ void finish(const kiln_attention_problem &p, const kiln_attention_head &head,
                                                  const kiln_attention_softmax<K> &softmax, typename K::sums &sums,
                                                  int row, char *memory)
    {
        const int query = row + K::warp() * 16 + K::down();
        float share[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float sum = kiln_lanes_sum<4>(softmax.sum[half]);
            const bool blind = p.hides && softmax.max[half] == -INFINITY && sum == 0; /* has seen nothing */
            share[half] = blind ? 0 : 1 / sum;
            if (threadIdx.x % 4 == 0 && query + half * 8 < p.l)
                ((float *)p.lses)[head.number * p.l + query + half * 8] =
                    blind ? INFINITY : (softmax.max[half] + log2f(sum)) * (1 / kiln_half_element::log2_of_e);
        }
        K::put(sums, share[0], share[1], memory, kiln_attention_rows<S>(p, head, p.out[0], p.l, p.ev), row);
    }
};

/* ---- Backward ---- */

/* With P = exp(scale·q·kᵀ - lse) and D = P·(gy·vᵀ - along): gq = scale·D·k, gk = scale·Dᵀ·q, gv = Pᵀ·gy. Dropout multiplies
 * the P of gv and gy·vᵀ. */

/* Rows are queries. Also writes `along`, which the kernel for keys reads. */
template <typename K> struct kiln_attention_back_queries {
    typedef typename K::E E;
    typedef typename K::S S;
    typedef kiln_attention_pairs<K> pairs;
    static constexpr int bytes = 2 * K::row_tile::bytes + pairs::bytes + K::align;

    /* Σ gy·y - glse of the warp's queries: two lanes a query. */
    static __device__ __forceinline__ void sum_along(const kiln_attention_problem &p, const kiln_attention_head &head,
                                                     int first, float (&along)[2])
    {
        const int lane = (int)(threadIdx.x % 32), query = first + lane / 2;
        float sum = 0;
        if (query < p.l) {
            const S *y = head.of<S>(p, p.y) + query * p.y.row, *gy = head.of<S>(p, p.gy) + query * p.gy.row;
            constexpr int pack = 16 / (int)sizeof(S);
            const bool packed = p.y.column == 1 && p.gy.column == 1 && p.ev % pack == 0 && (uintptr_t)y % 16 == 0 &&
                                (uintptr_t)gy % 16 == 0;
            for (int i = lane % 2 * pack; i < p.ev; i += 2 * pack) {
                alignas(16) S a[pack], b[pack];
                if (packed) {
                    *(uint4 *)a = *(const uint4 *)(y + i);
                    *(uint4 *)b = *(const uint4 *)(gy + i);
                }
#pragma unroll
                for (int e = 0; e < pack; e++) {
                    if (packed)
                        sum += kiln_element<S>::of(a[e]) * kiln_element<S>::of(b[e]);
                    else if (i + e < p.ev)
                        sum += kiln_element<S>::of(y[(i + e) * p.y.column]) *
                               kiln_element<S>::of(gy[(i + e) * p.gy.column]);
                }
            }
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        if (query < p.l && p.glse.at)
            sum -= head.of<float>(p, p.glse)[query * p.glse.row];
        if (query < p.l && lane % 2 == 0)
            ((float *)p.along)[head.number * p.l + query] = sum;
        along[0] = __shfl_sync(0xffffffffu, sum, K::down() * 2);
        along[1] = __shfl_sync(0xffffffffu, sum, K::down() * 2 + 16);
    }

    static __device__ __forceinline__ void run(const kiln_attention_problem &p, const kiln_attention_head &head,
                                               int row, char *memory)
    {
        const kiln_attention_rows<S> q(p, head, p.q, p.l, p.e), k(p, head, p.k, p.s, p.e), v(p, head, p.v, p.s, p.ev);
        const kiln_attention_rows<S> gy(p, head, p.gy, p.l, p.ev);
        const kiln_attention_view<int> view(p, head);
        char *gys = memory + K::row_tile::bytes;
        const pairs kv = {k, v, gys + K::row_tile::bytes};
        const int first = row + K::warp() * 16, end = view.end(row + K::rows);
        typename K::sums sums = {};
        float along[2], lse[2];
        kiln_attention_load<S, K::rows, K::width, K::threads>(memory, q, row);
        kiln_attention_load<S, K::rows, K::width, K::threads>(gys, gy, row);
        kv.load(0, 0);
        sum_along(p, head, first, along);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int query = first + K::down() + half * 8;
            lse[half] =
                query < p.l ? head.of<float>(p, p.lse)[query * p.lse.row] * kiln_half_element::log2_of_e : 0;
        }
        const kiln_attention_left<K> left_q = {memory}, left_gy = {gys};
        int stage = 0;
        for (int from = 0; from < end; from += K::columns, stage ^= 1) {
            kiln_attention_arrive<K>();
            if (from + K::columns < end)
                kv.load(from + K::columns, stage ^ 1);
            const char *keys = kv.at(stage), *values = keys + K::column_tile::bytes;
            const int valid = end - from;
            typename K::scores x, g;
            E::template by_rows<K::columns, K::width>(x, left_q, keys, valid);
            E::template by_rows<K::columns, K::width>(g, left_gy, values, valid);
            E::end(x);
            E::end(g);
            if (p.dropout)
                kiln_attention_each<K>(
                    g, first, from, [&](float &slope, int query, int key) { slope *= view.kept(query, key); });
            float factor = view.factor;
            if (!view.is_open(first, 16, from, K::columns)) {
                kiln_attention_forward<K>::hide(x, view, first, from);
                factor = 1;
            }
#pragma unroll
            for (int n = 0; n < K::columns / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    x[n][i] = kiln_exp2_of_half(__fmaf_rn(x[n][i], factor, -lse[i / 2])) * (g[n][i] - along[i / 2]);
            uint32_t weights[K::columns / E::step][4];
            E::template left_of<K::columns>(weights, x);
            E::template by_columns<K::columns, K::width>(sums, weights, keys, valid);
            E::end(sums);
        }
        kiln_attention_arrive<K>(); /* what was begun where there are no keys */
        const float scale = (float)*p.scale;
        K::put(sums, scale, scale, memory, kiln_attention_rows<S>(p, head, p.out[0], p.l, p.e), row);
    }
};

/* Rows are keys; columns are queries, of which the numbers lie in shared memory beside the tiles. */
template <typename K> struct kiln_attention_back_keys {
    typedef typename K::E E;
    typedef typename K::S S;
    typedef kiln_attention_pairs<K> pairs;
    static constexpr int numbers = 4 * K::columns * (int)sizeof(float); /* lse and along of two tiles */
    static constexpr int bytes = 2 * K::row_tile::bytes + pairs::bytes + numbers + K::align;

    static __device__ __forceinline__ void run(const kiln_attention_problem &p, const kiln_attention_head &head,
                                               int row, char *memory)
    {
        const kiln_attention_rows<S> q(p, head, p.q, p.l, p.e), k(p, head, p.k, p.s, p.e), v(p, head, p.v, p.s, p.ev);
        const kiln_attention_rows<S> gy(p, head, p.gy, p.l, p.ev);
        const kiln_attention_view<int> view(p, head);
        const float *lse = head.of<float>(p, p.lse), *along = (const float *)p.along + head.number * p.l;
        char *values = memory + K::row_tile::bytes;
        const pairs upper = {q, gy, values + K::row_tile::bytes};
        float *beside = (float *)(upper.memory + pairs::bytes);
        const int first = row + K::warp() * 16;
        const int begin = row >= view.keys ? view.queries /* nobody sees these */
                          : p.causal       ? row / K::columns * K::columns /* earlier queries do not */
                                           : 0;
        typename K::sums of_k = {}, of_v = {};
        auto load = [&](int from, int stage) {
            upper.load(from, stage);
            if (threadIdx.x < K::columns) {
                const int query = from + (int)threadIdx.x;
                float *at = beside + stage * 2 * K::columns + threadIdx.x;
                at[0] = query < p.l ? lse[query * p.lse.row] * kiln_half_element::log2_of_e : 0;
                at[K::columns] = query < p.l ? along[query] : 0;
            }
        };
        kiln_attention_load<S, K::rows, K::width, K::threads>(memory, k, row);
        kiln_attention_load<S, K::rows, K::width, K::threads>(values, v, row);
        load(begin, 0);
        const kiln_attention_left<K> left_k = {memory}, left_v = {values};
        int stage = 0;
        for (int from = begin; from < view.queries; from += K::columns, stage ^= 1) {
            kiln_attention_arrive<K>();
            if (from + K::columns < view.queries)
                load(from + K::columns, stage ^ 1);
            const char *queries = upper.at(stage), *gys = queries + K::column_tile::bytes;
            const float *lses = beside + stage * 2 * K::columns + K::across(), *alongs = lses + K::columns;
            const int valid = view.queries - from;
            typename K::scores x, g;
            E::template by_rows<K::columns, K::width>(x, left_k, queries, valid);
            E::template by_rows<K::columns, K::width>(g, left_v, gys, valid);
            E::end(x);
            E::end(g);
            float factor = view.factor;
            if (!view.is_open(from, K::columns, first, 16)) {
                auto each = [&](auto added) {
                    kiln_attention_each<K>(x, first, from, [&](float &score, int key, int query) {
                        score = view.sees(query, key) ? score * view.factor + added(query, key) : -INFINITY;
                    });
                };
                view.with_mask(each);
                factor = 1;
            }
#pragma unroll
            for (int n = 0; n < K::columns / 8; n++) {
                const float2 minus = *(const float2 *)(lses + n * 8);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    x[n][i] = kiln_exp2_of_half(__fmaf_rn(x[n][i], factor, i % 2 ? -minus.y : -minus.x));
            }
            uint32_t weights[K::columns / E::step][4];
            if (p.dropout) {
                typename K::scores kept;
                kiln_attention_each<K>(
                    kept, first, from, [&](float &share, int key, int query) { share = view.kept(query, key); });
#pragma unroll
                for (int n = 0; n < K::columns / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        g[n][i] *= kept[n][i];
                        kept[n][i] *= x[n][i];
                    }
                E::template left_of<K::columns>(weights, kept);
            } else
                E::template left_of<K::columns>(weights, x);
            E::template by_columns<K::columns, K::width>(of_v, weights, gys, valid);
#pragma unroll
            for (int n = 0; n < K::columns / 8; n++) {
                const float2 less = *(const float2 *)(alongs + n * 8);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    x[n][i] *= g[n][i] - (i % 2 ? less.y : less.x);
            }
            uint32_t slopes[K::columns / E::step][4];
            E::template left_of<K::columns>(slopes, x);
            E::template by_columns<K::columns, K::width>(of_k, slopes, queries, valid);
            E::end(of_v);
            E::end(of_k);
        }
        kiln_attention_arrive<K>(); /* what was begun where no query sees these keys */
        const float scale = (float)*p.scale;
        K::put(of_k, scale, scale, memory, kiln_attention_rows<S>(p, head, p.out[1], p.s, p.e), row);
        K::put(of_v, 1, 1, values, kiln_attention_rows<S>(p, head, p.out[2], p.s, p.ev), row);
    }
};

/* ---- Launching ---- */

/* A block a tile of rows; within a head the longest first, where queries see no later keys. */
template <typename K, typename Work, bool BY_KEY>
static __global__ void __launch_bounds__(K::threads, K::blocks)
    kiln_attention_run(const __grid_constant__ kiln_attention_problem p)
{
    extern __shared__ char kiln_attention_memory[];
    if (p.stop && *p.stop)
        return;
    const int64_t tiles = kiln_parts(BY_KEY ? p.s : p.l, K::rows);
    const int64_t number = blockIdx.x / tiles, tile = blockIdx.x - number * tiles;
    const kiln_attention_head head(p, number);
    Work::run(p, head, (int)((BY_KEY ? tile : tiles - 1 - tile) * K::rows), K::aligned(kiln_attention_memory));
}

/* False: there are more blocks than a grid has, or rows than an int counts. */
template <typename K, typename Work, bool BY_KEY>
static bool kiln_attention_launch(const kiln_cuda_call *c, const kiln_attention_problem *p)
{
    const int64_t blocks = p->heads * kiln_parts(BY_KEY ? p->s : p->l, K::rows);
    const int64_t most = INT32_MAX - 1024;
    if (blocks > most || p->l > most || p->s > most)
        return false;
    if (blocks == 0)
        return true;
    auto kernel = kiln_attention_run<K, Work, BY_KEY>;
    if (Work::bytes > 48 * 1024 &&
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Work::bytes) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    kernel<<<(unsigned)blocks, K::threads, Work::bytes, c->stream>>>(*p);
    return true;
}

/* By the kernels for the narrowest width that heads fit in: Kernels<S, WIDTH>::forward,
 * ::queries and ::keys. */
template <template <typename, int> class Kernels, typename S>
static bool kiln_attention_forward_by_width(const kiln_cuda_call *c, const kiln_attention_problem *p)
{
    const int64_t width = p->e > p->ev ? p->e : p->ev;
    auto launch = [&](auto kernels) {
        typedef typename decltype(kernels)::forward K;
        return kiln_attention_launch<K, kiln_attention_forward<K>, false>(c, p);
    };
    return width <= 32    ? launch(Kernels<S, 32>{})
           : width <= 64  ? launch(Kernels<S, 64>{})
           : width <= 128 ? launch(Kernels<S, 128>{})
                          : false;
}

template <template <typename, int> class Kernels, typename S>
static bool kiln_attention_backward_by_width(const kiln_cuda_call *c, const kiln_attention_problem *p)
{
    const int64_t width = p->e > p->ev ? p->e : p->ev;
    auto launch = [&](auto kernels) { /* queries first: they leave `along` for the keys */
        typedef typename decltype(kernels)::queries Q;
        typedef typename decltype(kernels)::keys K;
        return kiln_attention_launch<Q, kiln_attention_back_queries<Q>, false>(c, p) &&
               kiln_attention_launch<K, kiln_attention_back_keys<K>, true>(c, p);
    };
    return width <= 32    ? launch(Kernels<S, 32>{})
           : width <= 64  ? launch(Kernels<S, 64>{})
           : width <= 128 ? launch(Kernels<S, 128>{})
                          : false;
}

#endif
