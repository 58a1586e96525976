/* What the last step wrote, for the next one.
 *
 * Steps of a training loop write the same nodes, number by number. What a step wrote stays in the lists of the trace
 * when it is over: beyond the end of each list lies what the last step has there. A step that writes something
 * compares it with what it writes over, and as long as nothing differs (`intact`), the rest of the last step is still
 * there. A call that is then made with the same operands as at this place before need not be checked, composed or
 * written: the lists reach so much further, and its results get handles.
 *
 * What one call of the program has written is a phrase: an operation, or a walk back. Its key has all that it follows
 * from beside what the step has written before. Only the first segment of a step has phrases, and the next step finds
 * them only where that was all of it. */
#ifndef KILN_TRACE_TRAIL_H
#define KILN_TRACE_TRAIL_H

#include "ops/op.h"

struct kiln_trace;

/* How far the lists of a trace reach. */
typedef struct kiln_extent {
    int64_t nodes, values, operands, ints, floats, code, imports;
} kiln_extent;

typedef struct kiln_arrival { /* a gradient and the leaf it arrived at, both as values */
    int32_t leaf, grad;
} kiln_arrival;

typedef struct kiln_phrase_result {
    int32_t value;
    int8_t operand; /* it is that operand itself; -1: a handle of its own */
    bool detached;
} kiln_phrase_result;

typedef struct kiln_phrase {
    kiln_extent start, end;
    int64_t key, key_end; /* in the trail's keys */
    int64_t arrivals, arrivals_end;
    kiln_device device;
    bool repeats; /* it can be had again: no random numbers, no assignment, nothing but its operands was read */
    int nresults;
    kiln_phrase_result results[KILN_MAX_OUTPUTS];
} kiln_phrase;

typedef struct kiln_trail {
    bool intact;       /* so far the step is the last one, word by word; run-time scalars may differ … */
    bool same_numbers; /* … but not those that a gradient's rule could see */
    bool open;         /* a phrase is being written: what it calls are no phrases */
    bool once;         /* what that one writes is not to be had again */
    bool assigns;      /* it is an assignment by itself */
    bool same_key;     /* of the phrase that begins */
    uint32_t segment;  /* the step's first */
    kiln_extent last;  /* how far the last step reaches */
    kiln_phrase *phrases;
    int64_t nphrases, known, phrases_capacity; /* of this step; those beyond, up to `known`, are the last one's */
    int64_t *keys;
    int64_t nkeys, keys_capacity;
    int64_t begun; /* where the key of the phrase that begins is */
    kiln_arrival *arrivals;
    int64_t narrivals, arrivals_capacity;
    uint64_t appended; /* phrases that were had again so far, of all steps */
} kiln_trail;

/* ---- A phrase ---- */

/* True if what is called now can be a phrase of the step: it is not part of another one, and not of a walk back. */
bool kiln_trail_can_begin(const struct kiln_trace *tr);

/* A phrase begins, whose key has at most so many words; false with an error. Those of a call are put there too: all
 * that it follows from beside what the step has written, and `more` words are to come. The numbers of formulas are not
 * among them: where one is had again, its numbers are written over those of the last step. */
bool kiln_trail_begin(struct kiln_trace *tr, int64_t words);
bool kiln_trail_begin_call(struct kiln_trace *tr, const kiln_op *op, kiln_tensor *const *in, int nin,
                           const kiln_attrs *attrs, int more);
static inline void kiln_trail_put(kiln_trail *t, int64_t word)
{
    t->same_key &= t->keys[t->nkeys] == word; /* what lies beyond the last step's keys does not matter */
    t->keys[t->nkeys++] = word;
}

/* Behind the key: true if the last step has this phrase here. */
bool kiln_trail_has(const struct kiln_trace *tr);

/* Appends it, and makes handles of its results in `out`, which may be operands. Of an assignment: `bind` are the
 * storages that are assigned to. *done is false where something from outside turns out to lie otherwise: it has to be
 * written then. False with an error. */
bool kiln_trail_append(struct kiln_trace *tr, kiln_tensor *const *in, kiln_storage *const *bind, kiln_tensor **out,
                       bool *done);

/* Of a formula that was appended: its numbers in this step. */
void kiln_trail_set_numbers(struct kiln_trace *tr, const kiln_attrs *attrs);

/* Otherwise it is written, and kept for the next step. `assigns`: to whatever will be given as `bind` then. */
void kiln_trail_write(struct kiln_trace *tr, bool assigns);
void kiln_trail_written(struct kiln_trace *tr, bool ok, kiln_tensor *const *in, int nin, kiln_tensor *const *out,
                        int nout);

/* Of walks back: gradient `grad` has arrived at a leaf; false with an error. The arrivals of a phrase that the last
 * step has here. */
bool kiln_trail_arrived(kiln_trail *t, int32_t leaf, int32_t grad);
const kiln_arrival *kiln_trail_arrivals(const kiln_trail *t, int64_t *count);

/* Values that only a phrase knows which was had again have no storage (NULL) until somebody asks for one. The storage
 * of a base value; NULL with an error. All that are missing; false with an error. */
kiln_storage *kiln_trail_storage(struct kiln_trace *tr, int32_t base);
bool kiln_trail_make_storages(struct kiln_trace *tr);

/* ---- The step ---- */

/* A segment has run; the trace begins anew. */
void kiln_trail_end_segment(struct kiln_trace *tr);
void kiln_trail_restart(struct kiln_trace *tr);
void kiln_trail_free(kiln_trail *t);

#endif
