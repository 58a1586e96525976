/* Attention and its gradient without tensor cores, for all types and widths. Scores never leave the multiprocessor: a
 * block has a tile of rows (queries; for the gradients of keys and values those) and goes over the tiles of columns.
 * Each sum has one block, and each block one order, so that results do not depend on scheduling; the gradient computes
 * scores anew for each of its results. */
#include "device/cuda/attention/plain.cuh"

template <typename S>
static __device__ __forceinline__ matrix<S> head_of(const kiln_attention_problem &p, const kiln_attention_operand &x,
                                                    const kiln_attention_head &head, int64_t count, int64_t width)
{
    return matrix<S>{head.of<const S>(p, x), x.row, x.column, count, width};
}

/* ---- Forward ---- */

/* The softmax of a thread's rows so far: their largest scores, and this thread's parts of Σ exp(score - largest). */
template <typename T> struct online {
    static constexpr int tall = tile<T>::tall, wide = tile<T>::wide;
    T max[tall], sum[tall];

    /* Scores become weights; sums of products with earlier ones are brought to the new largest score. -inf is no score
     * to subtract: rows that have had no other keep weights of 0. */
    template <int NV> __device__ __forceinline__ void take(T (&s)[tall][wide], T (&sums)[tall][NV])
    {
#pragma unroll
        for (int i = 0; i < tall; i++) {
            T top = s[i][0];
#pragma unroll
            for (int j = 1; j < wide; j++)
                top = kiln_larger(top, s[i][j]);
            top = kiln_larger(max[i], kiln_lanes_max<ACROSS>(top));
            T shift = top == -kiln_infinity(T()) ? (T)0 : top, shrink = kiln_exp(max[i] - shift), part = 0;
#pragma unroll
            for (int j = 0; j < wide; j++)
                part += s[i][j] = kiln_exp(s[i][j] - shift);
            sum[i] = sum[i] * shrink + part;
            max[i] = top;
#pragma unroll
            for (int k = 0; k < NV; k++)
                sums[i][k] *= shrink;
        }
    }
};

template <typename S, int NV>
static __global__ void __launch_bounds__(THREADS, NV > 4 ? 3 : 4) forward(const __grid_constant__ kiln_attention_problem p)
{
    typedef typename kiln_element<S>::real T;
    constexpr int tall = tile<T>::tall, wide = tile<T>::wide, side = tile<T>::side, all = columns<T, NV>::all;
    __shared__ room<T> r;
    if (p.stop && *p.stop)
        return;
    int64_t tiles = kiln_parts(p.l, side), strips = p.ev ? kiln_parts(p.ev, all) : 1;
    T scale = (T)*p.scale;
    for (int64_t block = blockIdx.x; block < p.heads * tiles * strips; block += gridDim.x) {
        kiln_attention_head head(p, block / (tiles * strips));
        int64_t strip = block % strips;
        int64_t row = (tiles - 1 - block / strips % tiles) * side; /* with a causal mask the longest first */
        matrix<S> q = head_of<S>(p, p.q, head, p.l, p.e), k = head_of<S>(p, p.k, head, p.s, p.e);
        matrix<S> v = head_of<S>(p, p.v, head, p.s, p.ev);
        kiln_attention_view<int64_t> view(p, head);
        int64_t mine = row + threadIdx.x / ACROSS * tall, seen = view.end(row + side);
        online<T> o;
        T sums[tall][NV], s[tall][wide];
#pragma unroll
        for (int i = 0; i < tall; i++) {
            o.max[i] = -kiln_infinity(T());
            o.sum[i] = 0;
#pragma unroll
            for (int c = 0; c < NV; c++)
                sums[i][c] = 0;
        }
        for (int64_t from = 0; from < seen; from += side) {
            scores(s, q, row, k, from, r.stage);
            int64_t key = from + threadIdx.x % ACROSS * wide;
#pragma unroll
            for (int i = 0; i < tall; i++)
#pragma unroll
                for (int j = 0; j < wide; j++) {
                    s[i][j] = view.sees(mine + i, key + j) ? s[i][j] * scale : -kiln_infinity(T());
                    if (view.mask && view.sees(mine + i, key + j))
                        s[i][j] += (T)view.added(mine + i, key + j);
                }
            o.take(s, sums);
#pragma unroll
            for (int i = 0; i < tall; i++)
#pragma unroll
                for (int j = 0; j < wide; j++)
                    if (p.dropout)
                        s[i][j] *= view.kept(mine + i, key + j);
            __syncthreads();
            put_weights(s, r.weights);
            accumulate<T, NV>(sums, r.weights, v, from, strip * all, r.stage);
        }
        T share[tall];
#pragma unroll
        for (int i = 0; i < tall; i++) {
            T sum = kiln_lanes_sum<ACROSS>(o.sum[i]);
            bool blind = p.hides && o.max[i] == -kiln_infinity(T()) && sum == 0; /* has seen nothing */
            sum = !blind && o.max[i] == -kiln_infinity(T()) ? (T)NAN : sum;
            share[i] = blind ? 0 : 1 / sum;
            if (threadIdx.x % ACROSS == 0 && strip == 0 && mine + i < p.l)
                ((T *)p.lses)[head.number * p.l + mine + i] =
                    blind ? kiln_infinity(T()) : o.max[i] + kiln_log(sum);
        }
        put<T, NV>(head.of<S>(p, p.out[0]), p.out[0].row, sums, share, row, p.l, strip * all, p.ev);
    }
}

/* ---- Backward ---- */

/* A warp a query. */
template <typename S> static __global__ void sum_along(const __grid_constant__ kiln_attention_problem p)
{
    typedef typename kiln_element<S>::real T;
    for (int64_t row = kiln_team<false>::first_row(); row < p.heads * p.l;
         row += (int64_t)gridDim.x * (blockDim.x / 32)) {
        kiln_attention_head head(p, row / p.l);
        int64_t query = row % p.l;
        const S *y = head.of<const S>(p, p.y) + query * p.y.row, *gy = head.of<const S>(p, p.gy) + query * p.gy.row;
        T sum = 0;
        for (int64_t i = threadIdx.x % 32; i < p.ev; i += 32)
            sum += kiln_element<S>::of(y[i * p.y.column]) * kiln_element<S>::of(gy[i * p.gy.column]);
        sum = kiln_lanes_sum<32>(sum);
        if (p.glse.at)
            sum -= head.of<const T>(p, p.glse)[query * p.glse.row];
        if (threadIdx.x % 32 == 0)
            ((T *)p.along)[row] = sum;
    }
}

/* With P = exp(scale·q·kᵀ - lse) and D = scale·P·(gy·vᵀ - along): gq = D·k, gk = Dᵀ·q, gv = Pᵀ·gy. */
enum { GQ, GK, GV };

/* The blocks of one head: tiles of rows times strips of columns, for each of the three. */
template <typename S, int NV> struct work {
    typedef typename kiln_element<S>::real T;
    int64_t row, first; /* of the result */
    int which;

    static __host__ __device__ __forceinline__ int64_t blocks(const kiln_attention_problem &p, int which)
    {
        return kiln_parts(which == GQ ? p.l : p.s, tile<T>::side) * kiln_parts(which == GV ? p.ev : p.e, columns<T, NV>::all);
    }

    static __host__ __device__ __forceinline__ int64_t all_blocks(const kiln_attention_problem &p)
    {
        return blocks(p, GQ) + blocks(p, GK) + blocks(p, GV);
    }

    __device__ __forceinline__ work(const kiln_attention_problem &p, int64_t block)
    {
        for (which = GQ; block >= blocks(p, which); which++)
            block -= blocks(p, which);
        int64_t strips = kiln_parts(which == GV ? p.ev : p.e, columns<T, NV>::all), at = block / strips;
        at = which == GQ ? kiln_parts(p.l, tile<T>::side) - 1 - at : at; /* with a causal mask the longest first */
        row = at * tile<T>::side;
        first = block % strips * columns<T, NV>::all;
    }
};

/* Scores (rows a, columns b) become weights of P, or of D with g = gy·vᵀ beside them. Rows are queries, or keys. */
template <bool BY_QUERY, bool D, typename T>
static __device__ __forceinline__ void weigh(T (&s)[tile<T>::tall][tile<T>::wide],
                                             const T (&g)[tile<T>::tall][tile<T>::wide],
                                             const kiln_attention_view<int64_t> &view, const T *lses, const T *alongs,
                                             int64_t row, int64_t from, T scale)
{
    constexpr int tall = tile<T>::tall, wide = tile<T>::wide;
    int down = (int)threadIdx.x / ACROSS * tall, across = (int)threadIdx.x % ACROSS * wide;
#pragma unroll
    for (int i = 0; i < tall; i++)
#pragma unroll
        for (int j = 0; j < wide; j++) {
            int at = BY_QUERY ? down + i : across + j;
            int64_t query = BY_QUERY ? row + down + i : from + across + j;
            int64_t key = BY_QUERY ? from + across + j : row + down + i;
            bool seen = view.sees(query, key);
            T score = s[i][j] * scale, kept = 1;
            if (view.mask && seen)
                score += (T)view.added(query, key);
            if (view.p.dropout && seen)
                kept = (T)view.kept(query, key);
            T weight = seen ? kiln_exp(score - lses[at]) : (T)0;
            s[i][j] = !seen ? (T)0 : D ? weight * (g[i][j] * kept - alongs[at]) * scale : weight * kept;
        }
}

/* One block's tile of one of the three results. */
template <typename S, int NV, int WHICH, typename T>
static __device__ __forceinline__ void back(const kiln_attention_problem &p, const kiln_attention_head &head,
                                            int64_t row, int64_t first, room<T> &r, T *lses, T *alongs)
{
    constexpr int tall = tile<T>::tall, wide = tile<T>::wide, side = tile<T>::side;
    constexpr bool by_query = WHICH == GQ; /* rows are queries and columns keys; else the other way round */
    matrix<S> q = head_of<S>(p, p.q, head, p.l, p.e), k = head_of<S>(p, p.k, head, p.s, p.e);
    matrix<S> v = head_of<S>(p, p.v, head, p.s, p.ev), gy = head_of<S>(p, p.gy, head, p.l, p.ev);
    const T *lse = head.of<const T>(p, p.lse), *along = (const T *)p.along + head.number * p.l;
    kiln_attention_view<int64_t> view(p, head);
    int64_t end = by_query ? view.end(row + side) : row < view.keys ? p.l : 0;
    T sums[tall][NV], ones[tall], scale = (T)*p.scale;
#pragma unroll
    for (int i = 0; i < tall; i++) {
        ones[i] = 1;
#pragma unroll
        for (int c = 0; c < NV; c++)
            sums[i][c] = 0;
    }
    for (int64_t from = by_query || !p.causal ? 0 : row; from < end; from += side) {
        int64_t query = (by_query ? row : from) + threadIdx.x;
        if (threadIdx.x < side && query < p.l) { /* those of other threads lie beyond what is seen */
            lses[threadIdx.x] = lse[query * p.lse.row];
            alongs[threadIdx.x] = along[query];
        }
        T s[tall][wide], g[tall][wide];
        scores(s, by_query ? q : k, row, by_query ? k : q, from, r.stage);
        if (WHICH != GV)
            scores(g, by_query ? gy : v, row, by_query ? v : gy, from, r.stage);
        __syncthreads();
        weigh<by_query, WHICH != GV>(s, g, view, lses, alongs, row, from, scale);
        put_weights(s, r.weights);
        accumulate<T, NV>(sums, r.weights, WHICH == GQ ? k : WHICH == GK ? q : gy, from, first, r.stage);
    }
    int64_t rows = by_query ? p.l : p.s, width = WHICH == GV ? p.ev : p.e;
    put<T, NV>(head.of<S>(p, p.out[WHICH]), p.out[WHICH].row, sums, ones, row, rows, first, width);
}

template <typename S, int NV>
static __global__ void __launch_bounds__(THREADS, NV > 4 ? 2 : 3) backward(const __grid_constant__ kiln_attention_problem p)
{
    typedef typename kiln_element<S>::real T;
    __shared__ room<T> r;
    __shared__ T lses[tile<T>::side], alongs[tile<T>::side]; /* of the tile's queries */
    if (p.stop && *p.stop)
        return;
    int64_t a_head = work<S, NV>::all_blocks(p);
    for (int64_t block = blockIdx.x; block < p.heads * a_head; block += gridDim.x) {
        work<S, NV> w(p, block % a_head);
        kiln_attention_head head(p, block / a_head);
        if (w.which == GQ)
            back<S, NV, GQ>(p, head, w.row, w.first, r, lses, alongs);
        else if (w.which == GK)
            back<S, NV, GK>(p, head, w.row, w.first, r, lses, alongs);
        else
            back<S, NV, GV>(p, head, w.row, w.first, r, lses, alongs);
        __syncthreads();
    }
}

/* ---- Launching ---- */

template <typename S, int NV> static void launch_forward(const kiln_cuda_call *c, const kiln_attention_problem &p)
{
    typedef typename kiln_element<S>::real T;
    int64_t strips = p.ev ? kiln_parts(p.ev, columns<T, NV>::all) : 1;
    unsigned grid = kiln_grid(p.heads * kiln_parts(p.l, tile<T>::side) * strips);
    forward<S, NV><<<grid, THREADS, 0, c->stream>>>(p);
}

/* In f32, or in 16 bits. */
template <typename S> static void launch_forward(const kiln_cuda_call *c, const kiln_attention_problem &p)
{
    if (p.ev <= 2 * ACROSS)
        launch_forward<S, 2>(c, p);
    else if (p.ev <= 4 * ACROSS)
        launch_forward<S, 4>(c, p);
    else
        launch_forward<S, 8>(c, p);
}

void kiln_attention_plain_forward(const kiln_cuda_call *c, const kiln_attention_problem *p)
{
    switch (c->in[0].dtype) {
    case KILN_F64: launch_forward<double, 4>(c, *p); break;
    case KILN_F16: launch_forward<kiln_f16>(c, *p); break;
    case KILN_BF16: launch_forward<kiln_bf16>(c, *p); break;
    default: launch_forward<float>(c, *p);
    }
}

template <typename S, int NV> static void launch_backward(const kiln_cuda_call *c, const kiln_attention_problem &p)
{
    int64_t blocks = p.heads * work<S, NV>::all_blocks(p);
    if (p.heads > 0 && p.l > 0)
        sum_along<S><<<kiln_grid(kiln_parts(p.heads * p.l, 4)), 128, 0, c->stream>>>(p);
    if (blocks)
        backward<S, NV><<<kiln_grid(blocks), THREADS, 0, c->stream>>>(p);
}

template <typename S> static void launch_backward(const kiln_cuda_call *c, const kiln_attention_problem &p)
{
    if ((p.e > p.ev ? p.e : p.ev) <= 4 * ACROSS)
        launch_backward<S, 4>(c, p);
    else
        launch_backward<S, 8>(c, p);
}

void kiln_attention_plain_backward(const kiln_cuda_call *c, const kiln_attention_problem *p)
{
    switch (c->in[0].dtype) {
    case KILN_F64: launch_backward<double, 4>(c, *p); break;
    case KILN_F16: launch_backward<kiln_f16>(c, *p); break;
    case KILN_BF16: launch_backward<kiln_bf16>(c, *p); break;
    default: launch_backward<float>(c, *p);
    }
}
