/* Looks for a GPU, says what is there, moves a model and a batch to the best device and runs it.
 * usage: devices [DEVICE]      DEVICE: cpu, cuda, cuda:1, opencl:0, auto */
#include <kiln.h>

static void list(const char *kind)
{
    char why[512];
    int n = kiln_device_count(kind, why, sizeof why);
    if (n == 0)
        printf("%-7s not available: %s\n", kind, why);
    for (int i = 0; i < n; i++) {
        kiln_device_info info;
        if (!kiln_device_describe(kiln_device_at(kind, i), &info))
            continue;
        printf("%-7s %s, %.1f GiB free of %.1f, %s\n", kiln_device_name(kiln_device_at(kind, i)), info.name,
               (double)info.memory_free / (1 << 30), (double)info.memory_total / (1 << 30), info.features);
        if (info.refused[0])
            printf("        cannot be used: %s\n", info.refused);
    }
}

int main(int argc, char **argv)
{
    list("cpu");
    list("cuda");
    list("opencl");

    /* A device asked for by name that is not there is an error, never replaced by another. */
    kiln_device device = argc > 1 ? kiln_device_parse(argv[1]) : kiln_device_auto();
    if (device == KILN_NO_DEVICE)
        return kiln_report(stderr);
    printf("Using device: %s\n", kiln_device_name(device));

    kiln_module *model = kiln_nn_sequential(kiln_nn_linear(784, 128), kiln_nn_relu(), kiln_nn_linear(128, 10));
    kiln_module_to(model, device);
    kiln_scope {
        kiln_tensor *batch = kiln_to(kiln_randn(KILN_SHAPE(32, 784), KILN_F32), device);
        kiln_tensor *output = kiln_forward(model, batch);
        if (output)
            printf("output: [%lld, %lld] on %s\n", (long long)kiln_size(output, 0), (long long)kiln_size(output, 1),
                   kiln_device_name(kiln_device_of(output)));
        kiln_device_wait(device);
    }
    kiln_module_free(model);
    return kiln_report(stderr);
}
