/* Softmax, normalisation, embedding and attention. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "support/ref.h"

/* ---- Rows ---- */

static void softmax_along(ref_call *c, bool logarithm)
{
    const ref_tensor *x = c->in[0];
    ref_tensor *out = ref_out_like(c, 0, x);
    ref_split s = ref_split_at(x, ref_dim(REF_INT(c, 0), x->ndim));
    for (int64_t o = 0; o < s.before; o++)
        for (int64_t n = 0; n < s.after; n++) {
            double largest = -INFINITY, sum = 0;
            for (int64_t i = 0; i < s.at; i++)
                largest = fmax(largest, x->data[(o * s.at + i) * s.after + n]);
            for (int64_t i = 0; i < s.at; i++)
                sum += exp(x->data[(o * s.at + i) * s.after + n] - largest);
            for (int64_t i = 0; i < s.at; i++) {
                int64_t at = (o * s.at + i) * s.after + n;
                double d = x->data[at] - largest;
                out->data[at] = logarithm ? d - log(sum) : exp(d) / sum;
                out->size[at] = logarithm ? fabs(d) + log(sum) + fabs(largest) : out->data[at] * (1 + fabs(d));
            }
        }
}

static void run_softmax(ref_call *c)
{
    softmax_along(c, false);
}

static void run_log_softmax(ref_call *c)
{
    softmax_along(c, true);
}

/* Mean and 1/sqrt(variance + eps) of n numbers that lie `step` apart in runs: the caller gives their places. */
typedef struct moments {
    double mean, variance, largest;
} moments;

static moments moments_of(const double *v, int64_t n)
{
    moments m = {0};
    for (int64_t i = 0; i < n; i++) {
        m.mean += v[i] / (double)n;
        m.largest = fmax(m.largest, fabs(v[i]));
    }
    for (int64_t i = 0; i < n; i++)
        m.variance += (v[i] - m.mean) * (v[i] - m.mean) / (double)n;
    return m;
}

/* Rows that are only scaled: their mean is 0. */
static bool is_plain(const ref_call *c)
{
    return c->attrs.nints > 1 && REF_INT(c, 1);
}

static void run_normalize_rows(ref_call *c)
{
    const ref_tensor *x = c->in[0];
    int n = (int)REF_INT(c, 0), lead = x->ndim - n;
    int64_t row = ref_count(n, x->shape + lead), rows = ref_count(lead, x->shape);
    ref_tensor *y = ref_out_like(c, 0, x), *mean = ref_out(c, 1, x->dtype, lead, x->shape),
               *rstd = ref_out(c, 2, x->dtype, lead, x->shape);
    for (int64_t r = 0; r < rows; r++) {
        moments m = moments_of(x->data + r * row, row);
        if (is_plain(c)) {
            m.variance += m.mean * m.mean;
            m.mean = 0;
        }
        mean->data[r] = m.mean;
        mean->size[r] = m.largest;
        rstd->data[r] = 1 / sqrt(m.variance + REF_FLOAT(c, 0));
        for (int64_t i = 0; i < row; i++) {
            y->data[r * row + i] = (x->data[r * row + i] - m.mean) * rstd->data[r];
            y->size[r * row + i] = (fabs(x->data[r * row + i]) + m.largest) * rstd->data[r];
        }
    }
}

/* y·weight + bias where they are there; the element of weight that belongs to place i is i / inner % count. */
static void scale_and_shift(ref_tensor *y, const ref_tensor *weight, const ref_tensor *bias, int64_t inner)
{
    for (int64_t i = 0; i < y->count; i++) {
        if (weight) {
            y->data[i] *= weight->data[i / inner % weight->count];
            y->size[i] *= fabs(weight->data[i / inner % weight->count]);
        }
        if (bias) {
            y->data[i] += bias->data[i / inner % bias->count];
            y->size[i] += fabs(bias->data[i / inner % bias->count]);
        }
    }
}

static const ref_tensor *operand(const ref_call *c, int k)
{
    return k < c->nin ? c->in[k] : NULL;
}

/* Normalises runs of `row` elements. */
static ref_tensor *normalised(ref_call *c, int64_t row, double eps)
{
    const ref_tensor *x = c->in[0];
    ref_tensor *y = ref_out_like(c, 0, x);
    for (int64_t r = 0; r < x->count; r += row) {
        moments m = moments_of(x->data + r, row);
        for (int64_t i = r; i < r + row; i++) {
            y->data[i] = (x->data[i] - m.mean) / sqrt(m.variance + eps);
            y->size[i] = (fabs(x->data[i]) + m.largest) / sqrt(m.variance + eps);
        }
    }
    return y;
}

static void run_layer_norm(ref_call *c)
{
    ref_tensor *y = normalised(c, ref_count(c->attrs.nints, c->attrs.i), REF_FLOAT(c, 0));
    scale_and_shift(y, operand(c, 1), operand(c, 2), 1);
}

static void run_group_norm(ref_call *c)
{
    const ref_tensor *x = c->in[0];
    int64_t inner = ref_count(x->ndim - 2, x->shape + 2);
    ref_tensor *y = normalised(c, x->shape[1] / REF_INT(c, 0) * inner, REF_FLOAT(c, 0));
    scale_and_shift(y, operand(c, 1), operand(c, 2), inner);
}

static void run_rms_norm(ref_call *c)
{
    const ref_tensor *x = c->in[0];
    int64_t row = ref_count(c->attrs.nints, c->attrs.i);
    ref_tensor *y = ref_out_like(c, 0, x);
    for (int64_t i = 0; i < x->count; i++) {
        double squares = 0;
        for (int64_t k = 0; k < row; k++)
            squares += pow(x->data[i / row * row + k], 2);
        y->data[i] = x->data[i] / sqrt(squares / (double)row + REF_FLOAT(c, 0));
        y->size[i] = fabs(y->data[i]);
    }
    scale_and_shift(y, operand(c, 1), NULL, 1);
}

/* operands x, running_mean, running_var, weight, bias */
static void run_batch_norm(ref_call *c)
{
    const ref_tensor *x = c->in[0];
    bool training = REF_INT(c, 0) != 0;
    int64_t channels = x->shape[1], inner = ref_count(x->ndim - 2, x->shape + 2), n = x->count / channels;
    ref_tensor *y = ref_out_like(c, 0, x);
    double *values = calloc((size_t)n + 1, sizeof *values);
    for (int64_t ch = 0; ch < channels; ch++) {
        int64_t k = 0;
        for (int64_t i = 0; i < x->count; i++)
            if (i / inner % channels == ch)
                values[k++] = x->data[i];
        moments m = moments_of(values, n);
        if (!training)
            m = (moments){c->in[1]->data[ch], c->in[2]->data[ch], fabs(c->in[1]->data[ch])};
        for (int64_t i = 0; i < x->count; i++)
            if (i / inner % channels == ch) {
                y->data[i] = (x->data[i] - m.mean) / sqrt(m.variance + REF_FLOAT(c, 1));
                y->size[i] = (fabs(x->data[i]) + m.largest) / sqrt(m.variance + REF_FLOAT(c, 1));
            }
    }
    free(values);
    scale_and_shift(y, operand(c, 3), operand(c, 4), inner);
}

/* ---- Layers ---- */

static void run_embedding(ref_call *c)
{
    const ref_tensor *w = c->in[0], *index = c->in[1];
    int64_t shape[2 * KILN_MAX_DIMS], row = ref_count(w->ndim - 1, w->shape + 1);
    int n = 0;
    for (int d = 0; d < index->ndim; d++)
        shape[n++] = index->shape[d];
    for (int d = 1; d < w->ndim; d++)
        shape[n++] = w->shape[d];
    ref_tensor *out = ref_out(c, 0, w->dtype, n, shape);
    for (int64_t i = 0; i < out->count; i++)
        out->data[i] = w->data[(int64_t)index->data[i / row] * row + i % row];
}

/* The row of t[..., rows, width] for a place of the broadcast batch dims and a row number. */
static const double *row_of(const ref_tensor *t, int batch_dims, const int64_t *index, int64_t row)
{
    int64_t flat = 0;
    for (int d = 0; d < t->ndim - 2; d++)
        flat = flat * t->shape[d] + (t->shape[d] == 1 ? 0 : index[batch_dims - (t->ndim - 2) + d]);
    return t->data + (flat * t->shape[t->ndim - 2] + row) * t->shape[t->ndim - 1];
}

/* How many heads of q a head of k and v serves. */
static int64_t sharing(const ref_call *c)
{
    const ref_tensor *q = c->in[0], *k = c->in[1];
    int n = q->ndim;
    return n > 2 && k->ndim == n && k->shape[n - 3] > 1 ? q->shape[n - 3] / k->shape[n - 3] : 1;
}

/* Batch indices of q as those of k and v. */
static void shared_heads(const ref_call *c, int batch, const int64_t *index, int64_t *shared)
{
    memcpy(shared, index, KILN_MAX_DIMS * sizeof *shared);
    if (batch > 0)
        shared[batch - 1] /= sharing(c);
}

/* The weights of one row of scores, in place of the scores; `index` ends with that row. */
static void attention_weights(const ref_call *c, int batch, int64_t *index, double *w, int64_t positions)
{
    const ref_tensor *q = c->in[0], *k = c->in[1], *mask = operand(c, 3), *lengths = operand(c, 4);
    double largest = -INFINITY, sum = 0;
    int64_t shared[KILN_MAX_DIMS];
    shared_heads(c, batch, index, shared);
    for (int64_t s = 0; s < positions; s++) {
        const double *a = row_of(q, batch, index, index[batch]), *b = row_of(k, batch, shared, s);
        w[s] = 0;
        for (int64_t e = 0; e < q->shape[q->ndim - 1]; e++)
            w[s] += a[e] * b[e] * REF_FLOAT(c, 0);
        index[batch + 1] = s;
        if (mask && mask->dtype == KILN_BOOL)
            w[s] = ref_broadcast_at(mask, batch + 2, index) != 0 ? w[s] : -INFINITY;
        else if (mask)
            w[s] += ref_broadcast_at(mask, batch + 2, index);
        if ((REF_INT(c, 0) && s > index[batch]) || (lengths && s >= lengths->data[index[0]]))
            w[s] = -INFINITY;
        largest = fmax(largest, w[s]);
    }
    for (int64_t s = 0; s < positions; s++)
        sum += w[s] = largest == -INFINITY ? 0 : exp(w[s] - largest);
    for (int64_t s = 0; s < positions; s++)
        w[s] = sum > 0 ? w[s] / sum : 0; /* a row that sees nothing gives zeros */
}

/* q[..., L, E], k[..., S, E], v[..., S, Ev], mask; ints causal dropout, floats scale dropout_p */
static void run_attention(ref_call *c)
{
    int64_t shape[KILN_MAX_DIMS], index[KILN_MAX_DIMS];
    int batch = 0;
    for (int k = 0; k < 3; k++) {
        ref_tensor lead = *c->in[k];
        lead.ndim -= 2;
        if (k > 0 && lead.ndim > 0)
            lead.shape[lead.ndim - 1] *= sharing(c);
        ref_broadcast_shape(&batch, shape, &lead);
    }
    const ref_tensor *q = c->in[0], *v = c->in[2];
    int64_t positions = v->shape[v->ndim - 2], width = v->shape[v->ndim - 1];
    shape[batch] = q->shape[q->ndim - 2];
    shape[batch + 1] = width;
    ref_tensor *out = ref_out(c, 0, q->dtype, batch + 2, shape);
    double *w = calloc((size_t)positions + 1, sizeof *w);
    for (int64_t i = 0; i < out->count; i++) {
        ref_unravel(batch + 2, shape, i, index);
        attention_weights(c, batch, index, w, positions);
        shared_heads(c, batch, index, index);
        out->size[i] = 0;
        for (int64_t s = 0; s < positions; s++) {
            double term = w[s] * row_of(v, batch, index, s)[i % width];
            out->data[i] += term;
            out->size[i] += fabs(term);
        }
    }
    free(w);
}

/* Scores of one query of one head (of `heads`): scale·q·k, those a causal mask hides minus infinity. Operands `first`
 * and the next, if there, are a mask of the scores' shape and lengths. */
static void plain_scores(const ref_call *c, int first, int64_t head, int64_t i, double *scores)
{
    const ref_tensor *q = c->in[0], *k = c->in[1], *mask = operand(c, first), *lengths = operand(c, first + 1);
    int n = q->ndim;
    int64_t l = q->shape[n - 2], s = k->shape[n - 2], e = q->shape[n - 1];
    for (int64_t j = 0; j < s; j++) {
        scores[j] = 0;
        for (int64_t d = 0; d < e; d++)
            scores[j] += REF_FLOAT(c, 0) * q->data[(head * l + i) * e + d] * k->data[(head * s + j) * e + d];
        double m = mask ? mask->data[(head * l + i) * s + j] : 0;
        scores[j] += mask && mask->dtype != KILN_BOOL ? m : 0;
        if ((REF_INT(c, 0) && j > i) || (mask && mask->dtype == KILN_BOOL && m == 0) ||
            (lengths && j >= lengths->data[head]))
            scores[j] = -INFINITY;
    }
}

/* The row of a result that belongs to row `row` of an operand with `rows` of them a head: results lie with the rows
 * behind the first batch dim. */
static int64_t laid_row(const ref_tensor *like, int64_t rows, int64_t row)
{
    int64_t inner = 1, head = row / rows;
    for (int d = 1; d < like->ndim - 2; d++)
        inner *= like->shape[d];
    return (head / inner * rows + row % rows) * inner + head % inner;
}

static ref_tensor *laid_out(ref_call *c, int i, const ref_tensor *like, int64_t rows, int64_t width)
{
    int n = like->ndim;
    int64_t shape[KILN_MAX_DIMS];
    memcpy(shape, like->shape, sizeof shape);
    for (int d = n - 2; d > 1; d--)
        shape[d] = like->shape[d - 1];
    shape[n < 4 ? n - 2 : 1] = rows;
    shape[n - 1] = width;
    return ref_out(c, i, like->dtype, n, shape);
}

/* q, k, v with the same batch dims -> y and the logarithm of Σ exp(scores) */
static void run_plain_attention(ref_call *c)
{
    const ref_tensor *q = c->in[0], *v = c->in[2];
    int n = q->ndim;
    int64_t shape[KILN_MAX_DIMS], l = q->shape[n - 2], s = v->shape[n - 2], ev = v->shape[n - 1];
    memcpy(shape, q->shape, sizeof shape);
    ref_tensor *y = laid_out(c, 0, q, l, ev), *lse = ref_out(c, 1, ref_wide(q->dtype), n - 1, shape);
    double *w = calloc((size_t)s + 1, sizeof *w);
    for (int64_t row = 0; row < lse->count; row++) {
        double sum = 0, largest = 0;
        plain_scores(c, 3, row / l, row % l, w);
        for (int64_t j = 0; j < s; j++) {
            sum += exp(w[j]);
            largest = isfinite(w[j]) ? fmax(largest, fabs(w[j])) : largest;
        }
        lse->data[row] = sum > 0 ? log(sum) : INFINITY; /* which makes all weights 0 */
        sum = sum > 0 ? sum : 1;
        lse->size[row] = fmax(largest, 1);
        for (int64_t d = 0; d < ev; d++) {
            int64_t to = laid_row(q, l, row) * ev + d;
            y->size[to] = 0;
            for (int64_t j = 0; j < s; j++) {
                double term = exp(w[j]) / sum * v->data[(row / l * s + j) * ev + d];
                y->data[to] += term;
                y->size[to] += fabs(term) * fmax(largest, 1);
            }
        }
    }
    free(w);
}

/* One term of a gradient: a sum and the magnitude of what it was summed from. */
static void add_term(ref_tensor *t, int64_t at, double term, double size)
{
    t->data[at] += term;
    t->size[at] += size;
}

/* q, k, v, y, lse, gy, glse -> the gradients of q, k, v */
static void run_attention_grad(ref_call *c)
{
    const ref_tensor *q = c->in[0], *k = c->in[1], *v = c->in[2], *y = c->in[3], *lse = c->in[4], *gy = c->in[5];
    const ref_tensor *glse = c->nin > 6 ? c->in[6] : NULL;
    int n = q->ndim;
    int64_t l = q->shape[n - 2], s = k->shape[n - 2], e = q->shape[n - 1], ev = v->shape[n - 1];
    ref_tensor *g[3];
    for (int i = 0; i < 3; i++) {
        const ref_tensor *t = c->in[i];
        g[i] = laid_out(c, i, t, t->shape[n - 2], t->shape[n - 1]);
        for (int64_t j = 0; j < g[i]->count; j++)
            g[i]->size[j] = 0;
    }
    double *w = calloc((size_t)s + 1, sizeof *w);
    for (int64_t row = 0; row < lse->count; row++) {
        double along = glse ? -glse->data[row] : 0, along_size = fabs(along);
        int64_t query = laid_row(q, l, row);
        const double *up = gy->data + query * ev;
        for (int64_t d = 0; d < ev; d++) {
            along += y->data[query * ev + d] * up[d];
            along_size += fabs(y->data[query * ev + d] * up[d]);
        }
        plain_scores(c, 7, row / l, row % l, w);
        for (int64_t j = 0; j < s; j++) {
            int64_t key = row / l * s + j, to = laid_row(k, s, key);
            double p = exp(w[j] - lse->data[row]), gp = 0, size = along_size,
                   wide = isfinite(w[j]) ? 1 + fabs(w[j]) : 1;
            for (int64_t d = 0; d < ev; d++) {
                gp += up[d] * v->data[key * ev + d];
                size += fabs(up[d] * v->data[key * ev + d]);
                add_term(g[2], to * ev + d, p * up[d], fabs(p * up[d]) * wide);
            }
            double gs = REF_FLOAT(c, 0) * p * (gp - along);
            size *= fabs(REF_FLOAT(c, 0)) * p * wide;
            for (int64_t d = 0; d < e; d++) {
                add_term(g[0], query * e + d, gs * k->data[key * e + d], size * fabs(k->data[key * e + d]));
                add_term(g[1], to * e + d, gs * q->data[row * e + d], size * fabs(q->data[row * e + d]));
            }
        }
    }
    free(w);
}

/* x, weight, bias; the integer is the number of dims of a row -> y, mean, rstd (these in f32 where x is half) */
static void run_layer_norm_rows(ref_call *c)
{
    const ref_tensor *w = operand(c, 1), *b = operand(c, 2);
    run_normalize_rows(c);
    ref_tensor *y = &c->out[0];
    if (y->dtype == KILN_F16 || y->dtype == KILN_BF16)
        c->out[1].dtype = c->out[2].dtype = KILN_F32;
    int64_t row = c->out[1].count ? y->count / c->out[1].count : 1;
    for (int64_t i = 0; i < y->count; i++) {
        double scale = w ? w->data[i % row] : 1, shift = b ? b->data[i % row] : 0;
        y->data[i] = y->data[i] * scale + shift;
        y->size[i] = y->size[i] * fabs(scale) + fabs(shift);
    }
}

/* x, mean, rstd, gy, weight -> the gradients of x, weight, bias */
static void run_layer_norm_rows_grad(ref_call *c)
{
    const ref_tensor *x = c->in[0], *mean = c->in[1], *rstd = c->in[2], *gy = c->in[3], *w = operand(c, 4);
    int n = (int)REF_INT(c, 0), lead = x->ndim - n;
    int64_t row = ref_count(n, x->shape + lead), rows = ref_count(lead, x->shape);
    ref_tensor *gx = ref_out_like(c, 0, x), *gw = ref_out(c, 1, x->dtype, n, x->shape + lead);
    ref_tensor *gb = ref_out(c, 2, x->dtype, n, x->shape + lead);
    for (int64_t i = 0; i < row; i++)
        gw->size[i] = gb->size[i] = 0;
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0, along = 0, size = 0, along_size = 0, s = rstd->data[r];
        for (int64_t i = 0; i < row; i++) {
            double g = gy->data[r * row + i], z = (x->data[r * row + i] - mean->data[r]) * s;
            double z_size = (fabs(x->data[r * row + i]) + fabs(mean->data[r])) * fabs(s), u = w ? g * w->data[i] : g;
            sum += u / (double)row;
            along += u * z / (double)row;
            size += fabs(u) / (double)row;
            along_size += fabs(u) * z_size / (double)row;
            gw->data[i] += g * z;
            gw->size[i] += fabs(g) * z_size;
            gb->data[i] += g;
            gb->size[i] += fabs(g);
        }
        for (int64_t i = 0; i < row; i++) {
            double u = gy->data[r * row + i] * (w ? w->data[i] : 1), z = (x->data[r * row + i] - mean->data[r]) * s;
            double z_size = (fabs(x->data[r * row + i]) + fabs(mean->data[r])) * fabs(s);
            gx->data[r * row + i] = s * (u - (is_plain(c) ? 0 : sum) - z * along);
            gx->size[r * row + i] = fabs(s) * (fabs(u) + size + z_size * along_size);
        }
    }
}

/* x, cos, sin; the integer says whether it turns backwards */
static void run_rotary(ref_call *c)
{
    const ref_tensor *x = c->in[0], *cosines = c->in[1], *sines = c->in[2];
    int64_t width = x->shape[x->ndim - 1], half = width / 2, length = x->shape[x->ndim - 2];
    ref_tensor *y = ref_out_like(c, 0, x);
    for (int64_t i = 0; i < y->count; i++) {
        int64_t row = i / width, column = i % width, angle = row % length * half + column % half;
        bool first = column < half;
        double other = x->data[first ? i + half : i - half], sine = sines->data[angle];
        if (first != (REF_INT(c, 0) != 0))
            sine = -sine;
        y->data[i] = x->data[i] * cosines->data[angle] + other * sine;
        y->size[i] = fabs(x->data[i] * cosines->data[angle]) + fabs(other * sine);
    }
}

const ref_entry ref_entries_norm[] = {
    {"softmax", run_softmax, 2},
    {"log_softmax", run_log_softmax, 2},
    {"normalize_rows", run_normalize_rows, 2},
    {"layer_norm", run_layer_norm, 2},
    {"layer_norm_rows", run_layer_norm_rows, 2},
    {"layer_norm_rows_grad", run_layer_norm_rows_grad, 2},
    {"group_norm", run_group_norm, 2},
    {"rms_norm", run_rms_norm, 2},
    {"batch_norm", run_batch_norm, 4},
    {"embedding", run_embedding, 0},
    {"scaled_dot_product_attention", run_attention, 8},
    {"attention", run_plain_attention, 4},
    {"attention_grad", run_attention_grad, 4},
    {"attention_masked", run_plain_attention, 4},
    {"attention_masked_grad", run_attention_grad, 4},
    {"rotary", run_rotary, 0},
    {NULL, NULL, 0},
};
