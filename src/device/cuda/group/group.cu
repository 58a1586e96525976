/* Groups: kernels that interpret a program (group.h, interpret.cuh). They differ in which elements a thread takes and
 * in what it does with the results: pointwise work is done then, reductions fold them together. */
#include "device/cuda/group/fold.cuh"
#include "device/cuda/group/interpret.cuh"

static __global__ void __launch_bounds__(KILN_CUDA_COMBINE) combine_all(const __grid_constant__ kiln_cuda_reduction r)
{
    __shared__ uint64_t partial[KILN_CUDA_COMBINE];
    if (!(r.stop && *r.stop))
        combine(r, partial, whole_grid());
}

/* ---- The kernels ---- */

/* One a shape, so that pointwise work does not pay for the registers of reductions; long programs are rare and share
 * one. */
enum { WHICHEVER = -1 };

template <bool wide, typename P, int shape>
static __global__ void __launch_bounds__(256, shape == KILN_CUDA_MAP ? 3 : 2) group(const __grid_constant__ P k)
{
    if (k.p.stop && *k.p.stop)
        return;
    machine<wide> m;
    set_up(k, m);
    const int which = shape == WHICHEVER ? k.p.shape : shape;
    if (which == KILN_CUDA_MAP)
        map(k.p.count, m, whole_grid());
    else if (which == KILN_CUDA_ROWS)
        rows(k.p.r, m, whole_grid());
    else
        columns(k.p.r, m, whole_grid());
}

template <bool wide> static const void *kernel_of(int shape, bool large)
{
    if (large)
        return (const void *)group<wide, kiln_cuda_large, WHICHEVER>;
    switch (shape) {
    case KILN_CUDA_MAP: return (const void *)group<wide, kiln_cuda_small, KILN_CUDA_MAP>;
    case KILN_CUDA_ROWS: return (const void *)group<wide, kiln_cuda_small, KILN_CUDA_ROWS>;
    default: return (const void *)group<wide, kiln_cuda_small, KILN_CUDA_COLUMNS>;
    }
}

extern "C" const void *kiln_cuda_group_kernel(int shape, bool wide, bool large)
{
    return wide ? kernel_of<true>(shape, large) : kernel_of<false>(shape, large);
}

extern "C" const void *kiln_cuda_combine_kernel(void)
{
    return (const void *)combine_all;
}
