/* Windows whose place may come with each run: writing one into its base, which is what assignment to a view becomes,
 * and copying one out. */
#include <string.h>
#include "device/cpu/common/call.h"
#include "device/cpu/kernels/strided.h"
#include "device/cpu/common/ranges.h"
#include "ops/op.h"

/* Where a window begins: the last integer, or a number of this run. */
static int64_t offset_of(const kiln_cpu_call *c, int last)
{
    return c->nfloats ? (int64_t)c->floats[0] : c->ints[last];
}

/* A window onto dense memory, in rows along its last dim. */
typedef struct window {
    const kiln_cpu_operand *x; /* what lies or goes there, dense */
    const int64_t *stride;     /* in the memory that it is a window of */
    char *there;               /* where it begins */
    int64_t rows, tasks, size;
    bool out; /* from there to x */
} window;

#define MOVE(size)                                                                                                     \
    static void move_##size(void *to, int64_t to_step, const void *from, int64_t from_step, int64_t n)                 \
    {                                                                                                                  \
        kiln_word##size *y = to;                                                                                       \
        const kiln_word##size *x = from;                                                                               \
        for (int64_t i = 0; i < n; i++)                                                                                \
            y[i * to_step] = x[i * from_step];                                                                         \
    }
KILN_WORDS(MOVE)
#define MOVE_ROW(size) move_##size,
static void (*const moves[])(void *, int64_t, const void *, int64_t, int64_t) = {KILN_WORDS(MOVE_ROW)};

static void move_rows(void *context, int64_t task, int worker)
{
    (void)worker;
    const window *w = context;
    int last = w->x->ndim - 1;
    int64_t n = last >= 0 ? w->x->shape[last] : 1, step = last >= 0 ? w->stride[last] : 1;
    int64_t end = kiln_range_begin(w->rows, w->tasks, task + 1);
    for (int64_t r = kiln_range_begin(w->rows, w->tasks, task); r < end; r++) {
        int64_t place = 0, rest = r;
        for (int d = last - 1; d >= 0; rest /= w->x->shape[d--])
            place += rest % w->x->shape[d] * w->stride[d];
        char *dense = (char *)w->x->data + r * n * w->size, *there = w->there + place * w->size;
        if (step == 1)
            memcpy(w->out ? dense : there, w->out ? there : dense, (size_t)(n * w->size));
        else if (w->out)
            moves[kiln_word_slot((size_t)w->size)](dense, 1, there, step, n);
        else
            moves[kiln_word_slot((size_t)w->size)](there, step, dense, 1, n);
    }
}

/* Elements of a window that lie at one place are written in order only within a row: the last one stays. */
static bool may_meet(const window *w)
{
    int64_t reach = 0;
    for (int d = w->x->ndim; d-- > 0;) {
        int64_t step = w->stride[d] < 0 ? -w->stride[d] : w->stride[d];
        if (w->x->shape[d] > 1 && step <= reach)
            return true;
        reach += (w->x->shape[d] - 1) * step;
    }
    return false;
}

static void move_window(window *w)
{
    int64_t count = kiln_count(w->x->ndim, w->x->shape), n = w->x->ndim ? w->x->shape[w->x->ndim - 1] : 1;
    if (count == 0)
        return;
    w->size = (int64_t)kiln_dtype_size(w->x->dtype);
    w->rows = count / n;
    w->tasks = !w->out && may_meet(w) ? 1 : kiln_range_count(w->rows, n);
    kiln_parallel(w->tasks, move_rows, w);
}

static void as_strided_put(const kiln_cpu_call *c)
{
    const kiln_cpu_operand *base = &c->in[0], *x = &c->in[1];
    int64_t size = (int64_t)kiln_dtype_size(base->dtype);
    char *out = c->out[0].data;
    kiln_copy_bytes(out, base->data, kiln_count(base->ndim, base->shape) * size);
    move_window(&(window){.x = x, .stride = c->ints, .there = out + offset_of(c, x->ndim) * size});
}

static void strided_copy(const kiln_cpu_call *c)
{
    const kiln_cpu_operand *y = &c->out[0];
    int64_t offset = (int64_t)c->floats[0] * (int64_t)kiln_dtype_size(y->dtype);
    move_window(
        &(window){.x = y, .stride = c->ints + 1 + y->ndim, .there = (char *)c->in[0].data + offset, .out = true});
}

const kiln_cpu_kernel kiln_cpu_kernels_put[] = {{.op = "as_strided_put", .dtypes = KILN_T_ALL, .run = as_strided_put},
                                                {.op = "strided_copy", .dtypes = KILN_T_ALL, .run = strided_copy},
                                                {0}};
