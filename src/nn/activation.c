/* Activations: functions without parameters, one row a kind. */
#include "nn/module.h"

typedef struct activation {
    kiln_module base;
    double a, b; /* what the function takes besides x */
} activation;

/* M(name, kind, the call with x and a, b of the module) */
#define ACTIVATIONS(M)                                                                                                 \
    M(relu, "ReLU", kiln_relu(x))                                                                                      \
    M(relu6, "ReLU6", kiln_relu6(x))                                                                                   \
    M(leaky_relu, "LeakyReLU", kiln_leaky_relu(x, f->a))                                                               \
    M(elu, "ELU", kiln_elu(x, f->a))                                                                                   \
    M(selu, "SELU", kiln_selu(x))                                                                                      \
    M(celu, "CELU", kiln_celu(x, f->a))                                                                                \
    M(gelu, "GELU", kiln_gelu(x))                                                                                      \
    M(gelu_tanh, "GELU", kiln_gelu_tanh(x))                                                                            \
    M(silu, "SiLU", kiln_silu(x))                                                                                      \
    M(sigmoid, "Sigmoid", kiln_sigmoid(x))                                                                             \
    M(logsigmoid, "LogSigmoid", kiln_logsigmoid(x))                                                                    \
    M(softplus, "Softplus", kiln_softplus(x, f->a, f->b))                                                              \
    M(hardswish, "Hardswish", kiln_hardswish(x))                                                                       \
    M(hardsigmoid, "Hardsigmoid", kiln_hardsigmoid(x))                                                                 \
    M(hardtanh, "Hardtanh", kiln_hardtanh(x, f->a, f->b))                                                              \
    M(mish, "Mish", kiln_mish(x))                                                                                      \
    M(softsign, "Softsign", kiln_softsign(x))                                                                          \
    M(tanh, "Tanh", kiln_tanh(x))                                                                                      \
    M(softmax, "Softmax", kiln_softmax(x, (int)f->a))                                                                  \
    M(log_softmax, "LogSoftmax", kiln_log_softmax(x, (int)f->a))                                                       \
    M(dropout, "Dropout", kiln_dropout(x, f->a, kiln_module_trains(m)))                                                \
    M(flatten, "Flatten", kiln_flatten(x, 1, -1))                                                                      \
    M(identity, "Identity", x)

#define ROW(name, kind, call)                                                                                          \
    static kiln_tensor *name##_forward(kiln_module *m, kiln_tensor *x)                                                 \
    {                                                                                                                  \
        const activation *f = (const activation *)m;                                                                   \
        (void)f;                                                                                                       \
        return call;                                                                                                   \
    }                                                                                                                  \
    static const kiln_module_class name##_layer = {kind, sizeof(activation), name##_forward, NULL, KILN_DIRECT};
ACTIVATIONS(ROW)

static kiln_module *make(const kiln_module_class *layer, double a, double b)
{
    activation *f = (activation *)kiln_module_make(layer);
    if (!f)
        return NULL;
    f->a = a;
    f->b = b;
    return &f->base;
}

#define PLAIN(name)                                                                                                    \
    kiln_module *kiln_nn_##name(void)                                                                                  \
    {                                                                                                                  \
        return make(&name##_layer, 0, 0);                                                                              \
    }
PLAIN(relu)
PLAIN(relu6)
PLAIN(selu)
PLAIN(gelu)
PLAIN(gelu_tanh)
PLAIN(silu)
PLAIN(sigmoid)
PLAIN(logsigmoid)
PLAIN(hardswish)
PLAIN(hardsigmoid)
PLAIN(mish)
PLAIN(softsign)
PLAIN(tanh)
PLAIN(flatten)
PLAIN(identity)

kiln_module *kiln_nn_leaky_relu(double negative_slope)
{
    return make(&leaky_relu_layer, negative_slope, 0);
}

kiln_module *kiln_nn_elu(double alpha)
{
    return make(&elu_layer, alpha, 0);
}

kiln_module *kiln_nn_celu(double alpha)
{
    if (alpha == 0)
        return kiln_fail(KILN_E_ARGUMENT, "CELU", "alpha is 0, and x is divided by it");
    return make(&celu_layer, alpha, 0);
}

kiln_module *kiln_nn_softplus(double beta, double threshold)
{
    if (beta == 0)
        return kiln_fail(KILN_E_ARGUMENT, "Softplus", "beta is 0, and the result is divided by it");
    return make(&softplus_layer, beta, threshold);
}

kiln_module *kiln_nn_hardtanh(double min, double max)
{
    if (!(min < max))
        return kiln_fail(KILN_E_ARGUMENT, "Hardtanh", "min is %g and max is %g; min must be below max", min, max);
    return make(&hardtanh_layer, min, max);
}

kiln_module *kiln_nn_softmax(int dim)
{
    return make(&softmax_layer, dim, 0);
}

kiln_module *kiln_nn_log_softmax(int dim)
{
    return make(&log_softmax_layer, dim, 0);
}

kiln_module *kiln_nn_dropout(double p)
{
    if (!(p >= 0 && p <= 1))
        return kiln_fail(KILN_E_ARGUMENT, "Dropout", "p is %g; a probability lies between 0 and 1", p);
    return make(&dropout_layer, p, 0);
}
