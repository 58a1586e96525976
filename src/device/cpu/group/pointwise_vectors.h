/* The rows of vector_rows.def for one class of floats: <class>_vector_<row>. Included by pointwise_kernels.h once for
 * f32 and once for f64, with T and CLASS as pointwise_rows.h has them, OWN(x) for a function on vectors of T, DOUBLE(x)
 * for one on vectors of doubles, and LOAD and STORE for how the latter come from and go to memory. There is no include
 * guard on purpose. */

#define NAME(x)        NAME_(CLASS, x)
#define NAME_(cls, x)  NAME__(cls, x)
#define NAME__(cls, x) cls##_vector_##x

#define OPERANDS_1(load) const m(vector) a = m(load)(pa + i, n - i);
#define OPERANDS_2(load) OPERANDS_1(load) const m(vector) b = m(load)(pb + i, n - i);
#define SCALARS_0
#define SCALARS_1 const m(vector) s = m(lane_set)((T)scalars[0]);
#define SCALARS_2 SCALARS_1 const m(vector) t = m(lane_set)((T)scalars[1]);

/* The next tile is a call of its own, and a page of its own where the hardware's prefetching begins anew: what lies
 * this many bytes ahead is asked for early. A tenth of log and sin of a million floats. */
#define AHEAD 1024
#define ROW(name, operands, scalars_, store, ...)                                                                      \
    static void NAME(name)(void *d_, const void *a_, const void *b_, const void *c_, const double *scalars, int64_t n) \
    {                                                                                                                  \
        T *d = d_;                                                                                                     \
        const T *pa = a_, *pb = b_;                                                                                    \
        (void)pb, (void)c_, (void)scalars;                                                                             \
        scalars_ for (int64_t i = 0; i < n; i += m(lanes))                                                             \
        {                                                                                                              \
            __builtin_prefetch((const char *)(pa + i) + AHEAD);                                                        \
            operands m(store)(d + i, __VA_ARGS__, n - i);                                                              \
        }                                                                                                              \
    }

#define m OWN
#define KILN_VECTOR(name, arity, nscalars, ...)                                                                        \
    ROW(name, OPERANDS_##arity(lane_load_some), SCALARS_##nscalars, lane_store_some, __VA_ARGS__)
#define KILN_DOUBLE(name, arity, nscalars, x, y)
#include "device/cpu/group/vector_rows.def"
#undef m
#undef KILN_VECTOR
#undef KILN_DOUBLE

#define m DOUBLE
#define KILN_VECTOR(name, arity, nscalars, ...)
#define KILN_DOUBLE(name, arity, nscalars, x, y)                                                                       \
    ROW(name, OPERANDS_##arity(LOAD), SCALARS_##nscalars, STORE, CHOICE(x, y))
#include "device/cpu/group/vector_rows.def"
#undef m
#undef KILN_VECTOR
#undef KILN_DOUBLE

#undef NAME
#undef NAME_
#undef NAME__
#undef OPERANDS_1
#undef OPERANDS_2
#undef SCALARS_0
#undef SCALARS_1
#undef SCALARS_2
#undef ROW
#undef AHEAD
#undef OWN
#undef DOUBLE
#undef LOAD
#undef STORE
#undef CHOICE
