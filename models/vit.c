/* The vision transformer, tiny: 12 layers of 192 with 3 heads; a class token, learned positions, norms before attention
 * and MLP. Names are timm's: cls_token, pos_embed, patch_embed.proj, blocks.0.attn.qkv, …, norm, head. */
#include "parts.h"

typedef struct block {
    kiln_module *norm1, *qkv, *proj, *norm2, *fc1, *fc2;
    int64_t heads;
} block;

static kiln_tensor *block_forward(kiln_module *self, kiln_tensor *x, void *context)
{
    (void)self;
    const block *b = context;
    kiln_tensor *a = model_self_attention(kiln_forward(b->qkv, kiln_forward(b->norm1, x)), b->heads, false);
    x = kiln_add(x, kiln_forward(b->proj, a));
    kiln_tensor *h = kiln_gelu(kiln_forward(b->fc1, kiln_forward(b->norm2, x)));
    return kiln_add(x, kiln_forward(b->fc2, h));
}

static kiln_module *make_block(int64_t width, int64_t heads)
{
    block *b;
    kiln_module *m = model_new("Block", block_forward, sizeof *b, &b);
    if (!m)
        return NULL;
    b->heads = heads;
    b->norm1 = kiln_module_add(m, "norm1", kiln_nn_layer_norm(width, .eps = 1e-6));
    kiln_module *attn = model_group(m, "attn", "Attention");
    b->qkv = kiln_module_add(attn, "qkv", kiln_nn_linear(width, 3 * width));
    b->proj = kiln_module_add(attn, "proj", kiln_nn_linear(width, width));
    b->norm2 = kiln_module_add(m, "norm2", kiln_nn_layer_norm(width, .eps = 1e-6));
    kiln_module *mlp = model_group(m, "mlp", "Mlp");
    b->fc1 = kiln_module_add(mlp, "fc1", kiln_nn_linear(width, 4 * width));
    b->fc2 = kiln_module_add(mlp, "fc2", kiln_nn_linear(4 * width, width));
    return m;
}

typedef struct vit {
    kiln_tensor *cls_token, *pos_embed;
    kiln_module *proj, *blocks, *norm, *head;
    int64_t width;
} vit;

static kiln_tensor *vit_forward(kiln_module *self, kiln_tensor *x, void *context)
{
    (void)self;
    const vit *v = context;
    x = kiln_forward(v->proj, x); /* [N, width, rows, columns] */
    if (!x)
        return NULL;
    kiln_tensor *cls = kiln_expand(v->cls_token, KILN_SHAPE(kiln_size(x, 0), 1, v->width));
    x = kiln_transpose(kiln_flatten(x, 2, -1), 1, 2);
    x = kiln_add(kiln_cat(2, (kiln_tensor *const[]){cls, x}, 1), v->pos_embed);
    x = kiln_forward(v->norm, kiln_forward(v->blocks, x));
    return kiln_forward(v->head, kiln_select(x, 1, 0));
}

/* Weights as timm has them: small normal numbers, no biases at first. */
static void initialise(kiln_module *m)
{
    kiln_params p = kiln_parameters_matching(m, "patch_embed.*", true);
    for (int64_t i = 0; i < p.count; i++)
        if (kiln_ndim(p.tensors[i]) == 2)
            kiln_init_trunc_normal(p.tensors[i], 0, 0.02, -2, 2);
    p = kiln_parameters_matching(m, "*.bias", false);
    for (int64_t i = 0; i < p.count; i++)
        kiln_init_constant(p.tensors[i], 0);
}

kiln_module *model_vit_tiny(model_options o)
{
    vit *v;
    kiln_module *m = model_new("VisionTransformer", vit_forward, sizeof *v, &v);
    if (!m)
        return NULL;
    int64_t height = model_or(o.height, 32), image_width = model_or(o.width, 32);
    int64_t patch = model_or(o.patch, height >= 224 ? 16 : 4), heads = model_or(o.heads, 3);
    int64_t patches = (height / patch) * (image_width / patch), layers = model_or(o.layers, 12);
    v->width = model_or(o.embed, 192);
    v->cls_token = model_normal_parameter(m, "cls_token", KILN_SHAPE(1, 1, v->width), 1e-6);
    v->pos_embed = model_normal_parameter(m, "pos_embed", KILN_SHAPE(1, patches + 1, v->width), 0.02);
    v->proj = kiln_module_add(model_group(m, "patch_embed", "PatchEmbed"), "proj",
                              kiln_nn_conv2d(model_or(o.channels, 3), v->width, patch, .stride = patch));
    v->blocks = kiln_module_add(m, "blocks", kiln_nn_sequence(0, NULL));
    for (int64_t i = 0; i < layers; i++)
        model_add_numbered(v->blocks, i, make_block(v->width, heads));
    v->norm = kiln_module_add(m, "norm", kiln_nn_layer_norm(v->width, .eps = 1e-6));
    v->head = kiln_module_add(m, "head", kiln_nn_linear(v->width, model_or(o.classes, 10)));
    initialise(m);
    return model_finish(m);
}
