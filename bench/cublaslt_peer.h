/* cuBLASLt without Kiln, for benchmarks that measure it or measure beside it. What goes wrong ends the program. */
#ifndef KILN_BENCH_CUBLASLT_PEER_H
#define KILN_BENCH_CUBLASLT_PEER_H

#include <cublasLt.h>
#include "cuda_peer.h"

enum { LT_SCRATCH = 64 << 20 }; /* bytes that a product may take */

#define LT_FUNCTIONS(M)                                                                                                \
    M(cublasLtCreate)                                                                                                  \
    M(cublasLtMatmulDescCreate)                                                                                        \
    M(cublasLtMatmulDescSetAttribute)                                                                                  \
    M(cublasLtMatmulDescDestroy)                                                                                       \
    M(cublasLtMatrixLayoutCreate)                                                                                      \
    M(cublasLtMatrixLayoutDestroy)                                                                                     \
    M(cublasLtMatmulPreferenceCreate)                                                                                  \
    M(cublasLtMatmulPreferenceSetAttribute)                                                                            \
    M(cublasLtMatmulPreferenceDestroy)                                                                                 \
    M(cublasLtMatmulAlgoGetHeuristic)                                                                                  \
    M(cublasLtMatmulAlgoConfigGetAttribute)                                                                            \
    M(cublasLtMatmul)

typedef struct lt_peer {
#define LT_FIELD(f) __typeof__(&f) f;
    LT_FUNCTIONS(LT_FIELD)
#undef LT_FIELD
    cublasLtHandle_t handle;
    CUdeviceptr scratch;
} lt_peer;

static inline void lt_check(cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return;
    fprintf(stderr, "%s failed: status %d of cuBLASLt\n", what, (int)status);
    exit(1);
}
#define LT(l, f, ...) lt_check((l)->f(__VA_ARGS__), #f)

static inline lt_peer lt_open(cuda_peer *p)
{
    lt_peer l = {.handle = NULL};
    void *file = dlopen("libcublasLt.so." PEER_TEXT(CUBLAS_VER_MAJOR), RTLD_NOW);
    if (!file)
        file = dlopen("/usr/local/cuda/lib64/libcublasLt.so." PEER_TEXT(CUBLAS_VER_MAJOR), RTLD_NOW);
    const struct {
        const char *name;
        void **to;
    } symbols[] = {
#define LT_SYMBOL(f) {#f, (void **)&l.f},
        LT_FUNCTIONS(LT_SYMBOL)
#undef LT_SYMBOL
    };
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        *symbols[i].to = file ? dlsym(file, symbols[i].name) : NULL;
        if (*symbols[i].to)
            continue;
        fprintf(stderr, "cuBLASLt: %s was not found\n", symbols[i].name);
        exit(1);
    }
    LT(&l, cublasLtCreate, &l.handle);
    PEER(p, cuMemAlloc, &l.scratch, LT_SCRATCH);
    return l;
}

/* ---- Products ---- */

/* c[m, n] = a[m, k] · b[k, n]; a turned operand lies transposed in memory. */
typedef struct lt_sizes {
    int64_t m, n, k;
    bool a_turned, b_turned;
} lt_sizes;

/* The library counts along columns first: to it c is cᵀ = bᵀ · aᵀ, so its first operand is b. */
typedef struct lt_product {
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t first, second, result;
} lt_product;

static inline lt_product lt_describe(const lt_peer *l, const lt_sizes *s, cudaDataType_t type,
                                     cublasComputeType_t compute)
{
    lt_product p;
    cublasOperation_t first = s->b_turned ? CUBLAS_OP_T : CUBLAS_OP_N, second = s->a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint64_t m = (uint64_t)s->m, n = (uint64_t)s->n, k = (uint64_t)s->k;
    LT(l, cublasLtMatmulDescCreate, &p.operation, compute, CUDA_R_32F);
    LT(l, cublasLtMatmulDescSetAttribute, p.operation, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    LT(l, cublasLtMatmulDescSetAttribute, p.operation, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    LT(l, cublasLtMatrixLayoutCreate, &p.first, type, s->b_turned ? k : n, s->b_turned ? n : k,
       s->b_turned ? s->k : s->n);
    LT(l, cublasLtMatrixLayoutCreate, &p.second, type, s->a_turned ? m : k, s->a_turned ? k : m,
       s->a_turned ? s->m : s->k);
    LT(l, cublasLtMatrixLayoutCreate, &p.result, type, n, m, s->n);
    return p;
}

static inline void lt_forget(const lt_peer *l, lt_product *p)
{
    LT(l, cublasLtMatrixLayoutDestroy, p->first);
    LT(l, cublasLtMatrixLayoutDestroy, p->second);
    LT(l, cublasLtMatrixLayoutDestroy, p->result);
    LT(l, cublasLtMatmulDescDestroy, p->operation);
}

/* What the library would do, best first by its own estimate: how many of at most `most`. `schemes`: how it may add up
 * parts of sums. */
static inline int lt_choices(const lt_peer *l, const lt_product *p, uint32_t schemes,
                             cublasLtMatmulHeuristicResult_t *choices, int most)
{
    const size_t scratch = LT_SCRATCH;
    cublasLtMatmulPreference_t wishes;
    int found = 0;
    LT(l, cublasLtMatmulPreferenceCreate, &wishes);
    LT(l, cublasLtMatmulPreferenceSetAttribute, wishes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &scratch,
       sizeof scratch);
    LT(l, cublasLtMatmulPreferenceSetAttribute, wishes, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
       sizeof schemes);
    cublasStatus_t status = l->cublasLtMatmulAlgoGetHeuristic(l->handle, p->operation, p->first, p->second, p->result,
                                                              p->result, wishes, most, choices, &found);
    LT(l, cublasLtMatmulPreferenceDestroy, wishes);
    return status == CUBLAS_STATUS_SUCCESS ? found : 0;
}

static inline void lt_run(const lt_peer *l, const lt_product *p, const cublasLtMatmulAlgo_t *algorithm, CUdeviceptr a,
                          CUdeviceptr b, CUdeviceptr c, CUstream stream)
{
    const float one = 1, zero = 0;
    LT(l, cublasLtMatmul, l->handle, p->operation, &one, (const void *)b, p->first, (const void *)a, p->second, &zero,
       (void *)c, p->result, (void *)c, p->result, algorithm, (void *)l->scratch, (size_t)LT_SCRATCH,
       (cudaStream_t)stream);
}

#endif
