/* What several of the models share. Not for programs that use the models. */
#ifndef KILN_MODELS_PARTS_H
#define KILN_MODELS_PARTS_H

#include "models.h"

/* `value` unless it is 0, then `otherwise`. */
static inline int64_t model_or(int64_t value, int64_t otherwise)
{
    return value ? value : otherwise;
}

/* A module of one's own whose context is `size` bytes of zeros, freed with it; *context receives them. */
kiln_module *model_new(const char *kind, kiln_forward_fn forward, size_t size, void *context);

/* A module that only groups others under a name. */
kiln_module *model_group(kiln_module *parent, const char *name, const char *kind);

/* Adds a child under its number: "0", "1", … */
kiln_module *model_add_numbered(kiln_module *parent, int64_t number, kiln_module *child);

/* The module, or NULL (and nothing left of it) if something went wrong while it was built. */
kiln_module *model_finish(kiln_module *m);

/* [N, L, width] as [N, heads, L, width / heads], and back; NULL for NULL. */
kiln_tensor *model_split_heads(kiln_tensor *x, int64_t heads);
kiln_tensor *model_join_heads(kiln_tensor *x);

/* The heads of queries, keys and values of qkv [N, L, 3·width]. */
void model_split_thirds(kiln_tensor *qkv, int64_t heads, kiln_tensor *parts[3]);

/* Attention of a sequence to itself: qkv [N, L, 3·width] (queries, keys, values side by side) to [N, L, width]. */
kiln_tensor *model_self_attention(kiln_tensor *qkv, int64_t heads, bool causal);

/* A parameter drawn from a normal distribution around 0, added to m under that name. */
kiln_tensor *model_normal_parameter(kiln_module *m, const char *name, int ndim, const int64_t *shape, double std);

#endif
