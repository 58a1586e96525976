/* The usual mistakes, made on purpose, each with the message it gets. After each the program goes on unharmed.
 * usage: mistakes [DEVICE] */
#include <string.h>
#include <kiln.h>

static int unexpected;

/* Shows the error that was just made and clears it; every mistake here must be found. */
static void show(const char *mistake, kiln_code expected)
{
    printf("\n%s\n", mistake);
    unexpected += kiln_last_error()->code != expected;
    kiln_report(stdout);
    kiln_error_clear();
}

static void wrong_shape(kiln_module *model)
{
    kiln_scope
        kiln_forward(model, kiln_randn(KILN_SHAPE(8, 20), KILN_F32)); /* the first layer takes 16 numbers */
    show("A batch of the wrong shape:", KILN_E_SHAPE);
}

static void wrong_device(kiln_module *model, kiln_device device)
{
    kiln_scope
        kiln_forward(model, kiln_to(kiln_randn(KILN_SHAPE(8, 16), KILN_F32), device));
    show("A batch that lies on another device than the model:", KILN_E_DEVICE);
}

static void bad_label(kiln_module *model, kiln_optim *sgd)
{
    kiln_step {
        kiln_tensor *y = kiln_of_i64(((int64_t[]){0, 1, 2, 3, 4}), 5); /* the model knows classes 0 … 3 */
        kiln_zero_grad(sgd);
        kiln_backward(kiln_cross_entropy(kiln_forward(model, kiln_randn(KILN_SHAPE(5, 16), KILN_F32)), y));
        kiln_optim_step(sgd);
    }
    kiln_device_wait(
        kiln_default_device()); /* a GPU works on while the program goes on: its errors show when it is waited for */
    show("A label beyond the classes (the step is discarded, the weights are as before):", KILN_E_INDEX);
}

static void out_of_memory(kiln_module *model, kiln_device device)
{
    kiln_memory_stats now;
    if (kiln_memory_get_stats(device, &now)) /* what a GPU's context takes counts towards a limit */
        kiln_memory_set_limit(device, now.overhead + (64 << 20));
    kiln_step {
        kiln_tensor *x = kiln_randn(KILN_SHAPE(2000000, 16), KILN_F32);
        kiln_backward(kiln_sum_all(kiln_forward(model, x)));
    }
    kiln_memory_set_limit(device, 0);
    show("A step that does not fit into 64 MiB (nothing of it was run):", KILN_E_MEMORY);
}

static void forgotten_zero_grad(kiln_module *model, kiln_optim *sgd)
{
    for (int i = 0; i < 3; i++)
        kiln_step {
            kiln_backward(kiln_mean_all(kiln_forward(model, kiln_randn(KILN_SHAPE(8, 16), KILN_F32))));
            kiln_optim_step(sgd);
        }
    printf("\nThree steps without kiln_zero_grad (not an error, but said once):\n");
    const char *notice = kiln_next_notice();
    unexpected += !notice || kiln_next_notice();
    printf("kiln: note: %s\n", notice ? notice : "");
}

int main(int argc, char **argv)
{
    kiln_device device = argc > 1 ? kiln_device_parse(argv[1]) : kiln_device_auto();
    if (device == KILN_NO_DEVICE || !kiln_set_default_device(device))
        return kiln_report(stderr);

    kiln_module *model = kiln_nn_sequential(kiln_nn_linear(16, 32), kiln_nn_relu(), kiln_nn_linear(32, 4));
    kiln_optim *sgd = kiln_optim_sgd(kiln_parameters(model), .lr = 0.1);
    wrong_shape(model);
    if (device != KILN_CPU)
        wrong_device(model, KILN_CPU);
    else if (kiln_device_count("cuda", NULL, 0) > 0)
        wrong_device(model, kiln_device_parse("cuda"));
    else if (kiln_device_count("sim", NULL, 0) > 0) /* simulated devices, for tests */
        wrong_device(model, kiln_device_parse("sim"));
    bad_label(model, sgd);
    out_of_memory(model, device);
    forgotten_zero_grad(model, sgd);

    kiln_optim_free(sgd);
    kiln_module_free(model);
    return kiln_report(stderr) || unexpected;
}
