/* Times the tiles of products (src/device/cuda/gemm/tile.cuh) as waves of one kernel that stays on the device: all
 * tiles of a product, then a barrier of the grid, over and over. Every kind of tile, so that the table shows whether
 * kiln_cuda_tiling_of (marked *) picks the fastest. First it checks results: against f64, that the kernel compiled
 * ahead and those with constant sizes agree to the bit, and that waves see what the waves before them wrote. In 16 bits
 * operands are also read as floats that are converted on the way, which changes no bit either.
 *
 *     nvcc -O3 -std=c++17 -arch=sm_90 -fmad=false -Isrc -Iinclude -o cuda_tiles bench/cuda_tiles.cu \
 *         src/device/cuda/gemm/tiled.cu src/device/cuda/gemm/tile.c src/device/cuda/common/costs.c
 *
 * Times are microseconds a wave less those of the barrier. */
#include <algorithm>
#include <cmath>
#include <cooperative_groups.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector>
#include "device/cuda/gemm/tiled.h"
#include "device/cuda/gemm/tile.cuh"

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        cudaError_t e_ = (call);                                                                                       \
        if (e_ != cudaSuccess) {                                                                                       \
            printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(e_));                                         \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

extern "C" bool kiln_cuda_launched(const kiln_cuda_call *) /* the library's has more to say */
{
    CHECK(cudaGetLastError());
    return true;
}

/* ---- Barriers of the grid ---- */

enum { NONE, ACQUIRE, FENCE, FLAGS, GROUPS, BARRIERS };
static const char *const barrier_names[BARRIERS] = {"none", "counter, spinning with acquire", "counter, fence behind",
                                                    "a flag a block", "cooperative groups"};

static __device__ unsigned load_relaxed(const unsigned *p)
{
    unsigned x;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}

static __device__ unsigned load_acquire(const unsigned *p)
{
    unsigned x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}

static __device__ void fence()
{
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

/* `round` counts from 1; memory is all 0 before the first. */
static __device__ void barrier(int kind, unsigned *memory, unsigned round)
{
    if (kind == GROUPS) {
        cooperative_groups::this_grid().sync();
        return;
    }
    __syncthreads();
    if (kind == ACQUIRE && threadIdx.x == 0) {
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(memory) : "memory");
        while (load_acquire(memory) < round * gridDim.x)
            ;
    }
    if (kind == FENCE && threadIdx.x == 0) {
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(memory) : "memory");
        while (load_relaxed(memory) < round * gridDim.x)
            ;
        fence();
    }
    if (kind == FLAGS) {
        if (threadIdx.x == 0)
            asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(memory + blockIdx.x), "r"(round) : "memory");
        if (threadIdx.x < gridDim.x) {
            while (load_relaxed(memory + threadIdx.x) < round)
                ;
            fence();
        }
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(KILN_CUDA_TILE_THREADS, 1) barriers(int kind, unsigned *memory, int rounds)
{
    for (int r = 1; r <= rounds; r++)
        barrier(kind, memory, (unsigned)r);
}

/* ---- Waves ---- */

typedef kiln_cuda_types<float, float, float> floats;

template <typename T> struct to_memory {
    T *to;
    template <int N> __device__ __forceinline__ void operator()(const kiln_cuda_cell (&cells)[N]) const
    {
#pragma unroll
        for (int c = 0; c < N; c++)
            kiln_cuda_store_cell(to, cells[c], cells[c].n == 4 && (uint64_t)(to + cells[c].at) % (4 * sizeof(T)) == 0);
    }
};

template <int ROWS, int COLS, int SLICES, typename Types, typename Shape>
static __global__ void __launch_bounds__(KILN_CUDA_TILE_THREADS, 1)
    waves(const __grid_constant__ Shape s, int64_t matrices, int splits, int64_t tiles, void *to, unsigned *memory,
          int rounds)
{
    extern __shared__ float4 shared[];
    const to_memory<typename Types::as> sink = {(typename Types::as *)to};
    for (int r = 1; r <= rounds; r++) {
        for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            kiln_cuda_tile<ROWS, COLS, SLICES, Types>(s, matrices, splits, tile, shared, sink);
            __syncthreads();
        }
        barrier(FENCE, memory, (unsigned)r);
    }
}

/* x[r+1] = x[r] · w, back and forth between two buffers, tiles on other blocks each time. */
static __global__ void __launch_bounds__(KILN_CUDA_TILE_THREADS, 1)
    chain(const __grid_constant__ kiln_cuda_matrices s, int64_t tiles, float *x, float *y, unsigned *memory, int rounds,
          int kind)
{
    extern __shared__ float4 shared[];
    for (int r = 1; r <= rounds; r++) {
        kiln_cuda_matrices now = s;
        now.a = r % 2 ? x : y;
        const to_memory<float> sink = {r % 2 ? y : x};
        for (int64_t tile = (blockIdx.x + (unsigned)r * 7) % gridDim.x; tile < tiles; tile += gridDim.x) {
            kiln_cuda_tile<8, 8, 128, floats>(now, 1, 1, tile, shared, sink);
            __syncthreads();
        }
        barrier(kind, memory, (unsigned)r);
    }
}

/* ---- Shapes ---- */

struct shape {
    int64_t m, n, k, matrices;
    bool ta, tb; /* stored [k, m], [n, k] */
};

static kiln_cuda_sizes extent_of(const shape &p, bool tf32)
{
    static const kiln_cuda_costs costs = kiln_cuda_costs_of(90, 132);
    return kiln_cuda_sizes{p.m, p.n, p.k, p.matrices, tf32, &costs};
}

static kiln_cuda_matrices matrices_of(const shape &p, const void *a, const void *b)
{
    kiln_cuda_matrices s = {a, b, p.m, p.n, p.k};
    s.a_row = p.ta ? 1 : p.k, s.a_col = p.ta ? p.m : 1, s.a_matrix = p.m * p.k;
    s.b_row = p.tb ? 1 : p.n, s.b_col = p.tb ? p.k : 1, s.b_matrix = p.k * p.n;
    return s;
}

template <int M, int N, int K, bool TA, bool TB> struct constant_shape {
    const void *a, *b;
    static constexpr int64_t m = M, n = N, k = K, a_row = TA ? 1 : K, a_col = TA ? M : 1, b_row = TB ? 1 : N,
                             b_col = TB ? K : 1, a_matrix = 0, b_matrix = 0;
    static constexpr bool aligned = true;
};

#define MLP(X, B)                                                                                                      \
    X(B, 256, 784, false, true)                                                                                        \
    X(B, 128, 256, false, true)                                                                                        \
    X(B, 10, 128, false, true)                                                                                         \
    X(B, 128, 10, false, false)                                                                                        \
    X(B, 256, 128, false, false)                                                                                       \
    X(10, 128, B, true, false) X(128, 256, B, true, false) X(256, 784, B, true, false)
#define ODD(X)                                                                                                         \
    X(37, 300, 100, false, true)                                                                                       \
    X(37, 77, 300, false, true)                                                                                        \
    X(37, 50, 77, false, true)                                                                                         \
    X(37, 50, 10, false, false)                                                                                        \
    X(37, 77, 50, false, false)                                                                                        \
    X(37, 300, 77, false, false) X(50, 77, 37, true, false) X(77, 300, 37, true, false) X(300, 100, 37, true, false)
#define SHAPE(M, N, K, TA, TB) {M, N, K, 1, TA, TB},
static const shape shapes[] = {
    MLP(SHAPE, 32) MLP(SHAPE, 64) MLP(SHAPE, 128) ODD(SHAPE){32, 256, 784, 1, false, false},
    {32, 128, 256, 1, false, false},  {32, 10, 128, 1, false, false},   {32, 256, 128, 1, false, true},
    {64, 64, 16, 16, false, true},    {64, 16, 64, 16, false, false},   {128, 128, 32, 64, false, true},
    {128, 32, 128, 64, false, false}, {256, 256, 512, 1, false, true},  {512, 512, 128, 1, false, true},
    {1, 1024, 1024, 1, false, true},  {512, 128, 512, 1, false, true},  {8, 8, 8192, 1, false, true},
    {512, 512, 180, 1, true, false},  {384, 128, 1024, 1, true, false}, {1024, 128, 128, 1, false, true}};
static const shape tensor_shapes[] = {MLP(SHAPE, 1024) MLP(SHAPE, 8192) ODD(SHAPE)};

/* ---- Measuring ---- */

typedef void wave_launch(const shape &p, const kiln_cuda_tiling &t, int rounds);

static int blocks;
static cudaStream_t stream;
static float *a, *b, *c, *partials;
static void *halves[2][2];      /* of a and b, in f16 and bf16 */
static kiln_dtype dtype;        /* that products are in now */
static bool a_floats, b_floats; /* which operands are converted on the way */
static unsigned *memory;
static const int64_t ROOM = 48 << 20; /* floats of each */
static const int ROUNDS = 200;

template <typename F> static double best_time(const F &f) /* microseconds */
{
    cudaEvent_t from, to;
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    float best = 1e30f;
    for (int i = 0; i < 4; i++) {
        CHECK(cudaMemsetAsync(memory, 0, 4096, stream));
        CHECK(cudaEventRecord(from, stream));
        f();
        CHECK(cudaEventRecord(to, stream));
        CHECK(cudaEventSynchronize(to));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, from, to));
        best = std::min(best, ms);
    }
    CHECK(cudaEventDestroy(from));
    CHECK(cudaEventDestroy(to));
    return best * 1e3;
}

static double barrier_time(int kind)
{
    auto time = [&](int rounds) {
        return best_time([&] {
            void *arguments[] = {&kind, &memory, &rounds};
            CHECK(cudaLaunchCooperativeKernel((void *)barriers, blocks, KILN_CUDA_TILE_THREADS, arguments, 0, stream));
        });
    };
    return (time(ROUNDS + 1) - time(1)) / ROUNDS;
}

template <int ROWS, int COLS, int SLICES, typename Types, typename Shape>
static void launch_waves(const Shape &s, const kiln_cuda_tiling &t, int rounds)
{
    void *kernel = (void *)waves<ROWS, COLS, SLICES, Types, Shape>;
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)t.shared));
    int64_t matrices = kiln_cuda_tiling_matrices(&t);
    void *arguments[] = {(void *)&s, &matrices, (void *)&t.splits, (void *)&t.tiles, &c, &memory, &rounds};
    CHECK(cudaLaunchCooperativeKernel(kernel, blocks, KILN_CUDA_TILE_THREADS, arguments, t.shared, stream));
}

static const void *operand(int which)
{
    const bool as_floats = dtype == KILN_F32 || (which ? b_floats : a_floats);
    return as_floats ? (which ? b : a) : halves[dtype == KILN_BF16][which];
}

/* Sizes of 16-bit products are not constants here: there are kernels enough. */
template <int ROWS, int COLS, int SLICES, typename As>
static void launch_halves(const shape &p, const kiln_cuda_tiling &t, int rounds)
{
    const kiln_cuda_matrices s = matrices_of(p, operand(0), operand(1));
    if (a_floats && b_floats)
        launch_waves<ROWS, COLS, SLICES, kiln_cuda_types<float, float, As>>(s, t, rounds);
    else if (a_floats)
        launch_waves<ROWS, COLS, SLICES, kiln_cuda_types<float, As, As>>(s, t, rounds);
    else if (b_floats)
        launch_waves<ROWS, COLS, SLICES, kiln_cuda_types<As, float, As>>(s, t, rounds);
    else
        launch_waves<ROWS, COLS, SLICES, kiln_cuda_types<As, As, As>>(s, t, rounds);
}

template <int ROWS, int COLS, int SLICES>
static void launch_for(const shape &p, bool constant, const kiln_cuda_tiling &t, int rounds)
{
    if (dtype == KILN_F16)
        return launch_halves<ROWS, COLS, SLICES, kiln_f16>(p, t, rounds);
    if (dtype == KILN_BF16)
        return launch_halves<ROWS, COLS, SLICES, kiln_bf16>(p, t, rounds);
#define CONSTANT(M, N, K, TA, TB)                                                                                      \
    if (constant && p.m == M && p.n == N && p.k == K && p.ta == TA && p.tb == TB)                                      \
        return launch_waves<ROWS, COLS, SLICES, floats>(constant_shape<M, N, K, TA, TB>{a, b}, t, rounds);
    if constexpr (KILN_CUDA_TILE_TENSOR(ROWS, COLS, SLICES)) {
        MLP(CONSTANT, 1024)
        MLP(CONSTANT, 8192)
    } else {
        MLP(CONSTANT, 32)
    }
    launch_waves<ROWS, COLS, SLICES, floats>(matrices_of(p, a, b), t, rounds);
}

static void launch_any(const shape &p, bool constant, const kiln_cuda_tiling &t, int rounds)
{
#define VARIANT(ROWS, COLS, SLICES)                                                                                    \
    if (t.rows == ROWS && t.cols == COLS && t.slices == SLICES)                                                        \
        launch_for<ROWS, COLS, SLICES>(p, constant, t, rounds);
    KILN_CUDA_TILES(VARIANT)
    KILN_CUDA_TENSOR_TILES(VARIANT)
}

static double wave_time(const shape &p, bool constant, const kiln_cuda_tiling &t)
{
    double more = best_time([&] { launch_any(p, constant, t, ROUNDS + 1); });
    return (more - best_time([&] { launch_any(p, constant, t, 1); })) / ROUNDS;
}

/* The kernel compiled ahead, a node of a graph of many. */
static double graph_time(const shape &p, const kiln_cuda_tiling &t)
{
    enum { NODES = 100 };
    kiln_cuda_call call = {};
    call.stream = stream;
    call.multiprocessors = blocks;
    kiln_cuda_matrices s = matrices_of(p, operand(0), operand(1));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < NODES; i++)
        kiln_cuda_tiled_launch(&call, &s, &t, dtype, c, partials);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    double time = best_time([&] { CHECK(cudaGraphLaunch(exec, stream)); }) / NODES;
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    return time;
}

/* ---- Checking ---- */

static std::vector<float> host_a, host_b;

/* As it lies there; numbers_of tells what that is. */
static std::vector<uint8_t> result(int64_t count)
{
    std::vector<uint8_t> x((size_t)count * (dtype == KILN_F32 ? 4 : 2));
    CHECK(cudaMemcpyAsync(x.data(), c, x.size(), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaMemsetAsync(c, 0xff, x.size(), stream));
    CHECK(cudaStreamSynchronize(stream));
    return x;
}

static std::vector<float> numbers_of(const std::vector<uint8_t> &bytes)
{
    std::vector<float> x(bytes.size() / (dtype == KILN_F32 ? 4 : 2));
    for (size_t i = 0; i < x.size(); i++)
        if (dtype == KILN_F32)
            memcpy(&x[i], &bytes[i * 4], 4);
        else if (dtype == KILN_F16)
            x[i] = __half2float(((const __half *)bytes.data())[i]);
        else
            x[i] = __bfloat162float(((const __nv_bfloat16 *)bytes.data())[i]);
    return x;
}

static bool close_to_f64(const shape &p, const std::vector<float> &got, double tolerance)
{
    kiln_cuda_matrices s = matrices_of(p, NULL, NULL);
    int64_t step = p.m * p.n * p.matrices > 20000 ? 97 : 1; /* a sample of large ones */
    for (int64_t i = 0; i < (int64_t)got.size(); i += step) {
        int64_t matrix = i / (p.m * p.n), row = i / p.n % p.m, col = i % p.n;
        double sum = 0, size = 0;
        for (int64_t k = 0; k < p.k; k++) {
            double x = (double)host_a[matrix * s.a_matrix + row * s.a_row + k * s.a_col] *
                       host_b[matrix * s.b_matrix + k * s.b_row + col * s.b_col];
            sum += x, size += std::fabs(x);
        }
        if (!(std::fabs(got[(size_t)i] - sum) <= size * tolerance + 1e-30))
            return false;
    }
    return true;
}

/* The kernel compiled ahead, the wave and the wave with constant sizes, or with operands that are converted: right, and
 * the same. Elements are halves already, so converting them loses nothing. */
static const char *verdict(const shape &p, const kiln_cuda_tiling &t)
{
    int64_t count = p.m * p.n * p.matrices;
    kiln_cuda_call call = {};
    call.stream = stream;
    call.multiprocessors = blocks;
    kiln_cuda_matrices s = matrices_of(p, operand(0), operand(1));
    kiln_cuda_tiled_launch(&call, &s, &t, dtype, c, partials);
    std::vector<uint8_t> ahead = result(count);
    bool tensor = KILN_CUDA_TILE_TENSOR(t.rows, t.cols, t.slices); /* which round by half of 2^-10, both operands */
    if (!close_to_f64(p, numbers_of(ahead), dtype == KILN_BF16 ? 4e-3 : dtype == KILN_F16 || tensor ? 1e-3 : 2e-6))
        return "WRONG";
    for (int way = 0; way < (dtype == KILN_F32 ? 2 : 4) && t.splits == 1; way++) {
        CHECK(cudaMemsetAsync(memory, 0, 4096, stream));
        if (dtype != KILN_F32)
            a_floats = way & 1, b_floats = way & 2;
        launch_any(p, way == 1, t, 1);
        a_floats = b_floats = false;
        if (result(count) != ahead)
            return way == 0 ? "DIFFERENT waves" : dtype == KILN_F32 ? "DIFFERENT constants" : "DIFFERENT conversions";
    }
    return NULL;
}

static bool sees_earlier_waves(int n, int kind)
{
    const int rounds = 40;
    shape p = {n, n, n, 1, false, false};
    kiln_cuda_tiling t = kiln_cuda_tiling_with(8, 8, 128, 1, extent_of(p, false));
    kiln_cuda_matrices s = matrices_of(p, a, b);
    float *x = c, *y = c + (1 << 20);
    kiln_cuda_call call = {};
    call.stream = stream;
    call.multiprocessors = blocks;
    std::vector<uint8_t> got[2];
    for (int apart = 0; apart < 2; apart++) {
        CHECK(cudaMemcpyAsync(x, a, (size_t)n * n * 4, cudaMemcpyDeviceToDevice, stream));
        CHECK(cudaMemsetAsync(memory, 0, 4096, stream));
        for (int r = 1; apart && r <= rounds; r++) {
            s.a = r % 2 ? x : y;
            kiln_cuda_tiled_launch(&call, &s, &t, KILN_F32, r % 2 ? y : x, partials);
        }
        int most = rounds, how = kind;
        void *arguments[] = {&s, &t.tiles, &x, &y, &memory, &most, &how};
        CHECK(cudaFuncSetAttribute((void *)chain, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)t.shared));
        if (!apart)
            CHECK(cudaLaunchCooperativeKernel((void *)chain, blocks, KILN_CUDA_TILE_THREADS, arguments, t.shared,
                                              stream));
        got[apart] = result((int64_t)n * n);
    }
    return got[0] == got[1];
}

/* ---- The table ---- */

static void set_up()
{
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    blocks = device.multiProcessorCount;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc(&a, ROOM * 4));
    CHECK(cudaMalloc(&b, ROOM * 4));
    CHECK(cudaMalloc(&c, ROOM * 4));
    CHECK(cudaMalloc(&partials, ROOM * 4));
    CHECK(cudaMalloc(&memory, 4096));
    host_a.resize(8 << 20);
    host_b.resize(8 << 20);
    for (size_t i = 0; i < host_a.size(); i++) { /* small enough for a long chain of products, and halves as well */
        host_a[i] = __bfloat162float(__float2bfloat16((float)(rand() % 2001 - 1000) / 4000));
        host_b[i] = __bfloat162float(__float2bfloat16((float)(rand() % 2001 - 1000) / 4000));
    }
    CHECK(cudaMemcpy(a, host_a.data(), host_a.size() * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(b, host_b.data(), host_b.size() * 4, cudaMemcpyHostToDevice));
    for (int which = 0; which < 2; which++) {
        const std::vector<float> &from = which ? host_b : host_a;
        std::vector<__half> f16(from.size());
        std::vector<__nv_bfloat16> bf16(from.size());
        for (size_t i = 0; i < from.size(); i++)
            f16[i] = __float2half(from[i]), bf16[i] = __float2bfloat16(from[i]);
        for (int type = 0; type < 2; type++) {
            CHECK(cudaMalloc(&halves[type][which], from.size() * 2));
            CHECK(cudaMemcpy(halves[type][which], type ? (void *)bf16.data() : (void *)f16.data(), from.size() * 2,
                             cudaMemcpyHostToDevice));
        }
    }
    dtype = KILN_F32;
    printf("%s, %d multiprocessors\n", device.name, blocks);
}

static bool same(const kiln_cuda_tiling &t, const kiln_cuda_tiling &u)
{
    return t.rows == u.rows && t.cols == u.cols && t.slices == u.slices && t.splits == u.splits;
}

/* A cell: all tiles of the product, and, where it helps, cut so that all blocks have one. */
static const char *say_cell(const shape &p, bool constant, const kiln_cuda_tiling &t, const kiln_cuda_tiling *chosen)
{
    const char *bad = verdict(p, t);
    printf(" %7.2f%c", wave_time(p, constant, t) - barrier_time(FENCE), chosen && same(t, *chosen) ? '*' : ' ');
    return bad;
}

static void say_row(const shape &p, bool constant, bool tf32)
{
    kiln_cuda_tiling chosen = {};
    kiln_cuda_sizes e = extent_of(p, tf32);
    bool taken = kiln_cuda_tiling_of(e, &chosen);
    char name[64];
    snprintf(name, sizeof name, "%lldx%lldx%lld", (long long)p.m, (long long)p.n, (long long)p.k);
    printf("%-13s%3lld %c%c%c", name, (long long)p.matrices, p.ta ? 't' : 'n', p.tb ? 't' : 'n', constant ? 'c' : ' ');
    const char *bad = NULL;
#define CELL(ROWS, COLS, SLICES)                                                                                       \
    {                                                                                                                  \
        kiln_cuda_tiling t = kiln_cuda_tiling_with(ROWS, COLS, SLICES, 1, e);                                          \
        const char *fault = say_cell(p, constant, t, taken ? &chosen : NULL);                                          \
        bad = bad ? bad : fault;                                                                                       \
        if (tf32 && t.tiles * 2 <= blocks && p.k >= 1024) {                                                            \
            int32_t splits = (int32_t)(blocks / t.tiles);                                                                \
            splits = (int32_t)((p.k + KILN_CUDA_TILE_SPLIT(p.k, splits) - 1) / KILN_CUDA_TILE_SPLIT(p.k, splits));               \
            t = kiln_cuda_tiling_with(ROWS, COLS, SLICES, splits, e);                                                    \
            printf(" /%d:", splits);                                                                                     \
            fault = say_cell(p, constant, t, taken ? &chosen : NULL);                                                  \
            bad = bad ? bad : fault;                                                                                   \
        }                                                                                                              \
    }
    if (tf32) {
        KILN_CUDA_TENSOR_TILES(CELL)
    } else {
        KILN_CUDA_TILES(CELL)
    }
    if (taken)
        printf(" %7.2f", graph_time(p, chosen));
    printf("%s%s\n", bad ? " " : "", bad ? bad : "");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    set_up();
    for (int kind = ACQUIRE; kind < BARRIERS; kind++)
        printf("barrier: %-32s %6.3f us, odd waves seen %s, even %s\n", barrier_names[kind], barrier_time(kind),
               sees_earlier_waves(37, kind) ? "yes" : "NO", sees_earlier_waves(36, kind) ? "yes" : "NO");
#define HEAD(ROWS, COLS, SLICES) printf(" %8s", #ROWS "x" #COLS "/" #SLICES);
    printf("%-20s", "in TF32");
    KILN_CUDA_TENSOR_TILES(HEAD)
    printf("    graph\n");
    for (size_t i = 0; i < 16; i++)
        say_row(tensor_shapes[i], true, true);
    for (const shape &p : tensor_shapes)
        say_row(p, false, true);
    for (kiln_dtype type : {KILN_F16, KILN_BF16}) {
        dtype = type;
        printf("%-20s", type == KILN_F16 ? "in f16" : "in bf16");
        KILN_CUDA_TENSOR_TILES(HEAD)
        printf("    graph\n");
        for (const shape &p : tensor_shapes)
            say_row(p, false, true);
        KILN_CUDA_TILES(HEAD)
        printf("\n");
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes && (type == KILN_BF16 || argc > 1); i++)
            say_row(shapes[i], false, false);
    }
    dtype = KILN_F32;
    if (argc > 1 && !strcmp(argv[1], "tensor"))
        return 0;
    printf("%-20s", "m x n x k, matrices");
    KILN_CUDA_TILES(HEAD)
    printf("    graph\n");
    for (size_t i = 0; i < 8; i++)
        say_row(shapes[i], true, false);
    for (const shape &p : shapes)
        say_row(p, false, false);
    return 0;
}
