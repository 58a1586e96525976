/* All row kernels of one instruction set: rows_plain.c, rows_avx2.c and rows_avx512.c define ROWS_TABLE and include it.
 */
#include <math.h>
#include <string.h>
#include "device/cpu/rows/rows.h"
#include "device/cpu/math/vector_math.h"

#ifdef __clang__
#define IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define IVDEP _Pragma("GCC ivdep")
#endif

#if defined(__AVX512F__)
#define WIDTH 64
#elif defined(__AVX2__)
#define WIDTH 32
#else
#define WIDTH 16
#endif
#define PARTS (64 / WIDTH)

enum { BLOCK = 2048 }; /* elements whose exponentials stay in the first-level cache until they are summed */

#define REAL    float
#define BITS    int32_t
#define NAME(x) kiln_f32_##x
#define VEC     KILN_V32
#include "device/cpu/rows/rows_kernels.h"
#include "device/cpu/rows/lstm_rows.h"
#undef REAL
#undef BITS
#undef NAME
#undef VEC

#define REAL    double
#define BITS    int64_t
#define NAME(x) kiln_f64_##x
#define VEC     KILN_V64
#include "device/cpu/rows/rows_kernels.h"
#include "device/cpu/rows/lstm_rows.h"
#undef REAL
#undef BITS
#undef NAME
#undef VEC

static const kiln_rows_kernels kernels = {
    .f32 = {kiln_f32_softmax, kiln_f32_softmax_columns, kiln_f32_normalize, kiln_f32_layer_norm,
            kiln_f32_layer_norm_grad, kiln_f32_attend, kiln_f32_attend_grad, kiln_f32_row_dots, kiln_f32_lstm,
            kiln_f32_lstm_grad},
    .f64 = {kiln_f64_softmax, kiln_f64_softmax_columns, kiln_f64_normalize, kiln_f64_layer_norm,
            kiln_f64_layer_norm_grad, kiln_f64_attend, kiln_f64_attend_grad, kiln_f64_row_dots, kiln_f64_lstm,
            kiln_f64_lstm_grad},
};
const kiln_rows_kernels *const ROWS_TABLE = &kernels;
