/* Small networks of several kinds with data for them, and two trained ones compared: for tests that train the same in
 * two ways. */
#ifndef KILN_TEST_FIT_H
#define KILN_TEST_FIT_H

#include "models.h"
#include "support/core.h"

enum { FIT_SAMPLES = 44, FIT_LENGTH = 5, FIT_CLASSES = 7 };

typedef enum fit_kind { FIT_MLP, FIT_CNN, FIT_LSTM, FIT_GPT2, FIT_KINDS } fit_kind;

static inline bool fit_is_text(fit_kind kind)
{
    return kind == FIT_LSTM || kind == FIT_GPT2;
}

/* The same weights each time, on the default device. */
static inline kiln_module *fit_net(fit_kind kind, double dropout)
{
    kiln_module *m = NULL;
    const model_options text = {.vocabulary = FIT_CLASSES,
                                .context = FIT_LENGTH,
                                .layers = kind == FIT_LSTM ? 2 : 1,
                                .heads = 2,
                                .embed = 8,
                                .hidden = 8,
                                .dropout = dropout};
    kiln_manual_seed(3);
    switch (kind) {
    case FIT_MLP:
        m = kiln_nn_sequential(kiln_nn_flatten(), kiln_nn_linear(25, 11), kiln_nn_tanh(), kiln_nn_dropout(dropout),
                               kiln_nn_linear(11, FIT_CLASSES));
        break;
    case FIT_CNN:
        m = kiln_nn_sequential(kiln_nn_conv2d(1, 3, 3, .padding = 1), kiln_nn_relu(), kiln_nn_dropout(dropout),
                               kiln_nn_conv2d(3, 4, 3), kiln_nn_max_pool2d(2), kiln_nn_flatten(),
                               kiln_nn_linear(4, FIT_CLASSES));
        break;
    case FIT_LSTM: m = model_char_lstm(text); break;
    default: m = model_gpt2(text);
    }
    assert_true(m && kiln_module_to(m, kiln_default_device()));
    return m;
}

/* Samples for it, of which `ignored` in 8 labels are -100, and all of the first 8 samples' where there are any. */
static inline kiln_dataset *fit_data(fit_kind kind, int ignored)
{
    bool text = fit_is_text(kind);
    int64_t tokens[FIT_SAMPLES * FIT_LENGTH], labels[FIT_SAMPLES * FIT_LENGTH];
    uint32_t state = 5;
    int64_t places = text ? FIT_LENGTH : 1;
    for (int64_t i = 0; i < FIT_SAMPLES * places; i++) {
        state = state * 1664525u + 1013904223u;
        tokens[i] = state >> 8 & 0xff;
        labels[i] = (tokens[i] + i / 3) % FIT_CLASSES;
        tokens[i] %= FIT_CLASSES;
        if (ignored && (i < 8 * places || (int)(state >> 20 & 7) < ignored))
            labels[i] = -100;
    }
    kiln_dataset *d = NULL;
    kiln_scope {
        kiln_tensor *x = text ? kiln_tensor_new(tokens, KILN_I64, KILN_SHAPE(FIT_SAMPLES, FIT_LENGTH), KILN_CPU)
                              : core_data(2, KILN_SHAPE(FIT_SAMPLES, 1, 5, 5));
        kiln_tensor *y = text ? kiln_tensor_new(labels, KILN_I64, KILN_SHAPE(FIT_SAMPLES, FIT_LENGTH), KILN_CPU)
                              : kiln_tensor_new(labels, KILN_I64, KILN_SHAPE(FIT_SAMPLES), KILN_CPU);
        d = kiln_data_tensors(x, y);
    }
    assert_non_null(d);
    return d;
}

static inline void fit_assert_same_weights(kiln_module *a, kiln_module *b, double tolerance)
{
    kiln_params pa = kiln_state(a), pb = kiln_state(b);
    assert_int_equal(pa.count, pb.count);
    for (int64_t i = 0; i < pa.count; i++) {
        if (kiln_dtype_of(pa.tensors[i]) != KILN_F32)
            continue; /* batch norm's count */
        const float *x = core_f32(pa.tensors[i]), *y = core_f32(pb.tensors[i]);
        for (int64_t k = 0; k < kiln_numel(pa.tensors[i]); k++)
            assert_near(x[k], y[k], tolerance);
    }
}

static inline void fit_assert_same_history(const kiln_history *a, const kiln_history *b, double tolerance)
{
    assert_int_equal(a->count, b->count);
    assert_int_equal(a->steps, b->steps);
    for (int64_t i = 0; i < a->count; i++) {
        const kiln_result *r[2][2] = {{&a->epochs[i].train, &b->epochs[i].train},
                                      {&a->epochs[i].test, &b->epochs[i].test}};
        for (int k = 0; k < 2 && r[k][0]->samples + r[k][1]->samples > 0; k++) {
            assert_int_equal(r[k][0]->samples, r[k][1]->samples);
            assert_near(r[k][0]->loss, r[k][1]->loss, tolerance);
            assert_near(r[k][0]->accuracy, r[k][1]->accuracy, 1e-6);
            assert_near(r[k][0]->top5, r[k][1]->top5, 1e-6);
            assert_near(r[k][0]->perplexity, r[k][1]->perplexity, 10 * tolerance);
        }
    }
}

#endif
