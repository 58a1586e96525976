/* The MLP 784-256-128-10 with cross-entropy and Adam, written with plain operations: microseconds a step at batch 32
 * and 1024, what recording and replaying cost, and how long a large trace takes to plan. */
#include "bench.h"

typedef struct model {
    bench_parameter weight[3], bias[3];
    kiln_tensor *x, *y;
    int64_t steps;
} model;

static const int64_t sizes[4] = {784, 256, 128, 10};

static void record_step(void *context)
{
    model *net = context;
    for (int i = 0; i < 3; i++) {
        kiln_zero_grad_of(net->weight[i].value);
        kiln_zero_grad_of(net->bias[i].value);
    }
    kiln_tensor *h = net->x;
    for (int i = 0; i < 3; i++) {
        h = kiln_linear(h, net->weight[i].value, net->bias[i].value);
        if (i < 2)
            h = kiln_relu(h);
    }
    kiln_backward(kiln_cross_entropy(h, net->y));
    net->steps++;
    kiln_no_grad
        for (int i = 0; i < 3; i++) {
            bench_adam(&net->weight[i], net->steps);
            bench_adam(&net->bias[i], net->steps);
        }
}

static void bench_mlp(int64_t batch)
{
    model net = {.steps = 0};
    for (int i = 0; i < 3; i++) {
        net.weight[i] = bench_weight(KILN_SHAPE(sizes[i + 1], sizes[i]));
        net.bias[i] = bench_bias(sizes[i + 1]);
    }
    net.x = kiln_keep(kiln_randn(KILN_SHAPE(batch, 784), KILN_F32));
    net.y = kiln_keep(kiln_randint(0, 10, KILN_SHAPE(batch), KILN_I64));
    kiln_eval();
    bench_steps("mlp", batch, record_step, &net);
}

/* Recording alone, and planning: a chain of small operations, the best of several rounds. */
static void bench_trace(int nodes)
{
    double record = 1e300, plan = 1e300;
    kiln_plan_cache_set_capacity(0); /* so that every round plans anew */
    for (int round = 0; round < 7; round++)
        kiln_step {
            kiln_tensor *x = kiln_of_f32(((float[]){1, 2, 3, 4}), 4), *y = x;
            double t0 = now_us();
            for (int i = 0; i < nodes; i++)
                y = i % 16 == 15 ? kiln_cumsum(y, 0) : kiln_mul(y, x);
            kiln_keep(y);
            double t1 = now_us();
            char *text = kiln_plan_describe();
            double t2 = now_us();
            kiln_string_free(text);
            kiln_release(y);
            record = t1 - t0 < record ? t1 - t0 : record;
            plan = t2 - t1 < plan ? t2 - t1 : plan;
        }
    kiln_plan_cache_set_capacity(256);
    printf("{\"work\": \"trace\", \"nodes\": %d, \"record_ns_a_node\": %.0f, \"plan_and_describe_ms\": %.1f}\n", nodes,
           1e3 * record / nodes, plan / 1e3);
}

/* What a replay costs beside its kernels: a step of the same structure on tiny sizes is nearly all overhead. */
static void bench_overhead(void)
{
    kiln_tensor *x = kiln_keep(kiln_ones(KILN_SHAPE(4), KILN_F32));
    kiln_eval();
    double record = 0, total = 0;
    int n = 20000;
    for (int i = 0; i < n; i++) {
        double t0 = now_us();
        kiln_step {
            kiln_assign(x, kiln_mul_scalar(x, 1.0));
            record += now_us() - t0;
        }
        total += now_us() - t0;
    }
    printf("{\"work\": \"smallest step\", \"record_us\": %.3f, \"replay_us\": %.3f}\n", record / n,
           (total - record) / n);
}

int main(int argc, char **argv)
{
    const char *part = argc > 1 ? argv[1] : "";
    if (strcmp(part, "mlp") != 0) {
        bench_overhead();
        bench_trace(1000);
        bench_trace(10000);
    }
    if (strcmp(part, "costs") != 0) {
        bench_mlp(32);
        bench_mlp(1024);
    }
    return kiln_report(stderr);
}
