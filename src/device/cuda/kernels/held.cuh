/* Rows held in registers, so that memory is read once however often a row is looked at, and so that a multiprocessor
 * has many rows on their way. They are held as they lie in memory, two halves a register: widened ahead of the first
 * look they would take the room of other rows. A team of threads shares a row: neighbours of a warp, or a block. Which
 * elements are whose, and with that the order of a row's sums, follows from its length and type alone: not from where
 * it lies, nor from how many rows there are. Compiled ahead and as text with generated kernels.
 *
 * Halves bring twice as many elements as floats in the same time. An H200's memory brings each multiprocessor and takes
 * back four a cycle, in which it begins 128 instructions of threads: an element must take far fewer than 32. */
#ifndef KILN_CUDA_HELD_CUH
#define KILN_CUDA_HELD_CUH

#include "device/cuda/kernels/lying.cuh"

/* ---- Which elements are whose ---- */

/* Of rows of which a thread takes V neighbours at a time. Two packs of 16 bytes a thread are what the memory needs to
 * be kept busy; a warp takes up to four times as much before a row goes to a block, and more registers than that would
 * leave too few threads. Halves that come one by one take a register each until they are there. */
template <typename T, int V> struct kiln_holding {
    static constexpr int pack = kiln_wide<T>, least = 2 * pack, most = sizeof(T) == 2 && V == 1 ? 2 * least : 4 * least;
    static constexpr int threads = sizeof(T) == 8 ? 512 : 1024; /* of a block, at most */

    /* Longer rows are looked at in parts, once for every look, by as many threads. */
    static constexpr int64_t longest = (int64_t)threads * most, part = longest / 2;

    /* Elements of a thread. Of halves a thread takes four packs as soon as eight threads are left: that is a line of
     * the cache a load, and what a thread does once, sums with its team above all, is done for more elements. */
    static __host__ __device__ constexpr int each(int64_t n)
    {
        return n <= (sizeof(T) == 2 ? 8 : 32) * least ? least : n <= 64 * least ? 2 * least : most;
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

    /* How many of `left` elements of a long row are in the next part. */
    static __device__ __forceinline__ int next(int64_t left)
    {
        return (int)(left < part ? left : part);
    }
};

/* Neighbours are packs where rows are made of whole ones. */
template <typename T> static __host__ __device__ constexpr bool kiln_packs(int64_t n)
{
    return n % kiln_wide<T> == 0;
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
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2)
            if (apart < size)
                x += __shfl_xor_sync(0xffffffffu, x, apart);
        return x;
    }

    template <typename X> __device__ __forceinline__ X max(X x, X *parts) const
    {
        if (is_block())
            return kiln_lanes_max<32>(exchange(kiln_lanes_max<32>(x), parts, -kiln_infinity(X())));
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2)
            if (apart < size)
                x = kiln_larger(x, __shfl_xor_sync(0xffffffffu, x, apart));
        return x;
    }
};

/* ---- Holding ---- */

/* E elements of a row: E / V times V neighbours, those of a team's threads side by side. Rows that leave a thread fewer
 * than the most belong to no block. */
template <typename T, int V, int E, bool BLOCK = E == kiln_holding<T, V>::most> struct kiln_held {
    typedef kiln_crew<BLOCK> crew;
    typedef kiln_element<T> element;
    typedef typename element::real real;
    static constexpr int each = E, width = V;
    static constexpr bool widened = sizeof(T) < sizeof(real);
    static constexpr int few = widened ? 8 : 4; /* whose sum is added to a double */
    kiln_lying<T, E> all;

    __device__ __forceinline__ real operator[](int i) const
    {
        return element::of(all[i]);
    }

    /* Something else in the place of an element that is as wide as what is computed. */
    __device__ __forceinline__ void replace(int i, real x)
    {
        static_assert(!widened, "rounding is done once, at the end");
        all.set(i, x);
    }

    /* Many elements are cheaper to widen again than to keep widened, beyond the registers that there are. The compiler
     * finds them equal and keeps them, unless it has to believe that they have changed. */
    __device__ __forceinline__ void forget()
    {
        if constexpr (widened && E > 32) {
            unsigned nothing; /* blocks have one dimension: 0 */
            asm volatile("mov.u32 %0, %%tid.z;" : "=r"(nothing));
#pragma unroll
            for (int i = 0; i < E / 2; i++)
                all.at[i] ^= nothing;
        }
    }

    /* Of element i of this thread, in the row. */
    static __device__ __forceinline__ int place(const crew &c, int i)
    {
        return (i / V * c.size + c.rank) * V + i % V;
    }

    /* Where this thread's part of a row begins, and from there where its element i lies: an instruction. The compiler
     * would compute each address from the row's, if it knew how this one came about. */
    template <typename P> static __device__ __forceinline__ P *mine(P *row, const crew &c)
    {
        size_t global = __cvta_generic_to_global(row + c.rank * V);
        asm("" : "+l"(global));
        return (P *)__cvta_global_to_generic(global);
    }

    template <typename P> static __device__ __forceinline__ P *address(P *mine, const crew &c, int i)
    {
        return mine + (uint64_t)(unsigned)(c.size * V) * (unsigned)(i / V) + i % V;
    }

    /* This thread's elements from `first` on, N at a time; those beyond the `left` that there are stay as they are. */
    template <int N, bool ONCE, int COUNT>
    static __device__ __forceinline__ void fetch(kiln_lying<T, COUNT> &to, int first, const T *from, const crew &c,
                                                 int left)
    {
#pragma unroll
        for (int k = 0; k < COUNT; k += N) {
            union {
                typename kiln_moved<N * (int)sizeof(T)>::type words;
                kiln_lying<T, N> some;
            } u;
#pragma unroll
            for (int i = 0; i < N; i++)
                u.some.set(i, to[k + i]);
            kiln_load_if<ONCE>(address(from, c, first + k), place(c, first + k), left, u.words);
#pragma unroll
            for (int i = 0; i < N; i++)
                to.set(k + i, u.some[i]);
        }
    }

    /* `rest`: what is beyond the row. `aligned`: to 16 bytes. */
    __device__ __forceinline__ void load(const T *from, const crew &c, int left, bool aligned, real rest)
    {
        all.fill(element::to(rest));
        from = mine(from, c);
        if (V == 1 || aligned)
            fetch<V, true>(all, 0, from, c, left);
        else
            fetch<1, true>(all, 0, from, c, left);
    }

    /* What f makes of elements first … first + COUNT - 1, by their numbers. */
    template <int N, int COUNT, typename F>
    static __device__ __forceinline__ void put(T *to, int first, const crew &c, int left, F f)
    {
#pragma unroll
        for (int k = first; k < first + COUNT; k += N) {
            kiln_pack<T, N> v;
#pragma unroll
            for (int i = 0; i < N; i++)
                v.at[i] = element::to(f(k + i));
            if (place(c, k) < left)
                kiln_store<N>(address(to, c, k), v);
        }
    }

    template <typename F>
    static __device__ __forceinline__ void store(T *to, const crew &c, int left, bool aligned, F f)
    {
        to = mine(to, c);
        if (V == 1 || aligned)
            put<V, E>(to, 0, c, left, f);
        else
            put<1, E>(to, 0, c, left, f);
    }

    __device__ __forceinline__ real largest() const
    {
        auto top = all.at[0];
#pragma unroll
        for (int i = 1; i < (int)(sizeof all.at / sizeof *all.at); i++)
            top = element::larger(top, all.at[i]);
        return element::largest(top);
    }

    /* Of what f makes of all elements: a few at a time as what they are computed as, these in double. */
    template <typename F> static __device__ __forceinline__ double sum(F f)
    {
        double total = 0;
#pragma unroll
        for (int i = 0; i < E; i += few) {
            real part = f(i);
#pragma unroll
            for (int k = i + 1; k < i + few; k++)
                part += f(k);
            total += (double)part;
        }
        return total;
    }

    /* Σ (x - mean)² over the elements that are there. */
    __device__ __forceinline__ double squares(const crew &c, int left, real mean) const
    {
        double total = 0;
#pragma unroll
        for (int i = 0; i < E; i += few) {
            real part = 0;
#pragma unroll
            for (int k = i; k < i + few; k++) {
                const real x = V == few || place(c, k) < left ? (*this)[k] - mean : (real)0;
                part = fma(x, x, part);
            }
            total += (double)(V < few || place(c, i) < left ? part : (real)0);
        }
        return total;
    }
};

/* Of a part of a long row. */
template <typename T, int V> using kiln_held_part = kiln_held<T, V, kiln_holding<T, V>::most / 2, true>;

#endif
