/* The trace: what a thread has written and not forgotten. Nodes are appended in the order they were written, each
 * producing values; a value is never changed (an assignment makes a new value of the same storage), so old values stay
 * readable for gradients. Nodes that ran already stay as long as a gradient may need them; those since `first_node` are
 * pending: the segment that the next flush plans and runs.
 *
 * While a node is recorded, its canonical form is appended to `code`: two segments with equal code are the same step
 * and share a plan. Values from before the segment enter it as imports (windows onto slots), numbered by
 * first use, so that nothing in the code depends on addresses. Floats are kept apart: they may differ between replays.
 */
#ifndef KILN_TRACE_TRACE_H
#define KILN_TRACE_TRACE_H

#include "core/hash.h"
#include "kiln/plan.h"
#include "ops/op.h"
#include "tensor/scope.h"
#include "trace/trail.h"

/* Three lines of the cache. */
typedef struct kiln_value {
    int32_t node; /* what made it; -1: it came from outside (a leaf) */
    int32_t base; /* the value whose storage this is a window of; itself when it is no view */
    uint8_t dtype, ndim;
    bool requires_grad : 1;
    bool needed : 1;     /* set by the flush of its segment: must have memory afterwards */
    bool unrecorded : 1; /* assigned where no gradients were recorded: gradients go on as if it had not been */
    bool assigned : 1;   /* memory holds on to it, also where no handle does */
    bool spent : 1;      /* kiln_backward has gone through it: who holds it does not keep what its gradient reads */
    bool reached : 1;    /* for needs.c */
    bool wanted : 1;     /* by a kiln_grad that is being written */
    uint32_t version;    /* of the storage, when the value was made; of a view that of its base */
    int32_t import;      /* its number among the imports of segment `import_segment` */
    uint32_t import_segment;
    int32_t history;       /* unrecorded: the value it replaced; -1: what each handle showed before */
    int32_t holders;       /* handles and memory that stand for it, if it needs a gradient */
    int32_t number;        /* as the code of its segment knows it: node and output, imports are negative */
    kiln_storage *storage; /* a reference, held by base values only; NULL: kiln_trail_storage makes it */
    kiln_tensor *leaf;     /* where its gradient goes; holds a reference */
    int64_t offset;
    int64_t shape[KILN_MAX_DIMS], stride[KILN_MAX_DIMS];
} kiln_value;

typedef struct kiln_node {
    const kiln_op *op;
    const kiln_op *origin;   /* what the user wrote: op, or the composite operation it is a part of */
    int32_t in, nin;         /* its operands: trace->operands[in …], value numbers, -1 where absent */
    int32_t out, nout;       /* its results: values out … out+nout-1 */
    int32_t ints, nints;     /* trace->ints[ints …] */
    int32_t floats, nfloats; /* trace->floats[floats …] */
    int32_t region;          /* what is computed again for the backward pass, as one (recompute.c); 0: it is kept */
    uint32_t module;         /* the path of the module it was written in, interned; 0: none. Not part of the code */
    int32_t number;          /* its place in the segment, which planning leaves alone */
    bool requires_grad;
    bool again; /* planning wrote it a second time on purpose: it is merged with no other */
    bool alone; /* a pointwise node that planning wants computed where it stands: with what leads to it, not what
                   follows */
    bool back;  /* written by a walk back: a reader of what is computed again */
} kiln_node;

/* Words of the code that begin what is not a node, whose first word is the address of its operation. */
#define KILN_CODE_IMPORT (INT64_MIN + 1)
#define KILN_CODE_END    (INT64_MIN + 2) /* behind it: device, settings, what is kept and assigned */

/* Whether a step is timed (kiln_time_next_step). */
typedef enum kiln_timed {
    KILN_UNTIMED,
    KILN_TIMED_NEXT, /* the next one is */
    KILN_TIMED_NOW
} kiln_timed;

typedef struct kiln_trace {
    uint64_t epoch;
    uint32_t segment; /* counts flushes */
    kiln_value *values;
    int64_t nvalues, values_capacity;
    kiln_node *nodes;
    int64_t nnodes, nodes_capacity;
    int32_t *operands;
    int64_t noperands, operands_capacity;
    int64_t *ints;
    int64_t nints, ints_capacity;
    double *floats;
    int64_t nfloats, floats_capacity;

    /* The pending segment. It belongs to one device: a node for another one flushes it first. */
    kiln_device device;
    int32_t first_node, first_value, first_float;
    int32_t first_region; /* the first region met in the segment: the code counts from there; 0: none yet */
    int32_t *imports;     /* value numbers */
    int64_t nimports, imports_capacity;
    int64_t *import_code; /* where the code has them */
    int64_t import_code_capacity;
    kiln_storage **slots; /* distinct storages behind the imports; no references: the values hold them */
    int64_t nslots, slots_capacity;
    int64_t *code;
    int64_t ncode, code_capacity;
    uint64_t hash; /* of all of the code, filled by a flush that looks for its plan */
    int32_t *kept; /* likewise: base values that get memory of their own, in order */
    int64_t nkept, kept_capacity;
    int32_t *commits; /* likewise: values that are written to storage that has memory */
    int64_t ncommits, commits_capacity;
    int32_t *commit_slots; /* of the commits, one by one */
    int64_t commit_slots_capacity;
    kiln_address *addresses; /* of slots and outputs, for the run */
    int64_t naddresses, addresses_capacity;
    kiln_block *blocks; /* memory of the outputs, for the run */
    int64_t nblocks, blocks_capacity;

    kiln_map leaves;            /* leaf tensor → value */
    kiln_map slot_of;           /* storage → slot of this segment */
    kiln_map written;           /* storage that was assigned to → its newest base value */
    kiln_map own;               /* for needs.c: storage or handle → references that the trace has to it */
    struct kiln_replaced_grad { /* what .grad was before the pending segment, should that be discarded */
        kiln_tensor *leaf, *grad;
    } * replaced;
    int64_t nreplaced, replaced_capacity;
    int64_t graph_handles; /* holders of values that need gradients and are not spent */
    int64_t nassigned;     /* values that are marked as assigned */
    int64_t unlooked;      /* nodes recorded and questions asked since needs.c last looked at all values */
    bool looked;           /* it did so for this flush */
    int64_t overwrites;    /* assignments of the segment to memory that is there */
    int32_t *walked;       /* where kiln_backward began since the last look at what is spent */
    int64_t nwalked, walked_capacity;
    struct kiln_trace_move { /* when the segment has run, the value is where its copy is */
        int32_t value, copy;
    } * moves;
    int64_t nmoves, moves_capacity;
    struct kiln_reached *spare_grads; /* of the last walk back, for the next one: all of them empty */
    int64_t spare_grads_capacity;
    int32_t *spare_arrived;
    int64_t spare_arrived_capacity;
    kiln_trail trail;    /* of the last step, should this one be the same */
    int walks;           /* gradients being written: they know values by number */
    bool eager;          /* KILN_EAGER=1: flush after each node */
    bool busy;           /* inside a flush */
    bool planned;        /* since the step began, a plan had to be made */
    int fresh_steps;     /* steps in a row that were so */
    bool told_fresh;     /* that has been said */
    bool told_recompute; /* so has that steps are made to fit by computing values twice */
    bool tf32;           /* kiln_get_tf32 when the segment was closed: it belongs to the plan */

    struct kiln_rerun *watcher; /* who wants to run the pending step again; NULL: nobody */
    kiln_timed timing;
    kiln_kernel_time *times; /* of the last step that was timed, or of this one so far */
    int64_t ntimes, times_capacity;
} kiln_trace;

/* The calling thread's trace; NULL with an error when memory runs out. */
kiln_trace *kiln_trace_make(void);
static inline kiln_trace *kiln_trace_current(void)
{
    return kiln_thread_current && kiln_thread_current->trace ? kiln_thread_current->trace : kiln_trace_make();
}

/* ---- Handles and values (handle.c) ---- */

/* The value a handle stands for now, recording a window or a leaf where needed; -1 with an error. */
int32_t kiln_trace_value(kiln_trace *tr, kiln_tensor *t);

/* All of what t is a window of, as gradients see it: a handle; NULL with an error. */
kiln_tensor *kiln_trace_whole(kiln_trace *tr, kiln_tensor *t);

/* True if the handle's value is one of this trace, and the newest one. */
static inline bool kiln_trace_knows(const kiln_trace *tr, const kiln_tensor *t)
{
    return t->epoch == tr->epoch && t->version == t->storage->version;
}

/* A handle for a value, as it was when the value was made. */
kiln_tensor *kiln_trace_handle(kiln_trace *tr, int32_t value);
kiln_tensor *kiln_trace_handle_of(kiln_trace *tr, int32_t value, kiln_storage *s); /* takes over a reference to s */

/* ---- What gradients can still need (needs.c) ---- */

/* Somebody holds a value that needs a gradient (by = 1), or holds it no more (-1). */
void kiln_trace_hold(kiln_trace *tr, int32_t value, int by);

/* kiln_backward has gone through what the value was computed from; false with an error. */
bool kiln_trace_walked(kiln_trace *tr, int32_t value);

/* Makes room for counting the references to `more` further leaves or assigned values: a look needs no memory then, and
 * cannot fail. False with an error. */
static inline bool kiln_trace_reserve_own(kiln_trace *tr, int64_t more)
{
    return kiln_map_reserve(&tr->own, tr->leaves.count + tr->nassigned + more);
}

/* What the gradients of the node's operands that want one read: KILN_READS_*. */
unsigned kiln_trace_reads(const kiln_trace *tr, const kiln_node *n);

/* Somebody has let go of what perhaps nobody but the trace has now: the next look is a look at everything. */
static inline void kiln_trace_look_next(kiln_trace *tr)
{
    tr->unlooked = tr->nvalues;
}

/* True if a gradient may still be asked for. */
bool kiln_trace_has_graph(kiln_trace *tr);

/* Before the segment runs: marks what gradients recorded later may read, and sees to it that what the segment
 * overwrites of that is saved. False with an error. */
bool kiln_trace_mark_needed(kiln_trace *tr);

/* After it has run: values are where they were saved to; what is not needed gives up its memory. */
void kiln_trace_moved(kiln_trace *tr);
void kiln_trace_release_unneeded(kiln_trace *tr);

/* ---- Recording ---- */

/* A view shows its first operand; what else it has are values that its gradient goes to. They are not read. */
static inline bool kiln_trace_is_path(const kiln_op *op, int operand)
{
    return operand > 0 && op->cls == KILN_CLASS_VIEW;
}

/* The next value, its own base and of no import yet; there must be room. */
kiln_value *kiln_trace_new_value(kiln_trace *tr, int32_t node, kiln_storage *storage, int dtype, int ndim,
                                 const int64_t *shape, const int64_t *stride, int64_t offset, bool requires_grad);

/* Makes a value from before the segment, or a leaf, readable in it; false with an error. */
bool kiln_trace_import(kiln_trace *tr, int32_t value);

/* Appends a checked call. out[j] receives handles; `out` may be NULL where nobody wants them. `bind`: the storages that
 * the outputs live in, or NULL for new ones. */
bool kiln_trace_record(kiln_trace *tr, const kiln_call *call, kiln_device device, kiln_storage *const *bind,
                       kiln_tensor **out);

/* Appends a checked call whose results to[j] hold from now on: each is the whole of its storage, or the call makes the
 * whole of it. */
bool kiln_trace_assign(kiln_trace *tr, const kiln_call *call, kiln_tensor *const *to);

/* Begins a phrase (trail.h) of such a call, whose results are among its operands; *done: the last step has it, and it
 * was appended. Otherwise it is the caller's to write. False with an error. */
bool kiln_trace_assign_again(kiln_trace *tr, const kiln_call *call, kiln_tensor *const *to, bool *done);

/* Appends a word to the segment's code; there must be room. */
static inline void kiln_trace_put(kiln_trace *tr, int64_t word)
{
    tr->code[tr->ncode++] = word;
}

/* Makes the storage a slot of the segment; false with an error. */
bool kiln_trace_slot(kiln_trace *tr, kiln_storage *s, int32_t *slot);

/* False with an error if the storage has nothing to read: pending elsewhere, or its step was discarded. */
bool kiln_trace_fail_no_value(const kiln_storage *s, const char *who);
static inline bool kiln_trace_has_value(const kiln_storage *s, const char *who)
{
    return (s->has_memory && kiln_storage_computed(s)) || kiln_trace_fail_no_value(s, who);
}

/* For thunks (thunk.h). Records the operation: a handle for its result, or NULL with an error. */
kiln_tensor *kiln_trace_follow(kiln_trace *tr, const kiln_tensor *t);
int32_t kiln_trace_made_value(kiln_trace *tr, kiln_tensor *t); /* the same once a trace: the value; -1 with an error */

/* Computes the tensor, if it is a thunk: an ordinary one from then on. False with an error. */
bool kiln_trace_force(kiln_tensor *t);

/* Copies elements of a storage that has a value to the host, before or after what other threads do to it. */
bool kiln_trace_copy_out(kiln_storage *s, void *to, kiln_address from, size_t bytes);

/* Starts the next segment: all nodes so far have run. */
void kiln_trace_next_segment(kiln_trace *tr);

/* The pending segment has run (or not: `restore`): forgets the gradients it replaced, or puts them back. */
void kiln_trace_finish_grads(kiln_trace *tr, bool restore);

/* Makes g the gradient of t, which has one already; the old one comes back if the pending segment is discarded. */
bool kiln_trace_replace_grad(kiln_trace *tr, kiln_tensor *t, kiln_tensor *g);

/* Outside steps, where nothing else does: runs off what has piled up, and forgets what no one can ask for any more. */
bool kiln_trace_tidy(kiln_trace *tr);

/* The same where something was given up or updated: what was assigned since is run, and what nobody can see of the rest
 * is forgotten. False with an error. */
bool kiln_trace_end_segment(kiln_trace *tr);

/* True if a handle shows the storage of a pending value. */
static inline bool kiln_trace_is_seen(const kiln_storage *s)
{
    return atomic_load_explicit(&s->refs, memory_order_relaxed) > s->trace_refs;
}

/* Forgets everything: values of live handles must have memory. */
void kiln_trace_clear(kiln_trace *tr);

/* Forgets everything, and what is pending has never happened: storages are at the version their memory holds. */
void kiln_trace_discard(kiln_trace *tr);

/* Numbers recorded from trace->floats[at] on were made for this step: the owner has others for the next one. False with
 * an error. Implemented by plan/rerun.c. */
bool kiln_trace_vary(kiln_trace *tr, const void *owner, int64_t index, int64_t at, int64_t count);

/* Plans and runs the pending segment. `final`: nothing will be differentiated afterwards, so only what live handles can
 * see is kept. On failure the segment is discarded, nothing was changed, and false is returned with an error.
 * Implemented by the planner. */
bool kiln_flush(kiln_trace *tr, bool final);

/* True if the operation has a kernel for this dtype on the device (implemented by the device layer). */
bool kiln_device_supports(kiln_device device, const kiln_op *op, kiln_dtype dtype);

#endif
