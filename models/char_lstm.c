/* A language model on characters: embedding, LSTM, linear. */
#include "parts.h"

kiln_module *model_char_lstm(model_options o)
{
    int64_t vocabulary = model_or(o.vocabulary, 256), embed = model_or(o.embed, 64), hidden = model_or(o.hidden, 256);
    kiln_module *net[3] = {
        kiln_nn_embedding(vocabulary, embed),
        kiln_nn_lstm(embed, hidden, .layers = o.layers, .dropout = o.dropout, .batch_first = true),
        kiln_nn_linear(hidden, vocabulary),
    };
    return kiln_nn_sequence(3, net);
}
