/* The models by name, and the small language that sets their options: "gpt2:layers=4,embed=128". */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "parts.h"

#define IMAGE "channels height width"
const model_entry model_table[] = {
    {"mlp", "784-256-128-10, ReLU", model_mlp, false, KILN_CROSS_ENTROPY, IMAGE " classes dropout", false},
    {"lenet", "two convolutions, three linear layers", model_lenet, false, KILN_CROSS_ENTROPY, IMAGE " classes", false},
    {"resnet18", "residual network, 18 layers", model_resnet18, false, KILN_CROSS_ENTROPY, IMAGE " classes", false},
    {"resnet50", "residual network, 50 layers", model_resnet50, false, KILN_CROSS_ENTROPY, IMAGE " classes", false},
    {"vit-tiny", "vision transformer, 12 layers of 192", model_vit_tiny, false, KILN_CROSS_ENTROPY,
     IMAGE " classes layers heads embed patch", false},
    {"autoencoder", "784-128-32-128-784", model_autoencoder, false, KILN_RECONSTRUCTION, IMAGE " hidden", false},
    {"char-lstm", "embedding, LSTM, linear", model_char_lstm, true, KILN_CROSS_ENTROPY,
     "vocabulary context layers embed hidden dropout", false},
    {"gpt2", "GPT-2, 124 million parameters by default", model_gpt2, true, KILN_CROSS_ENTROPY,
     "vocabulary context layers heads embed dropout", false},
    {"llama", "Llama, 8 layers of 512 by default", model_llama, true, KILN_CROSS_ENTROPY,
     "vocabulary context layers heads kv_heads embed hidden", false},
    {"bert", "BERT, 110 million parameters by default", model_bert, true, KILN_CROSS_ENTROPY,
     "vocabulary context layers heads embed hidden", true},
    {NULL, NULL, NULL, false, KILN_CROSS_ENTROPY, NULL, false},
};

bool model_has_option(const model_entry *e, const char *name)
{
    size_t n = strlen(name);
    for (const char *o = e->options; *o; o += strcspn(o, " "), o += *o == ' ')
        if (strcspn(o, " ") == n && !memcmp(o, name, n))
            return true;
    return false;
}

/* ---- Suggestions ---- */

static int least(int a, int b)
{
    return a < b ? a : b;
}

int model_distance(const char *a, size_t n, const char *b)
{
    enum { LONGEST = 40 };
    size_t m = strlen(b);
    int rows[3][LONGEST + 1];
    if (n > LONGEST || m > LONGEST)
        return LONGEST;
    for (size_t i = 0; i <= n; i++) {
        int *now = rows[i % 3], *before = rows[(i + 2) % 3], *older = rows[(i + 1) % 3];
        for (size_t j = 0; j <= m; j++) {
            now[j] = i == 0 ? (int)j : before[j] + 1;
            if (i && j)
                now[j] = least(now[j], least(now[j - 1] + 1, before[j - 1] + (a[i - 1] != b[j - 1])));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], older[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

/* ---- Options by name ---- */

typedef struct key {
    const char *name;
    size_t offset;
    bool real;
} key;

#define KEY(field, real)                                                                                               \
    {                                                                                                                  \
#field, offsetof(model_options, field), real                                                                   \
    }
static const key keys[] = {KEY(channels, false),   KEY(height, false),  KEY(width, false),  KEY(classes, false),
                           KEY(vocabulary, false), KEY(context, false), KEY(layers, false), KEY(heads, false),
                           KEY(embed, false),      KEY(hidden, false),  KEY(patch, false),  KEY(dropout, true),
                           KEY(kv_heads, false)};
enum { KEYS = sizeof keys / sizeof *keys };

static bool set_option(const key *k, const char *value, size_t n, model_options *options, char *why, size_t why_size)
{
    char *end;
    double number = strtod(value, &end);
    double most = k->real ? 0.999 : 1e9, least = k->real ? 0 : 1;
    if (n == 0 || end != value + n || !(number >= least && number <= most) ||
        (!k->real && number != (double)(int64_t)number)) {
        snprintf(why, why_size, "%s=%.*s: expected a %s %g … %g", k->name, (int)n, value,
                 k->real ? "number" : "whole number", least, most);
        return false;
    }
    void *field = (char *)options + k->offset;
    if (k->real)
        *(double *)field = number;
    else
        *(int64_t *)field = (int64_t)number;
    return true;
}

/* One "key=value" of n characters. */
static bool read_option(const model_entry *e, const char *text, size_t n, model_options *options, char *why,
                        size_t why_size)
{
    const char *equals = memchr(text, '=', n), *near = NULL;
    size_t length = equals ? (size_t)(equals - text) : n;
    for (int i = 0; i < KEYS; i++) {
        const char *name = keys[i].name;
        if (!model_has_option(e, name))
            continue;
        if (equals && strlen(name) == length && memcmp(name, text, length) == 0)
            return set_option(&keys[i], equals + 1, n - length - 1, options, why, why_size);
        int d = model_distance(text, length, name);
        if (d < 3 && (!near || d < model_distance(text, length, near)))
            near = name;
    }
    if (!equals)
        snprintf(why, why_size, "'%.*s': expected key=value, as in %.*s=4", (int)n, text, (int)strcspn(e->options, " "),
                 e->options);
    else if (near)
        snprintf(why, why_size, "no option '%.*s'; did you mean '%s'?", (int)length, text, near);
    else
        snprintf(why, why_size, "%s has no option '%.*s'; it has: %s", e->name, (int)length, text, e->options);
    return false;
}

/* ---- Sizes that fit each other ---- */

static bool check_image(const model_entry *e, const model_options *o, char *why, size_t why_size)
{
    enum { MOST_NUMBERS = 1 << 27 }; /* of one image: half a GB */
    bool lenet = e->build == model_lenet;
    int64_t channels = model_or(o->channels, 1), height = model_or(o->height, 28), width = model_or(o->width, 28);
    int64_t least = lenet ? 12 : 1; /* what its two convolutions leave something of */
    if ((double)channels * (double)height * (double)width > MOST_NUMBERS) {
        snprintf(why, why_size, "images of %lldx%lldx%lld are too large", (long long)channels, (long long)height,
                 (long long)width);
        return false;
    }
    if (e->build == model_vit_tiny)
        least = model_or(o->patch, height >= 224 ? 16 : 4);
    if (e->build == model_vit_tiny && height >= least && width >= least && (height % least || width % least)) {
        snprintf(why, why_size, "images of %lldx%lld cannot be cut into patches of %lldx%lld: set patch to a divisor",
                 (long long)height, (long long)width, (long long)least, (long long)least);
        return false;
    }
    if (height >= least && width >= least)
        return true;
    snprintf(why, why_size, "images of %lldx%lld are too small for %s: its %s %lldx%lld", (long long)height,
             (long long)width, e->name, lenet ? "smallest are" : "patches are", (long long)least, (long long)least);
    return false;
}

static bool check_heads(const model_entry *e, const model_options *o, char *why, size_t why_size)
{
    bool vit = e->build == model_vit_tiny, llama = e->build == model_llama;
    int64_t embed = model_or(o->embed, vit ? 192 : llama ? 512 : 768);
    int64_t heads = model_or(o->heads, vit ? 3 : llama ? 8 : 12), kv_heads = model_or(o->kv_heads, heads);
    if (embed % heads != 0)
        snprintf(why, why_size, "embed=%lld cannot be shared among heads=%lld: it must be a multiple", (long long)embed,
                 (long long)heads);
    else if (heads % kv_heads != 0)
        snprintf(why, why_size, "heads=%lld cannot share kv_heads=%lld: it must be a multiple", (long long)heads,
                 (long long)kv_heads);
    else if (llama && embed / heads % 2 != 0)
        snprintf(why, why_size, "heads of %lld (embed / heads) have no halves to rotate: the width must be even",
                 (long long)(embed / heads));
    else
        return true;
    return false;
}

bool model_check(const model_entry *e, const model_options *o, char *why, size_t why_size)
{
    enum { MOST_LAYERS = 1000, WIDEST = 1000000 };
    if (o->layers > MOST_LAYERS || o->embed > WIDEST || o->hidden > WIDEST) {
        snprintf(why, why_size, "too large: at most %d layers, and %d for embed and hidden", MOST_LAYERS, WIDEST);
        return false;
    }
    if (model_has_option(e, "heads") && !check_heads(e, o, why, why_size))
        return false;
    return e->tokens || check_image(e, o, why, why_size);
}

/* ---- Models by name ---- */

/* The one that was probably meant: what begins with the word, or is spelled nearly like it. */
static const char *near_model(const char *text, size_t length)
{
    const char *near = NULL;
    for (const model_entry *e = model_table; e->name; e++) {
        if (length >= 3 && !strncmp(e->name, text, length))
            return e->name;
        int d = model_distance(text, length, e->name);
        if (d < 4 && (!near || d < model_distance(text, length, near)))
            near = e->name;
    }
    return near;
}

const model_entry *model_find(const char *text, model_options *options, char *why, size_t why_size)
{
    size_t length = strcspn(text, ":");
    const model_entry *found = NULL;
    for (const model_entry *e = model_table; e->name; e++)
        if (strlen(e->name) == length && memcmp(e->name, text, length) == 0)
            found = e;
    if (!found) {
        const char *near = near_model(text, length);
        snprintf(why, why_size, "no model '%.*s'%s%s%s", (int)length, text, near ? "; did you mean '" : "",
                 near ? near : "", near ? "'?" : "");
        return NULL;
    }
    for (const char *at = text + length; *at; at += length) {
        at++; /* the colon or a comma */
        length = strcspn(at, ",");
        if (!read_option(found, at, length, options, why, why_size))
            return NULL;
    }
    return found;
}
