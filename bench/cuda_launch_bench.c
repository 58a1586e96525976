/* What launching costs: steps of 1, 10 and 20 kernels that have nothing to do, beside a CUDA graph of as many empty
 * kernels, launched again and again in the same run. One JSON object a line.
 *
 * usage: kiln_bench_cuda_launch [--device cuda:0] */
#include "bench.h"

#if __has_include(<cuda.h>)
#include "cuda_peer.h"

enum { ELEMENTS = 64 };

/* ---- Kiln: running sums of zeros, each a kernel of its own ---- */

typedef struct ours {
    kiln_tensor *x;
    int kernels;
    kiln_device device;
} ours;

static void run_ours(void *context)
{
    ours *o = context;
    kiln_tensor *y = o->x;
    kiln_step {
        for (int i = 0; i < o->kernels; i++)
            y = kiln_cumsum(y, 0);
        kiln_keep(y);
    }
    kiln_release(y);
}

static void wait_ours(void *context)
{
    kiln_device_wait(((ours *)context)->device);
}

/* ---- The graph ---- */

static const char empty_kernel[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry nothing() { ret; }\n";

typedef struct theirs {
    cuda_peer *peer;
    CUgraph graph;
    CUgraphExec exec;
} theirs;

static theirs make_theirs(cuda_peer *p, CUfunction nothing, int kernels)
{
    theirs t = {.peer = p};
    PEER(p, cuStreamBeginCapture, p->stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    for (int i = 0; i < kernels; i++)
        PEER(p, cuLaunchKernel, nothing, 1, 1, 1, 32, 1, 1, 0, p->stream, NULL, NULL);
    PEER(p, cuStreamEndCapture, p->stream, &t.graph);
    PEER(p, cuGraphInstantiateWithFlags, &t.exec, t.graph, 0);
    return t;
}

static void run_theirs(void *context)
{
    theirs *t = context;
    PEER(t->peer, cuGraphLaunch, t->exec, t->peer->stream);
}

static void wait_theirs(void *context)
{
    peer_wait(((theirs *)context)->peer);
}

/* ---- Side by side ---- */

/* What the step costs the thread that writes it: recording, looking the plan up, launching. */
static double host_seconds(ours *o)
{
    enum { CALLS = 200 }; /* few enough for the queue to take them all */
    wait_ours(o);
    double start = kiln_seconds();
    for (int i = 0; i < CALLS; i++)
        run_ours(o);
    double spent = kiln_seconds() - start;
    wait_ours(o);
    return spent / CALLS;
}

static void measure(int kernels, kiln_device device, cuda_peer *peer, CUfunction nothing)
{
    ours o = {.x = kiln_keep(kiln_zeros(KILN_SHAPE(ELEMENTS), KILN_F32)), .kernels = kernels, .device = device};
    theirs t = make_theirs(peer, nothing, kernels);
    bench_contender who[2] = {{run_ours, wait_ours, &o}, {run_theirs, wait_theirs, &t}};
    double seconds[2];
    kiln_eval();
    bench_in_turn(who, seconds);
    double host = host_seconds(&o);
    kiln_plan_info info = {0};
    kiln_plan_last(&info);
    if (kiln_ok())
        printf("{\"work\": \"launch %d\", \"kernels\": %d, \"us\": %.2f, \"host_us\": %.2f, \"graph_us\": %.2f, "
               "\"times_graph\": %.2f}\n",
               kernels, (int)info.kernels, 1e6 * seconds[0], 1e6 * host, 1e6 * seconds[1], seconds[0] / seconds[1]);
    fflush(stdout);
    PEER(peer, cuGraphExecDestroy, t.exec);
    PEER(peer, cuGraphDestroy, t.graph);
    kiln_release(o.x);
}

int main(int argc, char **argv)
{
    static const int sizes[] = {1, 10, 20};
    setenv("KILN_CUDA_JIT", "wait", 0);
    kiln_device device = bench_device(&argc, argv, "cuda");
    cuda_peer peer = peer_open();
    CUmodule module;
    CUfunction nothing;
    PEER(&peer, cuModuleLoadData, &module, empty_kernel);
    PEER(&peer, cuModuleGetFunction, &nothing, module, "nothing");
    for (size_t i = 0; kiln_ok() && i < sizeof sizes / sizeof *sizes; i++)
        measure(sizes[i], device, &peer, nothing);
    return kiln_report(stderr);
}

#else
int main(int argc, char **argv)
{
    return bench_without_cuda(argc, argv);
}
#endif
