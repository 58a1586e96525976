/* BERT as a masked language model, with the names of Hugging Face's BertForMaskedLM: bert.embeddings.word_embeddings,
 * bert.encoder.layer.0.attention.self.query, …, cls.predictions. Norms behind each half of a block, learned positions,
 * one kind of segment; the head's last layer is the word embedding. Token 0 is padding: nothing attends to it. */
#include "parts.h"

static const double epsilon = 1e-12;
enum { PADDING = 0, SEGMENTS = 2 };

static kiln_module *add_linear(kiln_module *m, const char *name, int64_t in, int64_t out)
{
    kiln_module *linear = kiln_module_add(m, name, kiln_nn_linear(in, out));
    kiln_init_normal(kiln_module_tensor(linear, "weight"), 0, 0.02);
    kiln_init_constant(kiln_module_tensor(linear, "bias"), 0);
    return linear;
}

static kiln_module *add_norm(kiln_module *m, int64_t width)
{
    return kiln_module_add(m, "LayerNorm", kiln_nn_layer_norm(width, .eps = epsilon));
}

/* ---- A block ---- */

typedef struct block {
    kiln_module *query, *key, *value, *attention, *attention_norm, *intermediate, *output, *output_norm;
    int64_t heads;
} block;

/* mask [N, 1, 1, L]: true where a token may be looked at. */
static kiln_tensor *encode(kiln_module *layer, kiln_tensor *x, kiln_tensor *mask)
{
    const block *b = kiln_module_context(layer);
    if (!b)
        return NULL;
    kiln_tensor *q = model_split_heads(kiln_forward(b->query, x), b->heads);
    kiln_tensor *k = model_split_heads(kiln_forward(b->key, x), b->heads);
    kiln_tensor *v = model_split_heads(kiln_forward(b->value, x), b->heads);
    kiln_tensor *a = model_join_heads(kiln_scaled_dot_product_attention(q, k, v, mask, 0, false, 0));
    x = kiln_forward(b->attention_norm, kiln_add(kiln_forward(b->attention, a), x));
    kiln_tensor *h = kiln_gelu(kiln_forward(b->intermediate, x));
    return kiln_forward(b->output_norm, kiln_add(kiln_forward(b->output, h), x));
}

/* On its own a block sees all tokens. */
static kiln_tensor *block_forward(kiln_module *self, kiln_tensor *x, void *context)
{
    (void)context;
    return encode(self, x, NULL);
}

static kiln_module *make_block(int64_t width, int64_t heads, int64_t hidden)
{
    block *b;
    kiln_module *m = model_new("BertLayer", block_forward, sizeof *b, &b);
    if (!m)
        return NULL;
    b->heads = heads;
    kiln_module *attention = model_group(m, "attention", "BertAttention");
    kiln_module *self = model_group(attention, "self", "BertSelfAttention");
    b->query = add_linear(self, "query", width, width);
    b->key = add_linear(self, "key", width, width);
    b->value = add_linear(self, "value", width, width);
    kiln_module *output = model_group(attention, "output", "BertSelfOutput");
    b->attention = add_linear(output, "dense", width, width);
    b->attention_norm = add_norm(output, width);
    b->intermediate = add_linear(model_group(m, "intermediate", "BertIntermediate"), "dense", width, hidden);
    output = model_group(m, "output", "BertOutput");
    b->output = add_linear(output, "dense", hidden, width);
    b->output_norm = add_norm(output, width);
    return m;
}

/* ---- The network ---- */

typedef struct bert {
    kiln_module *word_embeddings, *embedding_norm, *layers, *transform, *transform_norm;
    kiln_tensor *words, *positions, *segments, *bias; /* words: embedding and head */
} bert;

static kiln_tensor *embed(const bert *b, kiln_tensor *tokens)
{
    kiln_tensor *x = kiln_add(kiln_forward(b->word_embeddings, tokens), kiln_select(b->segments, 0, 0));
    x = kiln_add(x, kiln_slice(b->positions, 0, 0, kiln_size(tokens, 1), 1));
    return kiln_forward(b->embedding_norm, x);
}

static kiln_tensor *bert_forward(kiln_module *self, kiln_tensor *tokens, void *context)
{
    (void)self;
    const bert *b = context;
    kiln_tensor *x = embed(b, tokens);
    kiln_tensor *mask = kiln_unsqueeze(kiln_unsqueeze(kiln_ne_scalar(tokens, PADDING), 1), 1);
    for (int i = 0; i < kiln_module_children(b->layers); i++)
        x = encode(kiln_module_child_at(b->layers, i, NULL), x, mask);
    x = kiln_forward(b->transform_norm, kiln_gelu(kiln_forward(b->transform, x)));
    return kiln_linear(x, b->words, b->bias);
}

static void add_embeddings(kiln_module *m, bert *b, model_options o, int64_t width)
{
    kiln_module *embeddings = model_group(m, "embeddings", "BertEmbeddings");
    b->word_embeddings = kiln_module_add(
        embeddings, "word_embeddings",
        kiln_nn_embedding(model_or(o.vocabulary, 30522), width, .has_padding = true, .padding_idx = PADDING));
    kiln_module *positions =
        kiln_module_add(embeddings, "position_embeddings", kiln_nn_embedding(model_or(o.context, 512), width));
    kiln_module *segments = kiln_module_add(embeddings, "token_type_embeddings", kiln_nn_embedding(SEGMENTS, width));
    b->words = kiln_init_normal(kiln_module_tensor(b->word_embeddings, "weight"), 0, 0.02);
    b->positions = kiln_init_normal(kiln_module_tensor(positions, "weight"), 0, 0.02);
    b->segments = kiln_init_normal(kiln_module_tensor(segments, "weight"), 0, 0.02);
    b->embedding_norm = add_norm(embeddings, width);
}

kiln_module *model_bert(model_options o)
{
    bert *b;
    kiln_module *m = model_new("Bert", bert_forward, sizeof *b, &b);
    if (!m)
        return NULL;
    int64_t width = model_or(o.embed, 768), layers = model_or(o.layers, 12), heads = model_or(o.heads, 12);
    kiln_module *encoder = model_group(m, "bert", "BertModel");
    add_embeddings(encoder, b, o, width);
    b->layers = kiln_module_add(model_group(encoder, "encoder", "BertEncoder"), "layer", kiln_nn_sequence(0, NULL));
    for (int64_t i = 0; i < layers; i++)
        model_add_numbered(b->layers, i, make_block(width, heads, model_or(o.hidden, 4 * width)));
    kiln_module *head = model_group(model_group(m, "cls", "BertOnlyMLMHead"), "predictions", "BertLMPredictionHead");
    b->bias = kiln_module_add_parameter(head, "bias",
                                        kiln_keep(kiln_zeros(KILN_SHAPE(model_or(o.vocabulary, 30522)), KILN_F32)));
    kiln_module *transform = model_group(head, "transform", "BertPredictionHeadTransform");
    b->transform = add_linear(transform, "dense", width, width);
    b->transform_norm = add_norm(transform, width);
    return model_finish(m);
}
