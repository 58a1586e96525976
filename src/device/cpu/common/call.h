/* What a CPU kernel gets: dense operands as plain pointers, attributes, scratch memory, and a place to report a bad
 * index. A kernel cannot fail in any other way and never allocates. */
#ifndef KILN_CPU_CALL_H
#define KILN_CPU_CALL_H

#include "kiln/tensor.h"
#include "core/parallel.h"

typedef struct kiln_cpu_operand {
    void *data; /* NULL: absent operand. Dense, row-major, unless the operation's class takes what it is given */
    kiln_dtype dtype;
    int ndim;
    const int64_t *shape, *stride; /* strides in elements */
} kiln_cpu_operand;

/* A bad index found by a kernel: the first one in task order is kept by kiln_fault_report. */
typedef struct kiln_fault {
    int32_t kernel;       /* which kernel of the plan; -1 while nothing is wrong */
    int64_t index, limit; /* index is not in 0 … limit-1 */
    int64_t order;        /* where it stood: the earliest one is kept */
} kiln_fault;

/* Gets elements start … start + count - 1 of a kernel's result, of f32 (or f64), from the task that has computed them
 * and while they are in cache; `worker` is its thread's. */
typedef void kiln_cpu_finish(void *context, int64_t start, int64_t count, const void *values, int worker);

/* Makes elements start … start + count - 1 of a kernel's operands, those that have no place of their own, in the type
 * that the kernel computes in: to[k] is room for operand k's, and on return where they are. */
typedef void kiln_cpu_lead(void *context, int64_t start, int64_t count, void **to, int worker);

typedef struct kiln_cpu_call {
    int nin, nout;
    kiln_cpu_operand in[64], out[4];
    kiln_cpu_finish *finish; /* gets the first result, each element once, which is not stored then, and not in `out`
                              * either; NULL: none. For kernels that say so in `can` */
    kiln_cpu_lead *lead;     /* makes operands whose data is NULL although they have dims; NULL: there are none */
    void *finish_context, *lead_context;
    const int64_t *ints; /* the operation's integer attributes, normalised by its shape rule */
    int nints;
    const double *floats;
    int nfloats;
    void *workspace; /* 64-byte aligned, of the size the kernel's workspace function asked for; NULL for 0 */
    kiln_fault *fault;
    int32_t kernel;
    void *state; /* what the kernel's prepare function made when the plan was lowered (an oneDNN primitive), or NULL */
} kiln_cpu_call;

/* Notes the bad index unless one is noted already. Safe from several threads. Which one is kept is decided by the
 * smallest `order` (the position of the bad element), so that it does not depend on threads. */
void kiln_fault_report(const kiln_cpu_call *c, int64_t order, int64_t index, int64_t limit);

typedef struct kiln_cpu_kernel {
    const char *op;  /* the operation's name */
    uint32_t dtypes; /* of its first operand: KILN_T_* bits */
    unsigned can;    /* KILN_CAN_* of plan.h */
    void (*run)(const kiln_cpu_call *c);
    size_t (*workspace)(const kiln_cpu_call *c); /* optional: bytes of scratch (shapes known, data pointers not) */
    void *(*prepare)(const kiln_cpu_call *c); /* optional: once a plan (shapes known, data pointers not); NULL = none */
    void (*dispose)(void *state);
} kiln_cpu_kernel;

/* The tables of structured kernels, each ended by a row without a name. */
extern const kiln_cpu_kernel kiln_cpu_kernels_conv[], kiln_cpu_kernels_pool[], kiln_cpu_kernels_resize[],
    kiln_cpu_kernels_index[], kiln_cpu_kernels_sort[], kiln_cpu_kernels_scan[], kiln_cpu_kernels_rows[],
    kiln_cpu_kernels_attention[], kiln_cpu_kernels_rotary[], kiln_cpu_kernels_lstm[], kiln_cpu_kernels_random[],
    kiln_cpu_kernels_put[], kiln_cpu_kernels_samples[], kiln_cpu_kernels_require[];

#endif
