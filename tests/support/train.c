#define _GNU_SOURCE
#include "support/train.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

float test_number(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)(*state >> 8 & 0xffff) / 32768.0f - 1.0f;
}

static kiln_tensor *parameter(const test_net *net, int i, uint32_t seed)
{
    static const char *const names[NET_TENSORS] = {"net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"};
    int64_t rows = i < 2 ? net->hidden : net->classes, columns = i < 2 ? net->in : net->hidden;
    int64_t shape[2] = {rows, columns};
    int ndim = i % 2 ? 1 : 2;
    int64_t n = i % 2 ? rows : rows * columns;
    float *data = malloc((size_t)n * sizeof *data);
    uint32_t state = seed * 977 + (uint32_t)i;
    for (int64_t k = 0; k < n; k++)
        data[k] = test_number(&state) * 0.3f;
    kiln_tensor *t = kiln_keep(kiln_tensor_new(data, KILN_F32, ndim, shape, net->device));
    free(data);
    if (kiln_set_name(t, names[i]) && kiln_requires_grad(t, true))
        return t;
    kiln_release(t);
    return NULL;
}

bool net_make(test_net *net, kiln_device device, int64_t in, int64_t hidden, int64_t classes, uint32_t seed)
{
    *net = (test_net){.device = device, .in = in, .hidden = hidden, .classes = classes};
    for (int i = 0; i < NET_TENSORS; i++)
        if (!(net->p[i] = parameter(net, i, seed))) {
            net_free(net);
            return false;
        }
    return true;
}

void net_free(test_net *net)
{
    for (int i = 0; i < NET_TENSORS; i++) {
        kiln_release(net->p[i]);
        net->p[i] = NULL;
    }
}

bool net_batch(const test_net *net, int64_t batch, uint32_t number, kiln_tensor **x, kiln_tensor **labels)
{
    size_t n = (size_t)(batch * net->in);
    float *data = malloc(n * sizeof *data);
    int64_t *classes = malloc((size_t)batch * sizeof *classes);
    uint32_t state = number * 7919 + 5;
    for (size_t i = 0; i < n; i++)
        data[i] = test_number(&state);
    for (int64_t i = 0; i < batch; i++)
        classes[i] = (i * 3 + number) % net->classes;
    *x = kiln_tensor_new(data, KILN_F32, KILN_SHAPE(batch, net->in), net->device);
    *labels = kiln_tensor_new(classes, KILN_I64, KILN_SHAPE(batch), net->device);
    memset(data, 0xff, n * sizeof *data); /* the tensors must not notice */
    memset(classes, 0xff, (size_t)batch * sizeof *classes);
    free(data);
    free(classes);
    return *x && *labels;
}

kiln_tensor *net_forward(test_net *net, kiln_tensor *x)
{
    return kiln_linear(kiln_relu(kiln_linear(x, net->p[0], net->p[1])), net->p[2], net->p[3]);
}

bool net_step_on(test_net *net, kiln_tensor *x, kiln_tensor *labels)
{
    for (int i = 0; i < NET_TENSORS; i++)
        kiln_zero_grad_of(net->p[i]);
    if (!kiln_backward(kiln_cross_entropy(net_forward(net, x), labels)))
        return false;
    bool ok = true;
    kiln_no_grad
        for (int i = 0; i < NET_TENSORS; i++)
            ok &= kiln_assign(net->p[i], kiln_sub(net->p[i], kiln_mul_scalar(kiln_grad_of(net->p[i]), 0.1)));
    return ok;
}

bool net_step(test_net *net, int64_t batch, uint32_t number)
{
    kiln_step {
        kiln_tensor *x, *labels;
        if (net_batch(net, batch, number, &x, &labels))
            net_step_on(net, x, labels);
    }
    return kiln_ok();
}

float *net_values(test_net *net, size_t *bytes)
{
    size_t at = 0, size[NET_TENSORS];
    for (int i = 0; i < NET_TENSORS; i++)
        at += size[i] = (size_t)kiln_numel(net->p[i]) * sizeof(float);
    char *values = malloc(at);
    *bytes = at;
    at = 0;
    for (int i = 0; i < NET_TENSORS; at += size[i++])
        if (!kiln_read(net->p[i], values + at, size[i])) {
            free(values);
            return NULL;
        }
    return (float *)(void *)values;
}

float *net_trained(kiln_device device, int64_t in, int64_t hidden, int64_t classes, uint32_t seed, int64_t batch,
                   int steps)
{
    test_net net;
    size_t bytes;
    if (!net_make(&net, device, in, hidden, classes, seed))
        return NULL;
    for (int i = 0; i < steps; i++)
        net_step(&net, batch, (uint32_t)i);
    float *values = net_values(&net, &bytes);
    net_free(&net);
    return values;
}

bool net_equals(test_net *net, const float *expected)
{
    size_t bytes;
    float *values = net_values(net, &bytes);
    bool same = values && expected && memcmp(values, expected, bytes) == 0;
    free(values);
    return same;
}

kiln_sim_control_fn sim_switch(void)
{
    if (kiln_device_count("sim", NULL, 0) < 1)
        return NULL;
    const char *folder = getenv("KILN_PLUGIN_PATH");
    char path[1024] = "libkiln-sim.so";
    Dl_info info;
    if (folder && *folder)
        snprintf(path, sizeof path, "%s/libkiln-sim.so", folder);
    else if (dladdr((void *)(uintptr_t)&kiln_device_count, &info) && strrchr(info.dli_fname, '/'))
        snprintf(path, sizeof path, "%.*s/libkiln-sim.so", (int)(strrchr(info.dli_fname, '/') - info.dli_fname),
                 info.dli_fname);
    void *plugin = dlopen(path, RTLD_NOLOAD | RTLD_NOW);
    if (!plugin)
        return NULL;
    kiln_sim_control_fn control = (kiln_sim_control_fn)(uintptr_t)dlsym(plugin, "kiln_sim_control");
    dlclose(plugin); /* RTLD_NOLOAD counted it once more */
    return control;
}

uint64_t memory_in_use(kiln_device device)
{
    kiln_memory_stats stats = {0};
    kiln_memory_get_stats(device, &stats);
    return stats.in_use;
}
