/* Sorting and the k first of an order. Elements become unsigned keys in the same order, so one sort serves all dtypes;
 * a descending order inverts the keys. Equal elements keep their order. */
#include "device/cuda/kernels/sort.cuh"
#include "device/cuda/kernels/radix.cuh"

enum {
    CREW = 1024,       /* threads that choose from a row */
    SHORT_ROW = 65536, /* one block can choose from it */
    MANY_ROWS = 64,    /* these keep enough blocks busy, however long they are */
    MOST_CHOSEN = 2048
};

/* Rows along a dim, numbered by the dims before and after it. */
typedef struct sorting {
    kiln_cuda_extent x;
    int64_t rows, keep;
    bool flip;
    int bits;
    bool wide;
    bool chosen; /* the first `keep` of each row are chosen before they are sorted */
} sorting;

static sorting plan_sort(const kiln_cuda_call *c, int64_t dim, bool flip)
{
    sorting s = {};
    int64_t size = (int64_t)kiln_dtype_size(c->in[0].dtype);
    s.x = kiln_cuda_extent_at(&c->in[0], dim);
    s.rows = s.x.before * s.x.after;
    s.keep = kiln_cuda_extent_at(&c->out[0], dim).at;
    s.flip = flip;
    s.bits = (int)(8 * size);
    s.wide = size == 8;
    s.chosen = s.x.at > MOST_CHOSEN && s.keep <= MOST_CHOSEN && s.keep <= s.x.at / 2 &&
               (s.x.at <= SHORT_ROW || s.rows >= MANY_ROWS);
    return s;
}

/* What is sorted: whole rows, or what was chosen of them. */
static kiln_cuda_pairs pairs_of(const sorting *s, void *memory)
{
    return kiln_cuda_pairs_at(memory, s->rows, s->chosen ? s->keep : s->x.at, s->wide);
}

/* Where element 0 of a row lies, for rows of n elements. */
static inline __device__ int64_t row_begin(const kiln_cuda_extent &x, int64_t row, int64_t n)
{
    int64_t o = row / x.after;
    return o * n * x.after + (row - o * x.after);
}

template <typename Key>
static __device__ typename Key::key key_at(const typename Key::element *x, int64_t at, bool flip)
{
    typedef typename Key::key K;
    const K all = (K) ~(K)0 >> (8 * sizeof(K) - Key::BITS);
    return flip ? (K)(all ^ Key::of(x[at])) : (K)Key::of(x[at]);
}

template <typename Key>
static __global__ void load_rows(const typename Key::element *__restrict__ x, typename Key::key *__restrict__ keys,
                                 uint32_t *__restrict__ places, sorting s)
{
    KILN_CUDA_EACH(p, s.rows * s.x.at)
    {
        int64_t row = p / s.x.at, i = p - row * s.x.at;
        keys[p] = key_at<Key>(x, row_begin(s.x, row, s.x.at) + i * s.x.after, s.flip);
        places[p] = (uint32_t)i;
    }
}

/* ---- Choosing ---- */

/* The digit of a histogram that the wanted element (counted from 1) has; what is wanted among those of that digit. */
static __device__ void find_digit(const uint32_t *counts, uint32_t *digit, uint32_t *wanted)
{
    uint32_t left = *wanted, d = 0;
    while (counts[d] < left)
        left -= counts[d++];
    *digit = d;
    *wanted = left;
}

/* The first `keep` of each row, in any order: digit by digit from the highest it is found which key the last of them
 * has, then those before it are taken, and of those equal to it as many as are missing, lowest index first. */
template <typename Key>
static __global__ void __launch_bounds__(CREW)
    choose_rows(const typename Key::element *__restrict__ x, typename Key::key *__restrict__ keys,
                uint32_t *__restrict__ places, sorting s)
{
    typedef typename Key::key K;
    __shared__ uint32_t counts[256], digit, wanted, taken, equal[CREW / 32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
        const int64_t first = row_begin(s.x, row, s.x.at), n = s.x.at;
        K bound = 0; /* the digits known so far */
        if (threadIdx.x == 0) {
            wanted = (uint32_t)s.keep;
            taken = 0;
        }
        for (int shift = Key::BITS - 8; shift >= 0; shift -= 8) {
            if (threadIdx.x < 256)
                counts[threadIdx.x] = 0;
            __syncthreads();
            for (int64_t i = threadIdx.x; i < n; i += CREW) {
                K key = key_at<Key>(x, first + i * s.x.after, s.flip) >> shift;
                if (key >> 8 == bound)
                    atomicAdd(&counts[(unsigned)key & 255], 1u);
            }
            __syncthreads();
            if (threadIdx.x == 0)
                find_digit(counts, &digit, &wanted);
            __syncthreads();
            bound = (K)(bound << 8) | digit;
        }
        uint32_t before = 0; /* equal ones in the spans before */
        for (int64_t start = 0; start < n; start += CREW) {
            int64_t i = start + threadIdx.x;
            K key = i < n ? key_at<Key>(x, first + i * s.x.after, s.flip) : 0;
            unsigned alike = __ballot_sync(0xffffffffu, i < n && key == bound);
            if (lane == 0)
                equal[warp] = (uint32_t)__popc(alike);
            __syncthreads();
            uint32_t rank = before + (uint32_t)__popc(alike & ((1u << lane) - 1)), all = 0;
            for (int w = 0; w < CREW / 32; w++) {
                rank += w < warp ? equal[w] : 0;
                all += equal[w];
            }
            if (i < n && (key < bound || (key == bound && rank < wanted))) {
                uint32_t to = atomicAdd(&taken, 1u); /* their order is made by the sort */
                keys[row * s.keep + to] = key;
                places[row * s.keep + to] = (uint32_t)i;
            }
            before += all;
            __syncthreads();
        }
        __syncthreads();
    }
}

/* ---- Results ---- */

template <typename W>
static __global__ void pick_sorted(const W *__restrict__ x, const uint32_t *__restrict__ places, int64_t length,
                                   W *__restrict__ values, int64_t *__restrict__ indices, sorting s,
                                   const int32_t *stop)
{
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(p, s.rows * s.keep)
    {
        int64_t rest = p / s.x.after, column = p - rest * s.x.after, o = rest / s.keep, i = rest - o * s.keep;
        int64_t row = o * s.x.after + column;
        uint32_t place = places[row * length + i];
        values[p] = x[row_begin(s.x, row, s.x.at) + place * s.x.after];
        indices[p] = place;
    }
}

template <typename W>
static void launch_pick(const kiln_cuda_call *c, const sorting &s, const uint32_t *places, int64_t length)
{
    pick_sorted<W><<<kiln_cuda_grid(s.rows * s.keep, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(
        (const W *)c->in[0].data, places, length, (W *)c->out[0].data, (int64_t *)c->out[1].data, s, c->stop);
}

template <typename Key> static void launch_load(const kiln_cuda_call *c, const sorting &s, const kiln_cuda_pairs &p)
{
    typedef typename Key::element E;
    typedef typename Key::key K;
    const E *x = (const E *)c->in[0].data;
    K *keys = (K *)p.keys[0];
    if (s.chosen)
        choose_rows<Key><<<kiln_cuda_grid(s.rows, 1), CREW, 0, c->stream>>>(x, keys, p.places[0], s);
    else
        load_rows<Key><<<kiln_cuda_grid(s.rows * s.x.at, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(
            x, keys, p.places[0], s);
}

static bool run_sort(const kiln_cuda_call *c, const sorting &s)
{
    if (s.rows * s.keep == 0)
        return true;
    if (s.x.at >= INT32_MAX)
        return kiln_fail(KILN_E_UNSUPPORTED, c->name, "cuda's kernel does not sort rows of %lld elements",
                         (long long)s.x.at);
    kiln_cuda_pairs p = pairs_of(&s, c->workspace);
    switch (c->in[0].dtype) {
    case KILN_I32: launch_load<kiln_cuda_key_i32>(c, s, p); break;
    case KILN_I64: launch_load<kiln_cuda_key_i64>(c, s, p); break;
    case KILN_F16: launch_load<kiln_cuda_key_half<0x7c00>>(c, s, p); break;
    case KILN_BF16: launch_load<kiln_cuda_key_half<0x7f80>>(c, s, p); break;
    case KILN_F32: launch_load<kiln_cuda_key_f32>(c, s, p); break;
    case KILN_F64: launch_load<kiln_cuda_key_f64>(c, s, p); break;
    default: launch_load<kiln_cuda_key_u8>(c, s, p); break;
    }
    int sorted = kiln_cuda_sort_pairs(c, &p, s.bits);
    KILN_CUDA_BY_SIZE(s.bits / 8, launch_pick, c, s, p.places[sorted], p.n);
    return kiln_cuda_launched(c);
}

static bool sort(const kiln_cuda_call *c)
{
    return run_sort(c, plan_sort(c, c->ints[0], c->ints[1] != 0));
}

static bool topk(const kiln_cuda_call *c)
{
    return run_sort(c, plan_sort(c, c->ints[1], c->ints[2] != 0));
}

static size_t sort_workspace(const kiln_cuda_call *c)
{
    sorting s = plan_sort(c, c->ints[0], false);
    return s.rows > 0 && s.keep > 0 ? pairs_of(&s, NULL).bytes : 0;
}

static size_t topk_workspace(const kiln_cuda_call *c)
{
    sorting s = plan_sort(c, c->ints[1], false);
    return s.rows > 0 && s.keep > 0 ? pairs_of(&s, NULL).bytes : 0;
}

#define FOUND   (KILN_CUDA_T(KILN_BOOL) | KILN_CUDA_INTS | KILN_CUDA_T(KILN_F32) | KILN_CUDA_T(KILN_F64))
#define SCANNED (KILN_CUDA_T(KILN_F32) | KILN_CUDA_T(KILN_F64) | KILN_CUDA_T(KILN_I64))

extern "C" const kiln_cuda_kernel kiln_cuda_kernels_sort[] = {
    {"sort", KILN_CUDA_ALL, sort, sort_workspace},
    {"topk", KILN_CUDA_ALL, topk, topk_workspace},
    {"argmax", FOUND, kiln_cuda_argmax, kiln_cuda_extreme_workspace},
    {"argmin", FOUND, kiln_cuda_argmin, kiln_cuda_extreme_workspace},
    {"cumsum", SCANNED, kiln_cuda_cumsum, kiln_cuda_scan_workspace},
    {"cumprod", SCANNED, kiln_cuda_cumprod, kiln_cuda_scan_workspace},
    {NULL, 0, NULL, NULL},
};
