/* A batch gathered out of a data set that lies on the device. */
#include <string.h>
#include "device/cuda/chain/link.h"

#define say(a, ...) kiln_cuda_say(&(a)->w, __VA_ARGS__)
#define LL(x)       ((long long)(x))

static bool can(const kiln_cuda_call *c, bool large)
{
    (void)large;
    return c->kernel->op && strcmp(c->kernel->op->name, "take_samples") == 0 && kiln_cuda_count_of(&c->out[0]) > 0;
}

/* The data, the table or nothing, the batch; scalars stay the doubles they are. */
static bool make(kiln_cuda_chain *chain, kiln_cuda_link *l, const kiln_cuda_call *c)
{
    const kiln_kernel *k = c->kernel;
    const kiln_operand nothing = {.buffer = -1};
    kiln_cuda_samples_describe(c, &l->samples);
    int64_t blocks = kiln_cuda_ceil_div(l->samples.rows * l->samples.units, KILN_CUDA_CHAIN_THREADS / 2);
    l->units = blocks < chain->costs->blocks ? blocks : chain->costs->blocks; /* each finds its rows first */
    for (int i = 0; i < KILN_SAMPLES_SCALARS; i++)
        if (!kiln_cuda_add_word(chain, (kiln_cuda_word){.scalar = k->scalars + i, .cls = KILN_PW_F64}))
            return false;
    return kiln_cuda_add_pointer(chain, &k->in[0]) && kiln_cuda_add_pointer(chain, k->nin > 1 ? &k->in[1] : &nothing) &&
           kiln_cuda_add_pointer(chain, &k->out[0]);
}

static void say_samples(kiln_cuda_author *a, const kiln_cuda_link *l, const kiln_cuda_seat *seat)
{
    const kiln_cuda_samples *q = &l->samples;
    char scalars[48];
    if (a->chain->alone)
        snprintf(scalars, sizeof scalars, "(const double *)(k.words + %d)", l->words);
    else
        snprintf(scalars, sizeof scalars, "k.scalars + k.first[%d]", kiln_cuda_scalars_before(a->chain, l));
    say(a,
        "const kiln_cuda_samples q = {k.data[%d], (const float *)k.data[%d], k.data[%d], %s, {%lldL, %d, %d, %d}, "
        "%lldL, %lldL, %lldL, %lldL, %d, %d, %d, %d, %lldL, %lldL, %lluUL}; ",
        kiln_cuda_at(a, l->pointers), kiln_cuda_at(a, l->pointers + 1), kiln_cuda_at(a, l->pointers + 2), scalars,
        LL(q->order.n), q->order.low_bits, q->order.high_bits, q->order.rounds, LL(q->rows), LL(q->units), LL(q->start),
        LL(q->distance), q->how, q->width, q->flip, q->crop, LL(q->image_height), LL(q->image_width),
        (unsigned long long)q->blank);
    say(a, "kiln_cuda_take_samples<%s>(q, (kiln_cuda_samples_room *)scratch, %s, %lld, threadIdx.x, blockDim.x); ",
        q->flip || q->crop ? "true" : "false", seat->unit, LL(l->units));
}

const kiln_cuda_link_kind kiln_cuda_link_samples = {.can = can, .make = make, .text = say_samples, .gathers = true};
