/* A plan: what a segment of the trace becomes. It is made once for each distinct segment, is immutable afterwards, and
 * holds everything a device needs: the kernels in their order, each with its operands as windows onto buffers, and
 * where each buffer lies. Addresses, run-time scalars and the contents of slots come in with each run (kiln_binding).
 */
#ifndef KILN_PLAN_PLAN_H
#define KILN_PLAN_PLAN_H

#include <stdatomic.h>
#include "core/arena.h"
#include "ops/op.h"
#include "ops/pointwise.h"

/* Where the bytes of a buffer are. */
typedef enum kiln_place {
    KILN_IN_SLOT,   /* storage that existed before: parameters, batches, kept results. Written only by commits */
    KILN_IN_OUTPUT, /* fresh storage that outlives the run */
    KILN_IN_ARENA   /* scratch */
} kiln_place;

typedef struct kiln_buffer {
    kiln_place place;
    int32_t index;  /* which slot or output */
    int64_t offset; /* in the arena */
    int64_t bytes;
    int8_t role;         /* kiln_role */
    int32_t first, last; /* kernels that write it first and use it last */

    /* For messages: what is in it, and what the user wrote that makes it; NULL: slots and workspaces. */
    const kiln_op *origin;
    uint8_t ndim;
    int64_t shape[KILN_MAX_DIMS];
} kiln_buffer;

/* A strided window onto a buffer; offset and strides in elements. */
typedef struct kiln_operand {
    int32_t buffer; /* -1: absent */
    uint8_t dtype, ndim;
    bool dense;
    int64_t shape[KILN_MAX_DIMS], stride[KILN_MAX_DIMS], offset;
} kiln_operand;

/* One instruction of a fused group: register dst = row(registers a, b, c; scalars …). The type of a register is that of
 * the value it holds. */
typedef struct kiln_instr {
    int16_t row;     /* of pointwise.def */
    uint8_t dtype;   /* of the result */
    uint8_t from;    /* dtype of the operands (of the last one where a condition comes first) */
    int16_t src[3];  /* registers; -1: none */
    int16_t dst;     /* registers are numbered: loads first, then one an instruction */
    int32_t scalars; /* first run-time scalar; how many the row knows */
    int32_t node;
} kiln_instr;

typedef struct kiln_store {
    int16_t src;     /* register */
    kiln_operand to; /* dense, of `count` elements */
} kiln_store;

/* A register that a group before an operation leaves to it, in place of an operand. */
typedef struct kiln_gift {
    int16_t src;
    int8_t operand;
} kiln_gift;

/* Pointwise work on `count` elements in row-major order, element i of every register belonging to element i of every
 * other; optionally ended by a reduction of one register, or fed by an operation whose first result is register `head`,
 * or both where that is a product, the reduction is a sum of integers over all elements, and the device
 * counts_products. Or it stands before an operation and makes operands of it. */
typedef struct kiln_group {
    int64_t count;
    int nloads, ninstrs, nstores;
    kiln_operand *loads; /* each broadcast to `count` elements: its own shape and strides, 0 where repeated */
    kiln_instr *instrs;
    kiln_store *stores;
    int16_t head; /* the register that the operation before it fills; -1: none. Counts as the last load */
    int ngifts;   /* of a group before an operation: operands that it makes */
    kiln_gift gifts[KILN_MAX_LED];
    bool reduces;
    kiln_fold fold;
    int16_t reduce_src;
    uint32_t reduce_dims; /* which dims of reduce_shape go */
    int reduce_ndim;      /* loads of a reducing group all have this shape */
    int64_t reduce_shape[KILN_MAX_DIMS];
    kiln_operand reduce_to;
} kiln_group;

/* How a device computes a kernel, where more than the kernel's shapes decides that: a device says it of a plan (choose
 * in device.h), and keeps to it in one that has to give the same bits (draft.h). */
typedef struct kiln_choice {
    uint64_t how; /* the device's own words; 0: as it likes */
    int32_t by;   /* another kernel makes its result along with its own: the number of that one and 1 more; 0: none */
} kiln_choice;

typedef struct kiln_kernel {
    const kiln_op *op;     /* NULL for a group without head or reduction */
    const kiln_op *origin; /* what the user wrote, for messages: op or the composite operation it is a part of; of a
                            * group that of its product or reduction, else of its first node */
    const char *module;    /* the path of the module that wrote that, interned, in the step that the plan was made for;
                            * NULL: none. kiln_plan_module tells it of another step, whose names may differ */
    bool back;             /* a walk back wrote it, or it runs again for one */
    int32_t number;        /* of that node in the segment, as it was recorded */
    int32_t node;          /* and in the draft */
    int nin, nout;
    kiln_operand *in, *out;
    const int64_t *ints;
    int nints, nscalars;
    int32_t scalars;   /* first run-time scalar */
    kiln_group *group; /* pointwise and reduce kernels; what finishes the first result of an operation, which has no
                        * place of its own then; else NULL */
    kiln_group *lead;  /* what makes operands of an operation, which have no place of their own; else NULL */
    int32_t workspace; /* buffer, -1: none */
    int64_t flops, bytes;
    bool tf32; /* products of f32 may round their operands to TF32 */
    uint8_t
        rounds_to; /* products, by devices that read through casts: operands of f32 are read as if of this dtype; 0: no
                    */
    bool commits;  /* it stores to a slot */
    kiln_choice choice;
} kiln_kernel;

/* What a device can do with an operation (can in device.h). */
enum {
    KILN_CAN_END = 1,   /* a group may finish its first result */
    KILN_CAN_LEAD = 2,  /* a group may make operands which its record says can be led */
    KILN_CAN_WINDOW = 4 /* results may be windows of larger buffers: strides say where elements go */
};

/* What a kernel reads and writes, one after the other:
 *
 *     for (kiln_access a = {0}; kiln_next_access(k, &a);) …
 *
 * operands, loads of its groups, results, stores, what a reduction leaves, workspace; absent ones are left out. */
typedef enum kiln_access_kind {
    KILN_ACCESS_OPERAND,
    KILN_ACCESS_LEAD_LOAD,
    KILN_ACCESS_LOAD,
    KILN_ACCESS_RESULT,
    KILN_ACCESS_LEAD_STORE,
    KILN_ACCESS_STORE,
    KILN_ACCESS_REDUCTION,
    KILN_ACCESS_WORKSPACE,
    KILN_ACCESSES
} kiln_access_kind;

typedef struct kiln_access {
    kiln_access_kind kind;
    int number;                  /* of its kind */
    const kiln_operand *operand; /* NULL: the workspace */
    int32_t buffer;
    bool writes;
    int next; /* number to go on with */
} kiln_access;

static inline bool kiln_next_access(const kiln_kernel *k, kiln_access *a)
{
    const kiln_group *g = k->group, *lead = k->lead;
    const int counts[KILN_ACCESSES] = {k->nin,
                                       lead ? lead->nloads : 0,
                                       g ? g->nloads : 0,
                                       k->nout,
                                       lead ? lead->nstores : 0,
                                       g ? g->nstores : 0,
                                       g && g->reduces,
                                       1};
    for (; a->kind < KILN_ACCESSES; a->kind++, a->next = 0)
        while (a->next < counts[a->kind]) {
            int i = a->number = a->next++;
            switch (a->kind) {
            case KILN_ACCESS_OPERAND: a->operand = &k->in[i]; break;
            case KILN_ACCESS_LEAD_LOAD: a->operand = &lead->loads[i]; break;
            case KILN_ACCESS_LEAD_STORE: a->operand = &lead->stores[i].to; break;
            case KILN_ACCESS_LOAD: a->operand = &g->loads[i]; break;
            case KILN_ACCESS_RESULT: a->operand = &k->out[i]; break;
            case KILN_ACCESS_STORE: a->operand = &g->stores[i].to; break;
            case KILN_ACCESS_REDUCTION: a->operand = &g->reduce_to; break;
            default: a->operand = NULL;
            }
            a->buffer = a->operand ? a->operand->buffer : k->workspace;
            a->writes = a->kind >= KILN_ACCESS_RESULT;
            if (a->buffer >= 0)
                return true;
        }
    return false;
}

/* A word of the code that may be any offset. `end`: where a slice ends, as far behind the word before it as ever. */
typedef struct kiln_wild {
    int64_t at;
    bool end;
} kiln_wild;

/* An offset that comes with each run: of which import, view or node of the segment (a node has it as its last integer).
 */
typedef enum kiln_offset_of { KILN_OFFSET_OF_IMPORT, KILN_OFFSET_OF_VIEW, KILN_OFFSET_OF_NODE } kiln_offset_of;
typedef struct kiln_offset {
    kiln_offset_of what;
    int32_t number;
} kiln_offset;

typedef struct kiln_plan {
    atomic_int refs;
    kiln_device device;
    uint64_t hash;
    int64_t *code; /* what it was made from, to compare in full */
    int64_t ncode;
    kiln_wild *wild; /* words of the code that may be any offsets, in order */
    int64_t nwild;
    uint64_t alike_hash; /* of the code without offsets */

    int64_t nnodes;
    int64_t nkernels, nbuffers;
    kiln_kernel *kernels;
    kiln_buffer *buffers;
    int32_t nslots, noutputs, nscalars;
    int32_t noffsets;      /* the last ones of the scalars */
    kiln_offset *offsets;  /* what they are */
    int64_t *output_bytes; /* by output, rounded up as memory is taken */
    int64_t arena_bytes, all_output_bytes;
    int64_t flops, bytes;
    double seconds;                 /* that it takes at best, by the table of roof.h */
    int64_t recomputed;             /* nodes that run twice */
    int64_t role_bytes[KILN_ROLES]; /* what the step touches, by role */
    int64_t activation_peak;        /* the most bytes of activations that are needed at one time */

    void *exec;                                     /* what the device made of it */
    int64_t held;                                   /* bytes of host memory that it takes with that */
    struct kiln_plan *newer, *older, *same, *alike; /* the cache's lists */
    struct kiln_arena pool;                         /* all of the above arrays */
} kiln_plan;

/* One run: addresses and numbers that differ between runs. */
typedef struct kiln_binding {
    const kiln_address *slots, *outputs;
    kiln_address arena;
    const double *scalars;
    kiln_run *run; /* NULL on devices whose runs are done when they return */
} kiln_binding;

/* What a device has measured of a run (time in device.h): all that it launched for the kernels first … end-1 of the
 * plan. These are one, also where it takes several launches, or several that the device does in one. */
typedef struct kiln_launch_time {
    int32_t first, end;
    double microseconds;
} kiln_launch_time;

typedef struct kiln_timing {
    kiln_launch_time *launches; /* in the order they ran, with room for as many as kernels */
    int64_t count;
} kiln_timing;

/* An index out of range that a kernel met. */
typedef struct kiln_bad_index {
    int32_t kernel; /* -1: none */
    int64_t index, limit;
} kiln_bad_index;

struct kiln_trace;

/* What a plan may take: at most `cap` bytes, and more than `floor`, so that plans for less always take less. Without
 * one the step takes `plain` bytes. */
typedef struct kiln_budget {
    int64_t cap, floor, plain;
} kiln_budget;

/* Plans the pending segment of `tr`, whose kept values and commits are known, and lowers it. `wild`: words of its code,
 * offsets, that come with each run. `budget`: what it may take; NULL: whatever it needs. One reference; NULL with an
 * error, or without one where the budget cannot be kept. */
kiln_plan *kiln_plan_build(struct kiln_trace *tr, const kiln_wild *wild, int64_t nwild, const kiln_budget *budget);
kiln_plan *kiln_plan_draw(struct kiln_trace *tr); /* the same to be looked at: not lowered, it cannot run */
void kiln_plan_unref(kiln_plan *plan);

/* Figures of what is pending, planned to be looked at: neither lowered nor kept. False with an error. */
bool kiln_plan_sketch(kiln_plan_info *info);

/* The cache. A found plan comes with a reference; an added one is shared from then on. */
kiln_plan *kiln_plan_find(uint64_t hash, const int64_t *code, int64_t ncode);
kiln_plan *kiln_plan_find_newest(const int64_t *code, int64_t ncode); /* if it was found or added last: needs no hash */
void kiln_plan_add(kiln_plan *plan);

/* A plan for the same code at other offsets. If there is none, but one whose code differs in offsets alone, *wild
 * receives which words these are: `nwild` of them, to be freed. NULL, with an error only if memory ran out. */
kiln_plan *kiln_plan_find_alike(const int64_t *code, int64_t ncode, kiln_wild **wild, int64_t *nwild);

/* The plan that was found or added last, with a reference; NULL if there is none. */
kiln_plan *kiln_plan_newest(void);

/* False with KILN_E_MEMORY if the pending step cannot fit beside what is in use: what it needs, and who has the memory
 * (refuse.c). */
bool kiln_plan_check_room(const struct kiln_trace *tr, const kiln_plan *plan);

/* The device had no more to give to the step, which was found to fit: says why in place of the error, if that can be
 * told. */
void kiln_plan_explain(const struct kiln_trace *tr, const kiln_plan *plan);

/* The largest batch with which a step that does not fit into `left` bytes would; 0: that is not known, -1: not even one
 * sample does. *batch receives the one it was recorded with. */
int64_t kiln_plan_fitting_batch(const struct kiln_trace *tr, const kiln_plan *plan, int64_t left, int64_t *batch);

/* A step of this thread that was refused: the bytes that it needed, those that were left, and the batch that would have
 * fitted, as kiln_plan_fitting_batch has it. */
typedef struct kiln_refused {
    int64_t need, left, fits;
} kiln_refused;

/* The last one; false where there was none since the last call. */
bool kiln_plan_refused(kiln_refused *last);

/* For kiln_plan_last: this thread has run the plan; `found`: it was there already. */
void kiln_plan_was_run(const kiln_plan *plan, bool found);

/* A person's description of the plan of what is pending in `tr`; NULL with an error. */
char *kiln_plan_text(const struct kiln_trace *tr, const kiln_plan *plan);

/* The path of the module that the kernel comes from in the pending segment of `tr`, which the plan is for; "": the root
 * of a tree, NULL: none. */
const char *kiln_plan_module(const struct kiln_trace *tr, const kiln_kernel *kernel);

/* What a kernel does, in a few words: "matmul then add·relu". Cut where there is no room. */
void kiln_kernel_title(const kiln_kernel *kernel, char *text, size_t size);

/* The address of a buffer in a run. */
static inline kiln_address kiln_buffer_address(const kiln_plan *plan, const kiln_binding *b, int32_t buffer)
{
    const kiln_buffer *x = &plan->buffers[buffer];
    return x->place == KILN_IN_ARENA ? b->arena + (uint64_t)x->offset
                                     : (x->place == KILN_IN_SLOT ? b->slots : b->outputs)[x->index];
}

#endif
