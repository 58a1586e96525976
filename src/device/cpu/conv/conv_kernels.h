/* The inner loops of direct convolution in f32, written once for every instruction set.
 *
 * The first part is the table that conv_direct.c sees. The second is a template: an instruction set's file defines
 * KILN_CONV_BYTES and its companions and includes this header once for each width of vectors. */
#ifndef KILN_DEVICE_CPU_CONV_KERNELS_H
#define KILN_DEVICE_CPU_CONV_KERNELS_H

#include <stddef.h>
#include <stdint.h>

enum {
    KILN_CONV_MAX_BLOCK = 8,   /* channels of the result made at once */
    KILN_CONV_MAX_VECTORS = 3, /* across their rows */
    KILN_CONV_MAX_TAPS = 7,    /* across a kernel whose gradient is made … */
    KILN_CONV_MAX_ROWS = 5     /* … and its rows at once */
};

/* Part of a row of the result, for several channels: y[o, j] = Σ over c, u, v of w[c, u, v, o] · x[c, u, j + v·x_tap],
 * j < n. Each element is one chain of multiply-adds in the order of c, u, v. x can be read beyond n to whole vectors.
 */
typedef struct kiln_conv_row {
    int64_t channels, rows, taps; /* counts of c, u, v */
    const float *x;
    int64_t x_plane, x_row, x_tap;
    const float *w; /* dense in v and o */
    int64_t w_plane, w_row;
    float *y;
    int64_t y_plane, n;
} kiln_conv_row;

/* A kernel's gradient, for a vector of the result's channels and several rows of the kernel: gw[u, v] (a vector) +=
 * Σ over i, j of gy[i, j] (a vector) · x[i·x_line + u·x_row + j·x_step + v], in the order of i, j. */
typedef struct kiln_conv_taps {
    int64_t height, width; /* of gy */
    const float *gy, *x;
    int64_t x_line, x_step, x_row;
    float *gw; /* dense */
} kiln_conv_taps;

typedef float kiln_conv_quad __attribute__((vector_size(16)));
typedef float kiln_conv_quadu __attribute__((vector_size(16), aligned(4), may_alias));

typedef void kiln_conv_row_fn(const kiln_conv_row *r);
typedef void kiln_conv_taps_fn(const kiln_conv_taps *t);

/* to[i * lanes + o] = from[o * n + i] for o < count, zero for count ≤ o < lanes. */
typedef void kiln_conv_turn_fn(float *to, const float *from, int64_t count, int64_t n);

typedef struct kiln_conv_width {
    int lanes;
    kiln_conv_taps_fn *taps[KILN_CONV_MAX_TAPS][KILN_CONV_MAX_ROWS]; /* [taps - 1][rows - 1]; NULL: not made */
    kiln_conv_turn_fn *turn;
} kiln_conv_width;

typedef struct kiln_conv_kernels {
    int block, lanes; /* channels at once, and elements in a vector, of `row` */
    int sums;         /* vectors of a kernel's gradient that registers hold */
    kiln_conv_row_fn *row[KILN_CONV_MAX_VECTORS][KILN_CONV_MAX_BLOCK]; /* [vectors - 1][channels - 1] */
    kiln_conv_width wide, narrow;
} kiln_conv_kernels;

/* NULL where the compiler's target has no such instructions. */
extern const kiln_conv_kernels *const kiln_conv_avx512;
extern const kiln_conv_kernels *const kiln_conv_avx2;
extern const kiln_conv_kernels *const kiln_conv_plain;

#ifdef __clang__
#define KILN_CONV_UNROLL _Pragma("unroll")
#else
#define KILN_CONV_UNROLL _Pragma("GCC unroll 16")
#endif
/* The kernels whose gradients are made directly: X(taps, rows of them at once). */
#define KILN_CONV_TAPS(X)                                                                                              \
    X(3, 1) X(3, 2) X(3, 3) X(3, 4) X(3, 5) X(5, 1) X(5, 2) X(5, 3) X(5, 4) X(5, 5) X(7, 1) X(7, 2) X(7, 3) X(7, 4)
#define KILN_CONV_INLINE static inline __attribute__((always_inline))

/* The table of the including file, whose names are name##_wide and name##_narrow. */
#define KILN_CONV_WIDE_TAPS(taps, rows)   [(taps)-1][(rows)-1] = taps_##taps##_##rows##_wide,
#define KILN_CONV_NARROW_TAPS(taps, rows) [(taps)-1][(rows)-1] = taps_##taps##_##rows##_narrow,
#define KILN_CONV_ROW_1(block)            [(block)-1] = row_1_##block##_wide,
#define KILN_CONV_ROW_2(block)            [(block)-1] = row_2_##block##_wide,
#define KILN_CONV_ROW_3(block)            [(block)-1] = row_3_##block##_wide,

#endif

/* ---- The template. Needs KILN_CONV_NAME(x), KILN_CONV_BYTES (of a vector), KILN_CONV_FMA(a, b, c) = a · b + c on
 * vectors, KILN_CONV_STORE(p, v, n) that stores the first n < lanes elements, KILN_CONV_BLOCKS(X) that lists X(1) X(2)
 * … up to the largest block. */
#ifdef KILN_CONV_BYTES

#define NAME(x) KILN_CONV_NAME(x)
#define VEC     NAME(vec)
#define VECU    NAME(vecu)
#define LANES   (KILN_CONV_BYTES / (int)sizeof(float))
#define LOAD(p) ((VEC) * (const VECU *)(p))

typedef float VEC __attribute__((vector_size(KILN_CONV_BYTES)));
typedef float VECU __attribute__((vector_size(KILN_CONV_BYTES), aligned(sizeof(float)), may_alias));

#ifdef KILN_CONV_BLOCKS

KILN_CONV_INLINE void NAME(row)(const int block, const int vectors, const kiln_conv_row *r)
{
    VEC sum[KILN_CONV_MAX_BLOCK][KILN_CONV_MAX_VECTORS];
    KILN_CONV_UNROLL
    for (int o = 0; o < block; o++) {
        KILN_CONV_UNROLL
        for (int j = 0; j < vectors; j++)
            sum[o][j] = (VEC){0};
    }
    for (int64_t c = 0; c < r->channels; c++) {
        for (int64_t u = 0; u < r->rows; u++) {
            const float *x = r->x + c * r->x_plane + u * r->x_row, *w = r->w + c * r->w_plane + u * r->w_row;
            const int64_t x_tap = r->x_tap;
            for (int64_t v = r->taps; v > 0; v--, x += x_tap, w += block) {
                VEC across[KILN_CONV_MAX_VECTORS];
                KILN_CONV_UNROLL
                for (int j = 0; j < vectors; j++)
                    across[j] = LOAD(x + j * LANES);
                KILN_CONV_UNROLL
                for (int o = 0; o < block; o++) {
                    VEC down = w[o] - (VEC){0};
                    KILN_CONV_UNROLL
                    for (int j = 0; j < vectors; j++)
                        sum[o][j] = KILN_CONV_FMA(down, across[j], sum[o][j]);
                }
            }
        }
    }
    float *y = r->y;
    int64_t rest = r->n - (vectors - 1) * LANES;
    KILN_CONV_UNROLL
    for (int o = 0; o < block; o++, y += r->y_plane) {
        KILN_CONV_UNROLL
        for (int j = 0; j < vectors - 1; j++)
            *(VECU *)(y + j * LANES) = sum[o][j];
        if (rest == LANES)
            *(VECU *)(y + (vectors - 1) * LANES) = sum[o][vectors - 1];
        else
            KILN_CONV_STORE(y + (vectors - 1) * LANES, sum[o][vectors - 1], rest);
    }
}

#define ROW(block, vectors)                                                                                            \
    static void NAME(row_##vectors##_##block)(const kiln_conv_row *r)                                                  \
    {                                                                                                                  \
        NAME(row)(block, vectors, r);                                                                                  \
    }
#define ROWS(block) ROW(block, 1) ROW(block, 2) ROW(block, 3)
KILN_CONV_BLOCKS(ROWS)
#undef ROW
#undef ROWS

#endif

KILN_CONV_INLINE void NAME(taps)(const int rows, const int taps, const kiln_conv_taps *t)
{
    VEC sum[KILN_CONV_MAX_ROWS][KILN_CONV_MAX_TAPS];
    KILN_CONV_UNROLL
    for (int u = 0; u < rows; u++) {
        KILN_CONV_UNROLL
        for (int v = 0; v < taps; v++)
            sum[u][v] = LOAD(t->gw + (u * taps + v) * LANES);
    }
    const float *gy = t->gy;
    const int64_t step = t->x_step;
    for (int64_t line = 0; line < t->height; line++) {
        const float *x[KILN_CONV_MAX_ROWS];
        KILN_CONV_UNROLL
        for (int u = 0; u < rows; u++)
            x[u] = t->x + line * t->x_line + u * t->x_row;
        for (int64_t i = 0, at = 0; i < t->width; i++, at += step, gy += LANES) {
            VEC g = LOAD(gy);
            KILN_CONV_UNROLL
            for (int u = 0; u < rows; u++) {
                KILN_CONV_UNROLL
                for (int v = 0; v < taps; v++)
                    sum[u][v] = KILN_CONV_FMA(g, x[u][at + v] - (VEC){0}, sum[u][v]);
            }
        }
    }
    KILN_CONV_UNROLL
    for (int u = 0; u < rows; u++) {
        KILN_CONV_UNROLL
        for (int v = 0; v < taps; v++)
            *(VECU *)(t->gw + (u * taps + v) * LANES) = sum[u][v];
    }
}

#define TAPS(across, rows)                                                                                             \
    static void NAME(taps_##across##_##rows)(const kiln_conv_taps *t)                                                  \
    {                                                                                                                  \
        NAME(taps)(rows, across, t);                                                                                   \
    }
KILN_CONV_TAPS(TAPS)
#undef TAPS

/* Four rows of `from` at a time, transposed in registers; absent rows are zero. */
static void NAME(turn)(float *to, const float *from, int64_t count, int64_t n)
{
    for (int64_t o = 0; o < LANES; o += 4) {
        int64_t rows = count - o < 0 ? 0 : count - o < 4 ? count - o : 4, i = 0;
        const float *at = from + o * n;
        for (; i + 4 <= n; i += 4) {
            kiln_conv_quad r[4];
            KILN_CONV_UNROLL
            for (int q = 0; q < 4; q++)
                r[q] = q < rows ? (kiln_conv_quad) * (const kiln_conv_quadu *)(at + q * n + i) : (kiln_conv_quad){0};
            kiln_conv_quad a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
            kiln_conv_quad b = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
            kiln_conv_quad c = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
            kiln_conv_quad d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
            *(kiln_conv_quadu *)(to + (i + 0) * LANES + o) = __builtin_shufflevector(a, b, 0, 1, 4, 5);
            *(kiln_conv_quadu *)(to + (i + 1) * LANES + o) = __builtin_shufflevector(a, b, 2, 3, 6, 7);
            *(kiln_conv_quadu *)(to + (i + 2) * LANES + o) = __builtin_shufflevector(c, d, 0, 1, 4, 5);
            *(kiln_conv_quadu *)(to + (i + 3) * LANES + o) = __builtin_shufflevector(c, d, 2, 3, 6, 7);
        }
        for (; i < n; i++)
            for (int64_t q = 0; q < 4; q++)
                to[i * LANES + o + q] = q < rows ? at[q * n + i] : 0;
    }
}

#undef NAME
#undef VEC
#undef VECU
#undef LANES
#undef LOAD
#undef KILN_CONV_NAME
#undef KILN_CONV_BYTES
#undef KILN_CONV_FMA
#undef KILN_CONV_STORE
#undef KILN_CONV_BLOCKS
#endif
