/* What a launcher gets: operands as device addresses, attributes, scratch memory, a stream. It puts kernels (or calls
 * of a library) on the stream, which as a rule is captured into a graph: it must not wait, copy to the host, allocate,
 * or look at anything that differs between runs. Grids and sums depend on the plan alone; no float atomics.
 *
 * Read by C and by CUDA sources alike, so it knows nothing of plans: those are in cuda.h, for C alone. */
#ifndef KILN_CUDA_LAUNCH_H
#define KILN_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>
#include "device/cuda/common/fault.h"
#include "kiln/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "core/fail.h"

typedef struct kiln_cuda_operand {
    void *data; /* NULL: absent. A device address */
    kiln_dtype dtype;
    int ndim;
    const int64_t *shape,
        *stride; /* strides in elements; dense and row-major unless the class takes what it is given */
} kiln_cuda_operand;

enum { KILN_CUDA_INPUTS = 64, KILN_CUDA_OUTPUTS = 4 };

typedef struct kiln_cuda_call {
    struct kiln_cuda_device *device;
    cudaStream_t stream;
    const char *name; /* of the operation, for messages */
    int nin, nout;
    kiln_cuda_operand in[KILN_CUDA_INPUTS], out[KILN_CUDA_OUTPUTS];
    const int64_t *ints;
    int nints, nfloats;
    const double *floats;  /* in device memory: only kernels may read them */
    const double *scalars; /* the plan's, likewise: what kiln_instr.scalars counts from */
    void *workspace;       /* 64-byte aligned, of the size the workspace function asked for; NULL for 0 */
    kiln_cuda_fault fault;
    const int32_t *stop; /* not NULL where the kernel writes to a slot: it must write nothing while *stop is not 0 */
    const struct kiln_cuda_tiling *tiling; /* of a product that is part of a chain; NULL: as its shape has it */
    bool chained;                        /* nothing is compiled for it alone: its chain is, or it may never run again */
    bool tf32;                           /* products of f32 may round their operands to TF32 */
    int capability;                      /* of the device: 90 for 9.0 */
    int multiprocessors;                 /* of the device: for grids whose size does not change results */
    const struct kiln_cuda_costs *costs; /* of the device */
    const struct kiln_kernel *kernel;    /* the rest is for C sources */
    const struct kiln_plan *plan;
    const struct kiln_binding *binding; /* NULL while only shapes are known */
} kiln_cuda_call;

/* A kernel that is written around an operation (group/around.c): a function of a header, which gets the operation's
 * parameters `k.p`, what stands around it as `around`, and dynamic shared memory, `scratch`. */
typedef struct kiln_cuda_body {
    const char *header;
    char type[48], call[96]; /* of k.p; the function with its arguments */
    uint64_t parameters[24]; /* k.p itself, … */
    size_t bytes;            /* … so many bytes of that */
    unsigned grid, threads;
    int blocks; /* that a multiprocessor should have room for */
    size_t shared;
    bool (*rest)(const kiln_cuda_call *c); /* launches what comes behind it; NULL: nothing */
} kiln_cuda_body;

enum {                       /* KILN_CAN_* for CUDA sources */
       KILN_CUDA_AROUND = 3, /* groups may make operands and finish the first result, of several */
       KILN_CUDA_WINDOWS = 4
};

typedef struct kiln_cuda_kernel {
    const char *op;
    uint32_t dtypes;                              /* of its first operand: KILN_CUDA_T(KILN_F32) | … */
    bool (*launch)(const kiln_cuda_call *c);      /* false with an error */
    size_t (*workspace)(const kiln_cuda_call *c); /* optional; shapes are known, addresses are not */
    unsigned can;
    bool (*body)(const kiln_cuda_call *c, kiln_cuda_body *b); /* with KILN_CUDA_AROUND; false: there is none for this */
} kiln_cuda_kernel;

#define KILN_CUDA_T(dtype) (UINT32_C(1) << (dtype))
#define KILN_CUDA_FLOATS                                                                                               \
    (KILN_CUDA_T(KILN_F16) | KILN_CUDA_T(KILN_BF16) | KILN_CUDA_T(KILN_F32) | KILN_CUDA_T(KILN_F64))
#define KILN_CUDA_INTS    (KILN_CUDA_T(KILN_U8) | KILN_CUDA_T(KILN_I32) | KILN_CUDA_T(KILN_I64))
#define KILN_CUDA_NUMBERS (KILN_CUDA_FLOATS | KILN_CUDA_INTS)
#define KILN_CUDA_ALL     (KILN_CUDA_NUMBERS | KILN_CUDA_T(KILN_BOOL))

/* The tables, each ended by a row without a name. */
extern const kiln_cuda_kernel kiln_cuda_kernels_rows[], kiln_cuda_kernels_norm[], kiln_cuda_kernels_index[],
    kiln_cuda_kernels_sort[], kiln_cuda_kernels_pool[], kiln_cuda_kernels_resize[], kiln_cuda_kernels_random[],
    kiln_cuda_kernels_conv[], kiln_cuda_kernels_attention[], kiln_cuda_kernels_rotary[], kiln_cuda_kernels_lstm[],
    kiln_cuda_kernels_samples[], kiln_cuda_kernels_require[];

/* Of elements of floating dtypes, in CUDA sources; those of f64 have none. */
const char *kiln_cuda_type_name(uint8_t dtype);

/* False with an error that names the operation if the last launch failed. To end a launcher with. */
bool kiln_cuda_launched(const kiln_cuda_call *c);

static inline int64_t kiln_cuda_count_of(const kiln_cuda_operand *o) /* elements */
{
    int64_t n = 1;
    for (int i = 0; i < o->ndim; i++)
        n *= o->shape[i];
    return n;
}

#ifdef __cplusplus
}
#endif
#endif
