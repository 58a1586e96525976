/* Softmax and log softmax of rows that belong to one warp at most. */
#include <string.h>
#include "device/cuda/chain/link.h"

#define say(a, ...) kiln_cuda_say(&(a)->w, __VA_ARGS__)

enum { WARP_ROW = 256 }; /* shorter rows never belong to more than a warp */

static bool can(const kiln_cuda_call *c, bool large)
{
    (void)large;
    const kiln_kernel *k = c->kernel;
    if (!kiln_cuda_is_float(k, "softmax") && !kiln_cuda_is_float(k, "log_softmax"))
        return false;
    kiln_cuda_around e = kiln_cuda_around_dim(&k->in[0], k->ints[0]);
    return e.inner == 1 && e.n > 0 && e.n < WARP_ROW && e.outer > 0;
}

static bool make(kiln_cuda_chain *chain, kiln_cuda_link *l, const kiln_cuda_call *c)
{
    kiln_cuda_around e = kiln_cuda_around_dim(&c->kernel->in[0], c->kernel->ints[0]);
    int64_t lanes = e.n <= KILN_CUDA_SHORT_ROW ? KILN_CUDA_SHORT_ROW : 32;
    l->units = kiln_cuda_ceil_div(e.outer, KILN_CUDA_CHAIN_THREADS / lanes);
    return kiln_cuda_add_operands(chain, c->kernel);
}

static void say_softmax(kiln_cuda_author *a, const kiln_cuda_link *l, const kiln_cuda_seat *seat)
{
    const kiln_kernel *k = kiln_cuda_link_kernel(a->chain, l);
    kiln_cuda_around e = kiln_cuda_around_dim(&k->in[0], k->ints[0]);
    const char *log_of = strcmp(k->op->name, "log_softmax") == 0 ? "true" : "false";
    const char *type = kiln_cuda_type_name(k->in[0].dtype);
    const kiln_cuda_pointer *p = a->chain->pointers + l->pointers;
    if (e.n <= KILN_CUDA_SHORT_ROW)
        say(a, "softmax_short_link<%s>(k.data[%d], k.data[%d], %lldL, %d, %s, %s); ", type,
            kiln_cuda_at(a, l->pointers), kiln_cuda_at(a, l->pointers + 1), (long long)e.outer, (int)e.n, log_of,
            seat->seat);
    else
        say(a, "softmax_link<%s, %d, %s>(k.data[%d], k.data[%d], %lldL, %s, %s); ", type, (int)e.n,
            p[0].bytes % 16 == 0 && p[1].bytes % 16 == 0 ? "true" : "false", kiln_cuda_at(a, l->pointers),
            kiln_cuda_at(a, l->pointers + 1), (long long)e.outer, log_of, seat->seat);
}

static bool cut(const kiln_cuda_chain *chain, const kiln_cuda_link *l, kiln_cuda_cut *c)
{
    const kiln_kernel *k = kiln_cuda_link_kernel(chain, l);
    return kiln_cuda_cut_rows(&k->in[0], k->ints[0], c);
}

const kiln_cuda_link_kind kiln_cuda_link_softmax = {
    .can = can, .make = make, .text = say_softmax, .cut = cut, .goes_on = true, .one_only = true};
