/* What kiln inspect says about a run: what was trained on what and how, how far it came, how good it is, what there is.
 * All of it is read from the run's files, any of which may be missing, and may say anything. */
#define _GNU_SOURCE /* getline, vasprintf */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "cli/work.h"

enum { STATE_LIMIT = 1 << 23 };

__attribute__((format(printf, 2, 3))) static void row(const char *name, const char *format, ...)
{
    char *text = NULL;
    va_list list;
    va_start(list, format);
    if (vasprintf(&text, format, list) >= 0)
        say("%-12s %s\n", name, text);
    va_end(list);
    free(text);
}

/* ---- Reading ---- */

/* All that is known. Members are NULL where the run has no such file, or it cannot be read. */
typedef struct run_facts {
    json_t *state, *fit; /* of the newest checkpoint; what kiln_fit has put into it */
    json_t *about;       /* the log's first line */
    json_t *best, *last; /* epochs of the history */
    double seconds;      /* of all of them */
} run_facts;

static json_t *parse_object(const char *text)
{
    json_t *o = text ? json_loads(text, 0, NULL) : NULL;
    if (json_is_object(o))
        return o;
    json_decref(o);
    return NULL;
}

/* -1 where it is no number from 0 up. */
static double number_in(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    double n = json_is_number(v) ? json_number_value(v) : -1;
    return n >= 0 ? n : -1;
}

static int64_t count_in(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_integer(v) && json_integer_value(v) >= 0 ? (int64_t)json_integer_value(v) : -1;
}

static const char *text_in(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static void read_state(run_facts *f, const char *checkpoint)
{
    int code = 0;
    char *path = must_format("%s/state.json", checkpoint), *text = read_text(path, STATE_LIMIT, &code);
    f->state = parse_object(text);
    json_t *extra = parse_object(text_in(f->state, "extra"));
    f->fit = json_incref(json_object_get(extra, "fit"));
    json_decref(extra);
    free(text);
    free(path);
}

/* Calls f with each line of a file of the run, as an object, until it says that is enough. */
static void each_line(const char *folder, const char *name, bool (*f)(run_facts *, json_t *), run_facts *facts)
{
    int code = 0;
    char *path = must_format("%s/%s", folder, name), *line = NULL;
    size_t room = 0;
    FILE *in = path_exists(path) ? open_input(path, &code) : NULL;
    while (in && getline(&line, &room, in) >= 0) {
        json_t *o = parse_object(line);
        bool more = o && f(facts, o);
        json_decref(o);
        if (!more)
            break;
    }
    if (in)
        fclose(in);
    free(line);
    free(path);
}

static bool take_epoch(run_facts *f, json_t *o)
{
    double seconds = number_in(o, "seconds");
    f->seconds += seconds > 0 ? seconds : 0;
    json_decref(f->last);
    f->last = json_incref(o);
    if (count_in(o, "epoch") >= 0 && count_in(o, "epoch") == count_in(f->fit, "best_epoch")) {
        json_decref(f->best);
        f->best = json_incref(o);
    }
    return true;
}

static bool take_about(run_facts *f, json_t *o)
{
    f->about = json_incref(json_object_get(o, "run"));
    return false;
}

static run_facts read_facts(const char *folder, const char *checkpoint)
{
    run_facts f = {0};
    if (checkpoint)
        read_state(&f, checkpoint);
    each_line(folder, "history.jsonl", take_epoch, &f);
    each_line(folder, "log.jsonl", take_about, &f);
    return f;
}

static void free_facts(run_facts *f)
{
    json_t *const all[] = {f->state, f->fit, f->about, f->best, f->last};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        json_decref(all[i]);
}

/* ---- What was trained ---- */

/* As the user named it, then as it was built. */
static void say_model(const saved *s, const run_facts *f)
{
    const char *text = s->model ? s->model : "";
    bool file = strchr(text, '\n') != NULL;
    char *given = meta_text(s->train, "model", text_in(f->about, "model")), counted[64] = "";
    const char *name = given ? given : file ? "a model file" : *text ? text : "not known";
    if (count_in(f->about, "parameters") >= 0)
        snprintf(counted, sizeof counted, ", %s parameters", show_count(count_in(f->about, "parameters")));
    row("model", "%s%s", name, counted);
    if (*text && !file && strcmp(text, name) != 0)
        row("", "%s", text);
    for (const char *line = text, *end; file && *line; line = end + (*end == '\n')) {
        end = line + strcspn(line, "\n");
        say("%13s    %.*s\n", "", (int)(end - line), line);
    }
    free(given);
}

static void say_data(const saved *s, const run_facts *f)
{
    char *origin = meta_text(s->data, "source", text_in(f->about, "data")), *input = meta_text(s->data, "input", NULL);
    double classes = meta_number(s->data, "classes", 0), split = meta_number(s->data, "split", 0);
    char more[64] = "";
    if (count_in(f->about, "samples") >= 0)
        snprintf(more, sizeof more, ", %s to train, %s to test", show_count(count_in(f->about, "samples")),
                 show_count(count_in(f->about, "validation_samples")));
    if (origin)
        row("data", "%s%s", origin, more);
    if (input && classes > 0)
        row("", "samples of %s, %.0f classes%s", input, classes, split > 0 && split < 1 ? "" : ", one part");
    free(origin);
    free(input);
}

static void say_recipe(const saved *s)
{
    if (!s->train)
        return;
    static const struct {
        const char *key, *says;
        double unless;
    } more[] = {
        {"accumulate", "batches a step", 1},     {"warmup", "steps of warm-up", 0},    {"clip", "largest norm", 0},
        {"ema", "average of weights", 0},        {"weight-decay", "weight decay", -1}, {"momentum", "momentum", -1},
        {"early-stop", "epochs of patience", 0}, {"crop", "pixels shifted", 0}};
    char *optim = meta_text(s->train, "optim", "?"), *schedule = meta_text(s->train, "schedule", "?");
    row("recipe", "%s at %g, %s; batch %.0f, seed %.0f", optim, meta_number(s->train, "lr", NAN), schedule,
        meta_number(s->train, "batch", NAN), meta_number(s->train, "seed", NAN));
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        double n = meta_number(s->train, more[i].key, more[i].unless);
        if (n != more[i].unless)
            row("", "%g %s", n, more[i].says);
    }
    if (meta_number(s->train, "flip", 0) != 0)
        row("", "images mirrored at random");
    if (meta_number(s->train, "no-shuffle", 0) != 0)
        row("", "samples in their order");
    free(optim);
    free(schedule);
}

/* ---- How far it came ---- */

static void say_progress(const saved *s, const run_facts *f)
{
    int64_t step = count_in(f->state, "step"), epoch = count_in(f->state, "epoch"), batch = count_in(f->state, "batch");
    double epochs = meta_number(s->train, "epochs", -1);
    char of[40] = "", inside[64] = "", took[64] = "";
    if (step < 0 || epoch < 0)
        return;
    if (epochs >= 0)
        snprintf(of, sizeof of, " of %.0f", epochs);
    if (batch > 0)
        snprintf(inside, sizeof inside, ", and %s batches of the next one", show_count(batch));
    if (f->seconds > 0)
        snprintf(took, sizeof took, "; %s", show_seconds(f->seconds));
    row("trained", "%s%s epochs%s, %s steps%s", show_count(epoch), of, inside, show_count(step), took);
}

static void say_epoch(const char *name, const json_t *epoch)
{
    const json_t *train = json_object_get(epoch, "train"), *test = json_object_get(epoch, "test");
    const struct {
        const json_t *from;
        const char *key, *format;
        double times;
    } parts[] = {{train, "loss", ", loss %.4f", 1},
                 {train, "accuracy", ", accuracy %.2f %%", 100},
                 {train, "perplexity", ", perplexity %.2f", 1},
                 {test, "loss", "; test loss %.4f", 1},
                 {test, "accuracy", ", accuracy %.2f %%", 100},
                 {test, "perplexity", ", perplexity %.2f", 1}};
    char text[400];
    if (count_in(epoch, "epoch") < 0)
        return;
    int used = snprintf(text, sizeof text, "epoch %s", show_count(count_in(epoch, "epoch") + 1));
    for (size_t i = 0; i < sizeof parts / sizeof *parts && used < (int)sizeof text - 80; i++) {
        double n = number_in(parts[i].from, parts[i].key);
        if (n >= 0 && n < 1e9)
            used += snprintf(text + used, sizeof text - (size_t)used, parts[i].format, parts[i].times * n);
    }
    row(name, "%s", text);
}

static void say_origin(const run_facts *f)
{
    const char *version = text_in(f->about, "version"), *line = text_in(f->about, "command"),
               *device = text_in(f->about, "device");
    if (device)
        row("device", "%s, %s threads", device, show_count(count_in(f->about, "threads")));
    if (line)
        row("command", "%s", line);
    if (version)
        row("version", "%s", version);
}

/* ---- What there is ---- */

static uint64_t size_at(const char *folder, const char *name)
{
    struct stat s;
    char *path = must_format("%s/%s", folder, name);
    bool there = stat(path, &s) == 0 && S_ISREG(s.st_mode);
    free(path);
    return there ? (uint64_t)s.st_size : 0;
}

static void say_files(const char *folder, const char *checkpoint)
{
    static const struct {
        const char *name, *about;
    } files[] = {{"best.safetensors", "the weights of the best epoch"},
                 {"log.jsonl", "the log"},
                 {"log.csv", "the log"},
                 {"history.jsonl", "all epochs"},
                 {"curve.svg", "the curves of the log"}};
    static const char *const parts[] = {"model.safetensors", "optim.safetensors", "ema.safetensors", "state.json"};
    puts("\nfiles");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (size_at(folder, files[i].name))
            say("  %-18s %10s  %s\n", files[i].name, show_size(size_at(folder, files[i].name)), files[i].about);
    uint64_t all = 0;
    for (size_t i = 0; checkpoint && i < sizeof parts / sizeof *parts; i++)
        all += size_at(checkpoint, parts[i]);
    if (checkpoint) {
        const char *slash = strrchr(checkpoint, '/');
        say("  %-18s %10s  the last checkpoint; kiln inspect %s shows it\n", slash ? slash + 1 : checkpoint,
            show_size(all), checkpoint);
    }
}

int report_run(const char *folder, const char *checkpoint)
{
    saved s;
    int code = saved_open(&s, folder);
    if (!code) {
        run_facts f = read_facts(folder, checkpoint);
        say("%s\n\n", folder);
        say_model(&s, &f);
        say_data(&s, &f);
        say_recipe(&s);
        say_progress(&s, &f);
        say_epoch("best", f.best);
        say_epoch("last", f.last);
        say_origin(&f);
        say_files(folder, checkpoint);
        free_facts(&f);
    }
    saved_close(&s);
    return code;
}
