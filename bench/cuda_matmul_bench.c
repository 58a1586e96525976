/* Matrix products through Kiln's interface, in TFLOP/s beside cuBLASLt called directly with the first choice of its own
 * heuristic, in the same run. Operands are random and take turns, so that none is found in the cache. One JSON object a
 * line.
 *
 * usage: kiln_bench_cuda_matmul [--device cuda:0] [f32] [bf16] [f16]      KILN_TF32=1: f32 is measured as TF32 */
#include "bench.h"

#if __has_include(<cuda.h>) && __has_include(<cublasLt.h>)
#include "cublaslt_peer.h"

enum { MOST_SETS = 16 };
static const double beyond_cache = 128e6; /* bytes: more than the L2 of any GPU there is */

/* A product may end with a bias and a relu. */
static const struct shape {
    const char *name;
    lt_sizes sizes;
    bool ends;
} shapes[] = {
    {"1024", {1024, 1024, 1024, false, false}, false},
    {"2048", {2048, 2048, 2048, false, false}, false},
    {"4096", {4096, 4096, 4096, false, false}, false},
    {"8192", {8192, 8192, 8192, false, false}, false},
    {"gpt2 qkv", {32768, 2304, 768, false, true}, false},
    {"gpt2 projection", {32768, 768, 768, false, true}, false},
    {"gpt2 up", {32768, 3072, 768, false, true}, false},
    {"gpt2 down", {32768, 768, 3072, false, true}, false},
    {"gpt2 up, input gradient", {32768, 768, 3072, false, false}, false},
    {"gpt2 up, weight gradient", {3072, 768, 32768, true, false}, false},
    {"mlp 8192, first layer", {8192, 256, 784, false, true}, false},
    {"mlp 8192, first layer with bias and relu", {8192, 256, 784, false, true}, true},
    {"gpt2 up with bias and relu", {32768, 3072, 768, false, true}, true},
};

/* ---- Kiln ---- */

typedef struct ours {
    const struct shape *s;
    kiln_device device;
    int sets;
    kiln_tensor *a[MOST_SETS], *b[MOST_SETS], *bias; /* bias: NULL where the product does not end with one */
} ours;

static void run_ours(void *context)
{
    ours *o = context;
    kiln_tensor *c[MOST_SETS];
    kiln_step
        for (int i = 0; i < o->sets; i++) {
            kiln_tensor *a = o->s->sizes.a_turned ? kiln_transpose(o->a[i], 0, 1) : o->a[i];
            kiln_tensor *b = o->s->sizes.b_turned ? kiln_transpose(o->b[i], 0, 1) : o->b[i];
            kiln_tensor *y = kiln_matmul(a, b);
            c[i] = kiln_keep(o->bias ? kiln_relu(kiln_add(y, o->bias)) : y);
        }
    for (int i = 0; i < o->sets; i++)
        kiln_release(c[i]);
}

static void wait_ours(void *context)
{
    kiln_device_wait(((ours *)context)->device);
}

static kiln_tensor *random_matrix(int64_t rows, int64_t columns, bool turned, kiln_dtype dtype)
{
    return kiln_keep(kiln_randn(KILN_SHAPE(turned ? columns : rows, turned ? rows : columns), dtype));
}

static ours make_ours(const struct shape *s, kiln_dtype dtype, kiln_device device, int sets)
{
    ours o = {.s = s, .device = device, .sets = sets};
    for (int i = 0; i < sets; i++) {
        o.a[i] = random_matrix(s->sizes.m, s->sizes.k, s->sizes.a_turned, dtype);
        o.b[i] = random_matrix(s->sizes.k, s->sizes.n, s->sizes.b_turned, dtype);
    }
    o.bias = s->ends ? kiln_keep(kiln_randn(KILN_SHAPE(s->sizes.n), dtype)) : NULL;
    kiln_eval();
    return o;
}

static void free_ours(ours *o)
{
    for (int i = 0; i < o->sets; i++) {
        kiln_release(o->a[i]);
        kiln_release(o->b[i]);
    }
    kiln_release(o->bias);
    kiln_memory_trim(o->device);
}

/* ---- cuBLASLt ---- */

typedef struct theirs {
    cuda_peer *peer;
    const lt_peer *lt;
    lt_product product;
    cublasLtMatmulHeuristicResult_t choice;
    int sets;
    CUdeviceptr a[MOST_SETS], b[MOST_SETS], c[MOST_SETS], bias;
} theirs;

static void run_theirs(void *context)
{
    theirs *t = context;
    for (int i = 0; i < t->sets; i++)
        lt_run(t->lt, &t->product, &t->choice.algo, t->a[i], t->b[i], t->c[i], t->peer->stream);
}

static void wait_theirs(void *context)
{
    peer_wait(((theirs *)context)->peer);
}

static size_t bytes_of(const kiln_tensor *t)
{
    return (size_t)kiln_numel(t) * kiln_dtype_size(kiln_dtype_of(t));
}

static CUdeviceptr room_for(cuda_peer *p, size_t bytes)
{
    CUdeviceptr room = 0;
    PEER(p, cuMemAlloc, &room, bytes);
    return room;
}

/* Kiln's own elements: what they are decides how much power a product takes, and so how fast it is. */
static CUdeviceptr copy_of(cuda_peer *p, kiln_tensor *t)
{
    CUdeviceptr to = room_for(p, bytes_of(t));
    void *bits = malloc(bytes_of(t));
    if (bits && kiln_read(t, bits, bytes_of(t)))
        PEER(p, cuMemcpyHtoD, to, bits, bytes_of(t));
    free(bits);
    return to;
}

static void describe_end(theirs *t)
{
    const uint32_t end = CUBLASLT_EPILOGUE_RELU_BIAS;
    LT(t->lt, cublasLtMatmulDescSetAttribute, t->product.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &end, sizeof end);
    LT(t->lt, cublasLtMatmulDescSetAttribute, t->product.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &t->bias,
       sizeof t->bias);
}

static theirs make_theirs(cuda_peer *p, const lt_peer *l, ours *o, cudaDataType_t type, cublasComputeType_t compute)
{
    const lt_sizes *s = &o->s->sizes;
    theirs t = {.peer = p, .lt = l, .sets = o->sets, .product = lt_describe(l, s, type, compute)};
    if (o->bias) {
        t.bias = copy_of(p, o->bias);
        describe_end(&t);
    }
    if (lt_choices(l, &t.product, CUBLASLT_REDUCTION_SCHEME_MASK, &t.choice, 1) < 1) {
        fprintf(stderr, "cuBLASLt has no algorithm\n");
        exit(1);
    }
    for (int i = 0; i < o->sets; i++) {
        t.a[i] = copy_of(p, o->a[i]);
        t.b[i] = copy_of(p, o->b[i]);
        t.c[i] = room_for(p, (size_t)(s->m * s->n) * kiln_dtype_size(kiln_dtype_of(o->a[i])));
    }
    return t;
}

static void free_theirs(theirs *t)
{
    for (int i = 0; i < t->sets; i++) {
        PEER(t->peer, cuMemFree, t->a[i]);
        PEER(t->peer, cuMemFree, t->b[i]);
        PEER(t->peer, cuMemFree, t->c[i]);
    }
    if (t->bias)
        PEER(t->peer, cuMemFree, t->bias);
    lt_forget(t->lt, &t->product);
}

/* ---- Side by side ---- */

typedef struct precision {
    const char *name;
    kiln_dtype dtype;
    cudaDataType_t type;
} precision;

static void measure(const struct shape *shape, const precision *p, kiln_device device, cuda_peer *peer,
                    const lt_peer *lt)
{
    const lt_sizes *s = &shape->sizes;
    const char *wish = getenv("KILN_TF32");
    bool tf32 = p->dtype == KILN_F32 && wish && strcmp(wish, "1") == 0;
    double bytes = (double)(s->m * s->k + s->k * s->n + s->m * s->n) * (double)kiln_dtype_size(p->dtype);
    double sets = 1 + beyond_cache / bytes;
    ours o = make_ours(shape, p->dtype, device, sets < MOST_SETS ? (int)sets : MOST_SETS);
    theirs t = make_theirs(peer, lt, &o, p->type, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F);
    bench_contender who[2] = {{run_ours, wait_ours, &o}, {run_theirs, wait_theirs, &t}};
    double seconds[2] = {1, 1}, flop = 2.0 * (double)s->m * (double)s->n * (double)s->k * o.sets;
    if (kiln_ok())
        bench_in_turn(who, seconds);
    if (kiln_ok())
        printf("{\"work\": \"matmul %s\", \"dtype\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": %lld, \"us\": %.1f, "
               "\"tflop_s\": %.1f, \"cublaslt_tflop_s\": %.1f, \"of_cublaslt\": %.3f}\n",
               shape->name, tf32 ? "tf32" : p->name, (long long)s->m, (long long)s->n, (long long)s->k,
               1e6 * seconds[0] / o.sets, flop / seconds[0] / 1e12, flop / seconds[1] / 1e12, seconds[1] / seconds[0]);
    fflush(stdout);
    free_theirs(&t);
    free_ours(&o);
}

int main(int argc, char **argv)
{
    static const precision precisions[] = {
        {"f32", KILN_F32, CUDA_R_32F}, {"bf16", KILN_BF16, CUDA_R_16BF}, {"f16", KILN_F16, CUDA_R_16F}};
    setenv("KILN_CUDA_JIT", "wait", 0);
    kiln_device device = bench_device(&argc, argv, "cuda");
    cuda_peer peer = peer_open();
    lt_peer lt = lt_open(&peer);
    for (size_t p = 0; p < sizeof precisions / sizeof *precisions; p++)
        for (size_t i = 0; kiln_ok() && i < sizeof shapes / sizeof *shapes; i++)
            if (bench_wanted(precisions[p].name, argc, argv))
                measure(&shapes[i], &precisions[p], device, &peer, &lt);
    return kiln_report(stderr);
}

#else
int main(int argc, char **argv)
{
    return bench_without_cuda(argc, argv);
}
#endif
