/* A language model on characters: embedding, LSTM, linear. */
#include <string.h>
#include "decoder.h"
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

/* ---- Token by token ---- */

static bool is_kind(const kiln_module *m, const char *path, const char *kind)
{
    const kiln_module *child = kiln_module_child(m, path);
    return child && !strcmp(kiln_module_kind(child), kind);
}

/* Whether an LSTM takes the batch first and runs in one direction: its state shows it. */
static bool goes_forward(kiln_module *lstm)
{
    enum { BATCH = 1, LENGTH = 2 };
    const kiln_tensor *weight = kiln_module_tensor(lstm, "weight_ih_l0"); /* [4·hidden, in] */
    bool forward = false;
    kiln_shapes_only
        kiln_scope {
            const int64_t shape[] = {BATCH, LENGTH, kiln_size(weight, 1)};
            kiln_tensor *h, *x = kiln_tensor_new(NULL, kiln_dtype_of(weight), 3, shape, kiln_device_of(weight));
            kiln_tensor *y = kiln_recur(lstm, x, NULL, NULL, &h, NULL);
            forward = y && kiln_size(h, 1) == BATCH && kiln_size(y, 2) == kiln_size(h, 2);
        }
    return forward;
}

static bool is_char_lstm(const kiln_module *m)
{
    if (kiln_module_children(m) != 3 || !is_kind(m, "0", "Embedding") || !is_kind(m, "1", "LSTM") ||
        !is_kind(m, "2", "Linear") || strcmp(kiln_module_kind(m), "Sequential") != 0)
        return false;
    return goes_forward(kiln_module_child(m, "1"));
}

static kiln_tensor *char_lstm_append(model_decoder *d, kiln_tensor *tokens)
{
    enum { H, C };
    const kiln_module *m = d->module;
    kiln_tensor *h = NULL, *c = NULL; /* a text begins with a state of zeros */
    if (d->position > 0) {
        h = d->state[H];
        c = d->state[C];
    }
    kiln_tensor *x = kiln_forward(kiln_module_child(m, "0"), tokens);
    x = kiln_recur(kiln_module_child(m, "1"), x, h, c, &h, &c);
    if (!model_decoder_keep(d, H, h) || !model_decoder_keep(d, C, c))
        return NULL;
    return kiln_forward(kiln_module_child(m, "2"), kiln_select(x, 1, kiln_size(tokens, 1) - 1));
}

const model_decoding model_char_lstm_decoding = {is_char_lstm, NULL, char_lstm_append};
