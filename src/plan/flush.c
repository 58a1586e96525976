/* Running what is pending: find or make the segment's plan, take the memory, run, and give the results their storages.
 */
#include <stdlib.h>
#include <math.h>
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "core/sized.h"
#include "plan/backend.h"
#include "plan/code.h"
#include "plan/rerun.h"
#include "plan/times.h"
#include "tensor/memory.h"
#include "trace/shapes.h"

static _Thread_local kiln_plan_info last_info;

bool kiln_plan_last_(kiln_plan_info *info, size_t size)
{
    if (info)
        KILN_GIVE_SIZED(info, size, last_info);
    return info != NULL;
}

/* ---- What must have memory afterwards ---- */

static bool list_results(kiln_trace *tr)
{
    int64_t values = tr->nvalues - tr->first_value;
    tr->nkept = tr->ncommits = 0;
    if (!KILN_GROW(tr->kept, tr->kept_capacity, values) || !KILN_GROW(tr->commits, tr->commits_capacity, values) ||
        !KILN_GROW(tr->commit_slots, tr->commit_slots_capacity, values))
        return false;
    for (int64_t i = tr->first_value; i < tr->nvalues; i++) {
        kiln_value *v = &tr->values[i];
        if (v->base != i || v->node < 0 || !v->storage)
            continue; /* without a storage: nobody has asked for it */
        if (v->version != v->storage->version)
            continue; /* a later assignment replaces it */
        if (v->storage->has_memory) {
            if (!kiln_trace_slot(tr, v->storage, &tr->commit_slots[tr->ncommits]))
                return false;
            tr->commits[tr->ncommits++] = (int32_t)i;
        } else if (v->needed || kiln_trace_is_seen(v->storage))
            tr->kept[tr->nkept++] = (int32_t)i;
    }
    return true;
}

/* What is kept and where it goes belongs to the plan's identity. */
static bool finish_code(kiln_trace *tr)
{
    if (!KILN_GROW(tr->code, tr->code_capacity, tr->ncode + 7 + tr->nkept + 2 * tr->ncommits))
        return false;
    kiln_trace_put(tr, KILN_CODE_END);
    kiln_trace_put(tr, tr->device);
    kiln_trace_put(tr, kiln_backend_version(tr->device));
    kiln_trace_put(tr, tr->tf32 = kiln_get_tf32());
    kiln_trace_put(tr, tr->nkept);
    for (int64_t k = 0; k < tr->nkept; k++)
        kiln_trace_put(tr,
                       (int64_t)tr->values[tr->kept[k]].number << 8 | (uint8_t)tr->values[tr->kept[k]].storage->role);
    for (int64_t k = 0; k < tr->ncommits; k++) {
        const kiln_value *v = &tr->values[tr->commits[k]];
        kiln_trace_put(tr, (int64_t)v->number << 32 | tr->commit_slots[k]);
        kiln_trace_put(tr, (int64_t)v->storage->bytes);
    }
    kiln_trace_put(tr, 0); /* what share of its memory the step has to do without: fit_plan */
    return true;
}

/* So many steps in a row that were each planned anew are no beginning any more. */
enum { MANY_FRESH = 50 };

static void notice_fresh_steps(kiln_trace *tr)
{
    char what[120];
    kiln_plan *before = tr->fresh_steps >= MANY_FRESH && !tr->told_fresh && !tr->eager ? kiln_plan_newest() : NULL;
    if (!before)
        return;
    kiln_code_difference(before->code, before->ncode, tr->code, tr->ncode, what, sizeof what);
    kiln_plan_unref(before);
    kiln_notice(
        "the last %d steps each made a new plan, which takes longer than running one that is there. They differ "
        "in %s",
        tr->fresh_steps, what);
    tr->told_fresh = true;
}

/* A new plan; offsets in which it differs from an older one come with each run from now on. */
static kiln_plan *make_plan(kiln_trace *tr, const kiln_wild *wild, int64_t nwild, const kiln_budget *budget)
{
    notice_fresh_steps(tr);
    kiln_plan *p = kiln_trail_make_storages(tr) ? kiln_plan_build(tr, wild, nwild, budget) : NULL;
    if (p)
        kiln_plan_add(p);
    tr->planned = true;
    return p;
}

static kiln_plan *get_plan(kiln_trace *tr, const kiln_budget *budget, bool *found)
{
    kiln_plan *p = kiln_plan_find_newest(tr->code, tr->ncode);
    if (!p) {
        tr->hash = kiln_hash_words(tr->code, tr->ncode);
        p = kiln_plan_find(tr->hash, tr->code, tr->ncode);
    }
    kiln_wild *wild = NULL;
    int64_t nwild = 0;
    uint64_t failures = kiln_fail_count();
    if (!p)
        p = kiln_plan_find_alike(tr->code, tr->ncode, &wild, &nwild);
    *found = p != NULL;
    if (!p && kiln_fail_count() == failures)
        p = make_plan(tr, wild, nwild, budget);
    kiln_free(wild);
    return p;
}

/* ---- Memory ---- */

static double mib(int64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* ---- Steps that do not fit as they are ---- */

/* What a step may take is counted in parts of what it needs, so that a little more or less memory is the same plan. */
enum { PARTS = 64 };

static int64_t share(int64_t need, int64_t part)
{
    return (int64_t)((double)need * (double)(PARTS - part) / PARTS) / KILN_BLOCK_ALIGN * KILN_BLOCK_ALIGN;
}

static bool may_recompute(void)
{
    const char *text = getenv("KILN_RECOMPUTE");
    return !text || strcmp(text, "0") != 0;
}

static void notice_recomputing(kiln_trace *tr, const kiln_plan *plain, const kiln_plan *p, int64_t left)
{
    if (tr->told_recompute || kiln_shapes_inside() || !p->recomputed)
        return;
    tr->told_recompute = true;
    kiln_notice(
        "the step needs %.2f MiB on %s beside what is in use, but %.2f MiB are left: %lld of its %lld operations "
        "are computed a second time for the backward pass, so that it takes %.2f MiB and about %.0f %% more time. "
        "KILN_RECOMPUTE=0 in the environment refuses such steps instead",
        mib(plain->arena_bytes + plain->all_output_bytes), kiln_device_name(p->device), mib(left),
        (long long)p->recomputed, (long long)p->nnodes, mib(p->arena_bytes + p->all_output_bytes),
        100 * fmax(p->seconds / plain->seconds - 1, 0));
}

/* Takes over p, the plan as it is, and returns one that needs no more than `left` bytes by computing values a second
 * time; p where it fits or none does. NULL with an error. */
static kiln_plan *fit_plan(kiln_trace *tr, kiln_plan *p, int64_t left, bool *found)
{
    int64_t need = p->arena_bytes + p->all_output_bytes, part = 1;
    if (need <= left || !may_recompute())
        return p;
    while (part < PARTS && share(need, part) > left)
        part++;
    if (part == PARTS)
        return p;
    kiln_budget budget = {share(need, part), share(need, part + 1), need};
    uint64_t failures = kiln_fail_count();
    tr->code[tr->ncode - 1] = part;
    kiln_plan *fitting = get_plan(tr, &budget, found);
    tr->code[tr->ncode - 1] = 0;
    if (!fitting && kiln_fail_count() == failures)
        return p;
    if (fitting)
        notice_recomputing(tr, p, fitting, left);
    kiln_plan_unref(p);
    return fitting;
}

/* After a run for which the device had no memory, errors counted from `failures`: true, and the error is forgotten, if
 * *p is now a plan for what the device says it has. */
static bool retry_within(kiln_trace *tr, kiln_plan **p, uint64_t failures, bool *found)
{
    int64_t left = kiln_memory_available((*p)->device);
    if (kiln_last_error()->code != KILN_E_MEMORY || (*p)->arena_bytes + (*p)->all_output_bytes <= left)
        return false;
    kiln_plan *before = *p;
    if (!(*p = fit_plan(tr, before, left, found)) || *p == before)
        return false;
    kiln_fail_forget(failures);
    return true;
}

static bool take_memory(kiln_trace *tr, const kiln_plan *p, kiln_block *arena)
{
    if (!KILN_GROW(tr->blocks, tr->blocks_capacity, p->noutputs) ||
        !KILN_GROW(tr->addresses, tr->addresses_capacity, (int64_t)p->nslots + p->noutputs) ||
        !kiln_plan_check_room(tr, p))
        return false;
    tr->nblocks = kiln_memory_take_all(p->device, p->output_bytes, p->noutputs, tr->blocks);
    if (tr->nblocks < p->noutputs)
        return false;
    return !p->arena_bytes || kiln_memory_take_arena(p->device, (size_t)p->arena_bytes, arena);
}

/* Puts the offsets of this run behind the segment's numbers; false with an error. */
static bool list_offsets(kiln_trace *tr, const kiln_plan *p)
{
    if (!KILN_GROW(tr->floats, tr->floats_capacity, tr->nfloats + p->noffsets))
        return false;
    for (int32_t i = 0; i < p->noffsets; i++) {
        const kiln_offset *o = &p->offsets[i];
        const kiln_node *n = o->what == KILN_OFFSET_OF_IMPORT ? NULL : &tr->nodes[tr->first_node + o->number];
        int64_t offset = o->what == KILN_OFFSET_OF_IMPORT ? tr->values[tr->imports[o->number]].offset
                         : o->what == KILN_OFFSET_OF_VIEW ? tr->values[n->out].offset
                                                          : tr->ints[n->ints + n->nints - 1];
        tr->floats[tr->nfloats + i] = (double)offset; /* exact: no tensor has 2^53 elements */
    }
    return true;
}

/* What the run does with tensors that other threads use. */
static kiln_turn turn_of(const kiln_trace *tr)
{
    kiln_turn turn = KILN_TURN_ALONE;
    for (int64_t i = 0; i < tr->nslots; i++)
        if (kiln_storage_is_shared(tr->slots[i]))
            turn = KILN_TURN_READS;
    for (int64_t i = 0; turn != KILN_TURN_ALONE && i < tr->ncommits; i++)
        if (kiln_storage_is_shared(tr->slots[tr->commit_slots[i]]))
            return KILN_TURN_WRITES;
    return turn;
}

static bool run(kiln_trace *tr, const kiln_plan *p, kiln_run **running)
{
    kiln_block arena = {0};
    kiln_timing timing = {0}, *timed = tr->timing == KILN_TIMED_NOW ? &timing : NULL;
    tr->nblocks = 0; /* those of the run before belong to its results */
    bool was_ok = kiln_ok(), ok = list_offsets(tr, p) && kiln_shapes_take_memory(tr) && take_memory(tr, p, &arena);
    ok = ok && (!timed || kiln_times_begin(tr, p, timed));
    if (ok && kiln_backend_runs_on(p->device))
        ok = (*running = kiln_run_new()) != NULL;
    if (ok) {
        for (int32_t i = 0; i < p->nslots; i++)
            tr->addresses[i] = tr->slots[i]->address;
        for (int32_t i = 0; i < p->noutputs; i++)
            tr->addresses[p->nslots + i] = tr->blocks[i].address;
        kiln_binding b = {tr->addresses, tr->addresses + p->nslots, arena.address, tr->floats + tr->first_float,
                          *running};
        ok = kiln_backend_take_turn(p, &b, timed, *running ? KILN_TURN_ALONE : turn_of(tr));
    }
    if (timed)
        kiln_times_end(tr, p, timed, ok);
    if (arena.address)
        kiln_memory_give_arena(p->device, arena);
    for (int64_t i = ok ? tr->nkept : 0; i < tr->nblocks; i++) /* more than are kept: buffers that lie apart */
        kiln_memory_give(p->device, tr->blocks[i]);
    if (!ok)
        kiln_shapes_give_back(tr);
    if (!ok && was_ok)
        kiln_plan_explain(tr, p);
    return ok;
}

/* ---- After the run ---- */

static void computed_by(kiln_storage *s, kiln_run *running)
{
    kiln_run_unref(s->run);
    if ((s->run = running))
        kiln_run_ref(running);
}

static void hand_over(kiln_trace *tr, kiln_run *running)
{
    for (int64_t k = 0; k < tr->nkept; k++) {
        kiln_storage *s = tr->values[tr->kept[k]].storage;
        s->block = tr->blocks[k];
        s->address = s->block.address;
        s->has_memory = true;
        s->trace_refs = 0;
        kiln_set_version(&s->memory_version, s->version);
        computed_by(s, running);
    }
    for (int64_t k = 0; k < tr->ncommits; k++) {
        kiln_storage *s = tr->values[tr->commits[k]].storage;
        kiln_storage_assigned(s);
        if (!kiln_storage_computed(s) || s->shape_only)
            computed_by(s, running); /* a value after all; should this run fail, others keep the one they have */
        s->shape_only = false;
    }
}

static kiln_plan_info info_of(const kiln_plan *p, bool found)
{
    return (kiln_plan_info){.nodes = p->nnodes,
                            .kernels = p->nkernels,
                            .arena_bytes = p->arena_bytes,
                            .output_bytes = p->all_output_bytes,
                            .peak_bytes = p->arena_bytes + p->all_output_bytes,
                            .gradient_bytes = p->role_bytes[KILN_ROLE_GRADIENT],
                            .activation_bytes = p->role_bytes[KILN_ROLE_ACTIVATION],
                            .activation_peak_bytes = p->activation_peak,
                            .flops = p->flops,
                            .bytes = p->bytes,
                            .replayed = found,
                            .recomputed = p->recomputed,
                            .seconds = p->seconds};
}

void kiln_plan_was_run(const kiln_plan *p, bool found)
{
    last_info = info_of(p, found);
}

/* A step in which an error was raised, and not cleared, will be discarded: nothing of it may run any more. */
static bool step_has_failed(void)
{
    const kiln_thread *th = kiln_thread_state();
    for (int64_t i = 0; th->steps && i < th->nframes; i++)
        if (th->frames[i].kind == KILN_SCOPE_STEP)
            return !kiln_ok() && kiln_fail_count() != th->frames[i].failures;
    return false;
}

static bool plan_and_run(kiln_trace *tr)
{
    bool found;
    kiln_run *running = NULL;
    kiln_plan *p = kiln_shapes_check(tr) && finish_code(tr) ? get_plan(tr, NULL, &found) : NULL;
    if (p)
        p = fit_plan(tr, p, kiln_memory_left(p->device), &found);
    uint64_t failures = kiln_fail_count();
    bool was_ok = kiln_ok(), ok = p && run(tr, p, &running);
    if (p && !ok && was_ok && retry_within(tr, &p, failures, &found))
        ok = run(tr, p, &running);
    if (ok) {
        kiln_plan_was_run(p, found);
        hand_over(tr, running);
    }
    if (ok && tr->watcher)
        kiln_rerun_segment(tr->watcher, tr, p);
    kiln_run_unref(running);
    kiln_plan_unref(p);
    return ok;
}

bool kiln_flush(kiln_trace *tr, bool final)
{
    if (tr->nnodes == tr->first_node || tr->busy)
        return true;
    if (step_has_failed()) {
        kiln_trace_discard(tr);
        return false;
    }
    tr->busy = true;
    bool ok = (final || kiln_trace_mark_needed(tr)) && list_results(tr);
    if (ok && kiln_shapes_inside())
        kiln_shapes_pass(tr);
    else
        ok = ok && plan_and_run(tr);
    if (ok && !final) {
        kiln_trace_moved(tr);
        kiln_trace_release_unneeded(tr);
    }
    if (ok)
        kiln_trace_next_segment(tr);
    else
        kiln_trace_discard(tr);
    tr->busy = false;
    return ok;
}

/* Lets handles that nobody but a scope holds count (or count no more) as the trace's own. */
static void count_scope_handles(int sign)
{
    kiln_thread *th = kiln_thread_state();
    for (int64_t i = 0; i < th->nowned; i++) {
        kiln_tensor *t = th->owned[i];
        if (t && !t->storage->has_memory && atomic_load(&t->refs) == 1)
            t->storage->trace_refs += sign;
    }
}

/* ---- Looking without running ---- */

/* The plan of what is pending, with a reference; NULL with an error. `found` NULL: one to be looked at only. */
static kiln_plan *plan_pending(const char *who, int64_t within, bool *found)
{
    kiln_trace *tr = kiln_trace_current();
    if (!tr)
        return NULL;
    if (tr->nnodes == tr->first_node)
        return kiln_fail(KILN_E_STATE, who, "nothing is pending: record a step first, and read no value of it");
    int64_t ncode = tr->ncode;
    count_scope_handles(1); /* as at the end of the step: what only open scopes hold will be gone */
    kiln_plan *p = NULL;
    if (kiln_trail_make_storages(tr) && list_results(tr) && finish_code(tr))
        p = found ? get_plan(tr, NULL, found) : kiln_plan_draw(tr);
    if (p && within < INT64_MAX)
        p = fit_plan(tr, p, within, found);
    count_scope_handles(-1);
    tr->ncode = ncode; /* what was appended describes this moment, not the segment */
    return p;
}

char *kiln_plan_describe(void)
{
    bool found = false;
    kiln_plan *p = plan_pending("plan_describe", INT64_MAX, &found);
    char *text = p ? kiln_plan_text(kiln_trace_current(), p) : NULL;
    kiln_plan_unref(p);
    return text;
}

bool kiln_plan_pending_(kiln_plan_info *info, size_t size)
{
    bool found = false;
    kiln_plan *p = info ? plan_pending("plan_pending", INT64_MAX, &found) : NULL;
    if (p) {
        const kiln_plan_info own = info_of(p, found);
        KILN_GIVE_SIZED(info, size, own);
    }
    kiln_plan_unref(p);
    return p != NULL;
}

bool kiln_plan_pending_within_(uint64_t bytes, kiln_plan_info *info, size_t size)
{
    bool found = false;
    int64_t within = bytes < INT64_MAX ? (int64_t)bytes : INT64_MAX;
    kiln_plan *p = info ? plan_pending("plan_pending_within", within, &found) : NULL;
    if (p && p->arena_bytes + p->all_output_bytes > within) {
        kiln_plan_unref(p);
        return kiln_fail(KILN_E_MEMORY, "plan_pending_within",
                         "the step cannot be made to fit into %.2f MiB, also where all that can be is computed again",
                         mib(within));
    }
    if (p) {
        const kiln_plan_info own = info_of(p, found);
        KILN_GIVE_SIZED(info, size, own);
    }
    kiln_plan_unref(p);
    return p != NULL;
}

bool kiln_plan_sketch(kiln_plan_info *info)
{
    kiln_plan *p = plan_pending("plan_pending", INT64_MAX, NULL);
    if (p)
        *info = info_of(p, false);
    kiln_plan_unref(p);
    return p != NULL;
}

void kiln_discard(void)
{
    kiln_trace *tr = kiln_trace_current();
    if (tr && !tr->busy)
        kiln_trace_discard(tr);
}
