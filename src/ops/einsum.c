/* einsum: the equation is read into lists of labels, one a dim; operands are then multiplied from left to right, each
 * time summing what neither the output nor a later operand asks for. A pair is one (batched) matmul. The record carries
 * the equation as character codes, without spaces. */
#include <string.h>
#include "ops/widen.h"

/* A label is 0 … 25 for A … Z, 26 … 51 for a … z, and ELLIPSIS + k for the dim k places from the end of an ellipsis. */
enum { ELLIPSIS = 52, LABELS = ELLIPSIS + KILN_MAX_DIMS, NO_LABEL = 255 };

/* A tensor whose dims have labels. */
typedef struct term {
    kiln_tensor *t;
    int n;
    uint8_t label[KILN_MAX_DIMS];
} term;

typedef struct equation {
    const kiln_call *call;
    char text[KILN_MAX_INTS + 1];
    int nterms;
    term terms[KILN_MAX_INPUTS];
    term output;
    int uses[LABELS];     /* how often a label stands on the left */
    int64_t size[LABELS]; /* of the dims that carry it; -1 while unknown */
    int ellipsis;         /* the longest one */
} equation;

static int label_of(char ch)
{
    if (ch >= 'A' && ch <= 'Z')
        return ch - 'A';
    return ch >= 'a' && ch <= 'z' ? ch - 'a' + 26 : -1;
}

static bool refuse(const equation *e, const char *what)
{
    return kiln_fail(KILN_E_ARGUMENT, e->call->op->name, "\"%s\": %s", e->text, what);
}

/* ---- Reading ---- */

/* One operand's labels, text[0 … length-1]; an ellipsis stands for the dims that have none. */
static bool read_operand(equation *e, const char *text, int length)
{
    if (e->nterms == e->call->nin)
        return refuse(e, "it names more operands than are given");
    term *to = &e->terms[e->nterms];
    to->t = e->call->in[e->nterms++];
    const char *dots = memchr(text, '.', (size_t)length);
    int letters = length - (dots ? 3 : 0), covered = to->t->ndim - letters;
    if (dots && (dots - text + 3 > length || memcmp(dots, "...", 3)))
        return refuse(e, "a dot stands in \"...\" only");
    if (dots ? covered < 0 : covered != 0)
        return kiln_fail(KILN_E_SHAPE, e->call->op->name, "\"%s\": \"%.*s\" stands for operand %d, which is %s",
                         e->text, length, text, e->nterms, kiln_shape_text(to->t->ndim, to->t->shape));
    for (const char *p = text; p < text + length; p++) {
        if (p == dots) {
            for (int k = covered; k-- > 0;)
                to->label[to->n++] = (uint8_t)(ELLIPSIS + k);
            p += 2;
            continue;
        }
        int label = label_of(*p);
        if (label < 0)
            return refuse(e, "labels are letters");
        to->label[to->n++] = (uint8_t)label;
        e->uses[label]++;
    }
    if (dots && covered > e->ellipsis)
        e->ellipsis = covered;
    return true;
}

static bool append_output(equation *e, int label)
{
    term *o = &e->output;
    if (o->n == KILN_MAX_DIMS)
        return refuse(e, "the output has too many dims");
    if (memchr(o->label, label, (size_t)o->n))
        return refuse(e, "the output repeats a label");
    o->label[o->n++] = (uint8_t)label;
    return true;
}

static bool append_ellipsis(equation *e)
{
    for (int k = e->ellipsis; k-- > 0;)
        if (!append_output(e, ELLIPSIS + k))
            return false;
    return true;
}

/* Without "->": the ellipsis, then the labels that stand once, in alphabetical order. */
static bool imply_output(equation *e)
{
    if (!append_ellipsis(e))
        return false;
    for (int label = 0; label < ELLIPSIS; label++)
        if (e->uses[label] == 1 && !append_output(e, label))
            return false;
    return true;
}

static bool read_output(equation *e, const char *text)
{
    bool dots = false;
    for (const char *p = text; *p; p++) {
        if (!strncmp(p, "...", 3) && !dots) {
            if (!append_ellipsis(e))
                return false;
            dots = true;
            p += 2;
            continue;
        }
        int label = label_of(*p);
        if (label < 0)
            return refuse(e, "the output takes letters and one \"...\"");
        if (!e->uses[label])
            return refuse(e, "the output has a label that no operand has");
        if (!append_output(e, label))
            return false;
    }
    return true;
}

/* Dims of one label have one size, or size 1. */
static bool match_sizes(equation *e)
{
    memset(e->size, -1, sizeof e->size);
    for (int i = 0; i < e->nterms; i++) {
        const term *t = &e->terms[i];
        for (int d = 0; d < t->n; d++) {
            int64_t *size = &e->size[t->label[d]], own = t->t->shape[d];
            if (*size != own && *size > -1 && *size != 1 && own != 1)
                return kiln_fail(KILN_E_SHAPE, e->call->op->name,
                                 "\"%s\": dim %d of operand %d %s has size %lld, an earlier dim of that label has %lld",
                                 e->text, d, i + 1, kiln_shape_text(t->t->ndim, t->t->shape), (long long)own,
                                 (long long)*size);
            if (*size == -1 || *size == 1)
                *size = own;
        }
    }
    return true;
}

static bool read_equation(const kiln_call *c, equation *e)
{
    *e = (equation){.call = c};
    for (int k = 0; k < c->attrs.nints; k++)
        e->text[k] = (char)c->attrs.i[k];
    const char *arrow = strstr(e->text, "->"), *end = arrow ? arrow : e->text + strlen(e->text);
    for (const char *p = e->text;; p++) {
        const char *comma = memchr(p, ',', (size_t)(end - p)), *stop = comma ? comma : end;
        if (!read_operand(e, p, (int)(stop - p)))
            return false;
        if (!comma)
            break;
        p = comma;
    }
    if (e->nterms < c->nin)
        return refuse(e, "it names fewer operands than are given");
    return (arrow ? read_output(e, arrow + 2) : imply_output(e)) && match_sizes(e);
}

static bool is_summed(const equation *e, int label)
{
    return e->size[label] >= 0 && !memchr(e->output.label, label, (size_t)e->output.n);
}

/* Whether a dim is summed that only one operand has; where several have its label, size 1 does not count. */
static bool sums_alone(const equation *e)
{
    for (int label = 0; label < LABELS; label++) {
        int owners = 0;
        for (int i = 0; i < e->nterms; i++) {
            const term *t = &e->terms[i];
            for (int d = 0; d < t->n; d++)
                if (t->label[d] == label && (e->nterms == 1 || t->t->shape[d] != 1)) {
                    owners++;
                    break;
                }
        }
        if (owners == 1 && is_summed(e, label))
            return true;
    }
    return false;
}

/* Bools are summed as i64, and so are integers along a dim that no other operand has; a product's sums keep its type.
 */
static kiln_dtype result_dtype(const equation *e)
{
    kiln_dtype dtype = (kiln_dtype)e->terms[0].t->dtype;
    bool sums = false;
    for (int label = 0; label < LABELS; label++)
        sums |= is_summed(e, label);
    if (kiln_dtype_is_float(dtype) || !sums)
        return dtype;
    return dtype == KILN_BOOL || sums_alone(e) ? KILN_I64 : dtype;
}

/* What the operands become: bools that are counted, integers. Half precision is enough for one sum or one product,
 * which round once; more steps than one are taken in f32. */
static kiln_dtype computed_in(const equation *e, kiln_dtype result)
{
    kiln_dtype dtype = (kiln_dtype)e->terms[0].t->dtype;
    bool one_step = e->nterms == 1 || (e->nterms == 2 && !sums_alone(e));
    return dtype == KILN_BOOL ? result : kiln_is_half(dtype) && !one_step ? KILN_F32 : dtype;
}

static bool einsum_infer(kiln_call *c)
{
    for (int k = 0; k < c->nin; k++)
        if (!c->in[k] || (k && !kiln_check_same_dtype(c, 0, k)))
            return false;
    equation e;
    if (!read_equation(c, &e))
        return false;
    int64_t shape[KILN_MAX_DIMS];
    for (int d = 0; d < e.output.n; d++)
        shape[d] = e.size[e.output.label[d]];
    kiln_desc_set(&c->out[0], result_dtype(&e), e.output.n, shape);
    return true;
}

/* ---- Computing ---- */

static int find(const term *t, uint8_t label)
{
    const uint8_t *at = memchr(t->label, label, (size_t)t->n);
    return at ? (int)(at - t->label) : -1;
}

static void remove_label(term *t, int d)
{
    memmove(t->label + d, t->label + d + 1, (size_t)(t->n - d - 1));
    t->n--;
}

/* A label that stands twice in one operand means its diagonal; a size of 1 stands for any size. */
static void take_diagonals(term *t)
{
    for (int d = 0; t->t && d < t->n; d++) {
        int other = -1;
        for (int k = d + 1; k < t->n && other < 0; k++)
            if (t->label[k] == t->label[d])
                other = k;
        if (other < 0)
            continue;
        uint8_t label = t->label[d];
        if (t->t->shape[d] != t->t->shape[other]) {
            int single = t->t->shape[d] == 1 ? d : other;
            t->t = kiln_squeeze(t->t, single);
            remove_label(t, single);
        } else {
            t->t = kiln_diagonal(t->t, 0, d, other); /* it becomes the last dim */
            remove_label(t, other);
            remove_label(t, d);
            t->label[t->n++] = label;
        }
        d = -1;
    }
}

/* Sums the dims whose label is not in `keep`; sums of integers and bools are i64. */
static void sum_others(term *t, const bool *keep)
{
    int64_t dims[KILN_MAX_DIMS];
    int n = 0, left = 0;
    for (int d = 0; d < t->n; d++) {
        if (keep[t->label[d]])
            t->label[left++] = t->label[d];
        else
            dims[n++] = d;
    }
    t->n = left;
    if (n)
        t->t = kiln_sum(t->t, n, dims, false);
}

/* Dims of size 1 that meet a larger one of the same label only broadcast: they go. */
static void drop_broadcast(term *t, const term *other)
{
    for (int d = t->n; t->t && other->t && d-- > 0;) {
        int at = find(other, t->label[d]);
        if (at < 0 || t->t->shape[d] != 1 || other->t->shape[at] == 1)
            continue;
        t->t = kiln_squeeze(t->t, d);
        remove_label(t, d);
    }
}

/* Where a label's dim goes when two terms are multiplied. */
typedef enum group { BATCH, OWN, SHARED, GROUPS } group;

static group group_of(uint8_t label, const term *other, const bool *keep)
{
    if (find(other, label) < 0)
        return OWN;
    return keep[label] ? BATCH : SHARED;
}

/* The term as [batch, own, shared] with those three sizes; within each, dims are in the order of their labels, so that
 * both sides agree. */
static kiln_tensor *as_matrix(const term *t, const term *other, const bool *keep, int64_t *size)
{
    int64_t order[KILN_MAX_DIMS] = {0};
    int n = 0;
    if (!t->t)
        return NULL;
    for (group g = BATCH; g < GROUPS; g++) {
        size[g] = 1;
        for (int label = 0; label < LABELS; label++) {
            int d = find(t, (uint8_t)label);
            if (d < 0 || group_of((uint8_t)label, other, keep) != g)
                continue;
            order[n++] = d;
            size[g] *= t->t->shape[d];
        }
    }
    return kiln_reshape(kiln_permute(t->t, n, order), GROUPS, size);
}

/* Appends the dims of `t` that fall into a group to the product's; false when they become too many. */
static bool append_group(term *product, int64_t *shape, const term *t, const term *other, const bool *keep, group g)
{
    for (int label = 0; label < LABELS; label++) {
        int d = find(t, (uint8_t)label);
        if (d < 0 || group_of((uint8_t)label, other, keep) != g)
            continue;
        if (product->n == KILN_MAX_DIMS)
            return false;
        shape[product->n] = t->t->shape[d];
        product->label[product->n++] = (uint8_t)label;
    }
    return true;
}

static kiln_tensor *multiply(kiln_tensor *a, kiln_tensor *b, bool has_shared)
{
    if (!a || !b)
        return NULL;
    if (!has_shared) /* [batch, m, 1] and [batch, n, 1] */
        return kiln_mul(a, kiln_transpose(b, 1, 2));
    kiln_dtype dtype = kiln_dtype_promote((kiln_dtype)a->dtype, (kiln_dtype)b->dtype); /* one may be a sum already */
    return kiln_matmul(kiln_cast(a, dtype), kiln_transpose(kiln_cast(b, dtype), 1, 2));
}

/* *a becomes a · b, summed over the labels that are in both and not in `keep`. */
static bool contract(const equation *e, term *a, term *b, const bool *keep)
{
    drop_broadcast(a, b);
    drop_broadcast(b, a);
    bool wanted[2][LABELS];
    for (int label = 0; label < LABELS; label++) {
        wanted[0][label] = keep[label] || find(b, (uint8_t)label) >= 0;
        wanted[1][label] = keep[label] || find(a, (uint8_t)label) >= 0;
    }
    sum_others(a, wanted[0]);
    sum_others(b, wanted[1]);
    if (!a->t || !b->t)
        return false;
    term product = {0};
    int64_t shape[KILN_MAX_DIMS], size[2][GROUPS];
    if (!append_group(&product, shape, a, b, keep, BATCH) || !append_group(&product, shape, a, b, keep, OWN) ||
        !append_group(&product, shape, b, a, keep, OWN))
        return refuse(e, "a product on the way has too many dims");
    kiln_tensor *left = as_matrix(a, b, keep, size[0]), *right = as_matrix(b, a, keep, size[1]);
    product.t = kiln_reshape(multiply(left, right, size[0][SHARED] != 1), product.n, shape);
    *a = product;
    return a->t != NULL;
}

static bool einsum_compose(kiln_call *c, kiln_tensor **out)
{
    equation e;
    if (!read_equation(c, &e))
        return false;
    kiln_dtype dtype = computed_in(&e, c->out[0].dtype);
    for (int i = 0; i < e.nterms; i++) {
        e.terms[i].t = kiln_cast(e.terms[i].t, dtype);
        take_diagonals(&e.terms[i]);
    }
    term *sum = &e.terms[0];
    for (int i = 1; i <= e.nterms; i++) {
        bool keep[LABELS] = {false};
        for (int d = 0; d < e.output.n; d++)
            keep[e.output.label[d]] = true;
        for (int k = i + 1; k < e.nterms; k++)
            for (int d = 0; d < e.terms[k].n; d++)
                keep[e.terms[k].label[d]] = true;
        if (i == e.nterms)
            sum_others(sum, keep);
        else if (!contract(&e, sum, &e.terms[i], keep))
            return false;
    }
    int64_t order[KILN_MAX_DIMS] = {0};
    for (int d = 0; d < e.output.n; d++)
        order[d] = find(sum, e.output.label[d]);
    out[0] = kiln_cast(kiln_permute(sum->t, e.output.n, order), c->out[0].dtype);
    return out[0] != NULL;
}

const kiln_op kiln_op_einsum = {
    .name = "einsum",
    .attrs = "characters...",
    .cls = KILN_CLASS_COMPOSITE,
    .autocast = KILN_CAST_LOWER,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = KILN_MAX_INPUTS,
    .keeps_half = true,
    .infer = einsum_infer,
    .compose = einsum_compose,
    .cases =
        KILN_CASES{
            "x[2,3] x[3,4] | 105 106 44 106 107 45 62 105 107",                                /* ij,jk->ik */
            "x[2,3] x[3,4] | 105 106 44 106 107",                                              /* ij,jk */
            "x[3,3] | 105 105",                                                                /* ii */
            "x[3,3] | 105 105 45 62 105",                                                      /* ii->i */
            "x[2,3] | 105 106 45 62 106 105",                                                  /* ij->ji */
            "x[2,3,4] | 105 106 107 45 62 106",                                                /* ijk->j */
            "x[2,3] x[2,3] | 105 106 44 105 106 45 62",                                        /* ij,ij-> */
            "x[3] x[4] | 105 44 106 45 62 105 106",                                            /* i,j->ij */
            "x[2,2,3] x[2,3,4] | 98 105 106 44 98 106 107 45 62 98 105 107",                   /* bij,bjk->bik */
            "x[2,3,2] x[2,2,4] | 46 46 46 105 106 44 46 46 46 106 107 45 62 46 46 46 105 107", /* ...ij,...jk->...ik */
            "x[2,1] x[3,4] | 105 106 44 106 107 45 62 105 107",                                /* ij,jk->ik */
            "x[2,3] x[3,4] x[4,2] | 105 106 44 106 107 44 107 105 45 62 105",                  /* ij,jk,ki->i */
            "x[2,3,4] x[4] | 46 46 46 107 44 107",                                             /* ...k,k */
            NULL},
};

kiln_tensor *kiln_einsum(const char *text, int n, kiln_tensor *const *operands)
{
    if (!text || n < 1 || n > KILN_MAX_INPUTS || !operands)
        return kiln_fail(KILN_E_ARGUMENT, "einsum", "it takes an equation and 1 to %d operands", KILN_MAX_INPUTS);
    for (int k = 0; k < n; k++)
        if (!kiln_tensor_given(operands[k], "einsum", k + 1))
            return NULL;
    kiln_attrs a = {0};
    for (const char *p = text; *p; p++) {
        if (*p == ' ')
            continue;
        if (a.nints == KILN_MAX_INTS)
            return kiln_fail(KILN_E_ARGUMENT, "einsum", "\"%.80s\" is longer than %d characters", text, KILN_MAX_INTS);
        a.i[a.nints++] = (unsigned char)*p;
    }
    return kiln_op_one(&kiln_op_einsum, operands, n, &a);
}
