/* Operations, with PyTorch's names, argument order, defaults and results. Each returns a fresh handle owned by the
 * current scope, or NULL with an error that names the operation; a NULL operand gives NULL. Operands broadcast and
 * promote as PyTorch's do. Dims may be negative (counted from the end). Where a list of dims is given as (n, dims), n =
 * 0 means all dims; KILN_DIMS(0, 2) writes both arguments. */
#ifndef KILN_OPS_H
#define KILN_OPS_H

#include "kiln/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KILN_T kiln_tensor *

/* ---- Making tensors: on the default device; dtype as given ---- */
KILN_API KILN_T kiln_full(int ndim, const int64_t *shape, double value, kiln_dtype dtype);
KILN_API KILN_T kiln_zeros(int ndim, const int64_t *shape, kiln_dtype dtype);
KILN_API KILN_T kiln_ones(int ndim, const int64_t *shape, kiln_dtype dtype);
KILN_API KILN_T kiln_scalar(double value, kiln_dtype dtype); /* no dimensions */
KILN_API KILN_T kiln_full_like(KILN_T x, double value);      /* same shape, dtype, device */
KILN_API KILN_T kiln_zeros_like(KILN_T x);
KILN_API KILN_T kiln_ones_like(KILN_T x);
KILN_API KILN_T kiln_arange(double start, double end, double step, kiln_dtype dtype); /* end excluded */
KILN_API KILN_T kiln_linspace(double start, double end, int64_t steps, kiln_dtype dtype);
KILN_API KILN_T kiln_eye(int64_t n, int64_t m, kiln_dtype dtype); /* [n, m] */

/* ---- Random numbers: the same on every device and for any number of threads ---- */
KILN_API void kiln_manual_seed(uint64_t seed); /* this thread's generator; 0 at first */
typedef struct kiln_random_state {             /* where the thread's generator stands, to go on from there later */
    uint64_t seed, offset;
} kiln_random_state;
KILN_API kiln_random_state kiln_random_get(void);
KILN_API void kiln_random_set(kiln_random_state state);
KILN_API KILN_T kiln_rand(int ndim, const int64_t *shape, kiln_dtype dtype);  /* uniform in [0, 1) */
KILN_API KILN_T kiln_randn(int ndim, const int64_t *shape, kiln_dtype dtype); /* normal, mean 0, variance 1 */
KILN_API KILN_T kiln_randint(int64_t low, int64_t high, int ndim, const int64_t *shape,
                             kiln_dtype dtype); /* [low, high) */
KILN_API KILN_T kiln_bernoulli(KILN_T p);       /* 1 with probability p, else 0; p's shape and dtype. A p that is not
                                                   between 0 and 1 is an error when the step runs */
KILN_API KILN_T kiln_randperm(int64_t n, kiln_dtype dtype);

/* ---- Arithmetic, element by element ---- */
KILN_API KILN_T kiln_add(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_sub(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_mul(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_div(KILN_T a, KILN_T b); /* true division: integers give f32 */
/* Integers that are divided by 0 here are an error when the step runs (on the CPU; other devices give 0). */
KILN_API KILN_T kiln_floor_divide(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_remainder(KILN_T a, KILN_T b); /* sign of b, as Python's % */
KILN_API KILN_T kiln_fmod(KILN_T a, KILN_T b);      /* sign of a, as C's fmod */
KILN_API KILN_T kiln_pow(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_atan2(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_hypot(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_maximum(KILN_T a, KILN_T b); /* NaN if either is */
KILN_API KILN_T kiln_minimum(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_add_scalar(KILN_T a, double s);
KILN_API KILN_T kiln_mul_scalar(KILN_T a, double s);
KILN_API KILN_T kiln_div_scalar(KILN_T a, double s);
KILN_API KILN_T kiln_rsub_scalar(KILN_T a, double s); /* s - a */
KILN_API KILN_T kiln_rdiv_scalar(KILN_T a, double s); /* s / a */
KILN_API KILN_T kiln_pow_scalar(KILN_T a, double s);
KILN_API KILN_T kiln_rpow_scalar(KILN_T a, double s); /* s to the power of a */
KILN_API KILN_T kiln_remainder_scalar(KILN_T a, double s);
KILN_API KILN_T kiln_lerp(KILN_T a, KILN_T b, double weight);             /* a + weight·(b - a) */
KILN_API KILN_T kiln_addcmul(KILN_T x, KILN_T a, KILN_T b, double value); /* x + value·a·b */
KILN_API KILN_T kiln_addcdiv(KILN_T x, KILN_T a, KILN_T b, double value); /* x + value·a/b */
KILN_API KILN_T kiln_neg(KILN_T x);
KILN_API KILN_T kiln_abs(KILN_T x);
KILN_API KILN_T kiln_sign(KILN_T x);
KILN_API KILN_T kiln_square(KILN_T x);
KILN_API KILN_T kiln_sqrt(KILN_T x);
KILN_API KILN_T kiln_rsqrt(KILN_T x);
KILN_API KILN_T kiln_reciprocal(KILN_T x);
KILN_API KILN_T kiln_exp(KILN_T x);
KILN_API KILN_T kiln_exp2(KILN_T x);
KILN_API KILN_T kiln_expm1(KILN_T x);
KILN_API KILN_T kiln_log(KILN_T x);
KILN_API KILN_T kiln_log2(KILN_T x);
KILN_API KILN_T kiln_log10(KILN_T x);
KILN_API KILN_T kiln_log1p(KILN_T x);
KILN_API KILN_T kiln_sin(KILN_T x);
KILN_API KILN_T kiln_cos(KILN_T x);
KILN_API KILN_T kiln_tan(KILN_T x);
KILN_API KILN_T kiln_asin(KILN_T x);
KILN_API KILN_T kiln_acos(KILN_T x);
KILN_API KILN_T kiln_atan(KILN_T x);
KILN_API KILN_T kiln_sinh(KILN_T x);
KILN_API KILN_T kiln_cosh(KILN_T x);
KILN_API KILN_T kiln_tanh(KILN_T x);
KILN_API KILN_T kiln_asinh(KILN_T x);
KILN_API KILN_T kiln_acosh(KILN_T x);
KILN_API KILN_T kiln_atanh(KILN_T x);
KILN_API KILN_T kiln_erf(KILN_T x);
KILN_API KILN_T kiln_erfc(KILN_T x);
KILN_API KILN_T kiln_floor(KILN_T x);
KILN_API KILN_T kiln_ceil(KILN_T x);
KILN_API KILN_T kiln_round(KILN_T x); /* halves to even */
KILN_API KILN_T kiln_trunc(KILN_T x);
KILN_API KILN_T kiln_frac(KILN_T x);
KILN_API KILN_T kiln_clamp(KILN_T x, double min, double max); /* -INFINITY, INFINITY: no bound; NaN: all NaN */
/* x itself when it has that type. Floats are cut off to integers; what does not fit i32 or i64, and NaN, becomes the
 * lowest number of the type (on the CPU; other devices give the nearest), u8 keeps the low bits of the i64. */
KILN_API KILN_T kiln_cast(KILN_T x, kiln_dtype dtype);

/* ---- Comparison and logic: bool results ---- */
KILN_API KILN_T kiln_eq(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_ne(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_lt(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_le(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_gt(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_ge(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_eq_scalar(KILN_T a, double s);
KILN_API KILN_T kiln_ne_scalar(KILN_T a, double s);
KILN_API KILN_T kiln_lt_scalar(KILN_T a, double s);
KILN_API KILN_T kiln_le_scalar(KILN_T a, double s);
KILN_API KILN_T kiln_gt_scalar(KILN_T a, double s);
KILN_API KILN_T kiln_ge_scalar(KILN_T a, double s);
KILN_API KILN_T kiln_logical_and(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_logical_or(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_logical_xor(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_logical_not(KILN_T x);
KILN_API KILN_T kiln_bitwise_and(KILN_T a, KILN_T b); /* integers and bools */
KILN_API KILN_T kiln_bitwise_or(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_bitwise_xor(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_bitwise_not(KILN_T x);
KILN_API KILN_T kiln_isnan(KILN_T x);
KILN_API KILN_T kiln_isinf(KILN_T x);
KILN_API KILN_T kiln_isfinite(KILN_T x);
KILN_API KILN_T kiln_where(KILN_T condition, KILN_T a, KILN_T b);
KILN_API KILN_T kiln_masked_fill(KILN_T x, KILN_T mask, double value);

/* ---- Activations ---- */
KILN_API KILN_T kiln_relu(KILN_T x);
KILN_API KILN_T kiln_relu6(KILN_T x);
KILN_API KILN_T kiln_leaky_relu(KILN_T x, double negative_slope);
KILN_API KILN_T kiln_elu(KILN_T x, double alpha);
KILN_API KILN_T kiln_selu(KILN_T x);
KILN_API KILN_T kiln_celu(KILN_T x, double alpha);
KILN_API KILN_T kiln_gelu(KILN_T x);      /* exact, with erf */
KILN_API KILN_T kiln_gelu_tanh(KILN_T x); /* PyTorch's approximate="tanh" */
KILN_API KILN_T kiln_silu(KILN_T x);
KILN_API KILN_T kiln_sigmoid(KILN_T x);
KILN_API KILN_T kiln_logsigmoid(KILN_T x);
KILN_API KILN_T kiln_softplus(KILN_T x, double beta, double threshold); /* PyTorch's defaults: 1, 20 */
KILN_API KILN_T kiln_hardswish(KILN_T x);
KILN_API KILN_T kiln_hardsigmoid(KILN_T x);
KILN_API KILN_T kiln_hardtanh(KILN_T x, double min, double max);
KILN_API KILN_T kiln_mish(KILN_T x);
KILN_API KILN_T kiln_softsign(KILN_T x);
KILN_API KILN_T kiln_softmax(KILN_T x, int dim);
KILN_API KILN_T kiln_log_softmax(KILN_T x, int dim);
KILN_API KILN_T kiln_dropout(KILN_T x, double p, bool training);

/* ---- Reductions ---- */
KILN_API KILN_T kiln_sum(KILN_T x, int n, const int64_t *dims, bool keepdim); /* bools and integers give i64 */
KILN_API KILN_T kiln_sum_all(KILN_T x);
KILN_API KILN_T kiln_mean(KILN_T x, int n, const int64_t *dims, bool keepdim);
KILN_API KILN_T kiln_mean_all(KILN_T x);
KILN_API KILN_T kiln_prod(KILN_T x, int n, const int64_t *dims, bool keepdim);
KILN_API KILN_T kiln_amax(KILN_T x, int n, const int64_t *dims, bool keepdim);
KILN_API KILN_T kiln_amin(KILN_T x, int n, const int64_t *dims, bool keepdim);
KILN_API KILN_T kiln_any(KILN_T x, int n, const int64_t *dims, bool keepdim); /* bool; of u8: u8 */
KILN_API KILN_T kiln_all(KILN_T x, int n, const int64_t *dims, bool keepdim);
KILN_API KILN_T kiln_var(KILN_T x, int n, const int64_t *dims, int64_t correction, bool keepdim);
KILN_API KILN_T kiln_std(KILN_T x, int n, const int64_t *dims, int64_t correction, bool keepdim);
KILN_API KILN_T kiln_logsumexp(KILN_T x, int n, const int64_t *dims, bool keepdim);
KILN_API KILN_T kiln_norm(KILN_T x, double p, int n, const int64_t *dims, bool keepdim); /* p: any, 0, INFINITY */
KILN_API KILN_T kiln_max(KILN_T x, int dim, bool keepdim, KILN_T *indices); /* values; *indices (may be NULL) i64 */
KILN_API KILN_T kiln_min(KILN_T x, int dim, bool keepdim, KILN_T *indices);
KILN_API KILN_T kiln_argmax(KILN_T x, int dim, bool keepdim); /* the first of equal ones; KILN_FLAT: over all */
KILN_API KILN_T kiln_argmin(KILN_T x, int dim, bool keepdim);
#define KILN_FLAT INT32_MIN
KILN_API KILN_T kiln_cumsum(KILN_T x, int dim);
KILN_API KILN_T kiln_cumprod(KILN_T x, int dim);

/* ---- Products ---- */
KILN_API KILN_T kiln_matmul(KILN_T a, KILN_T b); /* 1-d, 2-d and batched, broadcasting the batch dims; any numbers */
KILN_API KILN_T kiln_linear(KILN_T x, KILN_T weight,
                            KILN_T bias); /* x·weightᵀ + bias; weight [out, in]; bias may be NULL */
KILN_API KILN_T kiln_outer(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_dot(KILN_T a, KILN_T b);
KILN_API KILN_T kiln_einsum(const char *equation, int n, KILN_T const *operands);

/* ---- Convolution, pooling, resizing: [batch, channels, height, width], 1d: [batch, channels, length] ----
 * In option lists 0 stands for the default; the 1d functions take every number as it is. */
KILN_API KILN_T kiln_conv1d(KILN_T x, KILN_T weight, KILN_T bias, int64_t stride, int64_t padding, int64_t dilation,
                            int64_t groups); /* weight [out, in/groups, k] */
typedef struct kiln_conv_options {
    size_t size;                                                           /* of the struct; the macros set it */
    int64_t stride[2], padding[2], output_padding[2], dilation[2], groups; /* 0 stands for PyTorch's default */
} kiln_conv_options;
KILN_API KILN_T kiln_conv2d_(KILN_T x, KILN_T weight, KILN_T bias, const kiln_conv_options *options);
KILN_API KILN_T kiln_conv_transpose2d_(KILN_T x, KILN_T weight, KILN_T bias, const kiln_conv_options *options);
/* kiln_conv2d(x, w, b, .stride = {2, 2}, .padding = {1, 1}); weight [out, in/groups, kh, kw] */
#define kiln_conv2d(...) KILN_CALL3_(kiln_conv2d_, kiln_conv_options, __VA_ARGS__, )
/* weight [in, out/groups, kh, kw] */
#define kiln_conv_transpose2d(...) KILN_CALL3_(kiln_conv_transpose2d_, kiln_conv_options, __VA_ARGS__, )
KILN_API KILN_T kiln_conv_transpose1d(KILN_T x, KILN_T weight, KILN_T bias, int64_t stride, int64_t padding,
                                      int64_t output_padding, int64_t groups, int64_t dilation);
typedef struct kiln_pool_options {
    size_t size;       /* of the struct; the macros set it */
    int64_t stride[2]; /* 0: the kernel size */
    int64_t padding[2], dilation[2];
    bool ceil_mode, exclude_pad; /* exclude_pad: PyTorch's count_include_pad=False */
} kiln_pool_options;
KILN_API KILN_T kiln_max_pool2d_(KILN_T x, int64_t kh, int64_t kw, const kiln_pool_options *options);
KILN_API KILN_T kiln_avg_pool2d_(KILN_T x, int64_t kh, int64_t kw, const kiln_pool_options *options);
/* kiln_max_pool2d(x, kh, kw, .padding = {1, 1}) */
#define kiln_max_pool2d(...) KILN_CALL3_(kiln_max_pool2d_, kiln_pool_options, __VA_ARGS__, )
#define kiln_avg_pool2d(...) KILN_CALL3_(kiln_avg_pool2d_, kiln_pool_options, __VA_ARGS__, )
KILN_API KILN_T kiln_max_pool1d(KILN_T x, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation,
                                bool ceil_mode);
KILN_API KILN_T kiln_avg_pool1d(KILN_T x, int64_t kernel, int64_t stride, int64_t padding, bool ceil_mode,
                                bool count_include_pad);
KILN_API KILN_T kiln_adaptive_avg_pool1d(KILN_T x, int64_t length);
KILN_API KILN_T kiln_adaptive_max_pool1d(KILN_T x, int64_t length);
KILN_API KILN_T kiln_adaptive_avg_pool2d(KILN_T x, int64_t height, int64_t width);
KILN_API KILN_T kiln_adaptive_max_pool2d(KILN_T x, int64_t height, int64_t width);
typedef enum kiln_resize { KILN_NEAREST, KILN_LINEAR, KILN_BICUBIC } kiln_resize; /* KILN_LINEAR is bilinear in 2d */
KILN_API KILN_T kiln_interpolate(KILN_T x, int n, const int64_t *size, kiln_resize mode, bool align_corners);

/* ---- Normalisation and attention ---- */
KILN_API KILN_T kiln_layer_norm(KILN_T x, int n, const int64_t *normalized_shape, KILN_T weight, KILN_T bias,
                                double eps);
KILN_API KILN_T kiln_rms_norm(KILN_T x, int n, const int64_t *normalized_shape, KILN_T weight, double eps);
KILN_API KILN_T kiln_group_norm(KILN_T x, int64_t groups, KILN_T weight, KILN_T bias, double eps);
/* Training: normalises by the batch and updates running_mean/var (which may be NULL) in place; eval: by these. */
KILN_API KILN_T kiln_batch_norm(KILN_T x, KILN_T running_mean, KILN_T running_var, KILN_T weight, KILN_T bias,
                                bool training, double momentum, double eps);
KILN_API KILN_T kiln_embedding(KILN_T weight, KILN_T indices,
                               int64_t padding_idx); /* weight [rows, width]; padding_idx -1: none */
/* q [..., L, E], k and v [..., S, E]; mask: NULL, bool (true: take part) or float (added); scale 0: 1/sqrt(E). Where q
 * is [N, heads, L, E], k and v may have fewer heads, if their number divides q's: neighbours share one. */
KILN_API KILN_T kiln_scaled_dot_product_attention(KILN_T q, KILN_T k, KILN_T v, KILN_T mask, double dropout_p,
                                                  bool causal, double scale);
typedef struct kiln_sdpa_options {
    size_t size;    /* of the struct; the macro sets it */
    KILN_T mask;    /* as above */
    KILN_T lengths; /* i64 [N]: keys and values that each sequence has; those behind them are not looked at */
    double dropout; /* of weights: 0 */
    bool causal;    /* query i sees keys up to i */
    double scale;   /* 1/sqrt(E) */
} kiln_sdpa_options;
KILN_API KILN_T kiln_sdpa_(KILN_T q, KILN_T k, KILN_T v, const kiln_sdpa_options *options);
/* The same by names: kiln_sdpa(q, k, v, .lengths = n, .causal = true) */
#define kiln_sdpa(...) KILN_CALL3_(kiln_sdpa_, kiln_sdpa_options, __VA_ARGS__, )
/* Rotary position embedding of x [..., T, D], by tables cos and sin [T, D/2] of f32 (f64 where x is that): element i of
 * a row is turned together with element D/2 + i. x is read as it lies, so a transposed view costs nothing. */
KILN_API KILN_T kiln_rotary(KILN_T x, KILN_T cos, KILN_T sin);

/* One layer and direction of PyTorch's LSTM over a sequence x [T, N, in], from h0 and c0 [N, H]. w_ih [4H, in], w_hh
 * [4H, H], b_ih and b_hh [4H] (each may be NULL); gates in the order i, f, g, o. Returns h of all steps, [T, N, H]; *hn
 * and *cn (may be NULL) are the last step's h and c, [N, H]. For the other direction, flip x and the result along T. */
KILN_API KILN_T kiln_lstm(KILN_T x, KILN_T h0, KILN_T c0, KILN_T w_ih, KILN_T w_hh, KILN_T b_ih, KILN_T b_hh,
                          KILN_T *hn, KILN_T *cn);

/* ---- Picking and placing elements ---- */
KILN_API KILN_T kiln_gather(KILN_T x, int dim, KILN_T index);
KILN_API KILN_T kiln_scatter(KILN_T x, int dim, KILN_T index, KILN_T src); /* of equal indices the last one stays */
KILN_API KILN_T kiln_scatter_add(KILN_T x, int dim, KILN_T index, KILN_T src);
KILN_API KILN_T kiln_index_select(KILN_T x, int dim, KILN_T index);          /* index is 1-d */
KILN_API KILN_T kiln_index_add(KILN_T x, int dim, KILN_T index, KILN_T src); /* x[index[i]] += src[i] along dim */
KILN_API KILN_T kiln_one_hot(KILN_T index, int64_t classes);                 /* i64 */
KILN_API KILN_T kiln_tril(KILN_T x, int64_t diagonal);
KILN_API KILN_T kiln_triu(KILN_T x, int64_t diagonal);
KILN_API KILN_T kiln_sort(KILN_T x, int dim, bool descending, KILN_T *indices); /* stable; NaN counts as greatest */
KILN_API KILN_T kiln_argsort(KILN_T x, int dim, bool descending);
KILN_API KILN_T kiln_topk(KILN_T x, int64_t k, int dim, bool largest,
                          KILN_T *indices); /* sorted; ties: lower index first */

/* ---- Shapes ---- */
KILN_API KILN_T kiln_reshape(KILN_T x, int n, const int64_t *shape); /* one size may be -1; a view where possible */
KILN_API KILN_T kiln_flatten(KILN_T x, int start_dim, int end_dim);
KILN_API KILN_T kiln_permute(KILN_T x, int n, const int64_t *dims);
KILN_API KILN_T kiln_transpose(KILN_T x, int dim0, int dim1);
KILN_API KILN_T kiln_movedim(KILN_T x, int source, int destination);
KILN_API KILN_T kiln_squeeze(KILN_T x, int dim); /* KILN_FLAT: every dim of size 1 */
KILN_API KILN_T kiln_unsqueeze(KILN_T x, int dim);
KILN_API KILN_T kiln_expand(KILN_T x, int n, const int64_t *shape);                      /* -1 keeps a size */
KILN_API KILN_T kiln_slice(KILN_T x, int dim, int64_t start, int64_t end, int64_t step); /* as Python's; step ≥ 1 */
KILN_API KILN_T kiln_select(KILN_T x, int dim, int64_t index);
KILN_API KILN_T kiln_unfold(KILN_T x, int dim, int64_t size, int64_t step); /* windows along dim, as a new last dim */
KILN_API KILN_T kiln_diagonal(KILN_T x, int64_t offset, int dim0, int dim1);
KILN_API KILN_T kiln_contiguous(KILN_T x); /* x itself when it is */
KILN_API KILN_T kiln_clone(KILN_T x);
KILN_API KILN_T kiln_cat(int n, KILN_T const *tensors, int dim);
KILN_API KILN_T kiln_stack(int n, KILN_T const *tensors, int dim);
KILN_API int kiln_split(KILN_T x, int64_t size, int dim, KILN_T *parts, int max_parts); /* how many; -1 with an error */
KILN_API int kiln_chunk(KILN_T x, int64_t chunks, int dim, KILN_T *parts, int max_parts);
typedef enum kiln_pad_mode { KILN_PAD_CONSTANT, KILN_PAD_REFLECT, KILN_PAD_REPLICATE, KILN_PAD_CIRCULAR } kiln_pad_mode;
KILN_API KILN_T kiln_pad(KILN_T x, int n, const int64_t *pad, kiln_pad_mode mode, double value); /* last dim first */
KILN_API KILN_T kiln_flip(KILN_T x, int n, const int64_t *dims);
KILN_API KILN_T kiln_roll(KILN_T x, int64_t shift, int dim);
KILN_API KILN_T kiln_repeat(KILN_T x, int n, const int64_t *times);

/* ---- Losses ---- */
typedef enum kiln_reduction { KILN_MEAN, KILN_SUM, KILN_NONE } kiln_reduction;
typedef struct kiln_cross_entropy_options {
    size_t size;          /* of the struct; the macros set it */
    KILN_T weight;        /* [classes] or NULL */
    int64_t ignore_index; /* 0 stands for PyTorch's default -100; to ignore class 0 set ignore_zero */
    bool ignore_zero;
    kiln_reduction reduction;
    double label_smoothing;
} kiln_cross_entropy_options;
/* x [N, C] or [N, C, …]; target: i64 class indices [N, …], or probabilities of x's shape */
KILN_API KILN_T kiln_cross_entropy_(KILN_T x, KILN_T target, const kiln_cross_entropy_options *options);
/* kiln_cross_entropy(x, target, .label_smoothing = 0.1) */
#define kiln_cross_entropy(...) KILN_CALL2_(kiln_cross_entropy_, kiln_cross_entropy_options, __VA_ARGS__, )
KILN_API KILN_T kiln_nll_loss(KILN_T log_p, KILN_T target, KILN_T weight, int64_t ignore_index,
                              kiln_reduction reduction);
KILN_API KILN_T kiln_mse_loss(KILN_T x, KILN_T target, kiln_reduction reduction);
KILN_API KILN_T kiln_l1_loss(KILN_T x, KILN_T target, kiln_reduction reduction);
KILN_API KILN_T kiln_huber_loss(KILN_T x, KILN_T target, double delta, kiln_reduction reduction);
KILN_API KILN_T kiln_smooth_l1_loss(KILN_T x, KILN_T target, double beta, kiln_reduction reduction);
/* p and target between 0 and 1: others are an error when the step runs */
KILN_API KILN_T kiln_binary_cross_entropy(KILN_T p, KILN_T target, KILN_T weight, kiln_reduction reduction);
KILN_API KILN_T kiln_binary_cross_entropy_with_logits(KILN_T x, KILN_T target, KILN_T weight, KILN_T pos_weight,
                                                      kiln_reduction reduction);
KILN_API KILN_T kiln_kl_div(KILN_T log_p, KILN_T target, bool log_target, kiln_reduction reduction); /* mean over all */
/* log_p [T, N, C]; targets [N, S] i64; lengths [N] i64 */
KILN_API KILN_T kiln_ctc_loss(KILN_T log_p, KILN_T targets, KILN_T input_lengths, KILN_T target_lengths, int64_t blank,
                              kiln_reduction reduction, bool zero_infinity);

/* ---- Assignment: changes a tensor in place ---- */
KILN_API bool kiln_assign(KILN_T destination, KILN_T source); /* destination[...] = source, broadcast and cast to it */

#undef KILN_T

#ifdef __cplusplus
}
#endif
#endif
