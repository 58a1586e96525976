/* The MLP 784-256-128-10 with cross-entropy and Adam, written with plain operations: microseconds a step at batch 32
 * and 1024, what recording and replaying cost, and how long a large trace takes to plan. One JSON object a line, so
 * that bench/run can set it beside PyTorch and JAX. */
#include <kiln.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

typedef struct model {
    kiln_tensor *weight[3], *bias[3];
    kiln_tensor *m[6], *v[6];
    int64_t steps;
} model;

static const int64_t sizes[4] = {784, 256, 128, 10};

static kiln_tensor *parameter(kiln_tensor *t)
{
    kiln_eval();
    return kiln_requires_grad(kiln_keep(t), true);
}

static void model_make(model *net)
{
    memset(net, 0, sizeof *net);
    for (int i = 0; i < 3; i++) {
        double scale = 1 / sqrt((double)sizes[i]);
        net->weight[i] = parameter(kiln_mul_scalar(kiln_randn(KILN_SHAPE(sizes[i + 1], sizes[i]), KILN_F32), scale));
        net->bias[i] = parameter(kiln_zeros(KILN_SHAPE(sizes[i + 1]), KILN_F32));
        for (int k = 0; k < 2; k++) {
            kiln_tensor *p = k ? net->bias[i] : net->weight[i];
            net->m[2 * i + k] = kiln_keep(kiln_zeros_like(p));
            net->v[2 * i + k] = kiln_keep(kiln_zeros_like(p));
        }
    }
    kiln_eval();
}

static void adam(kiln_tensor *p, kiln_tensor *m, kiln_tensor *v, int64_t t)
{
    kiln_tensor *g = kiln_grad_of(p);
    double c1 = 1 - pow(0.9, (double)t), c2 = 1 - pow(0.999, (double)t);
    kiln_tensor *m1 = kiln_add(kiln_mul_scalar(m, 0.9), kiln_mul_scalar(g, 0.1));
    kiln_tensor *v1 = kiln_add(kiln_mul_scalar(v, 0.999), kiln_mul_scalar(kiln_mul(g, g), 0.001));
    kiln_tensor *root = kiln_add_scalar(kiln_sqrt(kiln_mul_scalar(v1, 1 / c2)), 1e-8);
    kiln_assign(m, m1);
    kiln_assign(v, v1);
    kiln_assign(p, kiln_sub(p, kiln_div(kiln_mul_scalar(m1, 1e-3 / c1), root)));
}

static void record_step(model *net, kiln_tensor *x, kiln_tensor *y)
{
    for (int i = 0; i < 3; i++) {
        kiln_zero_grad_of(net->weight[i]);
        kiln_zero_grad_of(net->bias[i]);
    }
    kiln_tensor *h = x;
    for (int i = 0; i < 3; i++) {
        h = kiln_linear(h, net->weight[i], net->bias[i]);
        if (i < 2)
            h = kiln_relu(h);
    }
    kiln_backward(kiln_cross_entropy(h, y));
    net->steps++;
    kiln_no_grad
        for (int i = 0; i < 3; i++) {
            adam(net->weight[i], net->m[2 * i], net->v[2 * i], net->steps);
            adam(net->bias[i], net->m[2 * i + 1], net->v[2 * i + 1], net->steps);
        }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void bench_mlp(int64_t batch)
{
    enum { ROUNDS = 5 };
    model net;
    double rounds[ROUNDS], record = 0, run = 0;
    model_make(&net);
    kiln_tensor *x = kiln_keep(kiln_randn(KILN_SHAPE(batch, 784), KILN_F32));
    kiln_tensor *y = kiln_keep(kiln_randint(0, 10, KILN_SHAPE(batch), KILN_I64));
    kiln_eval();
    for (int i = 0; i < 10; i++)
        kiln_step
            record_step(&net, x, y);
    for (int r = 0; r < ROUNDS; r++) {
        double start = now_us(), spent = 0;
        int n = 0;
        while (now_us() - start < 0.8e6) {
            double t0 = now_us();
            kiln_step {
                record_step(&net, x, y);
                spent += now_us() - t0;
            }
            n++;
        }
        rounds[r] = (now_us() - start) / n;
        record += spent / n / ROUNDS;
        run += rounds[r] / ROUNDS;
    }
    qsort(rounds, ROUNDS, sizeof *rounds, compare);
    kiln_plan_info info;
    kiln_plan_last(&info);
    printf(
        "{\"work\": \"mlp\", \"batch\": %lld, \"peer\": \"kiln\", \"us\": %.1f, \"record_us\": %.2f, \"nodes\": %lld, "
        "\"kernels\": %lld, \"ns_a_node\": %.0f}\n",
        (long long)batch, rounds[ROUNDS / 2], record, (long long)info.nodes, (long long)info.kernels,
        1e3 * record / (double)info.nodes);
    fflush(stdout);
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
