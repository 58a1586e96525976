/* Pointwise chains, reductions and rows over tensors of 1 GiB, in GB/s of what has to be read and written, beside the
 * GPU's own copy of 1 GiB in the same run. One JSON object a line.
 *
 * Fused groups are measured as they run in a training but for its first steps: by kernels compiled for them, which are
 * waited for before anything is timed. The interpreter that runs them until then is measured with KILN_CUDA_JIT=0.
 * Where NVRTC cannot be opened it runs them for good: so each line has the setting and NVRTC's version, "" where there
 * is none.
 *
 * usage: kiln_bench_cuda_memory [--device cuda:0] [chain] [sum] [softmax] … */
#include "bench.h"

#if __has_include(<cuda.h>)
#include "cuda_peer.h"

enum { ROWS = 16384, COLUMNS = 16384 };
static const size_t gibibyte = (size_t)1 << 30;

typedef struct tensors {
    kiln_tensor *x, *y;                          /* [ROWS, COLUMNS] */
    kiln_tensor *column;                         /* [ROWS, 1] */
    kiln_tensor *weight, *bias;                  /* [COLUMNS] */
    kiln_tensor *half, *half_weight, *half_bias; /* x, weight and bias in bf16 */
    int64_t row;                                 /* elements that rows are to have */
} tensors;

/* ---- The work: each a fresh tensor, or t->y when it is assigned to ---- */

static kiln_tensor *copy(tensors *t)
{
    return kiln_clone(t->x);
}

static kiln_tensor *chain(tensors *t)
{
    return kiln_mul(kiln_relu(kiln_add_scalar(kiln_mul_scalar(t->x, 1.5), 0.25)), t->x);
}

static kiln_tensor *update(tensors *t)
{
    kiln_assign(t->y, kiln_add(kiln_mul_scalar(t->y, 0.9), kiln_mul_scalar(t->x, 0.1)));
    return t->y;
}

static kiln_tensor *gelu(tensors *t)
{
    return kiln_gelu(t->x);
}

static kiln_tensor *halve(tensors *t)
{
    return kiln_cast(kiln_mul_scalar(t->x, 2), KILN_BF16);
}

static kiln_tensor *rows_and_columns(tensors *t)
{
    return kiln_mul(kiln_add(t->x, t->bias), t->column);
}

static kiln_tensor *sum(tensors *t)
{
    return kiln_sum_all(t->x);
}

static kiln_tensor *squares(tensors *t)
{
    return kiln_sum_all(kiln_mul(t->x, t->x));
}

static kiln_tensor *sum_rows(tensors *t)
{
    return kiln_sum(t->x, KILN_DIMS(1), true);
}

static kiln_tensor *sum_columns(tensors *t)
{
    return kiln_sum(t->x, KILN_DIMS(0), true);
}

static kiln_tensor *max_rows(tensors *t)
{
    return kiln_amax(t->x, KILN_DIMS(1), true);
}

static kiln_tensor *rows_of(tensors *t, kiln_tensor *x)
{
    return kiln_reshape(x, KILN_SHAPE(kiln_numel(x) / t->row, t->row));
}

static kiln_tensor *softmax(tensors *t)
{
    return kiln_softmax(rows_of(t, t->x), 1);
}

static kiln_tensor *half_softmax(tensors *t)
{
    return kiln_softmax(rows_of(t, t->half), 1);
}

static kiln_tensor *norm(tensors *t, kiln_tensor *x, kiln_tensor *weight, kiln_tensor *bias)
{
    return kiln_layer_norm(rows_of(t, x), KILN_SHAPE(t->row), kiln_slice(weight, 0, 0, t->row, 1),
                           kiln_slice(bias, 0, 0, t->row, 1), 1e-5);
}

static kiln_tensor *layer_norm(tensors *t)
{
    return norm(t, t->x, t->weight, t->bias);
}

static kiln_tensor *half_layer_norm(tensors *t)
{
    return norm(t, t->half, t->half_weight, t->half_bias);
}

static const struct work {
    const char *name, *what;
    double gibibytes; /* read and written at least */
    kiln_tensor *(*record)(tensors *t);
    int64_t shortest; /* of its rows; longer ones follow, up to COLUMNS */
} works[] = {
    {"copy", "y = x", 2, copy, COLUMNS},
    {"chain", "y = relu(x*a + b) * x", 2, chain, COLUMNS},
    {"update", "y = y*a + x*b", 3, update, COLUMNS},
    {"gelu", "y = gelu(x)", 2, gelu, COLUMNS},
    {"bf16", "y = bf16(x*a)", 1.5, halve, COLUMNS},
    {"broadcast", "y = (x + row) * column", 2, rows_and_columns, COLUMNS},
    {"sum", "sum of all", 1, sum, COLUMNS},
    {"squares", "sum of x*x", 1, squares, COLUMNS},
    {"sum_rows", "sum of each row", 1, sum_rows, COLUMNS},
    {"sum_columns", "sum of each column", 1, sum_columns, COLUMNS},
    {"max_rows", "largest of each row", 1, max_rows, COLUMNS},
    {"softmax", "softmax of each row", 2, softmax, 256},
    {"softmax_bf16", "softmax of each row in bf16", 1, half_softmax, 256},
    {"layer_norm", "layer norm of each row", 2, layer_norm, 256},
    {"layer_norm_bf16", "layer norm of each row in bf16", 1, half_layer_norm, 256},
};

/* ---- Kiln and the copy ---- */

typedef struct ours {
    tensors *t;
    const struct work *work;
    kiln_device device;
} ours;

static void run_ours(void *context)
{
    ours *o = context;
    kiln_tensor *result = NULL;
    kiln_step
        result = kiln_keep(o->work->record(o->t));
    if (result != o->t->y)
        kiln_release(result);
}

static void wait_ours(void *context)
{
    kiln_device_wait(((ours *)context)->device);
}

/* "13.0"; "" and a word to people where generated kernels cannot be compiled. */
static const char *nvrtc_version(void)
{
    static kiln_device_library libraries[16];
    int n = kiln_device_libraries("cuda", libraries, 16);
    for (int i = 0; i < n; i++) {
        if (strcmp(libraries[i].name, "NVRTC"))
            continue;
        if (!libraries[i].version[0])
            fprintf(stderr, "fused groups are interpreted: %s\n", libraries[i].why);
        return libraries[i].version;
    }
    return "";
}

typedef struct theirs {
    cuda_peer peer;
    CUdeviceptr from, to;
} theirs;

static void run_theirs(void *context)
{
    theirs *t = context;
    PEER(&t->peer, cuMemcpyDtoDAsync, t->to, t->from, gibibyte, t->peer.stream);
}

static void wait_theirs(void *context)
{
    peer_wait(&((theirs *)context)->peer);
}

static tensors make_tensors(void)
{
    tensors t = {0};
    t.x = kiln_keep(kiln_randn(KILN_SHAPE(ROWS, COLUMNS), KILN_F32));
    t.y = kiln_keep(kiln_zeros(KILN_SHAPE(ROWS, COLUMNS), KILN_F32));
    t.column = kiln_keep(kiln_ones(KILN_SHAPE(ROWS, 1), KILN_F32));
    t.weight = kiln_keep(kiln_randn(KILN_SHAPE(COLUMNS), KILN_F32));
    t.bias = kiln_keep(kiln_randn(KILN_SHAPE(COLUMNS), KILN_F32));
    t.half = kiln_keep(kiln_cast(t.x, KILN_BF16));
    t.half_weight = kiln_keep(kiln_cast(t.weight, KILN_BF16));
    t.half_bias = kiln_keep(kiln_cast(t.bias, KILN_BF16));
    kiln_eval();
    return t;
}

static void free_tensors(tensors *t)
{
    kiln_tensor *all[] = {t->x, t->y, t->column, t->weight, t->bias, t->half, t->half_weight, t->half_bias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        kiln_release(all[i]);
}

static void measure(const struct work *w, tensors *t, kiln_device device, theirs *peer, const char *nvrtc)
{
    ours o = {t, w, device};
    bench_contender who[2] = {{run_ours, wait_ours, &o}, {run_theirs, wait_theirs, peer}};
    double seconds[2], bytes = w->gibibytes * (double)gibibyte;
    bench_in_turn(who, seconds);
    if (!kiln_ok())
        return;
    kiln_plan_info info = {0};
    kiln_plan_last(&info);
    double ours_gbs = bytes / seconds[0] / 1e9, copy_gbs = 2.0 * (double)gibibyte / seconds[1] / 1e9;
    printf(
        "{\"work\": \"memory %s\", \"what\": \"%s\", \"row\": %d, \"us\": %.1f, \"gb_s\": %.0f, \"copy_gb_s\": %.0f, "
        "\"of_copy\": %.3f, \"kernels\": %d, \"jit\": \"%s\", \"nvrtc\": \"%s\"}\n",
        w->name, w->what, (int)t->row, 1e6 * seconds[0], ours_gbs, copy_gbs, ours_gbs / copy_gbs, (int)info.kernels,
        getenv("KILN_CUDA_JIT"), nvrtc);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    setenv("KILN_CUDA_JIT", "wait", 0);
    kiln_device device = bench_device(&argc, argv, "cuda");
    const char *nvrtc = nvrtc_version();
    tensors t = make_tensors();
    theirs peer = {.peer = peer_open()};
    PEER(&peer.peer, cuMemAlloc, &peer.from, gibibyte);
    PEER(&peer.peer, cuMemAlloc, &peer.to, gibibyte);
    PEER(&peer.peer, cuMemsetD8Async, peer.from, 1, gibibyte, peer.peer.stream);
    for (size_t i = 0; kiln_ok() && i < sizeof works / sizeof *works; i++)
        if (bench_wanted(works[i].name, argc, argv))
            for (t.row = works[i].shortest; t.row <= COLUMNS; t.row *= 4)
                measure(&works[i], &t, device, &peer, nvrtc);
    PEER(&peer.peer, cuMemFree, peer.from);
    PEER(&peer.peer, cuMemFree, peer.to);
    free_tensors(&t);
    return kiln_report(stderr);
}

#else
int main(int argc, char **argv)
{
    return bench_without_cuda(argc, argv);
}
#endif
