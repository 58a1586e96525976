/* The trail of the last step: see trail.h. */
#include "trace/trail.h"
#include <string.h>
#include "core/alloc.h"
#include "trace/trace.h"

static kiln_extent extent_of(const kiln_trace *tr)
{
    return (kiln_extent){tr->nnodes, tr->nvalues, tr->noperands, tr->nints, tr->nfloats, tr->ncode, tr->nimports};
}

static void set_extent(kiln_trace *tr, const kiln_extent *e)
{
    tr->nnodes = e->nodes;
    tr->nvalues = e->values;
    tr->noperands = e->operands;
    tr->nints = e->ints;
    tr->nfloats = e->floats;
    tr->ncode = e->code;
    tr->nimports = e->imports;
}

/* ---- The step ---- */

void kiln_trail_end_segment(kiln_trace *tr)
{
    if (tr->segment == tr->trail.segment)
        tr->trail.last = extent_of(tr);
}

/* Behind the flush that ran all of the step, or wherever else the trace is cleared. */
void kiln_trail_restart(kiln_trace *tr)
{
    kiln_trail *t = &tr->trail;
    bool whole = tr->segment == t->segment + 1 && tr->nnodes == tr->first_node && !t->open;
    t->known = whole ? t->nphrases : 0;
    t->intact = t->known > 0;
    t->same_numbers = true;
    t->open = false;
    t->nphrases = t->nkeys = t->narrivals = 0;
}

void kiln_trail_free(kiln_trail *t)
{
    kiln_free(t->phrases);
    kiln_free(t->keys);
    kiln_free(t->arrivals);
}

/* ---- Beginning ---- */

bool kiln_trail_can_begin(const kiln_trace *tr)
{
    const kiln_thread *th = kiln_thread_state();
    return th->steps && !th->region && !th->shapes_only && !tr->eager && !tr->busy && !tr->trail.open &&
           tr->segment == tr->trail.segment;
}

bool kiln_trail_begin(kiln_trace *tr, int64_t words)
{
    kiln_trail *t = &tr->trail;
    int64_t capacity = t->keys_capacity;
    if (!KILN_GROW(t->phrases, t->phrases_capacity, t->nphrases + 1) ||
        !KILN_GROW(t->keys, t->keys_capacity, t->nkeys + words))
        return false;
    if (t->keys_capacity > capacity)
        memset(t->keys + capacity, 0, (size_t)(t->keys_capacity - capacity) * sizeof *t->keys);
    const kiln_phrase *p = &t->phrases[t->nphrases];
    t->begun = t->nkeys;
    t->same_key = t->intact && t->nphrases < t->known && p->key == t->nkeys;
    return true;
}

/* The value of an operand, in a word with what else a call follows from of it; leaves are met here, before anything
 * that the operation is made of. -1 with an error. */
static int64_t meet(kiln_trace *tr, kiln_tensor *x)
{
    int32_t value = kiln_trace_knows(tr, x) ? x->value : kiln_trace_value(tr, x);
    return value < 0 ? -1 : (int64_t)value << 8 | x->detached << 2 | x->leaf << 1 | x->requires_grad;
}

/* Words of the key that lie in memory as they are. */
static int64_t *put_words(kiln_trail *t, int64_t *to, const void *words, int n)
{
    size_t bytes = (size_t)n * sizeof *to;
    if (n && memcmp(to, words, bytes) != 0) {
        memcpy(to, words, bytes);
        t->same_key = false;
    }
    return to + n;
}

bool kiln_trail_begin_call(kiln_trace *tr, const kiln_op *op, kiln_tensor *const *in, int nin, const kiln_attrs *attrs,
                           int more)
{
    enum { WORDS = 5 };
    int64_t words[WORDS + KILN_MAX_INPUTS];
    const kiln_thread *th = kiln_thread_state();
    kiln_trail *t = &tr->trail;
    int nfloats = op->cls == KILN_CLASS_FORMULA ? 0 : attrs->nfloats;
    words[0] = (int64_t)(intptr_t)op;
    words[1] = (int64_t)(intptr_t)th->composing;
    words[2] = (int64_t)th->default_device << 16 | th->autocast << 8 | th->grad_enabled;
    words[3] = (int64_t)nin << 32 | attrs->nints << 16 | attrs->nfloats;
    words[4] = th->module;
    for (int i = 0; i < nin; i++)
        if ((words[WORDS + i] = in[i] ? meet(tr, in[i]) : INT64_MIN) == -1)
            return false;
    if (!kiln_trail_begin(tr, WORDS + nin + attrs->nints + nfloats + more))
        return false;
    int64_t *to = put_words(t, t->keys + t->nkeys, words, WORDS + nin);
    to = put_words(t, to, attrs->i, attrs->nints);
    to = put_words(t, to, attrs->f, nfloats);
    t->nkeys = to - t->keys;
    return true;
}

static bool is_there(const kiln_trace *tr, const kiln_phrase *p)
{
    kiln_extent now = extent_of(tr);
    return p->repeats && p->key_end == tr->trail.nkeys && memcmp(&p->start, &now, sizeof now) == 0 &&
           (p->device == tr->device || tr->nnodes == tr->first_node);
}

bool kiln_trail_has(const kiln_trace *tr)
{
    const kiln_trail *t = &tr->trail;
    return t->same_key && t->intact && is_there(tr, &t->phrases[t->nphrases]);
}

/* ---- Having it again ---- */

/* What the phrase reads from outside is read again: it may have moved, or not be there any more. *same: it is where it
 * was; otherwise, and on an error, it counts as not read yet. */
static bool import_again(kiln_trace *tr, const kiln_phrase *p, bool *same)
{
    bool ok = true;
    for (int64_t k = p->start.imports; ok && k < p->end.imports; k++) {
        tr->ncode = tr->import_code[k];
        ok = kiln_trace_import(tr, tr->imports[k]);
    }
    *same = ok && tr->trail.intact;
    for (int64_t k = p->start.imports; !*same && k < p->end.imports; k++)
        tr->values[tr->imports[k]].import_segment = 0;
    return ok;
}

/* As in the last step, but for the storages: those of assignments are given, others are made when somebody asks. */
static void make_values(kiln_trace *tr, const kiln_phrase *p, kiln_storage *const *bind)
{
    for (int64_t i = p->start.values; i < p->end.values; i++) {
        kiln_value *v = &tr->values[i];
        v->needed = v->unrecorded = v->assigned = v->spent = v->wanted = false;
        v->holders = 0;
        v->import = -1;
        v->import_segment = 0;
        v->leaf = NULL;
        v->storage = bind ? bind[i - p->start.values] : NULL;
        v->version = v->base != i ? tr->values[v->base].version : bind ? v->storage->version : 0;
        if (bind)
            kiln_storage_ref(v->storage);
    }
}

kiln_storage *kiln_trail_storage(kiln_trace *tr, int32_t base)
{
    kiln_value *v = &tr->values[base];
    if (v->storage)
        return v->storage;
    size_t bytes = kiln_dtype_size((kiln_dtype)v->dtype);
    for (int d = 0; d < v->ndim; d++)
        bytes *= (size_t)v->shape[d];
    if ((v->storage = kiln_storage_new(tr->device, bytes)))
        v->storage->trace_refs = 1;
    return v->storage;
}

bool kiln_trail_make_storages(kiln_trace *tr)
{
    for (int64_t i = tr->first_value; i < tr->nvalues; i++)
        if (tr->values[i].base == i && !kiln_trail_storage(tr, (int32_t)i))
            return false;
    return true;
}

static bool make_results(kiln_trace *tr, const kiln_phrase *p, kiln_tensor *const *in, kiln_tensor **out)
{
    for (int j = 0; j < p->nresults; j++) {
        const kiln_phrase_result *r = &p->results[j];
        out[j] = r->operand >= 0 ? in[r->operand] : kiln_trace_handle(tr, r->value);
        if (!out[j])
            return false;
        if (r->operand < 0)
            out[j]->detached = r->detached;
    }
    return true;
}

bool kiln_trail_append(kiln_trace *tr, kiln_tensor *const *in, kiln_storage *const *bind, kiln_tensor **out, bool *done)
{
    kiln_trail *t = &tr->trail;
    const kiln_phrase *p = &t->phrases[t->nphrases];
    kiln_device before = tr->device;
    tr->device = p->device;
    bool ok = import_again(tr, p, done);
    if (*done) {
        make_values(tr, p, bind);
        set_extent(tr, &p->end);
        t->nphrases++;
        t->appended++;
        t->narrivals = p->arrivals_end;
        return make_results(tr, p, in, out);
    }
    t->intact = false;
    tr->device = before;
    set_extent(tr, &p->start);
    return ok;
}

void kiln_trail_set_numbers(kiln_trace *tr, const kiln_attrs *attrs)
{
    const kiln_node *n = &tr->nodes[tr->nnodes - 1];
    memcpy(tr->floats + n->floats, attrs->f, (size_t)n->nfloats * sizeof *attrs->f);
}

/* ---- Keeping it ---- */

void kiln_trail_write(kiln_trace *tr, bool assigns)
{
    kiln_trail *t = &tr->trail;
    kiln_phrase *p = &t->phrases[t->nphrases];
    p->start = extent_of(tr);
    p->key = t->begun;
    p->key_end = t->nkeys;
    p->arrivals = t->narrivals;
    t->open = true;
    t->once = false;
    t->assigns = assigns;
}

static bool draws(const kiln_trace *tr, const kiln_node *n)
{
    return n->op->cls == KILN_CLASS_RANDOM || (n->op->draws && tr->ints[n->ints + n->op->draws - 1]);
}

/* Nothing was met but what was there when it began; no random numbers, no assignment. */
static bool can_be_repeated(const kiln_trace *tr, const kiln_phrase *p)
{
    for (int64_t i = p->start.nodes; i < tr->nnodes; i++)
        if (draws(tr, &tr->nodes[i]) || tr->nodes[i].region)
            return false;
    for (int64_t i = p->start.values; i < tr->nvalues; i++) {
        const kiln_value *v = &tr->values[i];
        bool bound = v->base == i && (v->storage->has_memory || v->storage->version);
        if (v->node < 0 || v->leaf || (bound && !tr->trail.assigns))
            return false;
    }
    return true;
}

static bool keep_result(const kiln_trace *tr, kiln_tensor *const *in, int nin, const kiln_tensor *result,
                        kiln_phrase_result *to)
{
    for (int i = 0; i < nin; i++)
        if (in[i] == result) {
            *to = (kiln_phrase_result){-1, (int8_t)i, false};
            return true;
        }
    *to = (kiln_phrase_result){result->value, -1, result->detached};
    return kiln_trace_knows(tr, result);
}

void kiln_trail_written(kiln_trace *tr, bool ok, kiln_tensor *const *in, int nin, kiln_tensor *const *out, int nout)
{
    kiln_trail *t = &tr->trail;
    kiln_phrase *p = &t->phrases[t->nphrases];
    if (!t->open)
        return; /* the trace began anew meanwhile */
    t->open = false;
    if (!ok || tr->segment != t->segment) {
        t->intact = false;
        t->segment = 0; /* the step has none any more */
        return;
    }
    p->end = extent_of(tr);
    p->arrivals_end = t->narrivals;
    p->device = tr->device;
    p->nresults = nout;
    p->repeats = !t->once && can_be_repeated(tr, p);
    for (int j = 0; j < nout; j++)
        p->repeats &= keep_result(tr, in, nin, out[j], &p->results[j]);
    t->nphrases++;
}

/* ---- Arrivals ---- */

bool kiln_trail_arrived(kiln_trail *t, int32_t leaf, int32_t grad)
{
    if (!KILN_GROW(t->arrivals, t->arrivals_capacity, t->narrivals + 1))
        return false;
    t->arrivals[t->narrivals++] = (kiln_arrival){leaf, grad};
    return true;
}

const kiln_arrival *kiln_trail_arrivals(const kiln_trail *t, int64_t *count)
{
    const kiln_phrase *p = &t->phrases[t->nphrases];
    *count = p->arrivals_end - p->arrivals;
    return t->arrivals + p->arrivals;
}
