/* Gradients of windows, laid side by side: see placed.h. */
#include "ops/placed.h"

#include <stdlib.h>
#include "core/alloc.h"
#include "ops/helpers.h"

static int64_t end_of(const kiln_placed *p)
{
    return p->start + p->grad->shape[p->dim];
}

/* By dim, then by where they begin; those that begin alike as they came. */
static int compare(const void *a, const void *b)
{
    const kiln_placed *x = a, *y = b;
    if (x->dim != y->dim)
        return x->dim < y->dim ? -1 : 1;
    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

/* Parts that touch, in order, become one larger part, which may be the whole. */
static bool join(const kiln_placed *const *run, int64_t n, kiln_tensor **pieces, kiln_placed *whole)
{
    for (int64_t i = 0; i < n; i++)
        pieces[i] = run[i]->grad;
    *whole = *run[0];
    return (whole->grad = kiln_cat((int)n, pieces, whole->dim)) != NULL;
}

/* Takes the parts that touch, beginning with the first, out of the n of `left`: how many they are. The others stay in
 * their order. */
static int64_t take_run(const kiln_placed **left, int64_t n, const kiln_placed **run)
{
    int64_t taken = 0, kept = 0;
    for (int64_t i = 0; i < n; i++) {
        const kiln_placed *last = taken ? run[taken - 1] : NULL;
        if (!last || (left[i]->dim == last->dim && left[i]->start == end_of(last)))
            run[taken++] = left[i];
        else
            left[kept++] = left[i];
    }
    return taken;
}

/* Joins runs of touching parts among the n of `placed`, which are in order: how many parts there are then. Runs of
 * fewer than ENOUGH that are not the whole stay apart. Parts that happen to touch in this step may not in the next one,
 * and the step would get another plan. */
static int64_t join_runs(kiln_placed *placed, int64_t n, const int64_t *shape, const kiln_placed **lists,
                         kiln_tensor **pieces, kiln_placed *joined)
{
    enum { ENOUGH = 3 };
    int64_t count = 0;
    const kiln_placed **left = lists, **run = lists + n;
    for (int64_t i = 0; i < n; i++)
        left[i] = &placed[i];
    while (n) {
        int64_t taken = take_run(left, n, run);
        bool whole = run[0]->start == 0 && end_of(run[taken - 1]) == shape[run[0]->dim];
        n -= taken;
        if (taken >= ENOUGH || (taken > 1 && whole)) {
            if (!join(run, taken, pieces, &joined[count++]))
                return -1;
        } else
            for (int64_t i = 0; i < taken; i++)
                joined[count++] = *run[i];
    }
    return count;
}

static int compare_order(const void *a, const void *b)
{
    const kiln_placed *x = a, *y = b;
    return (x->order > y->order) - (x->order < y->order);
}

/* The sum of n parts, each in zeros of the whole's shape. */
static kiln_tensor *add_up(kiln_placed *parts, int64_t n, int ndim, const int64_t *shape)
{
    kiln_tensor *sum = NULL;
    qsort(parts, (size_t)n, sizeof *parts, compare_order); /* where they begin may change, and the plan must not */
    for (int64_t i = 0; i < n; i++) {
        const kiln_placed *p = &parts[i];
        kiln_tensor *t = p->grad->shape[p->dim] == shape[p->dim] ? p->grad : kiln_place(p, ndim, shape);
        sum = sum && t ? kiln_add(sum, t) : t;
        if (!sum)
            return NULL;
    }
    return sum;
}

kiln_tensor *kiln_lay_out(kiln_placed *placed, int64_t n, int ndim, const int64_t *shape)
{
    size_t count = (size_t)n;
    const kiln_placed **lists = kiln_alloc(2 * count, sizeof *lists);
    kiln_tensor **pieces = kiln_alloc(count, sizeof *pieces), *sum = NULL;
    kiln_placed *joined = kiln_alloc(count, sizeof *joined);
    if (lists && pieces && joined) {
        qsort(placed, count, sizeof *placed, compare);
        int64_t parts = join_runs(placed, n, shape, lists, pieces, joined);
        sum = parts > 0 ? add_up(joined, parts, ndim, shape) : NULL;
    }
    kiln_free(lists);
    kiln_free(pieces);
    kiln_free(joined);
    return sum;
}
