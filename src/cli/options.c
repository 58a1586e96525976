/* Command lines: parsing against a command's table, strict numbers, suggestions for what was mistyped. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <models.h>
#include "cli/cli.h"

/* ---- Numbers ---- */

bool parse_count(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    *out = n;
    return !errno && end != text && !*end && !isspace((unsigned char)*text);
}

/* strtod knows more than people mean by a number: hexadecimal ones, "nan", blanks before it. */
static bool begins_number(const char *text)
{
    bool hexadecimal = toupper((unsigned char)text[strspn(text, "+-0")]) == 'X';
    return !isspace((unsigned char)*text) && !isalpha((unsigned char)*text) && !hexadecimal;
}

bool parse_number(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return begins_number(text) && end != text && !*end && isfinite(*out);
}

bool parse_size(const char *text, uint64_t *out)
{
    static const char units[] = "KMGT";
    char *end;
    double n = strtod(text, &end);
    if (!begins_number(text) || end == text || !(n >= 0))
        return false;
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (unit) {
        n = ldexp(n, 10 * (int)(unit - units + 1));
        end++;
        if (*end == 'i')
            end++;
    }
    if (*end == 'B')
        end++;
    if (*end || n < 1 || n >= 0x1p63)
        return false;
    *out = (uint64_t)n;
    return true;
}

/* ---- Words ---- */

const char *option_words(const option *o)
{
    static char optimizers[512];
    if (!o->words || strcmp(o->words, "<optimizers>") != 0)
        return o->words;
    if (!*optimizers)
        for (const char *const *name = kiln_optim_names(); *name; name++)
            snprintf(optimizers + strlen(optimizers), sizeof optimizers - strlen(optimizers), "%s%s",
                     *optimizers ? " " : "", *name);
    return optimizers;
}

const char *nearest_word(const char *words, const char *text)
{
    static char best[64];
    enum { LONGEST = 40 }; /* no word of ours is longer */
    int length = (int)strnlen(text, LONGEST + 1), nearest = length > LONGEST ? 0 : 1 + (length + 2) / 3;
    bool found = false;
    for (const char *w = words; w && *w;) {
        int n = (int)strcspn(w, " ");
        int distance = model_distance(w, (size_t)n, text);
        if (distance > 1 && length >= 3 && n > length && !strncmp(w, text, (size_t)length))
            distance = 1; /* what was written is the beginning of it */
        if (distance < nearest && n < (int)sizeof best) {
            nearest = distance;
            found = true;
            snprintf(best, sizeof best, "%.*s", n, w);
        }
        w += n + (w[n] == ' ');
    }
    return found ? best : NULL;
}

/* Whether `text` up to its ':' is one of the words. */
static bool is_word(const char *words, const char *text)
{
    size_t length = strcspn(text, ":");
    for (const char *w = words; *w;) {
        size_t n = strcspn(w, " ");
        if (n == length && !strncmp(w, text, n))
            return true;
        w += n + (w[n] == ' ');
    }
    return false;
}

/* ---- Parsing ---- */

static int see_help(const command *c)
{
    hint("kiln %s --help lists the options", c->name);
    return EX_USAGE;
}

static int unknown_option(const command *c, const char *name, int length)
{
    char words[1024] = "help", wanted[64];
    snprintf(wanted, sizeof wanted, "%.*s", length, name);
    for (const option *o = c->options; o->name; o++)
        snprintf(words + strlen(words), sizeof words - strlen(words), " %s", o->name);
    const char *near = nearest_word(words, wanted);
    fail(EX_USAGE, "there is no option --%s", wanted);
    if (near)
        hint("did you mean --%s?", near);
    else
        see_help(c);
    return EX_USAGE;
}

static const option *find_option(const command *c, const char *name, size_t length)
{
    for (const option *o = c->options; o->name; o++)
        if (strlen(o->name) == length && !strncmp(o->name, name, length))
            return o;
    return NULL;
}

/* A number that is one, but too large. */
static bool too_large(const option *o, const char *value)
{
    double n;
    return o->max > 0 && parse_number(value, &n) && n > o->max;
}

static int out_of_range(const option *o, const char *value)
{
    const char *kind = o->kind == OPTION_NUMBER ? "a number" : "a whole number";
    if (o->min > 0 && o->min < 1e-6 && !too_large(o, value))
        return fail(EX_USAGE, "--%s %s: expected %s above 0", o->name, value, kind);
    if (o->max > 0 && o->max < 1e9)
        return fail(EX_USAGE, "--%s %s: expected %s from %g to %.15g", o->name, value, kind, o->min, o->max);
    if (too_large(o, value))
        return fail(EX_USAGE, "--%s %s: expected %s of at most %.15g", o->name, value, kind, o->max);
    return fail(EX_USAGE, "--%s %s: expected %s of at least %g", o->name, value, kind, o->min);
}

static bool in_range(const option *o, double n)
{
    return n >= o->min && (o->max <= 0 || n <= o->max);
}

static int check_counts(const option *o, const char *value)
{
    int count = 0;
    for (const char *at = value;; at++) {
        char piece[24];
        size_t length = strcspn(at, ",");
        int64_t n;
        snprintf(piece, sizeof piece, "%.*s", (int)(length < 23 ? length : 23), at);
        if (!parse_count(piece, &n) || !in_range(o, (double)n))
            return fail(EX_USAGE,
                        "--%s %s: expected whole numbers of at least %g with commas between them, like 32,128", o->name,
                        value, o->min);
        if (++count > MAX_COUNTS)
            return fail(EX_USAGE, "--%s %s: at most %d numbers can be given", o->name, value, MAX_COUNTS);
        at += length;
        if (!*at)
            return 0;
    }
}

static int check_word(const option *o, const char *value)
{
    const char *words = option_words(o);
    if (is_word(words, value))
        return 0;
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(value, ":"), value);
    fail(EX_USAGE, "--%s %s: expected one of: %s", o->name, value, words);
    const char *near = nearest_word(words, name);
    if (near)
        hint("did you mean %s?", near);
    return EX_USAGE;
}

static int check_value(const option *o, const char *value)
{
    int64_t n;
    double x;
    uint64_t size;
    switch (o->kind) {
    case OPTION_COUNT:
        if (o->words && is_word(o->words, value))
            return 0;
        return parse_count(value, &n) && in_range(o, (double)n) ? 0 : out_of_range(o, value);
    case OPTION_NUMBER: return parse_number(value, &x) && in_range(o, x) ? 0 : out_of_range(o, value);
    case OPTION_COUNTS: return check_counts(o, value);
    case OPTION_FLAG: return o->words && *value ? check_word(o, value) : 0;
    case OPTION_WORD: return check_word(o, value);
    case OPTION_SIZE:
        if (parse_size(value, &size))
            return 0;
        return fail(EX_USAGE, "--%s %s: expected a size in bytes, like 800000, 512M or 2G", o->name, value);
    case OPTION_TEXT: /* files, folders, names of things; free texts may be empty */
        return *value || !o->words ? 0 : fail(EX_USAGE, "--%s needs a value: --%s %s", o->name, o->name, o->value);
    default: return 0;
    }
}

/* Takes the option at argv[*i] and its value; *i then stands on the last argument used. */
static int take_option(arguments *a, const option *o, char **argv, int argc, int *i, const char *attached)
{
    const char *value = "";
    if (o->kind == OPTION_FLAG && attached && !o->words)
        return fail(EX_USAGE, "--%s takes no value (it was given \"%s\")", o->name, attached);
    if (attached) {
        value = attached;
    } else if (o->kind == OPTION_FLAG) {
        value = "";
    } else if (*i + 1 < argc) {
        value = argv[++*i];
    } else {
        fail(EX_USAGE, "--%s needs a value: --%s %s", o->name, o->name, o->value);
        return see_help(a->command);
    }
    int code = check_value(o, value);
    a->values[o - a->command->options] = value;
    return code;
}

static const option *find_letter(const command *c, char letter)
{
    for (const option *o = c->options; o->name; o++)
        if (o->letter && o->letter == letter)
            return o;
    return NULL;
}

static int take_argument(arguments *a, int argc, char **argv, int *i)
{
    const command *c = a->command;
    char *at = argv[*i];
    if (at[0] == '-' && at[1] == '-') {
        size_t length = strcspn(at + 2, "=");
        const option *o = find_option(c, at + 2, length);
        if (!o)
            return unknown_option(c, at + 2, (int)length);
        return take_option(a, o, argv, argc, i, at[2 + length] ? at + 3 + length : NULL);
    }
    const option *o = find_letter(c, at[1]);
    if (!o) {
        fail(EX_USAGE, "there is no option %s", at);
        return see_help(c);
    }
    return take_option(a, o, argv, argc, i, at[2] ? at + 2 : NULL);
}

static int too_many(const arguments *a)
{
    const command *c = a->command;
    fail(EX_USAGE, "\"%s\" is one argument too many", a->rest[c->max_operands]);
    if (c->max_operands == 0)
        hint("what kiln %s is to do is said by options: see kiln %s --help", c->name, c->name);
    else
        hint("usage: kiln %s %s [options]", c->name, c->operands);
    return EX_USAGE;
}

int arguments_parse(arguments *a, const command *c, int argc, char **argv)
{
    *a = (arguments){.command = c, .argc = argc, .argv = argv};
    a->rest = must_alloc((size_t)argc + 1, sizeof *a->rest);
    bool only_operands = false;
    for (int i = 0; i < argc; i++) {
        char *at = argv[i];
        if (only_operands || at[0] != '-' || !at[1]) {
            a->rest[a->count++] = at;
        } else if (!strcmp(at, "--")) {
            only_operands = true;
        } else if (!strcmp(at, "--help") || !strcmp(at, "-h")) {
            command_help(c, stdout);
            return -1;
        } else {
            int code = take_argument(a, argc, argv, &i);
            if (code)
                return code;
        }
    }
    return c->max_operands >= 0 && a->count > c->max_operands ? too_many(a) : 0;
}

/* ---- Asking ---- */

const option *option_named(const arguments *a, const char *name)
{
    const option *o = find_option(a->command, name, strlen(name));
    if (!o) { /* a mistake of ours, found by the first test that gets here */
        fprintf(stderr, "kiln: %s has no option %s\n", a->command->name, name);
        exit(EX_SOFTWARE);
    }
    return o;
}

static int place_of(const arguments *a, const char *name)
{
    return (int)(option_named(a, name) - a->command->options);
}

bool given(const arguments *a, const char *name)
{
    return a->values[place_of(a, name)] != NULL;
}

const char *text_of(const arguments *a, const char *name, const char *otherwise)
{
    const char *value = a->values[place_of(a, name)];
    return value ? value : otherwise;
}

int64_t count_of(const arguments *a, const char *name, int64_t otherwise)
{
    const char *value = text_of(a, name, NULL);
    int64_t n;
    return value && parse_count(value, &n) ? n : otherwise;
}

double number_of(const arguments *a, const char *name, double otherwise)
{
    const char *value = text_of(a, name, NULL);
    double n;
    return value && parse_number(value, &n) ? n : otherwise;
}

uint64_t size_of(const arguments *a, const char *name, uint64_t otherwise)
{
    const char *value = text_of(a, name, NULL);
    uint64_t n;
    return value && parse_size(value, &n) ? n : otherwise;
}

int counts_of(const arguments *a, const char *name, int64_t out[MAX_COUNTS])
{
    const char *at = text_of(a, name, NULL);
    int n = 0;
    while (at && *at && n < MAX_COUNTS) {
        out[n++] = strtoll(at, NULL, 10);
        at += strcspn(at, ",");
        at += *at == ',';
    }
    return n;
}

void arguments_set(arguments *a, const char *name, const char *value)
{
    a->values[place_of(a, name)] = value;
}
