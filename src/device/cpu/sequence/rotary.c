/* Rotary position embedding on the CPU: rows one by one, each read where it lies. */
#include "core/half.h"
#include "device/cpu/common/call.h"
#include "device/cpu/common/ranges.h"
#include "ops/op.h"

/* A row of x, its row of both tables, and where the result goes; steps between neighbours in elements. */
typedef struct row {
    const void *x, *cos, *sin;
    void *y;
    int64_t x_step, cos_step, sin_step;
} row;

#define ITSELF(v) (v)

/* y = (a·cos - b·sin, b·cos + a·sin), a and b the halves of x. Steps that are known to be 1 make vectors of it. */
#define ROTATE(name, element, real, of, to)                                                                            \
    static inline __attribute__((always_inline)) void turn_##name(const row *r, int64_t half, real sign, int64_t x1,   \
                                                                  int64_t c1, int64_t s1)                              \
    {                                                                                                                  \
        const element *a = r->x, *b = a + half * x1;                                                                   \
        const real *cos = r->cos, *sin = r->sin;                                                                       \
        element *restrict y = r->y;                                                                                    \
        for (int64_t i = 0; i < half; i++) {                                                                           \
            real p = of(a[i * x1]), q = of(b[i * x1]), c = cos[i * c1], s = sign * sin[i * s1];                        \
            y[i] = to(p * c - q * s);                                                                                  \
            y[half + i] = to(q * c + p * s);                                                                           \
        }                                                                                                              \
    }                                                                                                                  \
    static void rotate_##name(const row *r, int64_t half, bool back)                                                   \
    {                                                                                                                  \
        if (r->x_step == 1 && r->cos_step == 1 && r->sin_step == 1)                                                    \
            turn_##name(r, half, back ? -1 : 1, 1, 1, 1);                                                              \
        else                                                                                                           \
            turn_##name(r, half, back ? -1 : 1, r->x_step, r->cos_step, r->sin_step);                                  \
    }

ROTATE(f32, float, float, ITSELF, ITSELF)
ROTATE(f64, double, double, ITSELF, ITSELF)
ROTATE(f16, uint16_t, float, kiln_f16_to_f32, kiln_f32_to_f16)
ROTATE(bf16, uint16_t, float, kiln_bf16_to_f32, kiln_f32_to_bf16)

typedef struct rotation {
    const kiln_cpu_call *call;
    void (*rotate)(const row *r, int64_t half, bool back);
    int64_t rows, tasks;
} rotation;

static const void *at(const kiln_cpu_operand *o, int64_t element)
{
    return (const char *)o->data + element * (int64_t)kiln_dtype_size(o->dtype);
}

/* Row `number` of x, counted through all dims but the last. */
static row row_of(const kiln_cpu_call *c, int64_t number)
{
    const kiln_cpu_operand *x = &c->in[0], *cos = &c->in[1], *sin = &c->in[2];
    int last = x->ndim - 1;
    int64_t position = number % x->shape[last - 1], from = 0, rest = number;
    for (int d = last - 1; d >= 0; d--) {
        from += rest % x->shape[d] * x->stride[d];
        rest /= x->shape[d];
    }
    return (row){.x = at(x, from),
                 .cos = at(cos, position * cos->stride[0]),
                 .sin = at(sin, position * sin->stride[0]),
                 .y = (void *)at(&c->out[0], number * x->shape[last]),
                 .x_step = x->stride[last],
                 .cos_step = cos->stride[1],
                 .sin_step = sin->stride[1]};
}

static void rotate_rows(void *context, int64_t task, int worker)
{
    (void)worker;
    const rotation *r = context;
    const kiln_cpu_operand *x = &r->call->in[0];
    int64_t half = x->shape[x->ndim - 1] / 2, end = kiln_range_begin(r->rows, r->tasks, task + 1);
    for (int64_t i = kiln_range_begin(r->rows, r->tasks, task); i < end; i++) {
        row one = row_of(r->call, i);
        r->rotate(&one, half, r->call->ints[0] != 0);
    }
}

static void run_rotary(const kiln_cpu_call *c)
{
    const kiln_cpu_operand *x = &c->in[0];
    rotation r = {.call = c,
                  .rotate = x->dtype == KILN_F64    ? rotate_f64
                            : x->dtype == KILN_F16  ? rotate_f16
                            : x->dtype == KILN_BF16 ? rotate_bf16
                                                    : rotate_f32,
                  .rows = kiln_count(x->ndim - 1, x->shape)};
    r.tasks = kiln_range_count(r.rows, x->shape[x->ndim - 1]);
    kiln_parallel(r.tasks, rotate_rows, &r);
}

const kiln_cpu_kernel kiln_cpu_kernels_rotary[] = {
    {.op = "rotary", .dtypes = KILN_T_FLOATS, .run = run_rotary},
    {0},
};
