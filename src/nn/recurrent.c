/* RNN, GRU and LSTM. Each kind has one function that runs a layer in one direction (`direction_fn`). The LSTM's is an
 * operation with kernels of its own; for the others one product projects the inputs of all times, then a loop over time
 * does the rest. */
#include <math.h>
#include <stdio.h>
#include "core/alloc.h"
#include "kiln/grad.h"
#include "core/sized.h"
#include "nn/module.h"
#include "ops/op.h"

typedef struct weights {                   /* of one layer and direction; gates: 1, GRU 3, LSTM 4 */
    kiln_tensor *input, *hidden;           /* [gates·hidden, in], [gates·hidden, hidden] */
    kiln_tensor *input_bias, *hidden_bias; /* [gates·hidden], or NULL */
} weights;

typedef struct recurrent recurrent;

/* One layer in one direction: x [T, N, in] (or [N, T, in]) to [T, N, hidden], from the state *h, *c [N, hidden] to the
 * one after the last time, which is the first one in `reverse`. *c is the LSTM's alone. NULL with an error. */
typedef kiln_tensor *(*direction_fn)(const recurrent *r, const weights *w, kiln_tensor *x, bool reverse,
                                     kiln_tensor **h, kiln_tensor **c);

struct recurrent {
    kiln_module base;
    direction_fn run;
    int64_t in, hidden, layers;
    int gates, directions;
    int time; /* which dim of x is time: 0, or 1 with batch_first */
    double dropout;
    bool relu;
    weights *weights; /* [layers · directions] */
};

/* ---- One direction ---- */

/* One time: `projected` is the input's part [N, gates·hidden]; changes *h and *c. False with an error. */
typedef bool (*cell_fn)(const recurrent *r, const weights *w, kiln_tensor *projected, kiln_tensor **h, kiln_tensor **c);

static kiln_tensor *gate(const recurrent *r, kiln_tensor *gates, int i)
{
    return kiln_slice(gates, 1, i * r->hidden, (i + 1) * r->hidden, 1);
}

static bool rnn_cell(const recurrent *r, const weights *w, kiln_tensor *projected, kiln_tensor **h, kiln_tensor **c)
{
    (void)c;
    kiln_tensor *sum = kiln_add(projected, kiln_linear(*h, w->hidden, NULL));
    *h = r->relu ? kiln_relu(sum) : kiln_tanh(sum);
    return *h != NULL;
}

/* r = σ(xr + hr), z = σ(xz + hz), n = tanh(xn + r·hn), h = n + z·(h - n) */
static bool gru_cell(const recurrent *r, const weights *w, kiln_tensor *projected, kiln_tensor **h, kiln_tensor **c)
{
    (void)c;
    kiln_tensor *own = kiln_linear(*h, w->hidden, w->hidden_bias);
    kiln_tensor *reset = kiln_sigmoid(kiln_add(gate(r, projected, 0), gate(r, own, 0)));
    kiln_tensor *update = kiln_sigmoid(kiln_add(gate(r, projected, 1), gate(r, own, 1)));
    kiln_tensor *fresh = kiln_tanh(kiln_add(gate(r, projected, 2), kiln_mul(reset, gate(r, own, 2))));
    *h = kiln_add(fresh, kiln_mul(update, kiln_sub(*h, fresh)));
    return *h != NULL;
}

/* parts[i] = x at time i. By halves: the gradient of a slice fills a tensor of its operand's size, so that T slices of
 * the whole would cost T times its size on the way back, halves cost log T times. */
static bool unstack(kiln_tensor *x, int dim, int64_t n, kiln_tensor **parts)
{
    if (!x)
        return false;
    if (n == 1)
        return (parts[0] = kiln_select(x, dim, 0)) != NULL;
    int64_t half = n / 2;
    return unstack(kiln_slice(x, dim, 0, half, 1), dim, half, parts) &&
           unstack(kiln_slice(x, dim, half, n, 1), dim, n - half, parts + half);
}

/* The input's part for all times at once. Both biases are added here where they only ever meet in a sum. */
static kiln_tensor *project(const weights *w, kiln_tensor *x, bool both_biases)
{
    kiln_tensor *bias = w->input_bias;
    if (bias && both_biases && !(bias = kiln_add(bias, w->hidden_bias)))
        return NULL;
    return kiln_linear(x, w->input, bias);
}

static kiln_tensor *loop(const recurrent *r, const weights *w, kiln_tensor *projected, bool reverse, cell_fn cell,
                         kiln_tensor **h, kiln_tensor **c)
{
    int64_t times = projected ? projected->shape[r->time] : 0;
    kiln_tensor **parts = times ? kiln_alloc((size_t)times, 2 * sizeof *parts) : NULL;
    kiln_tensor **outs = parts ? parts + times : NULL, *y = NULL;
    bool ok = parts && unstack(projected, r->time, times, parts);
    for (int64_t i = 0; ok && i < times; i++) {
        int64_t t = reverse ? times - 1 - i : i;
        ok = cell(r, w, parts[t], h, c);
        outs[t] = *h;
    }
    if (ok)
        y = kiln_stack((int)times, outs, r->time);
    kiln_free(parts);
    return y;
}

static kiln_tensor *rnn_direction(const recurrent *r, const weights *w, kiln_tensor *x, bool reverse, kiln_tensor **h,
                                  kiln_tensor **c)
{
    return loop(r, w, project(w, x, true), reverse, rnn_cell, h, c);
}

static kiln_tensor *gru_direction(const recurrent *r, const weights *w, kiln_tensor *x, bool reverse, kiln_tensor **h,
                                  kiln_tensor **c)
{
    return loop(r, w, project(w, x, false), reverse, gru_cell, h, c); /* a gate multiplies the hidden bias */
}

/* An operation of its own runs all times; it wants time first and knows the forward direction only. */
static kiln_tensor *lstm_direction(const recurrent *r, const weights *w, kiln_tensor *x, bool reverse, kiln_tensor **h,
                                   kiln_tensor **c)
{
    x = r->time ? kiln_transpose(x, 0, 1) : x;
    x = reverse ? kiln_flip(x, KILN_DIMS(0)) : x;
    kiln_tensor *y = kiln_lstm(x, *h, *c, w->input, w->hidden, w->input_bias, w->hidden_bias, h, c);
    y = reverse ? kiln_flip(y, KILN_DIMS(0)) : y;
    return r->time ? kiln_transpose(y, 0, 1) : y;
}

/* ---- All layers ---- */

typedef struct states {
    kiln_tensor *h, *c; /* [layers·directions, N, hidden], or NULL: zeros */
} states;

static bool check_state(const recurrent *r, const char *what, const kiln_tensor *s, int64_t batch)
{
    const int64_t want[3] = {r->layers * r->directions, batch, r->hidden};
    if (!s || (s->ndim == 3 && s->shape[0] == want[0] && s->shape[1] == want[1] && s->shape[2] == want[2]))
        return true;
    return kiln_fail(KILN_E_SHAPE, "recur", "%s is %s instead of %s: layers times directions, batch, hidden", what,
                     kiln_shape_text(s->ndim, s->shape), kiln_shape_text(3, want));
}

static bool check_operands(const recurrent *r, const kiln_tensor *x, const states *s)
{
    if (x->ndim != 3 || x->shape[2] != r->in)
        return kiln_fail(KILN_E_SHAPE, "recur", "x %s is not [%s, %lld]", kiln_shape_text(x->ndim, x->shape),
                         r->time ? "N, T" : "T, N", (long long)r->in);
    if (x->shape[r->time] < 1 || x->shape[r->time] > INT32_MAX)
        return kiln_fail(KILN_E_SHAPE, "recur", "x %s has %lld times; there must be at least one",
                         kiln_shape_text(x->ndim, x->shape), (long long)x->shape[r->time]);
    if (s->c && r->gates != 4)
        return kiln_fail(KILN_E_ARGUMENT, "recur", "a state c was given, but only an LSTM has one");
    return check_state(r, "h", s->h, x->shape[1 - r->time]) && check_state(r, "c", s->c, x->shape[1 - r->time]);
}

/* Runs one layer; ends[i] receive the states after it, one a direction. */
static kiln_tensor *run_layer(const recurrent *r, int64_t layer, kiln_tensor *x, kiln_tensor *zeros, const states *from,
                              kiln_tensor **h_ends, kiln_tensor **c_ends)
{
    kiln_tensor *y[2] = {NULL, NULL};
    for (int d = 0; d < r->directions; d++) {
        int64_t i = layer * r->directions + d;
        kiln_tensor *h = from->h ? kiln_select(from->h, 0, i) : zeros,
                    *c = from->c ? kiln_select(from->c, 0, i) : zeros;
        if (!h || !c || !(y[d] = r->run(r, &r->weights[i], x, d == 1, &h, &c)))
            return NULL;
        h_ends[i] = h;
        c_ends[i] = c;
    }
    return r->directions == 2 ? kiln_cat(2, y, 2) : y[0];
}

static kiln_tensor *run_layers(const recurrent *r, kiln_tensor *x, const states *from, kiln_tensor **h_ends,
                               kiln_tensor **c_ends)
{
    kiln_tensor *zeros = NULL;
    kiln_on_device (x->device) {
        zeros = kiln_zeros(KILN_SHAPE(x->shape[1 - r->time], r->hidden), kiln_dtype_of(r->weights[0].hidden));
    }
    bool ok = zeros != NULL;
    for (int64_t layer = 0; ok && layer < r->layers; layer++) {
        if (layer)
            x = kiln_dropout(x, r->dropout, kiln_module_trains(&r->base));
        ok = x && (x = run_layer(r, layer, x, zeros, from, h_ends, c_ends));
    }
    return ok ? x : NULL;
}

/* y, and the states after it in *to where they are wanted. */
static kiln_tensor *recur(const recurrent *r, kiln_tensor *x, states from, kiln_tensor **h_out, kiln_tensor **c_out)
{
    int n = (int)(r->layers * r->directions);
    if (!check_operands(r, x, &from))
        return NULL;
    kiln_tensor **ends = kiln_alloc(2 * (size_t)n, sizeof *ends), *y = NULL;
    if (ends)
        y = run_layers(r, x, &from, ends, ends + n);
    if (y && h_out && !(*h_out = kiln_stack(n, ends, 0)))
        y = NULL;
    if (y && c_out && r->gates == 4 && !(*c_out = kiln_stack(n, ends + n, 0)))
        y = NULL;
    kiln_free(ends);
    return y;
}

static kiln_tensor *recurrent_forward(kiln_module *m, kiln_tensor *x)
{
    return recur((const recurrent *)m, x, (states){0}, NULL, NULL);
}

static void recurrent_free(kiln_module *m)
{
    kiln_free(((recurrent *)m)->weights);
}

enum { RNN, GRU, LSTM };
static const kiln_module_class layers[] = {
    {"RNN", sizeof(recurrent), recurrent_forward, recurrent_free, true},
    {"GRU", sizeof(recurrent), recurrent_forward, recurrent_free, true},
    {"LSTM", sizeof(recurrent), recurrent_forward, recurrent_free, true},
};

static kiln_tensor *visit(kiln_module *m, kiln_tensor *x, states from, kiln_tensor **h_out, kiln_tensor **c_out)
{
    kiln_visit v = kiln_visit_begin(m, x);
    return kiln_visit_end(m, &v, recur((const recurrent *)m, x, from, h_out, c_out));
}

kiln_tensor *kiln_recur(kiln_module *m, kiln_tensor *x, kiln_tensor *h, kiln_tensor *c, kiln_tensor **h_out,
                        kiln_tensor **c_out)
{
    kiln_tensor *ends[2] = {NULL, NULL}, *y = NULL;
    if (h_out)
        *h_out = NULL;
    if (c_out)
        *c_out = NULL;
    if (!m || !x) {
        if (kiln_ok())
            kiln_fail(KILN_E_ARGUMENT, "recur", m ? "x is NULL" : "the module is NULL");
        return NULL;
    }
    if (m->layer->forward != recurrent_forward)
        return kiln_fail(KILN_E_ARGUMENT, "recur", "the module is a %s, not an RNN, GRU or LSTM", m->kind);
    kiln_inner_scope {
        kiln_scope_hand_up(y = visit(m, x, (states){h, c}, h_out ? &ends[0] : NULL, c_out ? &ends[1] : NULL));
        for (int i = 0; y && i < 2; i++)
            kiln_scope_hand_up(ends[i]);
    }
    if (y && h_out)
        *h_out = ends[0];
    if (y && c_out)
        *c_out = ends[1];
    return y;
}

/* ---- Making them ---- */

static bool add_weight(recurrent *r, const char *what, int64_t layer, int direction, int ndim, const int64_t *shape,
                       kiln_tensor **slot)
{
    char name[64];
    double bound = 1 / sqrt((double)r->hidden);
    snprintf(name, sizeof name, "%s_l%lld%s", what, (long long)layer, direction ? "_reverse" : "");
    return kiln_module_parameter(&r->base, name, ndim, shape, slot) && kiln_init_uniform(*slot, -bound, bound);
}

static bool add_weights(recurrent *r, bool bias)
{
    int64_t rows = r->gates * r->hidden;
    for (int64_t layer = 0; layer < r->layers; layer++)
        for (int d = 0; d < r->directions; d++) {
            weights *w = &r->weights[layer * r->directions + d];
            int64_t in = layer ? r->directions * r->hidden : r->in;
            if (!add_weight(r, "weight_ih", layer, d, KILN_SHAPE(rows, in), &w->input) ||
                !add_weight(r, "weight_hh", layer, d, KILN_SHAPE(rows, r->hidden), &w->hidden))
                return false;
            if (bias && (!add_weight(r, "bias_ih", layer, d, KILN_SHAPE(rows), &w->input_bias) ||
                         !add_weight(r, "bias_hh", layer, d, KILN_SHAPE(rows), &w->hidden_bias)))
                return false;
        }
    return true;
}

static bool check(const char *kind, int64_t in, int64_t hidden, const kiln_recurrent_options *o)
{
    enum { MOST_LAYERS = 1024 };
    if (!kiln_module_at_least(kind, "in", in, 1) || !kiln_module_at_least(kind, "hidden", hidden, 1) ||
        !kiln_module_at_least(kind, "layers", o->layers, 0))
        return false;
    if (o->layers > MOST_LAYERS)
        return kiln_fail(KILN_E_ARGUMENT, kind, "%lld layers; there are at most %d", (long long)o->layers, MOST_LAYERS);
    if (!(o->dropout >= 0 && o->dropout <= 1))
        return kiln_fail(KILN_E_ARGUMENT, kind, "dropout is %g; a probability lies between 0 and 1", o->dropout);
    return true;
}

static kiln_module *make(int kind, int64_t in, int64_t hidden, const kiln_recurrent_options *options)
{
    static const direction_fn runs[] = {rnn_direction, gru_direction, lstm_direction};
    static const int gates[] = {1, 3, 4};
    kiln_recurrent_options o;
    if (!KILN_TAKE_OPTIONS(layers[kind].kind, o, options) || !check(layers[kind].kind, in, hidden, &o))
        return NULL;
    if (kind != RNN && o.relu)
        return kiln_fail(KILN_E_ARGUMENT, layers[kind].kind, "relu is an option of kiln_nn_rnn");
    recurrent *r = (recurrent *)kiln_module_make(&layers[kind]);
    if (!r)
        return NULL;
    r->run = runs[kind];
    r->in = in;
    r->hidden = hidden;
    r->layers = o.layers ? o.layers : 1;
    r->gates = gates[kind];
    r->directions = o.bidirectional ? 2 : 1;
    r->time = o.batch_first ? 1 : 0;
    r->dropout = o.dropout;
    r->relu = o.relu;
    r->weights = kiln_alloc_zero((size_t)(r->layers * r->directions), sizeof *r->weights);
    return kiln_module_built(&r->base, r->weights && add_weights(r, !o.no_bias));
}

kiln_module *kiln_nn_rnn_(int64_t in, int64_t hidden, const kiln_recurrent_options *options)
{
    return make(RNN, in, hidden, options);
}

kiln_module *kiln_nn_gru_(int64_t in, int64_t hidden, const kiln_recurrent_options *options)
{
    return make(GRU, in, hidden, options);
}

kiln_module *kiln_nn_lstm_(int64_t in, int64_t hidden, const kiln_recurrent_options *options)
{
    return make(LSTM, in, hidden, options);
}
