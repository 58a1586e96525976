/* Making a step fit: which values give up their memory between their readers and are run again (recompute.c does that).
 *
 * Again and again, where the step takes most memory, the value goes whose bytes times the time it would lie there are
 * most for what it costs to run it again. A model of memory over time (model.h) says how that changes the peak. The
 * order in which values go depends on the step alone, not on the limit; how far it is followed does, and the placer
 * decides that: it is asked wherever the model's peak has fallen by another part in LEVELS. Then values come back, the
 * dearest first, as long as the step still fits.
 *
 * So a smaller limit follows the same order further. Coming back uses what room is left below `cap`; the step then
 * takes more than `floor`, if need be by leaving room unused, and the next smaller budget begins there. So a smaller
 * limit never gives a larger peak. */
#include <string.h>
#include "core/alloc.h"
#include "plan/backend.h"
#include "plan/model.h"
#include "tensor/memory.h"

enum { LEVELS = 128, LONGEST_CHAIN = 64, BACK_TRIES = 5 };
#define NO_TIME 1e-12 /* seconds: what costs nothing is divided by this */

typedef struct search {
    kiln_draft *d;
    kiln_model m;
    bool *banned;   /* by value: letting it go did not help */
    int32_t *chain; /* values that have to go along with the one that is looked at */
    int32_t nchain, round;
    int32_t *seen;    /* by value: the round in which it was looked at */
    int32_t *evicted; /* values that went, in order */
    int32_t nevicted;
    int32_t pardoned; /* how many had gone when all were last given another try */
    int32_t *until;   /* by draft value */
    int64_t fixed;    /* bytes of outputs */
} search;

/* ---- Trials ---- */

/* What is needed with what the model has let go. */
static int64_t try_as_is(search *s)
{
    kiln_model_tell(&s->m, s->d->nvalues, s->until);
    return kiln_draft_try(s->d, s->until, NULL);
}

/* ---- Letting go ---- */

/* What it takes to have value v again when its first reader behind the peak wants it. */
typedef struct price {
    double seconds; /* of running it, and what it needs for that and is not there any more */
    double loss;    /* bytes × seconds for which other values, that are run again too, are there earlier */
    int64_t stays;  /* bytes that have to be kept for it */
} price;

/* Puts a value on the list of those to be looked at, once. False if there are too many. */
static bool list(search *s, int32_t v)
{
    if (s->seen[v] == s->round)
        return true;
    s->seen[v] = s->round;
    s->chain[s->nchain++] = v;
    return s->nchain < LONGEST_CHAIN;
}

/* What value v is computed from when it is wanted at group `late`: what is gone has to go along, and be run again; what
 * is run again later has to be there earlier. False if that is too much. */
static bool add_sources(search *s, int32_t v, int32_t peak, int32_t late, int64_t bytes, price *p)
{
    const kiln_model *m = &s->m;
    for (int32_t k = m->from_at[v]; k < m->from_at[v + 1]; k++) {
        int32_t from = m->from[k], start = m->start[m->made[from]];
        if (m->until[from] == KILN_NEVER_GONE && m->last[from] >= peak)
            continue; /* still there */
        if (m->until[from] != KILN_NEVER_GONE && start <= late)
            continue; /* there again */
        if (m->until[from] == KILN_NEVER_GONE && (!m->may[from] || m->bytes[from] * 16 <= bytes)) {
            if (s->seen[from] != s->round)
                p->stays += m->bytes[from];
            s->seen[from] = s->round;
        } else if (!list(s, from))
            return false;
    }
    return true;
}

static bool find_price(search *s, int32_t v, price *p)
{
    const kiln_model *m = &s->m;
    int32_t peak = m->peak_at, late = m->late[v];
    *p = (price){0};
    s->nchain = 0;
    s->round++;
    list(s, v);
    for (int32_t at = 0; at < s->nchain; at++) {
        int32_t x = s->chain[at], start = m->start[m->made[x]];
        if (start == KILN_NEVER_GONE)
            p->seconds += m->time[m->made[x]];
        else if (start > late && m->until[x] != KILN_NEVER_GONE)
            p->loss += (double)m->bytes[x] * (m->before[start] - m->before[late]);
        if (!add_sources(s, x, peak, late, m->bytes[v], p))
            return false;
    }
    return true;
}

/* The value that is best let go where memory is scarcest; -1: none. */
static int32_t choose(search *s)
{
    const kiln_model *m = &s->m;
    int32_t best = -1, peak = m->peak_at;
    double best_worth = 0;
    for (int32_t v = 0; v < m->nvalues; v++) {
        if (!m->may[v] || s->banned[v] || m->until[v] != KILN_NEVER_GONE || m->made[v] >= peak || m->early[v] >= peak ||
            m->late[v] == KILN_NEVER_GONE)
            continue;
        double span = m->before[m->late[v]] - m->before[m->early[v]];
        bool runs = m->start[m->made[v]] != KILN_NEVER_GONE; /* along with others of its group */
        double least = runs ? 0 : m->time[m->made[v]];
        price p;
        if ((double)m->bytes[v] * span <= best_worth * (least + NO_TIME) || !find_price(s, v, &p) ||
            p.stays >= m->bytes[v])
            continue;
        double worth = ((double)(m->bytes[v] - p.stays) * span - p.loss) / (p.seconds + NO_TIME);
        if (worth > best_worth) {
            best_worth = worth;
            best = v;
        }
    }
    return best;
}

/* Leaves those in the list that are not run again anyway; how many. The first stays. */
static int32_t drop_gone(search *s)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->nchain; i++)
        if (s->m.until[s->chain[i]] == KILN_NEVER_GONE)
            s->chain[n++] = s->chain[i];
    return n;
}

/* Lets the next value go. False if there is none that helps. */
static bool let_go(search *s)
{
    kiln_model *m = &s->m;
    for (;;) {
        if (m->around != m->peak_at)
            kiln_model_run(m, m->peak_at);
        int32_t v = choose(s), peak = m->peak_at;
        int64_t before = m->live[peak];
        if (v < 0 && s->pardoned == s->nevicted)
            return false;
        if (v < 0) { /* much has changed since some were tried */
            memset(s->banned, 0, (size_t)m->nvalues * sizeof *s->banned);
            s->pardoned = s->nevicted;
            continue;
        }
        price p;
        find_price(s, v, &p);
        s->nchain = drop_gone(s);
        m->until[v] = m->early[v];
        for (int32_t i = 1; i < s->nchain; i++)
            m->until[s->chain[i]] = m->last[s->chain[i]];
        kiln_model_run(m, peak);
        if (m->live[peak] < before && m->peak <= before) {
            for (int32_t i = 0; i < s->nchain; i++)
                s->evicted[s->nevicted++] = s->chain[i];
            return true;
        }
        for (int32_t i = 0; i < s->nchain; i++)
            m->until[s->chain[i]] = KILN_NEVER_GONE;
        s->banned[v] = true;
        kiln_model_run(m, peak);
    }
}

/* Lets values go until the placer needs no more than `cap` bytes; what it needs then, or INT64_MAX if that cannot be
 * reached, or -1 with an error. */
static int64_t shrink(search *s, int64_t cap, int64_t plain)
{
    kiln_model *m = &s->m;
    kiln_model_run(m, -1);
    int64_t top = m->peak, level = LEVELS, need;
    if ((need = kiln_draft_try(s->d, NULL, NULL)) < 0 || need <= cap)
        return need;
    /* The model leaves out holes and memory that is used in place: what it says is taken in proportion. */
    double wanted = (double)(cap - s->fixed) * (double)top / (double)(plain - s->fixed + 1);
    while (let_go(s)) {
        int64_t now = (m->peak * LEVELS + top - 1) / top;
        if (now >= level)
            continue;
        level = now;
        if ((double)m->peak > 1.02 * wanted)
            continue;
        if ((need = try_as_is(s)) <= cap)
            return need;
    }
    need = try_as_is(s);
    return need > cap ? INT64_MAX : need;
}

/* ---- Coming back ---- */

/* The dearest first. */
static void sort_evicted(search *s)
{
    const kiln_model *m = &s->m;
    for (int32_t i = 1; i < s->nevicted; i++) {
        int32_t v = s->evicted[i], to = i;
        for (; to > 0 && m->time[m->made[s->evicted[to - 1]]] < m->time[m->made[v]]; to--)
            s->evicted[to] = s->evicted[to - 1];
        s->evicted[to] = v;
    }
}

/* Takes values back as long as the step fits into `cap`, of which it needs `need` now. False with an error. */
static bool put_back(search *s, int64_t cap, int64_t need)
{
    kiln_model *m = &s->m;
    kiln_model_run(m, -1);
    double room = (double)m->peak * (double)(cap - s->fixed) / (double)(need - s->fixed + 1);
    int32_t *until = KILN_ARENA_NEW(&s->d->scratch, int32_t, m->nvalues);
    int32_t *back = KILN_ARENA_NEW(&s->d->scratch, int32_t, s->nevicted), nback = 0;
    if (!until || !back)
        return false;
    for (int32_t v = 0; v < m->nvalues; v++)
        until[v] = m->until[v];
    sort_evicted(s);
    double extra = m->extra;
    for (int32_t i = 0; i < s->nevicted; i++) {
        int32_t v = s->evicted[i];
        m->until[v] = KILN_NEVER_GONE;
        kiln_model_run(m, -1);
        if ((double)m->peak <= room && m->extra <= extra) {
            back[nback++] = v;
            extra = m->extra;
        } else
            m->until[v] = until[v];
    }
    for (int tries = 0; nback; tries++) {
        int64_t now = try_as_is(s);
        if (now < 0 || now <= cap)
            return now >= 0;
        for (int32_t keep = tries < BACK_TRIES ? nback / 2 : 0; nback > keep; nback--)
            m->until[back[nback - 1]] = until[back[nback - 1]];
    }
    return true;
}

/* ---- All of it ---- */

static bool begin(search *s, kiln_draft *d)
{
    kiln_plan plan = {0};
    kiln_draft t = {.plan = &plan};
    if (kiln_draft_try(d, NULL, &t) < 0)
        return false;
    s->fixed = plan.all_output_bytes;
    bool ok = kiln_model_make(&s->m, d, &t);
    kiln_arena_free(&t.scratch);
    kiln_arena_free(&plan.pool);
    s->banned = KILN_ARENA_NEW(&d->scratch, bool, s->m.nvalues);
    s->seen = KILN_ARENA_NEW(&d->scratch, int32_t, s->m.nvalues);
    s->until = KILN_ARENA_NEW(&d->scratch, int32_t, d->nvalues);
    s->chain = KILN_ARENA_NEW(&d->scratch, int32_t, LONGEST_CHAIN + 1);
    s->evicted = KILN_ARENA_NEW(&d->scratch, int32_t, s->m.nvalues + 1);
    return ok && s->until && s->banned && s->seen && s->chain && s->evicted;
}

kiln_fit kiln_draft_fit(kiln_draft *d, const kiln_budget *b)
{
    search s = {.d = d};
    if (!kiln_draft_choose(d))
        return KILN_FIT_FAILED;
    d->tight = true;
    if (!begin(&s, d))
        return KILN_FIT_FAILED;
    int64_t need = shrink(&s, b->cap, b->plain);
    if (need < 0)
        return KILN_FIT_FAILED;
    if (need == INT64_MAX)
        return KILN_FITS_NOT;
    if (!s.nevicted)
        return KILN_FITS;
    if (!put_back(&s, b->cap, need))
        return KILN_FIT_FAILED;
    kiln_model_tell(&s.m, d->nvalues, s.until);
    return kiln_draft_rewrite(d, s.until) ? KILN_FITS : KILN_FIT_FAILED;
}
