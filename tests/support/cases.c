/* Reads the little language test cases are written in, and makes their data: the same on every machine. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "support/cases.h"
#include "support/numbers.h"

static const char *skip_spaces(const char *p)
{
    while (isspace((unsigned char)*p))
        p++;
    return p;
}

/* "3,1,2" up to a character that is neither digit, sign nor comma. NULL when there are too many. */
static const char *read_list(const char *p, int64_t *list, int max, int *count)
{
    *count = 0;
    while (isdigit((unsigned char)*p) || *p == '-') {
        if (*count == max)
            return NULL;
        char *end;
        list[(*count)++] = strtoll(p, &end, 10);
        p = *end == ',' ? end + 1 : end;
    }
    return p;
}

static const char *read_operand(const char *p, case_operand *o)
{
    memset(o, 0, sizeof *o);
    o->kind = *p++;
    if (o->kind == '-')
        return *p && !isspace((unsigned char)*p) && *p != '|' ? NULL : p;
    if (!strchr("xdibqfpnzs", o->kind))
        return NULL;
    if (o->kind == 'i')
        o->limit = strtoll(p, (char **)&p, 10);
    if ((o->kind == 'n' || o->kind == 'z') && !(p = read_list(p, o->list, CASE_LISTED, &o->listed)))
        return NULL;
    if (*p++ != '[')
        return NULL;
    p = read_list(p, o->shape, KILN_MAX_DIMS, &o->ndim);
    return p && *p == ']' ? p + 1 : NULL;
}

static const char *read_attrs(const char *p, kiln_attrs *attrs)
{
    for (p = skip_spaces(p); *p && *p != '|'; p = skip_spaces(p)) {
        if (attrs->nints == KILN_MAX_INTS)
            return NULL;
        char *end;
        attrs->i[attrs->nints++] = strtoll(p, &end, 10);
        if (end == p)
            return NULL;
        p = end;
    }
    if (!*p)
        return p;
    for (p = skip_spaces(p + 1); *p; p = skip_spaces(p)) {
        if (attrs->nfloats == KILN_MAX_FLOATS)
            return NULL;
        char *end;
        attrs->f[attrs->nfloats++] = strtod(p, &end);
        if (end == p)
            return NULL;
        p = end;
    }
    return p;
}

bool case_parse(test_case *c, const kiln_op *op, int number, const char *text, char why[160])
{
    memset(c, 0, sizeof *c);
    c->op = op;
    c->number = number;
    c->text = text;
    const char *p = skip_spaces(text);
    while (*p && *p != '|') {
        const char *start = p;
        if (c->nin == KILN_MAX_INPUTS || !(p = read_operand(p, &c->in[c->nin]))) {
            snprintf(why, 160, "%s: cannot read operand %d at '%s'", op->name, c->nin, start);
            return false;
        }
        c->nin++;
        p = skip_spaces(p);
    }
    if (*p == '|' && !read_attrs(p + 1, &c->attrs)) {
        snprintf(why, 160, "%s: cannot read the attributes in '%s'", op->name, text);
        return false;
    }
    if (c->nin < op->min_in || c->nin > op->max_in) {
        snprintf(why, 160, "%s: %d operands in '%s'", op->name, c->nin, text);
        return false;
    }
    return true;
}

int64_t case_count(const case_operand *o)
{
    int64_t n = 1;
    for (int d = 0; d < o->ndim; d++)
        n *= o->shape[d];
    return n;
}

bool case_is_real(const case_operand *o)
{
    return strchr("xdpqfs", o->kind) != NULL;
}

kiln_dtype case_dtype(const test_case *c, int operand, kiln_dtype dtype)
{
    switch (c->in[operand].kind) {
    case 'i': /* indices that are what the operation is about come in all its integer types */
        return operand == 0 && (dtype == KILN_I32 || dtype == KILN_I64) ? dtype : KILN_I64;
    case 'n':
    case 'z': return KILN_I64;
    case 'b': return KILN_BOOL;
    case 's': return dtype == KILN_F16 || dtype == KILN_BF16 ? KILN_F32 : dtype;
    case 'f':
    case 'q': return kiln_dtype_is_float(dtype) ? dtype : KILN_F32;
    default: return dtype;
    }
}

/* A random order of 0 … n-1. */
static void fill_distinct(number_rng *rng, double *data, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        data[i] = (double)i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)(number_next(rng) % (uint64_t)(i + 1));
        double t = data[i];
        data[i] = data[j];
        data[j] = t;
    }
}

static void fill_rows(number_rng *rng, double *data, int64_t n, int64_t row)
{
    for (int64_t i = 0; i < n; i += row) {
        double sum = 0;
        for (int64_t j = 0; j < row; j++)
            sum += data[i + j] = 0.1 + number_uniform(rng);
        for (int64_t j = 0; j < row; j++)
            data[i + j] /= sum;
    }
}

static void fill_range(number_rng *rng, double *data, int64_t n, double lo, double hi, bool whole)
{
    for (int64_t i = 0; i < n; i++) {
        double v = lo + (hi - lo) * number_uniform(rng);
        data[i] = whole ? nearbyint(v) : v;
    }
}

void case_fill(const test_case *c, int operand, kiln_dtype under_test, double *data)
{
    const case_operand *o = &c->in[operand];
    kiln_dtype dtype = case_dtype(c, operand, under_test);
    number_rng rng = number_seed(c->op->name, c->number, operand);
    int64_t n = case_count(o);
    bool whole = !kiln_dtype_is_float(dtype);
    double lo = c->op->lo, hi = c->op->hi;
    if (lo == 0 && hi == 0)
        lo = -2, hi = 2;
    if (o->kind == 'p')
        lo = 0.5, hi = 2;
    if (whole && o->kind != 'd') /* integers want room: -2 … 2 has five of them */
        lo = dtype == KILN_U8 || dtype == KILN_BOOL ? (lo > 0 ? ceil(lo) : 0) : ceil(lo), hi = floor(hi);

    switch (o->kind) {
    case 'i':
        for (int64_t i = 0; i < n; i++)
            data[i] = (double)(number_next(&rng) % (uint64_t)(o->limit > 0 ? o->limit : 1));
        break;
    case 'b':
        for (int64_t i = 0; i < n; i++)
            data[i] = (double)(number_next(&rng) % 2);
        break;
    case 'n':
    case 'z':
        for (int64_t i = 0; i < n; i++)
            data[i] = o->listed ? (double)o->list[i % o->listed] : (double)i;
        break;
    case 'q': fill_rows(&rng, data, n, o->ndim ? o->shape[o->ndim - 1] : 1); break;
    case 'd': /* not symmetric, so that their absolute values are distinct too, and none is 0 */
        fill_distinct(&rng, data, n);
        for (int64_t i = 0; i < n; i++)
            data[i] = whole ? data[i] - (dtype == KILN_U8 ? 0 : (double)(n / 2))
                            : lo + (hi - lo) * (data[i] + 0.37) / (double)n;
        break;
    default:
        if (dtype == KILN_BOOL)
            lo = 0, hi = 1;
        fill_range(&rng, data, n, lo, hi, whole);
    }
    for (int64_t i = 0; i < n; i++)
        data[i] = number_round(data[i], dtype);
}
