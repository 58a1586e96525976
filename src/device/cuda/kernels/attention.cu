/* Attention and its gradient. Scores never leave the multiprocessor: a block has a tile of rows (queries; for the
 * gradients of keys and values those) and goes over the tiles of columns. Each sum has one block, and each block one
 * order, so that results do not depend on scheduling; the gradient computes scores anew for each of its results. */
#include "device/cuda/kernels/attention.cuh"

template <typename S> struct attention {
    typedef typename kiln_element<S>::real real;
    operand q, k, v, y, gy, lse, glse; /* the last two have no columns, and are real */
    int64_t heads, l, s, e, ev;
    int nbatch;
    int64_t batch[BATCH_DIMS]; /* sizes */
    const double *scale;
    bool causal;
    S *out[3];
    real *lses;  /* forward's second result */
    real *along; /* Σ gy·y - glse of each query */
    const int32_t *stop;
};

template <typename S> static __device__ int64_t offset_of(const attention<S> &p, const operand &x, int64_t head)
{
    int64_t offset = 0;
    for (int d = p.nbatch - 1; d >= 0; d--) {
        offset += head % p.batch[d] * x.batch[d];
        head /= p.batch[d];
    }
    return offset;
}

template <typename S>
static __device__ __forceinline__ matrix<S> head_of(const attention<S> &p, const operand &x, int64_t head,
                                                    int64_t count, int64_t width)
{
    return matrix<S>{(const S *)x.at + offset_of(p, x, head), x.row, x.column, count, width};
}

static __host__ __device__ __forceinline__ int64_t parts(int64_t n, int64_t part)
{
    return (n + part - 1) / part;
}

static __host__ __device__ __forceinline__ int64_t lesser(int64_t a, int64_t b)
{
    return a < b ? a : b;
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
static __global__ void __launch_bounds__(THREADS, NV > 4 ? 3 : 4) forward(const __grid_constant__ attention<S> p)
{
    typedef typename kiln_element<S>::real T;
    constexpr int tall = tile<T>::tall, wide = tile<T>::wide, side = tile<T>::side, all = columns<T, NV>::all;
    __shared__ room<T> r;
    if (p.stop && *p.stop)
        return;
    int64_t tiles = parts(p.l, side), strips = p.ev ? parts(p.ev, all) : 1;
    T scale = (T)*p.scale;
    for (int64_t block = blockIdx.x; block < p.heads * tiles * strips; block += gridDim.x) {
        int64_t head = block / (tiles * strips), strip = block % strips;
        int64_t row = (tiles - 1 - block / strips % tiles) * side; /* with a causal mask the longest first */
        matrix<S> q = head_of(p, p.q, head, p.l, p.e), k = head_of(p, p.k, head, p.s, p.e);
        matrix<S> v = head_of(p, p.v, head, p.s, p.ev);
        int64_t mine = row + threadIdx.x / ACROSS * tall, seen = p.causal ? lesser(p.s, lesser(p.l, row + side)) : p.s;
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
                for (int j = 0; j < wide; j++)
                    s[i][j] =
                        key + j < p.s && (!p.causal || key + j <= mine + i) ? s[i][j] * scale : -kiln_infinity(T());
            o.take(s, sums);
            __syncthreads();
            put_weights(s, r.weights);
            accumulate<T, NV>(sums, r.weights, v, from, strip * all, r.stage);
        }
        T share[tall];
#pragma unroll
        for (int i = 0; i < tall; i++) {
            T sum = kiln_lanes_sum<ACROSS>(o.sum[i]);
            sum = o.max[i] == -kiln_infinity(T()) ? (T)NAN : sum;
            share[i] = 1 / sum;
            if (threadIdx.x % ACROSS == 0 && strip == 0 && mine + i < p.l)
                p.lses[head * p.l + mine + i] = o.max[i] + kiln_log(sum);
        }
        put<T, NV>(p.out[0] + head * p.l * p.ev, sums, share, row, p.l, strip * all, p.ev);
    }
}

/* ---- Backward ---- */

/* A warp a query. */
template <typename S> static __global__ void sum_along(const __grid_constant__ attention<S> p)
{
    typedef typename kiln_element<S>::real T;
    for (int64_t row = kiln_team<false>::first_row(); row < p.heads * p.l;
         row += (int64_t)gridDim.x * (blockDim.x / 32)) {
        int64_t head = row / p.l, query = row % p.l;
        const S *y = (const S *)p.y.at + offset_of(p, p.y, head) + query * p.y.row;
        const S *gy = (const S *)p.gy.at + offset_of(p, p.gy, head) + query * p.gy.row;
        T sum = 0;
        for (int64_t i = threadIdx.x % 32; i < p.ev; i += 32)
            sum += kiln_element<S>::of(y[i * p.y.column]) * kiln_element<S>::of(gy[i * p.gy.column]);
        sum = kiln_lanes_sum<32>(sum);
        if (p.glse.at)
            sum -= ((const T *)p.glse.at)[offset_of(p, p.glse, head) + query * p.glse.row];
        if (threadIdx.x % 32 == 0)
            p.along[row] = sum;
    }
}

/* With P = exp(scale·q·kᵀ - lse) and D = scale·P·(gy·vᵀ - along): gq = D·k, gk = Dᵀ·q, gv = Pᵀ·gy. */
enum { GQ, GK, GV };

/* The blocks of one head: tiles of rows times strips of columns, for each of the three. */
template <typename S, int NV> struct work {
    typedef typename kiln_element<S>::real T;
    int64_t row, first; /* of the result */
    int which;

    static __host__ __device__ __forceinline__ int64_t blocks(const attention<S> &p, int which)
    {
        return parts(which == GQ ? p.l : p.s, tile<T>::side) * parts(which == GV ? p.ev : p.e, columns<T, NV>::all);
    }

    static __host__ __device__ __forceinline__ int64_t all_blocks(const attention<S> &p)
    {
        return blocks(p, GQ) + blocks(p, GK) + blocks(p, GV);
    }

    __device__ __forceinline__ work(const attention<S> &p, int64_t block)
    {
        for (which = GQ; block >= blocks(p, which); which++)
            block -= blocks(p, which);
        int64_t strips = parts(which == GV ? p.ev : p.e, columns<T, NV>::all), at = block / strips;
        at = which == GQ ? parts(p.l, tile<T>::side) - 1 - at : at; /* with a causal mask the longest first */
        row = at * tile<T>::side;
        first = block % strips * columns<T, NV>::all;
    }
};

/* Scores (rows a, columns b) become weights of P, or of D with g = gy·vᵀ beside them. Rows are queries, or keys. */
template <bool BY_QUERY, bool D, typename T, typename S>
static __device__ __forceinline__ void weigh(T (&s)[tile<T>::tall][tile<T>::wide],
                                             const T (&g)[tile<T>::tall][tile<T>::wide], const attention<S> &p,
                                             const T *lses, const T *alongs, int64_t row, int64_t from, T scale)
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
            bool seen = query < p.l && key < p.s && (!p.causal || key <= query);
            T weight = kiln_exp(s[i][j] * scale - lses[at]);
            s[i][j] = !seen ? (T)0 : D ? weight * (g[i][j] - alongs[at]) * scale : weight;
        }
}

/* One block's tile of one of the three results. */
template <typename T, int NV, int WHICH, typename S>
static __device__ __forceinline__ void back(const attention<S> &p, int64_t head, int64_t row, int64_t first, room<T> &r,
                                            T *lses, T *alongs)
{
    constexpr int tall = tile<T>::tall, wide = tile<T>::wide, side = tile<T>::side;
    constexpr bool by_query = WHICH == GQ; /* rows are queries and columns keys; else the other way round */
    matrix<S> q = head_of(p, p.q, head, p.l, p.e), k = head_of(p, p.k, head, p.s, p.e);
    matrix<S> v = head_of(p, p.v, head, p.s, p.ev), gy = head_of(p, p.gy, head, p.l, p.ev);
    const T *lse = (const T *)p.lse.at + offset_of(p, p.lse, head), *along = p.along + head * p.l;
    int64_t end = !by_query ? p.l : p.causal ? lesser(p.s, row + side) : p.s;
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
        weigh<by_query, WHICH != GV>(s, g, p, lses, alongs, row, from, scale);
        put_weights(s, r.weights);
        accumulate<T, NV>(sums, r.weights, WHICH == GQ ? k : WHICH == GK ? q : gy, from, first, r.stage);
    }
    int64_t rows = by_query ? p.l : p.s, width = WHICH == GV ? p.ev : p.e;
    put<T, NV>(p.out[WHICH] + head * rows * width, sums, ones, row, rows, first, width);
}

template <typename S, int NV>
static __global__ void __launch_bounds__(THREADS, NV > 4 ? 2 : 3) backward(const __grid_constant__ attention<S> p)
{
    typedef typename kiln_element<S>::real T;
    __shared__ room<T> r;
    __shared__ T lses[tile<T>::side], alongs[tile<T>::side]; /* of the tile's queries */
    if (p.stop && *p.stop)
        return;
    int64_t a_head = work<S, NV>::all_blocks(p);
    for (int64_t block = blockIdx.x; block < p.heads * a_head; block += gridDim.x) {
        work<S, NV> w(p, block % a_head);
        if (w.which == GQ)
            back<T, NV, GQ>(p, block / a_head, w.row, w.first, r, lses, alongs);
        else if (w.which == GK)
            back<T, NV, GK>(p, block / a_head, w.row, w.first, r, lses, alongs);
        else
            back<T, NV, GV>(p, block / a_head, w.row, w.first, r, lses, alongs);
        __syncthreads();
    }
}

/* ---- Launching ---- */

/* Puts operands' batch dims together where one goes on where the next ends, in all of them alike: usually two remain,
 * and finding a head takes a division each. */
template <typename S>
static void set_operands(attention<S> *p, const kiln_cuda_call *c, operand *const *to, const int *dims, int n)
{
    int batch = c->in[0].ndim - 2;
    p->nbatch = 0;
    for (int i = 0; i < n; i++) {
        const kiln_cuda_operand *x = &c->in[i];
        if (i >= c->nin || !x->data)
            continue;
        to[i]->at = x->data;
        to[i]->row = x->stride[batch];
        to[i]->column = dims[i] == 2 ? x->stride[batch + 1] : 0;
    }
    for (int d = 0; d < batch; d++) {
        int64_t size = c->in[0].shape[d];
        if (size == 1)
            continue;
        bool joins = p->nbatch > 0;
        for (int i = 0; i < n; i++)
            if (to[i]->at)
                joins = joins && to[i]->batch[p->nbatch - 1] == c->in[i].stride[d] * size;
        p->nbatch += !joins;
        p->batch[p->nbatch - 1] = joins ? p->batch[p->nbatch - 1] * size : size;
        for (int i = 0; i < n; i++)
            if (to[i]->at)
                to[i]->batch[p->nbatch - 1] = c->in[i].stride[d];
    }
}

template <typename S> static attention<S> measure(const kiln_cuda_call *c)
{
    const kiln_cuda_operand *q = &c->in[0], *v = &c->in[2];
    int n = q->ndim;
    attention<S> p = {};
    p.heads = 1;
    for (int d = 0; d < n - 2; d++)
        p.heads *= q->shape[d];
    p.l = q->shape[n - 2];
    p.e = q->shape[n - 1];
    p.s = v->shape[n - 2];
    p.ev = v->shape[n - 1];
    p.causal = c->ints[0] != 0;
    p.scale = c->floats;
    p.stop = c->stop;
    for (int j = 0; j < c->nout; j++)
        p.out[j] = (S *)c->out[j].data;
    p.lses = (typename kiln_element<S>::real *)c->out[1].data;
    return p;
}

template <typename S, int NV> static void launch_forward(const kiln_cuda_call *c, const attention<S> &p)
{
    typedef typename kiln_element<S>::real T;
    int64_t strips = p.ev ? parts(p.ev, columns<T, NV>::all) : 1;
    unsigned grid = kiln_grid(p.heads * parts(p.l, tile<T>::side) * strips);
    forward<S, NV><<<grid, THREADS, 0, c->stream>>>(p);
}

template <typename S> static attention<S> forward_call(const kiln_cuda_call *c)
{
    attention<S> p = measure<S>(c);
    operand *const to[] = {&p.q, &p.k, &p.v};
    const int dims[] = {2, 2, 2};
    set_operands(&p, c, to, dims, 3);
    return p;
}

/* In f32, or in 16 bits. */
template <typename S> static void launch_forward(const kiln_cuda_call *c)
{
    attention<S> p = forward_call<S>(c);
    if (p.ev <= 2 * ACROSS)
        launch_forward<S, 2>(c, p);
    else if (p.ev <= 4 * ACROSS)
        launch_forward<S, 4>(c, p);
    else
        launch_forward<S, 8>(c, p);
}

static bool run_attention(const kiln_cuda_call *c)
{
    if (kiln_cuda_count_of(&c->out[1]) == 0)
        return true;
    switch (c->in[0].dtype) {
    case KILN_F64: launch_forward<double, 4>(c, forward_call<double>(c)); break;
    case KILN_F16: launch_forward<kiln_f16>(c); break;
    case KILN_BF16: launch_forward<kiln_bf16>(c); break;
    default: launch_forward<float>(c);
    }
    return kiln_cuda_launched(c);
}

template <typename S, int NV> static void launch_backward(const kiln_cuda_call *c, const attention<S> &p)
{
    int64_t blocks = p.heads * work<S, NV>::all_blocks(p);
    if (p.heads > 0 && p.l > 0)
        sum_along<S><<<kiln_grid(parts(p.heads * p.l, 4)), 128, 0, c->stream>>>(p);
    if (blocks)
        backward<S, NV><<<kiln_grid(blocks), THREADS, 0, c->stream>>>(p);
}

template <typename S> static attention<S> backward_call(const kiln_cuda_call *c)
{
    attention<S> p = measure<S>(c);
    operand *const to[] = {&p.q, &p.k, &p.v, &p.y, &p.lse, &p.gy, &p.glse};
    const int dims[] = {2, 2, 2, 2, 1, 2, 1};
    set_operands(&p, c, to, dims, 7);
    p.along = (typename kiln_element<S>::real *)c->workspace;
    return p;
}

template <typename S> static void launch_backward(const kiln_cuda_call *c)
{
    attention<S> p = backward_call<S>(c);
    int64_t width = p.e > p.ev ? p.e : p.ev;
    if (width <= 4 * ACROSS)
        launch_backward<S, 4>(c, p);
    else
        launch_backward<S, 8>(c, p);
}

static bool run_attention_grad(const kiln_cuda_call *c)
{
    switch (c->in[0].dtype) {
    case KILN_F64: launch_backward<double, 4>(c, backward_call<double>(c)); break;
    case KILN_F16: launch_backward<kiln_f16>(c); break;
    case KILN_BF16: launch_backward<kiln_bf16>(c); break;
    default: launch_backward<float>(c);
    }
    return kiln_cuda_launched(c);
}

/* `along`: one element a query, as many as operand 4 has. */
static size_t grad_workspace(const kiln_cuda_call *c)
{
    return (size_t)kiln_cuda_count_of(&c->in[4]) * (c->in[0].dtype == KILN_F64 ? 8 : 4);
}

extern "C" const kiln_cuda_kernel kiln_cuda_kernels_attention[] = {
    {"attention", KILN_CUDA_FLOATS, run_attention, NULL},
    {"attention_grad", KILN_CUDA_FLOATS, run_attention_grad, grad_workspace},
    {NULL, 0, NULL, NULL},
};
