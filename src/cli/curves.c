/* Reading a log: JSON lines as kiln_fit writes them, or CSV with the same names in its first line. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "cli/curves.h"

enum { LARGEST = 1 << 30 };

static void add_point(curve *c, double x, double y)
{
    if (!isfinite(x) || !isfinite(y))
        return;
    if (c->count == c->room) {
        c->room = c->room ? 2 * c->room : 64;
        c->xy = must_resize(c->xy, (size_t)c->room, 2 * sizeof *c->xy);
    }
    c->xy[2 * c->count] = x;
    c->xy[2 * c->count + 1] = y;
    c->count++;
}

/* What one line of a log says; NaN where it says nothing. */
typedef struct row {
    double epoch, step, loss, accuracy, val_loss, val_accuracy;
} row;
static const row nothing = {NAN, NAN, NAN, NAN, NAN, NAN};

/* A log can say anything. Numbers so large that they leave no room for others are as good as none, and so small ones
 * that nothing can be divided by them as good as 0. */
static double drawable(double value)
{
    return fabs(value) < 1e-100 ? 0 : fabs(value) < 1e100 ? value : NAN;
}

/* What cannot be so is not drawn either. */
static void leave_out_nonsense(row *r)
{
    double *const counts[] = {&r->epoch, &r->step}, *const shares[] = {&r->accuracy, &r->val_accuracy};
    for (int i = 0; i < 2; i++) {
        if (*counts[i] < 0 || *counts[i] > 1e15)
            *counts[i] = NAN;
        if (*shares[i] < 0 || *shares[i] > 1)
            *shares[i] = NAN;
    }
}

static double *field_of(row *r, const char *name)
{
    const struct {
        const char *name;
        double *at;
    } fields[] = {{"epoch", &r->epoch},       {"step", &r->step},         {"loss", &r->loss},
                  {"accuracy", &r->accuracy}, {"val_loss", &r->val_loss}, {"val_accuracy", &r->val_accuracy}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!strcmp(fields[i].name, name))
            return fields[i].at;
    return NULL;
}

/* Means over an epoch stand for its middle, what was measured after it for its end. */
static void add_row(curves *c, curves *epochs, row *r)
{
    leave_out_nonsense(r);
    bool epoch = isfinite(r->epoch);
    double step = isfinite(r->step) ? r->step : r->epoch;
    if (epoch && r->epoch > 0)
        c->steps_an_epoch = step / r->epoch;
    double middle = epoch ? step - 0.5 * (r->epoch > 0 ? step / r->epoch : 0) : step;
    curves *to = epoch ? epochs : c;
    add_point(&to->all[TRAIN_LOSS], middle, r->loss);
    add_point(&to->all[TRAIN_ACCURACY], middle, r->accuracy);
    if (epoch) {
        add_point(&c->all[TEST_LOSS], step, r->val_loss);
        add_point(&c->all[TEST_ACCURACY], step, r->val_accuracy);
    }
}

/* ---- JSON lines ---- */

static void read_about(curves *c, json_t *run)
{
    const char *model = json_string_value(json_object_get(run, "model"));
    const char *data = json_string_value(json_object_get(run, "data"));
    if (model && !c->model)
        c->model = must_format("%s", model);
    if (data && !c->data)
        c->data = must_format("%s", data);
}

static int read_line(curves *c, curves *epochs, const char *line, const char *path, int number)
{
    json_error_t error;
    json_t *o = json_loads(line, 0, &error), *run, *value;
    if (!json_is_object(o)) {
        fail(EX_DATAERR, "%s: line %d is no JSON object%s%s", path, number, o ? "" : ": ", o ? "" : error.text);
        json_decref(o);
        hint("a log is what kiln train --log FILE writes: JSON lines, or CSV when the name ends in .csv");
        return EX_DATAERR;
    }
    row r = nothing;
    const char *key;
    if ((run = json_object_get(o, "run")))
        read_about(c, run);
    json_object_foreach(o, key, value)
    {
        double *field = field_of(&r, key);
        if (field && json_is_number(value))
            *field = drawable(json_number_value(value));
    }
    if (!run)
        add_row(c, epochs, &r);
    json_decref(o);
    return 0;
}

static int read_json(curves *c, curves *epochs, char *text, const char *path)
{
    int code = 0, number = 0;
    for (char *line = text, *end; *line && !code; line = end) {
        end = line + strcspn(line, "\n");
        bool whole = *end == '\n';
        number++;
        if (whole)
            *end++ = '\0';
        if (!whole && number > 1)
            break; /* a line that is being written */
        if (line[strspn(line, " \t\r")])
            code = read_line(c, epochs, line, path, number);
    }
    return code;
}

/* ---- CSV ---- */

enum { COLUMNS = 64 };

static int split(char *line, char **cells)
{
    int n = 0;
    line[strcspn(line, "\r\n")] = '\0';
    for (char *cell; n < COLUMNS && (cell = strsep(&line, ","));)
        cells[n++] = cell;
    return n;
}

static int read_csv(curves *c, curves *epochs, char *text, const char *path)
{
    char *names[COLUMNS], *cells[COLUMNS], *rest = text, *head = strsep(&rest, "\n");
    int columns = split(head, names), number = 1, known = 0;
    row r;
    for (int i = 0; i < columns; i++)
        known += field_of(&r, names[i]) != NULL;
    if (known < 2)
        return fail(EX_DATAERR, "%s: the first line does not name columns like epoch, step, loss", path);
    for (char *line; (line = strsep(&rest, "\n"));) {
        number++;
        if (!line[strspn(line, " \t\r")])
            continue;
        int n = split(line, cells);
        if (n != columns && !rest)
            break; /* a line that is being written */
        r = nothing;
        for (int i = 0; i < n && i < columns; i++) {
            double *field = field_of(&r, names[i]);
            if (field && *cells[i] && !parse_number(cells[i], field))
                return fail(EX_DATAERR, "%s: line %d: \"%s\" is no number (%s)", path, number, cells[i], names[i]);
            if (field)
                *field = drawable(*field);
        }
        if (n != columns)
            return fail(EX_DATAERR, "%s: line %d has %d columns instead of %d", path, number, n, columns);
        add_row(c, epochs, &r);
    }
    return 0;
}

/* ---- All in all ---- */

static bool ends_in(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

/* "run/log.jsonl" is called "run", "first.csv" "first". */
static char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    if (slash && slash > path && !strncmp(file, "log.", 4)) {
        const char *from = slash;
        while (from > path && from[-1] != '/')
            from--;
        return must_format("%.*s", (int)(slash - from), from);
    }
    const char *dot = strrchr(file, '.');
    return must_format("%.*s", dot && dot > file ? (int)(dot - file) : (int)strlen(file), file);
}

/* Within epochs where the log has enough of that, else by epochs. */
static void use_finer(curve *steps, curve *epochs)
{
    curve *worse = steps->count >= 2 ? epochs : steps;
    if (worse == steps) {
        curve swap = *steps;
        *steps = *epochs;
        *epochs = swap;
    }
    free(epochs->xy);
    *epochs = (curve){0};
}

int curves_read(curves *c, const char *path)
{
    *c = (curves){0};
    int code = 0;
    char *text = read_text(path, LARGEST, &code);
    curves epochs = {0};
    if (!text)
        return code;
    code = ends_in(path, ".csv") ? read_csv(c, &epochs, text, path) : read_json(c, &epochs, text, path);
    free(text);
    use_finer(&c->all[TRAIN_LOSS], &epochs.all[TRAIN_LOSS]);
    use_finer(&c->all[TRAIN_ACCURACY], &epochs.all[TRAIN_ACCURACY]);
    c->name = name_of(path);
    if (!code && !c->all[TRAIN_LOSS].count && !c->all[TEST_LOSS].count)
        code = fail(EX_DATAERR, "%s: there are no losses in this log", path);
    return code;
}

void curves_free(curves *c)
{
    for (int i = 0; i < CURVES; i++)
        free(c->all[i].xy);
    free(c->name);
    free(c->model);
    free(c->data);
    *c = (curves){0};
}
