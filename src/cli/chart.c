/* Laying a chart out: round ticks, a linear or logarithmic scale, where everything goes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cli/chart.h"

enum { MARGIN = 24, PANEL = 440, PANEL_HEIGHT = 280, HEAD = 52, LEGEND_ROW = 22, FOOT = 52, LABELS = 46, GAP = 34 };
static const double text_size = 12.5, title_size = 17;

/* ---- Scales ---- */

typedef struct scale {
    double low, high; /* values at the ends; of a logarithmic one their logarithms */
    double from, to;  /* where the ends are on the canvas */
    bool log;
    double step; /* between the ticks of a linear one */
} scale;

static double place(const scale *s, double v)
{
    double x = s->log ? log10(v) : v;
    return s->from + (x - s->low) / (s->high - s->low) * (s->to - s->from);
}

/* 1, 2 or 5 times a power of ten, so that there are about `wanted` steps. */
static double round_step(double range, double wanted)
{
    double raw = range / wanted, power = pow(10, floor(log10(raw))), part = raw / power;
    return power * (part < 1.5 ? 1 : part < 3.5 ? 2 : part < 7.5 ? 5 : 10);
}

/* Ends so near each other that ticks between them could not be told apart are taken for one, in the middle. */
static scale linear_scale(double low, double high, double wanted, bool round_ends)
{
    if (!(high - low > 1e-9 * fmax(fabs(low), fabs(high)))) {
        double half = fabs(low) > 0 ? 0.5 * fabs(low) : 0.5;
        low -= half;
        high += half;
    }
    scale s = {.low = low, .high = high, .step = round_step(high - low, wanted)};
    if (round_ends) {
        s.low = floor(low / s.step + 1e-9) * s.step;
        s.high = ceil(high / s.step - 1e-9) * s.step;
    }
    return s;
}

/* Losses that fall to a small part of what they were are told apart on a logarithmic scale only. */
static scale loss_scale(double low, double high)
{
    if (!(low > 0 && high / low > 12))
        return linear_scale(low > 0 && low < 0.35 * high ? 0 : low, high, 5, true);
    double a = log10(low), b = log10(high), room = 0.04 * (b - a);
    return (scale){.low = a - room, .high = b + room, .log = true};
}

/* Accuracies as percentages, the top no higher than 100. How a run begins from chance is left out where that would
 * press all that counts against the top: `tested` is the lowest accuracy of a test. */
static scale accuracy_scale(double low, double high, double tested)
{
    if (tested > 0.5 && tested < 1)
        low = fmax(low, tested - (1 - tested));
    scale s = linear_scale(low, fmin(high, 1), 5, true);
    s.low = fmax(s.low, 0);
    s.high = fmin(s.high, 1);
    return s;
}

/* ---- What there is to draw ---- */

typedef struct panel {
    const char *title;
    curve_kind train, test;
    scale x, y;
    bool percent;
} panel;

/* Where a curve's points are along x: epochs where every log knows them, else steps. */
typedef struct axis {
    bool epochs;
    double most;
} axis;

static double along(const axis *a, const curves *log, double step)
{
    return a->epochs ? step / log->steps_an_epoch : step;
}

static axis find_axis(int n, const curves *logs)
{
    axis a = {.epochs = true, .most = 0};
    for (int i = 0; i < n; i++)
        a.epochs = a.epochs && logs[i].steps_an_epoch > 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < CURVES; k++)
            for (int p = 0; p < logs[i].all[k].count; p++)
                a.most = fmax(a.most, along(&a, &logs[i], logs[i].all[k].xy[2 * p]));
    return a;
}

static void find_range(int n, const curves *logs, curve_kind kind, double *low, double *high)
{
    for (int i = 0; i < n; i++)
        for (int p = 0; p < logs[i].all[kind].count; p++) {
            *low = fmin(*low, logs[i].all[kind].xy[2 * p + 1]);
            *high = fmax(*high, logs[i].all[kind].xy[2 * p + 1]);
        }
}

static bool has(int n, const curves *logs, curve_kind kind)
{
    for (int i = 0; i < n; i++)
        if (logs[i].all[kind].count)
            return true;
    return false;
}

static int panels_of(int n, const curves *logs)
{
    return 1 + (has(n, logs, TRAIN_ACCURACY) || has(n, logs, TEST_ACCURACY));
}

/* ---- The legend: one entry a log, or train and test where there is one log ---- */

typedef struct entry {
    char text[48];
    ink colour;
    double x, y, width, opacity;
} entry;

enum { MOST_ENTRIES = 64 };

static void add_entry(entry *e, int *n, const char *text, ink colour, double width, double opacity)
{
    if (*n == MOST_ENTRIES)
        return;
    e[*n] = (entry){.colour = colour, .width = width, .opacity = opacity};
    snprintf(e[*n].text, sizeof e[*n].text, "%s", text);
    ++*n;
}

static int list_entries(int n, const curves *logs, entry *e)
{
    int count = 0;
    bool test = has(n, logs, TEST_LOSS);
    if (n == 1) {
        add_entry(e, &count, "train", INK_SERIES, 1.6, test ? 0.75 : 1);
        if (test)
            add_entry(e, &count, "test", INK_SERIES + 1, 2.2, 1);
        return count;
    }
    for (int i = 0; i < n; i++)
        add_entry(e, &count, logs[i].name, INK_SERIES + i % INK_COLOURS, 2.2, 1);
    if (test)
        add_entry(e, &count, "thin: train", INK_FAINT, 1.3, 0.55);
    return count;
}

/* Places the entries in rows; returns how many rows there are. */
static int place_entries(entry *e, int n, double width)
{
    double x = MARGIN;
    int row = 0;
    for (int i = 0; i < n; i++) {
        double need = 28 + 1.08 * text_width(e[i].text, text_size);
        if (x > MARGIN && x + need > width - MARGIN) {
            x = MARGIN;
            row++;
        }
        e[i].x = x;
        e[i].y = HEAD + 10 + row * LEGEND_ROW;
        x += need + 22;
    }
    return row + 1;
}

/* ---- Size ---- */

void chart_size(int n, const curves *logs, double *width, double *height)
{
    entry e[MOST_ENTRIES];
    int panels = panels_of(n, logs);
    *width = 2 * MARGIN + panels * (LABELS + PANEL) + (panels - 1) * GAP;
    int rows = place_entries(e, list_entries(n, logs, e), *width);
    *height = HEAD + rows * LEGEND_ROW + 30 + PANEL_HEIGHT + FOOT;
}

/* ---- Drawing ---- */

static void draw_grid_line(canvas *c, double x0, double y0, double x1, double y1, ink colour)
{
    c->line(c, 2, (double[]){x0, y0, x1, y1}, colour, 1, 1);
}

static void tick_text(char *out, size_t size, double v, double step, bool percent)
{
    double shown = percent ? 100 * v : v, by = percent ? 100 * step : step;
    int digits = by > 0 ? (int)fmin(20, fmax(0, ceil(-log10(by) - 1e-9))) : 0;
    if (fabs(shown) < 1e-9 * by)
        shown = 0;
    if (shown != 0 && (fabs(shown) < 1e-4 || fabs(shown) >= 1e9))
        snprintf(out, size, "%.3g", shown);
    else if (fabs(shown) >= 1e6)
        snprintf(out, size, "%gM", shown / 1e6);
    else if (fabs(shown) >= 1e4)
        snprintf(out, size, "%gk", shown / 1e3);
    else
        snprintf(out, size, "%.*f%s", digits, shown, percent ? "%" : "");
}

static void draw_y_tick(canvas *c, const panel *p, double v, double step)
{
    char text[32];
    double y = place(&p->y, v);
    tick_text(text, sizeof text, v, step, p->percent);
    draw_grid_line(c, p->x.from, y, p->x.to, y, INK_GRID);
    c->text(c, p->x.from - 8, y + 4.2, text, text_size - 1, ANCHOR_RIGHT, INK_FAINT, false);
}

static void draw_y_log(canvas *c, const panel *p)
{
    static const double parts[] = {1, 2, 5};
    double decades = p->y.high - p->y.low;
    int every = (int)ceil(decades / 12); /* decades from tick to tick */
    for (int power = (int)floor(p->y.low); power <= (int)ceil(p->y.high); power++)
        for (int i = 0; i < 3 && power % every == 0; i++) {
            double v = parts[i] * pow(10, power), at = log10(v);
            bool wanted = decades < 2.2 || i == 0 || (decades < 3.5 && i != 1);
            if (wanted && at >= p->y.low && at <= p->y.high)
                draw_y_tick(c, p, v, pow(10, power));
        }
}

static void draw_axes(canvas *c, const panel *p, const axis *a)
{
    char text[32];
    if (p->y.log)
        draw_y_log(c, p);
    for (double k = ceil(p->y.low / p->y.step - 1e-9); !p->y.log && k * p->y.step <= p->y.high + 1e-9 * p->y.step; k++)
        draw_y_tick(c, p, k * p->y.step, p->y.step);
    draw_grid_line(c, p->x.from, p->y.from, p->x.to, p->y.from, INK_FAINT);
    double step = a->epochs ? fmax(1, p->x.step) : p->x.step;
    for (double v = ceil(p->x.low / step) * step; v <= p->x.high + 1e-9 * step; v += step) {
        double x = place(&p->x, v);
        draw_grid_line(c, x, p->y.from, x, p->y.from + 4, INK_FAINT);
        tick_text(text, sizeof text, v, step, false);
        c->text(c, x, p->y.from + 19, text, text_size - 1, ANCHOR_MIDDLE, INK_FAINT, false);
    }
    c->text(c, (p->x.from + p->x.to) / 2, p->y.from + 38, a->epochs ? "epoch" : "step", text_size - 0.5, ANCHOR_MIDDLE,
            INK_FAINT, false);
    c->text(c, p->x.from - LABELS, p->y.to - 14, p->title, text_size + 1, ANCHOR_LEFT, INK_TEXT, true);
}

enum { MOST_POINTS = 600 };

/* A curve's points on the canvas, at most MOST_POINTS and one: where there are more, neighbours are averaged. */
static int trace(const panel *p, const axis *a, const curves *log, curve_kind kind, double *xy)
{
    const curve *from = &log->all[kind];
    int every = (from->count + MOST_POINTS - 1) / MOST_POINTS, n = 0;
    double x_below = 0, y_below = 0;
    for (int i = 0; i < from->count; i += every) {
        double x = 0, y = 0;
        int m = 0;
        for (; m < every && i + m < from->count; m++) {
            x += from->xy[2 * (i + m)];
            y += from->xy[2 * (i + m) + 1];
        }
        x = place(&p->x, along(a, log, x / m));
        y = place(&p->y, p->y.log ? fmax(y / m, 1e-300) : y / m);
        if (y > p->y.from + 0.5) { /* below the panel: the curve begins where it comes in */
            n = 0;
            x_below = x;
            y_below = y;
            continue;
        }
        if (n == 0 && y_below > 0) {
            xy[n++] = x_below + (x - x_below) * (y_below - p->y.from) / (y_below - y);
            xy[n++] = p->y.from;
        }
        xy[n++] = x;
        xy[n++] = y;
    }
    return n / 2;
}

static void draw_curve(canvas *c, const panel *p, const axis *a, const curves *log, curve_kind kind, ink colour,
                       double width, double opacity, bool dots)
{
    double xy[2 * MOST_POINTS + 2];
    int n = trace(p, a, log, kind, xy);
    if (n > 1)
        c->line(c, n, xy, colour, width, opacity);
    for (int i = 0; i < n && ((dots && n <= 60) || n == 1); i++)
        c->dot(c, xy[2 * i], xy[2 * i + 1], n > 30 ? 2 : 3, colour);
}

static void draw_panel(canvas *c, panel *p, const axis *a, int n, const curves *logs, double left, double top)
{
    double low = INFINITY, high = -INFINITY;
    find_range(n, logs, p->train, &low, &high);
    find_range(n, logs, p->test, &low, &high);
    p->x = linear_scale(0, a->most > 0 ? a->most : 1, 8, false);
    double tested = INFINITY, ignored = 0;
    find_range(n, logs, p->test, &tested, &ignored);
    p->y = p->percent ? accuracy_scale(low, high, tested) : loss_scale(low, high);
    p->x.from = left + LABELS;
    p->x.to = left + LABELS + PANEL;
    p->y.from = top + PANEL_HEIGHT;
    p->y.to = top;
    draw_axes(c, p, a);
    bool test = has(n, logs, p->test);
    for (int i = 0; i < n; i++)
        draw_curve(c, p, a, &logs[i], p->train, INK_SERIES + (n > 1 ? i % INK_COLOURS : 0), n > 1 && test ? 1.3 : 1.6,
                   n > 1 && test ? 0.45
                   : test        ? 0.75
                                 : 1,
                   false);
    for (int i = 0; i < n; i++)
        draw_curve(c, p, a, &logs[i], p->test, INK_SERIES + (n > 1 ? i % INK_COLOURS : 1), 2.2, 1, true);
}

static void draw_title(canvas *c, int n, const curves *logs, const char *title)
{
    char text[160];
    const char *path = n == 1 ? logs[0].data : NULL, *slash = path ? strrchr(path, '/') : NULL;
    const char *data = slash && slash[1] ? slash + 1 : path;
    if (title)
        snprintf(text, sizeof text, "%s", title);
    else if (data && logs[0].model && strcmp(logs[0].model, "Sequential") != 0)
        snprintf(text, sizeof text, "%s on %s", logs[0].model, data);
    else if (data)
        snprintf(text, sizeof text, "Training on %s", data);
    else
        snprintf(text, sizeof text, n > 1 ? "%d runs" : "Training", n);
    c->text(c, MARGIN, MARGIN + 14, text, title_size, ANCHOR_LEFT, INK_TEXT, true);
}

void chart_draw(canvas *c, int n, const curves *logs, const char *title)
{
    entry e[MOST_ENTRIES];
    int entries = list_entries(n, logs, e), rows = place_entries(e, entries, c->width);
    double top = HEAD + rows * LEGEND_ROW + 30;
    axis a = find_axis(n, logs);
    draw_title(c, n, logs, title);
    for (int i = 0; i < entries; i++) {
        c->line(c, 2, (double[]){e[i].x, e[i].y - 4, e[i].x + 20, e[i].y - 4}, e[i].colour, e[i].width + 0.4,
                e[i].opacity);
        c->text(c, e[i].x + 28, e[i].y, e[i].text, text_size, ANCHOR_LEFT, INK_TEXT, false);
    }
    panel loss = {.title = "Loss", .train = TRAIN_LOSS, .test = TEST_LOSS};
    draw_panel(c, &loss, &a, n, logs, MARGIN, top);
    if (panels_of(n, logs) > 1) {
        panel accuracy = {.title = "Accuracy", .train = TRAIN_ACCURACY, .test = TEST_ACCURACY, .percent = true};
        draw_panel(c, &accuracy, &a, n, logs, MARGIN + LABELS + PANEL + GAP, top);
    }
}
