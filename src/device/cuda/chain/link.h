/* A link of a chain is a kernel of the plan, or half of one. What kinds there are is a list of records (links/):
 * whether a kernel can be one, what it needs, into how many units it is cut, how long it takes, and its text. */
#ifndef KILN_CUDA_LINK_H
#define KILN_CUDA_LINK_H

#include "device/cuda/chain/chain.h"
#include "device/cuda/group/text.h"

/* Who writes a chain's text. */
typedef struct kiln_cuda_author {
    kiln_cuda_writer w;
    const kiln_cuda_chain *chain;
    const kiln_cuda_link
        *shared; /* what is written is for all links like this one (alike.h), under `number`; or NULL */
    int number;
} kiln_cuda_author;

/* By which a link's structs are named: not by its kernel's place in the plan, so that chains alike have one text. */
static inline int kiln_cuda_link_number(const kiln_cuda_author *a, const kiln_cuda_link *l)
{
    return a->shared ? a->number : (int)(l - a->chain->links);
}

/* Which units of a link a block does, as text. */
typedef struct kiln_cuda_seat {
    const char *unit; /* the number of a unit */
    const char *seat; /* the same with how many there are, for device functions */
    bool alone;       /* one block does all of them */
} kiln_cuda_seat;

/* How a link can be done in slabs of rows (slabs.c). */
typedef struct kiln_cuda_cut {
    int64_t rows;      /* 0: any number that divides the elements */
    int64_t slab;      /* rows; 0: any number */
    int64_t elements;  /* that rows must divide; 0: none */
    int64_t items;     /* of a slab, as its device function counts them; 0: rows */
    bool columns;      /* rows are columns of what it folds: only the result is touched by rows */
    bool whole_second; /* each slab needs all of the second operand */
} kiln_cuda_cut;

struct kiln_cuda_link_kind {
    /* Whether the kernel of a call can be such a link; `large`: also if it is a product that a library is faster at.
     * NULL: another kind makes it. */
    bool (*can)(const kiln_cuda_call *c, bool large);

    /* Adds pointers and words, sets the units; may settle on a narrower kind, and may add a second half, after which
     * `link` may have moved. False with an error. */
    bool (*make)(kiln_cuda_chain *chain, kiln_cuda_link *link, const kiln_cuda_call *c);

    /* What stands before the kernel, if anything; and what a block does. */
    void (*declare)(kiln_cuda_author *a, const kiln_cuda_link *link);
    void (*text)(kiln_cuda_author *a, const kiln_cuda_link *link, const kiln_cuda_seat *seat);

    /* Of kinds with groups: whether elements always come in full cells, so that the code for parts of one can be left
     * out. */
    bool (*full_cells)(const kiln_cuda_link *link);

    /* NULL: it cannot be done in slabs. */
    bool (*cut)(const kiln_cuda_chain *chain, const kiln_cuda_link *link, kiln_cuda_cut *c);

    /* Nanoseconds, with the device to itself, and of a unit. NULL: by what it moves. */
    int64_t (*time)(const kiln_cuda_chain *chain, const kiln_cuda_link *link);
    int64_t (*unit_time)(const kiln_cuda_chain *chain, const kiln_cuda_link *link);
    bool (*folds)(const kiln_cuda_link *link); /* the threads of a block wait for each other, again and again */

    bool tiles;    /* a product: it has a tiling */
    bool second;   /* it goes on with the link before it, of the same kernel … */
    bool combines; /* … and makes a reduction's result, while what the group stores is there already */
    bool checks;   /* it may call the step off, and sees itself to not writing to a slot then */
    bool gathers;  /* it gathers a batch of samples */
    bool goes_on;  /* its threads go on with the next elements by themselves: it needs no more than two units a block */
    bool one_only; /* one block can take all units in turn, where they are few */
};

/* Those that a kernel can be, NULL-terminated; the first that can is taken. */
extern const kiln_cuda_link_kind *const kiln_cuda_link_kinds[];

/* Time that each store of a link's group takes. */
int64_t kiln_cuda_store_time(const kiln_cuda_chain *chain, const kiln_cuda_link *link);

/* ---- For kinds ---- */

static inline int64_t kiln_cuda_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline const kiln_kernel *kiln_cuda_link_kernel(const kiln_cuda_chain *chain, const kiln_cuda_link *link)
{
    return &chain->plan->kernels[link->kernel];
}

/* Which of a run's addresses a pointer is, or of a shared link's. */
static inline int kiln_cuda_at(const kiln_cuda_author *a, int pointer)
{
    return a->shared ? pointer - a->shared->pointers : a->chain->places[pointer];
}

/* A further link of the same kernel as another, which may move; NULL with an error. */
kiln_cuda_link *kiln_cuda_add_link(kiln_cuda_chain *chain, const kiln_cuda_link_kind *kind, int32_t kernel,
                                   bool guarded);

bool kiln_cuda_add_pointer(kiln_cuda_chain *chain, const kiln_operand *o);
bool kiln_cuda_add_word(kiln_cuda_chain *chain, kiln_cuda_word word);

/* Lowers the group of a call for a link, with its words and pointers. */
bool kiln_cuda_link_group(kiln_cuda_chain *chain, kiln_cuda_link *link, const kiln_cuda_call *c);

/* [outer, n, inner] around a dim. */
typedef struct kiln_cuda_around {
    int64_t outer, n, inner;
} kiln_cuda_around;
kiln_cuda_around kiln_cuda_around_dim(const kiln_operand *x, int64_t dim);

/* Whether a kernel is of an operation of this name and its first operand is f32, f16 or bf16. */
bool kiln_cuda_is_float(const kiln_kernel *k, const char *op);

/* Operands and the result, in their order. */
bool kiln_cuda_add_operands(kiln_cuda_chain *chain, const kiln_kernel *k);

/* Slabs of the rows before dim ints[0], which is the last one of x. */
bool kiln_cuda_cut_rows(const kiln_operand *x, int64_t dim, kiln_cuda_cut *c);

/* How the program of a link's group is written … */
kiln_cuda_naming kiln_cuda_naming_of(const kiln_cuda_author *a, const kiln_cuda_link *link);

/* … and `m`, which is that. */
void kiln_cuda_say_link_program(kiln_cuda_author *a, const kiln_cuda_link *link);

#endif
