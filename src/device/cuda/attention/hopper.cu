/* Attention by Hopper's instructions for warpgroups, of halves. Compiled for compute capability 9.0 alone
 * (cmake/plugin.cmake): later GPUs do not have them. */
#include "device/cuda/attention/tensor.cuh"
#include "device/cuda/attention/wgmma.cuh"

/* Warpgroups that share a multiprocessor multiply while others are at their softmax; registers set the limit. µs on an
 * H200, bf16, of these (and of the next best tried): 32×12×1024×64 causal forward 255 (2 groups, 2 blocks: 268), queries 342
 * (2 blocks: 429), keys 445 (3 blocks, which spill: 461); 4×16×2048×128 253 (64 columns: 283), 358 and 456. */
template <typename S, int WIDTH> struct kernels {
    static constexpr bool slim = WIDTH <= 64;
    typedef kiln_attention_kernel<kiln_attention_wgmma<S>, WIDTH, slim ? 1 : 2, slim ? 4 : 1, slim ? 64 : 128> forward;
    typedef kiln_attention_kernel<kiln_attention_wgmma<S>, WIDTH, 1, slim ? 3 : 2, 64> queries;
    typedef kiln_attention_kernel<kiln_attention_wgmma<S>, WIDTH, 1, 2, 64> keys;
};

bool kiln_attention_hopper_forward(const kiln_cuda_call *c, const kiln_attention_problem *p)
{
    switch (c->in[0].dtype) {
    case KILN_BF16: return kiln_attention_forward_by_width<kernels, kiln_bf16>(c, p);
    case KILN_F16: return kiln_attention_forward_by_width<kernels, kiln_f16>(c, p);
    default: return false;
    }
}

bool kiln_attention_hopper_backward(const kiln_cuda_call *c, const kiln_attention_problem *p)
{
    switch (c->in[0].dtype) {
    case KILN_BF16: return kiln_attention_backward_by_width<kernels, kiln_bf16>(c, p);
    case KILN_F16: return kiln_attention_backward_by_width<kernels, kiln_f16>(c, p);
    default: return false;
    }
}
