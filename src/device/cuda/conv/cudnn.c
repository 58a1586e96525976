/* Convolutions by cuDNN, opened when the first one is planned. The algorithm for a shape is the fastest of those cuDNN
 * knows to be deterministic and that sum products of elements as they are. Those that transform first (Winograd, FFT)
 * round more coarsely and spread a NaN to results that do not depend on it. The choice is kept, so that what is run is
 * what room was made for. */
#include "device/cuda/conv/cudnn.h"
#include "core/fail.h"

#if __has_include(<cudnn.h>)
#include <cudnn.h>
#include <string.h>
#include "core/alloc.h"
#include "device/cuda/common/library.h"
#include "device/cuda/memory/memory.h"

#define TEXT_(x)  #x
#define TEXT(x)   TEXT_(x)
#define FILE_NAME "libcudnn.so." TEXT(CUDNN_MAJOR)

enum { KEPT = 1024, CHOICES = 16 };
static const size_t usual_bytes = (size_t)1 << 30; /* of scratch, whatever the shape: see most_bytes */

typedef struct choice {
    kiln_cuda_conv shape;
    bool takes;
    int algorithm;
    cudnnMathType_t math;
    size_t bytes;
} choice;

struct kiln_cuda_dnn {
    void *library;
    cudnnHandle_t handle;
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t window;
    pthread_mutex_t lock; /* of all above and below: the descriptors are written anew for each call */
    choice *choices;      /* the oldest is forgotten when there are KEPT; choosing again gives the same */
    int64_t nchoices, capacity, oldest;
    __typeof__(&cudnnCreate) create;
    __typeof__(&cudnnDestroy) destroy;
    __typeof__(&cudnnSetStream) set_stream;
    __typeof__(&cudnnGetErrorString) status_text;
    __typeof__(&cudnnCreateTensorDescriptor) tensor_create;
    __typeof__(&cudnnDestroyTensorDescriptor) tensor_destroy;
    __typeof__(&cudnnSetTensor4dDescriptor) tensor_set;
    __typeof__(&cudnnCreateFilterDescriptor) filter_create;
    __typeof__(&cudnnDestroyFilterDescriptor) filter_destroy;
    __typeof__(&cudnnSetFilter4dDescriptor) filter_set;
    __typeof__(&cudnnCreateConvolutionDescriptor) window_create;
    __typeof__(&cudnnDestroyConvolutionDescriptor) window_destroy;
    __typeof__(&cudnnSetConvolution2dDescriptor) window_set;
    __typeof__(&cudnnSetConvolutionGroupCount) window_groups;
    __typeof__(&cudnnSetConvolutionMathType) window_math;
    __typeof__(&cudnnGetConvolutionForwardAlgorithm_v7) forward_choose;
    __typeof__(&cudnnGetConvolutionForwardWorkspaceSize) forward_bytes;
    __typeof__(&cudnnConvolutionForward) forward;
    __typeof__(&cudnnGetConvolutionBackwardDataAlgorithm_v7) input_grad_choose;
    __typeof__(&cudnnGetConvolutionBackwardDataWorkspaceSize) input_grad_bytes;
    __typeof__(&cudnnConvolutionBackwardData) input_grad;
    __typeof__(&cudnnGetConvolutionBackwardFilterAlgorithm_v7) weight_grad_choose;
    __typeof__(&cudnnGetConvolutionBackwardFilterWorkspaceSize) weight_grad_bytes;
    __typeof__(&cudnnConvolutionBackwardFilter) weight_grad;
};

/* ---- Opening ---- */

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static void let_go(struct kiln_cuda_dnn *n)
{
    if (n->x)
        n->tensor_destroy(n->x);
    if (n->y)
        n->tensor_destroy(n->y);
    if (n->w)
        n->filter_destroy(n->w);
    if (n->window)
        n->window_destroy(n->window);
    if (n->handle)
        n->destroy(n->handle);
    kiln_cuda_library_close(n->library);
    pthread_mutex_destroy(&n->lock);
    kiln_free(n->choices);
    kiln_free(n);
}

static void *open_library(struct kiln_cuda_dnn *n, const char *operation)
{
    const kiln_cuda_symbol symbols[] = {
        {"cudnnCreate", (void **)&n->create},
        {"cudnnDestroy", (void **)&n->destroy},
        {"cudnnSetStream", (void **)&n->set_stream},
        {"cudnnGetErrorString", (void **)&n->status_text},
        {"cudnnCreateTensorDescriptor", (void **)&n->tensor_create},
        {"cudnnDestroyTensorDescriptor", (void **)&n->tensor_destroy},
        {"cudnnSetTensor4dDescriptor", (void **)&n->tensor_set},
        {"cudnnCreateFilterDescriptor", (void **)&n->filter_create},
        {"cudnnDestroyFilterDescriptor", (void **)&n->filter_destroy},
        {"cudnnSetFilter4dDescriptor", (void **)&n->filter_set},
        {"cudnnCreateConvolutionDescriptor", (void **)&n->window_create},
        {"cudnnDestroyConvolutionDescriptor", (void **)&n->window_destroy},
        {"cudnnSetConvolution2dDescriptor", (void **)&n->window_set},
        {"cudnnSetConvolutionGroupCount", (void **)&n->window_groups},
        {"cudnnSetConvolutionMathType", (void **)&n->window_math},
        {"cudnnGetConvolutionForwardAlgorithm_v7", (void **)&n->forward_choose},
        {"cudnnGetConvolutionForwardWorkspaceSize", (void **)&n->forward_bytes},
        {"cudnnConvolutionForward", (void **)&n->forward},
        {"cudnnGetConvolutionBackwardDataAlgorithm_v7", (void **)&n->input_grad_choose},
        {"cudnnGetConvolutionBackwardDataWorkspaceSize", (void **)&n->input_grad_bytes},
        {"cudnnConvolutionBackwardData", (void **)&n->input_grad},
        {"cudnnGetConvolutionBackwardFilterAlgorithm_v7", (void **)&n->weight_grad_choose},
        {"cudnnGetConvolutionBackwardFilterWorkspaceSize", (void **)&n->weight_grad_bytes},
        {"cudnnConvolutionBackwardFilter", (void **)&n->weight_grad},
    };
    return kiln_cuda_library_open(operation, FILE_NAME, "cuDNN", symbols, sizeof symbols / sizeof *symbols);
}

static cudnnStatus_t start(struct kiln_cuda_dnn *n, cudaStream_t stream)
{
    cudnnStatus_t s = n->create(&n->handle);
    if (s != CUDNN_STATUS_SUCCESS)
        n->handle = NULL;
    s = s ? s : n->set_stream(n->handle, stream);
    s = s ? s : n->tensor_create(&n->x);
    s = s ? s : n->tensor_create(&n->y);
    s = s ? s : n->filter_create(&n->w);
    return s ? s : n->window_create(&n->window);
}

static struct kiln_cuda_dnn *open_dnn(const kiln_cuda_device *d, const char *operation)
{
    struct kiln_cuda_dnn *n = kiln_alloc_zero(1, sizeof *n);
    if (!n)
        return NULL;
    pthread_mutex_init(&n->lock, NULL);
    n->library = open_library(n, operation);
    if (n->library) {
        int mode = kiln_cuda_relax();
        cudnnStatus_t status = start(n, d->run_stream);
        kiln_cuda_unrelax(mode);
        if (status == CUDNN_STATUS_SUCCESS)
            return n;
        kiln_fail(KILN_E_UNSUPPORTED, operation, "cuda:%d: cuDNN does not start: %s", d->index, n->status_text(status));
    }
    let_go(n);
    return NULL;
}

static struct kiln_cuda_dnn *dnn_of(kiln_cuda_device *d, const char *operation)
{
    pthread_mutex_lock(&opening);
    if (!d->dnn) {
        uint64_t memory = kiln_cuda_watch(d);
        d->dnn = open_dnn(d, operation);
        kiln_cuda_watched(d, memory);
    }
    struct kiln_cuda_dnn *n = d->dnn;
    pthread_mutex_unlock(&opening);
    return n;
}

void kiln_cuda_dnn_close(kiln_cuda_device *d)
{
    if (d->dnn)
        let_go(d->dnn);
    d->dnn = NULL;
}

/* ---- A convolution in cuDNN's words ---- */

static cudnnDataType_t type_of(int64_t dtype)
{
    return dtype == KILN_F64    ? CUDNN_DATA_DOUBLE
           : dtype == KILN_F16  ? CUDNN_DATA_HALF
           : dtype == KILN_BF16 ? CUDNN_DATA_BFLOAT16
                                : CUDNN_DATA_FLOAT;
}

/* What may be used in general: f32 stays f32 unless TF32 was asked for. */
static cudnnMathType_t math_of(const kiln_cuda_conv *s)
{
    return s->dtype == KILN_F64   ? CUDNN_DEFAULT_MATH
           : s->dtype != KILN_F32 ? CUDNN_TENSOR_OP_MATH
           : s->tf32              ? CUDNN_DEFAULT_MATH
                                  : CUDNN_FMA_MATH;
}

static cudnnStatus_t describe(const struct kiln_cuda_dnn *n, const kiln_cuda_conv *s, cudnnMathType_t math)
{
    cudnnDataType_t type = type_of(s->dtype), compute = s->dtype == KILN_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
    cudnnStatus_t e =
        n->tensor_set(n->x, CUDNN_TENSOR_NCHW, type, (int)s->batch, (int)s->channels, (int)s->size[0], (int)s->size[1]);
    e = e ? e
          : n->tensor_set(n->y, CUDNN_TENSOR_NCHW, type, (int)s->batch, (int)s->outputs, (int)s->out[0],
                          (int)s->out[1]);
    e = e ? e
          : n->filter_set(n->w, type, CUDNN_TENSOR_NCHW, (int)s->outputs, (int)(s->channels / s->groups),
                          (int)s->kernel[0], (int)s->kernel[1]);
    e = e ? e
          : n->window_set(n->window, (int)s->padding[0], (int)s->padding[1], (int)s->stride[0], (int)s->stride[1],
                          (int)s->dilation[0], (int)s->dilation[1], CUDNN_CROSS_CORRELATION, compute);
    e = e ? e : n->window_groups(n->window, (int)s->groups);
    return e ? e : n->window_math(n->window, math);
}

/* ---- Choosing ---- */

typedef struct offer { /* what the three kinds of answers have in common */
    int algorithm;
    cudnnMathType_t math;
    size_t bytes;
} offer;

static bool sums_products(int64_t kind, int algorithm)
{
    switch (kind) {
    case KILN_CUDA_CONV_FORWARD:
        return algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM ||
               algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM ||
               algorithm == CUDNN_CONVOLUTION_FWD_ALGO_GEMM || algorithm == CUDNN_CONVOLUTION_FWD_ALGO_DIRECT;
    case KILN_CUDA_CONV_INPUT_GRAD: return algorithm == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
    default: return algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
    }
}

static bool same_math(cudnnMathType_t wanted, cudnnMathType_t math)
{
    return wanted != CUDNN_FMA_MATH || math == CUDNN_FMA_MATH || math == CUDNN_DEFAULT_MATH;
}

/* The offers that may be taken, the fastest first. */
#define OFFERS(perf, call)                                                                                             \
    do {                                                                                                               \
        perf found[CHOICES];                                                                                           \
        if ((call) != CUDNN_STATUS_SUCCESS)                                                                            \
            return 0;                                                                                                  \
        for (int i = 0; i < count; i++)                                                                                \
            if (found[i].status == CUDNN_STATUS_SUCCESS && found[i].determinism == CUDNN_DETERMINISTIC &&              \
                sums_products(s->kind, (int)found[i].algo) && same_math(math, found[i].mathType))                      \
                offers[taken++] = (offer){(int)found[i].algo, found[i].mathType, found[i].memory};                     \
    } while (0)

static int list_offers(const struct kiln_cuda_dnn *n, const kiln_cuda_conv *s, cudnnMathType_t math, offer *offers)
{
    int count = 0, taken = 0;
    if (s->kind == KILN_CUDA_CONV_FORWARD)
        OFFERS(cudnnConvolutionFwdAlgoPerf_t,
               n->forward_choose(n->handle, n->x, n->w, n->window, n->y, CHOICES, &count, found));
    else if (s->kind == KILN_CUDA_CONV_INPUT_GRAD)
        OFFERS(cudnnConvolutionBwdDataAlgoPerf_t,
               n->input_grad_choose(n->handle, n->w, n->y, n->window, n->x, CHOICES, &count, found));
    else
        OFFERS(cudnnConvolutionBwdFilterAlgoPerf_t,
               n->weight_grad_choose(n->handle, n->x, n->y, n->window, n->w, CHOICES, &count, found));
    return taken;
}

static cudnnStatus_t scratch_bytes(const struct kiln_cuda_dnn *n, const choice *c, size_t *bytes)
{
    switch (c->shape.kind) {
    case KILN_CUDA_CONV_FORWARD:
        return n->forward_bytes(n->handle, n->x, n->w, n->window, n->y, (cudnnConvolutionFwdAlgo_t)c->algorithm, bytes);
    case KILN_CUDA_CONV_INPUT_GRAD:
        return n->input_grad_bytes(n->handle, n->w, n->y, n->window, n->x, (cudnnConvolutionBwdDataAlgo_t)c->algorithm,
                                   bytes);
    default:
        return n->weight_grad_bytes(n->handle, n->x, n->y, n->window, n->w,
                                    (cudnnConvolutionBwdFilterAlgo_t)c->algorithm, bytes);
    }
}

/* Scratch that an algorithm may take before one is taken that needs less: as much as the operands do, which cuDNN turns
 * around there. Those that need none do without tensor cores, and take many times as long. */
static size_t most_bytes(const kiln_cuda_conv *s)
{
    size_t element = kiln_dtype_size((kiln_dtype)s->dtype);
    size_t x = (size_t)(s->batch * s->channels * s->size[0] * s->size[1]) * element;
    size_t y = (size_t)(s->batch * s->outputs * s->out[0] * s->out[1]) * element;
    return x + y > usual_bytes ? x + y : usual_bytes;
}

/* Where there is one algorithm that may be taken, or one that always wins, nobody is asked: an answer takes 2 to 300 ms
 * for each shape of each batch that is planned. The question is whether to use tensor cores for 16 bits; it is none
 * where channels come in eights, nor for a stem, whose many outputs make up for its few channels. */
static bool is_plain_case(const kiln_cuda_conv *s)
{
    bool halves = s->dtype == KILN_F16 || s->dtype == KILN_BF16, forward = s->kind == KILN_CUDA_CONV_FORWARD;
    int64_t in = s->channels / s->groups, out = s->outputs / s->groups;
    if (!halves)
        return !forward;
    return out % 8 == 0 && (in % 8 == 0 || (!forward && out >= 32));
}

static int plain_algorithm(int64_t kind)
{
    return kind == KILN_CUDA_CONV_FORWARD      ? (int)CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM
           : kind == KILN_CUDA_CONV_INPUT_GRAD ? (int)CUDNN_CONVOLUTION_BWD_DATA_ALGO_1
                                               : (int)CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
}

/* Forward there are others, should it take too much. */
static bool take_plainly(const struct kiln_cuda_dnn *n, choice *c, cudnnMathType_t math)
{
    c->algorithm = plain_algorithm(c->shape.kind);
    c->math = math;
    c->takes = scratch_bytes(n, c, &c->bytes) == CUDNN_STATUS_SUCCESS &&
               (c->shape.kind != KILN_CUDA_CONV_FORWARD || c->bytes <= most_bytes(&c->shape));
    return c->takes;
}

/* The first offer of a usual size, else the smallest. */
static void take_offer(const struct kiln_cuda_dnn *n, choice *c, cudnnMathType_t math)
{
    const kiln_cuda_conv *s = &c->shape;
    offer offers[CHOICES];
    int count = list_offers(n, s, math, offers), best = 0;
    for (int i = 1; i < count && offers[best].bytes > most_bytes(s); i++)
        if (offers[i].bytes < offers[best].bytes)
            best = i;
    if (!count)
        return;
    c->algorithm = offers[best].algorithm;
    c->math = math == CUDNN_FMA_MATH ? math : offers[best].math;
    c->takes = n->window_math(n->window, c->math) == CUDNN_STATUS_SUCCESS &&
               scratch_bytes(n, c, &c->bytes) == CUDNN_STATUS_SUCCESS;
}

static bool choice_for(struct kiln_cuda_dnn *n, const kiln_cuda_conv *s, choice *c);

/* Many images are taken as some are, which saves a question for each batch that is planned; not if that takes too much
 * scratch. */
static bool take_as_some(struct kiln_cuda_dnn *n, choice *c)
{
    enum { SOME = 64 };
    kiln_cuda_conv some = c->shape;
    choice like;
    if (some.batch <= SOME)
        return false;
    some.batch = SOME;
    if (!choice_for(n, &some, &like) || !like.takes || describe(n, &c->shape, like.math) != CUDNN_STATUS_SUCCESS)
        return false;
    c->algorithm = like.algorithm;
    c->math = like.math;
    c->takes = scratch_bytes(n, c, &c->bytes) == CUDNN_STATUS_SUCCESS && c->bytes <= most_bytes(&c->shape);
    return c->takes;
}

static void choose(struct kiln_cuda_dnn *n, choice *c)
{
    cudnnMathType_t math = math_of(&c->shape);
    if (describe(n, &c->shape, math) != CUDNN_STATUS_SUCCESS || (is_plain_case(&c->shape) && take_plainly(n, c, math)))
        return;
    if (!take_as_some(n, c) && describe(n, &c->shape, math) == CUDNN_STATUS_SUCCESS)
        take_offer(n, c, math);
}

/* With the lock held: a copy of the choice for the shape, which may have to be made. */
static bool choice_for(struct kiln_cuda_dnn *n, const kiln_cuda_conv *s, choice *c)
{
    for (int64_t i = 0; i < n->nchoices; i++)
        if (memcmp(&n->choices[i].shape, s, sizeof *s) == 0) {
            *c = n->choices[i];
            return true;
        }
    *c = (choice){.shape = *s};
    int mode = kiln_cuda_relax();
    choose(n, c); /* which may add another one */
    kiln_cuda_unrelax(mode);
    if (n->nchoices == KEPT) {
        n->choices[n->oldest] = *c;
        n->oldest = (n->oldest + 1) % KEPT;
        return true;
    }
    if (!KILN_GROW(n->choices, n->capacity, n->nchoices + 1))
        return false;
    n->choices[n->nchoices++] = *c;
    return true;
}

bool kiln_cuda_dnn_bytes(kiln_cuda_device *d, const char *operation, const kiln_cuda_conv *s, bool *takes,
                         size_t *bytes)
{
    struct kiln_cuda_dnn *n = dnn_of(d, operation);
    if (!n)
        return false;
    choice c;
    pthread_mutex_lock(&n->lock);
    bool ok = choice_for(n, s, &c);
    pthread_mutex_unlock(&n->lock);
    *takes = ok && c.takes;
    *bytes = *takes ? c.bytes : 0;
    return ok;
}

/* ---- Running ---- */

static cudnnStatus_t convolve(const struct kiln_cuda_dnn *n, const choice *c, const kiln_cuda_conv_data *data,
                              bool adds, void *workspace)
{
    const float one = 1, kept = adds;
    const double one_f64 = 1, kept_f64 = adds;
    bool f64 = c->shape.dtype == KILN_F64;
    const void *alpha = f64 ? (const void *)&one_f64 : &one, *beta = f64 ? (const void *)&kept_f64 : &kept;
    switch (c->shape.kind) {
    case KILN_CUDA_CONV_FORWARD:
        return n->forward(n->handle, alpha, n->x, data->x, n->w, data->w, n->window,
                          (cudnnConvolutionFwdAlgo_t)c->algorithm, workspace, c->bytes, beta, n->y, data->y);
    case KILN_CUDA_CONV_INPUT_GRAD:
        return n->input_grad(n->handle, alpha, n->w, data->w, n->y, data->y, n->window,
                             (cudnnConvolutionBwdDataAlgo_t)c->algorithm, workspace, c->bytes, beta, n->x, data->x);
    default:
        return n->weight_grad(n->handle, alpha, n->x, data->x, n->y, data->y, n->window,
                              (cudnnConvolutionBwdFilterAlgo_t)c->algorithm, workspace, c->bytes, beta, n->w, data->w);
    }
}

bool kiln_cuda_dnn_run(kiln_cuda_device *d, const char *operation, const kiln_cuda_conv *s,
                       const kiln_cuda_conv_data *data, bool adds, void *workspace, size_t bytes, bool *taken)
{
    struct kiln_cuda_dnn *n = dnn_of(d, operation);
    if (!n)
        return false;
    choice c;
    cudnnStatus_t status = CUDNN_STATUS_NOT_SUPPORTED;
    pthread_mutex_lock(&n->lock);
    bool ok = choice_for(n, s, &c);
    if (ok && c.takes && c.bytes <= bytes) {
        int mode = kiln_cuda_relax();
        status = describe(n, s, c.math);
        status = status ? status : convolve(n, &c, data, adds, c.bytes ? workspace : NULL);
        kiln_cuda_unrelax(mode);
    }
    pthread_mutex_unlock(&n->lock);
    *taken = status == CUDNN_STATUS_SUCCESS;
    bool refused = status >= CUDNN_STATUS_BAD_PARAM && status < CUDNN_STATUS_INTERNAL_ERROR;
    if (!ok || *taken || refused)
        return ok;
    return kiln_fail(KILN_E_LOST, operation, "cuda:%d: cuDNN failed: %s", d->index, n->status_text(status));
}

#else /* built where cuDNN's headers were not */

static bool missing(const char *operation)
{
    kiln_fail(KILN_E_UNSUPPORTED, operation, "Kiln was built without cuDNN (cudnn.h was not found), which does this");
    return kiln_hint("build Kiln where cuDNN's headers are installed");
}

bool kiln_cuda_dnn_bytes(kiln_cuda_device *d, const char *operation, const kiln_cuda_conv *s, bool *takes,
                         size_t *bytes)
{
    (void)d, (void)s, (void)takes, (void)bytes;
    return missing(operation);
}

bool kiln_cuda_dnn_run(kiln_cuda_device *d, const char *operation, const kiln_cuda_conv *s,
                       const kiln_cuda_conv_data *data, bool adds, void *workspace, size_t bytes, bool *taken)
{
    (void)d, (void)s, (void)data, (void)adds, (void)workspace, (void)bytes, (void)taken;
    return missing(operation);
}

void kiln_cuda_dnn_close(kiln_cuda_device *d)
{
    (void)d;
}

#endif
