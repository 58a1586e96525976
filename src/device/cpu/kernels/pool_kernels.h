/* Pooling loops that are worth one instruction set's own: the first part is the table that pool.c sees; the files that
 * define POOL_TABLE (pool_plain.c, pool_avx2.c and pool_avx512.c) get the loops, which the compiler vectorises. */
#ifndef KILN_CPU_POOL_KERNELS_H
#define KILN_CPU_POOL_KERNELS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct kiln_pool_kernels {
    /* Maxima of 2 × 2 windows side by side, in dense planes of `rows` × `columns` windows and less than 2^31 elements,
     * and where in its plane each was found. A NaN is taken over any number, the last one over others; of equal ones
     * the first. */
    void (*max2)(const float *x, int64_t planes, int64_t rows, int64_t columns, float *values, int64_t *indices);

    /* Maxima of `n` windows (at least kiln_pool_kernels.lanes) of rows × columns elements, in a row of windows `stride`
     * (1 or 2) apart: x[at + w·stride + r·row + c·column] is an element of window w. The same rules; at most 2·lanes
     * elements are read from where each last vector begins. */
    void (*max_row)(const float *x, int64_t at, int64_t n, int64_t stride, int64_t rows, int64_t row, int64_t columns,
                    int64_t column, float *values, int64_t *indices);

    /* The means of `rows` dense rows of n elements, summed in double. */
    void (*means)(const float *x, int64_t rows, int64_t n, float *y);
    int lanes;
} kiln_pool_kernels;

/* NULL where the compiler did not have the instructions. */
extern const kiln_pool_kernels *const kiln_pool_plain, *const kiln_pool_avx2, *const kiln_pool_avx512;

#endif

#ifdef POOL_TABLE

#if defined(__AVX512F__)
#define VECTOR 16
#define COUNT  0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#define EVEN   0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD    1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif defined(__AVX2__)
#define VECTOR 8
#define COUNT  0, 1, 2, 3, 4, 5, 6, 7
#define EVEN   0, 2, 4, 6, 8, 10, 12, 14
#define ODD    1, 3, 5, 7, 9, 11, 13, 15
#else
#define VECTOR 4
#define COUNT  0, 1, 2, 3
#define EVEN   0, 2, 4, 6
#define ODD    1, 3, 5, 7
#endif
typedef float reals __attribute__((vector_size(4 * VECTOR), may_alias));
typedef int32_t numbers __attribute__((vector_size(4 * VECTOR), may_alias));

typedef float loose_reals __attribute__((vector_size(4 * VECTOR), may_alias, aligned(4)));
typedef int32_t loose_numbers __attribute__((vector_size(4 * VECTOR), may_alias, aligned(4)));

enum { PIECE = 512 }; /* columns whose larger elements stay in the first-level cache until neighbours are compared */

/* The larger of two elements of a column, and where it was found: at `first` + i, or `width` further. Up to a vector
 * more is read and written. */
static inline void larger_of_rows(const float *upper, int64_t lower, int32_t first, int32_t width, int64_t n,
                                  float *value, int32_t *at)
{
    numbers place = (numbers){COUNT} + first;
    for (int64_t i = 0; i < n; i += VECTOR, place += VECTOR) {
        reals a = *(const loose_reals *)(upper + i), b = *(const loose_reals *)(upper + lower + i);
        numbers take = (b > a) | (b != b);
        *(loose_numbers *)(value + i) = (take & (numbers)b) | (~take & (numbers)a);
        *(loose_numbers *)(at + i) = place + (take & width);
    }
}

/* Of two columns' larger elements, n of them a multiple of VECTOR. The one that comes later in the window has to be
 * larger, not equal. */
static inline void larger_of_columns(const float *value, const int32_t *at, int64_t n, float *values, int32_t *places)
{
    for (int64_t i = 0; i < n; i += VECTOR) {
        reals low = *(const reals *)(value + 2 * i), high = *(const reals *)(value + 2 * i + VECTOR);
        numbers at_low = *(const numbers *)(at + 2 * i), at_high = *(const numbers *)(at + 2 * i + VECTOR);
        reals a = __builtin_shufflevector(low, high, EVEN), b = __builtin_shufflevector(low, high, ODD);
        numbers at_a = __builtin_shufflevector(at_low, at_high, EVEN);
        numbers at_b = __builtin_shufflevector(at_low, at_high, ODD);
        numbers take_later = (b > a) | (b != b), keep_later = (a > b) | (a != a), b_is_later = at_b > at_a;
        numbers right = (b_is_later & take_later) | (~b_is_later & ~keep_later);
        *(numbers *)(values + i) = (right & (numbers)b) | (~right & (numbers)a);
        *(numbers *)(places + i) = (right & at_b) | (~right & at_a);
    }
}

/* One after another, all planes' rows of windows: rows follow each other in memory, across planes too. Several at a
 * time while they fit: then neighbours in memory are neighbours in a row. */
static void max2(const float *x, int64_t planes, int64_t rows, int64_t columns, float *values, int64_t *indices)
{
    float value[PIECE + VECTOR] __attribute__((aligned(64))), larger[PIECE / 2] __attribute__((aligned(64)));
    int32_t at[PIECE + VECTOR] __attribute__((aligned(64))), place[PIECE / 2] __attribute__((aligned(64)));
    float last[2 * (PIECE + VECTOR)];
    int64_t width = 2 * columns, piece = width < PIECE ? width : PIECE, together = PIECE / piece, total = planes * rows;
    for (int64_t row = 0; row < total; row += together) {
        int64_t count = total - row < together ? total - row : together;
        for (int64_t column = 0, n; column < width; column += n) {
            n = width - column < piece ? width - column : piece;
            for (int64_t r = 0, in_plane = row % rows; r < count; r++, in_plane++) {
                in_plane = in_plane < rows ? in_plane : 0;
                const float *upper = x + (row + r) * 2 * width + column;
                int64_t first = in_plane * 2 * width + column, lower = width;
                int64_t read = (row + r) * 2 * width + column + width + (n + VECTOR - 1) / VECTOR * VECTOR;
                if (read > total * 2 * width) { /* behind the last plane there is nothing to read */
                    lower = PIECE + VECTOR;
                    memcpy(last, upper, (size_t)n * sizeof *last);
                    memcpy(last + lower, upper + width, (size_t)n * sizeof *last);
                    memset(last + n, 0, VECTOR * sizeof *last);
                    memset(last + lower + n, 0, VECTOR * sizeof *last);
                    upper = last;
                }
                larger_of_rows(upper, lower, (int32_t)first, (int32_t)width, n, value + r * n, at + r * n);
            }
            int64_t made = count * n / 2, whole = (made + VECTOR - 1) / VECTOR * VECTOR;
            for (int64_t i = 2 * made; i < 2 * whole; i++) {
                value[i] = 0;
                at[i] = 0;
            }
            larger_of_columns(value, at, whole, larger, place);
            for (int64_t i = 0; i < made; i++) {
                values[i] = larger[i];
                indices[i] = place[i];
            }
            values += made;
            indices += made;
        }
    }
}

static inline reals every_second(const float *x)
{
    reals low = *(const loose_reals *)x, high = *(const loose_reals *)(x + VECTOR);
    return __builtin_shufflevector(low, high, EVEN);
}

/* The last vector of windows overlaps the one before it where n is no multiple. */
static void max_row(const float *x, int64_t at, int64_t n, int64_t stride, int64_t rows, int64_t row, int64_t columns,
                    int64_t column, float *values, int64_t *indices)
{
    for (int64_t i = 0; i < n; i += VECTOR) {
        int64_t w = i + VECTOR <= n ? i : n - VECTOR, first = at + w * stride;
        numbers steps = (numbers){COUNT} * (int32_t)stride, best = steps + (int32_t)first;
        numbers value = (numbers)(stride == 2 ? every_second(x + first) : (reals) * (const loose_reals *)(x + first));
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < columns; c++) {
                int64_t place = first + r * row + c * column;
                reals b = stride == 2 ? every_second(x + place) : (reals) * (const loose_reals *)(x + place);
                numbers take = (b > (reals)value) | (b != b);
                value = (take & (numbers)b) | (~take & value);
                best = (take & (steps + (int32_t)place)) | (~take & best);
            }
        *(loose_numbers *)(values + w) = value;
        for (int k = 0; k < VECTOR; k++)
            indices[w + k] = best[k];
    }
}

static void means(const float *x, int64_t rows, int64_t n, float *y)
{
    for (int64_t r = 0; r < rows; r++, x += n) {
        double lanes[8] = {0}, rest = 0;
        int64_t i = 0;
        for (; i + 8 <= n; i += 8)
            for (int l = 0; l < 8; l++)
                lanes[l] += (double)x[i + l];
        for (; i < n; i++)
            rest += (double)x[i];
        for (int width = 4; width > 0; width /= 2)
            for (int l = 0; l < width; l++)
                lanes[l] += lanes[l + width];
        y[r] = (float)((lanes[0] + rest) / (double)n);
    }
}

static const kiln_pool_kernels kernels = {.max2 = max2, .max_row = max_row, .means = means, .lanes = VECTOR};
const kiln_pool_kernels *const POOL_TABLE = &kernels;

#endif
