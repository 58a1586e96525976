/* Attention by tensor cores of any GPU that has them: halves, and floats as TF32. */
#include "device/cuda/attention/mma.cuh"
#include "device/cuda/attention/tensor.cuh"

/* Halves share tiles by eight warps; tiles of floats are twice as large. */
template <typename S, int WIDTH> struct kernels {
    static constexpr bool half = sizeof(S) == 2;
    typedef kiln_attention_kernel<kiln_attention_mma<S>, WIDTH, half ? 2 : 1, WIDTH <= 64 ? 2 : 1, 64> forward;
    typedef kiln_attention_kernel<kiln_attention_mma<S>, WIDTH, half ? 2 : 1, 1, 64> queries, keys;
};

bool kiln_attention_tensor_forward(const kiln_cuda_call *c, const kiln_attention_problem *p)
{
    switch (c->in[0].dtype) {
    case KILN_BF16: return kiln_attention_forward_by_width<kernels, kiln_bf16>(c, p);
    case KILN_F16: return kiln_attention_forward_by_width<kernels, kiln_f16>(c, p);
    default: return kiln_attention_forward_by_width<kernels, float>(c, p);
    }
}

bool kiln_attention_tensor_backward(const kiln_cuda_call *c, const kiln_attention_problem *p)
{
    switch (c->in[0].dtype) {
    case KILN_BF16: return kiln_attention_backward_by_width<kernels, kiln_bf16>(c, p);
    case KILN_F16: return kiln_attention_backward_by_width<kernels, kiln_f16>(c, p);
    default: return kiln_attention_backward_by_width<kernels, float>(c, p);
    }
}
