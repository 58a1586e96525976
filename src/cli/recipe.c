/* How a run trains: defaults by model, optimizers and schedules from text. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "cli/recipe.h"

/* ---- Defaults ----
 * Measured on two cores: mlp on digits reaches 98 % of the test set well within a minute; the text models stay below
 * two nats a byte on a megabyte of Shakespeare. */
typedef struct defaults {
    const char *model; /* NULL: all others */
    int64_t epochs, batch;
    const char *optim;
    double lr;
    const char *schedule;
    int64_t warmup;
    double clip;
} defaults;

static const defaults table[] = {
    {"gpt2", 8, 32, "adamw", 1e-3, "cosine", 100, 1},      {"char-lstm", 8, 32, "adamw", 3e-3, "cosine", 100, 1},
    {"llama", 8, 32, "adamw", 1e-3, "cosine", 100, 1},     {"bert", 8, 32, "adamw", 1e-3, "cosine", 100, 1},
    {"resnet18", 5, 64, "adamw", 1e-3, "one-cycle", 0, 0}, {"resnet50", 5, 32, "adamw", 1e-3, "one-cycle", 0, 0},
    {"vit-tiny", 10, 64, "adamw", 5e-4, "cosine", 200, 1}, {NULL, 8, 64, "adam", 1e-3, "cosine", 0, 0},
};

static const defaults *defaults_for(const network *n)
{
    const defaults *d = table;
    const char *name = n->entry ? n->entry->name : n->tokens ? "gpt2" : "";
    while (d->model && strcmp(d->model, name) != 0)
        d++;
    return d;
}

/* Wide transformers want smaller steps. */
static double default_lr(const network *n, const defaults *d)
{
    bool transformer = n->entry && n->tokens && model_has_option(n->entry, "heads");
    return transformer && (n->options.embed == 0 || n->options.embed > 384) ? 3e-4 : d->lr;
}

/* ---- Schedules: NAME[:key=value,…] ---- */

typedef struct schedule_parameter {
    const char *schedule, *key;
    double standard, min, max;
    bool whole; /* a count of epochs */
} schedule_parameter;

static const schedule_parameter parameters[] = {
    {"step", "every", 3, 1, 1e9, true},         {"step", "gamma", 0.1, 0, 1, false},
    {"cosine", "final", 0, 0, 1, false},        {"one-cycle", "up", 0.3, 0.01, 1, false},
    {"exponential", "gamma", 0.9, 0, 1, false}, {"plateau", "factor", 0.1, 0, 1, false},
    {"plateau", "patience", 2, 1, 1e9, true},
};
enum { PARAMETERS = sizeof parameters / sizeof *parameters };

static bool is_schedule(const char *text, const char *name)
{
    return strlen(name) == strcspn(text, ":") && !strncmp(text, name, strlen(name));
}

/* The parameter of the schedule that `piece` ("key=value", n characters) sets, or NULL. */
static const schedule_parameter *find_parameter(const char *text, const char *piece)
{
    for (int i = 0; i < PARAMETERS; i++)
        if (is_schedule(text, parameters[i].schedule) && strcspn(piece, "=") == strlen(parameters[i].key) &&
            !strncmp(piece, parameters[i].key, strlen(parameters[i].key)))
            return &parameters[i];
    return NULL;
}

static int bad_parameter(const char *text, const char *piece)
{
    char keys[64] = "";
    for (int i = 0; i < PARAMETERS; i++)
        if (is_schedule(text, parameters[i].schedule))
            snprintf(keys + strlen(keys), sizeof keys - strlen(keys), "%s%s", keys[0] ? ", " : "", parameters[i].key);
    fail(EX_USAGE, "--schedule %s: there is no parameter \"%s\"", text, piece);
    if (keys[0])
        hint("%.*s takes %s, as in %.*s:%.*s=0.5", (int)strcspn(text, ":"), text, keys, (int)strcspn(text, ":"), text,
             (int)strcspn(keys, ","), keys);
    else
        hint("%.*s takes no parameters", (int)strcspn(text, ":"), text);
    return EX_USAGE;
}

/* Reads all parameters of the text; value (may be NULL) receives the one called `key`. */
static int read_parameters(const char *text, const char *key, double *value)
{
    const char *colon = strchr(text, ':');
    char copy[96];
    snprintf(copy, sizeof copy, "%s", colon ? colon + 1 : "");
    for (char *rest = copy, *piece; (piece = strtok_r(rest, ",", &rest));) {
        const schedule_parameter *p = find_parameter(text, piece);
        char *equals = strchr(piece, '=');
        double n;
        if (!p)
            return bad_parameter(text, piece);
        if (!equals || !parse_number(equals + 1, &n) || n < p->min || n > p->max || (p->whole && n != floor(n)))
            return fail(EX_USAGE, "--schedule %s: expected %s= and a %snumber from %g to %.15g", text, p->key,
                        p->whole ? "whole " : "", p->min, p->max);
        if (value && !strcmp(p->key, key))
            *value = n;
    }
    return 0;
}

static bool names_schedule(const char *text)
{
    for (const char *w = SCHEDULES; *w; w += strspn(w, " ")) {
        size_t n = strcspn(w, " ");
        if (n == strcspn(text, ":") && !strncmp(w, text, n))
            return true;
        w += n;
    }
    return false;
}

int schedule_check(const char *text)
{
    if (strlen(text) >= sizeof((recipe *)0)->schedule)
        return fail(EX_USAGE, "--schedule %s: too long", text);
    if (!names_schedule(text)) /* by a run: options were looked at before */
        return fail(EX_DATAERR, "the run says schedule = %s, which is none of: %s", text, SCHEDULES);
    return read_parameters(text, "", NULL);
}

static double parameter(const char *text, const char *key)
{
    double value = NAN;
    for (int i = 0; i < PARAMETERS; i++)
        if (is_schedule(text, parameters[i].schedule) && !strcmp(parameters[i].key, key))
            value = parameters[i].standard;
    read_parameters(text, key, &value);
    return value;
}

static int64_t steps_an_epoch(const recipe *r, int64_t samples)
{
    int64_t batches = (samples - 1) / r->batch + 1;
    return (batches - 1) / r->accumulate + 1;
}

static int64_t all_steps(const recipe *r, int64_t samples)
{
    int64_t total;
    return __builtin_mul_overflow(steps_an_epoch(r, samples), r->epochs, &total) ? INT64_MAX : total;
}

static kiln_schedule *make_schedule(const recipe *r, kiln_optim *o, int64_t an_epoch, int64_t total)
{
    const char *s = r->schedule;
    if (is_schedule(s, "cosine"))
        return kiln_schedule_cosine(o, total, parameter(s, "final"));
    if (is_schedule(s, "one-cycle"))
        return kiln_schedule_one_cycle(o, r->lr, total, parameter(s, "up"));
    if (is_schedule(s, "step")) {
        int64_t every;
        if (__builtin_mul_overflow((int64_t)parameter(s, "every"), an_epoch, &every))
            every = INT64_MAX;
        return kiln_schedule_step(o, every, parameter(s, "gamma"));
    }
    if (is_schedule(s, "exponential")) /* gamma holds for an epoch */
        return kiln_schedule_exponential(o, pow(parameter(s, "gamma"), 1 / (double)an_epoch));
    if (is_schedule(s, "plateau"))
        return kiln_schedule_plateau(o, parameter(s, "factor"), (int64_t)parameter(s, "patience"), false);
    return kiln_schedule_constant(o);
}

int recipe_schedule(const recipe *r, kiln_optim *o, int64_t samples, kiln_schedule **out)
{
    int64_t an_epoch = steps_an_epoch(r, samples), total = all_steps(r, samples);
    kiln_schedule *s = make_schedule(r, o, an_epoch, total - r->warmup > 0 ? total - r->warmup : 1);
    if (s && r->warmup > 0)
        s = kiln_schedule_warmup(o, r->warmup, 0, s);
    *out = s;
    return s ? 0 : fail_kiln();
}

kiln_optim *recipe_optim(const recipe *r, kiln_module *m)
{
    kiln_optim_options o = kiln_optim_defaults(r->optim);
    o.lr = r->lr;
    o.match_rms = kiln_optim_has_option(r->optim, "match_rms"); /* there is one rate for all parameters */
    if (r->weight_decay >= 0)
        o.weight_decay = r->weight_decay;
    if (r->momentum >= 0)
        o.momentum = r->momentum;
    return kiln_optim_new(r->optim, kiln_parameters(m), &o);
}

/* ---- Choosing ---- */

/* Where options come from: the command line, the run that is resumed, what suits the model, in this order. */
typedef struct origin {
    const arguments *a;
    const char *kept;
    int code; /* not 0 when the run says what no option would take */
} origin;

static double number_from(origin *from, const char *name, double standard)
{
    const option *o = option_named(from->a, name);
    double n = standard;
    if (!from->code)
        from->code = kept_number(from->kept, name, standard, o->min, o->max, &n);
    return number_of(from->a, name, n);
}

static int64_t count_from(origin *from, const char *name, int64_t standard)
{
    double n = number_from(from, name, (double)standard);
    if (!from->code && n != floor(n))
        from->code = fail(EX_DATAERR, "the run says %s = %g, which is no whole number: its file was changed", name, n);
    return count_of(from->a, name, from->code ? standard : (int64_t)n);
}

static void text_from(const origin *from, const char *name, const char *standard, char *out, size_t size)
{
    char *text = meta_text(from->kept, name, standard);
    snprintf(out, size, "%s", text_of(from->a, name, text));
    free(text);
}

/* Options that would have no effect are refused rather than passed over. */
static int check_effect(const recipe *r, const origin *from)
{
    if (given(from->a, "momentum") && !kiln_optim_has_option(r->optim, "momentum"))
        return fail(EX_USAGE, "--momentum: %s has none; sgd, rmsprop and muon do", r->optim);
    double seed = meta_number(from->kept, "seed", (double)r->seed);
    if (seed == (double)r->seed)
        return 0;
    fail(EX_USAGE, "--seed %lld: the run was begun with %.0f, and goes on with it", (long long)r->seed, seed);
    hint("leave --seed out, or begin afresh in another folder");
    return EX_USAGE;
}

/* A warm-up that the run does not outlast is cut to a tenth of it; that is said where it was asked for. */
static void fit_warmup(recipe *r, const arguments *a, int64_t samples, int64_t limit)
{
    int64_t steps = all_steps(r, samples), wanted = r->warmup;
    if (wanted >= steps)
        r->warmup = steps / 10;
    if (!given(a, "warmup"))
        return;
    if (wanted >= steps)
        note("--warmup %s: the run has only %s step%s; the rate rises in the first %s of them", show_count(wanted),
             show_count(steps), steps == 1 ? "" : "s", show_count(r->warmup));
    else if (limit > 0 && wanted >= limit)
        note("--warmup %s: --limit %s ends the run before the rate has risen to its full size", show_count(wanted),
             show_count(limit));
}

/* Runs that were kept before there was a choice have 1 for bf16. */
static kiln_dtype amp_kept(const char *kept)
{
    double amp = meta_number(kept, "amp", 0);
    return amp == 0 ? 0 : amp == KILN_F16 ? KILN_F16 : KILN_BF16;
}

/* --fit-memory, --fit-memory=local, or as the run that is resumed has it. */
static kiln_fit_memory choose_fit_memory(const arguments *a, const char *kept)
{
    if (given(a, "fit-memory"))
        return *text_of(a, "fit-memory", "") ? KILN_FIT_LOCAL : KILN_FIT_SPLIT;
    double n = meta_number(kept, "fit-memory", 0);
    return n == KILN_FIT_SPLIT ? KILN_FIT_SPLIT : n == KILN_FIT_LOCAL ? KILN_FIT_LOCAL : KILN_FIT_WHOLE;
}

int recipe_choose(recipe *r, const arguments *a, const network *n, int64_t samples, const char *kept)
{
    const defaults *d = defaults_for(n);
    origin from = {.a = a, .kept = kept};
    *r = (recipe){.batch = count_from(&from, "batch", samples < d->batch && samples > 0 ? samples : d->batch),
                  .accumulate = count_from(&from, "accumulate", 1),
                  .early_stop = count_from(&from, "early-stop", 0),
                  .seed = count_from(&from, "seed", 0),
                  .weight_decay = number_from(&from, "weight-decay", -1),
                  .momentum = number_from(&from, "momentum", -1),
                  .clip = number_from(&from, "clip", d->clip),
                  .ema = number_from(&from, "ema", 0),
                  .no_shuffle = given(a, "no-shuffle") || meta_number(kept, "no-shuffle", 0) != 0,
                  .flip = given(a, "flip") || meta_number(kept, "flip", 0) != 0,
                  .amp = given(a, "amp") ? amp_of(a) : amp_kept(kept),
                  .fit_memory = choose_fit_memory(a, kept),
                  .crop = count_from(&from, "crop", 0)};
    r->find_batch = !strcmp(text_of(a, "batch", ""), "auto") && isnan(meta_number(kept, "batch", NAN));
    text_from(&from, "optim", d->optim, r->optim, sizeof r->optim);
    text_from(&from, "schedule", d->schedule, r->schedule, sizeof r->schedule);
    bool own_optim = !strcmp(r->optim, d->optim);
    double lr = own_optim                      ? default_lr(n, d)
                : !strcmp(r->optim, "sgd")     ? 0.05
                : !strcmp(r->optim, "rmsprop") ? 1e-3
                                               : kiln_optim_defaults(r->optim).lr;
    r->lr = number_from(&from, "lr", lr);
    if (r->momentum < 0 && !strcmp(r->optim, "sgd"))
        r->momentum = 0.9;
    if (from.code || (from.code = check_effect(r, &from)))
        return from.code;
    return schedule_check(r->schedule);
}

int recipe_length(recipe *r, const arguments *a, const network *n, int64_t samples, const char *kept)
{
    const defaults *d = defaults_for(n);
    origin from = {.a = a, .kept = kept};
    r->warmup = count_from(&from, "warmup", given(a, "schedule") ? 0 : d->warmup);
    int64_t limit = count_of(a, "limit", 0), an_epoch = steps_an_epoch(r, samples);
    bool by_limit = limit > 0 && an_epoch > 0;
    r->epochs = count_from(&from, "epochs", by_limit ? (limit - 1) / an_epoch + 1 : d->epochs);
    if (!from.code)
        fit_warmup(r, a, samples, limit);
    return from.code;
}

int recipe_check_images(const recipe *r, const kiln_data_info *data)
{
    const char *name = r->flip ? "--flip" : "--crop";
    if (!r->flip && !r->crop)
        return 0;
    if (data->text || data->x.ndim < 2)
        return fail(EX_USAGE, "%s is for images; %s is %s", name, data->name, data->text ? "a text" : "none");
    int64_t height = data->x.shape[data->x.ndim - 2], width = data->x.shape[data->x.ndim - 1];
    int64_t most = (height < width ? height : width) - 1;
    if (r->crop <= most)
        return 0;
    fail(EX_USAGE, "--crop %lld: images of %s are only %lld x %lld pixels", (long long)r->crop, data->name,
         (long long)height, (long long)width);
    hint("it is how far they are shifted; at most %lld", (long long)most);
    return EX_USAGE;
}

char *recipe_meta(const recipe *r, const char *model)
{
    char *shown = shown_text(model);
    json_t *o = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:i, s:i, s:i, s:i, s:I, s:s, s:s, s:s}", "epochs",
        (json_int_t)r->epochs, "batch", (json_int_t)r->batch, "accumulate", (json_int_t)r->accumulate, "warmup",
        (json_int_t)r->warmup, "early-stop", (json_int_t)r->early_stop, "seed", (json_int_t)r->seed, "lr", r->lr,
        "weight-decay", r->weight_decay, "momentum", r->momentum, "clip", r->clip, "ema", r->ema, "no-shuffle",
        (int)r->no_shuffle, "flip", (int)r->flip, "amp", (int)r->amp, "fit-memory", (int)r->fit_memory, "crop",
        (json_int_t)r->crop, "optim", r->optim, "schedule", r->schedule, "model", shown);
    free(shown);
    char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(o);
    if (!text)
        exit(fail(EX_OSERR, "out of memory"));
    return text;
}
