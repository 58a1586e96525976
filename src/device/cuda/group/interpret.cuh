/* The machine that interprets a group's program (group.h): takes a few elements through all its operations. All rows of
 * pointwise.def are in here, once for narrow and once for wide groups. Included by group.cu alone. */
#ifndef KILN_CUDA_INTERPRET_CUH
#define KILN_CUDA_INTERPRET_CUH

#include "device/cuda/group/group.h"
#include "device/cuda/group/words.cuh"

/* ---- Rows and classes; ops/pointwise.h is for C alone ---- */

#define KILN_PW(name, ...)      ROW_##name,
#define KILN_PW_RING(name, ...) ROW_##name,
#define KILN_PW_TEST(name, ...) ROW_##name,
#define KILN_PW_PICK(name, ...) ROW_##name,
#define KILN_PW_MAKE(name, ...) ROW_##name,
#define KILN_PW_CAST(name)      ROW_##name,
#define KILN_PW_COPY(name, ...) ROW_##name,
enum rows {
#include "ops/pointwise.def"
    ROWS
};
#undef KILN_PW
#undef KILN_PW_RING
#undef KILN_PW_TEST
#undef KILN_PW_PICK
#undef KILN_PW_MAKE
#undef KILN_PW_CAST
#undef KILN_PW_COPY
static_assert(ROWS <= 256, "a row's number must fit its operation");

/* ---- The machine ---- */

template <bool wide> struct machine { /* everything it points at is in shared memory */
    enum { N = cell<wide>::N, AHEAD = 1 };
    const kiln_cuda_op *ops;
    const kiln_cuda_load *loads;
    const kiln_cuda_store *stores;
    const kiln_cuda_dim *dims;
    const uint64_t *scalars; /* two an operation, as its row wants them */
    cell<wide> *cells;       /* this thread's of register 0 */
    int nops, stride;        /* stride: from register to register */
    int below_2_31;
    uint64_t *scratch; /* of a reducing block: four words a thread */
    int result;        /* register that a reduction folds */

    __device__ __forceinline__ void elements(int64_t i, int n, uint64_t *x) const;
};

KILN_PW_INLINE int64_t place(const kiln_cuda_load &l, const kiln_cuda_dim *dims, int64_t i, int below_2_31)
{
    int64_t at = 0;
    const kiln_cuda_dim *d = dims + l.dims;
    if (below_2_31) {
        uint32_t rest = (uint32_t)i;
        for (int k = 0; k < l.ndim - 1; k++, d++) {
            uint32_t over = (__umulhi(rest, d->magic) + rest) >> d->shift;
            at += (int64_t)(rest - over * (uint32_t)d->size) * d->stride;
            rest = over;
        }
        return at + (int64_t)rest * d->stride;
    }
    for (int k = 0; k < l.ndim - 1; k++, d++) {
        int64_t over = i / d->size;
        at += (i - over * d->size) * d->stride;
        i = over;
    }
    return at + i * d->stride;
}

template <bool wide> KILN_PW_INLINE cell<wide> load(const machine<wide> &m, const kiln_cuda_load &l, int64_t i, int n)
{
    if (l.kind == KILN_CUDA_SPLAT)
        return load_splat<wide>(l.dtype, l.data);
    if (l.kind == KILN_CUDA_LINE)
        return load_line<wide>(l.dtype, l.data, l.ndim ? place(l, m.dims, i, m.below_2_31) : i * l.step, l.step,
                               l.vector, n);
    cell<wide> c = {};
    for (int v = 0; v < cell<wide>::N; v++)
        if (v < n)
            c.w[v] = widen<typename cell<wide>::word>(l.dtype, l.data, place(l, m.dims, i + v, m.below_2_31));
    return c;
}

#define KEEP(...) __VA_ARGS__
#define DROP(...)
#define OPERANDS_0(type)
#define OPERANDS_1(type) const type a = (type)as<T>(x[0].w[v]);
#define OPERANDS_2(type) OPERANDS_1(type) const type b = (type)as<T>(x[1].w[v]);
#define OPERANDS_3(type) OPERANDS_2(type) const type c = (type)as<T>(x[2].w[v]);
#define SCALARS_0(type)
#define SCALARS_1(type) const type s = (type)as<T>(scalars[0]);
#define SCALARS_2(type) SCALARS_1(type) const type t = (type)as<T>(scalars[1]);
#define CASE(name, D, scalars_, operands, ...)                                                                         \
    case ROW_##name: {                                                                                                 \
        scalars_ _Pragma("unroll") for (int v = 0; v < cell<wide>::N; v++)                                             \
        {                                                                                                              \
            operands d.w[v] = bits((D)(__VA_ARGS__));                                                                  \
        }                                                                                                              \
        return;                                                                                                        \
    }
#define KILN_PW(name, arity, nscalars, classes, ...)                                                                   \
    IF_##classes(CASE(name, T, SCALARS_##nscalars(T), OPERANDS_##arity(T), __VA_ARGS__))
#define KILN_PW_RING(name, arity, nscalars, ...)                                                                       \
    IF_N(CASE(name, T, SCALARS_##nscalars(RING), OPERANDS_##arity(RING), __VA_ARGS__))
#define KILN_PW_TEST(name, arity, nscalars, classes, ...)                                                              \
    IF_##classes(CASE(name, uint8_t, SCALARS_##nscalars(T), OPERANDS_##arity(T), __VA_ARGS__))
#define KILN_PW_PICK(name, arity, nscalars, ...) CASE(name, T, SCALARS_##nscalars(T), PICK_##arity, __VA_ARGS__)
#define PICK_2                                                                                                         \
    const uint8_t a = as<uint8_t>(x[0].w[v]);                                                                          \
    const T b = as<T>(x[1].w[v]);
#define PICK_3 PICK_2 const T c = as<T>(x[2].w[v]);
#define KILN_PW_MAKE(name, nscalars, classes, ...)                                                                     \
    IF_##classes(CASE(name, T, MADE_##nscalars, MADE_AT_##nscalars, __VA_ARGS__))
#define MADE_1 SCALARS_1(T)
#define MADE_2 const INDEX s = as<INDEX>(scalars[0]), t = as<INDEX>(scalars[1]);
#define MADE_AT_1
#define MADE_AT_2 const INDEX index = (INDEX)(i + v);
#define KILN_PW_CAST(name)
#define KILN_PW_COPY(name, ...) CASE(name, T, , OPERANDS_1(T), __VA_ARGS__)

/* d = row(x[0], x[1], x[2]) in each class; i: the first element's place. */
#define ROWS_OF(name)                                                                                                  \
    template <bool wide>                                                                                               \
    KILN_PW_INLINE void name(int row, const cell<wide> *x, const uint64_t *scalars, int64_t i, cell<wide> &d)

#define T     float
#define RING  float
#define INDEX double
#define IF_F  KEEP
#define IF_N  KEEP
#define IF_NB KEEP
#define IF_I  DROP
#define IF_IB DROP
ROWS_OF(rows_f32)
{
    switch (row) {
#include "ops/pointwise.def"
    }
}
#undef T
#undef RING
#define T    double
#define RING double
ROWS_OF(rows_f64)
{
    switch (row) {
#include "ops/pointwise.def"
    }
}
#undef T
#undef RING
#undef INDEX
#undef IF_F
#undef IF_I
#undef IF_IB
#define T     int64_t
#define RING  uint64_t
#define INDEX uint64_t
#define IF_F  DROP
#define IF_I  KEEP
#define IF_IB KEEP
ROWS_OF(rows_i64)
{
    switch (row) {
#include "ops/pointwise.def"
    }
}
#undef T
#undef IF_N
#undef IF_I
#define T    uint8_t
#define IF_N DROP
#define IF_I DROP
ROWS_OF(rows_b8)
{
    switch (row) {
#include "ops/pointwise.def"
    }
}
#undef T

template <bool wide> KILN_PW_INLINE void cast(int pair, const cell<wide> &x, cell<wide> &d)
{
#define CAST(c1, From, c2, To)                                                                                         \
    case c1 * 4 + c2:                                                                                                  \
        _Pragma("unroll") for (int v = 0; v < cell<wide>::N; v++) d.w[v] =                                             \
            bits(kiln_cast_to<To, From>::from(as<From>(x.w[v])));                                                      \
        return;
    switch (pair) {
        CAST(F32, float, F32, float)
        CAST(F32, float, B8, uint8_t)
        CAST(B8, uint8_t, F32, float)
        CAST(B8, uint8_t, B8, uint8_t)
    }
    if constexpr (wide) {
        switch (pair) {
            CAST(F32, float, F64, double)
            CAST(F32, float, I64, int64_t)
            CAST(F64, double, F32, float)
            CAST(F64, double, F64, double)
            CAST(F64, double, I64, int64_t)
            CAST(F64, double, B8, uint8_t)
            CAST(I64, int64_t, F32, float)
            CAST(I64, int64_t, F64, double)
            CAST(I64, int64_t, I64, int64_t)
            CAST(I64, int64_t, B8, uint8_t)
            CAST(B8, uint8_t, F64, double)
            CAST(B8, uint8_t, I64, int64_t)
        }
    }
#undef CAST
}

/* Elements i … i+n-1, n up to a cell's, through the whole program. */
template <bool wide> static __device__ __noinline__ void run(const machine<wide> &m, int64_t i, int n)
{
    for (int k = 0; k < m.nops; k++) {
        const kiln_cuda_op op = m.ops[k];
        if (op.code == KILN_CUDA_STORE) {
            const kiln_cuda_store &to = m.stores[op.src[1]];
            store_line<wide>(to.dtype, to.data, i, to.vector, m.cells[op.src[0] * m.stride], n);
            continue;
        }
        cell<wide> d = {}, x[3];
        if (op.code == KILN_CUDA_LOAD)
            d = load(m, m.loads[op.src[0]], i, n);
        else {
#pragma unroll
            for (int j = 0; j < 3; j++)
                if (j < op.arity)
                    x[j] = m.cells[op.src[j] * m.stride];
            const uint64_t *scalars = m.scalars + 2 * k;
            switch (op.code) {
            case KILN_CUDA_CAST: cast(op.row, x[0], d); break;
            case KILN_CUDA_ROW + F32: rows_f32<wide>(op.row, x, scalars, i, d); break;
            case KILN_CUDA_ROW + B8: rows_b8<wide>(op.row, x, scalars, i, d); break;
            }
            if constexpr (wide) {
                if (op.code == KILN_CUDA_ROW + F64)
                    rows_f64<wide>(op.row, x, scalars, i, d);
                else if (op.code == KILN_CUDA_ROW + I64)
                    rows_i64<wide>(op.row, x, scalars, i, d);
            }
            if (op.after != KILN_CUDA_AS_IS)
                settle(op.after, d);
        }
        m.cells[op.dst * m.stride] = d;
    }
}

template <bool wide> __device__ __forceinline__ void machine<wide>::elements(int64_t i, int n, uint64_t *x) const
{
    run(*this, i, n);
    const cell<wide> c = cells[result * stride];
#pragma unroll
    for (int v = 0; v < N; v++)
        x[v] = c.w[v];
}

/* Brings the program to shared memory. All threads of the block take part. */
template <bool wide, typename P> static __device__ __forceinline__ void set_up(const P &k, machine<wide> &m)
{
    extern __shared__ uint4 shared[];
    const kiln_cuda_program &p = k.p;
    uint64_t *body = (uint64_t *)shared;
    for (int j = (int)threadIdx.x; j < p.bytes / 8; j += (int)blockDim.x)
        body[j] = ((const uint64_t *)k.body)[j];
    uint64_t *scalars = body + (p.bytes + 15) / 16 * 2;
    for (int j = (int)threadIdx.x; j < p.nops; j += (int)blockDim.x) {
        const kiln_cuda_op op = ((const kiln_cuda_op *)k.body)[j];
        for (int s = 0; s < op.nscalars; s++)
            scalars[2 * j + s] = scalar(op.code - KILN_CUDA_ROW, op.row == ROW_iota, p.scalars[op.scalars + s]);
    }
    m.ops = (const kiln_cuda_op *)body;
    m.loads = (const kiln_cuda_load *)(m.ops + p.nops);
    m.stores = (const kiln_cuda_store *)(m.loads + p.nloads);
    m.dims = (const kiln_cuda_dim *)(m.stores + p.nstores);
    m.scalars = scalars;
    m.cells = (cell<wide> *)(scalars + 2 * p.nops) + threadIdx.x;
    m.scratch = (uint64_t *)((cell<wide> *)(scalars + 2 * p.nops) + p.nregisters * (int)blockDim.x);
    m.nops = p.nops;
    m.stride = (int)blockDim.x;
    m.below_2_31 = p.below_2_31;
    m.result = p.r.src;
    __syncthreads();
}

#endif
