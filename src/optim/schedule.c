/* Learning rates as functions of time, in PyTorch's closed forms: a rate follows from how many units have passed, so
 * that a schedule is saved and restored by a number. (The plateau remembers what it has seen as well.) */
#include <math.h>
#include <string.h>
#include "core/alloc.h"
#include "core/counts.h"
#include "core/fail.h"
#include "core/sized.h"
#include "optim/optim.h"

typedef double (*rate_fn)(const kiln_schedule *s, int64_t unit, double base);

struct kiln_schedule {
    const char *kind;
    kiln_optim *optim;
    rate_fn rate;
    double *bases; /* what each group's rate was when the schedule was made */
    int ngroups;
    int64_t total; /* units until the end; steps: between changes; warm-up: its length */
    double from, to, gamma;
    int64_t *milestones; /* ascending */
    int nmilestones;
    kiln_schedule *then;
    int64_t patience;
    bool rising;
    kiln_schedule_state state;
};

/* ---- The functions ---- */

static double constant_rate(const kiln_schedule *s, int64_t unit, double base)
{
    (void)s, (void)unit;
    return base;
}

static double step_rate(const kiln_schedule *s, int64_t unit, double base)
{
    return base * pow(s->gamma, (double)(unit / s->total));
}

static double multistep_rate(const kiln_schedule *s, int64_t unit, double base)
{
    int passed = 0;
    while (passed < s->nmilestones && s->milestones[passed] <= unit)
        passed++;
    return base * pow(s->gamma, passed);
}

static double exponential_rate(const kiln_schedule *s, int64_t unit, double base)
{
    return base * pow(s->gamma, (double)unit);
}

static double share(int64_t unit, int64_t total)
{
    return unit >= total ? 1 : (double)unit / (double)total;
}

static double linear_rate(const kiln_schedule *s, int64_t unit, double base)
{
    return base * (s->from + (s->to - s->from) * share(unit, s->total));
}

/* From a to b along half a wave of the cosine. */
static double anneal(double a, double b, double part)
{
    return b + (a - b) / 2 * (1 + cos(acos(-1) * part));
}

static double cosine_rate(const kiln_schedule *s, int64_t unit, double base)
{
    return anneal(base, base * s->to, share(unit, s->total));
}

static double one_cycle_rate(const kiln_schedule *s, int64_t unit, double base)
{
    (void)base; /* PyTorch's goes by the peak alone */
    double start = s->to / 25, end = start / 1e4;
    double top = s->from * (double)s->total - 1, last = (double)(s->total - 1);
    double at = unit < s->total - 1 ? (double)unit : last;
    if (at <= top)
        return top > 0 ? anneal(start, s->to, at / top) : s->to;
    return anneal(s->to, end, last > top ? (at - top) / (last - top) : 1);
}

static double warmup_rate(const kiln_schedule *s, int64_t unit, double base)
{
    if (unit >= s->total)
        return s->then ? s->then->rate(s->then, unit - s->total, base) : base;
    return linear_rate(s, unit, base);
}

/* PyTorch's: a change of up to 1e-8 is none. */
static bool would_fall(const kiln_schedule *s, double rate)
{
    return rate - rate * s->gamma > 1e-8;
}

/* Falls as often as the factor says, a group with a small rate perhaps less often. */
static double plateau_rate(const kiln_schedule *s, int64_t unit, double base)
{
    (void)unit;
    for (double factor = 1; factor > s->state.factor && would_fall(s, base); factor *= s->gamma)
        base *= s->gamma;
    return base;
}

/* ---- Making ---- */

/* False with an error when a rate is no number any more. */
static bool apply(const kiln_schedule *s)
{
    for (int g = 0; g < s->ngroups; g++)
        if (!kiln_optim_set_lr(s->optim, g, s->rate(s, s->state.unit, s->bases[g])))
            return false;
    return true;
}

void kiln_schedule_free(kiln_schedule *s)
{
    if (!s)
        return;
    kiln_schedule_free(s->then);
    kiln_free(s->milestones);
    kiln_free(s->bases);
    kiln_free(s);
}

/* `s` with the rates of now as its base, or those that the schedule after it was made with; and the first rate is set.
 * Takes over s.then and s.milestones, also when it fails. */
static kiln_schedule *make(kiln_schedule s, const char *kind, kiln_optim *o, rate_fn rate)
{
    kiln_schedule *made = o ? kiln_alloc(1, sizeof *made) : NULL;
    s.bases = made ? kiln_alloc((size_t)o->ngroups, sizeof *s.bases) : NULL;
    if (!s.bases) {
        if (!o && kiln_ok())
            kiln_fail(KILN_E_ARGUMENT, kind, "the optimizer is NULL");
        kiln_schedule_free(s.then);
        kiln_free(s.milestones);
        kiln_free(made);
        return NULL;
    }
    s.kind = kind;
    s.optim = o;
    s.rate = rate;
    s.ngroups = (int)o->ngroups;
    for (int g = 0; g < s.ngroups; g++)
        s.bases[g] = s.then && g < s.then->ngroups ? s.then->bases[g] : o->groups[g].lr;
    s.state = (kiln_schedule_state){.factor = 1};
    *made = s;
    if (apply(made))
        return made;
    kiln_schedule_free(made);
    return NULL;
}

static bool check(bool holds, const char *kind, const char *what, double value)
{
    return holds || kiln_fail(KILN_E_ARGUMENT, kind, "%s, not %g", what, value);
}

static bool check_units(const char *kind, int64_t units)
{
    return check(units > 0, kind, "it must take at least 1 unit", (double)units);
}

static bool check_factor(const char *kind, double factor)
{
    return check(isfinite(factor) && factor >= 0, kind, "a factor must be a number of at least 0", factor);
}

kiln_schedule *kiln_schedule_constant(kiln_optim *o)
{
    return make((kiln_schedule){0}, "schedule_constant", o, constant_rate);
}

kiln_schedule *kiln_schedule_step(kiln_optim *o, int64_t every, double gamma)
{
    static const char kind[] = "schedule_step";
    if (!check_units(kind, every) || !check_factor(kind, gamma))
        return NULL;
    return make((kiln_schedule){.total = every, .gamma = gamma}, kind, o, step_rate);
}

kiln_schedule *kiln_schedule_multistep(kiln_optim *o, int n, const int64_t *milestones, double gamma)
{
    static const char kind[] = "schedule_multistep";
    if (n < 0 || (n && !milestones))
        return kiln_fail(KILN_E_ARGUMENT, kind, "the list of milestones is not one");
    for (int i = 1; i < n; i++)
        if (milestones[i] < milestones[i - 1])
            return kiln_fail(KILN_E_ARGUMENT, kind, "milestones must ascend, but %lld comes after %lld",
                             (long long)milestones[i], (long long)milestones[i - 1]);
    if (!check_factor(kind, gamma))
        return NULL;
    int64_t *copy = kiln_alloc((size_t)n, sizeof *copy);
    if (!copy)
        return NULL;
    if (n)
        memcpy(copy, milestones, (size_t)n * sizeof *copy);
    return make((kiln_schedule){.milestones = copy, .nmilestones = n, .gamma = gamma}, kind, o, multistep_rate);
}

kiln_schedule *kiln_schedule_exponential(kiln_optim *o, double gamma)
{
    static const char kind[] = "schedule_exponential";
    return check_factor(kind, gamma) ? make((kiln_schedule){.gamma = gamma}, kind, o, exponential_rate) : NULL;
}

kiln_schedule *kiln_schedule_linear(kiln_optim *o, double from, double to, int64_t total)
{
    static const char kind[] = "schedule_linear";
    if (!check_units(kind, total) || !check_factor(kind, from) || !check_factor(kind, to))
        return NULL;
    return make((kiln_schedule){.total = total, .from = from, .to = to}, kind, o, linear_rate);
}

kiln_schedule *kiln_schedule_cosine(kiln_optim *o, int64_t total, double final_factor)
{
    static const char kind[] = "schedule_cosine";
    if (!check_units(kind, total) || !check_factor(kind, final_factor))
        return NULL;
    return make((kiln_schedule){.total = total, .to = final_factor}, kind, o, cosine_rate);
}

kiln_schedule *kiln_schedule_one_cycle(kiln_optim *o, double max_lr, int64_t total, double up)
{
    static const char kind[] = "schedule_one_cycle";
    up = up == 0 ? 0.3 : up;
    if (!check_units(kind, total) ||
        !check(isfinite(max_lr) && max_lr > 0, kind, "the highest rate must be above 0", max_lr) ||
        !check(up > 0 && up <= 1, kind, "the share that goes up must be above 0 and at most 1", up))
        return NULL;
    return make((kiln_schedule){.total = total, .from = up, .to = max_lr}, kind, o, one_cycle_rate);
}

kiln_schedule *kiln_schedule_warmup(kiln_optim *o, int64_t units, double start, kiln_schedule *then)
{
    static const char kind[] = "schedule_warmup";
    bool ok = check_units(kind, units) && check_factor(kind, start);
    if (ok && then && then->optim != o)
        ok = kiln_fail(KILN_E_ARGUMENT, kind, "what comes then must be a schedule of the same optimizer");
    if (!ok) {
        kiln_schedule_free(then);
        return NULL;
    }
    start = start == 0 ? 1 / (double)units : start;
    return make((kiln_schedule){.total = units, .from = start, .to = 1, .then = then}, kind, o, warmup_rate);
}

kiln_schedule *kiln_schedule_plateau(kiln_optim *o, double factor, int64_t patience, bool rising)
{
    static const char kind[] = "schedule_plateau";
    if (!check(factor > 0 && factor < 1, kind, "the factor must be above 0 and below 1", factor) ||
        !check(patience >= 0, kind, "the patience must be at least 0", (double)patience))
        return NULL;
    return make((kiln_schedule){.gamma = factor, .patience = patience, .rising = rising}, kind, o, plateau_rate);
}

/* ---- Going on ---- */

/* The plateau in a chain of schedules; NULL when there is none. */
static kiln_schedule *find_plateau(kiln_schedule *s)
{
    while (s && s->rate != plateau_rate)
        s = s->then;
    return s;
}

const char *kiln_schedule_name(const kiln_schedule *s)
{
    while (s && s->then)
        s = s->then;
    return s ? s->kind + strlen("schedule_") : "";
}

bool kiln_schedule_advance(kiln_schedule *s)
{
    if (!kiln_optim_given(s, "schedule"))
        return false;
    if (s->state.unit >= KILN_COUNT_MAX)
        return kiln_fail(KILN_E_STATE, s->kind, "it has come to its end");
    s->state.unit++;
    return apply(s);
}

/* The first number is the best so far; NaN and infinity are never good. */
static bool is_better(const kiln_schedule *s, double value)
{
    double best = s->state.best;
    if (!isfinite(value) || !s->state.observed)
        return isfinite(value);
    return s->rising ? value > best * (1 + 1e-4) : value < best * (1 - 1e-4);
}

static void look(kiln_schedule *s, double value)
{
    kiln_schedule_state *state = &s->state;
    if (is_better(s, value)) {
        state->best = value;
        state->bad = 0;
    } else
        state->bad++;
    state->observed += isfinite(value) != 0;
    if (state->bad <= s->patience)
        return;
    state->bad = 0;
    bool falls = false;
    for (int g = 0; g < s->ngroups; g++)
        falls |= would_fall(s, s->rate(s, state->unit, s->bases[g]));
    if (falls)
        state->factor *= s->gamma;
}

bool kiln_schedule_observe(kiln_schedule *s, double value)
{
    kiln_schedule *plateau = find_plateau(s);
    if (!kiln_optim_given(s, "schedule") || !plateau)
        return s != NULL;
    look(plateau, value);
    return apply(s);
}

void kiln_schedule_get_(const kiln_schedule *s, kiln_schedule_state *to, size_t size)
{
    kiln_schedule_state state = {.factor = 1};
    if (kiln_given(s, "schedule_get")) {
        const kiln_schedule *plateau = find_plateau((kiln_schedule *)s);
        state = plateau ? plateau->state : s->state;
        state.unit = s->state.unit;
    }
    KILN_GIVE_SIZED(to, size, state);
}

bool kiln_schedule_set_(kiln_schedule *s, const kiln_schedule_state *given, size_t size)
{
    kiln_schedule_state state;
    if (!kiln_optim_given(s, "schedule") || !KILN_TAKE_SIZED(s->kind, state, given, size))
        return false;
    bool counts = state.unit >= 0 && state.unit <= KILN_COUNT_MAX && state.bad >= 0 && state.bad <= KILN_COUNT_MAX &&
                  state.observed >= 0 && state.observed <= KILN_COUNT_MAX;
    if (!counts || !isfinite(state.factor) || state.factor < 0)
        return kiln_fail(KILN_E_ARGUMENT, s->kind, "this is not the state of a schedule");
    kiln_schedule *plateau = find_plateau(s);
    if (plateau)
        plateau->state = state;
    s->state.unit = state.unit;
    return apply(s);
}
