/* argmax and argmin of short rows. */
#include <string.h>
#include "device/cuda/chain/link.h"

enum { FOUND_BY_ONE = 64 }; /* elements of a row that one thread goes through */

static bool can(const kiln_cuda_call *c, bool large)
{
    (void)large;
    const kiln_kernel *k = c->kernel;
    if (!kiln_cuda_is_float(k, "argmax") && !kiln_cuda_is_float(k, "argmin"))
        return false;
    kiln_cuda_around e = kiln_cuda_around_dim(&k->in[0], k->ints[0]);
    return e.inner == 1 && e.n > 0 && e.n <= FOUND_BY_ONE && e.outer > 0;
}

static bool make(kiln_cuda_chain *chain, kiln_cuda_link *l, const kiln_cuda_call *c)
{
    kiln_cuda_around e = kiln_cuda_around_dim(&c->kernel->in[0], c->kernel->ints[0]);
    l->units = kiln_cuda_ceil_div(e.outer, KILN_CUDA_CHAIN_THREADS);
    return kiln_cuda_add_operands(chain, c->kernel);
}

static void say_find(kiln_cuda_author *a, const kiln_cuda_link *l, const kiln_cuda_seat *seat)
{
    const kiln_kernel *k = kiln_cuda_link_kernel(a->chain, l);
    kiln_cuda_around e = kiln_cuda_around_dim(&k->in[0], k->ints[0]);
    kiln_cuda_say(&a->w, "find_link<%s>(k.data[%d], k.data[%d], %lldL, %d, %s, %s); ",
                  kiln_cuda_type_name(k->in[0].dtype), kiln_cuda_at(a, l->pointers), kiln_cuda_at(a, l->pointers + 1),
                  (long long)e.outer, (int)e.n, strcmp(k->op->name, "argmin") == 0 ? "true" : "false", seat->seat);
}

static bool cut(const kiln_cuda_chain *chain, const kiln_cuda_link *l, kiln_cuda_cut *c)
{
    const kiln_kernel *k = kiln_cuda_link_kernel(chain, l);
    return kiln_cuda_cut_rows(&k->in[0], k->ints[0], c);
}

const kiln_cuda_link_kind kiln_cuda_link_find = {
    .can = can, .make = make, .text = say_find, .cut = cut, .goes_on = true, .one_only = true};
