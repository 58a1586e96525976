/* Progress lines. kiln_progress_format makes the text from numbers alone; the rest decides when and where to show it.
 */
#include "train/progress.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/printable.h"

void kiln_progress_value(kiln_progress_line *l, const char *name, double value)
{
    if (l->count >= KILN_PROGRESS_VALUES)
        return;
    l->values[l->count].name = name;
    l->values[l->count++].value = value;
}

/* ---- Text ---- */

/* A line is a row of parts; where there is no room for all, ranks decide. */
enum { RANKS = 100, PARTS = 12 + KILN_PROGRESS_VALUES, PART_TEXT = 64, NARROWEST_BAR = 8, WIDEST_BAR = 30 };
typedef struct part {
    const char *lead; /* what stands between it and the part before */
    int rank;
    bool bar;
    const char *color; /* NULL: plain */
    char text[PART_TEXT];
} part;

typedef struct row {
    int count;
    part parts[PARTS];
} row;

__attribute__((format(printf, 4, 5))) static part *add(row *r, const char *lead, int rank, const char *format, ...)
{
    part *p = &r->parts[r->count < PARTS ? r->count++ : PARTS - 1];
    *p = (part){.lead = lead, .rank = rank};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(p->text, sizeof p->text, format, arguments);
    va_end(arguments);
    return p;
}

static int part_width(const row *r, int i)
{
    const part *p = &r->parts[i];
    return (int)((i ? strlen(p->lead) : 0) + (p->bar ? NARROWEST_BAR + 2 : strlen(p->text)));
}

/* "9.4s", "42s", "3m07s", "2h05m" */
static const char *duration(char out[24], double seconds, bool tenths)
{
    if (!(seconds >= 0))
        seconds = 0;
    if (seconds > 3.6e8)
        return strcpy(out, "years");
    long long s = (long long)(seconds + 0.5);
    if (s < 60 && tenths && seconds < 10)
        snprintf(out, 24, "%.1fs", seconds);
    else if (s < 60)
        snprintf(out, 24, "%llds", s);
    else if (s < 3600)
        snprintf(out, 24, "%lldm%02llds", s / 60, s % 60);
    else
        snprintf(out, 24, "%lldh%02lldm", s / 3600, s / 60 % 60);
    return out;
}

static const char *step_time(char out[24], double seconds)
{
    if (seconds < 0.1)
        snprintf(out, 24, "%.2f ms", seconds * 1e3);
    else if (seconds < 10)
        snprintf(out, 24, "%.0f ms", seconds * 1e3);
    else
        snprintf(out, 24, "%.1f s", seconds);
    return out;
}

static void add_values(row *r, const kiln_progress_line *l)
{
    for (int i = 0; i < l->count; i++) {
        double v = l->values[i].value, size = fabs(v);
        bool plain = isnan(v) || isinf(v) || size == 0 || (size >= 1e-3 && size < 1e6);
        bool loss = !strcmp(l->values[i].name, "loss") || !strcmp(l->values[i].name, "val_loss");
        part *p = add(r, " - ", loss ? 90 : 80 - i, plain ? "%s: %.4f" : "%s: %.3e", l->values[i].name, v);
        if (l->best && !strncmp(l->values[i].name, "val_", 4))
            p->color = "\033[32m";
    }
}

static double share_done(const kiln_progress_line *l)
{
    double share = l->total > 0 ? (double)l->done / (double)l->total : 0;
    return share > 0 ? fmin(share, 1) : 0;
}

static void fill_row(row *r, const kiln_progress_line *l, bool bar)
{
    char text[24];
    if (l->what)
        add(r, "", 100, "%s", l->what);
    else
        add(r, "", 100, "Epoch %lld/%lld", (long long)l->epoch, (long long)l->epochs);
    add(r, "  ", l->finished ? 22 : 60, "%lld/%lld", (long long)l->done, (long long)l->total);
    if (bar)
        *add(r, " ", 0, " ") = (part){" ", l->finished ? 20 : 45, true, "\033[2m", ""};
    if (bar && !l->finished)
        add(r, " ", 50, "%d%%", (int)(100 * share_done(l)));
    add(r, " - ", l->finished ? 60 : 30, "%s", duration(text, l->seconds, l->finished));
    if (l->phase)
        add(r, " - ", 70, "%s", l->phase);
    else if (!l->finished && l->done > 0)
        add(r, " - ", 70, "ETA %s", duration(text, l->step * (double)(l->total - l->done), false));
    if (!isnan(l->step))
        add(r, " - ", 25, "%s/step", step_time(text, l->step));
    add_values(r, l);
    if (l->finished && !isnan(l->rate))
        add(r, " - ", 40, "%.0f samples/s", l->rate);
    if (l->finished && !isnan(l->wait))
        add(r, " - ", 35, "data wait %.0f%%", 100 * l->wait);
    if (l->finished && !isnan(l->first))
        add(r, " - ", 15, "first step %s", step_time(text, l->first));
}

/* Keeps as many parts as fit, the most important ones first. Returns their width. */
static int keep_fitting(row *r, int width)
{
    bool keep[PARTS] = {true};
    int used = part_width(r, 0), count = 0;
    for (int rank = RANKS; rank >= 0; rank--)
        for (int i = 1; i < r->count; i++)
            if (r->parts[i].rank == rank && used + part_width(r, i) <= width) {
                keep[i] = true;
                used += part_width(r, i);
            }
    for (int i = 0; i < r->count; i++)
        if (keep[i])
            r->parts[count++] = r->parts[i];
    r->count = count;
    return used;
}

static void draw_bar(char out[PART_TEXT], int inside, const kiln_progress_line *l)
{
    int full = (int)(inside * share_done(l));
    out[0] = '[';
    memset(out + 1, '=', (size_t)full);
    memset(out + 1 + full, '.', (size_t)(inside - full));
    if (full < inside)
        out[1 + full] = '>';
    memcpy(out + 1 + inside, "]", 2);
}

static void append(char *out, size_t size, const char *text)
{
    size_t have = strlen(out);
    snprintf(out + have, size - have, "%s", text);
}

int kiln_progress_format(char *out, size_t size, const kiln_progress_line *l, int width, bool bar, bool color)
{
    row r = {0};
    fill_row(&r, l, bar);
    int used = keep_fitting(&r, width), room = width - used < 0 ? 0 : width - used;
    out[0] = '\0';
    for (int i = 0; i < r.count; i++) {
        part *p = &r.parts[i];
        if (p->bar) {
            int more = room < WIDEST_BAR - NARROWEST_BAR ? room : WIDEST_BAR - NARROWEST_BAR;
            draw_bar(p->text, NARROWEST_BAR + more, l);
            used += more;
        }
        append(out, size, i ? p->lead : "");
        if (color && p->color)
            append(out, size, p->color);
        append(out, size, p->text);
        if (color && p->color)
            append(out, size, "\033[0m");
    }
    if (r.count == 1 && used > width) { /* the first part has no colour: cutting it is safe */
        used = width > 0 ? width : 0;
        out[used] = '\0';
    }
    return used;
}

/* ---- Showing ---- */

static bool is_set(const char *variable)
{
    const char *value = getenv(variable);
    return value && *value;
}

static int screen_width(FILE *file)
{
    struct winsize w;
    if (ioctl(fileno(file), TIOCGWINSZ, &w) == 0 && w.ws_col > 0)
        return w.ws_col;
    const char *columns = getenv("COLUMNS");
    int n = columns ? atoi(columns) : 0;
    return n > 0 ? n : 80;
}

void kiln_progress_init(kiln_progress *p, FILE *file)
{
    *p = (kiln_progress){.file = file};
    if (!file)
        return;
    const char *term = getenv("TERM");
    int fd = fileno(file);
    p->terminal = fd >= 0 && isatty(fd) && term && *term && strcmp(term, "dumb") != 0;
    p->color = p->terminal && !is_set("NO_COLOR");
    p->begun = kiln_seconds();
    p->drawn = p->terminal ? -1 : p->begun;
}

bool kiln_progress_plain(const kiln_progress *p)
{
    return p->file && !p->terminal;
}

bool kiln_progress_due(const kiln_progress *p, bool counted)
{
    if (!p->file)
        return false;
    double now = kiln_seconds(), since = now - p->drawn;
    if (p->terminal)
        return since >= 0.1;
    return !counted && since >= fmin(fmax(30, (now - p->begun) / 20), 600);
}

void kiln_progress_draw(kiln_progress *p, const kiln_progress_line *l)
{
    char text[KILN_PROGRESS_TEXT];
    if (!p->file)
        return;
    p->drawn = kiln_seconds();
    if (!p->terminal) {
        kiln_progress_format(text, sizeof text, l, (int)sizeof text - 1, false, false);
        fprintf(p->file, "%s\n", text);
    } else {
        /* One column stays free: some terminals wrap as soon as the last one is written. */
        kiln_progress_format(text, sizeof text, l, screen_width(p->file) - 1, true, p->color);
        fprintf(p->file, "\r%s\033[K%s", text, l->finished ? "\n" : "");
        p->open = !l->finished;
    }
    fflush(p->file);
}

void kiln_progress_close(kiln_progress *p)
{
    if (p->file && p->open) {
        fputc('\n', p->file);
        fflush(p->file);
    }
    p->open = false;
}

void kiln_progress_note(kiln_progress *p, const char *format, ...)
{
    if (!p->file)
        return;
    kiln_progress_close(p);
    va_list arguments;
    va_start(arguments, format);
    char text[KILN_PROGRESS_TEXT];
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    kiln_make_printable(text);
    fprintf(p->file, "%s\n", text);
    fflush(p->file);
}
