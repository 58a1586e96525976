/* The inner loops of matrix multiplication, written once for every instruction set and both computing types.
 *
 * The first part is the tables that gemm.c sees. The second is a template: an instruction set's file defines
 * KILN_GEMM_REAL and its companions and includes this header once for f32 and once for f64.
 *
 * A tile of C is `rows` × `vectors` accumulators. The operand along its rows is broadcast (the scalar operand), the one
 * along its columns is loaded as vectors (the vector operand). Every element is one chain of multiply-adds in the order
 * of k, whatever the tile's size, so that an element does not depend on where in C it lies. */
#ifndef KILN_DEVICE_CPU_GEMM_KERNELS_H
#define KILN_DEVICE_CPU_GEMM_KERNELS_H

#include <stddef.h>
#include <stdint.h>
#include "kiln/dtype.h"

#define KILN_GEMM_MAX_ROWS 12 /* of tiles in registers */
#define KILN_GEMM_TALLEST  32 /* of any */
#define KILN_GEMM_VECTORS  2  /* vectors across a full tile */
#define KILN_GEMM_STRIP    16 /* vectors across a strip: one row, for vector × matrix */

#define KILN_GEMM_PANEL_BYTES 128 /* of a row of a full packed panel with the widest vectors */
#define KILN_GEMM_SOON_BYTES  16  /* fetched for later with each step of a tile: a quarter of a line */

/* c[i, j] (+)= Σ_p s[i * s_row + p * s_k] · v[p * v_k + j] for one tile; strides in elements. On the way k ·
 * KILN_GEMM_SOON_BYTES bytes at `soon`, any address, are fetched into the second-level cache. */
typedef void kiln_gemm_tile(int64_t k, const void *s, int64_t s_row, int64_t s_k, const void *v, int64_t v_k, void *c,
                            int64_t c_row, int accumulate, const void *soon);

/* to[p * to_k + i] = from[i * from_i + p * from_k] for i < count, p < k, converted to the computing type;
 * zero for count ≤ i < width. */
typedef void kiln_gemm_pack(void *to, int64_t to_k, const void *from, int64_t from_i, int64_t from_k, int64_t count,
                            int64_t width, int64_t k);

/* to[j * to_row + i] (+)= from[i * from_row + j] for i < rows, j < cols: stores a tile of Cᵀ into C. */
typedef void kiln_gemm_turn(void *to, int64_t to_row, const void *from, int64_t from_row, int64_t rows, int64_t cols,
                            int accumulate);

/* c[i, j] = Σ_p a[i * a_row + p] · b[j * b_col + p]: both operands contiguous along k, the sum spread over lanes. */
typedef void kiln_gemm_dot(int64_t rows, int64_t cols, int64_t k, const void *a, int64_t a_row, const void *b,
                           int64_t b_col, void *c, int64_t c_row);

typedef struct kiln_gemm_real {
    int lanes;                                                     /* elements in a vector */
    int rows;                                                      /* of the tallest tile */
    kiln_gemm_tile *tile[2][KILN_GEMM_VECTORS][KILN_GEMM_TALLEST]; /* [s_row is 1][vectors - 1][rows - 1] */
    kiln_gemm_tile *strip;                                         /* a tile of one row */
    kiln_gemm_turn *turn;
    kiln_gemm_dot *dot;
} kiln_gemm_real;

typedef struct kiln_gemm_kernels {
    kiln_gemm_real f32, f64;
    kiln_gemm_pack *pack_f32, *pack_f64, *pack_f16, *pack_bf16;
} kiln_gemm_kernels;

/* What packs elements of a dtype; those of 16 bits become f32. */
static inline kiln_gemm_pack *kiln_gemm_pack_of(const kiln_gemm_kernels *k, kiln_dtype dtype)
{
    return dtype == KILN_F64    ? k->pack_f64
           : dtype == KILN_F16  ? k->pack_f16
           : dtype == KILN_BF16 ? k->pack_bf16
                                : k->pack_f32;
}

/* NULL where the compiler's target has no such instructions. */
extern const kiln_gemm_kernels *const kiln_gemm_avx512;
extern const kiln_gemm_kernels *const kiln_gemm_avx2;
extern const kiln_gemm_kernels *const kiln_gemm_plain;

/* Products of bf16 on processors that multiply pairs of them. While computing, an element is a pair: neighbours along
 * k, in 32 bits, the first one in the lower half. So k counts pairs, and all else is as in f32, in which sums are.
 *
 * to[p * to_k + i] = elements 2p and 2p+1 of from[i * from_i + … * from_k] for i < count, p < k; zero for count ≤ i <
 * width, and for elements of k from `there` on. */
typedef void kiln_gemm_pack_pairs(void *to, int64_t to_k, const void *from, int64_t from_i, int64_t from_k,
                                  int64_t count, int64_t width, int64_t k, int64_t there);

/* The same for scalar operands of tiles that load squares of 16 rows by 16 pairs: square after square along k, then the
 * next 16 rows; the last ones' squares are only as full as there are rows. k is a multiple of 16. */
typedef void kiln_gemm_pack_squares(void *to, const void *from, int64_t from_i, int64_t from_k, int64_t rows, int64_t k,
                                    int64_t there);

typedef struct kiln_gemm_pairs {
    kiln_gemm_real real;
    kiln_gemm_pack_pairs *pack;
    kiln_gemm_pack_squares *pack_squares; /* NULL: scalars are packed as vectors are */
    int64_t unit;                      /* pairs that a tile takes at a time; k is filled up with zeros to whole ones */
    double cycles;                     /* that a row, a vector and a pair take, about; 1 for AVX-512 in f32 */
    void (*begin)(void), (*end)(void); /* around the tiles of a task, on its thread; NULL: nothing to do */
} kiln_gemm_pairs;

/* NULL where the compiler knows no such instructions. */
extern const kiln_gemm_pairs *const kiln_gemm_avx512_bf16;
extern const kiln_gemm_pairs *const kiln_gemm_amx;

#ifdef __clang__
#define KILN_GEMM_UNROLL _Pragma("unroll")
#elif !defined __OPTIMIZE__ /* gcc says that it takes no notice then */
#define KILN_GEMM_UNROLL
#else
#define KILN_GEMM_UNROLL _Pragma("GCC unroll 16")
#endif
#define KILN_GEMM_INLINE static inline __attribute__((always_inline))

/* Where a kernel's instances go in the table. */
#define KILN_GEMM_ENTRY_(rows, vectors, near, real) [(rows)-1] = tile_##near##_##vectors##_##rows##_##real,
#define KILN_GEMM_ENTRY_F32_NEAR_1(rows)            KILN_GEMM_ENTRY_(rows, 1, 1, f32)
#define KILN_GEMM_ENTRY_F32_NEAR_2(rows)            KILN_GEMM_ENTRY_(rows, 2, 1, f32)
#define KILN_GEMM_ENTRY_F32_FAR_1(rows)             KILN_GEMM_ENTRY_(rows, 1, 0, f32)
#define KILN_GEMM_ENTRY_F32_FAR_2(rows)             KILN_GEMM_ENTRY_(rows, 2, 0, f32)
#define KILN_GEMM_ENTRY_F64_NEAR_1(rows)            KILN_GEMM_ENTRY_(rows, 1, 1, f64)
#define KILN_GEMM_ENTRY_F64_NEAR_2(rows)            KILN_GEMM_ENTRY_(rows, 2, 1, f64)
#define KILN_GEMM_ENTRY_F64_FAR_1(rows)             KILN_GEMM_ENTRY_(rows, 1, 0, f64)
#define KILN_GEMM_ENTRY_F64_FAR_2(rows)             KILN_GEMM_ENTRY_(rows, 2, 0, f64)

/* The table of the including file; KILN_GEMM_ROWS(X) lists X(1) X(2) … up to the tallest tile. */
#define KILN_GEMM_REAL_TABLE(rows_, lanes_, Real, real)                                                                \
    {                                                                                                                  \
        .lanes = lanes_, .rows = rows_,                                                                                \
        .tile = {{{KILN_GEMM_ROWS(KILN_GEMM_ENTRY_##Real##_FAR_1)}, {KILN_GEMM_ROWS(KILN_GEMM_ENTRY_##Real##_FAR_2)}}, \
                 {{KILN_GEMM_ROWS(KILN_GEMM_ENTRY_##Real##_NEAR_1)},                                                   \
                  {KILN_GEMM_ROWS(KILN_GEMM_ENTRY_##Real##_NEAR_2)}}},                                                 \
        .strip = strip_##real, .turn = turn_##real, .dot = dot_##real,                                                 \
    }
#define KILN_GEMM_TABLE(rows_, bytes)                                                                                  \
    {                                                                                                                  \
        .f32 = KILN_GEMM_REAL_TABLE(rows_, (bytes) / 4, F32, f32),                                                     \
        .f64 = KILN_GEMM_REAL_TABLE(rows_, (bytes) / 8, F64, f64), .pack_f32 = pack_f32, .pack_f64 = pack_f64,         \
        .pack_f16 = pack_f16, .pack_bf16 = pack_bf16,                                                                  \
    }

#endif

/* ---- The template. Needs KILN_GEMM_REAL (float or double), KILN_GEMM_NAME(x) (x_f32 or x_f64), KILN_GEMM_BYTES (of a
 * vector), KILN_GEMM_FMA(a, b, c) = a · b + c on vectors, KILN_GEMM_ROWS(X). With KILN_GEMM_PAIRS floats are the bits
 * of pairs of bf16, and there are no packing and no dot products. */
#ifdef KILN_GEMM_REAL

#include <string.h>

#define REAL         KILN_GEMM_REAL
#define NAME(x)      KILN_GEMM_NAME(x)
#define VEC          NAME(vec)
#define VECU         NAME(vecu)
#define QUAD         NAME(quad)
#define QUADU        NAME(quadu)
#define LANES        (KILN_GEMM_BYTES / (int)sizeof(REAL))
#define PREFETCH_K   8
#define DOT_ROWS     (KILN_GEMM_BYTES == 64 ? 4 : 2) /* as many as there are registers for */
#define DOT_COLS     4
#define LOAD(p)      ((VEC) * (const VECU *)(p))
#define LOAD_QUAD(p) ((QUAD) * (const QUADU *)(p))

typedef REAL VEC __attribute__((vector_size(KILN_GEMM_BYTES)));
typedef REAL VECU __attribute__((vector_size(KILN_GEMM_BYTES), aligned(sizeof(REAL)), may_alias));
typedef REAL QUAD __attribute__((vector_size(4 * sizeof(REAL))));
typedef REAL QUADU __attribute__((vector_size(4 * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));

/* What lies at p in all lanes. */
#ifdef KILN_GEMM_PAIRS
KILN_GEMM_INLINE VEC NAME(splat)(const REAL *p)
{
    typedef int32_t bits __attribute__((vector_size(KILN_GEMM_BYTES)));
    int32_t pair; /* which need not be a number */
    memcpy(&pair, p, sizeof pair);
    return (VEC)(pair - (bits){0});
}
#else
KILN_GEMM_INLINE VEC NAME(splat)(const REAL *p)
{
    return *p - (VEC){0};
}
#endif

/* The same address, of which the compiler knows nothing: else it would work out the addresses of all rows before the
 * loop over k, and spill them. */
KILN_GEMM_INLINE REAL *NAME(opaque)(const REAL *address)
{
    __asm__("" : "+r"(address));
    return (REAL *)address;
}

/* `near`: the scalar operand's rows lie side by side, and their addresses are one pointer with constant offsets.
 * Otherwise one pointer serves three rows, which x86 reaches with scaled indices. */
KILN_GEMM_INLINE void NAME(tile)(const int rows, const int vectors, const int near, int64_t k, const REAL *s,
                                 int64_t s_row, int64_t s_k, const REAL *v, int64_t v_k, REAL *c, int64_t c_row,
                                 int accumulate, const char *soon)
{
    VEC sum[KILN_GEMM_MAX_ROWS][KILN_GEMM_STRIP];
    const REAL *group[KILN_GEMM_MAX_ROWS];
    const int group_rows = near ? rows : 3;
    KILN_GEMM_UNROLL
    for (int i = 0; i < rows; i++) {
        if (i * group_rows < rows)
            group[i] = i == 0 ? s : NAME(opaque)(group[i - 1] + group_rows * s_row);
        KILN_GEMM_UNROLL
        for (int j = 0; j < vectors; j++)
            sum[i][j] = (VEC){0};
    }
    int64_t ends[2] = {k > PREFETCH_K ? k - PREFETCH_K : 0, k}, p = 0;
    for (int part = 0; part < 2; part++) {
        for (; p < ends[part]; p++, v += v_k, soon += KILN_GEMM_SOON_BYTES) {
            __builtin_prefetch(soon, 0, 2);
            VEC across[KILN_GEMM_STRIP];
            KILN_GEMM_UNROLL
            for (int j = 0; j < vectors; j++)
                across[j] = LOAD(v + j * LANES);
            KILN_GEMM_UNROLL
            for (int i = 0; i < rows; i++) {
                VEC down = NAME(splat)(group[i / group_rows] + (near ? i : i % group_rows * s_row));
                KILN_GEMM_UNROLL
                for (int j = 0; j < vectors; j++)
                    sum[i][j] = KILN_GEMM_FMA(down, across[j], sum[i][j]);
            }
            KILN_GEMM_UNROLL
            for (int i = 0; i * group_rows < rows; i++)
                group[i] += s_k;
        }
        REAL *row = c; /* C is fetched shortly before it is needed: earlier, the operands would push it out again */
        KILN_GEMM_UNROLL
        for (int i = 0; part == 0 && i < rows; i++, row = NAME(opaque)(row + c_row)) {
            KILN_GEMM_UNROLL
            for (int j = 0; j < vectors; j++)
                __builtin_prefetch(row + j * LANES, 1);
        }
    }
    KILN_GEMM_UNROLL
    for (int i = 0; i < rows; i++, c = NAME(opaque)(c + c_row)) {
        KILN_GEMM_UNROLL
        for (int j = 0; j < vectors; j++) {
            VECU *to = (VECU *)(c + j * LANES);
            *to = accumulate ? LOAD(to) + sum[i][j] : sum[i][j];
        }
    }
}

#define TILE(rows, vectors, near)                                                                                      \
    static void NAME(tile_##near##_##vectors##_##rows)(int64_t k, const void *s, int64_t s_row, int64_t s_k,           \
                                                       const void *v, int64_t v_k, void *c, int64_t c_row,             \
                                                       int accumulate, const void *soon)                               \
    {                                                                                                                  \
        NAME(tile)(rows, vectors, near, k, s, s_row, s_k, v, v_k, c, c_row, accumulate, soon);                         \
    }
#define TILES(rows) TILE(rows, 1, 0) TILE(rows, 2, 0) TILE(rows, 1, 1) TILE(rows, 2, 1)
KILN_GEMM_ROWS(TILES)

static void NAME(strip)(int64_t k, const void *s, int64_t s_row, int64_t s_k, const void *v, int64_t v_k, void *c,
                        int64_t c_row, int accumulate, const void *soon)
{
    NAME(tile)(1, KILN_GEMM_STRIP, 1, k, s, s_row, s_k, v, v_k, c, c_row, accumulate, soon);
}

/* Four by four elements, transposed in registers. */
KILN_GEMM_INLINE void NAME(turn4)(QUAD r[4])
{
    QUAD a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5), b = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
    QUAD c = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7), d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    r[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    r[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    r[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
    r[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

static void NAME(turn)(void *to_, int64_t to_row, const void *from_, int64_t from_row, int64_t rows, int64_t cols,
                       int accumulate)
{
    const REAL *from = from_;
    REAL *to = to_;
    int64_t rows4 = rows & ~INT64_C(3), cols4 = cols & ~INT64_C(3);
    for (int64_t j = 0; j < cols4; j += 4) {
        for (int64_t i = 0; i < rows4; i += 4) {
            QUAD r[4];
            KILN_GEMM_UNROLL
            for (int q = 0; q < 4; q++)
                r[q] = LOAD_QUAD(from + (i + q) * from_row + j);
            NAME(turn4)(r);
            KILN_GEMM_UNROLL
            for (int q = 0; q < 4; q++) {
                QUADU *out = (QUADU *)(to + (j + q) * to_row + i);
                *out = accumulate ? LOAD_QUAD(out) + r[q] : r[q];
            }
        }
    }
    for (int64_t j = 0; j < cols; j++) {
        for (int64_t i = j < cols4 ? rows4 : 0; i < rows; i++)
            to[j * to_row + i] = (accumulate ? to[j * to_row + i] : 0) + from[i * from_row + j];
    }
}

#ifndef KILN_GEMM_PAIRS

/* A packing routine for one source type: three loops for three layouts, since nearly all the time of a thin product
 * can go into packing. */
#define PACK(name, SOURCE, VALUE, VALUES4) PACK_(name, SOURCE, VALUE, VALUES4)
#define PACK_(name, SOURCE, VALUE, VALUES4)                                                                            \
    KILN_GEMM_INLINE void name##_copy(REAL *to, int64_t to_k, const SOURCE *from, int64_t from_k, int64_t count,       \
                                      int64_t k)                                                                       \
    {                                                                                                                  \
        for (int64_t p = 0; p < k; p++, to += to_k, from += from_k) {                                                  \
            int64_t i = 0;                                                                                             \
            for (; i + 4 <= count; i += 4)                                                                             \
                *(QUADU *)(to + i) = VALUES4(from + i);                                                                \
            for (; i < count; i++)                                                                                     \
                to[i] = VALUE(from[i]);                                                                                \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    KILN_GEMM_INLINE void name##_turn(REAL *to, int64_t to_k, const SOURCE *from, int64_t from_i, int64_t count,       \
                                      int64_t k)                                                                       \
    {                                                                                                                  \
        int64_t count4 = count & ~INT64_C(3), k4 = k & ~INT64_C(3);                                                    \
        for (int64_t p = 0; p < k4; p += 16) { /* whole cache lines of each row at a time */                           \
            int64_t end = p + 16 < k4 ? p + 16 : k4;                                                                   \
            for (int64_t i = 0; i < count4; i += 4) {                                                                  \
                for (int64_t l = p; l < end; l += 4) {                                                                 \
                    QUAD r[4];                                                                                         \
                    KILN_GEMM_UNROLL                                                                                   \
                    for (int q = 0; q < 4; q++)                                                                        \
                        r[q] = VALUES4(from + (i + q) * from_i + l);                                                   \
                    NAME(turn4)(r);                                                                                    \
                    KILN_GEMM_UNROLL                                                                                   \
                    for (int q = 0; q < 4; q++)                                                                        \
                        *(QUADU *)(to + (l + q) * to_k + i) = r[q];                                                    \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            for (int64_t p = i < count4 ? k4 : 0; p < k; p++)                                                          \
                to[p * to_k + i] = VALUE(from[i * from_i + p]);                                                        \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    static void name(void *to_, int64_t to_k, const void *from_, int64_t from_i, int64_t from_k, int64_t count,        \
                     int64_t width, int64_t k)                                                                         \
    {                                                                                                                  \
        const SOURCE *from = from_;                                                                                    \
        REAL *to = to_;                                                                                                \
        if (from_i == 1) {                                                                                             \
            name##_copy(to, to_k, from, from_k, count, k);                                                             \
        } else if (from_k == 1) {                                                                                      \
            name##_turn(to, to_k, from, from_i, count, k);                                                             \
        } else {                                                                                                       \
            for (int64_t p = 0; p < k; p++) {                                                                          \
                for (int64_t i = 0; i < count; i++)                                                                    \
                    to[p * to_k + i] = VALUE(from[i * from_i + p * from_k]);                                           \
            }                                                                                                          \
        }                                                                                                              \
        for (int64_t p = 0; count < width && p < k; p++)                                                               \
            memset(to + p * to_k + count, 0, (size_t)(width - count) * sizeof(REAL));                                  \
    }

/* The first `count` elements at p, the rest zero. */
KILN_GEMM_INLINE VEC NAME(load_some)(const REAL *p, int64_t count)
{
    VEC v = {0};
    memcpy(&v, p, (size_t)count * sizeof(REAL));
    return v;
}

KILN_GEMM_INLINE REAL NAME(total)(VEC v)
{
    REAL lane[LANES];
    memcpy(lane, &v, sizeof v);
    KILN_GEMM_UNROLL
    for (int w = LANES / 2; w > 0; w /= 2) {
        KILN_GEMM_UNROLL
        for (int i = 0; i < w; i++)
            lane[i] += lane[i + w];
    }
    return lane[0];
}

KILN_GEMM_INLINE void NAME(dots)(const int rows, const int cols, int64_t k, const REAL *a, int64_t a_row, const REAL *b,
                                 int64_t b_col, REAL *c, int64_t c_row)
{
    VEC sum[DOT_ROWS][DOT_COLS];
    memset(sum, 0, sizeof sum);
    int64_t p = 0;
    for (; p + LANES <= k; p += LANES) {
        VEC y[DOT_COLS];
        KILN_GEMM_UNROLL
        for (int j = 0; j < cols; j++)
            y[j] = LOAD(b + j * b_col + p);
        KILN_GEMM_UNROLL
        for (int i = 0; i < rows; i++) {
            VEC x = LOAD(a + i * a_row + p);
            KILN_GEMM_UNROLL
            for (int j = 0; j < cols; j++)
                sum[i][j] = KILN_GEMM_FMA(x, y[j], sum[i][j]);
        }
    }
    KILN_GEMM_UNROLL
    for (int i = 0; p < k && i < rows; i++) {
        VEC x = NAME(load_some)(a + i * a_row + p, k - p);
        KILN_GEMM_UNROLL
        for (int j = 0; j < cols; j++)
            sum[i][j] = KILN_GEMM_FMA(x, NAME(load_some)(b + j * b_col + p, k - p), sum[i][j]);
    }
    KILN_GEMM_UNROLL
    for (int i = 0; i < rows; i++) {
        KILN_GEMM_UNROLL
        for (int j = 0; j < cols; j++)
            c[i * c_row + j] = NAME(total)(sum[i][j]);
    }
}

static void NAME(dot)(int64_t rows, int64_t cols, int64_t k, const void *a_, int64_t a_row, const void *b_,
                      int64_t b_col, void *c_, int64_t c_row)
{
    const REAL *a = a_, *b = b_;
    REAL *c = c_;
    int64_t wide;
    for (int64_t j = 0; j < cols; j += wide, b += wide * b_col) { /* columns outside: B is the larger more often */
        wide = cols - j >= DOT_COLS ? DOT_COLS : 1;
        int64_t i = 0;
        for (; i + DOT_ROWS <= rows; i += DOT_ROWS) {
            if (wide == DOT_COLS)
                NAME(dots)(DOT_ROWS, DOT_COLS, k, a + i * a_row, a_row, b, b_col, c + i * c_row + j, c_row);
            else
                NAME(dots)(DOT_ROWS, 1, k, a + i * a_row, a_row, b, b_col, c + i * c_row + j, c_row);
        }
        for (; i < rows; i++) {
            if (wide == DOT_COLS)
                NAME(dots)(1, DOT_COLS, k, a + i * a_row, a_row, b, b_col, c + i * c_row + j, c_row);
            else
                NAME(dots)(1, 1, k, a + i * a_row, a_row, b, b_col, c + i * c_row + j, c_row);
        }
    }
}

#define SAME(x) (x)
#ifdef KILN_GEMM_HALVES
#include "core/half.h"
#ifdef __F16C__ /* what has it converts four at a time; products make NaNs quiet in any case */
KILN_GEMM_INLINE QUAD f16_quad(const uint16_t *p)
{
    return (QUAD)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

KILN_GEMM_INLINE QUAD bf16_quad(const uint16_t *p)
{
    return (QUAD)_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i *)(const void *)p));
}
#else
KILN_GEMM_INLINE QUAD f16_quad(const uint16_t *p)
{
    return (QUAD){kiln_f16_to_f32(p[0]), kiln_f16_to_f32(p[1]), kiln_f16_to_f32(p[2]), kiln_f16_to_f32(p[3])};
}

KILN_GEMM_INLINE QUAD bf16_quad(const uint16_t *p)
{
    return (QUAD){kiln_bf16_to_f32(p[0]), kiln_bf16_to_f32(p[1]), kiln_bf16_to_f32(p[2]), kiln_bf16_to_f32(p[3])};
}
#endif
PACK(pack_f16, uint16_t, kiln_f16_to_f32, f16_quad)
PACK(pack_bf16, uint16_t, kiln_bf16_to_f32, bf16_quad)
#endif
PACK(NAME(pack), REAL, SAME, LOAD_QUAD)

#undef SAME
#undef PACK
#undef PACK_
#endif
#undef TILES
#undef TILE
#undef REAL
#undef NAME
#undef VEC
#undef VECU
#undef QUAD
#undef QUADU
#undef LANES
#undef PREFETCH_K
#undef DOT_ROWS
#undef DOT_COLS
#undef LOAD
#undef LOAD_QUAD
#undef KILN_GEMM_PAIRS
#undef KILN_GEMM_HALVES
#undef KILN_GEMM_REAL
#undef KILN_GEMM_NAME
#undef KILN_GEMM_FMA
#endif
