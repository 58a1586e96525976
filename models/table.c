/* The models by name, and the small language that sets their options: "gpt2:layers=4,embed=128". */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "models.h"

const model_entry model_table[] = {
    {"mlp", "784-256-128-10, ReLU", model_mlp, false, KILN_CROSS_ENTROPY},
    {"lenet", "two convolutions, three linear layers", model_lenet, false, KILN_CROSS_ENTROPY},
    {"resnet18", "residual network, 18 layers", model_resnet18, false, KILN_CROSS_ENTROPY},
    {"resnet50", "residual network, 50 layers", model_resnet50, false, KILN_CROSS_ENTROPY},
    {"vit-tiny", "vision transformer, 12 layers of 192", model_vit_tiny, false, KILN_CROSS_ENTROPY},
    {"autoencoder", "784-128-32-128-784", model_autoencoder, false, KILN_RECONSTRUCTION},
    {"char-lstm", "embedding, LSTM, linear", model_char_lstm, true, KILN_CROSS_ENTROPY},
    {"gpt2", "GPT-2, 124 million parameters by default", model_gpt2, true, KILN_CROSS_ENTROPY},
    {NULL, NULL, NULL, false, KILN_CROSS_ENTROPY},
};

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
                           KEY(embed, false),      KEY(hidden, false),  KEY(patch, false),  KEY(dropout, true)};
enum { KEYS = sizeof keys / sizeof *keys };

/* How many letters must change to make one word of the other; words are short. */
static int distance(const char *a, size_t n, const char *b)
{
    int row[64];
    int m = (int)strlen(b) < 63 ? (int)strlen(b) : 63;
    for (int j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        int before = row[0];
        row[0] = (int)i;
        for (int j = 1; j <= m; j++) {
            int change = before + (a[i - 1] != b[j - 1]), least = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            before = row[j];
            row[j] = change < least ? change : least;
        }
    }
    return row[m];
}

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
static bool read_option(const char *text, size_t n, model_options *options, char *why, size_t why_size)
{
    const char *equals = memchr(text, '=', n);
    size_t length = equals ? (size_t)(equals - text) : n;
    int nearest = 0;
    for (int i = 0; i < KEYS; i++) {
        if (equals && strlen(keys[i].name) == length && memcmp(keys[i].name, text, length) == 0)
            return set_option(&keys[i], equals + 1, n - length - 1, options, why, why_size);
        if (distance(text, length, keys[i].name) < distance(text, length, keys[nearest].name))
            nearest = i;
    }
    if (!equals)
        snprintf(why, why_size, "'%.*s': expected key=value, as in layers=4", (int)n, text);
    else
        snprintf(why, why_size, "no option '%.*s'; did you mean '%s'?", (int)length, text, keys[nearest].name);
    return false;
}

const model_entry *model_find(const char *text, model_options *options, char *why, size_t why_size)
{
    size_t length = strcspn(text, ":");
    const model_entry *found = NULL, *nearest = model_table;
    for (const model_entry *e = model_table; e->name; e++) {
        if (strlen(e->name) == length && memcmp(e->name, text, length) == 0)
            found = e;
        if (distance(text, length, e->name) < distance(text, length, nearest->name))
            nearest = e;
    }
    if (!found) {
        snprintf(why, why_size, "no model '%.*s'; did you mean '%s'?", (int)length, text, nearest->name);
        return NULL;
    }
    for (const char *at = text + length; *at; at += length) {
        at++; /* the colon or a comma */
        length = strcspn(at, ",");
        if (!read_option(at, length, options, why, why_size))
            return NULL;
    }
    return found;
}
