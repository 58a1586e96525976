/* Decoders from the side of the models: what a model does to go on with a text. Not for programs that use the models.
 *
 * A model adds a model_decoding to the list in decoder.c. Most need no more than their forward pass with
 * model_decoder_attend in the place of attention, for tokens that begin at `position`. */
#ifndef KILN_MODELS_DECODER_H
#define KILN_MODELS_DECODER_H

#include "models.h"

typedef struct model_decoding {
    bool (*serves)(const kiln_module *m);
    int64_t (*context)(const kiln_module *m); /* most tokens the model sees; NULL: any number */
    /* What comes behind tokens [N, T] that begin at d->position: logits [N, vocabulary]. */
    kiln_tensor *(*append)(model_decoder *d, kiln_tensor *tokens);
} model_decoding;

extern const model_decoding model_gpt2_decoding, model_char_lstm_decoding;

struct model_decoder {
    const model_decoding *kind;
    kiln_module *module;
    int64_t batch, context; /* context 0: no end */
    int64_t position;       /* tokens it has seen */
    kiln_tensor *text;      /* these, [batch, context]; NULL without a context */
    kiln_tensor *places;    /* 0, 1, 2, … [context] */
    kiln_tensor *visible;   /* while tokens are appended: which places each of them sees, bool [T, context] */
    kiln_tensor **state;    /* caches, recurrent states: what the model keeps, by numbers it gives them */
    int states;
};

/* Keeps a value as state number `which`: memory of its own that is written to each time. False with an error. */
bool model_decoder_keep(model_decoder *d, int which, kiln_tensor *value);

/* Puts x [N, heads, T, E] at the decoder's position of a cache, state number `which`, and returns all of the cache,
 * [N, heads, context, E]. */
kiln_tensor *model_decoder_cache(model_decoder *d, int which, kiln_tensor *x);

/* Attention of new tokens to themselves and what is before them: q, k, v and the result are [N, heads, T, E]. Layers
 * have the states 2·layer and 2·layer + 1. */
kiln_tensor *model_decoder_attend(model_decoder *d, int layer, kiln_tensor *q, kiln_tensor *k, kiln_tensor *v);

#endif
