/* The training loop with mixed precision: products in f16, weights in f32, and a scaler that keeps small gradients from
 * vanishing; gradients are clipped. usage: mixed_precision [DEVICE] */
#include <kiln.h>

enum { BATCH = 64, EPOCHS = 3 };

int main(int argc, char **argv)
{
    kiln_device device = argc > 1 ? kiln_device_parse(argv[1]) : kiln_device_auto();
    if (device == KILN_NO_DEVICE)
        return kiln_report(stderr);
    printf("Using device: %s\n", kiln_device_name(device));

    kiln_manual_seed(1);
    kiln_module *model =
        kiln_nn_sequential(kiln_nn_flatten(), kiln_nn_linear(784, 128), kiln_nn_relu(), kiln_nn_linear(128, 10));
    kiln_module_to(model, device);
    kiln_dataset *train = kiln_data_digits(.count = 6000), *test = kiln_data_digits(.test = true, .count = 1000);
    kiln_loader *loader = kiln_loader_new(train, .batch = BATCH, .shuffle = true, .device = device);
    kiln_optim *adam = kiln_optim_adam(kiln_parameters(model), .lr = 1e-3);
    kiln_scaler *scaler = kiln_scaler_new();

    for (int epoch = 0; epoch < EPOCHS && kiln_ok(); epoch++) {
        kiln_tensor *loss = NULL;
        kiln_batch b;
        while (kiln_loader_next(loader, &b))
            kiln_step {
                kiln_zero_grad(adam);
                kiln_release(loss);
                kiln_autocast (KILN_F16) /* for the forward pass and the loss; the rest takes no notice of it */
                    loss = kiln_keep(kiln_cross_entropy(kiln_forward(model, b.x), b.y));
                kiln_backward(kiln_scaler_scale(scaler, loss));
                kiln_scaler_unscale(scaler, adam); /* so that what is clipped are the gradients themselves */
                kiln_clip_grad_norm(kiln_parameters(model), 1);
                kiln_scaler_step(scaler, adam); /* or not, if one of them is infinite or NaN */
                kiln_scaler_update(scaler);
            }
        if (loss)
            printf("epoch %d  loss %.3f\n", epoch + 1, kiln_item(loss));
        kiln_release(loss);
    }

    kiln_result r = kiln_evaluate(model, test, .metrics = KILN_ACCURACY, .autocast = KILN_F16);
    kiln_scaler_state s = kiln_scaler_get(scaler);
    kiln_scaler_culprit culprit = kiln_scaler_blame(scaler, adam);
    printf("accuracy %.3f, the loss was scaled by %g at the end, %lld steps were left out\n", r.accuracy, s.scale,
           (long long)s.skipped);
    if (culprit.parameter)
        printf("the last one since %lld gradients of %s were not finite\n", (long long)culprit.values,
               culprit.parameter);
    kiln_scaler_free(scaler);
    kiln_optim_free(adam);
    kiln_loader_free(loader);
    kiln_data_free(train);
    kiln_data_free(test);
    kiln_module_free(model);
    return kiln_report(stderr) || r.accuracy < 0.9;
}
