#include "parts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kiln_module *model_new(const char *kind, kiln_forward_fn forward, size_t size, void *context)
{
    void *zeros = calloc(1, size);
    memcpy(context, &zeros, sizeof zeros);
    return zeros ? kiln_module_new(kind, forward, zeros, free) : NULL;
}

kiln_module *model_group(kiln_module *parent, const char *name, const char *kind)
{
    return kiln_module_add(parent, name, kiln_module_new(kind, NULL, NULL, NULL));
}

kiln_module *model_add_numbered(kiln_module *parent, int64_t number, kiln_module *child)
{
    char name[24];
    snprintf(name, sizeof name, "%lld", (long long)number);
    return kiln_module_add(parent, name, child);
}

kiln_module *model_finish(kiln_module *m)
{
    if (kiln_ok())
        return m;
    kiln_module_free(m);
    return NULL;
}

kiln_tensor *model_split_heads(kiln_tensor *x, int64_t heads)
{
    if (!x)
        return NULL;
    int64_t n = kiln_size(x, 0), length = kiln_size(x, 1), width = kiln_size(x, 2);
    return kiln_transpose(kiln_reshape(x, KILN_SHAPE(n, length, heads, width / heads)), 1, 2);
}

kiln_tensor *model_join_heads(kiln_tensor *x)
{
    return x ? kiln_flatten(kiln_transpose(x, 1, 2), 2, 3) : NULL;
}

void model_split_thirds(kiln_tensor *qkv, int64_t heads, kiln_tensor *parts[3])
{
    int64_t width = qkv ? kiln_size(qkv, 2) / 3 : 0;
    for (int i = 0; i < 3; i++)
        parts[i] = qkv ? model_split_heads(kiln_slice(qkv, 2, i * width, (i + 1) * width, 1), heads) : NULL;
}

kiln_tensor *model_self_attention(kiln_tensor *qkv, int64_t heads, bool causal)
{
    kiln_tensor *part[3];
    model_split_thirds(qkv, heads, part);
    return model_join_heads(kiln_scaled_dot_product_attention(part[0], part[1], part[2], NULL, 0, causal, 0));
}

kiln_tensor *model_normal_parameter(kiln_module *m, const char *name, int ndim, const int64_t *shape, double std)
{
    kiln_tensor *t = kiln_keep(kiln_zeros(ndim, shape, KILN_F32));
    return kiln_module_add_parameter(m, name, kiln_init_normal(t, 0, std));
}
