/* MultiheadAttention: one product gives queries, keys and values of all heads. */
#include "core/sized.h"
#include "nn/module.h"
#include "ops/op.h"

typedef struct attention {
    kiln_module base;
    kiln_tensor *in_weight, *in_bias; /* [3·width, width], [3·width] or NULL */
    kiln_module *out;
    int64_t width, heads;
    double dropout;
    bool causal;
} attention;

/* [N, L, width] to [N, heads, L, width / heads] */
static kiln_tensor *split_heads(const attention *a, kiln_tensor *x)
{
    if (!x)
        return NULL;
    x = kiln_reshape(x, KILN_SHAPE(x->shape[0], x->shape[1], a->heads, a->width / a->heads));
    return kiln_transpose(x, 1, 2);
}

/* The rows of in_proj for `count` of query (0), key (1), value (2) applied to x; out receives their heads. */
static bool project(const attention *a, kiln_tensor *x, int first, int count, kiln_tensor **out)
{
    kiln_tensor *weight = a->in_weight, *bias = a->in_bias;
    int64_t from = first * a->width, to = (first + count) * a->width;
    if (count < 3) {
        weight = kiln_slice(weight, 0, from, to, 1);
        bias = bias ? kiln_slice(bias, 0, from, to, 1) : NULL;
    }
    kiln_tensor *y = kiln_linear(x, weight, bias);
    for (int i = 0; i < count; i++) {
        kiln_tensor *part = count > 1 ? kiln_slice(y, 2, i * a->width, (i + 1) * a->width, 1) : y;
        if (!(out[i] = split_heads(a, part)))
            return false;
    }
    return true;
}

static bool check_operand(const attention *a, const char *what, const kiln_tensor *t)
{
    if (t->ndim == 3 && t->shape[2] == a->width)
        return true;
    return kiln_fail(KILN_E_SHAPE, "attend", "the %s %s is not [N, L, %lld]", what, kiln_shape_text(t->ndim, t->shape),
                     (long long)a->width);
}

static kiln_tensor *attend(const attention *a, kiln_tensor *q, kiln_tensor *k, kiln_tensor *v, kiln_tensor *mask)
{
    kiln_tensor *heads[3];
    bool ok = check_operand(a, "query", q) && check_operand(a, "key", k) && check_operand(a, "value", v);
    if (ok && q == k && k == v)
        ok = project(a, q, 0, 3, heads);
    else if (ok)
        ok = project(a, q, 0, 1, heads) && (k == v ? project(a, k, 1, 2, heads + 1)
                                                   : project(a, k, 1, 1, heads + 1) && project(a, v, 2, 1, heads + 2));
    if (!ok)
        return NULL;
    double dropout = kiln_module_trains(&a->base) ? a->dropout : 0;
    kiln_tensor *y = kiln_scaled_dot_product_attention(heads[0], heads[1], heads[2], mask, dropout, a->causal, 0);
    y = kiln_transpose(y, 1, 2);
    return y ? kiln_forward(a->out, kiln_reshape(y, KILN_SHAPE(y->shape[0], y->shape[1], a->width))) : NULL;
}

static kiln_tensor *attention_forward(kiln_module *m, kiln_tensor *x)
{
    return attend((const attention *)m, x, x, x, NULL);
}

static const kiln_module_class attention_layer = {"MultiheadAttention", sizeof(attention), attention_forward, NULL,
                                                  KILN_SCOPED};

static kiln_tensor *visit(kiln_module *m, kiln_tensor *q, kiln_tensor *k, kiln_tensor *v, kiln_tensor *mask)
{
    kiln_visit visiting = kiln_visit_begin(m, q);
    return kiln_visit_end(m, &visiting, attend((const attention *)m, q, k, v, mask));
}

kiln_tensor *kiln_attend(kiln_module *m, kiln_tensor *query, kiln_tensor *key, kiln_tensor *value, kiln_tensor *mask)
{
    if (!m || !query || !key || !value) {
        if (kiln_ok())
            kiln_fail(KILN_E_ARGUMENT, "attend", "the %s is NULL", m ? "query, key or value" : "module");
        return NULL;
    }
    if (m->layer != &attention_layer)
        return kiln_fail(KILN_E_ARGUMENT, "attend", "the module is a %s, not a MultiheadAttention", m->kind);
    kiln_tensor *y = NULL;
    kiln_inner_scope
        kiln_scope_hand_up(y = visit(m, query, key, value, mask));
    return y;
}

kiln_module *kiln_nn_multihead_attention_(int64_t width, int64_t heads, const kiln_attention_options *options)
{
    static const char kind[] = "MultiheadAttention";
    kiln_attention_options o;
    if (!KILN_TAKE_OPTIONS(kind, o, options) || !kiln_module_at_least(kind, "width", width, 1) ||
        !kiln_module_at_least(kind, "heads", heads, 1))
        return NULL;
    if (width % heads)
        return kiln_fail(KILN_E_ARGUMENT, kind, "a width of %lld does not divide into %lld heads", (long long)width,
                         (long long)heads);
    if (!(o.dropout >= 0 && o.dropout < 1))
        return kiln_fail(KILN_E_ARGUMENT, kind, "dropout is %g; it lies between 0 and 1", o.dropout);
    attention *a = (attention *)kiln_module_make(&attention_layer);
    if (!a)
        return NULL;
    a->width = width;
    a->heads = heads;
    a->dropout = o.dropout;
    a->causal = o.causal;
    bool ok = kiln_module_parameter(&a->base, "in_proj_weight", KILN_SHAPE(3 * width, width), &a->in_weight) &&
              kiln_init_xavier_uniform(a->in_weight, 1);
    if (ok && !o.no_bias)
        ok = kiln_module_parameter(&a->base, "in_proj_bias", KILN_SHAPE(3 * width), &a->in_bias);
    if (ok)
        a->out = kiln_module_add(&a->base, "out_proj", kiln_nn_linear(width, width, .no_bias = o.no_bias));
    ok = ok && a->out && (o.no_bias || kiln_init_constant(kiln_module_tensor(a->out, "bias"), 0));
    return kiln_module_built(&a->base, ok);
}
