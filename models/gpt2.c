/* GPT-2 with the names and layouts of the published weights: wte, wpe, h.0.ln_1, h.0.attn.c_attn (whose weights are
 * [in, out]), …, ln_f. The head is the token embedding. The default is the model of 124 million parameters. */
#include <math.h>
#include <string.h>
#include "decoder.h"
#include "parts.h"

/* ---- A linear layer with its weight the other way round: x·weight + bias ---- */

typedef struct projection {
    kiln_tensor *weight, *bias; /* [in, out], [out] */
} projection;

static kiln_tensor *projection_forward(kiln_module *self, kiln_tensor *x, void *context)
{
    (void)self;
    const projection *p = context;
    kiln_tensor *weight = p->weight;
    if (kiln_autocast_dtype() != KILN_F32) /* in the order it lies in; behind the transpose it would be read across */
        weight = kiln_cast(weight, kiln_autocast_dtype());
    return kiln_linear(x, kiln_transpose(weight, 0, 1), p->bias);
}

static kiln_module *make_projection(int64_t in, int64_t out, double std)
{
    projection *p;
    kiln_module *m = model_new("Conv1D", projection_forward, sizeof *p, &p);
    if (!m)
        return NULL;
    p->weight = model_normal_parameter(m, "weight", KILN_SHAPE(in, out), std);
    p->bias = kiln_module_add_parameter(m, "bias", kiln_keep(kiln_zeros(KILN_SHAPE(out), KILN_F32)));
    return m;
}

/* ---- A block ---- */

typedef struct block {
    kiln_module *ln_1, *c_attn, *attn_proj, *ln_2, *c_fc, *mlp_proj, *drop;
    int64_t heads;
} block;

/* The tokens of qkv [N, T, 3·width] are a whole text, or what comes next in a decoder's; `layer` counts blocks. */
static kiln_tensor *attend(kiln_tensor *qkv, int64_t heads, model_decoder *d, int layer)
{
    kiln_tensor *part[3];
    if (!d)
        return model_self_attention(qkv, heads, true);
    model_split_thirds(qkv, heads, part);
    return model_join_heads(model_decoder_attend(d, layer, part[0], part[1], part[2]));
}

static kiln_tensor *run_block(const block *b, kiln_tensor *x, model_decoder *d, int layer)
{
    kiln_tensor *qkv = kiln_forward(b->c_attn, kiln_forward(b->ln_1, x));
    x = kiln_add(x, kiln_forward(b->drop, kiln_forward(b->attn_proj, attend(qkv, b->heads, d, layer))));
    kiln_tensor *h = kiln_gelu_tanh(kiln_forward(b->c_fc, kiln_forward(b->ln_2, x)));
    return kiln_add(x, kiln_forward(b->drop, kiln_forward(b->mlp_proj, h)));
}

static kiln_tensor *block_forward(kiln_module *self, kiln_tensor *x, void *context)
{
    (void)self;
    return run_block(context, x, NULL, 0);
}

static kiln_module *make_block(int64_t width, int64_t heads, int64_t layers, double dropout)
{
    block *b;
    kiln_module *m = model_new("Block", block_forward, sizeof *b, &b);
    if (!m)
        return NULL;
    double out_std = 0.02 / sqrt(2.0 * (double)layers); /* what is added to the stream grows with depth otherwise */
    b->heads = heads;
    b->ln_1 = kiln_module_add(m, "ln_1", kiln_nn_layer_norm(width));
    kiln_module *attn = model_group(m, "attn", "Attention");
    b->c_attn = kiln_module_add(attn, "c_attn", make_projection(width, 3 * width, 0.02));
    b->attn_proj = kiln_module_add(attn, "c_proj", make_projection(width, width, out_std));
    b->ln_2 = kiln_module_add(m, "ln_2", kiln_nn_layer_norm(width));
    kiln_module *mlp = model_group(m, "mlp", "MLP");
    b->c_fc = kiln_module_add(mlp, "c_fc", make_projection(width, 4 * width, 0.02));
    b->mlp_proj = kiln_module_add(mlp, "c_proj", make_projection(4 * width, width, out_std));
    b->drop = kiln_module_add(m, "drop", dropout > 0 ? kiln_nn_dropout(dropout) : kiln_nn_identity());
    return m;
}

/* ---- The network ---- */

typedef struct gpt2 {
    kiln_module *wte, *wpe, *h, *ln_f;
    kiln_tensor *tokens, *places; /* the weights of wte (embedding and head) and wpe */
} gpt2;

static kiln_tensor *gpt2_forward(kiln_module *self, kiln_tensor *x, void *context)
{
    (void)self;
    const gpt2 *g = context;
    kiln_tensor *places = kiln_slice(g->places, 0, 0, kiln_size(x, 1), 1);
    x = kiln_add(kiln_forward(g->wte, x), places);
    return kiln_linear(kiln_forward(g->ln_f, kiln_forward(g->h, x)), g->tokens, NULL);
}

kiln_module *model_gpt2(model_options o)
{
    gpt2 *g;
    kiln_module *m = model_new("GPT2", gpt2_forward, sizeof *g, &g);
    if (!m)
        return NULL;
    int64_t width = model_or(o.embed, 768), layers = model_or(o.layers, 12), heads = model_or(o.heads, 12);
    g->wte = kiln_module_add(m, "wte", kiln_nn_embedding(model_or(o.vocabulary, 50257), width));
    g->wpe = kiln_module_add(m, "wpe", kiln_nn_embedding(model_or(o.context, 1024), width));
    g->tokens = kiln_init_normal(kiln_module_tensor(g->wte, "weight"), 0, 0.02);
    g->places = kiln_init_normal(kiln_module_tensor(g->wpe, "weight"), 0, 0.01);
    g->h = kiln_module_add(m, "h", kiln_nn_sequence(0, NULL));
    for (int64_t i = 0; i < layers; i++)
        model_add_numbered(g->h, i, make_block(width, heads, layers, o.dropout));
    g->ln_f = kiln_module_add(m, "ln_f", kiln_nn_layer_norm(width));
    return model_finish(m);
}

/* ---- Token by token ---- */

static bool is_gpt2(const kiln_module *m)
{
    return !strcmp(kiln_module_kind(m), "GPT2");
}

static int64_t gpt2_context(const kiln_module *m)
{
    const gpt2 *g = kiln_module_context(m);
    return kiln_size(g->places, 0);
}

static kiln_tensor *gpt2_append(model_decoder *d, kiln_tensor *tokens)
{
    const gpt2 *g = kiln_module_context(d->module);
    int64_t length = kiln_size(tokens, 1);
    kiln_tensor *places = kiln_slice(g->places, 0, d->position, d->position + length, 1);
    kiln_tensor *x = kiln_add(kiln_forward(g->wte, tokens), places);
    for (int i = 0; i < kiln_module_children(g->h); i++)
        x = run_block(kiln_module_context(kiln_module_child_at(g->h, i, NULL)), x, d, i);
    return kiln_linear(kiln_forward(g->ln_f, kiln_select(x, 1, length - 1)), g->tokens, NULL);
}

const model_decoding model_gpt2_decoding = {is_gpt2, gpt2_context, gpt2_append};
