/* The three products of a linear layer (forward, gradient of the input, gradient of the weight) in bf16 by cuBLASLt,
 * with what the library can do behind them, by each of the ways it offers, in its order: what its first choice leaves
 * undone, and whether an epilogue costs less than a pass of its own. Kiln is not in it. One JSON object a line.
 *
 * usage: kiln_bench_cuda_layers [--device cuda:0] [ROWS:INPUTS:OUTPUTS[:turned]] …      turned: the weight is [outputs,
 * inputs], as PyTorch has it, and not [inputs, outputs], as GPT-2 has. Without layers: those of some transformers. */
#include "bench.h"

#if __has_include(<cuda.h>) && __has_include(<cublasLt.h>)
#include "cublaslt_peer.h"

enum { WAYS = 16, ROUNDS = 5, MOST_LAYERS = 64 };

typedef struct layer {
    int64_t rows, in, out;
    bool turned;
} layer;

static const layer standard[] = {
    /* GPT-2 124M, 32 × 1024, and a chunk of its head; 4 × 256 */
    {32768, 768, 2304, false},
    {32768, 768, 768, false},
    {32768, 768, 3072, false},
    {32768, 3072, 768, false},
    {4096, 768, 50264, true},
    {1024, 768, 2304, false},
    {1024, 768, 3072, false},
    {1024, 3072, 768, false},
    {1024, 768, 50264, true},
    /* a GPT of 6 × 384, 64 × 256 */
    {16384, 384, 1152, false},
    {16384, 384, 1536, false},
    {16384, 1536, 384, false},
    /* ViT-tiny, 256 images of 65 tokens */
    {16640, 192, 576, true},
    {16640, 192, 768, true},
    {16640, 768, 192, true},
};

/* What stands behind a product. A gelu forward also stores what it was of, one backward reads that. */
static const struct end {
    const char *name;
    cublasLtEpilogue_t epilogue;
    bool forward, input, weight; /* where it makes sense */
    bool vector, matrix;         /* what it reads or writes beside */
} ends[] = {
    {"nothing", CUBLASLT_EPILOGUE_DEFAULT, true, true, true, false, false},
    {"bias", CUBLASLT_EPILOGUE_BIAS, true, false, false, true, false},
    {"bias and gelu, both stored", CUBLASLT_EPILOGUE_GELU_AUX_BIAS, true, false, false, true, true},
    {"gradient of gelu", CUBLASLT_EPILOGUE_DGELU, false, true, false, false, true},
    {"gradient of gelu and its sum", CUBLASLT_EPILOGUE_DGELU_BGRAD, false, true, false, true, true},
    {"sum of the gradient", CUBLASLT_EPILOGUE_BGRADA, false, false, true, true, false},
};

typedef struct room {
    CUdeviceptr a, b, c, matrix, vector;
} room;

typedef struct contest {
    cuda_peer *peer;
    const lt_peer *lt;
    lt_product product;
    const cublasLtMatmulAlgo_t *algorithm;
    const room *room;
} contest;

static void run(void *context)
{
    const contest *c = context;
    lt_run(c->lt, &c->product, c->algorithm, c->room->a, c->room->b, c->room->c, c->peer->stream);
}

static void wait_for_it(void *context)
{
    peer_wait(((contest *)context)->peer);
}

static double seconds_of(contest *c)
{
    bench_contender who = {run, wait_for_it, c};
    double rounds[ROUNDS], once;
    bench_time(&who, 2);
    once = bench_time(&who, 3);
    for (int r = 0; r < ROUNDS; r++)
        rounds[r] = bench_time(&who, once > 3e-3 ? 3 : (int)(1e-2 / once));
    return bench_median(rounds, ROUNDS);
}

/* One of the numbers that say which way it is; the library wants to hear the size of each. */
static uint32_t number_of(const lt_peer *l, const cublasLtMatmulAlgo_t *algorithm,
                          cublasLtMatmulAlgoConfigAttributes_t what)
{
    uint32_t number = 0;
    uint16_t half = 0;
    bool is_half = what == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID || what == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID;
    size_t written;
    LT(l, cublasLtMatmulAlgoConfigGetAttribute, algorithm, what, is_half ? (void *)&half : &number,
       is_half ? sizeof half : sizeof number, &written);
    return is_half ? half : number;
}

static void set_end(const lt_peer *l, const lt_product *p, const struct end *e, const room *r, int64_t columns)
{
    LT(l, cublasLtMatmulDescSetAttribute, p->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &e->epilogue,
       sizeof e->epilogue);
    if (e->vector)
        LT(l, cublasLtMatmulDescSetAttribute, p->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &r->vector,
           sizeof r->vector);
    if (!e->matrix)
        return;
    LT(l, cublasLtMatmulDescSetAttribute, p->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &r->matrix,
       sizeof r->matrix);
    LT(l, cublasLtMatmulDescSetAttribute, p->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &columns, sizeof columns);
}

static void measure(contest *c, const layer *l, const char *product, const lt_sizes *s, const struct end *e)
{
    cublasLtMatmulHeuristicResult_t ways[WAYS];
    double best = 0, first = 0, flop = 2.0 * (double)s->m * (double)s->n * (double)s->k;
    int rank = 0;
    c->product = lt_describe(c->lt, s, CUDA_R_16BF, CUBLAS_COMPUTE_32F);
    set_end(c->lt, &c->product, e, c->room, s->n);
    int found = lt_choices(c->lt, &c->product, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, ways, WAYS);
    printf("{\"rows\": %lld, \"in\": %lld, \"out\": %lld, \"turned\": %s, \"product\": \"%s\", \"end\": \"%s\", "
           "\"ways\": [",
           (long long)l->rows, (long long)l->in, (long long)l->out, l->turned ? "true" : "false", product, e->name);
    for (int i = 0; i < found; i++) {
        c->algorithm = &ways[i].algo;
        double seconds = seconds_of(c);
        first = i ? first : seconds;
        rank = !i || seconds < best ? i : rank;
        best = !i || seconds < best ? seconds : best;
        printf("%s{\"us\": %.1f, \"tile\": %u, \"stages\": %u, \"splits\": %u, \"cluster\": %u, \"scratch\": %zu}",
               i ? ", " : "", 1e6 * seconds, number_of(c->lt, c->algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID),
               number_of(c->lt, c->algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID),
               number_of(c->lt, c->algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
               number_of(c->lt, c->algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID), ways[i].workspaceSize);
    }
    printf("]");
    if (found)
        printf(", \"first_us\": %.1f, \"best_us\": %.1f, \"best\": %d, \"first_tflop_s\": %.0f, \"best_tflop_s\": %.0f",
               1e6 * first, 1e6 * best, rank, flop / first / 1e12, flop / best / 1e12);
    printf("}\n");
    fflush(stdout);
    lt_forget(c->lt, &c->product);
}

/* ---- Layers ---- */

enum { PIECE = 1 << 21 };
static uint16_t numbers[PIECE]; /* of bf16, between 1/2 and 2 either way */

static void draw_numbers(void)
{
    for (uint32_t i = 0; i < PIECE; i++)
        numbers[i] = (uint16_t)(((i * 2654435761u + 12345u) >> 16 & 0x80ff) | 0x3f00);
}

static CUdeviceptr filled(cuda_peer *p, int64_t elements)
{
    CUdeviceptr to = 0;
    PEER(p, cuMemAlloc, &to, (size_t)elements * 2);
    for (int64_t i = 0; i < elements; i += PIECE)
        PEER(p, cuMemcpyHtoD, to + (CUdeviceptr)(2 * i), numbers,
             2 * (size_t)(elements - i < PIECE ? elements - i : PIECE));
    return to;
}

static void measure_layer(cuda_peer *peer, const lt_peer *lt, const layer *l)
{
    const struct {
        const char *name;
        lt_sizes sizes;
    } products[] = {
        {"forward", {l->rows, l->out, l->in, false, l->turned}},
        {"input gradient", {l->rows, l->in, l->out, false, !l->turned}},
        {"weight gradient",
         l->turned ? (lt_sizes){l->out, l->in, l->rows, true, false} : (lt_sizes){l->in, l->out, l->rows, true, false}},
    };
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        const lt_sizes *s = &products[i].sizes;
        room r = {filled(peer, s->m * s->k), filled(peer, s->k * s->n), filled(peer, s->m * s->n),
                  filled(peer, s->m * s->n), filled(peer, s->m > s->n ? s->m : s->n)};
        contest c = {.peer = peer, .lt = lt, .room = &r};
        for (size_t e = 0; e < sizeof ends / sizeof *ends; e++) {
            struct end end = ends[e];
            if (!(i == 0 ? end.forward : i == 1 ? end.input : end.weight))
                continue;
            if (end.epilogue == CUBLASLT_EPILOGUE_BGRADA && l->turned)
                end.epilogue = CUBLASLT_EPILOGUE_BGRADB; /* the gradient is the library's second operand then */
            measure(&c, l, products[i].name, s, &end);
        }
        const CUdeviceptr all[] = {r.a, r.b, r.c, r.matrix, r.vector};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            PEER(peer, cuMemFree, all[k]);
    }
}

static bool read_layer(const char *text, layer *l)
{
    long long rows, in, out;
    int end = 0;
    if (sscanf(text, "%lld:%lld:%lld%n", &rows, &in, &out, &end) < 3 || rows < 1 || in < 1 || out < 1)
        return false;
    *l = (layer){rows, in, out, strcmp(text + end, ":turned") == 0};
    return l->turned || !text[end];
}

int main(int argc, char **argv)
{
    layer layers[MOST_LAYERS];
    int n = 0;
    bench_device(&argc, argv, "cuda");
    for (; n < argc - 1; n++)
        if (n == MOST_LAYERS || !read_layer(argv[1 + n], &layers[n])) {
            fprintf(stderr,
                    n == MOST_LAYERS ? "%s is one layer too many\n"
                                     : "%s is no layer: ROWS:INPUTS:OUTPUTS[:turned], each 1 or more\n",
                    argv[1 + n]);
            return 2;
        }
    draw_numbers();
    cuda_peer peer = peer_open();
    lt_peer lt = lt_open(&peer);
    const layer *list = n ? layers : standard;
    int count = n ? n : (int)(sizeof standard / sizeof *standard);
    for (int i = 0; i < count; i++)
        measure_layer(&peer, &lt, &list[i]);
    return kiln_report(stderr);
}

#else
int main(int argc, char **argv)
{
    return bench_without_cuda(argc, argv);
}
#endif
