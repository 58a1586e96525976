/* A function for every row of pointwise.def that one register class has, and the class's reductions. Included by
 * pointwise_kernels.h once a class, with
 *   T       the computing type          RING         what sums and products are computed in: unsigned for integers
 *   CLASS   f32, f64, i64 or b8         SCALAR(x)    a run-time scalar (double) as T
 *   INDEX   what iota computes in       LOWEST, HIGHEST   neutral for MAX and MIN
 *   IF_F, IF_N, IF_NB, IF_I, IF_IB      each keeps its arguments where the class is among those the letters name
 * It leaves the arrays <class>_rows, <class>_folds and <class>_reductions. There is no include guard on purpose. */

#define NAME(x)        NAME_(CLASS, x)
#define NAME_(cls, x)  NAME__(cls, x)
#define NAME__(cls, x) cls##_##x

#define OPERANDS_0(type)
#define OPERANDS_1(type) const type a = (type)pa[i];
#define OPERANDS_2(type) OPERANDS_1(type) const type b = (type)pb[i];
#define OPERANDS_3(type) OPERANDS_2(type) const type c = (type)pc[i];
#define SCALARS_0(type)
#define SCALARS_1(type) const type s = (type)SCALAR(scalars[0]);
#define SCALARS_2(type) SCALARS_1(type) const type t = (type)SCALAR(scalars[1]);

/* One row's loop: operands of types A (the first), V (the others), computed in `type`, stored as D. */
#define ROW(name, D, A, V, operands, scalars_, expression)                                                             \
    static void NAME(name)(void *d_, const void *a_, const void *b_, const void *c_, const double *scalars, int64_t n) \
    {                                                                                                                  \
        D *d = d_;                                                                                                     \
        const A *pa = a_;                                                                                              \
        const V *pb = b_, *pc = c_;                                                                                    \
        (void)pa, (void)pb, (void)pc, (void)scalars;                                                                   \
        scalars_ KILN_PW_IVDEP for (int64_t i = 0; i < n; i++)                                                         \
        {                                                                                                              \
            operands d[i] = (D)(expression);                                                                           \
        }                                                                                                              \
    }

#define KILN_PW(name, arity, nscalars, classes, ...)                                                                   \
    IF_##classes(ROW(name, T, T, T, OPERANDS_##arity(T), SCALARS_##nscalars(T), __VA_ARGS__))
#define KILN_PW_RING(name, arity, nscalars, ...)                                                                       \
    IF_N(ROW(name, T, T, T, OPERANDS_##arity(RING), SCALARS_##nscalars(RING), __VA_ARGS__))
#define KILN_PW_TEST(name, arity, nscalars, classes, ...)                                                              \
    IF_##classes(ROW(name, uint8_t, T, T, OPERANDS_##arity(T), SCALARS_##nscalars(T), __VA_ARGS__))
#define KILN_PW_PICK(name, arity, nscalars, ...)                                                                       \
    ROW(name, T, uint8_t, T, PICK_##arity, SCALARS_##nscalars(T), __VA_ARGS__)
#define KILN_PW_MAKE(name, nscalars, classes, ...)                                                                     \
    IF_##classes(ROW(name, T, T, T, const INDEX index = (INDEX)i + first; (void)index;, MADE_##nscalars, __VA_ARGS__))
#define KILN_PW_CAST(name)
#define KILN_PW_COPY(name, ...) ROW(name, T, T, T, OPERANDS_1(T), , __VA_ARGS__)
#define PICK_2                                                                                                         \
    const uint8_t a = pa[i];                                                                                           \
    const T b = pb[i];
#define PICK_3 PICK_2 const T c = pc[i];
#define MADE_1 SCALARS_1(T) const int64_t first = 0;
#define MADE_2                                                                                                         \
    const INDEX s = (INDEX)SCALAR_INDEX(scalars[0]), t = (INDEX)SCALAR_INDEX(scalars[1]),                              \
                first = (INDEX)SCALAR_INDEX(scalars[2]);
#include "ops/pointwise.def"
#define KILN_JOIN(name, arity, nscalars, expression, ...)                                                              \
    IF_F(ROW(name, T, T, T, OPERANDS_##arity(T), SCALARS_##nscalars(T), expression))
#include "device/cpu/group/join.def"
#undef KILN_JOIN
#undef KILN_PW
#undef KILN_PW_RING
#undef KILN_PW_TEST
#undef KILN_PW_PICK
#undef KILN_PW_MAKE
#undef KILN_PW_COPY
#undef PICK_2
#undef PICK_3
#undef MADE_1
#undef MADE_2
#undef OPERANDS_0
#undef OPERANDS_1
#undef OPERANDS_2
#undef OPERANDS_3
#undef SCALARS_0
#undef SCALARS_1
#undef SCALARS_2
#undef ROW

#define KILN_PW(name, arity, nscalars, classes, ...)      IF_##classes([KILN_PW_##name] = NAME(name), )
#define KILN_PW_RING(name, arity, nscalars, ...)          IF_N([KILN_PW_##name] = NAME(name), )
#define KILN_PW_TEST(name, arity, nscalars, classes, ...) IF_##classes([KILN_PW_##name] = NAME(name), )
#define KILN_PW_PICK(name, arity, nscalars, ...)          [KILN_PW_##name] = NAME(name),
#define KILN_PW_MAKE(name, nscalars, classes, ...)        IF_##classes([KILN_PW_##name] = NAME(name), )
#define KILN_PW_COPY(name, ...)                           [KILN_PW_##name] = NAME(name),
/* Those of vector_rows.def take the place of the loops above. */
#define KILN_VECTOR(name, ...) IF_F([KILN_PW_##name] = NAME(vector_##name), )
#define KILN_DOUBLE            KILN_VECTOR
#pragma GCC diagnostic push
#ifdef __clang__
#pragma GCC diagnostic ignored "-Winitializer-overrides"
#else
#pragma GCC diagnostic ignored "-Woverride-init"
#endif
static const kiln_pw_fn NAME(rows)[KILN_PW_ROWS] = {
#include "ops/pointwise.def"
#include "device/cpu/group/vector_rows.def"
};
#pragma GCC diagnostic pop
#undef KILN_VECTOR
#undef KILN_DOUBLE

#define KILN_JOIN(name, ...) IF_F([KILN_JOIN_##name] = NAME(name), )
IF_F(static const kiln_pw_fn NAME(joins)[KILN_JOINS] = {)
#include "device/cpu/group/join.def"
IF_F(};)
#undef KILN_JOIN

/* Reductions: many lanes side by side, then a tree over the lanes. How many depends on n alone, so that every
 * instruction set adds in the same order. */

#define LANES(fold, type, neutral, lanes)                                                                              \
    KILN_PW_INLINE type NAME(fold##_over_##lanes)(const T *x, int64_t n)                                               \
    {                                                                                                                  \
        type lane[lanes] __attribute__((aligned(64)));                                                                 \
        for (int j = 0; j < lanes; j++)                                                                                \
            lane[j] = neutral;                                                                                         \
        int64_t i = 0;                                                                                                 \
        for (; i + lanes <= n; i += lanes) {                                                                           \
            for (int j = 0; j < lanes; j++)                                                                            \
                lane[j] = NAME(fold##_two)(lane[j], (type)x[i + j]);                                                   \
        }                                                                                                              \
        for (int j = 0; j < n - i; j++)                                                                                \
            lane[j] = NAME(fold##_two)(lane[j], (type)x[i + j]);                                                       \
        for (int width = lanes / 2; width > 0; width /= 2) {                                                           \
            for (int j = 0; j < width; j++)                                                                            \
                lane[j] = NAME(fold##_two)(lane[j], lane[j + width]);                                                  \
        }                                                                                                              \
        return lane[0];                                                                                                \
    }

#define FOLD(fold, type, neutral, expression)                                                                          \
    KILN_PW_INLINE type NAME(fold##_two)(type a, type b)                                                               \
    {                                                                                                                  \
        return (type)(expression);                                                                                     \
    }                                                                                                                  \
    static void NAME(fold##_fold)(void *acc_, const void *x_, int64_t n)                                               \
    {                                                                                                                  \
        T *acc = acc_;                                                                                                 \
        const T *x = x_;                                                                                               \
        KILN_PW_IVDEP for (int64_t i = 0; i < n; i++)                                                                  \
        {                                                                                                              \
            acc[i] = (T)NAME(fold##_two)((type)acc[i], (type)x[i]);                                                    \
        }                                                                                                              \
    }                                                                                                                  \
    LANES(fold, type, neutral, 16)                                                                                     \
    LANES(fold, type, neutral, 64)                                                                                     \
    static void NAME(fold##_reduce)(void *result, const void *x, int64_t n)                                            \
    {                                                                                                                  \
        *(T *)result = (T)(n < 128 ? NAME(fold##_over_16)(x, n) : NAME(fold##_over_64)(x, n));                         \
    }
IF_N(FOLD(sum, RING, 0, a + b))
IF_N(FOLD(prod, RING, 1, a *b))
FOLD(max, T, LOWEST, ((a > b) | k_isnan(a)) ? a : b)
FOLD(min, T, HIGHEST, ((a < b) | k_isnan(a)) ? a : b)
FOLD(any, T, 0, (a != 0) | (b != 0))
FOLD(all, T, 1, (a != 0) & (b != 0))
#undef FOLD
#undef LANES

#define ENTRIES(kind)                                                                                                  \
    IF_N([KILN_FOLD_SUM] = NAME(sum_##kind), [KILN_FOLD_PROD] = NAME(prod_##kind), )                                   \
    [KILN_FOLD_MAX] = NAME(max_##kind), [KILN_FOLD_MIN] = NAME(min_##kind), [KILN_FOLD_ANY] = NAME(any_##kind),        \
    [KILN_FOLD_ALL] = NAME(all_##kind)
static const kiln_pw_fold_fn NAME(folds)[KILN_FOLDS] = {ENTRIES(fold)};
static const kiln_pw_fold_fn NAME(reductions)[KILN_FOLDS] = {ENTRIES(reduce)};
#undef ENTRIES

#undef KILN_PW
#undef KILN_PW_RING
#undef KILN_PW_TEST
#undef KILN_PW_PICK
#undef KILN_PW_MAKE
#undef KILN_PW_CAST
#undef KILN_PW_COPY
#undef NAME
#undef NAME_
#undef NAME__
#undef T
#undef CLASS
#undef RING
#undef INDEX
#undef SCALAR
#undef SCALAR_INDEX
#undef LOWEST
#undef HIGHEST
#undef IF_F
#undef IF_N
#undef IF_NB
#undef IF_I
#undef IF_IB
