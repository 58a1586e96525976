/* kiln_summary: a dry run, noted visit by visit, written as a table of at most WIDTH columns. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "core/alloc.h"
#include "nn/dry.h"
#include "ops/op.h"

enum { WIDTH = 100, GAP = 2, CELL = 512 };

typedef struct row {
    const kiln_module *m;
    const kiln_storage *input, *output; /* to tell results from views and passed-on results; never dereferenced */
    bool again;                         /* the module was visited before: its parameters are counted there */
    bool done;                          /* the visit gave a result, described below */
    int ndim;
    int64_t shape[KILN_MAX_DIMS], bytes;
} row;

typedef struct notes {
    kiln_watch watch;
    row *rows;
    int64_t count, capacity;
    bool failed; /* no memory for a row */
} notes;

/* ---- Noting visits ---- */

static row *add_row(notes *n, const kiln_module *m)
{
    if (!KILN_GROW(n->rows, n->capacity, n->count + 1)) {
        n->failed = true;
        return NULL;
    }
    row *r = &n->rows[n->count];
    *r = (row){.m = m};
    for (int64_t i = 0; i < n->count; i++)
        r->again |= n->rows[i].m == m;
    n->count++;
    return r;
}

static int64_t begin(kiln_watch *w, kiln_module *m, kiln_tensor *x)
{
    notes *n = (notes *)w;
    row *r = add_row(n, m);
    if (!r)
        return -1;
    r->input = x->storage;
    return n->count - 1;
}

/* The bytes of y, unless it is the input, or what a module inside has made, in another shape or none. */
static int64_t new_bytes(const notes *n, int64_t number, const kiln_tensor *y)
{
    if (y->storage == n->rows[number].input)
        return 0;
    for (int64_t i = number + 1; i < n->count; i++)
        if (n->rows[i].output == y->storage)
            return 0;
    return kiln_numel(y) * (int64_t)kiln_dtype_size((kiln_dtype)y->dtype);
}

static void end(kiln_watch *w, int64_t number, kiln_tensor *y)
{
    notes *n = (notes *)w;
    if (number < 0 || !y)
        return;
    row *r = &n->rows[number];
    r->done = true;
    r->output = y->storage;
    r->ndim = y->ndim;
    memcpy(r->shape, y->shape, y->ndim * sizeof *y->shape);
    r->bytes = new_bytes(n, number, y);
}

/* Modules that nobody called but whose parameters are used: rows of their own, at the end. */
static bool add_unvisited(notes *n, const kiln_module *m)
{
    bool seen = false, owns = false;
    for (int64_t i = 0; i < n->count; i++)
        seen |= n->rows[i].m == m;
    for (int64_t i = 0; i < m->nmembers; i++)
        owns |= !m->members[i].buffer;
    if (!seen && owns && !add_row(n, m))
        return false;
    for (int64_t i = 0; i < m->nchildren; i++)
        if (!add_unvisited(n, m->children[i]))
            return false;
    return true;
}

/* ---- Text ---- */

typedef struct text {
    char *data;
    int64_t length, capacity;
    bool failed;
} text;

static void put(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(text *t, const char *format, ...)
{
    char line[2 * CELL];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    n = n < (int)sizeof line ? n : (int)sizeof line - 1;
    if (t->failed || n < 0 || !KILN_GROW(t->data, t->capacity, t->length + n + 1)) {
        t->failed = true;
        return;
    }
    memcpy(t->data + t->length, line, (size_t)n + 1);
    t->length += n;
}

/* 1234567 as "1,234,567". */
static const char *number_text(int64_t value)
{
    char digits[24], *out = kiln_text();
    int n = snprintf(digits, sizeof digits, "%lld", (long long)value), at = 0;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
    return out;
}

static const char *bytes_text(int64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    char *out = kiln_text();
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1024; unit++)
        value /= 1024;
    snprintf(out, KILN_TEXT, "%.*f %s", unit ? 1 : 0, value, units[unit]);
    return out;
}

/* ---- The table ---- */

enum { LAYER, KIND, SHAPE, PARAMETERS, MEMORY, COLUMNS };
static const char *const titles[COLUMNS] = {"Layer", "Kind", "Output shape", "Parameters", "Memory"};

static int64_t own_parameters(const kiln_module *m)
{
    int64_t n = 0;
    for (int64_t i = 0; i < m->nmembers; i++)
        n += m->members[i].buffer ? 0 : kiln_numel(m->members[i].tensor);
    return n;
}

/* What stands in a cell, in `cell` of CELL bytes. `top`: paths are counted from there. */
static void write_cell(const row *r, const kiln_module *top, int column, char *cell)
{
    int64_t parameters = own_parameters(r->m);
    snprintf(cell, CELL, "-");
    switch (column) {
    case LAYER: {
        char start[CELL];
        kiln_module_path(top, start, sizeof start);
        kiln_module_path(r->m, cell, CELL);
        size_t skip = strlen(start);
        skip += skip && cell[skip] == '.';
        memmove(cell, cell + skip, strlen(cell + skip) + 1);
        if (!*cell)
            snprintf(cell, CELL, "(model)");
        break;
    }
    case KIND: snprintf(cell, CELL, "%s", r->m->kind); break;
    case SHAPE:
        if (r->done)
            snprintf(cell, CELL, "%s", kiln_shape_text(r->ndim, r->shape));
        break;
    case PARAMETERS:
        if (parameters)
            snprintf(cell, CELL, "%s", r->again ? "(again)" : number_text(parameters));
        break;
    default:
        if (r->bytes)
            snprintf(cell, CELL, "%s", bytes_text(r->bytes));
    }
}

/* As wide as what they hold; then the widest texts give way until all of it fits. */
static void measure(const notes *n, const kiln_module *top, int *width)
{
    static const int most[COLUMNS] = {CELL, 24, 30, 18, 12};
    int total = (COLUMNS - 1) * GAP;
    for (int c = 0; c < COLUMNS; c++) {
        width[c] = (int)strlen(titles[c]);
        for (int64_t i = 0; i < n->count; i++) {
            char cell[CELL];
            write_cell(&n->rows[i], top, c, cell);
            int length = (int)strlen(cell);
            width[c] = length > width[c] ? length : width[c];
        }
        width[c] = width[c] > most[c] ? most[c] : width[c];
        total += width[c];
    }
    if (total > WIDTH)
        width[LAYER] -= total - WIDTH;
}

/* Names are cut at their beginning, where they differ least; all else at its end. Numbers stand to the right. */
static void put_cell(text *t, int column, const char *cell, int width)
{
    int length = (int)strlen(cell), cut = length > width;
    if (column == LAYER && cut)
        put(t, "..%s", cell + length - (width - 2));
    else if (column >= PARAMETERS)
        put(t, "%*s", width, cell);
    else if (cut)
        put(t, "%.*s..", width - 2, cell);
    else
        put(t, "%-*s", width, cell);
    put(t, "%*s", column + 1 < COLUMNS ? GAP : 0, "");
}

static void put_rule(text *t, const int *width)
{
    int total = (COLUMNS - 1) * GAP;
    for (int c = 0; c < COLUMNS; c++)
        total += width[c];
    for (int i = 0; i < total; i++)
        put(t, "-");
    put(t, "\n");
}

typedef struct totals {
    int64_t parameters, frozen;                 /* elements */
    int64_t bytes, buffers, gradients, outputs; /* bytes */
} totals;

static void add_totals(const kiln_module *m, totals *sum)
{
    for (int64_t i = 0; i < m->nmembers; i++) {
        const kiln_tensor *t = m->members[i].tensor;
        int64_t n = kiln_numel(t), bytes = n * (int64_t)kiln_dtype_size((kiln_dtype)t->dtype);
        if (m->members[i].buffer) {
            sum->buffers += bytes;
            continue;
        }
        sum->parameters += n;
        sum->bytes += bytes;
        sum->frozen += t->requires_grad ? 0 : n;
        sum->gradients += t->requires_grad ? bytes : 0;
    }
    for (int64_t i = 0; i < m->nchildren; i++)
        add_totals(m->children[i], sum);
}

static void put_totals(text *t, const notes *n, const kiln_module *m)
{
    totals sum = {0};
    add_totals(m, &sum);
    for (int64_t i = 0; i < n->count; i++)
        sum.outputs += n->rows[i].bytes;
    put(t, "Parameters   %s (trainable %s, frozen %s)\n", number_text(sum.parameters),
        number_text(sum.parameters - sum.frozen), number_text(sum.frozen));
    put(t, "Memory       parameters %s, gradients %s, activations %s", bytes_text(sum.bytes), bytes_text(sum.gradients),
        bytes_text(sum.outputs));
    if (sum.buffers)
        put(t, ", buffers %s", bytes_text(sum.buffers));
    put(t, "\n");
}

static char *write_table(const notes *n, const kiln_module *m)
{
    text t = {0};
    int width[COLUMNS];
    measure(n, m, width);
    for (int c = 0; c < COLUMNS; c++)
        put_cell(&t, c, titles[c], width[c]);
    put(&t, "\n");
    put_rule(&t, width);
    for (int64_t i = 0; i < n->count; i++) {
        for (int c = 0; c < COLUMNS; c++) {
            char cell[CELL];
            write_cell(&n->rows[i], m, c, cell);
            put_cell(&t, c, cell, width[c]);
        }
        put(&t, "\n");
    }
    put_rule(&t, width);
    put_totals(&t, n, m);
    if (!t.failed)
        return t.data;
    kiln_free(t.data);
    return NULL;
}

char *kiln_summary(kiln_module *m, int ndim, const int64_t *shape, kiln_dtype dtype)
{
    if (!m)
        return kiln_ok() ? kiln_fail(KILN_E_ARGUMENT, "summary", "the module is NULL") : NULL;
    notes n = {.watch = {begin, end}};
    bool ok = kiln_dry_run(m, ndim, shape, dtype, &n.watch, NULL, NULL) && !n.failed && add_unvisited(&n, m);
    char *table = ok ? write_table(&n, m) : NULL;
    kiln_free(n.rows);
    return table;
}
