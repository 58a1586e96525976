/* argmax and argmin: the place of the greatest (least) element along a dim, the first of equal ones; a NaN beats all
 * numbers. Which of two wins does not depend on the order of comparing, so rows are cut up as it suits. */
#include "device/cuda/kernels/sort.cuh"

typedef struct best { /* the greater key wins */
    uint64_t key;
    int64_t place;
} best;

/* A block is `columns` × `lanes` × (the rest) threads: neighbouring columns, elements along the dim, numbers of the
 * dims before. The dim is cut into `parts`. */
typedef struct finding {
    kiln_cuda_extent x;
    int columns, lanes, parts;
    int64_t part, pieces, groups; /* elements of a part; blocks of columns; of the dims before */
} finding;

static finding plan_find(const kiln_cuda_call *c)
{
    finding f = {};
    f.x = kiln_cuda_extent_at(&c->in[0], c->ints[0]);
    f.columns = kiln_cuda_power(f.x.after, 32);
    f.lanes = kiln_cuda_power(f.x.at, KILN_CUDA_BLOCK / f.columns);
    f.pieces = kiln_cuda_ceil(f.x.after, f.columns);
    f.groups = kiln_cuda_ceil(f.x.before, KILN_CUDA_BLOCK / (f.columns * f.lanes));
    int64_t blocks = f.pieces * f.groups, most = f.x.at / (16 * (int64_t)f.lanes), wanted = blocks ? 512 / blocks : 1;
    f.parts = (int)(wanted < most ? wanted : most);
    f.parts = f.parts > 1 ? f.parts : 1;
    f.part = kiln_cuda_ceil(f.x.at, f.parts);
    return f;
}

static inline __device__ bool wins(best a, best b)
{
    return a.key > b.key || (a.key == b.key && a.place < b.place);
}

/* The best of each part goes to `partial` [before][parts][after], or, with one part, to the result. */
template <typename Key>
static __global__ void find_best(const typename Key::element *__restrict__ x, best *__restrict__ partial,
                                 int64_t *__restrict__ y, finding f, bool least, const int32_t *stop)
{
    __shared__ best found[KILN_CUDA_BLOCK];
    if (stop && *stop)
        return;
    const int t = (int)threadIdx.x, group = f.columns * f.lanes, lane = t % group / f.columns;
    const typename Key::key most = (typename Key::key) ~(typename Key::key)0;
    for (int64_t item = blockIdx.x; item < f.groups * f.parts * f.pieces; item += gridDim.x) {
        int64_t piece = item % f.pieces, part = item / f.pieces % f.parts;
        int64_t o = item / f.pieces / f.parts * (KILN_CUDA_BLOCK / group) + t / group;
        int64_t column = piece * f.columns + t % f.columns;
        int64_t end = (part + 1) * f.part < f.x.at ? (part + 1) * f.part : f.x.at;
        bool inside = o < f.x.before && column < f.x.after;
        best b = {0, INT64_MAX};
        for (int64_t i = part * f.part + lane; inside && i < end; i += f.lanes) {
            typename Key::element v = x[(o * f.x.at + i) * f.x.after + column];
            typename Key::key key = Key::of(v);
            best other = {least && v == v ? (typename Key::key) ~key : v == v ? key : most, i};
            if (wins(other, b))
                b = other;
        }
        found[t] = b;
        __syncthreads();
        for (int half = f.lanes / 2; half > 0; half /= 2) {
            if (lane < half && wins(found[t + half * f.columns], found[t]))
                found[t] = found[t + half * f.columns];
            __syncthreads();
        }
        if (lane == 0 && inside) {
            if (f.parts > 1)
                partial[(o * f.parts + part) * f.x.after + column] = found[t];
            else
                y[o * f.x.after + column] = found[t].place;
        }
        __syncthreads();
    }
}

static __global__ void join_parts(const best *__restrict__ partial, int64_t *__restrict__ y, finding f,
                                  const int32_t *stop)
{
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(p, f.x.before * f.x.after)
    {
        int64_t o = p / f.x.after, column = p - o * f.x.after;
        best b = partial[o * f.parts * f.x.after + column];
        for (int part = 1; part < f.parts; part++) {
            best other = partial[(o * f.parts + part) * f.x.after + column];
            if (wins(other, b))
                b = other;
        }
        y[p] = b.place;
    }
}

template <typename Key> static void launch(const kiln_cuda_call *c, const finding &f, bool least)
{
    find_best<Key><<<kiln_cuda_grid(f.groups * f.parts * f.pieces, 1), KILN_CUDA_BLOCK, 0, c->stream>>>(
        (const typename Key::element *)c->in[0].data, (best *)c->workspace, (int64_t *)c->out[0].data, f, least,
        c->stop);
}

static bool find(const kiln_cuda_call *c, bool least)
{
    finding f = plan_find(c);
    if (f.x.before * f.x.at * f.x.after == 0)
        return true;
    switch (c->in[0].dtype) {
    case KILN_I32: launch<kiln_cuda_key_i32>(c, f, least); break;
    case KILN_I64: launch<kiln_cuda_key_i64>(c, f, least); break;
    case KILN_F32: launch<kiln_cuda_key_f32>(c, f, least); break;
    case KILN_F64: launch<kiln_cuda_key_f64>(c, f, least); break;
    default: launch<kiln_cuda_key_u8>(c, f, least); break;
    }
    if (f.parts > 1)
        join_parts<<<kiln_cuda_grid(f.x.before * f.x.after, 64), 64, 0, c->stream>>>(
            (const best *)c->workspace, (int64_t *)c->out[0].data, f, c->stop);
    return kiln_cuda_launched(c);
}

bool kiln_cuda_argmax(const kiln_cuda_call *c)
{
    return find(c, false);
}

bool kiln_cuda_argmin(const kiln_cuda_call *c)
{
    return find(c, true);
}

size_t kiln_cuda_extreme_workspace(const kiln_cuda_call *c)
{
    finding f = plan_find(c);
    return f.parts > 1 ? (size_t)(f.x.before * f.parts * f.x.after) * sizeof(best) : 0;
}
