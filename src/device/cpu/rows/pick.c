/* The elements that class indices name: nll_loss_pick reads them, nll_loss_place writes them. A class that does not
 * exist is reported; targets equal to ignore_index take no part. */
#include <string.h>
#include "device/cpu/common/ranges.h"
#include "device/cpu/rows/rows.h"

typedef struct job {
    const kiln_cpu_call *c;
    int64_t outer, classes, inner; /* x is [outer, classes, inner], target [outer, inner] */
    int64_t row;                   /* elements from one of x's outer to the next */
    int64_t ignore, tasks;
} job;

static job make_job(const kiln_cpu_call *c, const kiln_cpu_operand *x)
{
    job j = {.c = c, .outer = 1, .classes = 1, .inner = 1, .ignore = c->ints[1]};
    int dim = (int)c->ints[0];
    for (int d = 0; d < x->ndim; d++)
        *(d < dim ? &j.outer : d == dim ? &j.classes : &j.inner) *= x->shape[d];
    j.row = x->ndim == 2 && dim == 1 ? x->stride[0] : j.classes * j.inner; /* rows of two dims may be further apart */
    return j;
}

/* Where target `i` points in x; -1 when it is ignored or out of range. */
static inline int64_t place_of(const job *j, int64_t i)
{
    int64_t target = ((const int64_t *)j->c->in[1].data)[i];
    if (target == j->ignore)
        return -1;
    if (target < 0 || target >= j->classes) {
        kiln_fault_report(j->c, i, target, j->classes);
        return -1;
    }
    return i / j->inner * j->row + target * j->inner + i % j->inner;
}

#define NEGATED(x)      (-(x))
#define NEGATED_HALF(x) ((uint16_t)((x) ^ 0x8000))

#define PICK(REAL, name, NEG)                                                                                          \
    static void pick_##name(void *context, int64_t task, int worker)                                                   \
    {                                                                                                                  \
        (void)worker;                                                                                                  \
        const job *j = context;                                                                                        \
        const REAL *x = j->c->in[0].data;                                                                              \
        REAL *y = j->c->out[0].data;                                                                                   \
        int64_t targets = j->outer * j->inner, end = kiln_range_begin(targets, j->tasks, task + 1);                    \
        for (int64_t i = kiln_range_begin(targets, j->tasks, task); i < end; i++) {                                    \
            int64_t at = place_of(j, i);                                                                               \
            y[i] = at < 0 ? 0 : NEG(x[at]);                                                                            \
        }                                                                                                              \
    }

#define PLACE(REAL, name)                                                                                              \
    static void place_##name(void *context, int64_t task, int worker)                                                  \
    {                                                                                                                  \
        (void)worker;                                                                                                  \
        const job *j = context;                                                                                        \
        const REAL *g = j->c->in[0].data;                                                                              \
        REAL *y = j->c->out[0].data;                                                                                   \
        int64_t slice = j->classes * j->inner, end = kiln_range_begin(j->outer, j->tasks, task + 1);                   \
        for (int64_t o = kiln_range_begin(j->outer, j->tasks, task); o < end; o++) {                                   \
            memset(y + o * slice, 0, (size_t)slice * sizeof *y);                                                       \
            for (int64_t i = o * j->inner; i < (o + 1) * j->inner; i++) {                                              \
                int64_t at = place_of(j, i);                                                                           \
                if (at >= 0)                                                                                           \
                    y[at] = -g[i];                                                                                     \
            }                                                                                                          \
        }                                                                                                              \
    }

PICK(float, f32, NEGATED)
PICK(double, f64, NEGATED)
PICK(uint16_t, half, NEGATED_HALF)
PLACE(float, f32)
PLACE(double, f64)

void kiln_cpu_nll_loss_pick(const kiln_cpu_call *c)
{
    job j = make_job(c, &c->in[0]);
    j.tasks = kiln_range_count(j.outer * j.inner, 4);
    kiln_parallel(j.tasks,
                  c->in[0].dtype == KILN_F64   ? pick_f64
                  : c->in[0].dtype == KILN_F32 ? pick_f32
                                               : pick_half,
                  &j);
}

void kiln_cpu_nll_loss_place(const kiln_cpu_call *c)
{
    job j = make_job(c, &c->out[0]);
    j.tasks = kiln_range_count(j.outer, (j.classes + 4) * j.inner);
    kiln_parallel(j.tasks, c->in[0].dtype == KILN_F64 ? place_f64 : place_f32, &j);
}
