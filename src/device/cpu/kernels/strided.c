/* cat, constant_pad and as_strided_add: elements go where shapes and integers say. */
#include "device/cpu/kernels/strided.h"
#include <string.h>
#include "core/half.h"
#include "device/cpu/common/ranges.h"

enum { CHUNK = 1 << 16 }; /* bytes copied by one task */

static int64_t count_of(const kiln_cpu_operand *x)
{
    int64_t n = 1;
    for (int d = 0; d < x->ndim; d++)
        n *= x->shape[d];
    return n;
}

static int64_t chunks_of(int64_t bytes)
{
    return bytes / CHUNK + (bytes % CHUNK != 0);
}

static int64_t chunk_end(int64_t begin, int64_t bytes)
{
    return bytes - begin < CHUNK ? bytes : begin + CHUNK;
}

typedef struct copying {
    char *to;
    const char *from;
    int64_t bytes;
} copying;

static void copy_chunk(void *context, int64_t task, int worker)
{
    (void)worker;
    const copying *c = context;
    int64_t begin = task * CHUNK, end = chunk_end(begin, c->bytes);
    memcpy(c->to + begin, c->from + begin, (size_t)(end - begin));
}

void kiln_copy_bytes(void *to, const void *from, int64_t bytes)
{
    copying c = {to, from, bytes};
    if (to != from)
        kiln_parallel(chunks_of(bytes), copy_chunk, &c);
}

/* ---- cat ---- */

/* The result as rows: each is one span of every operand in turn. */
typedef struct joining {
    const kiln_cpu_call *call;
    int64_t span[64]; /* bytes of each operand in a row */
    int64_t row, bytes;
} joining;

static void cat_chunk(void *context, int64_t task, int worker)
{
    (void)worker;
    const joining *j = context;
    int64_t at = task * CHUNK, end = chunk_end(at, j->bytes);
    int64_t row = at / j->row, within = at % j->row;
    int operand = 0;
    while (within >= j->span[operand])
        within -= j->span[operand++];
    while (at < end) {
        int64_t n = j->span[operand] - within;
        n = n < end - at ? n : end - at;
        const char *from = (const char *)j->call->in[operand].data + row * j->span[operand] + within;
        if (n)
            memcpy((char *)j->call->out[0].data + at, from, (size_t)n);
        at += n;
        within = 0;
        if (++operand == j->call->nin) {
            operand = 0;
            row++;
        }
    }
}

void kiln_cpu_cat(const kiln_cpu_call *c)
{
    joining j = {.call = c};
    int64_t size = (int64_t)kiln_dtype_size(c->out[0].dtype);
    for (int i = 0; i < c->nin; i++) {
        kiln_extent s = kiln_extent_at(&c->in[i], c->ints[0]);
        j.span[i] = s.at * s.after * size;
        j.row += j.span[i];
    }
    j.bytes = count_of(&c->out[0]) * size;
    kiln_parallel(chunks_of(j.bytes), cat_chunk, &j);
}

/* ---- constant_pad ---- */

typedef struct padding {
    const kiln_cpu_call *call;
    int64_t rows, tasks, size;
    uint64_t value; /* the bits of one element, in its first bytes */
} padding;

static int64_t whole(double v)
{
    return v >= 0x1p63 ? INT64_MAX : v > -0x1p63 ? (int64_t)v : v <= -0x1p63 ? INT64_MIN : 0;
}

static uint64_t bits_of(kiln_dtype dtype, double v)
{
    union {
        uint8_t u8;
        int32_t i32;
        int64_t i64;
        uint16_t half;
        float f32;
        double f64;
        uint64_t bits;
    } e = {.bits = 0};
    switch (dtype) {
    case KILN_BOOL: e.u8 = v != 0; break;
    case KILN_U8: e.u8 = (uint8_t)whole(v); break;
    case KILN_I32: e.i32 = (int32_t)whole(v); break;
    case KILN_I64: e.i64 = whole(v); break;
    case KILN_F16: e.half = kiln_f32_to_f16((float)v); break;
    case KILN_BF16: e.half = kiln_f32_to_bf16((float)v); break;
    case KILN_F32: e.f32 = (float)v; break;
    default: e.f64 = v;
    }
    return e.bits;
}

#define FILL(size)                                                                                                     \
    static void fill_##size(void *to, int64_t n, const void *value)                                                    \
    {                                                                                                                  \
        kiln_word##size *y = to, v = *(const kiln_word##size *)value;                                                  \
        for (int64_t i = 0; i < n; i++)                                                                                \
            y[i] = v;                                                                                                  \
    }
KILN_WORDS(FILL)
#define FILL_ROW(size) fill_##size,
static void (*const fills[])(void *to, int64_t n, const void *value) = {KILN_WORDS(FILL_ROW)};

/* The operand's row that a row of the result shows; -1: none. */
static int64_t padded_row(const padding *p, int64_t row)
{
    const kiln_cpu_operand *x = &p->call->in[0], *y = &p->call->out[0];
    int64_t from = 0, step = 1;
    for (int d = x->ndim - 2; d >= 0; d--) {
        int64_t i = row % y->shape[d] - p->call->ints[2 * d];
        row /= y->shape[d];
        if (i < 0 || i >= x->shape[d])
            return -1;
        from += i * step;
        step *= x->shape[d];
    }
    return from;
}

static void pad_range(void *context, int64_t task, int worker)
{
    (void)worker;
    const padding *p = context;
    const kiln_cpu_operand *x = &p->call->in[0], *y = &p->call->out[0];
    void (*fill)(void *, int64_t, const void *) = fills[kiln_word_slot((size_t)p->size)];
    int64_t n = y->shape[y->ndim - 1], m = x->shape[x->ndim - 1], lo = p->call->ints[2 * (x->ndim - 1)];
    int64_t first = lo > 0 ? lo : 0, last = lo + m < n ? lo + m : n; /* what the operand covers */
    if (first > n || last <= first)
        first = last = n;
    int64_t end = kiln_range_begin(p->rows, p->tasks, task + 1);
    for (int64_t r = kiln_range_begin(p->rows, p->tasks, task); r < end; r++) {
        char *to = (char *)y->data + r * n * p->size;
        int64_t from = last > first ? padded_row(p, r) : -1;
        if (from < 0) {
            fill(to, n, &p->value);
            continue;
        }
        fill(to, first, &p->value);
        memcpy(to + first * p->size, (const char *)x->data + (from * m + first - lo) * p->size,
               (size_t)((last - first) * p->size));
        fill(to + last * p->size, n - last, &p->value);
    }
}

void kiln_cpu_constant_pad(const kiln_cpu_call *c)
{
    const kiln_cpu_operand *y = &c->out[0];
    padding p = {.call = c, .size = (int64_t)kiln_dtype_size(y->dtype), .value = bits_of(y->dtype, c->floats[0])};
    int64_t count = count_of(y);
    if (y->ndim == 0) {
        kiln_copy_bytes(y->data, c->in[0].data, p.size);
        return;
    }
    if (count == 0)
        return;
    p.rows = count / y->shape[y->ndim - 1];
    p.tasks = kiln_range_count(p.rows, y->shape[y->ndim - 1]);
    kiln_parallel(p.tasks, pad_range, &p);
}

/* ---- as_strided_add ---- */

/* The dims of g in two groups. Along `apart` dims elements go to distinct places whatever the other indices are, so
 * that tasks share nothing; along `inner` dims they may meet, and are added in row-major order. */
typedef struct adding {
    const kiln_cpu_call *call;
    int napart, ninner;
    int64_t apart_shape[8], apart_from[8], apart_to[8]; /* sizes, strides in g, strides in the result */
    int64_t inner_shape[8], inner_from[8], inner_to[8];
    int64_t parts, inner_count, offset, tasks;
} adding;

#define ADD_INNER(name, T)                                                                                             \
    static void add_inner_##name(const adding *a, int64_t from, int64_t to)                                            \
    {                                                                                                                  \
        const T *g = (const T *)a->call->in[0].data + from;                                                            \
        T *y = (T *)a->call->out[0].data + to;                                                                         \
        int last = a->ninner - 1;                                                                                      \
        int64_t n = last >= 0 ? a->inner_shape[last] : 1, fs = last >= 0 ? a->inner_from[last] : 0;                    \
        int64_t ts = last >= 0 ? a->inner_to[last] : 0, at[8] = {0};                                                   \
        for (int64_t row = a->inner_count / n; row > 0; row--) {                                                       \
            if (fs == 1 && ts == 1) {                                                                                  \
                for (int64_t i = 0; i < n; i++)                                                                        \
                    y[i] = (T)(y[i] + g[i]);                                                                           \
            } else {                                                                                                   \
                for (int64_t i = 0; i < n; i++)                                                                        \
                    y[i * ts] = (T)(y[i * ts] + g[i * fs]);                                                            \
            }                                                                                                          \
            for (int d = last - 1; d >= 0; d--) { /* the next row */                                                   \
                g += a->inner_from[d];                                                                                 \
                y += a->inner_to[d];                                                                                   \
                if (++at[d] < a->inner_shape[d])                                                                       \
                    break;                                                                                             \
                g -= a->inner_from[d] * a->inner_shape[d];                                                             \
                y -= a->inner_to[d] * a->inner_shape[d];                                                               \
                at[d] = 0;                                                                                             \
            }                                                                                                          \
        }                                                                                                              \
    }
KILN_ADDABLE(ADD_INNER)
#define ADD_INNER_ROW(name, T) add_inner_##name,
static void (*const add_inners[])(const adding *a, int64_t from, int64_t to) = {KILN_ADDABLE(ADD_INNER_ROW)};

static void add_range(void *context, int64_t task, int worker)
{
    (void)worker;
    const adding *a = context;
    void (*add)(const adding *, int64_t, int64_t) = add_inners[kiln_add_slot(a->call->out[0].dtype)];
    int64_t begin = kiln_range_begin(a->parts, a->tasks, task), end = kiln_range_begin(a->parts, a->tasks, task + 1);
    if (a->napart == 1 && a->inner_count == 1) { /* one long row: its range is the inner loop */
        adding row = *a;
        row.ninner = 1;
        row.inner_shape[0] = row.inner_count = end - begin;
        row.inner_from[0] = a->apart_from[0];
        row.inner_to[0] = a->apart_to[0];
        add(&row, begin * a->apart_from[0], a->offset + begin * a->apart_to[0]);
        return;
    }
    for (int64_t part = begin; part < end; part++) {
        int64_t from = 0, to = a->offset, rest = part;
        for (int d = a->napart - 1; d >= 0; d--) {
            int64_t i = rest % a->apart_shape[d];
            rest /= a->apart_shape[d];
            from += i * a->apart_from[d];
            to += i * a->apart_to[d];
        }
        add(a, from, to);
    }
}

static int64_t length(int64_t stride)
{
    return stride < 0 ? -stride : stride;
}

/* Dims from the longest step down are apart as long as all the shorter ones together do not reach across one step. */
static void group_dims(adding *a, const int64_t *stride)
{
    const kiln_cpu_operand *g = &a->call->in[0];
    int64_t reach = 0, from[8], step = 1;
    bool apart[8] = {false}, looking = true;
    for (int d = g->ndim - 1; d >= 0; d--) {
        from[d] = step;
        step *= g->shape[d];
        reach += (g->shape[d] - 1) * length(stride[d]);
    }
    while (looking) {
        int top = -1;
        for (int d = 0; d < g->ndim; d++)
            if (!apart[d] && g->shape[d] > 1 && (top < 0 || length(stride[d]) > length(stride[top])))
                top = d;
        int64_t rest = top < 0 ? 0 : reach - (g->shape[top] - 1) * length(stride[top]);
        looking = top >= 0 && rest < length(stride[top]);
        if (looking) {
            apart[top] = true;
            reach = rest;
        }
    }
    /* Rows want a long inner loop: the last dim stays inside where others are enough to share out. */
    int last = g->ndim - 1, others = 0;
    for (int d = 0; d < last; d++)
        others += apart[d];
    if (last >= 0 && others)
        apart[last] = false;
    a->parts = a->inner_count = 1;
    for (int d = 0; d < g->ndim; d++) {
        int k = apart[d] ? a->napart++ : a->ninner++;
        (apart[d] ? a->apart_shape : a->inner_shape)[k] = g->shape[d];
        (apart[d] ? a->apart_from : a->inner_from)[k] = from[d];
        (apart[d] ? a->apart_to : a->inner_to)[k] = stride[d];
        *(apart[d] ? &a->parts : &a->inner_count) *= g->shape[d];
    }
}

static void zero_chunk(void *context, int64_t task, int worker)
{
    (void)worker;
    const copying *c = context;
    int64_t begin = task * CHUNK;
    memset(c->to + begin, 0, (size_t)(chunk_end(begin, c->bytes) - begin));
}

void kiln_cpu_as_strided_add(const kiln_cpu_call *c)
{
    const kiln_cpu_operand *g = &c->in[0], *y = &c->out[0];
    const int64_t *stride = c->ints + 1 + c->ints[0];
    copying zero = {.to = y->data, .bytes = count_of(y) * (int64_t)kiln_dtype_size(y->dtype)};
    kiln_parallel(chunks_of(zero.bytes), zero_chunk, &zero);
    adding a = {.call = c, .offset = c->nfloats ? (int64_t)c->floats[0] : stride[g->ndim]}; /* or with each run */
    if (count_of(g) == 0)
        return;
    group_dims(&a, stride);
    a.tasks = kiln_range_count(a.parts, a.inner_count);
    kiln_parallel(a.tasks, add_range, &a);
}
