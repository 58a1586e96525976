/* What a step costs beside its kernels: recording and replaying the smallest one, recording and planning a large
 * trace. One JSON object a line. */
#include <kiln.h>
#include "core/clock.h"

/* A step of one tiny kernel is nearly all overhead. */
static void bench_smallest(void)
{
    kiln_tensor *x = kiln_keep(kiln_ones(KILN_SHAPE(4), KILN_F32));
    kiln_eval();
    double record = 0, total = 0;
    int n = 20000;
    for (int i = 0; i < n; i++) {
        double start = kiln_seconds();
        kiln_step {
            kiln_assign(x, kiln_mul_scalar(x, 1.0));
            record += kiln_seconds() - start;
        }
        total += kiln_seconds() - start;
    }
    kiln_release(x);
    printf("{\"work\": \"smallest step\", \"record_us\": %.3f, \"replay_us\": %.3f}\n", 1e6 * record / n,
           1e6 * (total - record) / n);
}

/* A chain of small operations, the best of several rounds. */
static void bench_trace(int nodes)
{
    double record = 1e300, plan = 1e300;
    kiln_plan_cache_set_capacity(0); /* so that every round plans anew */
    for (int round = 0; round < 7; round++)
        kiln_step {
            kiln_tensor *x = kiln_of_f32(((float[]){1, 2, 3, 4}), 4), *y = x;
            double start = kiln_seconds();
            for (int i = 0; i < nodes; i++)
                y = i % 16 == 15 ? kiln_cumsum(y, 0) : kiln_mul(y, x);
            kiln_keep(y);
            double recorded = kiln_seconds();
            char *text = kiln_plan_describe();
            double planned = kiln_seconds();
            kiln_string_free(text);
            kiln_release(y);
            record = recorded - start < record ? recorded - start : record;
            plan = planned - recorded < plan ? planned - recorded : plan;
        }
    kiln_plan_cache_set_capacity(256);
    printf("{\"work\": \"trace\", \"nodes\": %d, \"record_ns_a_node\": %.0f, \"plan_and_describe_ms\": %.1f}\n", nodes,
           1e9 * record / nodes, 1e3 * plan);
}

int main(void)
{
    bench_smallest();
    bench_trace(1000);
    bench_trace(10000);
    return kiln_report(stderr);
}
