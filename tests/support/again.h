/* Small networks of several kinds, parts of which may be computed again for the backward pass, and some steps of
 * training them: what comes out is compared to the bit. */
#ifndef KILN_TEST_AGAIN_H
#define KILN_TEST_AGAIN_H

#include "support/core.h"

enum { WIDTH = 32, ROWS = 64, STEPS = 3 };
static int depth = 6;       /* blocks of the mlp */
static int64_t batches = 1; /* times as many samples as the networks below say */

/* ---- Networks ---- */

/* Blocks that are computed again, if wanted. */
static inline kiln_module *block_of(kiln_module *m, bool again)
{
    assert_true(kiln_module_set_recompute(m, again));
    assert_int_equal(kiln_module_recomputes(m), again);
    return m;
}

static inline kiln_module *deep_mlp(bool again)
{
    kiln_module *net = kiln_nn_sequential(kiln_nn_identity());
    for (int i = 0; i < depth; i++) {
        char name[16];
        snprintf(name, sizeof name, "b%d", i);
        kiln_module *block =
            kiln_nn_sequential(kiln_nn_linear(WIDTH, 4 * WIDTH), kiln_nn_gelu(), kiln_nn_dropout(0.25),
                               kiln_nn_linear(4 * WIDTH, 4 * WIDTH), kiln_nn_relu(), kiln_nn_linear(4 * WIDTH, WIDTH));
        assert_true(kiln_module_add(net, name, block_of(kiln_nn_residual(block, NULL), again)) != NULL);
    }
    return net;
}

static inline kiln_module *cnn(bool again)
{
    return kiln_nn_sequential(
        block_of(kiln_nn_sequential(kiln_nn_conv2d(2, 8, 3, .padding = 1), kiln_nn_batch_norm(8), kiln_nn_relu(),
                                    kiln_nn_conv2d(8, 8, 3, .padding = 1), kiln_nn_batch_norm(8), kiln_nn_relu()),
                 again),
        kiln_nn_max_pool2d(2),
        block_of(kiln_nn_sequential(kiln_nn_conv2d(8, 8, 3, .padding = 1), kiln_nn_batch_norm(8), kiln_nn_silu(),
                                    kiln_nn_dropout(0.1)),
                 again),
        kiln_nn_flatten(), kiln_nn_linear(8 * 4 * 4, 10));
}

static inline kiln_module *attention_block(bool again)
{
    return block_of(
        kiln_nn_sequential(
            kiln_nn_residual(kiln_nn_sequential(kiln_nn_layer_norm(WIDTH),
                                                kiln_nn_multihead_attention(WIDTH, 4, .causal = true, .dropout = 0.1)),
                             NULL),
            kiln_nn_residual(kiln_nn_sequential(kiln_nn_layer_norm(WIDTH), kiln_nn_linear(WIDTH, 4 * WIDTH),
                                                kiln_nn_gelu(), kiln_nn_linear(4 * WIDTH, WIDTH), kiln_nn_dropout(0.1)),
                             NULL)),
        again);
}

static inline kiln_module *transformer(bool again)
{
    return kiln_nn_sequential(kiln_nn_embedding(50, WIDTH), attention_block(again), attention_block(again),
                              attention_block(again), kiln_nn_layer_norm(WIDTH), kiln_nn_linear(WIDTH, 50));
}

static inline kiln_module *lstm(bool again)
{
    return kiln_nn_sequential(kiln_nn_embedding(50, WIDTH),
                              block_of(kiln_nn_lstm(WIDTH, WIDTH, .batch_first = true), again),
                              block_of(kiln_nn_sequential(kiln_nn_lstm(WIDTH, WIDTH, .batch_first = true),
                                                          kiln_nn_dropout(0.2), kiln_nn_linear(WIDTH, 50)),
                                       again));
}

typedef struct network {
    const char *name;
    kiln_module *(*make)(bool again);
    int ndim;
    int64_t shape[4];
    bool tokens;
} network;

static const network networks[] = {
    {"mlp", deep_mlp, 2, {ROWS, WIDTH}, false},
    {"cnn", cnn, 4, {6, 2, 8, 8}, false},
    {"transformer", transformer, 2, {4, 16}, true},
    {"lstm", lstm, 2, {4, 12}, true},
};
enum { NETWORKS = sizeof networks / sizeof *networks };

/* ---- Training ---- */

typedef enum how { IN_STEP, READ_BETWEEN, NO_STEP } how;

static inline kiln_tensor *input_of(const network *n, int seed)
{
    int64_t shape[4];
    memcpy(shape, n->shape, sizeof shape);
    shape[0] *= batches;
    kiln_tensor *x = core_data(seed, n->ndim, shape);
    return n->tokens ? kiln_cast(kiln_mul_scalar(kiln_abs(x), 50), KILN_I64) : x;
}

static inline void write_step(const network *n, kiln_module *net, kiln_optim *opt, kiln_dtype dtype, int seed, how way)
{
    kiln_tensor *loss = NULL;
    kiln_autocast (dtype) {
        kiln_tensor *y = kiln_forward(net, input_of(n, seed));
        loss = kiln_mean_all(kiln_square(kiln_cast(y, KILN_F32)));
    }
    if (way == READ_BETWEEN)
        assert_true(isfinite(kiln_item(loss)));
    assert_true(kiln_backward(loss));
    assert_true(kiln_optim_step(opt));
    kiln_zero_grad(opt);
}

/* Plans a step as it is, or within so many bytes; false if that cannot be. */
static inline bool plan_within(const network *n, kiln_module *net, kiln_optim *opt, kiln_dtype dtype, uint64_t bytes,
                               kiln_plan_info *info)
{
    bool ok = false;
    kiln_step {
        write_step(n, net, opt, dtype, 0, IN_STEP);
        ok = bytes ? kiln_plan_pending_within(bytes, info) : kiln_plan_pending(info);
        if (!ok)
            expect_error(KILN_E_MEMORY, "plan_pending_within", "cannot be made to fit");
        kiln_discard();
    }
    assert_true(kiln_ok());
    return ok;
}

typedef struct outcome {
    uint64_t bits; /* of all parameters and buffers */
    int64_t peak, flops, kernels;
} outcome;

static inline uint64_t digest(kiln_module *net)
{
    uint64_t h = 1469598103934665603u;
    kiln_params p = kiln_state(net);
    for (int64_t i = 0; i < p.count; i++) {
        size_t bytes = (size_t)kiln_numel(p.tensors[i]) * kiln_dtype_size(kiln_dtype_of(p.tensors[i]));
        unsigned char *data = malloc(bytes ? bytes : 1);
        assert_true(kiln_read(p.tensors[i], data, bytes));
        for (size_t k = 0; k < bytes; k++)
            h = (h ^ data[k]) * 1099511628211u;
        free(data);
    }
    return h;
}

static inline outcome train(const network *n, bool again, kiln_dtype dtype, how way)
{
    kiln_manual_seed(7);
    outcome o = {0};
    kiln_module *net = n->make(again);
    if (!net)
        fail_msg("%s: %s", n->name, kiln_last_error()->message);
    kiln_optim *opt = kiln_optim_adamw(kiln_parameters(net), .lr = 1e-2);
    for (int i = 0; i < STEPS; i++) {
        if (way == NO_STEP)
            kiln_scope
                write_step(n, net, opt, dtype, i, way);
        else
            kiln_step
                write_step(n, net, opt, dtype, i, way);
        if (!kiln_ok())
            fail_msg("%s: %s", n->name, kiln_last_error()->message);
        kiln_plan_info info;
        assert_true(kiln_plan_last(&info));
        o.peak = info.peak_bytes > o.peak ? info.peak_bytes : o.peak;
        o.flops = info.flops;
        o.kernels = info.kernels;
    }
    o.bits = digest(net);
    kiln_optim_free(opt);
    kiln_module_free(net);
    return o;
}

#endif
