/* kiln inspect: what is in a safetensors file, a checkpoint or a run. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "cli/work.h"

static const option options[] = {
    {"stats", 0, OPTION_FLAG, NULL, "smallest, largest, mean, deviation; NaN are counted", 0, 0, NULL}, {0}};

/* ---- Figures ---- */

typedef struct figures {
    double min, max, mean, std;
    int64_t bad; /* NaN and infinities */
} figures;

static figures figures_of(const double *x, int64_t n)
{
    figures f = {INFINITY, -INFINITY, 0, 0, 0};
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            f.bad++;
            continue;
        }
        f.min = fmin(f.min, x[i]);
        f.max = fmax(f.max, x[i]);
        sum += x[i];
    }
    double count = (double)(n - f.bad);
    f.mean = sum / count;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(x[i]))
            squares += (x[i] - f.mean) * (x[i] - f.mean);
    f.std = count > 1 ? sqrt(squares / (count - 1)) : NAN;
    return f;
}

/* Loads one tensor and says its figures at the end of its line. */
static int say_figures(kiln_safetensors *file, int64_t i)
{
    const kiln_safetensor *t = kiln_safetensors_at(file, i);
    int code = 0;
    if (t->dtype == KILN_DTYPES || t->bytes == 0)
        return 0;
    kiln_scope {
        kiln_tensor *x = kiln_cast(kiln_safetensors_load(file, i, KILN_CPU), KILN_F64);
        int64_t n = x ? kiln_numel(x) : 0;
        double *values = must_alloc((size_t)n, sizeof *values);
        if (kiln_read(x, values, (size_t)n * sizeof *values)) {
            figures f = figures_of(values, n);
            if (f.bad < n)
                printf("  %10.3g %10.3g %10.3g", f.min, f.max, f.mean);
            if (f.bad < n && !isnan(f.std))
                printf(" %10.3g", f.std);
            else if (f.bad)
                printf("%11s", "");
            if (f.bad)
                printf("  %s not finite", show_count(f.bad));
        } else {
            putchar('\n');
            code = fail_kiln();
        }
        free(values);
    }
    return code;
}

/* ---- Files ---- */

static int name_width(const kiln_safetensors *file)
{
    size_t widest = 6;
    for (int64_t i = 0; i < kiln_safetensors_count(file); i++) {
        size_t n = strlen(kiln_safetensors_at(file, i)->name);
        widest = n > widest ? n : widest;
    }
    return widest > 60 ? 60 : (int)widest;
}

static void say_line(const char *text, size_t length)
{
    char *line = must_format("%.*s", (int)length, text);
    put_shown(stdout, line);
    putchar('\n');
    free(line);
}

static void say_metadata(const kiln_safetensors *file)
{
    for (int i = 0; i < kiln_safetensors_metas(file); i++) {
        kiln_meta m = kiln_safetensors_meta_at(file, i);
        put_shown(stdout, m.key);
        if (!strchr(m.value, '\n')) {
            printf("%*s", strlen(m.key) < 12 ? (int)(13 - strlen(m.key)) : 1, "");
            say_line(m.value, strlen(m.value));
            continue;
        }
        putchar('\n'); /* a model file: set in, line by line */
        for (const char *line = m.value, *end; *line; line = end + (*end == '\n')) {
            end = line + strcspn(line, "\n");
            printf("    ");
            say_line(line, (size_t)(end - line));
        }
    }
}

static int list_tensors(kiln_safetensors *file, bool stats)
{
    int width = name_width(file), code = 0;
    uint64_t bytes = 0;
    int64_t elements = 0, count = kiln_safetensors_count(file);
    printf("\n%-*s  %-5s %-18s %10s", width, "tensor", "type", "shape", "size");
    printf(stats ? "  %10s %10s %10s %10s\n" : "\n", "min", "max", "mean", "std");
    for (int64_t i = 0; i < count && !code; i++) {
        const kiln_safetensor *t = kiln_safetensors_at(file, i);
        int64_t n = 1;
        for (int d = 0; d < t->ndim; d++)
            n *= t->shape[d];
        put_shown(stdout, t->name);
        printf("%*s  ", strlen(t->name) < (size_t)width ? width - (int)strlen(t->name) : 0, "");
        put_shown(stdout, t->dtype_name);
        printf("%*s %-18s %10s", strlen(t->dtype_name) < 5 ? 5 - (int)strlen(t->dtype_name) : 0, "",
               show_shape(t->ndim, t->shape), show_size(t->bytes));
        code = stats ? say_figures(file, i) : 0;
        putchar('\n');
        bytes += t->bytes;
        elements += n;
    }
    printf("%s tensors, %s elements, %s\n", show_count(count), show_count(elements), show_size(bytes));
    return code;
}

static int say_file(const char *path, bool stats)
{
    kiln_safetensors *file = kiln_safetensors_open(path);
    if (!file)
        return fail_kiln();
    say("%s\n", path);
    say_metadata(file);
    int code = list_tensors(file, stats);
    kiln_safetensors_close(file);
    return code;
}

static int say_tensors(const char *path, bool stats)
{
    kiln_safetensors *file = kiln_safetensors_open(path);
    int code = file ? list_tensors(file, stats) : fail_kiln();
    kiln_safetensors_close(file);
    return code;
}

/* ---- Checkpoints and runs ---- */

static int say_state(const char *folder)
{
    enum { LIMIT = 1 << 23 };
    char *path = must_format("%s/state.json", folder);
    int code = 0;
    char *text = read_text(path, LIMIT, &code);
    json_error_t error;
    json_t *state = text ? json_loads(text, 0, &error) : NULL;
    if (text && !json_is_object(state)) {
        code = fail(EX_DATAERR, "%s: not a checkpoint's state: %s", path, state ? "no object" : error.text);
    } else if (text) {
        const char *key;
        json_t *value;
        say("%s\n", path);
        json_object_foreach(state, key, value)
        {
            char *shown = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
            say("%-12s %s\n", key, shown ? shown : "?");
            free(shown);
        }
        putchar('\n');
    }
    json_decref(state);
    free(text);
    free(path);
    return code;
}

static int say_checkpoint(const char *folder, bool stats)
{
    static const char *const files[] = {"model.safetensors", "ema.safetensors", "optim.safetensors"};
    int code = say_state(folder);
    for (size_t i = 0; i < sizeof files / sizeof *files && !code; i++) {
        char *path = must_format("%s/%s", folder, files[i]);
        if (path_exists(path)) {
            if (i)
                putchar('\n');
            code = say_file(path, stats);
        }
        free(path);
    }
    return code;
}

/* A run: a report, and the tensors of its best weights. A checkpoint: all that is in it. */
static int say_folder(const char *folder, bool stats)
{
    char *best = must_format("%s/best.safetensors", folder), *state = must_format("%s/state.json", folder);
    bool itself = path_exists(state), has_best = path_exists(best);
    char *newest = kiln_checkpoint_find(folder);
    int code = kiln_ok() ? 0 : fail_kiln();
    if (!code && itself) {
        code = say_checkpoint(folder, stats);
    } else if (!code && (has_best || newest)) {
        code = report_run(folder, newest);
        char *weights = has_best ? must_format("%s", best) : must_format("%s/model.safetensors", newest);
        if (!code)
            code = say_tensors(weights, stats);
        free(weights);
    } else if (!code) {
        code = fail(EX_NOINPUT, "%s: neither weights nor a checkpoint in this folder", folder);
    }
    kiln_string_free(newest);
    free(best);
    free(state);
    return code;
}

static int inspect(const arguments *a)
{
    const char *path = a->count ? a->rest[0] : DEFAULT_RUN;
    if (!path_exists(path)) {
        fail(EX_NOINPUT, "%s: %s", path, strerror(errno));
        if (!a->count)
            hint("name a file or folder: kiln inspect model.safetensors");
        return EX_NOINPUT;
    }
    return path_is_folder(path) ? say_folder(path, given(a, "stats")) : say_file(path, given(a, "stats"));
}

const command command_inspect = {.name = "inspect",
                                 .about = "Shows what is in a safetensors file, a checkpoint or a run",
                                 .operands = "[FILE|RUN]",
                                 .options = options,
                                 .max_operands = 1,
                                 .notes = "\nExamples: kiln inspect model.safetensors\n"
                                          "          kiln inspect kiln-run --stats\n",
                                 .run = inspect};
