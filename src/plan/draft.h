/* A plan in the making: the passes work on this, one after the other, in the order of the functions below.
 *
 * Values are numbered anew: the segment's imports first, then the values made in it. Everything about memory concerns
 * base values; a view is a window whose `base` is followed. `canon` leads from a value that turned out to be the same
 * as an earlier one to that one. */
#ifndef KILN_PLAN_DRAFT_H
#define KILN_PLAN_DRAFT_H

#include "core/arena.h"
#include "plan/plan.h"
#include "trace/trace.h"

typedef struct kiln_draft_value {
    const kiln_value *v; /* geometry, dtype, storage */
    int32_t base;        /* the value whose memory it is a window of */
    int32_t canon;       /* what it is the same as; itself at first. Of base values only */
    int32_t node;        /* what makes it, counted from the segment's first node; -1: import */
    int32_t slot;        /* imports: which; also where a commit writes to, else -1 */
    int32_t output;      /* kept results: which; else -1 */
    int32_t group;       /* the earliest group that uses it, -1: none yet */
    int32_t buffer;      /* -1: none */
    bool commits;        /* its storage exists already: it is written to `slot` */
    bool fusable;        /* every use in `group` reads it element by element, in order */
    bool elsewhere;      /* used by more groups than `group` */
    bool checked;        /* a kernel looks whether its elements are good indices */
    bool joins;          /* a device computes kernels together that read or make it: they must not be torn apart */
    bool live;
} kiln_draft_value;

typedef enum kiln_shape_of_work {
    KILN_WORK_GROUP, /* pointwise, perhaps with a reduction at its end or a heavy operation at its start */
    KILN_WORK_KERNEL /* one node of any other class */
} kiln_shape_of_work;

typedef struct kiln_draft_group {
    kiln_shape_of_work work;
    int32_t last; /* the newest node of it that was added (they are added backwards), linked by node_next */
    int32_t nnodes;
    int32_t head, root; /* nodes: the heavy operation at its start, the reduction at its end; -1 */
    int64_t count;
    bool permuted;      /* the reduction walks the elements in another order than memory's */
    kiln_choice choice; /* `by`: a node of the other group, and 1 more */
} kiln_draft_group;

typedef struct kiln_draft {
    const kiln_trace *tr; /* the segment's, or a copy of it in which formulas are written out */
    kiln_arena scratch;   /* gone when the plan is finished */
    kiln_arena *pool;     /* the plan's own */
    kiln_plan *plan;
    const kiln_wild *wild; /* words of the code that are to be run-time numbers */
    int64_t nwild;
    int32_t nimports, nvalues, nnodes;
    kiln_draft_value *values;
    bool *node_live;
    int32_t *node_group, *node_next;
    kiln_draft_group *groups; /* in the order they were opened: the reverse of the order they run in */
    int32_t ngroups;
    bool tight;  /* no room is to be left unused */
    bool chosen; /* groups know how the plain plan computes them */
} kiln_draft;

/* The draft's number of a trace value. */
static inline int32_t kiln_draft_of(const kiln_draft *d, int32_t value)
{
    const kiln_value *v = &d->tr->values[value];
    return v->import_segment == d->tr->segment ? v->import : d->nimports + value - d->tr->first_value;
}

static inline const kiln_node *kiln_draft_node(const kiln_draft *d, int32_t n)
{
    return &d->tr->nodes[d->tr->first_node + n];
}

/* Operand i of node n as a draft value; -1 when absent. */
static inline int32_t kiln_draft_in(const kiln_draft *d, const kiln_node *n, int i)
{
    int32_t value = d->tr->operands[n->in + i];
    return value < 0 ? -1 : kiln_draft_of(d, value);
}

/* The base value whose memory a draft value lies in, after merging. */
static inline int32_t kiln_draft_base(const kiln_draft *d, int32_t value)
{
    int32_t b = d->values[value].base;
    while (d->values[b].canon != b)
        b = d->values[b].canon;
    return b;
}

/* The base value behind operand k, if a node of the segment makes it; else -1. */
static inline int32_t kiln_draft_made(const kiln_draft *d, const kiln_node *n, int k)
{
    int32_t in = kiln_draft_in(d, n, k), b = in < 0 ? -1 : kiln_draft_base(d, in);
    return b >= 0 && d->values[b].node >= 0 ? b : -1;
}

/* True if a window reads its base's elements in order, all of them. */
bool kiln_draft_in_order(const kiln_draft *d, int32_t value);

int64_t kiln_draft_numel(const kiln_value *v);

/* What the device can do with the node: KILN_CAN_*. Few classes are asked for at all. */
unsigned kiln_draft_abilities(const kiln_draft *d, const kiln_node *n);

bool kiln_draft_vary(kiln_draft *d);      /* offsets become run-time numbers */
bool kiln_draft_expand(kiln_draft *d);    /* writes out formulas */
bool kiln_draft_import(kiln_draft *d);    /* numbers values, finds what must be kept */
bool kiln_draft_merge(kiln_draft *d);     /* common subexpressions, copies that need not be made */
bool kiln_draft_chunk(kiln_draft *d);     /* takes what is too large to be whole through the step by rows */
bool kiln_draft_widen(kiln_draft *d);     /* keeps 16-bit values instead of f32 ones that they were cast to */
bool kiln_draft_pitch(kiln_draft *d);     /* lengthens rows of matrices to what suits the device's products */
void kiln_draft_prune(kiln_draft *d);     /* marks what is live */
bool kiln_draft_fuse(kiln_draft *d);      /* puts nodes into groups */
bool kiln_draft_order(kiln_draft *d);     /* moves groups that nobody waits for */
bool kiln_draft_recompute(kiln_draft *d); /* runs again, for the walk back, what the program wants run again */
bool kiln_draft_kernels(kiln_draft *d);   /* writes kernels and buffers */
bool kiln_draft_place(kiln_draft *d);     /* memory: offsets, in-place reuse */
void kiln_draft_count(kiln_draft *d);     /* FLOP and bytes */

/* Which base values are made at their place in the result of a cat: by value, that result; -1: none. False with an
 * error. */
bool kiln_draft_find_parts(kiln_draft *d, int32_t *whole);

/* Lets the operand, of such a value, lie there. False if it cannot. */
bool kiln_draft_lay_part(const kiln_draft *d, int32_t part, int32_t whole, kiln_operand *o);

/* Gives the buffers of the arena, of so many bytes, other offsets if that takes less than *end; buffer b goes on where
 * follows[b] was, unless that is -1. False with an error. */
bool kiln_draft_pack(kiln_draft *d, const int32_t *follows, int64_t *end, const int64_t *bytes);

/* Plans a copy of the draft, `until` rewritten unless it is NULL, up to where memory is placed; the bytes it needs, or
 * -1 with an error. With `keep`, which has a plan, the copy is handed over: its scratch memory and its plan's pool are
 * to be freed. */
int64_t kiln_draft_try(const kiln_draft *d, const int32_t *until, kiln_draft *keep);

/* Lets the device choose how it computes the draft as it is, and groups keep to that from now on, whatever becomes of
 * the draft: so their bits stay those of the plain plan. Once; nothing where shapes alone decide. False with an error.
 */
bool kiln_draft_choose(kiln_draft *d);

/* Runs parts of the draft again so that all of it needs no more than b->cap bytes (evict.c). */
typedef enum kiln_fit { KILN_FITS, KILN_FITS_NOT, KILN_FIT_FAILED /* with an error */ } kiln_fit;
kiln_fit kiln_draft_fit(kiln_draft *d, const kiln_budget *b);

/* From now on values of more bytes are cut, in plans that are made: tests have small ones cut. 0: as the environment
 * says. */
void kiln_chunk_above(int64_t bytes);

/* From now on rows are lengthened for products of any type whose dims have so many elements, on devices where that may
 * matter: tests have small ones. 0: for those that gain by it. */
void kiln_pitch_from(int64_t elements);

enum { KILN_NEVER_GONE = INT32_MAX };

/* Groups run in this order from now on, but for those parts of them that are run again: who reads base value v behind
 * place until[v] of the order reads a copy of it, made just before the first of these readers; KILN_NEVER_GONE: all
 * read v itself. until[v] is not before the place where v is made. False with an error. */
bool kiln_draft_rewrite(kiln_draft *d, const int32_t *until);

/* Marks the node, and what leads to it within its group when that is run again at this place. True if that is more than
 * before. */
bool kiln_draft_add_part(const kiln_draft *d, int32_t node, const int32_t *until, int32_t place, bool *part);

/* True for a base value that a live node makes, which may run twice, and that need not be there afterwards. */
bool kiln_draft_can_recompute(const kiln_draft *d, int32_t value);

/* When the last kernel runs that can meet a bad index; -1: none can. */
bool kiln_draft_find_checks(kiln_draft *d, int32_t *last_check);

#endif
