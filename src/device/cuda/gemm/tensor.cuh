/* Tiles of products by tensor cores: of f32 with operands rounded to TF32, and of f16 and bf16. A warp makes 32 · 32
 * elements of a slice, of the largest tiles 64 · 32, for which it reads a quarter less from shared memory. All threads
 * together copy operands there, a few stages ahead, of which every slice takes its part along k. A panel lies there as in
 * global memory, line by line where k has stride 1, else k by k, so that whole lines of the cache are copied; packs of 16
 * bytes change places within 128 bytes such that the threads of a warp read from different banks. Floats that are to be
 * multiplied as halves are converted on the way to the registers: tensor cores take two neighbours along k then, where
 * those of TF32 are four apart. What lies beyond the end of k is 0; lines beyond the edge are never written, and only get
 * into elements that nobody looks at. */
#ifndef KILN_CUDA_TENSOR_CUH
#define KILN_CUDA_TENSOR_CUH

#include "device/cuda/gemm/async.cuh"
#include "device/cuda/gemm/panel.cuh"

/* Tensor cores look at the first eleven digits of a number and cut off the rest, which makes it smaller by half a unit
 * of the last on average. Multiplying by as much more makes up for it, over all numbers together; one that has no more
 * digits stays as it is, and so do infinities and NaNs. Rounding to nearest takes twice as many instructions. */
static __device__ __forceinline__ uint32_t kiln_cuda_tf32(uint32_t bits)
{
    return __float_as_uint(__fmul_rn(__uint_as_float(bits), 1 + 0x1.62e43p-12f));
}

/* Four blocks of eight rows of 16 bytes: a thread gets the (lane % 4)-th word of row lane / 4 of each, and has the
 * address of row lane % 8 of block lane / 8. TURNED: of halves, elements (lane % 4) * 2 and the next of column lane / 4. */
template <bool TURNED> static __device__ __forceinline__ void kiln_cuda_load_blocks(uint32_t (&x)[4], const char *row)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(row);
    if constexpr (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(at));
}

/* c += a · b, c 16 · 8: with two words along k of each line 16 halves or eight floats, with one eight halves. */
#define KILN_CUDA_MULTIPLY(As, shape, type)                                                                            \
    static __device__ __forceinline__ void kiln_cuda_multiply(float(&c)[4], const uint32_t(&a)[4],                     \
                                                              const uint32_t(&b)[2], As)                               \
    {                                                                                                                  \
        asm("mma.sync.aligned." shape ".row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "        \
            "{%8, %9}, {%0, %1, %2, %3};"                                                                              \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                           \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                       \
    }
#define KILN_CUDA_MULTIPLY_SHORT(As, type)                                                                             \
    static __device__ __forceinline__ void kiln_cuda_multiply(float(&c)[4], const uint32_t(&a)[2],                     \
                                                              const uint32_t(&b)[1], As)                               \
    {                                                                                                                  \
        asm("mma.sync.aligned.m16n8k8.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "            \
            "{%0, %1, %2, %3};"                                                                                        \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                           \
            : "r"(a[0]), "r"(a[1]), "r"(b[0]));                                                                        \
    }
KILN_CUDA_MULTIPLY(float, "m16n8k8", "tf32")
KILN_CUDA_MULTIPLY(kiln_f16, "m16n8k16", "f16")
KILN_CUDA_MULTIPLY(kiln_bf16, "m16n8k16", "bf16")
KILN_CUDA_MULTIPLY_SHORT(kiln_f16, "f16")
KILN_CUDA_MULTIPLY_SHORT(kiln_bf16, "bf16")

/* A and B: of the operands in memory; As: of what is multiplied, float for TF32. */
template <int ROWS, int COLS, int SLICES, typename A, typename B, typename As> struct kiln_cuda_tensor {
    enum {
        LONG = KILN_CUDA_TENSOR_LONG(SLICES), /* of a stage, along k … */
        CHUNK = LONG / SLICES,                /* … and of a slice's part */
        FIRST = ROWS * LONG * sizeof(A),      /* bytes of a's panel in a stage */
        SIZE = FIRST + COLS * LONG * sizeof(B),
        STAGES = KILN_CUDA_TENSOR_ROOM / SIZE,
        CREW = KILN_CUDA_TILE_THREADS / SLICES,
        WIDTH = COLS + KILN_CUDA_TENSOR_PAD, /* of a row of sums */
        BLOCKS = KILN_CUDA_TENSOR_BLOCKS(ROWS, COLS, SLICES), /* of 32 · 32 elements, one below the other: a warp's */
        ACROSS = COLS / 32,                                   /* warps side by side */
        HALVES = sizeof(As) == 2,
        STEP = HALVES && CHUNK % 16 == 0 ? 16 : 8, /* along k, multiplied at a time … */
        WORDS = HALVES ? STEP / 8 : 2,             /* … and of a line in registers */
        BUFFERS = BLOCKS == 1 && CHUNK > STEP ? 2 : 1 /* of operands in registers, as far as there is room for two */
    };
    static_assert(CREW == ROWS / (32 * BLOCKS) * ACROSS * 32, "every warp has its elements");
    static_assert(BLOCKS == 1 || SLICES == 2, "the sums of one slice are added to those of the other");
    static_assert(HALVES ? sizeof(A) == 4 || sizeof(A) == sizeof(As) : sizeof(A) == 4 && sizeof(B) == 4, "types agree");

    /* How a panel lies in shared memory. */
    template <typename T, int LINES, bool ALONG> struct layout {
        enum {
            PACK = 16 / sizeof(T), /* elements */
            PITCH = (ALONG ? (int)LONG : LINES) * sizeof(T), /* bytes of a row of packs: of a line, or of a k */
            HEIGHT = ALONG ? LINES : (int)LONG               /* rows */
        };

        /* How many packs those of a row are moved, by exclusive or: such that eight threads that read a pack each, or 16
         * that read half of one, meet 32 different banks. */
        static __device__ __forceinline__ int turn_of(int row)
        {
            if (sizeof(T) == 2)
                return PITCH == 64 ? row >> 1 & 3 : row & 7;
            return HALVES ? ((ALONG ? row : row >> 1) & 3) * 2 : ALONG ? row & 7 : (row & 3) * 2;
        }
    };

    /* ---- Copying ---- */

    /* A thread's share of a panel: a few packs of each stage. */
    template <typename T, int LINES, bool ALONG> struct copier : layout<T, LINES, ALONG> {
        typedef layout<T, LINES, ALONG> lies;
        enum {
            PACKS = lies::PITCH / 16,               /* side by side */
            APART = KILN_CUDA_TILE_THREADS / PACKS, /* rows between two of a thread's own */
            PASSES = (lies::HEIGHT + APART - 1) / APART
        };
        static_assert(APART % 8 == 0, "all packs of a thread are moved alike");
        const T *from;
        int64_t next, pass; /* to the next stage, to the next of its own */
        int line, k, lines, element, row, to;
        bool vector, whole; /* by 16 bytes, with no look at the edge */

        __device__ __forceinline__ copier(const kiln_cuda_panel<T> &p)
        {
            const int thread = (int)(threadIdx.x % KILN_CUDA_TILE_THREADS); /* which tells compilers that it is below */
            const int at = thread % PACKS;
            row = thread / PACKS;
            line = ALONG ? row : at * lies::PACK;
            k = ALONG ? at * lies::PACK : row;
            from = p.from + line * p.line + k * p.step;
            next = LONG * p.step;
            pass = APART * (ALONG ? p.line : p.step);
            lines = p.lines, vector = p.vector, element = (int)(ALONG ? p.step : p.line);
            whole = vector && (ALONG || line + lies::PACK <= lines);
            to = row * lies::PITCH + (at ^ lies::turn_of(row)) * 16;
        }

        /* One by one, the first `there` of them; halves are too short for copies that are not waited for. */
        __device__ __forceinline__ void copy_apart(char *target, const T *source, int there) const
        {
            if constexpr (sizeof(T) == 4) {
                for (int e = 0; e < 4; e++)
                    kiln_cuda_copy_4((float *)target + e, source + e * element, e < there ? 4 : 0);
            } else {
                uint32_t words[4] = {};
#pragma unroll
                for (int e = 0; e < 8; e++)
                    if (e < there)
                        words[e / 2] |= (uint32_t)source[e * element].bits << e % 2 * 16;
                *(uint4 *)target = uint4{words[0], words[1], words[2], words[3]};
            }
        }

        /* Begins to copy a stage, of which `left` elements along k are there, FULL: all, and goes on to the next. */
        template <bool FULL> __device__ __forceinline__ void copy(char *panel, int left)
        {
#pragma unroll
            for (int i = 0; i < PASSES; i++) {
                const T *source = from + i * pass;
                char *target = panel + to + i * APART * lies::PITCH;
                if (line + (ALONG ? i * APART : 0) >= lines ||
                    (lies::HEIGHT % APART != 0 && row + i * APART >= lies::HEIGHT))
                    continue;
                const int there = FULL && ALONG ? (int)lies::PACK
                                  : ALONG       ? left - k
                                                : (FULL || k + i * APART < left ? lines - line : 0);
                if (FULL && whole)
                    kiln_cuda_copy_16(target, source, 16);
                else if (vector)
                    kiln_cuda_copy_16(target, source,
                                      there >= lies::PACK ? 16 : there > 0 ? there * (int)sizeof(T) : 0);
                else
                    copy_apart(target, source, there);
            }
            from += next;
        }
    };

    /* ---- Multiplying ---- */

    /* How a warp reads the lines from `line` on of a panel, a multiple of 32, at the k of its slice, from `first` on.
     * Where in a panel is a sum of what a thread knows and of what the compiler knows. */
    template <typename T, int LINES, bool ALONG> struct reader : layout<T, LINES, ALONG> {
        typedef layout<T, LINES, ALONG> lies;
        enum {
            RAW = sizeof(T) == 4 ? 2 : 1,        /* words of a line for eight k */
            EIGHTS = ALONG || sizeof(T) == 2     /* which lines a thread has: see line_of */
        };
        int at, turn;

        __device__ __forceinline__ reader(int line, int first, uint32_t lane)
        {
            const int eighth = (int)(lane % 8), quarter = (int)(lane % 4), eight = (int)(lane / 8), four = (int)(lane / 4);
            turn = ALONG ? first / (int)lies::PACK : 0;
            if constexpr (sizeof(T) == 2 && ALONG) {
                at = (line + (int)lane) * lies::PITCH;
                turn ^= lies::turn_of((int)lane);
            } else if constexpr (sizeof(T) == 2) {
                at = (first + eighth) * lies::PITCH;
                turn = (line / 8 + eight) ^ lies::turn_of(eighth);
            } else if constexpr (HALVES && ALONG) {
                at = (line + four) * lies::PITCH + quarter * 8;
                turn ^= lies::turn_of(four);
            } else if constexpr (HALVES) {
                at = (first + quarter * 2) * lies::PITCH + line * 4 + (four ^ lies::turn_of(quarter * 2)) * 16;
            } else if constexpr (ALONG) {
                at = (line + eight / 2 * 8 + eighth) * lies::PITCH;
                turn ^= lies::turn_of(eighth) ^ eight % 2;
            } else {
                at = (first + quarter) * lies::PITCH + line * 4 + (four ^ lies::turn_of(quarter)) * 16;
            }
        }

        /* Eight k from k of 32 lines, the block-th of the warp's, as they lie. Word w of the i-th line, the one that
         * line_of tells, is of k + lane % 4 and as much plus four in TF32, else of k + lane % 4 * 2 and the next: both in
         * one word, or one in each. */
        __device__ __forceinline__ void load(const char *panel, int block, int k, uint32_t (&x)[RAW][4]) const
        {
            if constexpr (sizeof(T) == 2 && ALONG) {
                kiln_cuda_load_blocks<false>(x[0], panel + at + (k / 8 ^ turn) * 16 + block * 32 * lies::PITCH);
            } else if constexpr (sizeof(T) == 2) {
                kiln_cuda_load_blocks<true>(x[0], panel + at + k * lies::PITCH + (turn ^ block * 4) * 16);
            } else if constexpr (HALVES && ALONG) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint2 v = *(const uint2 *)(panel + at + (k / 4 ^ turn) * 16 + (block * 32 + i * 8) * lies::PITCH);
                    x[0][i] = v.x, x[1][i] = v.y;
                }
            } else if constexpr (ALONG) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    uint32_t v[4];
                    kiln_cuda_load_blocks<false>(v, panel + at + (k / 4 ^ turn) * 16 +
                                                        (block * 32 + half * 16) * lies::PITCH);
                    x[0][half * 2] = v[0], x[1][half * 2] = v[1];
                    x[0][half * 2 + 1] = v[2], x[1][half * 2 + 1] = v[3];
                }
            } else {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const uint4 v =
                        *(const uint4 *)(panel + at + (k + half * (HALVES ? 1 : 4)) * lies::PITCH + block * 128);
                    x[half][0] = v.x, x[half][1] = v.y, x[half][2] = v.z, x[half][3] = v.w;
                }
            }
        }

        /* Word w of the i-th line as tensor cores take it, of what was loaded for STEP k. */
        static __device__ __forceinline__ uint32_t word(const uint32_t (&x)[STEP / 8][RAW][4], int w, int i)
        {
            if constexpr (!HALVES)
                return kiln_cuda_tf32(x[0][w][i]);
            else if constexpr (sizeof(T) == 2)
                return x[w][0][i];
            else
                return kiln_cuda_pair(__uint_as_float(x[w][0][i]), __uint_as_float(x[w][1][i]), As{});
        }
    };

    /* The i-th line that the threads with lane / 4 == at have, and the i-th pair of columns, those with lane % 4 * 2 == at
     * or one less. */
    template <bool EIGHTS> static __device__ __forceinline__ int line_of(int at, int i)
    {
        return EIGHTS ? i * 8 + at : at * 4 + i;
    }

    /* With two buffers what comes next is loaded before what is there is multiplied. */
    template <typename Rows, typename Cols>
    static __device__ __forceinline__ void multiply(const Rows &rows, const Cols &cols, const char *stage,
                                                    float (&sum)[BLOCKS][2][4][4])
    {
        uint32_t a[BUFFERS][BLOCKS][STEP / 8][Rows::RAW][4], b[BUFFERS][STEP / 8][Cols::RAW][4];
        auto fetch = [&](int k) {
            const int to = k / STEP % BUFFERS;
#pragma unroll
            for (int e = 0; e < STEP / 8; e++) {
#pragma unroll
                for (int block = 0; block < BLOCKS; block++)
                    rows.load(stage, block, k + e * 8, a[to][block][e]);
                cols.load(stage + FIRST, 0, k + e * 8, b[to][e]);
            }
        };
        if (BUFFERS == 2)
            fetch(0);
#pragma unroll
        for (int k = 0; k < CHUNK; k += STEP) {
            const int now = k / STEP % BUFFERS, next = k + (BUFFERS - 1) * STEP;
            if (next < CHUNK)
                fetch(next);
            uint32_t y[4][WORDS];
#pragma unroll
            for (int i = 0; i < 4 * WORDS; i++)
                y[i / WORDS][i % WORDS] = Cols::word(b[now], i % WORDS, i / WORDS);
#pragma unroll
            for (int block = 0; block < BLOCKS; block++) {
                uint32_t x[2][2 * WORDS];
#pragma unroll
                for (int i = 0; i < 4 * WORDS; i++)
                    x[i / (2 * WORDS)][i % (2 * WORDS)] =
                        Rows::word(a[now][block], i % (2 * WORDS) / 2, i / (2 * WORDS) * 2 + i % 2);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    kiln_cuda_multiply(sum[block][i / 4][i % 4], x[i / 4], y[i % 4], As{});
            }
        }
    }

    /* ---- Sums ---- */

    template <bool ADD> static __device__ __forceinline__ void put_two(float *to, float x, float y)
    {
        const float2 there = ADD ? *(const float2 *)to : float2{0, 0};
        *(float2 *)to = ADD ? float2{x + there.x, y + there.y} : float2{x, y};
    }

    /* A warp's, to where they are read from; ADD: they are added to what is there. */
    template <bool A_EIGHTS, bool B_EIGHTS, bool ADD>
    static __device__ __forceinline__ void put(float *to, uint32_t lane, const float (&sum)[BLOCKS][2][4][4])
    {
        const int col = (int)(lane % 4) * 2;
#pragma unroll
        for (int i = 0; i < 4 * BLOCKS; i++) {
            float *row = to + (i / 4 * 32 + line_of<A_EIGHTS>((int)(lane / 4), i % 4)) * WIDTH;
            const float(&x)[4][4] = sum[i / 4][i % 4 / 2];
            const int at = i % 2 * 2;
#pragma unroll
            for (int j = 0; j < 4; j++)
                if constexpr (B_EIGHTS)
                    put_two<ADD>(row + line_of<true>(col, j), x[j][at], x[j][at + 1]);
                else
                    put_two<ADD>(row + line_of<false>(col + j / 2, j % 2 * 2), x[j % 2 * 2][at + j / 2],
                                 x[j % 2 * 2 + 1][at + j / 2]);
        }
    }

    /* Each slice has a place for its sums, or, where a warp has two blocks of them, the first slice adds its own to the
     * second's. */
    template <bool A_EIGHTS, bool B_EIGHTS>
    static __device__ __forceinline__ void put_all(float *memory, int number, int row, int col, uint32_t lane,
                                                   const float (&sum)[BLOCKS][2][4][4])
    {
        float *to = memory + row * WIDTH + col;
        __syncthreads();
        if constexpr (BLOCKS == 1) {
            put<A_EIGHTS, B_EIGHTS, false>(to + number * (ROWS * WIDTH), lane, sum);
        } else {
            if (number == 1)
                put<A_EIGHTS, B_EIGHTS, false>(to, lane, sum);
            __syncthreads();
            if (number == 0)
                put<A_EIGHTS, B_EIGHTS, true>(to, lane, sum);
        }
    }

    /* The sums take the place of the panels. While a thread multiplies a stage others may be at it too, but none at the
     * one before any more: what comes next goes there. */
    template <bool A_ALONG, bool B_ALONG>
    static __device__ __forceinline__ void make(const kiln_cuda_panel<A> &a, const kiln_cuda_panel<B> &b, int64_t k,
                                                float *sums)
    {
        typedef reader<A, ROWS, A_ALONG> a_reader;
        typedef reader<B, COLS, B_ALONG> b_reader;
        const uint32_t warp = threadIdx.x % CREW / 32, lane = threadIdx.x % 32;
        const int number = (int)(threadIdx.x / CREW), row = (int)(warp / ACROSS) * (32 * BLOCKS);
        const int col = (int)(warp % ACROSS) * 32;
        char *memory = (char *)sums;
        copier<A, ROWS, A_ALONG> first(a);
        copier<B, COLS, B_ALONG> second(b);
        const a_reader rows(row, number * CHUNK, lane);
        const b_reader cols(col, number * CHUNK, lane);
        float sum[BLOCKS][2][4][4] = {};
        int left = (int)k, to = 0, from = 0; /* to be copied, and the stages that are next */
        auto begin = [&] {
            if (left >= LONG) {
                first.template copy<true>(memory + to, left);
                second.template copy<true>(memory + to + FIRST, left);
            } else if (left > 0) {
                first.template copy<false>(memory + to, left);
                second.template copy<false>(memory + to + FIRST, left);
            }
            kiln_cuda_copies_end();
            left -= LONG;
            to = to == (STAGES - 1) * SIZE ? 0 : to + SIZE;
        };
#pragma unroll 1
        for (int i = 0; i < STAGES - 1; i++)
            begin();
#pragma unroll 1
        for (int ready = (int)k; ready > 0; ready -= LONG) {
            kiln_cuda_copies_wait<STAGES - 2>();
            __syncthreads();
            begin();
            multiply(rows, cols, memory + from, sum);
            from = from == (STAGES - 1) * SIZE ? 0 : from + SIZE;
        }
        put_all<a_reader::EIGHTS, b_reader::EIGHTS>(sums, number, row, col, lane, sum);
    }

    /* How many sums of each element there are then. */
    static __device__ __forceinline__ int sums_of(int64_t k)
    {
        if (BLOCKS > 1)
            return 1;
        const int64_t slices = (k + CHUNK - 1) / CHUNK;
        return (int)(slices < SLICES ? slices : SLICES);
    }
};

#endif
