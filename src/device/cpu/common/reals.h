/* Kernels for both real types: includes the file that KERNELS names twice, with REAL float and names that end in _f32,
 * then with REAL double and _f64. */
#define REAL    float
#define NAME(x) x##_f32
#include KERNELS
#undef REAL
#undef NAME

#define REAL    double
#define NAME(x) x##_f64
#include KERNELS
#undef REAL
#undef NAME

#undef KERNELS
