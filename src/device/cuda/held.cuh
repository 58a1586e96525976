/* Rows held in registers, so that memory is read once however often a row is looked at, and so that a multiprocessor
 * has many rows on their way. A team of threads shares a row: neighbours of a warp, or a block. Which elements are
 * whose, and with that the order of a row's sums, follows from its length and type alone: not from where it lies, nor
 * from how many rows there are. Compiled ahead and as text with generated kernels. */
#ifndef KILN_CUDA_HELD_CUH
#define KILN_CUDA_HELD_CUH

#include "device/cuda/reduce.cuh"

/* What elements are computed as. */
template <typename T> struct kiln_element {
    typedef T real;

    static __device__ __forceinline__ real of(T x)
    {
        return x;
    }

    static __device__ __forceinline__ T to(real x)
    {
        return x;
    }
};

/* ---- Which elements are whose ---- */

/* Two packs of 16 bytes a thread are what the memory needs to be kept busy; a warp takes up to four times as much
 * before a row goes to a block, and more registers than that would leave too few threads. */
template <typename T> struct kiln_holding {
    static constexpr int pack = kiln_wide<T>, least = 2 * pack, most = sizeof(T) == 8 ? 16 : 32;
    static constexpr int threads = sizeof(T) == 8 ? 512 : 1024; /* of a block, at most */

    /* Longer rows are looked at in parts, once for every look, by as many threads. */
    static constexpr int64_t longest = (int64_t)threads * most, part = longest / 2;

    /* Elements of a thread. */
    static __host__ __device__ constexpr int each(int64_t n)
    {
        return n <= 32 * least ? least : n <= 64 * least ? 2 * least : most;
    }

    /* Threads of a team: a power of two up to a warp, then whole warps. */
    static __host__ __device__ constexpr int team(int64_t n)
    {
        if (n > 32 * most)
            return n > longest ? threads : (int)((n + 32 * most - 1) / (32 * most)) * 32;
        int size = 1;
        while (size * each(n) < n)
            size *= 2;
        return size;
    }

    /* Neighbours that one thread has: a pack where rows are made of whole ones. */
    static __host__ __device__ constexpr bool packs(int64_t n)
    {
        return n % pack == 0;
    }
};

/* How many of `left` elements of a long row are in the next part. */
template <typename T> static __device__ __forceinline__ int kiln_part(int64_t left)
{
    return (int)(left < kiln_holding<T>::part ? left : kiln_holding<T>::part);
}

/* The teams of a block; all its threads take part in all that they do. BLOCK: a team may be the block, else it is a
 * warp at most. */
template <bool BLOCK> struct kiln_crew {
    int size, rank;  /* threads of a team, and which of them this is */
    int slot, teams; /* which of the block's teams this is, and how many there are */

    __device__ __forceinline__ explicit kiln_crew(int size) : size(size), rank((int)threadIdx.x), slot(0), teams(1)
    {
        if (!is_block()) {
            int shift = __ffs(size) - 1;
            rank &= size - 1;
            slot = (int)threadIdx.x >> shift;
            teams = (int)blockDim.x >> shift;
        }
    }

    __device__ __forceinline__ bool is_block() const
    {
        return BLOCK && size > 32;
    }

    /* Places in a row are cheaper to compute again than to keep in registers; without this the compiler keeps them. */
    __device__ __forceinline__ void forget()
    {
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(rank));
        if (!is_block())
            rank &= size - 1;
    }

    /* What the warps of the block have, in turn to the lanes of each. */
    template <typename X> __device__ __forceinline__ X exchange(X x, X *parts, X nothing) const
    {
        int lane = (int)threadIdx.x % 32;
        if (lane == 0)
            parts[threadIdx.x / 32] = x;
        __syncthreads();
        return lane < size / 32 ? parts[lane] : nothing;
    }

    /* Over the team; all its threads get the same bits. `parts` is the block's, an element a warp. Two calls in turn
     * must have two of them: what one of them holds has been read when the other's barrier is passed. */
    template <typename X> __device__ __forceinline__ X sum(X x, X *parts) const
    {
        if (is_block())
            return kiln_lanes_sum<32>(exchange(kiln_lanes_sum<32>(x), parts, (X)0));
        for (int apart = size / 2; apart > 0; apart /= 2)
            x += __shfl_xor_sync(0xffffffffu, x, apart);
        return x;
    }

    template <typename X> __device__ __forceinline__ X max(X x, X *parts) const
    {
        if (is_block())
            return kiln_lanes_max<32>(exchange(kiln_lanes_max<32>(x), parts, -kiln_infinity(X())));
        for (int apart = size / 2; apart > 0; apart /= 2)
            x = kiln_larger(x, __shfl_xor_sync(0xffffffffu, x, apart));
        return x;
    }
};

/* ---- Holding ---- */

/* Loads in place of `v` where place < left: as one predicated instruction, so that many are on their way and neither
 * branches nor predicates are kept. They are not taken to never change: other blocks may have written them in the same
 * launch. ONCE: nobody asks for them again, so the first level cache keeps what is asked for (weights). */
#define KILN_LOAD_IF(how)                                                                                              \
    asm volatile("{\n\t"                                                                                               \
                 ".reg .pred there;\n\t"                                                                               \
                 "setp.lt.s32 there, %5, %6;\n\t"                                                                      \
                 "@there ld.global" how ".v4.b32 {%0, %1, %2, %3}, [%4];\n\t"                                          \
                 "}"                                                                                                   \
                 : "+r"(v[0]), "+r"(v[1]), "+r"(v[2]), "+r"(v[3])                                                      \
                 : "l"(from), "r"(place), "r"(left)                                                                    \
                 : "memory")
template <bool ONCE>
static __device__ __forceinline__ void kiln_load_if(const void *from, int place, int left, unsigned (&v)[4])
{
    if (ONCE)
        KILN_LOAD_IF(".L1::no_allocate");
    else
        KILN_LOAD_IF("");
}
#undef KILN_LOAD_IF

#define KILN_LOAD_IF(type, bits, letter)                                                                               \
    template <bool>                                                                                                    \
    static __device__ __forceinline__ void kiln_load_if(const void *from, int place, int left, type &v)                \
    {                                                                                                                  \
        asm volatile("{\n\t"                                                                                           \
                     ".reg .pred there;\n\t"                                                                           \
                     "setp.lt.s32 there, %2, %3;\n\t"                                                                  \
                     "@there ld.global." bits " %0, [%1];\n\t"                                                         \
                     "}"                                                                                               \
                     : "+" letter(v)                                                                                   \
                     : "l"(from), "r"(place), "r"(left)                                                                \
                     : "memory");                                                                                      \
    }
KILN_LOAD_IF(unsigned short, "b16", "h")
KILN_LOAD_IF(unsigned, "b32", "r")
KILN_LOAD_IF(unsigned long long, "b64", "l")
#undef KILN_LOAD_IF

/* What N elements are moved as. */
template <int BYTES> struct kiln_moved;
template <> struct kiln_moved<2> {
    typedef unsigned short type;
};
template <> struct kiln_moved<4> {
    typedef unsigned type;
};
template <> struct kiln_moved<8> {
    typedef unsigned long long type;
};
template <> struct kiln_moved<16> {
    typedef unsigned type[4];
};

/* E elements of a row: E / V times V neighbours, those of a team's threads side by side. Rows that leave a thread fewer
 * than the most belong to no block. */
template <typename T, int V, int E, bool BLOCK = E == kiln_holding<T>::most> struct kiln_held {
    typedef kiln_crew<BLOCK> crew;
    typedef typename kiln_element<T>::real real;
    static constexpr int each = E;
    real at[E];

    /* Of element i of this thread, in the row. */
    static __device__ __forceinline__ int place(const crew &c, int i)
    {
        return (i / V * c.size + c.rank) * V + i % V;
    }

    /* This thread's elements from `first` on, of a row with `left`, N at a time; `rest` beyond. */
    template <int N, bool ONCE, int COUNT>
    static __device__ __forceinline__ void fetch(T (&to)[COUNT], int first, const T *from, const crew &c, int left,
                                                 T rest)
    {
#pragma unroll
        for (int k = 0; k < COUNT; k += N) {
            union {
                typename kiln_moved<N * (int)sizeof(T)>::type words;
                T at[N];
            } u;
#pragma unroll
            for (int i = 0; i < N; i++)
                u.at[i] = rest;
            kiln_load_if<ONCE>(from + place(c, first + k), place(c, first + k), left, u.words);
#pragma unroll
            for (int i = 0; i < N; i++)
                to[k + i] = u.at[i];
        }
    }

    /* `aligned`: to 16 bytes. */
    __device__ __forceinline__ void load(const T *from, const crew &c, int left, bool aligned, real rest)
    {
        T raw[E];
        if (V == 1 || aligned)
            fetch<V, true>(raw, 0, from, c, left, kiln_element<T>::to(rest));
        else
            fetch<1, true>(raw, 0, from, c, left, kiln_element<T>::to(rest));
#pragma unroll
        for (int i = 0; i < E; i++)
            at[i] = kiln_element<T>::of(raw[i]);
    }

    /* Elements first … first + COUNT - 1. */
    template <int N, int COUNT> __device__ __forceinline__ void put(T *to, int first, const crew &c, int left) const
    {
#pragma unroll
        for (int k = first; k < first + COUNT; k += N) {
            kiln_pack<T, N> v;
#pragma unroll
            for (int i = 0; i < N; i++)
                v.at[i] = kiln_element<T>::to(at[k + i]);
            if (place(c, k) < left)
                kiln_store<N>(to + place(c, k), v);
        }
    }

    __device__ __forceinline__ void store(T *to, const crew &c, int left, bool aligned) const
    {
        if (V == 1 || aligned)
            put<V, E>(to, 0, c, left);
        else
            put<1, E>(to, 0, c, left);
    }

    __device__ __forceinline__ real largest() const
    {
        real top = at[0];
#pragma unroll
        for (int i = 1; i < E; i++)
            top = kiln_larger(top, at[i]);
        return top;
    }

    /* Four at a time in their own type, these in double. */
    __device__ __forceinline__ double sum() const
    {
        double all = 0;
#pragma unroll
        for (int i = 0; i < E; i += 4)
            all += (double)(at[i] + at[i + 1] + at[i + 2] + at[i + 3]);
        return all;
    }

    __device__ __forceinline__ double squares() const
    {
        double all = 0;
#pragma unroll
        for (int i = 0; i < E; i += 4)
            all += (double)(at[i] * at[i] + at[i + 1] * at[i + 1] + at[i + 2] * at[i + 2] + at[i + 3] * at[i + 3]);
        return all;
    }
};

/* Of a part of a long row. */
template <typename T, int V> using kiln_held_part = kiln_held<T, V, kiln_holding<T>::most / 2, true>;

#endif
