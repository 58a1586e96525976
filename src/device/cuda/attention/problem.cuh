/* An attention as its kernels get it: operands and results where they lie, sizes, and what a score may see. */
#ifndef KILN_CUDA_ATTENTION_PROBLEM_CUH
#define KILN_CUDA_ATTENTION_PROBLEM_CUH

#include "device/cuda/common/launch.h"
#include "device/cuda/kernels/halves.cuh"

/* An operand or a result as it lies in memory; strides are in elements. */
typedef struct kiln_attention_operand {
    void *at; /* NULL: there is none */
    int64_t row, column, batch[KILN_MAX_DIMS];
} kiln_attention_operand;

/* q [..., L, E], k [..., S, E], v [..., S, Ev] of `heads` heads; y and gy are like q, but Ev wide. */
typedef struct kiln_attention_problem {
    kiln_attention_operand q, k, v, y, gy, lse, glse; /* the last two are a number a query */
    kiln_attention_operand out[3];                    /* y; or the gradients of q, k and v */
    kiln_attention_operand mask;                      /* [..., L, S], of type mask_dtype */
    kiln_attention_operand lengths;                   /* of keys: an i64 a head */
    kiln_dtype mask_dtype;
    bool hides;   /* there is a mask, or lengths: a query that sees nothing gets zeros */
    bool dropout; /* of weights; scale is followed by probability, seed and offset then */
    int64_t heads, l, s, e, ev;
    int nbatch;
    int64_t batch[KILN_MAX_DIMS]; /* sizes of the dims that heads are counted along */
    const double *scale;
    bool causal;
    void *lses;  /* forward's second result, dense: log Σ exp of each query's scores */
    void *along; /* backward's scratch, dense: Σ gy·y - glse of each query */
    const int32_t *stop;
} kiln_attention_problem;

/* Which head a block has, by batch dim. */
struct kiln_attention_head {
    int64_t number, at[KILN_MAX_DIMS];

    __device__ __forceinline__ kiln_attention_head(const kiln_attention_problem &p, int64_t number) : number(number)
    {
        int64_t rest = number;
        for (int d = p.nbatch - 1; d > 0; d--) {
            int64_t next = rest / p.batch[d];
            at[d] = rest - next * p.batch[d];
            rest = next;
        }
        at[0] = rest;
    }

    __device__ __forceinline__ int64_t offset(const kiln_attention_problem &p, const kiln_attention_operand &x) const
    {
        int64_t offset = 0;
        for (int d = 0; d < p.nbatch; d++)
            offset += at[d] * x.batch[d];
        return offset;
    }

    template <typename S>
    __device__ __forceinline__ S *of(const kiln_attention_problem &p, const kiln_attention_operand &x) const
    {
        return (S *)x.at + offset(p, x);
    }
};

static __host__ __device__ __forceinline__ int64_t kiln_parts(int64_t n, int64_t part)
{
    return (n + part - 1) / part;
}

static __host__ __device__ __forceinline__ int64_t kiln_lesser(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* By tensor cores: halves, and floats as TF32, of heads up to 128 wide. False: there is no such kernel. */
bool kiln_attention_tensor_forward(const kiln_cuda_call *c, const kiln_attention_problem *p);
bool kiln_attention_tensor_backward(const kiln_cuda_call *c, const kiln_attention_problem *p);

/* The same by Hopper's instructions for warpgroups, of halves alone. */
bool kiln_attention_hopper_forward(const kiln_cuda_call *c, const kiln_attention_problem *p);
bool kiln_attention_hopper_backward(const kiln_cuda_call *c, const kiln_attention_problem *p);

/* All types and widths, without tensor cores. */
void kiln_attention_plain_forward(const kiln_cuda_call *c, const kiln_attention_problem *p);
void kiln_attention_plain_backward(const kiln_cuda_call *c, const kiln_attention_problem *p);

#endif
