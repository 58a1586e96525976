/* Texts token by token, with what was computed for the tokens before kept: see models.h and decoder.h.
 *
 * Caches have a fixed size, and attention goes over all of it with a mask. So shapes are the same for each token, and
 * where the token stands is the offset of a few windows: of the caches, of the learned positions, of the mask. Kiln
 * takes offsets that change as run-time numbers from the second time on, and one plan serves all places. */
#include "decoder.h"
#include <stdlib.h>
#include <string.h>

/* ---- What is kept ---- */

/* Room for state number `which`; false without memory. */
static bool reserve(model_decoder *d, int which)
{
    if (which < d->states)
        return true;
    kiln_tensor **more = realloc(d->state, (size_t)(which + 1) * sizeof *more);
    if (!more)
        return false;
    memset(more + d->states, 0, (size_t)(which + 1 - d->states) * sizeof *more);
    d->state = more;
    d->states = which + 1;
    return true;
}

/* State number `which`, zeros at first. */
static kiln_tensor *state_of(model_decoder *d, int which, int ndim, const int64_t *shape, const kiln_tensor *like)
{
    if (!reserve(d, which))
        return NULL;
    if (!d->state[which])
        d->state[which] = kiln_keep(kiln_tensor_new(NULL, kiln_dtype_of(like), ndim, shape, kiln_device_of(like)));
    return d->state[which];
}

bool model_decoder_keep(model_decoder *d, int which, kiln_tensor *value)
{
    return value && kiln_assign(state_of(d, which, kiln_ndim(value), kiln_shape(value), value), value);
}

kiln_tensor *model_decoder_cache(model_decoder *d, int which, kiln_tensor *x)
{
    if (!x)
        return NULL;
    int64_t from = d->position, to = from + kiln_size(x, 2);
    kiln_tensor *cache =
        state_of(d, which, KILN_SHAPE(kiln_size(x, 0), kiln_size(x, 1), d->context, kiln_size(x, 3)), x);
    return kiln_assign(kiln_slice(cache, 2, from, to, 1), x) ? cache : NULL;
}

kiln_tensor *model_decoder_attend(model_decoder *d, int layer, kiln_tensor *q, kiln_tensor *k, kiln_tensor *v)
{
    kiln_tensor *keys = model_decoder_cache(d, 2 * layer, k), *values = model_decoder_cache(d, 2 * layer + 1, v);
    if (!keys || !values)
        return NULL;
    if (!d->visible) /* the text begins here: there is nothing else to look at */
        return kiln_scaled_dot_product_attention(q, k, v, NULL, 0, true, 0);
    return kiln_scaled_dot_product_attention(q, keys, values, d->visible, 0, false, 0);
}

/* ---- Models that keep nothing: they see the whole window for each token ---- */

static bool serves_all(const kiln_module *m)
{
    (void)m;
    return true;
}

/* Since the model sees only what stands before a place, what stands behind the last token does not matter. */
static kiln_tensor *window_append(model_decoder *d, kiln_tensor *tokens)
{
    int64_t end = d->position + kiln_size(tokens, 1);
    if (!kiln_assign(kiln_slice(d->text, 1, d->position, end, 1), tokens))
        return NULL;
    return kiln_select(kiln_forward(d->module, d->text), 1, end - 1);
}

static const model_decoding window_decoding = {serves_all, NULL, window_append};

/* ---- Decoders ---- */

static const model_decoding *decoding_of(const kiln_module *m)
{
    static const model_decoding *const kinds[] = {&model_gpt2_decoding, &model_char_lstm_decoding, &window_decoding};
    int i = 0;
    while (!kinds[i]->serves(m))
        i++;
    return kinds[i];
}

static int64_t context_of(const model_decoder *d, int64_t wanted)
{
    enum { WINDOW = 128 };
    int64_t most = d->kind->context ? d->kind->context(d->module) : 0;
    if (most && (!wanted || wanted > most))
        return most;
    return wanted || d->kind != &window_decoding ? wanted : WINDOW;
}

/* The text, and the numbers of its places. */
static bool make_text(model_decoder *d)
{
    kiln_device device = kiln_module_device(d->module);
    d->text = kiln_keep(kiln_tensor_new(NULL, KILN_I64, KILN_SHAPE(d->batch, d->context), device));
    kiln_on_device (device)
        d->places = kiln_keep(kiln_arange(0, (double)d->context, 1, KILN_I64));
    return d->text && d->places && kiln_eval();
}

model_decoder *model_decoder_new(kiln_module *m, int64_t batch, int64_t context)
{
    model_decoder *d = m ? calloc(1, sizeof *d) : NULL;
    if (!d)
        return NULL;
    d->module = m;
    d->kind = decoding_of(m);
    d->batch = batch;
    d->context = context_of(d, context);
    if (!d->context || make_text(d))
        return d;
    model_decoder_free(d);
    return NULL;
}

void model_decoder_free(model_decoder *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->states; i++)
        kiln_release(d->state[i]);
    free(d->state);
    kiln_release(d->text);
    kiln_release(d->places);
    free(d);
}

void model_decoder_reset(model_decoder *d)
{
    d->position = 0; /* what is kept of places behind it is never looked at */
}

/* ---- Appending ---- */

/* The text has outgrown the context: what it goes on with, its newer half and at least the new tokens, from position 0.
 * Positions are learned, and what is kept of a token depends on its position; so all that stays is computed anew. To
 * drop half of it makes that rare. */
static kiln_tensor *begin_again(model_decoder *d, kiln_tensor *tokens)
{
    int64_t fresh = kiln_size(tokens, 1), half = (d->context + 1) / 2;
    int64_t stays = fresh > d->context ? d->context : fresh > half ? fresh : half;
    kiln_tensor *parts[2] = {kiln_slice(d->text, 1, d->position - (stays - fresh), d->position, 1), tokens};
    d->position = 0;
    return fresh < stays ? kiln_cat(2, parts, 1) : kiln_slice(tokens, 1, fresh - stays, fresh, 1);
}

static kiln_tensor *append(model_decoder *d, kiln_tensor *tokens)
{
    if (d->context && d->position + kiln_size(tokens, 1) > d->context)
        tokens = begin_again(d, tokens);
    int64_t length = kiln_size(tokens, 1), end = d->position + length;
    if (d->context && (d->position > 0 || length == 1)) /* one plan for all single tokens, the first included */
        d->visible = kiln_le(d->places, kiln_unsqueeze(kiln_slice(d->places, 0, d->position, end, 1), 1));
    kiln_tensor *logits = d->kind->append(d, tokens);
    d->visible = NULL;
    if (!logits || (d->context && !kiln_assign(kiln_slice(d->text, 1, d->position, end, 1), tokens)))
        return NULL;
    d->position = end;
    return logits;
}

kiln_tensor *model_decode(model_decoder *d, kiln_tensor *tokens)
{
    kiln_tensor *logits = NULL;
    if (!d || !tokens || kiln_size(tokens, 1) < 0)
        return NULL;
    kiln_no_grad
        logits = append(d, tokens);
    return logits;
}
