/* How long it takes until the first step of the MLP is done, from a moment that the caller names: before the process
 * was started. One JSON object. See start.sh.
 *
 * usage: kiln_bench_first [--device cuda] SECONDS_SINCE_1970 */
#include "bench.h"
#include "models.h"

enum { BATCH = 32, SIDE = 28, CLASSES = 10 };

static double since_1970(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    double entered = since_1970();
    kiln_device device = bench_device(&argc, argv, "cpu");
    double begun = argc > 1 ? strtod(argv[1], NULL) : entered;
    kiln_module *m = model_mlp((model_options){0});
    kiln_module_to(m, device);
    kiln_optim *adam = kiln_optim_adam(kiln_parameters(m), .lr = 1e-3);
    kiln_step {
        kiln_tensor *x = kiln_randn(KILN_SHAPE(BATCH, 1, SIDE, SIDE), KILN_F32);
        kiln_tensor *y = kiln_randint(0, CLASSES, KILN_SHAPE(BATCH), KILN_I64);
        kiln_zero_grad(adam);
        kiln_backward(kiln_cross_entropy(kiln_forward(m, x), y));
        kiln_optim_step(adam);
    }
    kiln_device_wait(device);
    if (kiln_ok())
        printf("{\"work\": \"start\", \"peer\": \"kiln\", \"seconds\": %.3f, \"before_main\": %.3f}\n",
               since_1970() - begun, entered - begun);
    kiln_optim_free(adam);
    kiln_module_free(m);
    return kiln_report(stderr);
}
