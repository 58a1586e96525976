/* Modules: layers with parameters, trees of them, and what is done with a whole tree. Names and layouts of parameters
 * are PyTorch's, so a PyTorch state_dict saved as safetensors loads by name.
 *
 * A function that makes a module returns NULL with an error when it cannot. A module given to another (as an argument
 * of kiln_nn_sequential, kiln_nn_residual, kiln_module_add) belongs to it from then on, also when that call fails; only
 * the root is freed. In option lists 0 stands for PyTorch's default. */
#ifndef KILN_NN_H
#define KILN_NN_H

#include "kiln/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kiln_module kiln_module;

/* ---- Layers ---- */

/* kiln_nn_linear(in, out, .no_bias = true): weight [out, in], bias [out] */
typedef struct kiln_linear_options {
    size_t size; /* of the struct; the macros set it */
    bool no_bias;
} kiln_linear_options;
KILN_API kiln_module *kiln_nn_linear_(int64_t in, int64_t out, const kiln_linear_options *options);
#define kiln_nn_linear(...) KILN_CALL2_(kiln_nn_linear_, kiln_linear_options, __VA_ARGS__, )

/* kiln_nn_conv2d(in, out, kernel, .stride = 2, .padding = 1). Each number holds for height and width; the ones that end
 * in _w say what the width has where it differs (-1 stands for "none", as in .padding = 1, .padding_w = -1). 1d layers
 * have no width. */
typedef struct kiln_layer_conv_options {
    size_t size; /* of the struct; the macros set it */
    int64_t stride, padding, dilation, output_padding, groups;
    int64_t kernel_w, stride_w, padding_w, dilation_w, output_padding_w;
    bool no_bias;
} kiln_layer_conv_options;
KILN_API kiln_module *kiln_nn_conv1d_(int64_t in, int64_t out, int64_t kernel, const kiln_layer_conv_options *options);
KILN_API kiln_module *kiln_nn_conv2d_(int64_t in, int64_t out, int64_t kernel, const kiln_layer_conv_options *options);
KILN_API kiln_module *kiln_nn_conv_transpose1d_(int64_t in, int64_t out, int64_t kernel,
                                                const kiln_layer_conv_options *options);
KILN_API kiln_module *kiln_nn_conv_transpose2d_(int64_t in, int64_t out, int64_t kernel,
                                                const kiln_layer_conv_options *options);
#define kiln_nn_conv1d(...)           KILN_CALL3_(kiln_nn_conv1d_, kiln_layer_conv_options, __VA_ARGS__, )
#define kiln_nn_conv2d(...)           KILN_CALL3_(kiln_nn_conv2d_, kiln_layer_conv_options, __VA_ARGS__, )
#define kiln_nn_conv_transpose1d(...) KILN_CALL3_(kiln_nn_conv_transpose1d_, kiln_layer_conv_options, __VA_ARGS__, )
#define kiln_nn_conv_transpose2d(...) KILN_CALL3_(kiln_nn_conv_transpose2d_, kiln_layer_conv_options, __VA_ARGS__, )

/* kiln_nn_embedding(count, width, .has_padding = true, .padding_idx = 0): weight [count, width]; indices i64 in */
typedef struct kiln_embedding_options {
    size_t size; /* of the struct; the macros set it */
    bool has_padding;
    int64_t padding_idx;
} kiln_embedding_options;
KILN_API kiln_module *kiln_nn_embedding_(int64_t count, int64_t width, const kiln_embedding_options *options);
#define kiln_nn_embedding(...) KILN_CALL2_(kiln_nn_embedding_, kiln_embedding_options, __VA_ARGS__, )

/* Norms. batch_norm takes [N, C] and [N, C, …]; layer_norm and rms_norm normalise the last dim, of `width`. */
typedef struct kiln_norm_options {
    size_t size;      /* of the struct; the macros set it */
    double eps;       /* 1e-5; rms_norm: that of f32 */
    double momentum;  /* batch_norm: 0.1 */
    bool no_affine;   /* without weight and bias */
    bool no_bias;     /* layer_norm: weight alone */
    bool no_tracking; /* batch_norm: the batch's own figures in eval mode, too */
} kiln_norm_options;
KILN_API kiln_module *kiln_nn_batch_norm_(int64_t channels, const kiln_norm_options *options);
KILN_API kiln_module *kiln_nn_layer_norm_(int64_t width, const kiln_norm_options *options);
KILN_API kiln_module *kiln_nn_rms_norm_(int64_t width, const kiln_norm_options *options);
KILN_API kiln_module *kiln_nn_group_norm_(int64_t groups, int64_t channels, const kiln_norm_options *options);
#define kiln_nn_batch_norm(...) KILN_CALL1_(kiln_nn_batch_norm_, kiln_norm_options, __VA_ARGS__, )
#define kiln_nn_layer_norm(...) KILN_CALL1_(kiln_nn_layer_norm_, kiln_norm_options, __VA_ARGS__, )
#define kiln_nn_rms_norm(...)   KILN_CALL1_(kiln_nn_rms_norm_, kiln_norm_options, __VA_ARGS__, )
#define kiln_nn_group_norm(...) KILN_CALL2_(kiln_nn_group_norm_, kiln_norm_options, __VA_ARGS__, )

/* Pooling: kiln_nn_max_pool2d(2, .stride = 2, .padding = 1); the stride is the kernel's size at first. */
typedef struct kiln_layer_pool_options {
    size_t size; /* of the struct; the macros set it */
    int64_t stride, padding, dilation;
    bool ceil_mode, exclude_pad; /* exclude_pad: PyTorch's count_include_pad=False */
} kiln_layer_pool_options;
KILN_API kiln_module *kiln_nn_max_pool1d_(int64_t kernel, const kiln_layer_pool_options *options);
KILN_API kiln_module *kiln_nn_max_pool2d_(int64_t kernel, const kiln_layer_pool_options *options);
KILN_API kiln_module *kiln_nn_avg_pool1d_(int64_t kernel, const kiln_layer_pool_options *options);
KILN_API kiln_module *kiln_nn_avg_pool2d_(int64_t kernel, const kiln_layer_pool_options *options);
#define kiln_nn_max_pool1d(...) KILN_CALL1_(kiln_nn_max_pool1d_, kiln_layer_pool_options, __VA_ARGS__, )
#define kiln_nn_max_pool2d(...) KILN_CALL1_(kiln_nn_max_pool2d_, kiln_layer_pool_options, __VA_ARGS__, )
#define kiln_nn_avg_pool1d(...) KILN_CALL1_(kiln_nn_avg_pool1d_, kiln_layer_pool_options, __VA_ARGS__, )
#define kiln_nn_avg_pool2d(...) KILN_CALL1_(kiln_nn_avg_pool2d_, kiln_layer_pool_options, __VA_ARGS__, )
KILN_API kiln_module *kiln_nn_adaptive_avg_pool1d(int64_t length);
KILN_API kiln_module *kiln_nn_adaptive_max_pool1d(int64_t length);
KILN_API kiln_module *kiln_nn_adaptive_avg_pool2d(int64_t height, int64_t width);
KILN_API kiln_module *kiln_nn_adaptive_max_pool2d(int64_t height, int64_t width);

/* Activations and other layers without parameters */
KILN_API kiln_module *kiln_nn_relu(void);
KILN_API kiln_module *kiln_nn_relu6(void);
KILN_API kiln_module *kiln_nn_leaky_relu(double negative_slope); /* PyTorch's default: 0.01 */
KILN_API kiln_module *kiln_nn_elu(double alpha);                 /* PyTorch's default: 1 */
KILN_API kiln_module *kiln_nn_selu(void);
KILN_API kiln_module *kiln_nn_celu(double alpha); /* PyTorch's default: 1 */
KILN_API kiln_module *kiln_nn_gelu(void);         /* exact, with erf */
KILN_API kiln_module *kiln_nn_gelu_tanh(void);
KILN_API kiln_module *kiln_nn_silu(void);
KILN_API kiln_module *kiln_nn_sigmoid(void);
KILN_API kiln_module *kiln_nn_logsigmoid(void);
KILN_API kiln_module *kiln_nn_softplus(double beta, double threshold); /* PyTorch's defaults: 1, 20 */
KILN_API kiln_module *kiln_nn_hardswish(void);
KILN_API kiln_module *kiln_nn_hardsigmoid(void);
KILN_API kiln_module *kiln_nn_hardtanh(double min, double max); /* PyTorch's defaults: -1, 1 */
KILN_API kiln_module *kiln_nn_mish(void);
KILN_API kiln_module *kiln_nn_softsign(void);
KILN_API kiln_module *kiln_nn_tanh(void);
KILN_API kiln_module *kiln_nn_softmax(int dim);
KILN_API kiln_module *kiln_nn_log_softmax(int dim);
KILN_API kiln_module *kiln_nn_dropout(double p);                      /* does nothing in eval mode */
KILN_API kiln_module *kiln_nn_flatten(void);                          /* [N, …] to [N, the rest] */
KILN_API kiln_module *kiln_nn_unflatten(int n, const int64_t *shape); /* [N, the rest] to [N, shape…] */
KILN_API kiln_module *kiln_nn_upsample(int64_t scale, kiln_resize mode);
KILN_API kiln_module *kiln_nn_identity(void);

/* Attention: [N, L, width] in and out; in_proj_weight [3·width, width], in_proj_bias, out_proj.weight, out_proj.bias.
 * kiln_forward attends from x to x. */
typedef struct kiln_attention_options {
    size_t size; /* of the struct; the macros set it */
    double dropout;
    bool causal; /* a position sees itself and what is before it */
    bool no_bias;
} kiln_attention_options;
KILN_API kiln_module *kiln_nn_multihead_attention_(int64_t width, int64_t heads, const kiln_attention_options *options);
#define kiln_nn_multihead_attention(...)                                                                               \
    KILN_CALL2_(kiln_nn_multihead_attention_, kiln_attention_options, __VA_ARGS__, )
/* mask as of kiln_scaled_dot_product_attention, or NULL */
KILN_API kiln_tensor *kiln_attend(kiln_module *attention, kiln_tensor *query, kiln_tensor *key, kiln_tensor *value,
                                  kiln_tensor *mask);

/* Recurrent layers: [T, N, in] to [T, N, hidden], or [N, T, …] with batch_first; weight_ih_l0, weight_hh_l0,
 * bias_ih_l0, bias_hh_l0, …_reverse. kiln_forward starts from zeros. */
typedef struct kiln_recurrent_options {
    size_t size;    /* of the struct; the macros set it */
    int64_t layers; /* 1 */
    double dropout; /* between layers */
    bool batch_first, bidirectional, no_bias;
    bool relu; /* kiln_nn_rnn: instead of tanh */
} kiln_recurrent_options;
KILN_API kiln_module *kiln_nn_rnn_(int64_t in, int64_t hidden, const kiln_recurrent_options *options);
KILN_API kiln_module *kiln_nn_gru_(int64_t in, int64_t hidden, const kiln_recurrent_options *options);
KILN_API kiln_module *kiln_nn_lstm_(int64_t in, int64_t hidden, const kiln_recurrent_options *options);
#define kiln_nn_rnn(...)  KILN_CALL2_(kiln_nn_rnn_, kiln_recurrent_options, __VA_ARGS__, )
#define kiln_nn_gru(...)  KILN_CALL2_(kiln_nn_gru_, kiln_recurrent_options, __VA_ARGS__, )
#define kiln_nn_lstm(...) KILN_CALL2_(kiln_nn_lstm_, kiln_recurrent_options, __VA_ARGS__, )
/* From a given state and to the state after: h and c [layers·directions, N, hidden]; c is the LSTM's alone. NULL in:
 * zeros; NULL out: not wanted. */
KILN_API kiln_tensor *kiln_recur(kiln_module *recurrent, kiln_tensor *x, kiln_tensor *h, kiln_tensor *c,
                                 kiln_tensor **h_out, kiln_tensor **c_out);

/* One after the other; children are named "0", "1", … */
#define kiln_nn_sequential(...) kiln_nn_sequence(KILN_LIST_(kiln_module *, __VA_ARGS__))
KILN_API kiln_module *kiln_nn_sequence(int n, kiln_module *const *children);

/* body(x) + shortcut(x); shortcut NULL is x itself. Children "body" and "shortcut". */
KILN_API kiln_module *kiln_nn_residual(kiln_module *body, kiln_module *shortcut);

/* ---- Modules of one's own ----
 * kiln_module_new("Block", forward, context, free_context), then add parameters, buffers and children by name;
 * `forward` finds them with kiln_module_child and kiln_module_tensor or keeps the pointers it got; NULL: the module
 * only groups others under its name. free_context (may be NULL) is called with context when the module is freed, or at
 * once when kiln_module_new fails. Names have no dots: these separate names in a path. */
typedef kiln_tensor *(*kiln_forward_fn)(kiln_module *self, kiln_tensor *x, void *context);
KILN_API kiln_module *kiln_module_new(const char *kind, kiln_forward_fn forward, void *context,
                                      void (*free_context)(void *context));
KILN_API kiln_module *kiln_module_add(kiln_module *parent, const char *name, kiln_module *child); /* returns child */
/* The module takes t over (the scope no longer owns it), also when that fails; its value is computed now. A parameter
 * wants a gradient, a buffer (running means) does not; both are part of the state. Return t. */
KILN_API kiln_tensor *kiln_module_add_parameter(kiln_module *m, const char *name, kiln_tensor *t);
KILN_API kiln_tensor *kiln_module_add_buffer(kiln_module *m, const char *name, kiln_tensor *t);
KILN_API void *kiln_module_context(const kiln_module *m);

/* ---- What is done with a tree ---- */

/* The module's output, owned by the current scope like any operation's. An error that comes up on the way names the
 * innermost module it came up in: "layer1.0.conv1 (Conv2d): …". */
KILN_API kiln_tensor *kiln_forward(kiln_module *m, kiln_tensor *x);
KILN_API void kiln_module_free(kiln_module *m); /* with its children; NULL is fine, a child is left alone */

/* Train mode (dropout acts, batch norm uses the batch) and eval mode, for the whole tree. Fresh modules train. */
KILN_API void kiln_module_train(kiln_module *m, bool training);
KILN_API bool kiln_module_training(const kiln_module *m);

/* With `recompute`, what the module computes on the way to its result is not kept for the backward pass but computed
 * again (kiln_recomputed in grad.h). Best for the blocks a network is made of: one such module inside another is a
 * region of its own. False with an error for NULL. */
KILN_API bool kiln_module_set_recompute(kiln_module *m, bool recompute);
KILN_API bool kiln_module_recomputes(const kiln_module *m);

/* Frozen parameters want no gradient, lose the one they have, and are so skipped by optimizers. They stay in the lists.
 */
KILN_API bool kiln_module_freeze(kiln_module *m, bool frozen);

/* Moves parameters, buffers and gradients; the handles stay valid, an optimizer's state follows at its next step. What
 * is pending is computed first. On failure nothing has moved. */
KILN_API bool kiln_module_to(kiln_module *m, kiln_device device);
/* Casts parameters, float buffers and gradients to another float type; integers stay. The handles stay valid, and an
 * optimizer made before or after it goes on (in f32, where the model is in 16 bits: see .master_weights). Inputs must
 * then be of that type; sums inside its operations are f32's at least. What is pending is computed first; on failure
 * nothing has changed. */
KILN_API bool kiln_module_cast(kiln_module *m, kiln_dtype dtype);
KILN_API kiln_device kiln_module_device(const kiln_module *m); /* of its first tensor; the default device without any */

/* By path: "layer1.0.conv1", "layer1.0.conv1.weight". NULL without an error when there is none. */
KILN_API kiln_module *kiln_module_child(const kiln_module *m, const char *path);
KILN_API kiln_tensor *kiln_module_tensor(const kiln_module *m, const char *path);
KILN_API const char *kiln_module_kind(const kiln_module *m); /* "Linear" */
KILN_API int kiln_module_children(const kiln_module *m);
KILN_API kiln_module *kiln_module_child_at(const kiln_module *m, int i, const char **name); /* name may be NULL */

/* A list of tensors with their paths from the module it was asked of. It belongs to that module and lives as long as
 * the module does. */
typedef struct kiln_params {
    int64_t count;
    kiln_tensor *const *tensors;
    const char *const *names;
} kiln_params;
KILN_API kiln_params kiln_parameters(kiln_module *m); /* frozen ones too; none with an error on failure */
/* Those whose path matches a shell pattern ("*.bias"), or with `exclude` all others: for parameter groups. */
KILN_API kiln_params kiln_parameters_matching(kiln_module *m, const char *pattern, bool exclude);
KILN_API kiln_params kiln_state(kiln_module *m);       /* parameters and buffers in PyTorch's state_dict order */
KILN_API int64_t kiln_parameter_count(kiln_module *m); /* elements of all parameters */

/* A table (layer, output shape, parameters, memory) of what happens to an input of this shape and dtype in eval mode,
 * at most 100 columns wide. Nothing of it runs (what was pending before does). Freed with kiln_string_free; NULL with
 * an error. */
KILN_API char *kiln_summary(kiln_module *m, int ndim, const int64_t *shape, kiln_dtype dtype);

/* The output's shape for an input of this shape and dtype, without running anything. */
KILN_API bool kiln_module_shape(kiln_module *m, int ndim, const int64_t *shape, kiln_dtype dtype, int *out_ndim,
                                int64_t *out_shape);

/* ---- Initialisers: overwrite t from the thread's random generator; return t or NULL ---- */
KILN_API kiln_tensor *kiln_init_constant(kiln_tensor *t, double value);
KILN_API kiln_tensor *kiln_init_uniform(kiln_tensor *t, double low, double high);
KILN_API kiln_tensor *kiln_init_normal(kiln_tensor *t, double mean, double std);
KILN_API kiln_tensor *kiln_init_trunc_normal(kiln_tensor *t, double mean, double std, double low, double high);
KILN_API kiln_tensor *kiln_init_xavier_uniform(kiln_tensor *t, double gain);
KILN_API kiln_tensor *kiln_init_xavier_normal(kiln_tensor *t, double gain);
/* slope: of the leaky ReLU that follows (0: ReLU); fan_out: by the outputs instead of the inputs */
KILN_API kiln_tensor *kiln_init_kaiming_uniform(kiln_tensor *t, double slope, bool fan_out);
KILN_API kiln_tensor *kiln_init_kaiming_normal(kiln_tensor *t, double slope, bool fan_out);
KILN_API kiln_tensor *kiln_init_orthogonal(kiln_tensor *t, double gain);

#ifdef __cplusplus
}
#endif
#endif
