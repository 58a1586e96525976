/* require: a copy of the first operand, which is small, with a look at the second one. */
#include "device/cpu/kernels/strided.h"
#include "device/cpu/common/ranges.h"
#include "device/cpu/math/vector_math.h"
#include "ops/op.h"
#include "ops/require.h"

typedef struct looking {
    const kiln_cpu_call *call;
    int64_t count, tasks;
} looking;

enum { BLOCK = 512 }; /* elements that are looked at together, as vectors */

/* The first element of a range that is not as required is reported; the earliest one of all ranges is kept. */
#define LOOK(name, T, good)                                                                                            \
    static void look_##name(void *context, int64_t task, int worker)                                                   \
    {                                                                                                                  \
        (void)worker;                                                                                                  \
        const looking *l = context;                                                                                    \
        const T *values = l->call->in[1].data;                                                                         \
        int64_t i = kiln_range_begin(l->count, l->tasks, task), end = kiln_range_begin(l->count, l->tasks, task + 1);  \
        for (int bad = 0; i + BLOCK <= end; i += BLOCK) {                                                              \
            for (int64_t j = i; j < i + BLOCK; j++) {                                                                  \
                const T x = values[j];                                                                                 \
                bad |= !(good);                                                                                        \
            }                                                                                                          \
            if (bad)                                                                                                   \
                break;                                                                                                 \
        }                                                                                                              \
        for (; i < end; i++) {                                                                                         \
            const T x = values[i];                                                                                     \
            if (good)                                                                                                  \
                continue;                                                                                              \
            kiln_fault_report(l->call, i, i, 0);                                                                       \
            return;                                                                                                    \
        }                                                                                                              \
    }
#define LOOKS(name, T) LOOK(name##_not_zero, T, x != 0) LOOK(name##_probability, T, ((double)x >= 0) & ((double)x <= 1))
LOOKS(u8, uint8_t)
LOOKS(i32, int32_t)
LOOKS(i64, int64_t)
LOOKS(f32, float)
LOOKS(f64, double)

typedef void (*look_fn)(void *context, int64_t task, int worker);
#define ROW(name)                                                                                                      \
    {                                                                                                                  \
        look_##name##_not_zero, look_##name##_probability                                                              \
    }
static const look_fn looks[KILN_DTYPES][KILN_REQUIREMENTS] = {
    [KILN_U8] = ROW(u8), [KILN_I32] = ROW(i32), [KILN_I64] = ROW(i64), [KILN_F32] = ROW(f32), [KILN_F64] = ROW(f64),
};

static void require(const kiln_cpu_call *c)
{
    looking l = {.call = c, .count = kiln_count(c->in[1].ndim, c->in[1].shape)};
    l.tasks = kiln_range_count(l.count, 1);
    kiln_copy_bytes(c->out[0].data, c->in[0].data,
                    kiln_count(c->in[0].ndim, c->in[0].shape) * (int64_t)kiln_dtype_size(c->in[0].dtype));
    kiln_parallel(l.tasks, looks[c->in[1].dtype][c->ints[0]], &l);
}

/* ---- Divisions of integers: the divisors are looked at on the way ---- */

#define DIVIDE(name, T)                                                                                                \
    static void name##_##T(void *context, int64_t task, int worker)                                                    \
    {                                                                                                                  \
        (void)worker;                                                                                                  \
        const looking *l = context;                                                                                    \
        const T *a = l->call->in[0].data, *b = l->call->in[1].data;                                                    \
        T *y = l->call->out[0].data;                                                                                   \
        int64_t end = kiln_range_begin(l->count, l->tasks, task + 1), zero = -1;                                       \
        for (int64_t i = kiln_range_begin(l->count, l->tasks, task); i < end; i++) {                                   \
            zero = b[i] == 0 && zero < 0 ? i : zero;                                                                   \
            y[i] = (T)kiln_i64_##name(a[i], b[i]);                                                                     \
        }                                                                                                              \
        if (zero >= 0)                                                                                                 \
            kiln_fault_report(l->call, zero, zero, 0);                                                                 \
    }
#define DIVIDES(name) DIVIDE(name, uint8_t) DIVIDE(name, int32_t) DIVIDE(name, int64_t)
DIVIDES(floor_divide)
DIVIDES(remainder)
DIVIDES(fmod)

static void divide_integers(const kiln_cpu_call *c)
{
#define DIVISIONS(name)                                                                                                \
    {                                                                                                                  \
        name##_uint8_t, name##_int32_t, name##_int64_t                                                                 \
    }
    static const look_fn divisions[KILN_DIVISIONS][3] = {DIVISIONS(floor_divide), DIVISIONS(remainder),
                                                         DIVISIONS(fmod)};
    kiln_dtype dtype = c->in[0].dtype;
    looking l = {.call = c, .count = kiln_count(c->in[1].ndim, c->in[1].shape)};
    l.tasks = kiln_range_count(l.count, 8);
    kiln_parallel(l.tasks, divisions[c->ints[0]][dtype == KILN_U8 ? 0 : dtype == KILN_I32 ? 1 : 2], &l);
}

enum { LOOKED_AT = KILN_T_INTS | 1 << KILN_F32 | 1 << KILN_F64 };
const kiln_cpu_kernel kiln_cpu_kernels_require[] = {
    {.op = "require", .dtypes = LOOKED_AT, .run = require},
    {.op = "divide_integers", .dtypes = KILN_T_INTS, .run = divide_integers},
    {0},
};
