/* LeNet-5 as it is trained today: ReLU and max pooling. */
#include "parts.h"

kiln_module *model_lenet(model_options o)
{
    /* Two convolutions of 5x5, the first one padded, each followed by pooling. */
    int64_t height = (model_or(o.height, 28) / 2 - 4) / 2, width = (model_or(o.width, 28) / 2 - 4) / 2;
    return kiln_nn_sequential(kiln_nn_conv2d(model_or(o.channels, 1), 6, 5, .padding = 2), kiln_nn_relu(),
                              kiln_nn_max_pool2d(2), kiln_nn_conv2d(6, 16, 5), kiln_nn_relu(), kiln_nn_max_pool2d(2),
                              kiln_nn_flatten(), kiln_nn_linear(16 * height * width, 120), kiln_nn_relu(),
                              kiln_nn_linear(120, 84), kiln_nn_relu(), kiln_nn_linear(84, model_or(o.classes, 10)));
}
