/* What the parts of the operation tests share. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "support/suite.h"

/* ---- Complaints ---- */

static int64_t complained;

void complain(const char *op, const char *format, ...)
{
    enum { EACH = 4 };
    static char last[64];
    static int in_a_row;
    complained++;
    if (strcmp(op, last)) {
        snprintf(last, sizeof last, "%s", op);
        in_a_row = 0;
    }
    if (in_a_row++ >= EACH)
        return;
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", op);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

int64_t complaints(void)
{
    return complained;
}

/* ---- Cases ---- */

static bool is_named(const char *wanted)
{
    const char *only = getenv("KILN_TEST_ONLY");
    char names[512];
    if (!only)
        return true;
    snprintf(names, sizeof names, "%s", only);
    for (char *rest = names, *name; (name = strtok_r(rest, ",", &rest));)
        if (!strcmp(name, wanted))
            return true;
    return false;
}

static bool in_shard(int64_t number)
{
    const char *text = getenv("KILN_TEST_SHARD");
    long long mine = 0, shards = 1;
    if (!text || !*text)
        return true;
    if (sscanf(text, "%lld/%lld", &mine, &shards) != 2 || mine < 0 || mine >= shards) {
        complain("KILN_TEST_SHARD", "\"%s\" is none: 0/4 is the first of four", text);
        return true;
    }
    return number % shards == mine;
}

bool suite_first_shard(void)
{
    return in_shard(0);
}

bool suite_wants_named(const char *name, int64_t number)
{
    return is_named(name) && in_shard(number);
}

bool suite_wants(const kiln_op *op)
{
    int number = 0;
    while (kiln_op_at(number) != op)
        number++;
    return suite_wants_named(op->name, number);
}

bool suite_small(void)
{
    const char *text = getenv("KILN_TEST_SMALL");
    return text && strcmp(text, "1") == 0;
}

/* The cases of a list that are the operation's; returns the number of the next case. */
static int listed_cases(const kiln_op *op, const extra_case *list, int number,
                        void (*f)(const test_case *c, void *context), void *context)
{
    static test_case c;
    char why[160];
    for (const extra_case *e = list; e->op; e++) {
        if (strcmp(e->op, op->name))
            continue;
        if (!case_parse(&c, op, number++, e->text, why)) {
            complain(op->name, "%s", why);
            continue;
        }
        c.big = list == big_cases || list == path_cases;
        c.path = list == path_cases;
        f(&c, context);
    }
    return number;
}

static void every_case(const kiln_op *op, void (*f)(const test_case *c, void *context), void *context)
{
    int number = 0;
    for (int k = 0; op->cases && op->cases[k]; k++) {
        const extra_case own[] = {{op->name, op->cases[k]}, {NULL, NULL}};
        number = listed_cases(op, own, number, f, context);
    }
    number = listed_cases(op, extra_cases, number, f, context);
    number = listed_cases(op, big_cases, number, f, context);
    listed_cases(op, path_cases, number, f, context);
}

/* The few cases of the small mode: some of the record's, one of nothing, one of odd sizes, one that is split up, and
 * all that have a path of their own. */
enum { PICK_OWN, PICK_EMPTY, PICK_ODD, PICK_BIG, PICK_PATH, PICKS };
static const int most[PICKS] = {3, 1, 1, 1, 100};

typedef struct picker {
    void (*f)(const test_case *c, void *context);
    void *context;
    int own, taken[PICKS];
} picker;

static void pick(const test_case *c, void *context)
{
    picker *p = context;
    bool empty = false;
    for (int k = 0; k < c->nin; k++)
        empty |= c->in[k].kind != '-' && case_count(&c->in[k]) == 0;
    int kind = c->path ? PICK_PATH : c->big ? PICK_BIG : empty ? PICK_EMPTY : c->number < p->own ? PICK_OWN : PICK_ODD;
    if (p->taken[kind]++ < most[kind])
        p->f(c, p->context);
}

void suite_cases(const kiln_op *op, void (*f)(const test_case *c, void *context), void *context)
{
    picker p = {.f = f, .context = context};
    while (op->cases && op->cases[p.own])
        p.own++;
    if (suite_small())
        every_case(op, pick, &p);
    else
        every_case(op, f, context);
}

/* ---- The digest ---- */

typedef struct digest_line {
    char op[48];
    kiln_dtype dtype;
    uint64_t hash;
} digest_line;

static digest_line *lines;
static int64_t used, room;

void digest_add(const char *op, kiln_dtype dtype, const void *bits, size_t size)
{
    int64_t k = used; /* the operation that was added to last is the likely one */
    while (k > 0 && (lines[k - 1].dtype != dtype || strcmp(lines[k - 1].op, op)))
        k--;
    if (k == 0) {
        if (used == room) {
            room = room ? 2 * room : 256;
            lines = realloc(lines, (size_t)room * sizeof *lines);
        }
        k = ++used;
        lines[k - 1] = (digest_line){.dtype = dtype, .hash = 1469598103934665603u};
        snprintf(lines[k - 1].op, sizeof lines[k - 1].op, "%s", op);
    }
    for (size_t i = 0; i < size; i++)
        lines[k - 1].hash = (lines[k - 1].hash ^ ((const uint8_t *)bits)[i]) * 1099511628211u;
}

bool digest_write(void)
{
    const char *path = getenv("KILN_TEST_DIGEST");
    bool written = true;
    if (path) {
        FILE *f = fopen(path, "w");
        written = f != NULL;
        for (int64_t k = 0; f && k < used; k++)
            fprintf(f, "%s %s %016llx\n", lines[k].op, kiln_dtype_name(lines[k].dtype),
                    (unsigned long long)lines[k].hash);
        if (f)
            written = fclose(f) == 0;
    }
    free(lines);
    lines = NULL;
    used = room = 0;
    return written;
}
