/* Who computes an attention: tensor cores where they can, in the way of the GPU at hand, else plain kernels. */
#include "device/cuda/attention/problem.cuh"

/* ---- Set up ---- */

/* An operand of a call, and what it becomes: rows of columns; results, and what was one, lie with the rows behind the first
 * batch dim (ops/attention.h); numbers a query have no columns, and lengths no rows either. */
typedef struct lying {
    kiln_attention_operand *to;
    const kiln_cuda_operand *from;
    enum { ROWS, LAID, NUMBERS, LENGTHS } how;
} lying;

/* Which dim of an operand is dim d of q. */
static int dim_of(const lying *x, int n, int d)
{
    if (x->how != lying::LAID || n < 4 || d == 0 || d == n - 1)
        return d;
    return d == n - 2 ? 1 : d + 1;
}

/* Batch dims are put together where one goes on where the next ends, in all operands alike: usually two remain, and
 * finding a head takes a division each. */
static void set_operands(kiln_attention_problem *p, const kiln_cuda_operand *q, const lying *list, int count)
{
    const int n = q->ndim;
    for (int i = 0; i < count; i++) {
        const kiln_cuda_operand *x = list[i].from;
        list[i].to->at = x->data;
        list[i].to->row = list[i].how == lying::LENGTHS ? 0 : x->stride[dim_of(&list[i], n, n - 2)];
        list[i].to->column = list[i].how >= lying::NUMBERS ? 0 : x->stride[n - 1];
    }
    for (int d = 0; d < n - 2; d++) {
        const int64_t size = q->shape[d];
        bool joins = p->nbatch > 0;
        if (size == 1)
            continue;
        for (int i = 0; i < count; i++)
            joins = joins && list[i].to->batch[p->nbatch - 1] == list[i].from->stride[dim_of(&list[i], n, d)] * size;
        p->nbatch += !joins;
        p->batch[p->nbatch - 1] = joins ? p->batch[p->nbatch - 1] * size : size;
        for (int i = 0; i < count; i++)
            list[i].to->batch[p->nbatch - 1] = list[i].from->stride[dim_of(&list[i], n, d)];
    }
}

static kiln_attention_problem measure(const kiln_cuda_call *c)
{
    const kiln_cuda_operand *q = &c->in[0], *v = &c->in[2];
    int n = q->ndim;
    kiln_attention_problem p = {};
    p.heads = 1;
    for (int d = 0; d < n - 2; d++)
        p.heads *= q->shape[d];
    p.l = q->shape[n - 2];
    p.e = q->shape[n - 1];
    p.s = v->shape[n - 2];
    p.ev = v->shape[n - 1];
    p.causal = c->ints[0] != 0;
    p.scale = c->floats;
    p.stop = c->stop;
    return p;
}

/* By tensor cores, if they compute in a type that this one may be rounded to. */
static bool is_for_tensor_cores(const kiln_cuda_call *c)
{
    kiln_dtype dtype = c->in[0].dtype;
    return c->capability >= 80 && (dtype == KILN_BF16 || dtype == KILN_F16 || (dtype == KILN_F32 && c->tf32));
}

/* Mask and lengths, operands `first` and the next, to the end of a list of `count`: how many it has then. */
static int add_masks(kiln_attention_problem *p, const kiln_cuda_call *c, int first, lying *list, int count)
{
    if (first < c->nin && c->in[first].data) {
        list[count++] = lying{&p->mask, &c->in[first], lying::ROWS};
        p->mask_dtype = c->in[first].dtype;
    }
    if (first + 1 < c->nin && c->in[first + 1].data)
        list[count++] = lying{&p->lengths, &c->in[first + 1], lying::LENGTHS};
    p->hides = first < c->nin;
    p->dropout = c->nints > 1 && c->ints[1] != 0;
    return count;
}

/* ---- Forward ---- */

static bool run_attention(const kiln_cuda_call *c)
{
    if (kiln_cuda_count_of(&c->out[1]) == 0)
        return true;
    kiln_attention_problem p = measure(c);
    lying list[6] = {
        {&p.q, &c->in[0], lying::ROWS},
        {&p.k, &c->in[1], lying::ROWS},
        {&p.v, &c->in[2], lying::ROWS},
        {&p.out[0], &c->out[0], lying::LAID},
    };
    set_operands(&p, &c->in[0], list, add_masks(&p, c, 3, list, 4));
    p.lses = c->out[1].data;
    bool done = is_for_tensor_cores(c) &&
                ((c->capability == 90 && kiln_attention_hopper_forward(c, &p)) || kiln_attention_tensor_forward(c, &p));
    if (!done)
        kiln_attention_plain_forward(c, &p);
    return kiln_cuda_launched(c);
}

/* ---- Backward ---- */

static bool run_attention_grad(const kiln_cuda_call *c)
{
    kiln_attention_problem p = measure(c);
    lying list[12] = {
        {&p.q, &c->in[0], lying::ROWS},       {&p.k, &c->in[1], lying::ROWS},
        {&p.v, &c->in[2], lying::ROWS},       {&p.y, &c->in[3], lying::LAID},
        {&p.lse, &c->in[4], lying::NUMBERS},  {&p.gy, &c->in[5], lying::LAID},
        {&p.out[0], &c->out[0], lying::LAID}, {&p.out[1], &c->out[1], lying::LAID},
        {&p.out[2], &c->out[2], lying::LAID},
    };
    int count = 9;
    if (c->nin > 6 && c->in[6].data)
        list[count++] = lying{&p.glse, &c->in[6], lying::NUMBERS};
    set_operands(&p, &c->in[0], list, add_masks(&p, c, 7, list, count));
    p.along = c->workspace;
    bool done =
        is_for_tensor_cores(c) &&
        ((c->capability == 90 && kiln_attention_hopper_backward(c, &p)) || kiln_attention_tensor_backward(c, &p));
    if (!done)
        kiln_attention_plain_backward(c, &p);
    return kiln_cuda_launched(c);
}

/* `along`: one element a query, as many as operand 4 has. */
static size_t grad_workspace(const kiln_cuda_call *c)
{
    return (size_t)kiln_cuda_count_of(&c->in[4]) * (c->in[0].dtype == KILN_F64 ? 8 : 4);
}

extern "C" const kiln_cuda_kernel kiln_cuda_kernels_attention[] = {
    {"attention", KILN_CUDA_FLOATS, run_attention, NULL},
    {"attention_grad", KILN_CUDA_FLOATS, run_attention_grad, grad_workspace, KILN_CUDA_WINDOWS},
    {"attention_masked", KILN_CUDA_FLOATS, run_attention, NULL},
    {"attention_masked_grad", KILN_CUDA_FLOATS, run_attention_grad, grad_workspace, KILN_CUDA_WINDOWS},
    {NULL, 0, NULL, NULL},
};
