/* Products: each output element is one sum over all values of the summed indices, as the definition says. */
#include <math.h>
#include <string.h>
#include "support/ref.h"

static void add_term(ref_tensor *out, int64_t i, double term)
{
    out->size[i] = (isnan(out->size[i]) ? 0 : out->size[i]) + fabs(term);
    out->data[i] += term;
}

/* Which matrix of t belongs to a place of the broadcast batch dims. */
static int64_t matrix_at(const ref_tensor *t, int batch_dims, const int64_t *index)
{
    int64_t flat = 0;
    for (int d = 0; d < t->ndim - 2; d++)
        flat = flat * t->shape[d] + (t->shape[d] == 1 ? 0 : index[batch_dims - (t->ndim - 2) + d]);
    return flat;
}

/* a[..., m, k] · b[..., k, n], the leading dims broadcast. */
static void run_matmul(ref_call *c)
{
    const ref_tensor *a = c->in[0], *b = c->in[1];
    int64_t shape[KILN_MAX_DIMS], index[KILN_MAX_DIMS];
    ref_tensor lead_a = *a, lead_b = *b;
    lead_a.ndim -= 2;
    lead_b.ndim -= 2;
    int batch = 0;
    ref_broadcast_shape(&batch, shape, &lead_a);
    ref_broadcast_shape(&batch, shape, &lead_b);
    int64_t m = a->shape[a->ndim - 2], depth = a->shape[a->ndim - 1], n = b->shape[b->ndim - 1];
    shape[batch] = m;
    shape[batch + 1] = n;
    ref_tensor *out = ref_out(c, 0, a->dtype, batch + 2, shape);
    for (int64_t i = 0; i < out->count; i++) {
        ref_unravel(batch + 2, shape, i, index);
        const double *row = a->data + (matrix_at(a, batch, index) * m + index[batch]) * depth;
        const double *column = b->data + matrix_at(b, batch, index) * depth * n + index[batch + 1];
        for (int64_t k = 0; k < depth; k++)
            add_term(out, i, row[k] * column[k * n]);
    }
}

/* x[..., in] · weight[out, in]ᵀ + bias[out] */
static void run_linear(ref_call *c)
{
    const ref_tensor *x = c->in[0], *w = c->in[1], *bias = c->nin > 2 ? c->in[2] : NULL;
    int64_t shape[KILN_MAX_DIMS], in = w->shape[1], outs = w->shape[0];
    memcpy(shape, x->shape, sizeof shape);
    shape[x->ndim - 1] = outs;
    ref_tensor *out = ref_out(c, 0, x->dtype, x->ndim, shape);
    for (int64_t i = 0; i < out->count; i++) {
        for (int64_t k = 0; k < in; k++)
            add_term(out, i, x->data[i / outs * in + k] * w->data[i % outs * in + k]);
        if (bias)
            add_term(out, i, bias->data[i % outs]);
    }
}

static void run_outer(ref_call *c)
{
    const ref_tensor *a = c->in[0], *b = c->in[1];
    ref_tensor *out = ref_out(c, 0, a->dtype, 2, (int64_t[]){a->shape[0], b->shape[0]});
    for (int64_t i = 0; i < out->count; i++)
        out->data[i] = a->data[i / b->shape[0]] * b->data[i % b->shape[0]];
}

static void run_dot(ref_call *c)
{
    ref_tensor *out = ref_out(c, 0, c->in[0]->dtype, 0, NULL);
    for (int64_t k = 0; k < c->in[0]->count; k++)
        add_term(out, 0, c->in[0]->data[k] * c->in[1]->data[k]);
}

/* ---- einsum ---- */

/* Labels are characters; those of an ellipsis are '0' for the last dim it covers, '1' for the one before, … */
typedef struct equation {
    char in[KILN_MAX_INPUTS][KILN_MAX_DIMS + 1], out[KILN_MAX_DIMS + 1];
    char all[64]; /* each label once: the output's, then the summed ones */
    int64_t size[64];
} equation;

/* Copies a term; "..." becomes as many digits as are left of ndim. */
static void read_term(const char *from, int length, int ndim, char *to)
{
    int letters = 0;
    for (int k = 0; k < length; k++)
        letters += from[k] != '.';
    for (int k = 0; k < length; k++) {
        if (from[k] != '.') {
            *to++ = from[k];
            continue;
        }
        for (int d = ndim - letters; d-- > 0;)
            *to++ = (char)('0' + d);
        k += 2;
    }
    *to = 0;
}

/* Without an arrow: the ellipsis, then the labels that stand once, in order. */
static void imply_output(equation *e, int nin)
{
    int count[128] = {0}, n = 0;
    for (int k = 0; k < nin; k++)
        for (const char *p = e->in[k]; *p; p++)
            count[(int)*p]++;
    for (int d = '9'; d >= '0'; d--)
        if (count[d])
            e->out[n++] = (char)d;
    for (int l = 'A'; l <= 'z'; l++)
        if (count[l] == 1)
            e->out[n++] = (char)l;
    e->out[n] = 0;
}

static void read_equation(const ref_call *c, equation *e)
{
    char text[KILN_MAX_INTS + 1] = {0};
    int longest = 0;
    memset(e, 0, sizeof *e);
    for (int k = 0; k < c->attrs.nints; k++)
        text[k] = (char)c->attrs.i[k];
    char *arrow = strstr(text, "->"), *p = text;
    size_t left = arrow ? (size_t)(arrow - text) : strlen(text);
    for (int k = 0; k < c->nin; k++) {
        int length = (int)strcspn(p, ",-");
        read_term(p, length, c->in[k]->ndim, e->in[k]);
        int covered = (int)strspn(e->in[k], "0123456789");
        longest = covered > longest ? covered : longest;
        p += length + 1;
    }
    if (arrow) {
        int letters = 0;
        for (const char *q = arrow + 2; *q; q++)
            letters += *q != '.';
        read_term(arrow + 2, (int)(strlen(text) - left - 2), letters + longest, e->out);
    } else {
        imply_output(e, c->nin);
    }
    strcpy(e->all, e->out);
    for (int k = 0; k < c->nin; k++)
        for (const char *q = e->in[k]; *q; q++) {
            if (!strchr(e->all, *q))
                e->all[strlen(e->all)] = *q;
            int64_t *size = &e->size[strchr(e->all, *q) - e->all], own = c->in[k]->shape[q - e->in[k]];
            *size = *size > own ? *size : own;
        }
}

/* Sums are i64 for bools, and for integers where only one operand has the label. */
static kiln_dtype einsum_dtype(const ref_call *c, const equation *e)
{
    kiln_dtype dtype = c->in[0]->dtype;
    for (const char *label = e->all + strlen(e->out); *label && !kiln_dtype_is_float(dtype); label++) {
        int owners = 0;
        for (int k = 0; k < c->nin; k++)
            for (const char *q = e->in[k]; *q; q++)
                if (*q == *label && (c->nin == 1 || c->in[k]->shape[q - e->in[k]] != 1)) {
                    owners++;
                    break;
                }
        if (owners == 1 || dtype == KILN_BOOL)
            return KILN_I64;
    }
    return dtype;
}

static void run_einsum(ref_call *c)
{
    equation e;
    read_equation(c, &e);
    int labels = (int)strlen(e.all), kept = (int)strlen(e.out);
    int64_t index[64];
    ref_tensor *out = ref_out(c, 0, einsum_dtype(c, &e), kept, e.size);
    for (int64_t i = 0; i < ref_count(labels, e.size); i++) {
        double term = 1;
        ref_unravel(labels, e.size, i, index);
        for (int k = 0; k < c->nin; k++) {
            const ref_tensor *t = c->in[k];
            int64_t flat = 0;
            for (int d = 0; d < t->ndim; d++)
                flat = flat * t->shape[d] + (t->shape[d] == 1 ? 0 : index[strchr(e.all, e.in[k][d]) - e.all]);
            term *= t->data[flat];
        }
        add_term(out, ref_ravel(kept, e.size, index), term);
    }
}

const ref_entry ref_entries_product[] = {
    {"matmul", run_matmul, 0}, {"linear", run_linear, 0}, {"outer", run_outer, 0},
    {"dot", run_dot, 0},       {"einsum", run_einsum, 2}, {NULL, NULL, 0},
};
