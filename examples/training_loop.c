/* Tensors, a data set, a loader, a device, and a training loop written out: is a point inside or outside a ring?
 * usage: training_loop [DEVICE] */
#include <math.h>
#include <stdlib.h>
#include <kiln.h>

enum { SAMPLES = 2000, BATCH = 50, EPOCHS = 20 };

/* Points in a square; class 1 lies in a ring around the middle. */
static kiln_dataset *make_data(void)
{
    static float points[SAMPLES][2];
    static int64_t labels[SAMPLES];
    srand(1);
    for (int i = 0; i < SAMPLES; i++) {
        float x = 2.0f * (float)rand() / (float)RAND_MAX - 1, y = 2.0f * (float)rand() / (float)RAND_MAX - 1;
        float radius = sqrtf(x * x + y * y);
        points[i][0] = x;
        points[i][1] = y;
        labels[i] = radius > 0.4f && radius < 0.8f;
    }
    kiln_dataset *data = NULL;
    kiln_scope {
        kiln_tensor *x = kiln_tensor_new(points, KILN_F32, KILN_SHAPE(SAMPLES, 2), KILN_CPU);
        kiln_tensor *y = kiln_tensor_new(labels, KILN_I64, KILN_SHAPE(SAMPLES), KILN_CPU);
        data = kiln_data_tensors(x, y);
    }
    return data;
}

int main(int argc, char **argv)
{
    kiln_device device = argc > 1 ? kiln_device_parse(argv[1]) : kiln_device_auto();
    if (device == KILN_NO_DEVICE)
        return kiln_report(stderr);
    printf("Using device: %s\n", kiln_device_name(device));

    kiln_module *model = kiln_nn_sequential(kiln_nn_linear(2, 32), kiln_nn_relu(), kiln_nn_linear(32, 32),
                                            kiln_nn_relu(), kiln_nn_linear(32, 2));
    kiln_module_to(model, device);
    kiln_dataset *data = make_data();
    kiln_loader *loader = kiln_loader_new(data, .batch = BATCH, .shuffle = true, .workers = 2, .device = device);
    kiln_optim *adam = kiln_optim_adam(kiln_parameters(model), .lr = 1e-2);

    for (int epoch = 0; epoch < EPOCHS && kiln_ok(); epoch++) {
        kiln_tensor *loss = NULL;
        kiln_batch b;
        while (kiln_loader_next(loader, &b))
            kiln_step { /* recorded as it is written; planned the first time, replayed from then on */
                kiln_zero_grad(adam);
                kiln_release(loss);
                loss = kiln_keep(kiln_cross_entropy(kiln_forward(model, b.x), b.y));
                kiln_backward(loss);
                kiln_optim_step(adam);
            }
        if (loss && epoch % 5 == 4)
            printf("epoch %2d  loss %.3f\n", epoch + 1, kiln_item(loss));
        kiln_release(loss);
    }

    kiln_result r = kiln_evaluate(model, data, .metrics = KILN_ACCURACY);
    printf("accuracy %.3f\n", r.accuracy);
    kiln_optim_free(adam);
    kiln_loader_free(loader);
    kiln_data_free(data);
    kiln_module_free(model);
    return kiln_report(stderr) || r.accuracy < 0.9;
}
