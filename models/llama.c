/* Llama with the names of Hugging Face's LlamaForCausalLM: model.embed_tokens, model.layers.0.self_attn.q_proj, …,
 * model.norm, lm_head. RMS norms, rotary positions, SwiGLU; several heads of queries may share one of keys and values
 * (kv_heads). */
#include <math.h>
#include "parts.h"

static const double epsilon = 1e-5, theta = 10000;

/* A linear layer without bias. */
static kiln_module *add_linear(kiln_module *m, const char *name, int64_t in, int64_t out, double std)
{
    kiln_module *linear = kiln_module_add(m, name, kiln_nn_linear(in, out, .no_bias = true));
    kiln_init_normal(kiln_module_tensor(linear, "weight"), 0, std);
    return linear;
}

static kiln_module *add_norm(kiln_module *m, const char *name, int64_t width)
{
    return kiln_module_add(m, name, kiln_nn_rms_norm(width, .eps = epsilon));
}

/* ---- A block ---- */

typedef struct block {
    kiln_module *q, *k, *v, *o, *gate, *up, *down, *attention_norm, *mlp_norm;
    int64_t heads, kv_heads, width; /* width of a head */
} block;

/* Position p turns pair i of a head by p·theta^(-2i/width): cos and sin of it, [length, width/2]. Each block writes
 * these, and the plan of a step computes them once. */
static void rotary_tables(const kiln_tensor *x, int64_t width, kiln_tensor *table[2])
{
    kiln_dtype dtype = kiln_dtype_of(x) == KILN_F64 ? KILN_F64 : KILN_F32;
    int64_t length = kiln_size(x, 1);
    kiln_no_grad
        kiln_on_device (kiln_device_of(x)) {
            kiln_tensor *pairs = kiln_arange(0, (double)width, 2, dtype);
            kiln_tensor *turns = kiln_exp(kiln_mul_scalar(pairs, -log(theta) / (double)width));
            kiln_tensor *angles = kiln_mul(kiln_unsqueeze(kiln_arange(0, (double)length, 1, dtype), 1), turns);
            table[0] = kiln_cos(angles);
            table[1] = kiln_sin(angles);
        }
}

static kiln_tensor *attend(const block *b, kiln_tensor *x)
{
    kiln_tensor *table[2] = {NULL};
    rotary_tables(x, b->width, table);
    kiln_tensor *q = kiln_rotary(model_split_heads(kiln_forward(b->q, x), b->heads), table[0], table[1]);
    kiln_tensor *k = kiln_rotary(model_split_heads(kiln_forward(b->k, x), b->kv_heads), table[0], table[1]);
    kiln_tensor *v = model_split_heads(kiln_forward(b->v, x), b->kv_heads);
    return kiln_forward(b->o, model_join_heads(kiln_scaled_dot_product_attention(q, k, v, NULL, 0, true, 0)));
}

static kiln_tensor *block_forward(kiln_module *self, kiln_tensor *x, void *context)
{
    (void)self;
    const block *b = context;
    x = kiln_add(x, attend(b, kiln_forward(b->attention_norm, x)));
    kiln_tensor *y = kiln_forward(b->mlp_norm, x);
    y = kiln_mul(kiln_silu(kiln_forward(b->gate, y)), kiln_forward(b->up, y));
    return kiln_add(x, kiln_forward(b->down, y));
}

/* SwiGLU has three matrices where others have two, so it is two thirds as wide; in whole multiples of 256. */
static int64_t default_hidden(int64_t embed)
{
    return (embed * 8 / 3 + 255) / 256 * 256;
}

static kiln_module *make_block(model_options o, int64_t embed, int64_t layers)
{
    block *b;
    kiln_module *m = model_new("LlamaDecoderLayer", block_forward, sizeof *b, &b);
    if (!m)
        return NULL;
    double std = 0.02, out_std = std / sqrt(2.0 * (double)layers);
    int64_t hidden = model_or(o.hidden, default_hidden(embed));
    b->heads = model_or(o.heads, 8);
    b->kv_heads = model_or(o.kv_heads, b->heads);
    b->width = embed / b->heads;
    kiln_module *attention = model_group(m, "self_attn", "LlamaAttention");
    b->q = add_linear(attention, "q_proj", embed, b->heads * b->width, std);
    b->k = add_linear(attention, "k_proj", embed, b->kv_heads * b->width, std);
    b->v = add_linear(attention, "v_proj", embed, b->kv_heads * b->width, std);
    b->o = add_linear(attention, "o_proj", b->heads * b->width, embed, out_std);
    kiln_module *mlp = model_group(m, "mlp", "LlamaMLP");
    b->gate = add_linear(mlp, "gate_proj", embed, hidden, std);
    b->up = add_linear(mlp, "up_proj", embed, hidden, std);
    b->down = add_linear(mlp, "down_proj", hidden, embed, out_std);
    b->attention_norm = add_norm(m, "input_layernorm", embed);
    b->mlp_norm = add_norm(m, "post_attention_layernorm", embed);
    return m;
}

/* ---- The network ---- */

typedef struct llama {
    kiln_module *embed_tokens, *layers, *norm, *lm_head;
} llama;

static kiln_tensor *llama_forward(kiln_module *self, kiln_tensor *x, void *context)
{
    (void)self;
    const llama *l = context;
    x = kiln_forward(l->layers, kiln_forward(l->embed_tokens, x));
    return kiln_forward(l->lm_head, kiln_forward(l->norm, x));
}

kiln_module *model_llama(model_options o)
{
    llama *l;
    kiln_module *m = model_new("Llama", llama_forward, sizeof *l, &l);
    if (!m)
        return NULL;
    int64_t embed = model_or(o.embed, 512), layers = model_or(o.layers, 8), vocabulary = model_or(o.vocabulary, 32000);
    kiln_module *decoder = model_group(m, "model", "LlamaModel");
    l->embed_tokens = kiln_module_add(decoder, "embed_tokens", kiln_nn_embedding(vocabulary, embed));
    kiln_init_normal(kiln_module_tensor(l->embed_tokens, "weight"), 0, 0.02);
    l->layers = kiln_module_add(decoder, "layers", kiln_nn_sequence(0, NULL));
    for (int64_t i = 0; i < layers; i++)
        model_add_numbered(l->layers, i, make_block(o, embed, layers));
    l->norm = add_norm(decoder, "norm", embed);
    l->lm_head = add_linear(m, "lm_head", embed, vocabulary, 0.02);
    return model_finish(m);
}
