/* kiln plot: logs to a picture. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "cli/chart.h"
#include "cli/work.h"

static const option options[] = {
    {"out", 'o', OPTION_TEXT, "FILE", "picture to write: .svg or .png (curve.svg by the log)", 0, 0, "<files>"},
    {"title", 0, OPTION_TEXT, "TEXT", "above the curves (what was trained)", 0, 0, NULL},
    {0}};

enum { MOST_LOGS = 32 };

static const char *ending(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot : "";
}

static bool is_svg(const char *head)
{
    return !strncmp(head, SVG_BEGINNING, strlen(SVG_BEGINNING));
}

static bool is_png(const char *head)
{
    return !strncmp(head, "\x89PNG\r\n", 6);
}

static int draw(int n, const curves *logs, const char *path, const char *title)
{
    double width, height;
    bool png = !strcasecmp(ending(path), ".png");
    output out;
    int code = output_open(&out, path, png ? "PNG picture" : "drawing of curves", png ? is_png : is_svg);
    if (code)
        return code;
    chart_size(n, logs, &width, &height);
    canvas *c = png ? canvas_png(width, height) : canvas_svg(width, height);
    chart_draw(c, n, logs, title);
    if (!c->finish(c, out.file) && !ferror(out.file))
        code = fail(EX_SOFTWARE, "%s: the picture cannot be made", path);
    return output_close(&out, code);
}

int plot_logs(int n, char *const *paths, const char *path, const char *title)
{
    curves logs[MOST_LOGS] = {0};
    int code = 0;
    if (n > MOST_LOGS)
        return fail(EX_USAGE, "at most %d logs can be compared", MOST_LOGS);
    if (strcasecmp(ending(path), ".svg") != 0 && strcasecmp(ending(path), ".png") != 0) {
        fail(EX_USAGE, "%s: a picture's name ends in .svg or .png", path);
        return EX_USAGE;
    }
    for (int i = 0; i < n && !code; i++)
        code = curves_read(&logs[i], paths[i]);
    if (!code)
        code = draw(n, logs, path, title);
    for (int i = 0; i < n; i++)
        curves_free(&logs[i]);
    return code;
}

/* A run's folder stands for its log. */
static char *log_of(const char *path)
{
    if (!path_is_folder(path))
        return must_format("%s", path);
    char *log = must_format("%s/log.jsonl", path), *csv = must_format("%s/log.csv", path);
    bool use_csv = !path_exists(log) && path_exists(csv);
    free(use_csv ? log : csv);
    return use_csv ? csv : log;
}

/* "lenet on mnist" from what a run's weights say about themselves; NULL where they say nothing. */
static char *title_of(const char *run)
{
    char *path = must_format("%s/best.safetensors", run), *title = NULL;
    kiln_safetensors *file = path_exists(path) ? kiln_safetensors_open(path) : NULL;
    const char *model = file ? kiln_safetensors_meta(file, "kiln.model") : NULL;
    char *data = file ? meta_text(kiln_safetensors_meta(file, "kiln.data"), "source", NULL) : NULL;
    if (model && data && !strchr(model, '\n')) {
        const char *slash = strrchr(data, '/');
        title = must_format("%.*s on %s", (int)strcspn(model, ":"), model, slash ? slash + 1 : data);
    }
    kiln_safetensors_close(file);
    kiln_error_clear();
    free(data);
    free(path);
    return title;
}

static int plot(const arguments *a)
{
    char *standard[] = {DEFAULT_RUN}, **from = a->count ? a->rest : standard;
    int n = a->count ? a->count : 1;
    char **logs = must_alloc((size_t)n, sizeof *logs);
    for (int i = 0; i < n; i++)
        logs[i] = log_of(from[i]);
    const char *slash = strrchr(logs[0], '/');
    int folder = n == 1 && slash ? (int)(slash - logs[0]) + 1 : 0;
    char *path =
        given(a, "out") ? must_format("%s", text_of(a, "out", "")) : must_format("%.*scurve.svg", folder, logs[0]);
    char *title = n == 1 && path_is_folder(from[0]) ? title_of(from[0]) : NULL;
    int code = plot_logs(n, logs, path, text_of(a, "title", title));
    if (!code)
        say("Written: %s\n", path);
    for (int i = 0; i < n; i++)
        free(logs[i]);
    free(logs);
    free(path);
    free(title);
    return code;
}

const command command_plot = {.name = "plot",
                              .about = "Draws the curves of one or more logs as SVG or PNG",
                              .operands = "[LOG|RUN...]",
                              .options = options,
                              .max_operands = -1,
                              .notes =
                                  "\nLOG is what kiln train --log has written, RUN a folder it has made (kiln-run).\n"
                                  "Examples: kiln plot kiln-run -o curve.png\n"
                                  "          kiln plot first second third -o compared.svg\n",
                              .run = plot};
