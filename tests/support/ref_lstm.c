/* References of the LSTM and its cells. */
#include <math.h>
#include <stdlib.h>
#include "support/numbers.h"
#include "support/ref.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* One step of one row: from the input's part of the gates (4H) and c to the gates, c and h. */
static void step(int64_t width, double *sums, const double *h_before, const double *w, double *c, double *h)
{
    for (int64_t k = 0; k < 4 * width; k++) {
        for (int64_t j = 0; j < width; j++)
            sums[k] += w[k * width + j] * h_before[j];
        sums[k] = k / width == 2 ? tanh(sums[k]) : sigmoid(sums[k]);
    }
    for (int64_t j = 0; j < width; j++) {
        c[j] = sums[width + j] * c[j] + sums[j] * sums[2 * width + j];
        h[j] = sums[3 * width + j] * tanh(c[j]);
    }
}

static void give_size(ref_tensor *t, double size)
{
    for (int64_t i = 0; i < t->count; i++)
        t->size[i] = size;
}

/* Of 16 bits: where a state is all but in the middle between two numbers, computing it in f32 may round it to the other
 * one, and later steps start from there. `largest`: of the numbers. What is kept in f32 is off by as much. */
static void give_size_of(ref_tensor *t, kiln_dtype dtype, double size, double largest)
{
    enum { ROUNDINGS = 4 };
    bool half = ref_wide(dtype) != dtype;
    give_size(t, !half ? size : t->dtype == dtype ? largest : ROUNDINGS * number_rounding(largest, dtype) / 2e-6);
}

static double *copy_of(const double *from, int64_t n)
{
    double *to = calloc((size_t)n + 1, sizeof *to);
    for (int64_t i = 0; i < n; i++)
        to[i] = from[i];
    return to;
}

/* In 16 bits each step starts from the h that was stored, and each step back from the gradient that was. */
static void store_halves(kiln_dtype dtype, double *data, int64_t n)
{
    for (int64_t i = 0; ref_wide(dtype) != dtype && i < n; i++)
        data[i] = number_round(data[i], dtype);
}

/* x [T, N, 4H], h0, c0, w_hh -> h, c, gates. All results lie between -1 and 1 or grow with the steps, as c does. */
static void run_lstm_cells(ref_call *c)
{
    const ref_tensor *x = c->in[0], *w = c->in[3];
    int64_t steps = x->shape[0], n = x->shape[1], width = x->shape[2] / 4, state = n * width;
    int64_t shape[3] = {steps + 1, n, width};
    ref_tensor *h = ref_out(c, 0, x->dtype, 3, shape), *cell = ref_out(c, 1, ref_wide(x->dtype), 3, shape);
    ref_tensor *gates = ref_out_like(c, 2, x);
    for (int64_t i = 0; i < state; i++) {
        h->data[i] = c->in[1]->data[i];
        cell->data[i] = c->in[2]->data[i];
    }
    for (int64_t i = 0; i < gates->count; i++)
        gates->data[i] = x->data[i];
    for (int64_t t = 0; t < steps; t++)
        for (int64_t r = 0; r < n; r++) {
            int64_t at = t * state + r * width;
            for (int64_t j = 0; j < width; j++)
                cell->data[at + state + j] = cell->data[at + j];
            step(width, gates->data + 4 * at, h->data + at, w->data, cell->data + at + state, h->data + at + state);
            store_halves(x->dtype, h->data + at + state, width);
        }
    double size = (double)(steps + width) + 4; /* sums of that many terms, and errors handed on from step to step */
    give_size_of(h, x->dtype, size, 1);
    give_size_of(cell, x->dtype, size, 1);
    give_size_of(gates, x->dtype, size, 1);
}

static double from(const ref_call *c, int k, int64_t at)
{
    return k < c->nin && c->in[k] ? c->in[k]->data[at] : 0;
}

/* gates, c, w_hh, gh, gc, ggates -> the gradients of x, h0, c0 */
static void run_lstm_cells_grad(ref_call *c)
{
    const ref_tensor *gates = c->in[0], *cell = c->in[1], *w = c->in[2];
    int64_t steps = gates->shape[0], n = gates->shape[1], width = gates->shape[2] / 4, state = n * width;
    ref_tensor *gx = ref_out_like(c, 0, gates), *gh = ref_out(c, 1, gates->dtype, 2, (int64_t[]){n, width});
    ref_tensor *gc = ref_out(c, 2, ref_wide(gates->dtype), 2, (int64_t[]){n, width});
    double largest = 1;
    for (int64_t t = steps; t >= 0; t--)
        for (int64_t r = 0; r < n; r++) {
            double *dh = gh->data + r * width, *dc = gc->data + r * width;
            for (int64_t j = 0; j < width; j++) {
                dh[j] = from(c, 3, t * state + r * width + j);
                dc[j] += from(c, 4, t * state + r * width + j);
                for (int64_t k = 0; t < steps && k < 4 * width; k++)
                    dh[j] += gx->data[4 * (t * state + r * width) + k] * w->data[k * width + j];
                if (isfinite(dh[j]) && isfinite(dc[j]))
                    largest = fmax(largest, fmax(fabs(dh[j]), fabs(dc[j])));
            }
            for (int64_t j = 0; t > 0 && j < width; j++) {
                int64_t before = (t - 1) * state + r * width + j, at = 4 * ((t - 1) * state + r * width) + j;
                const double *g = gates->data + at;
                double a = tanh(cell->data[before + state]), i = g[0], f = g[width], u = g[2 * width], o = g[3 * width];
                dc[j] += dh[j] * o * (1 - a * a);
                gx->data[at] = (dc[j] * u + from(c, 5, at)) * i * (1 - i);
                gx->data[at + width] = (dc[j] * cell->data[before] + from(c, 5, at + width)) * f * (1 - f);
                gx->data[at + 2 * width] = (dc[j] * i + from(c, 5, at + 2 * width)) * (1 - u * u);
                gx->data[at + 3 * width] = (dh[j] * a + from(c, 5, at + 3 * width)) * o * (1 - o);
                dc[j] *= f;
                for (int k = 0; k < 4; k++) {
                    store_halves(gates->dtype, gx->data + at + k * width, 1);
                    if (isfinite(gx->data[at + k * width])) /* f16 does not reach far */
                        largest = fmax(largest, fabs(gx->data[at + k * width]));
                }
            }
        }
    double size = largest * (double)(steps + 4 * width);
    give_size_of(gx, gates->dtype, size, largest);
    give_size_of(gh, gates->dtype, size, largest);
    give_size_of(gc, gates->dtype, size, largest);
}

/* All steps of one row of lstm, to the places of y and c; *h is where it begins, and ends. `twice`: in 16 bits the
 * input's product is rounded before the bias is added, and after it. */
static void lstm_row(const ref_call *c, int64_t r, bool twice, double *h, double *cell, double *y)
{
    const ref_tensor *x = c->in[0], *w_ih = c->in[3], *w_hh = c->in[4];
    int64_t steps = x->shape[0], n = x->shape[1], in = x->shape[2], width = w_hh->shape[1];
    double *sums = calloc((size_t)(4 * width + 1), sizeof *sums);
    for (int64_t t = 0; t < steps; t++) {
        for (int64_t k = 0; k < 4 * width; k++) {
            double bias = from(c, 5, k) + from(c, 6, k);
            store_halves(x->dtype, &bias, 1);
            sums[k] = 0;
            for (int64_t j = 0; j < in; j++)
                sums[k] += w_ih->data[k * in + j] * x->data[(t * n + r) * in + j];
            store_halves(x->dtype, sums + k, twice);
            sums[k] += bias;
        }
        double *next = y + (t * n + r) * width;
        store_halves(x->dtype, sums, 4 * width);
        step(width, sums, h, w_hh->data, cell, next);
        store_halves(x->dtype, next, width);
        for (int64_t j = 0; j < width; j++)
            h[j] = next[j];
    }
    free(sums);
}

/* In 16 bits devices differ in where they round the input's part, and states hand that on, some much larger than it
 * was: what they may be off by grows with how far two right ways of rounding come apart. */
static void add_spread(ref_tensor *t, const double *other, kiln_dtype dtype)
{
    for (int64_t i = 0; ref_wide(dtype) != dtype && i < t->count; i++)
        t->size[i] += fabs(t->data[i] - other[i]) / number_rounding(1, dtype);
}

/* x, h0, c0, w_ih, w_hh, b_ih, b_hh -> y, hn, cn */
static void run_lstm(ref_call *c)
{
    const ref_tensor *x = c->in[0];
    kiln_dtype dtype = x->dtype;
    int64_t steps = x->shape[0], n = x->shape[1], in = x->shape[2], width = c->in[4]->shape[1];
    ref_tensor *y = ref_out(c, 0, dtype, 3, (int64_t[]){steps, n, width});
    ref_tensor *hn = ref_out(c, 1, dtype, 2, (int64_t[]){n, width}), *cn = ref_out(c, 2, dtype, 2, hn->shape);
    double *other_y = copy_of(y->data, y->count), *other_h = copy_of(c->in[1]->data, n * width);
    double *other_c = copy_of(c->in[2]->data, n * width);
    for (int64_t i = 0; i < n * width; i++) {
        hn->data[i] = other_h[i];
        cn->data[i] = other_c[i];
    }
    for (int64_t r = 0; r < n; r++) {
        lstm_row(c, r, false, hn->data + r * width, cn->data + r * width, y->data);
        lstm_row(c, r, true, other_h + r * width, other_c + r * width, other_y);
    }
    give_size_of(y, dtype, (double)(steps + width + in) + 4, 1);
    give_size_of(hn, dtype, (double)(steps + width + in) + 4, 1);
    give_size_of(cn, dtype, (double)(steps + width + in) + 4, 1);
    add_spread(y, other_y, dtype);
    add_spread(hn, other_h, dtype);
    add_spread(cn, other_c, dtype);
    free(other_y);
    free(other_h);
    free(other_c);
}

const ref_entry ref_entries_lstm[] = {
    {"lstm_cells", run_lstm_cells, 2},
    {"lstm_cells_grad", run_lstm_cells_grad, 2},
    {"lstm", run_lstm, 2},
    {NULL, NULL, 0},
};
