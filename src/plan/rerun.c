/* Running a step again without recording it: see rerun.h. */
#include "plan/rerun.h"
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "plan/backend.h"
#include "tensor/memory.h"
#include "tensor/scope.h"

void kiln_rerun_forget(kiln_rerun *r)
{
    if (r->proof.address)
        kiln_memory_give(r->plan->device, r->proof);
    for (int64_t i = 0; i < r->nslots; i++)
        kiln_storage_unref(r->slots[i].storage);
    for (int64_t i = 0; i < r->nleaves; i++)
        kiln_tensor_unref(r->leaves[i].tensor);
    kiln_plan_unref(r->plan);
    r->plan = NULL;
    r->proof = (kiln_block){0};
    r->nslots = r->nleaves = r->ncommits = r->nfloats = r->nvarying = 0;
    r->foretold = false;
}

void kiln_rerun_free(kiln_rerun *r)
{
    kiln_rerun_forget(r);
    kiln_free(r->slots);
    kiln_free(r->leaves);
    kiln_free(r->addresses);
    kiln_free(r->commits);
    kiln_free(r->floats);
    kiln_free(r->varying);
    kiln_free(r->noted);
    *r = (kiln_rerun){0};
}

/* ---- Watching a recording ---- */

/* The thread's trace where a step is all that it would run next; NULL elsewhere. */
static kiln_trace *idle_trace(void)
{
    const kiln_thread *th = kiln_thread_current;
    kiln_trace *tr = th && !th->steps && th->grad_enabled ? th->trace : NULL;
    bool free = tr && !tr->busy && !tr->eager && tr->timing == KILN_UNTIMED;
    return free && tr->nnodes == tr->first_node ? tr : NULL;
}

void kiln_rerun_watch(kiln_rerun *r)
{
    kiln_trace *tr = idle_trace();
    r->nnoted = r->segments = 0;
    if (tr)
        tr->watcher = r;
}

void kiln_rerun_watched(kiln_rerun *r)
{
    kiln_trace *tr = kiln_thread_current ? kiln_thread_current->trace : NULL;
    if (tr)
        tr->watcher = NULL;
    if (r->segments != 1)
        kiln_rerun_forget(r);
}

bool kiln_trace_vary(kiln_trace *tr, const void *owner, int64_t index, int64_t at, int64_t count)
{
    kiln_rerun *r = tr->watcher;
    if (!r)
        return true;
    if (!KILN_GROW(r->noted, r->noted_capacity, r->nnoted + 1))
        return false;
    r->noted[r->nnoted++] = (kiln_varying){owner, index, at - tr->first_float, count};
    return true;
}

/* Results of a step that is repeated may be seen by nobody: nothing is kept but empty tensors, proofs of the run. */
static bool keeps_nothing(const kiln_trace *tr, const kiln_plan *p)
{
    for (int64_t k = 0; k < tr->nkept; k++)
        if (tr->values[tr->kept[k]].storage->bytes)
            return false;
    return p->noutputs == tr->nkept && !p->noffsets; /* more: a device that keeps buffers apart */
}

/* Places noted before something was flushed, or discarded, mean nothing. */
static bool notes_fit(const kiln_rerun *r, const kiln_trace *tr)
{
    for (int64_t i = 0; i < r->nnoted; i++)
        if (r->noted[i].at < 0 || r->noted[i].at + r->noted[i].count > tr->nfloats - tr->first_float)
            return false;
    return true;
}

/* A tensor that somebody beside the trace holds and may change what a recording makes of it. Batches are not meant. */
static bool is_leaf(const kiln_tensor *t)
{
    return t && !t->storage->thunk && atomic_load_explicit(&t->refs, memory_order_relaxed) > 1;
}

/* Storage and flags as they were; no gradient to be added to, and no hook, which would be called. */
static bool is_as_before(const struct kiln_rerun_leaf *leaf)
{
    const kiln_tensor *t = leaf->tensor;
    return t->storage == leaf->storage && t->requires_grad == leaf->requires_grad &&
           !(t->extra && (t->extra->hook || t->extra->grad));
}

static bool has_same_leaves(const kiln_rerun *r, const kiln_trace *tr)
{
    int64_t k = 0;
    for (int64_t i = 0; i < tr->nvalues; i++) {
        if (!is_leaf(tr->values[i].leaf))
            continue;
        if (k == r->nleaves || tr->values[i].leaf != r->leaves[k].tensor || !is_as_before(&r->leaves[k]))
            return false;
        k++;
    }
    return k == r->nleaves;
}

static bool came_as_foretold(const kiln_rerun *r, const kiln_trace *tr, const kiln_plan *p)
{
    if (r->plan != p || r->nslots != tr->nslots || r->nvarying != r->nnoted ||
        r->nfloats != tr->nfloats - tr->first_float)
        return false;
    for (int64_t i = 0; i < r->nslots; i++)
        if (r->slots[i].storage != tr->slots[i] || r->slots[i].address != tr->slots[i]->address)
            return false;
    return has_same_leaves(r, tr) &&
           (!r->nfloats || !memcmp(r->floats, tr->floats + tr->first_float, (size_t)r->nfloats * sizeof *r->floats)) &&
           (!r->nvarying || !memcmp(r->varying, r->noted, (size_t)r->nvarying * sizeof *r->noted));
}

static bool make_room(kiln_rerun *r, const kiln_trace *tr, const kiln_plan *p)
{
    return KILN_GROW(r->slots, r->slots_capacity, tr->nslots) &&
           KILN_GROW(r->leaves, r->leaves_capacity, tr->nvalues) &&
           KILN_GROW(r->addresses, r->addresses_capacity, tr->nslots + p->noutputs) &&
           KILN_GROW(r->commits, r->commits_capacity, tr->ncommits) &&
           KILN_GROW(r->floats, r->floats_capacity, tr->nfloats - tr->first_float) &&
           KILN_GROW(r->varying, r->varying_capacity, r->nnoted);
}

static void remember(kiln_rerun *r, const kiln_trace *tr, kiln_plan *p)
{
    kiln_rerun_forget(r);
    if (!make_room(r, tr, p))
        return;
    atomic_fetch_add(&p->refs, 1);
    r->plan = p;
    for (; r->nslots < tr->nslots; r->nslots++) {
        kiln_storage *s = tr->slots[r->nslots];
        kiln_storage_ref(s);
        r->slots[r->nslots] = (struct kiln_rerun_slot){.storage = s, .address = s->address};
        r->addresses[r->nslots] = s->address;
    }
    for (int64_t i = 0; i < tr->nvalues; i++) {
        kiln_tensor *t = tr->values[i].leaf;
        if (is_leaf(t))
            r->leaves[r->nleaves++] = (struct kiln_rerun_leaf){kiln_tensor_ref(t), t->storage, t->requires_grad};
    }
    for (; r->ncommits < tr->ncommits; r->ncommits++)
        r->commits[r->ncommits] = tr->commit_slots[r->ncommits];
    for (; r->nfloats < tr->nfloats - tr->first_float; r->nfloats++)
        r->floats[r->nfloats] = tr->floats[tr->first_float + r->nfloats];
    for (; r->nvarying < r->nnoted; r->nvarying++)
        r->varying[r->nvarying] = r->noted[r->nvarying];
    r->default_device = kiln_thread_current->default_device;
    r->tf32 = tr->tf32;
    r->generation = kiln_backend_version(p->device);
}

void kiln_rerun_segment(kiln_rerun *r, const kiln_trace *tr, kiln_plan *p)
{
    uint64_t failures = kiln_fail_count();
    bool was_ok = kiln_ok();
    if (++r->segments > 1 || !keeps_nothing(tr, p) || !notes_fit(r, tr)) {
        kiln_rerun_forget(r);
        return;
    }
    r->foretold = came_as_foretold(r, tr, p);
    if (!r->foretold)
        remember(r, tr, p);
    if (was_ok)
        kiln_fail_forget(failures); /* what there is no memory for is not remembered */
    for (int64_t i = 0; i < r->nslots; i++)
        r->slots[i].version = r->slots[i].storage->version;
}

/* ---- Running it again ---- */

static bool is_untouched(const struct kiln_rerun_slot *slot)
{
    const kiln_storage *s = slot->storage;
    return s->address == slot->address && s->version == slot->version && s->memory_version == slot->version &&
           kiln_storage_computed(s);
}

bool kiln_rerun_ready(const kiln_rerun *r)
{
    const kiln_plan *p = r->plan;
    if (!p || !r->foretold || !kiln_ok() || !idle_trace() || r->tf32 != kiln_get_tf32() ||
        r->default_device != kiln_thread_current->default_device || r->generation != kiln_backend_version(p->device) ||
        p->arena_bytes + p->all_output_bytes > kiln_memory_left(p->device))
        return false;
    for (int64_t i = 0; i < r->nslots; i++)
        if (!is_untouched(&r->slots[i]))
            return false;
    for (int64_t i = 0; i < r->nleaves; i++)
        if (!is_as_before(&r->leaves[i]))
            return false;
    return true;
}

/* Results are empty: one block serves all of them, always the same. */
static bool place_results(kiln_rerun *r)
{
    const kiln_plan *p = r->plan;
    if (!p->noutputs || r->proof.address)
        return true;
    if (!kiln_memory_take(p->device, KILN_BLOCK_ALIGN, &r->proof))
        return false;
    for (int32_t i = 0; i < p->noutputs; i++)
        r->addresses[p->nslots + i] = r->proof.address;
    return true;
}

/* What the run does with tensors that other threads use. */
static kiln_turn turn_of(const kiln_rerun *r)
{
    kiln_turn turn = KILN_TURN_ALONE;
    for (int64_t i = 0; i < r->nslots; i++)
        if (kiln_storage_is_shared(r->slots[i].storage))
            turn = KILN_TURN_READS;
    for (int64_t i = 0; turn != KILN_TURN_ALONE && i < r->ncommits; i++)
        if (kiln_storage_is_shared(r->slots[r->commits[i]].storage))
            return KILN_TURN_WRITES;
    return turn;
}

static bool start(const kiln_rerun *r, kiln_run *running)
{
    const kiln_plan *p = r->plan;
    kiln_block arena = {0};
    if (p->arena_bytes && !kiln_memory_take_arena(p->device, (size_t)p->arena_bytes, &arena))
        return false;
    kiln_binding b = {r->addresses, r->addresses + p->nslots, arena.address, r->floats, running};
    bool ok = kiln_backend_take_turn(p, &b, NULL, running ? KILN_TURN_ALONE : turn_of(r));
    if (arena.address)
        kiln_memory_give_arena(p->device, arena);
    return ok;
}

bool kiln_rerun_run(kiln_rerun *r, kiln_storage *proof)
{
    kiln_run *running = NULL;
    if (!place_results(r) || (kiln_backend_runs_on(r->plan->device) && !(running = kiln_run_new())))
        return false;
    if (!start(r, running)) {
        kiln_run_unref(running);
        return false;
    }
    for (int64_t k = 0; k < r->ncommits; k++) {
        struct kiln_rerun_slot *slot = &r->slots[r->commits[k]];
        slot->version++;
        kiln_set_version(&slot->storage->version, slot->version);
        kiln_set_version(&slot->storage->memory_version, slot->version);
    }
    proof->has_memory = true;
    proof->run = running;
    kiln_plan_was_run(r->plan, true);
    return true;
}
