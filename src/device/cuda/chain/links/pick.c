/* The elements that class indices name, and the gradient back at their places. An index that is bad is reported. */
#include "device/cuda/chain/link.h"

/* Of a kernel, the operand with classes. */
typedef const kiln_operand *with_classes(const kiln_kernel *k);

static const kiln_operand *picked_from(const kiln_kernel *k)
{
    return &k->in[0];
}

static const kiln_operand *placed_in(const kiln_kernel *k)
{
    return &k->out[0];
}

/* ---- What both have ---- */

static bool fits(const kiln_kernel *k, with_classes *of)
{
    kiln_cuda_around e = kiln_cuda_around_dim(of(k), k->ints[0]);
    return e.outer * e.inner > 0 && k->out[0].offset % 4 == 0;
}

static void say_both(kiln_cuda_author *a, const kiln_cuda_link *l, const kiln_cuda_seat *seat, const char *function,
                     with_classes *of)
{
    const kiln_kernel *k = kiln_cuda_link_kernel(a->chain, l);
    kiln_cuda_around e = kiln_cuda_around_dim(of(k), k->ints[0]);
    int64_t row = of(k)->ndim == 2 && k->ints[0] == 1 ? of(k)->stride[0] : e.n * e.inner; /* maybe further apart */
    kiln_cuda_say(
        &a->w,
        "%s<%s>(picks_in(k.c, %d, k.data[%d], %lldL, %lldL, %lldL, %lldL, %lldL), k.data[%d], k.data[%d], %s, %s); ",
        function, kiln_cuda_type_name(k->in[0].dtype), l->kernel, kiln_cuda_at(a, l->pointers + 1), (long long)e.outer,
        (long long)e.n, (long long)e.inner, (long long)row, (long long)k->ints[1], kiln_cuda_at(a, l->pointers),
        kiln_cuda_at(a, l->pointers + 2), l->guarded ? "!stopped" : "true", seat->seat);
}

/* ---- nll_loss_pick ---- */

static bool can_pick(const kiln_cuda_call *c, bool large)
{
    (void)large;
    return kiln_cuda_is_float(c->kernel, "nll_loss_pick") && fits(c->kernel, picked_from);
}

static bool make_pick(kiln_cuda_chain *chain, kiln_cuda_link *l, const kiln_cuda_call *c)
{
    kiln_cuda_around e = kiln_cuda_around_dim(picked_from(c->kernel), c->kernel->ints[0]);
    l->units = kiln_cuda_ceil_div(e.outer * e.inner, KILN_CUDA_CHAIN_THREADS);
    return kiln_cuda_add_operands(chain, c->kernel);
}

static void say_pick(kiln_cuda_author *a, const kiln_cuda_link *l, const kiln_cuda_seat *seat)
{
    say_both(a, l, seat, "pick_link", picked_from);
}

static bool cut_pick(const kiln_cuda_chain *chain, const kiln_cuda_link *l, kiln_cuda_cut *c)
{
    const kiln_kernel *k = kiln_cuda_link_kernel(chain, l);
    return kiln_cuda_cut_rows(picked_from(k), k->ints[0], c);
}

const kiln_cuda_link_kind kiln_cuda_link_pick = {.can = can_pick,
                                                 .make = make_pick,
                                                 .text = say_pick,
                                                 .cut = cut_pick,
                                                 .checks = true,
                                                 .goes_on = true,
                                                 .one_only = true};

/* ---- nll_loss_place ---- */

static bool can_place(const kiln_cuda_call *c, bool large)
{
    (void)large;
    return kiln_cuda_is_float(c->kernel, "nll_loss_place") && fits(c->kernel, placed_in);
}

static bool make_place(kiln_cuda_chain *chain, kiln_cuda_link *l, const kiln_cuda_call *c)
{
    kiln_cuda_around e = kiln_cuda_around_dim(placed_in(c->kernel), c->kernel->ints[0]);
    int64_t threads = KILN_CUDA_CHAIN_THREADS, targets = kiln_cuda_ceil_div(e.outer * e.inner, threads);
    int64_t placed = kiln_cuda_ceil_div(e.outer * e.n * e.inner, threads * 4);
    l->units = targets > placed ? targets : placed;
    return kiln_cuda_add_operands(chain, c->kernel);
}

static void say_place(kiln_cuda_author *a, const kiln_cuda_link *l, const kiln_cuda_seat *seat)
{
    say_both(a, l, seat, "place_link", placed_in);
}

static bool cut_place(const kiln_cuda_chain *chain, const kiln_cuda_link *l, kiln_cuda_cut *c)
{
    const kiln_kernel *k = kiln_cuda_link_kernel(chain, l);
    return kiln_cuda_cut_rows(placed_in(k), k->ints[0], c);
}

const kiln_cuda_link_kind kiln_cuda_link_place = {.can = can_place,
                                                  .make = make_place,
                                                  .text = say_place,
                                                  .cut = cut_place,
                                                  .checks = true,
                                                  .goes_on = true,
                                                  .one_only = true};
