/* Sorting, the k first of an order, and the places of extremes. To be sorted, elements become unsigned keys in the same
 * order (NaN last, both zeros equal), so one sort serves all dtypes; a descending order inverts the keys. All sorts are
 * stable, which is what "lower index first" means. */
#include <string.h>
#include "core/half.h"
#include "device/cpu/kernels/strided.h"
#include "device/cpu/common/ranges.h"
#include "ops/op.h"

typedef struct entry {
    uint64_t key;
    int64_t index;
} entry;

/* ---- Keys ---- */

static inline uint64_t key_f64(double v)
{
    union {
        double f;
        uint64_t u;
    } bits = {.f = v == 0 ? 0.0 : v};
    const uint64_t sign = UINT64_C(1) << 63;
    return v != v ? UINT64_MAX : bits.u & sign ? ~bits.u : bits.u | sign;
}

static inline uint64_t key_f32(float v)
{
    uint32_t bits = kiln_bits_of_f32(v == 0 ? 0.0f : v);
    const uint32_t sign = UINT32_C(1) << 31;
    return v != v ? UINT32_MAX : bits & sign ? ~bits : bits | sign; /* short keys take fewer passes */
}

static inline uint64_t key_i32(int32_t v)
{
    return (uint32_t)v ^ UINT32_C(1) << 31;
}

static inline uint64_t key_i64(int64_t v)
{
    return (uint64_t)v ^ UINT64_C(1) << 63;
}

/* X(dtype, C type, key of an element v) */
#define KEYED(X)                                                                                                       \
    X(KILN_BOOL, uint8_t, v)                                                                                           \
    X(KILN_U8, uint8_t, v)                                                                                             \
    X(KILN_I32, int32_t, key_i32(v))                                                                                   \
    X(KILN_I64, int64_t, key_i64(v))                                                                                   \
    X(KILN_F16, uint16_t, key_f32(kiln_f16_to_f32(v)))                                                                 \
    X(KILN_BF16, uint16_t, key_f32(kiln_bf16_to_f32(v)))                                                               \
    X(KILN_F32, float, key_f32(v))                                                                                     \
    X(KILN_F64, double, key_f64(v))

/* n elements, `stride` apart, as entries; `flip` inverts the order. */
static void load_keys(kiln_dtype dtype, const char *data, int64_t first, int64_t stride, int64_t n, bool flip, entry *e)
{
    const uint64_t mask = !flip ? 0 : dtype == KILN_I64 || dtype == KILN_F64 ? UINT64_MAX : UINT32_MAX;
#define LOAD(D, T, key_of)                                                                                             \
    case D:                                                                                                            \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            T v = ((const T *)data)[first + i * stride];                                                               \
            e[i] = (entry){(uint64_t)(key_of) ^ mask, i};                                                              \
        }                                                                                                              \
        break;
    switch (dtype) {
        KEYED(LOAD)
    default: break;
    }
}

/* ---- Sorting a row ---- */

enum { RUN = 16, FEW = 512 };

static void insertion_sort(entry *e, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        entry v = e[i];
        int64_t j = i;
        for (; j > 0 && e[j - 1].key > v.key; j--)
            e[j] = e[j - 1];
        e[j] = v;
    }
}

static void merge(const entry *a, const entry *a_end, const entry *b, const entry *b_end, entry *to)
{
    while (a < a_end && b < b_end)
        *to++ = b->key < a->key ? *b++ : *a++;
    memcpy(to, a, (size_t)(a_end - a) * sizeof *a);
    memcpy(to + (a_end - a), b, (size_t)(b_end - b) * sizeof *b);
}

static entry *merge_sort(entry *e, entry *other, int64_t n)
{
    for (int64_t i = 0; i < n; i += RUN)
        insertion_sort(e + i, n - i < RUN ? n - i : RUN);
    for (int64_t width = RUN; width < n; width *= 2) {
        for (int64_t i = 0; i < n; i += 2 * width) {
            int64_t middle = i + width < n ? i + width : n, end = middle + width < n ? middle + width : n;
            merge(e + i, e + middle, e + middle, e + end, other + i);
        }
        entry *t = e;
        e = other;
        other = t;
    }
    return e;
}

/* A byte a pass, from the lowest; bytes that are the same in all keys are passed over. */
static entry *radix_sort(entry *e, entry *other, int64_t n)
{
    int64_t counts[8][256] = {{0}};
    for (int64_t i = 0; i < n; i++)
        for (int b = 0; b < 8; b++)
            counts[b][e[i].key >> 8 * b & 255]++;
    for (int b = 0; b < 8; b++) {
        int64_t start = 0;
        if (counts[b][e[0].key >> 8 * b & 255] == n)
            continue;
        for (int v = 0; v < 256; v++) {
            int64_t count = counts[b][v];
            counts[b][v] = start;
            start += count;
        }
        for (int64_t i = 0; i < n; i++)
            other[counts[b][e[i].key >> 8 * b & 255]++] = e[i];
        entry *t = e;
        e = other;
        other = t;
    }
    return e;
}

/* Sorts by key; the result is in one of the two, and returned. */
static entry *sort_entries(entry *e, entry *other, int64_t n)
{
    return n <= FEW ? merge_sort(e, other, n) : radix_sort(e, other, n);
}

/* ---- The k first of a row ---- */

static inline bool after(const entry *a, const entry *b)
{
    return a->key > b->key || (a->key == b->key && a->index > b->index);
}

/* Lets the root of a heap (the last in order on top) sink to its place. */
static void sink(entry *heap, int64_t n, int64_t at)
{
    entry v = heap[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        child += child + 1 < n && after(&heap[child + 1], &heap[child]);
        if (!after(&heap[child], &v))
            break;
        heap[at] = heap[child];
    }
    heap[at] = v;
}

/* Brings the k first of n entries to the front, in order. */
static void select_first(entry *e, int64_t n, int64_t k)
{
    for (int64_t i = k / 2; i-- > 0;)
        sink(e, k, i);
    for (int64_t i = k; i < n; i++)
        if (e[i].key < e[0].key) { /* later ones of equal key come after those that are in */
            e[0] = e[i];
            sink(e, k, 0);
        }
    for (int64_t left = k; left > 1; left--) {
        entry top = e[0];
        e[0] = e[left - 1];
        e[left - 1] = top;
        sink(e, left - 1, 0);
    }
}

/* ---- sort and topk ---- */

/* Rows are shared out to a number of tasks that the scratch memory is made for: two rows of entries each. */
typedef struct sorting {
    const kiln_cpu_call *call;
    kiln_extent x;
    int64_t keep; /* how many of each row are wanted */
    bool flip, partial;
    int64_t rows, tasks;
} sorting;

static sorting plan_sort(const kiln_cpu_call *c, int64_t dim, bool flip)
{
    enum { SCRATCH = 1 << 22 }; /* entries, where more than one task runs */
    sorting s = {.call = c, .x = kiln_extent_at(&c->in[0], dim), .flip = flip};
    s.rows = s.x.before * s.x.after;
    s.keep = kiln_extent_at(&c->out[0], dim).at;
    s.partial = s.keep <= s.x.at / 8;
    int64_t room = s.x.at > 0 ? SCRATCH / s.x.at : 1;
    s.tasks = kiln_range_count(s.rows, s.x.at * 16);
    s.tasks = s.tasks < room ? s.tasks : room > 1 ? room : s.tasks > 0;
    return s;
}

#define PICK(size)                                                                                                     \
    static void pick_##size(const void *from, void *to, const entry *e, int64_t n, int64_t stride)                     \
    {                                                                                                                  \
        const kiln_word##size *x = from;                                                                               \
        kiln_word##size *y = to;                                                                                       \
        for (int64_t i = 0; i < n; i++)                                                                                \
            y[i * stride] = x[e[i].index * stride];                                                                    \
    }
KILN_WORDS(PICK)
#define PICK_ROW(size) pick_##size,
static void (*const picks[])(const void *, void *, const entry *, int64_t, int64_t) = {KILN_WORDS(PICK_ROW)};

static void sort_range(void *context, int64_t task, int worker)
{
    (void)worker;
    const sorting *s = context;
    const kiln_cpu_operand *x = &s->call->in[0], *values = &s->call->out[0], *indices = &s->call->out[1];
    int64_t n = s->x.at, stride = s->x.after, size = (int64_t)kiln_dtype_size(x->dtype);
    entry *scratch = (entry *)s->call->workspace + task * 2 * n;
    int64_t end = kiln_range_begin(s->rows, s->tasks, task + 1);
    for (int64_t r = kiln_range_begin(s->rows, s->tasks, task); r < end; r++) {
        int64_t from = r / stride * n * stride + r % stride, to = r / stride * s->keep * stride + r % stride;
        entry *e = scratch;
        load_keys(x->dtype, x->data, from, stride, n, s->flip, e);
        if (s->partial)
            select_first(e, n, s->keep);
        else
            e = sort_entries(e, scratch + n, n);
        picks[kiln_word_slot((size_t)size)]((const char *)x->data + from * size, (char *)values->data + to * size, e,
                                            s->keep, stride);
        for (int64_t i = 0; i < s->keep; i++)
            ((int64_t *)indices->data)[to + i * stride] = e[i].index;
    }
}

static void run_plan(sorting s)
{
    if (s.rows * s.keep > 0)
        kiln_parallel(s.tasks, sort_range, &s);
}

static void run_sort(const kiln_cpu_call *c)
{
    run_plan(plan_sort(c, c->ints[0], c->ints[1] != 0));
}

static void run_topk(const kiln_cpu_call *c)
{
    run_plan(plan_sort(c, c->ints[1], c->ints[2] != 0));
}

static size_t scratch_of(sorting s)
{
    return (size_t)(s.tasks * 2 * s.x.at) * sizeof(entry);
}

static size_t sort_workspace(const kiln_cpu_call *c)
{
    return scratch_of(plan_sort(c, c->ints[0], false));
}

static size_t topk_workspace(const kiln_cpu_call *c)
{
    return scratch_of(plan_sort(c, c->ints[1], false));
}

/* ---- argmax, argmin ---- */

enum { LANES = 64 }; /* columns compared side by side */

/* The place of the first greatest (least) of `rows` elements, `stride` apart, for neighbouring columns. A NaN beats all
 * numbers; v != v is never true for integers. */
#define FIND(name, T, beats)                                                                                           \
    static void name(const void *from, int64_t *place, int64_t rows, int64_t stride, int64_t lanes)                    \
    {                                                                                                                  \
        const T *x = from;                                                                                             \
        T best[LANES];                                                                                                 \
        for (int64_t j = 0; j < lanes; j++) {                                                                          \
            best[j] = x[j];                                                                                            \
            place[j] = 0;                                                                                              \
        }                                                                                                              \
        for (int64_t i = 1; i < rows; i++)                                                                             \
            for (int64_t j = 0; j < lanes; j++) {                                                                      \
                T v = x[i * stride + j], b = best[j];                                                                  \
                if (v beats b || (v != v && b == b)) {                                                                 \
                    best[j] = v;                                                                                       \
                    place[j] = i;                                                                                      \
                }                                                                                                      \
            }                                                                                                          \
    }
#define FIND_BOTH(name, T) FIND(max_##name, T, >) FIND(min_##name, T, <)
FIND_BOTH(u8, uint8_t)
FIND_BOTH(i32, int32_t)
FIND_BOTH(i64, int64_t)
FIND_BOTH(f32, float)
FIND_BOTH(f64, double)

typedef void (*find_fn)(const void *from, int64_t *place, int64_t rows, int64_t stride, int64_t lanes);

typedef struct finding {
    const kiln_cpu_call *call;
    kiln_extent x;
    find_fn find;
    int64_t blocks, tasks, size;
} finding;

static void find_range(void *context, int64_t task, int worker)
{
    (void)worker;
    const finding *f = context;
    kiln_extent x = f->x;
    int64_t items = x.before * f->blocks, end = kiln_range_begin(items, f->tasks, task + 1);
    for (int64_t item = kiln_range_begin(items, f->tasks, task); item < end; item++) {
        int64_t o = item / f->blocks, lane = item % f->blocks * LANES;
        f->find((const char *)f->call->in[0].data + (o * x.at * x.after + lane) * f->size,
                (int64_t *)f->call->out[0].data + o * x.after + lane, x.at, x.after,
                x.after - lane < LANES ? x.after - lane : LANES);
    }
}

static void find(const kiln_cpu_call *c, const find_fn *by_dtype)
{
    kiln_dtype dtype = c->in[0].dtype;
    finding f = {.call = c, .x = kiln_extent_at(&c->in[0], c->ints[0]), .size = (int64_t)kiln_dtype_size(dtype)};
    f.find = by_dtype[dtype];
    f.blocks = (f.x.after + LANES - 1) / LANES;
    if (f.x.before * f.x.at * f.x.after == 0)
        return;
    f.tasks = kiln_range_count(f.x.before * f.blocks, f.x.at * (f.x.after < LANES ? f.x.after : LANES));
    kiln_parallel(f.tasks, find_range, &f);
}

static void run_argmax(const kiln_cpu_call *c)
{
    static const find_fn by_dtype[KILN_DTYPES] = {[KILN_BOOL] = max_u8, [KILN_U8] = max_u8,   [KILN_I32] = max_i32,
                                                  [KILN_I64] = max_i64, [KILN_F32] = max_f32, [KILN_F64] = max_f64};
    find(c, by_dtype);
}

static void run_argmin(const kiln_cpu_call *c)
{
    static const find_fn by_dtype[KILN_DTYPES] = {[KILN_BOOL] = min_u8, [KILN_U8] = min_u8,   [KILN_I32] = min_i32,
                                                  [KILN_I64] = min_i64, [KILN_F32] = min_f32, [KILN_F64] = min_f64};
    find(c, by_dtype);
}

enum { FOUND = KILN_T_BOOL | KILN_T_INTS | 1 << KILN_F32 | 1 << KILN_F64 };

const kiln_cpu_kernel kiln_cpu_kernels_sort[] = {
    {.op = "sort", .dtypes = KILN_T_ALL, .run = run_sort, .workspace = sort_workspace},
    {.op = "topk", .dtypes = KILN_T_ALL, .run = run_topk, .workspace = topk_workspace},
    {.op = "argmax", .dtypes = FOUND, .run = run_argmax},
    {.op = "argmin", .dtypes = FOUND, .run = run_argmin},
    {0},
};
