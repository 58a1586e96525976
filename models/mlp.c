/* The multilayer perceptron 784-256-128-10, and an autoencoder of the same kind. */
#include "parts.h"

kiln_module *model_mlp(model_options o)
{
    int64_t pixels = model_or(o.channels, 1) * model_or(o.height, 28) * model_or(o.width, 28);
    int64_t classes = model_or(o.classes, 10);
    if (o.dropout > 0)
        return kiln_nn_sequential(kiln_nn_flatten(), kiln_nn_linear(pixels, 256), kiln_nn_relu(),
                                  kiln_nn_dropout(o.dropout), kiln_nn_linear(256, 128), kiln_nn_relu(),
                                  kiln_nn_dropout(o.dropout), kiln_nn_linear(128, classes));
    return kiln_nn_sequential(kiln_nn_flatten(), kiln_nn_linear(pixels, 256), kiln_nn_relu(), kiln_nn_linear(256, 128),
                              kiln_nn_relu(), kiln_nn_linear(128, classes));
}

/* Squeezes an image through a code of a few numbers and draws it again. */
kiln_module *model_autoencoder(model_options o)
{
    int64_t channels = model_or(o.channels, 1), height = model_or(o.height, 28), width = model_or(o.width, 28);
    int64_t pixels = channels * height * width, code = model_or(o.hidden, 32);
    return kiln_nn_sequential(kiln_nn_flatten(), kiln_nn_linear(pixels, 128), kiln_nn_relu(), kiln_nn_linear(128, code),
                              kiln_nn_linear(code, 128), kiln_nn_relu(), kiln_nn_linear(128, pixels),
                              kiln_nn_unflatten(KILN_SHAPE(channels, height, width)));
}
