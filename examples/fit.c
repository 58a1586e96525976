/* A network with dropout, trained, evaluated and used in three calls, within a limit on memory.
 * usage: fit [DEVICE] */
#include <kiln.h>

int main(int argc, char **argv)
{
    kiln_device device = argc > 1 ? kiln_device_parse(argv[1]) : kiln_device_auto();
    if (device == KILN_NO_DEVICE)
        return kiln_report(stderr);
    printf("Using device: %s\n", kiln_device_name(device));

    /* Memory grows as it is needed, up to here; a step that needs more is refused before it runs. What a GPU's context
     * takes counts, too. */
    kiln_memory_set_limit(device, (uint64_t)2 << 30);

    kiln_module *model = kiln_nn_sequential(kiln_nn_flatten(), kiln_nn_linear(784, 128), kiln_nn_relu(),
                                            kiln_nn_dropout(0.2), kiln_nn_linear(128, 10));
    kiln_module_to(model, device);
    kiln_dataset *train = kiln_data_digits(.count = 8000), *test = kiln_data_digits(.test = true, .count = 1000);
    kiln_optim *adam = kiln_optim_adam(kiln_parameters(model), .lr = 2e-3);

    kiln_history h = kiln_fit(model, train, .epochs = 3, .batch = 50, .validate = test, .optim = adam,
                              .loss = KILN_CROSS_ENTROPY, .metrics = KILN_ACCURACY, .workers = 2, .progress = stdout);
    kiln_result r = kiln_evaluate(model, test, .metrics = KILN_ACCURACY);
    printf("test accuracy %.3f after %lld steps\n", r.accuracy, (long long)h.steps);

    kiln_scope {
        kiln_tensor *guess = kiln_argmax(kiln_predict(model, test, 100), 1, false);
        int64_t first[1000];
        if (kiln_read(guess, first, sizeof first))
            printf("the first five are taken for %d %d %d %d %d\n", (int)first[0], (int)first[1], (int)first[2],
                   (int)first[3], (int)first[4]);
    }
    kiln_memory_stats memory;
    if (kiln_memory_get_stats(device, &memory))
        printf("at most %.1f MiB of %s memory were in use\n", (double)memory.peak / (1 << 20),
               kiln_device_name(device));

    kiln_history_free(&h);
    kiln_optim_free(adam);
    kiln_data_free(train);
    kiln_data_free(test);
    kiln_module_free(model);
    return kiln_report(stderr) || r.accuracy < 0.8;
}
