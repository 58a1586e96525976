/* Products by cuBLASLt, opened when the first one is planned. The algorithm for a shape is one of those that the
 * library offers which add parts of split sums in order and as precisely as they were summed: its first, or what a
 * table prefers (prefer.h). It is kept, so that what is run is what room was made for. */
#include "device/cuda/gemm/cublaslt.h"
#include <cublasLt.h>
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "device/cuda/gemm/epilogue.h"
#include "device/cuda/common/library.h"
#include "device/cuda/gemm/prefer.h"
#include "device/cuda/memory/memory.h"
#include "device/cuda/gemm/matmul.h"

#define TEXT_(x)  #x
#define TEXT(x)   TEXT_(x)
#define FILE_NAME "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

enum { KEPT = 4096, CHOICES = 8 };
#define MOST_RESULT (INT64_C(1) << 40) /* elements */

typedef struct choice {
    kiln_cuda_product product;
    cublasStatus_t status; /* CUBLAS_STATUS_SUCCESS, or why there is no algorithm */
    cublasLtMatmulAlgo_t algorithm;
    size_t bytes;
} choice;

struct kiln_cuda_lt {
    void *library;
    cublasLtHandle_t handle;
    pthread_mutex_t lock; /* of the choices */
    choice *choices;      /* the oldest is forgotten when there are KEPT; choosing again gives the same */
    int64_t nchoices, capacity, oldest;
    __typeof__(&cublasLtCreate) create;
    __typeof__(&cublasLtDestroy) destroy;
    __typeof__(&cublasLtGetStatusString) status_text;
    __typeof__(&cublasLtMatmulDescInit_internal) operation_init;
    __typeof__(&cublasLtMatmulDescSetAttribute) operation_set;
    __typeof__(&cublasLtMatrixLayoutInit_internal) layout_init;
    __typeof__(&cublasLtMatrixLayoutSetAttribute) layout_set;
    __typeof__(&cublasLtMatmulPreferenceInit_internal) wishes_init;
    __typeof__(&cublasLtMatmulPreferenceSetAttribute) wishes_set;
    __typeof__(&cublasLtMatmulAlgoGetHeuristic) choose;
    __typeof__(&cublasLtMatmulAlgoConfigGetAttribute) config;
    __typeof__(&cublasLtMatmul) run;
};

/* ---- Opening ---- */

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static void let_go(struct kiln_cuda_lt *lt)
{
    if (lt->handle)
        lt->destroy(lt->handle);
    kiln_cuda_library_close(lt->library);
    pthread_mutex_destroy(&lt->lock);
    kiln_free(lt->choices);
    kiln_free(lt);
}

static struct kiln_cuda_lt *open_lt(const kiln_cuda_device *d)
{
    struct kiln_cuda_lt *lt = kiln_alloc_zero(1, sizeof *lt);
    if (!lt)
        return NULL;
    const kiln_cuda_symbol symbols[] = {
        {"cublasLtCreate", (void **)&lt->create},
        {"cublasLtDestroy", (void **)&lt->destroy},
        {"cublasLtGetStatusString", (void **)&lt->status_text},
        {"cublasLtMatmulDescInit_internal", (void **)&lt->operation_init},
        {"cublasLtMatmulDescSetAttribute", (void **)&lt->operation_set},
        {"cublasLtMatrixLayoutInit_internal", (void **)&lt->layout_init},
        {"cublasLtMatrixLayoutSetAttribute", (void **)&lt->layout_set},
        {"cublasLtMatmulPreferenceInit_internal", (void **)&lt->wishes_init},
        {"cublasLtMatmulPreferenceSetAttribute", (void **)&lt->wishes_set},
        {"cublasLtMatmulAlgoGetHeuristic", (void **)&lt->choose},
        {"cublasLtMatmulAlgoConfigGetAttribute", (void **)&lt->config},
        {"cublasLtMatmul", (void **)&lt->run},
    };
    pthread_mutex_init(&lt->lock, NULL);
    lt->library = kiln_cuda_library_open("matmul", FILE_NAME, "cuBLASLt", symbols, sizeof symbols / sizeof *symbols);
    if (lt->library) {
        int mode = kiln_cuda_relax();
        cublasStatus_t status = lt->create(&lt->handle);
        kiln_cuda_unrelax(mode);
        if (status == CUBLAS_STATUS_SUCCESS)
            return lt;
        lt->handle = NULL;
        kiln_fail(status == CUBLAS_STATUS_ALLOC_FAILED ? KILN_E_MEMORY : KILN_E_LOST, "matmul",
                  "cuda:%d: cuBLASLt does not start: %s", d->index, lt->status_text(status));
    }
    let_go(lt);
    return NULL;
}

static struct kiln_cuda_lt *lt_of(kiln_cuda_device *d)
{
    pthread_mutex_lock(&opening);
    if (!d->lt) {
        uint64_t memory = kiln_cuda_watch(d);
        d->lt = open_lt(d);
        kiln_cuda_watched(d, memory);
    }
    struct kiln_cuda_lt *lt = d->lt;
    pthread_mutex_unlock(&opening);
    return lt;
}

void kiln_cuda_lt_close(kiln_cuda_device *d)
{
    if (d->lt)
        let_go(d->lt);
    d->lt = NULL;
}

/* ---- A product in the library's words ---- */

typedef struct call {
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t first, second, result;
} call;

static cudaDataType_t type_of(int64_t dtype)
{
    return dtype == KILN_F64    ? CUDA_R_64F
           : dtype == KILN_F16  ? CUDA_R_16F
           : dtype == KILN_BF16 ? CUDA_R_16BF
                                : CUDA_R_32F;
}

static bool describe_matrix(const struct kiln_cuda_lt *lt, cublasLtMatrixLayoutOpaque_t *layout,
                            const kiln_cuda_product *p, int64_t rows, int64_t cols, int64_t ld, int64_t stride)
{
    int32_t batch = (int32_t)p->batch;
    return lt->layout_init(layout, sizeof *layout, type_of(p->dtype), (uint64_t)rows, (uint64_t)cols, ld) ==
               CUBLAS_STATUS_SUCCESS &&
           lt->layout_set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch) == CUBLAS_STATUS_SUCCESS &&
           lt->layout_set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride) ==
               CUBLAS_STATUS_SUCCESS;
}

/* What the library does beside. Its columns are our rows, so a bias lies along them as it wants it; its A is our b. */
static bool describe_end(const struct kiln_cuda_lt *lt, const kiln_cuda_product *p, const void *vector, call *x)
{
    uint32_t end = p->bias                        ? CUBLASLT_EPILOGUE_BIAS
                   : p->sum == KILN_CUDA_SUM_OF_A ? CUBLASLT_EPILOGUE_BGRADB
                   : p->sum == KILN_CUDA_SUM_OF_B ? CUBLASLT_EPILOGUE_BGRADA
                                                  : CUBLASLT_EPILOGUE_DEFAULT;
    return lt->operation_set(&x->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &end, sizeof end) == CUBLAS_STATUS_SUCCESS &&
           ((!p->bias && !p->sum) || lt->operation_set(&x->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector,
                                                       sizeof vector) == CUBLAS_STATUS_SUCCESS);
}

/* The library counts along columns first: to it our c is cᵀ = bᵀ · aᵀ, an operand without gaps along its last dim lies
 * as its transpose already does, a turned one has to be transposed. */
static bool describe(const struct kiln_cuda_lt *lt, const kiln_cuda_product *p, const void *vector, call *x)
{
    bool f64 = p->dtype == KILN_F64;
    cublasComputeType_t compute = f64       ? CUBLAS_COMPUTE_64F
                                  : p->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                            : CUBLAS_COMPUTE_32F;
    int32_t first = p->b.turned ? CUBLAS_OP_T : CUBLAS_OP_N, second = p->a.turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    return lt->operation_init(&x->operation, sizeof x->operation, compute, f64 ? CUDA_R_64F : CUDA_R_32F) ==
               CUBLAS_STATUS_SUCCESS &&
           lt->operation_set(&x->operation, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first) ==
               CUBLAS_STATUS_SUCCESS &&
           lt->operation_set(&x->operation, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second) ==
               CUBLAS_STATUS_SUCCESS &&
           describe_end(lt, p, vector, x) &&
           describe_matrix(lt, &x->first, p, p->b.turned ? p->k : p->n, p->b.turned ? p->n : p->k, p->b.ld,
                           p->b.stride) &&
           describe_matrix(lt, &x->second, p, p->a.turned ? p->m : p->k, p->a.turned ? p->k : p->m, p->a.ld,
                           p->a.stride) &&
           describe_matrix(lt, &x->result, p, p->n, p->m, p->n, p->c_stride);
}

/* ---- Choosing ---- */

static bool wish(const struct kiln_cuda_lt *lt, const kiln_cuda_product *p, cublasLtMatmulPreferenceOpaque_t *wishes)
{
    uint64_t bytes = (uint64_t)p->scratch;
    /* Halves are summed in f32, so parts must not be added up in the result itself. */
    bool half = p->dtype == KILN_F16 || p->dtype == KILN_BF16;
    uint32_t schemes = half ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_MASK;
    uint32_t first = (uint32_t)p->b.align, second = (uint32_t)p->a.align, result = (uint32_t)p->c_align;
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        const void *value;
        size_t size;
    } all[] = {{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes},
               {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &first, sizeof first},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &second, sizeof second},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &result, sizeof result},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &result, sizeof result}};
    bool ok = lt->wishes_init(wishes, sizeof *wishes) == CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; ok && i < sizeof all / sizeof *all; i++)
        ok = lt->wishes_set(wishes, all[i].what, all[i].value, all[i].size) == CUBLAS_STATUS_SUCCESS;
    return ok;
}

/* Always false, with an error. */
static bool no_algorithm(const struct kiln_cuda_lt *lt, const kiln_cuda_device *d, const choice *c)
{
    const kiln_cuda_product *p = &c->product;
    return kiln_fail(KILN_E_UNSUPPORTED, "matmul",
                     "cuda:%d: cuBLASLt has no algorithm for [%lld, %lld] · [%lld, %lld] of %s, %lld of them: %s",
                     d->index, (long long)p->m, (long long)p->k, (long long)p->k, (long long)p->n,
                     kiln_dtype_name((kiln_dtype)p->dtype), (long long)p->batch, lt->status_text(c->status));
}

/* The library divides by zero where there are more tiles than it counts (results of 2^48 elements and more, in version
 * 13): it is not asked about results that no GPU could hold. */
static bool can_be_asked(const kiln_cuda_product *p)
{
    return p->m <= MOST_RESULT / p->n;
}

/* Moves those that can be run to the front; how many they are. */
static int usable(cublasLtMatmulHeuristicResult_t *found, int n, const kiln_cuda_product *p)
{
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS && found[i].workspaceSize <= (size_t)p->scratch)
            found[kept++] = found[i];
    return kept;
}

static kiln_cuda_offer offer_of(const struct kiln_cuda_lt *lt, const cublasLtMatmulAlgo_t *algorithm)
{
    kiln_cuda_offer o = {0};
    int32_t splits = 0;
    size_t written;
    if (lt->config(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, &o.tile, sizeof o.tile, &written) !=
            CUBLAS_STATUS_SUCCESS ||
        lt->config(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits, sizeof splits, &written) !=
            CUBLAS_STATUS_SUCCESS)
        return (kiln_cuda_offer){0};
    o.splits = (uint32_t)splits;
    return o;
}

/* That there is no algorithm is an answer, which is kept like one; what it depends on is all in the product. */
static bool choose(const struct kiln_cuda_lt *lt, const kiln_cuda_device *d, choice *c)
{
    const kiln_cuda_product *p = &c->product;
    /* The vector's address is not known yet: any with as many zeros at its end says what the library looks for. */
    const void *vector = (const void *)(uintptr_t)KILN_CUDA_BIAS_ALIGN;
    cublasLtMatmulPreferenceOpaque_t wishes;
    cublasLtMatmulHeuristicResult_t found[CHOICES];
    call x;
    int n = 0;
    c->bytes = 0;
    c->status = CUBLAS_STATUS_INVALID_VALUE;
    if (can_be_asked(p) && describe(lt, p, vector, &x) && wish(lt, p, &wishes))
        c->status = lt->choose(lt->handle, &x.operation, &x.first, &x.second, &x.result, &x.result, &wishes, CHOICES,
                               found, &n);
    if (c->status == CUBLAS_STATUS_INVALID_VALUE || c->status == CUBLAS_STATUS_NOT_SUPPORTED)
        return true;
    if (c->status != CUBLAS_STATUS_SUCCESS)
        return no_algorithm(lt, d, c);
    n = usable(found, n, p);
    if (!n) {
        c->status = CUBLAS_STATUS_NOT_SUPPORTED;
        return true;
    }
    kiln_cuda_offer offers[CHOICES];
    for (int i = 0; i < n; i++)
        offers[i] = offer_of(lt, &found[i].algo);
    int taken = kiln_cuda_prefer(p, d->capability, offers, n);
    c->algorithm = found[taken].algo;
    c->bytes = found[taken].workspaceSize;
    return true;
}

/* A copy of the choice for the product, which may have to be made. */
static bool choice_for(struct kiln_cuda_lt *lt, const kiln_cuda_device *d, const kiln_cuda_product *p, choice *c)
{
    pthread_mutex_lock(&lt->lock);
    for (int64_t i = 0; i < lt->nchoices; i++)
        if (memcmp(&lt->choices[i].product, p, sizeof *p) == 0) {
            *c = lt->choices[i];
            pthread_mutex_unlock(&lt->lock);
            return true;
        }
    c->product = *p;
    bool ok = choose(lt, d, c);
    if (ok && lt->nchoices == KEPT) {
        lt->choices[lt->oldest] = *c;
        lt->oldest = (lt->oldest + 1) % KEPT;
    } else if (ok) {
        ok = KILN_GROW(lt->choices, lt->capacity, lt->nchoices + 1);
        if (ok)
            lt->choices[lt->nchoices++] = *c;
    }
    pthread_mutex_unlock(&lt->lock);
    return ok;
}

bool kiln_cuda_lt_has(kiln_cuda_device *d, const kiln_cuda_product *p, bool *has)
{
    struct kiln_cuda_lt *lt = lt_of(d);
    choice c;
    if (!lt || !choice_for(lt, d, p, &c))
        return false;
    *has = c.status == CUBLAS_STATUS_SUCCESS;
    return true;
}

bool kiln_cuda_lt_bytes(kiln_cuda_device *d, const kiln_cuda_product *p, size_t *bytes)
{
    struct kiln_cuda_lt *lt = lt_of(d);
    choice c;
    if (!lt || !choice_for(lt, d, p, &c))
        return false;
    *bytes = c.bytes;
    return true;
}

/* ---- Running ---- */

bool kiln_cuda_lt_run(kiln_cuda_device *d, const kiln_cuda_product *p, const void *a, const void *b, void *vector,
                      void *c, void *workspace, size_t bytes)
{
    struct kiln_cuda_lt *lt = lt_of(d);
    choice chosen;
    call x;
    if (!lt || !choice_for(lt, d, p, &chosen))
        return false;
    if (chosen.status != CUBLAS_STATUS_SUCCESS)
        return no_algorithm(lt, d, &chosen);
    if (chosen.bytes > bytes || !describe(lt, p, vector, &x))
        return kiln_fail(KILN_E_STATE, "matmul", "cuda:%d: cuBLASLt now wants %zu bytes of scratch; there are %zu",
                         d->index, chosen.bytes, bytes);
    const float one = 1, zero = 0;
    const double one_f64 = 1, zero_f64 = 0;
    bool f64 = p->dtype == KILN_F64;
    int mode = kiln_cuda_relax();
    cublasStatus_t status = lt->run(lt->handle, &x.operation, f64 ? (const void *)&one_f64 : &one, b, &x.first, a,
                                    &x.second, f64 ? (const void *)&zero_f64 : &zero, c, &x.result, c, &x.result,
                                    &chosen.algorithm, chosen.bytes ? workspace : NULL, chosen.bytes, d->run_stream);
    kiln_cuda_unrelax(mode);
    return status == CUBLAS_STATUS_SUCCESS ||
           kiln_fail(KILN_E_LOST, "matmul", "cuda:%d: cuBLASLt failed: %s", d->index, lt->status_text(status));
}
