/* The layers of model files: a table of their names and options, and what builds them. */
#ifndef KILN_IO_LAYERS_H
#define KILN_IO_LAYERS_H

#include "kiln/io.h"
#include "io/yaml.h"

enum { KILN_LAYER_OPTIONS = 8 };

/* A model while it is built: the shape that goes from layer to layer, and what was counted so far. */
typedef struct kiln_model_builder {
    const char *name; /* of the file, for messages */
    kiln_arena arena;
    int ndim;
    int64_t shape[KILN_MAX_DIMS]; /* with a batch of two */
    kiln_dtype dtype;
    int64_t vocabulary;
    int64_t layers;      /* built so far */
    double bytes, limit; /* of parameters so far, and at most */
} kiln_model_builder;

typedef enum kiln_option_kind {
    KILN_OPTION_WHOLE,  /* 3 */
    KILN_OPTION_PAIR,   /* 3 or [3, 5]: height and width */
    KILN_OPTION_SIZES,  /* [1, 28, 28] */
    KILN_OPTION_NUMBER, /* 0.5 */
    KILN_OPTION_FLAG,   /* true */
    KILN_OPTION_WORD,   /* one of `words` */
    KILN_OPTION_LAYERS  /* a list of layers */
} kiln_option_kind;

typedef struct kiln_layer_option {
    const char *name;
    kiln_option_kind kind;
    bool required;
    double least, most;
    const char *words; /* "nearest linear bicubic" */
} kiln_layer_option;

typedef struct kiln_layer_value {
    const kiln_yaml *node; /* NULL: not given */
    int n;                 /* of whole; a word's place among `words` is whole[0] */
    int64_t whole[KILN_MAX_DIMS];
    double number;
} kiln_layer_value;

typedef struct kiln_layer_args {
    const struct kiln_layer *layer;
    int line;
    kiln_layer_value values[KILN_LAYER_OPTIONS];
    bool recompute; /* an option of every layer */
} kiln_layer_args;

typedef struct kiln_layer {
    const char *name;
    kiln_layer_option options[KILN_LAYER_OPTIONS]; /* the first is what a plain value stands for; ends at a NULL name */
    kiln_module *(*build)(kiln_model_builder *b, const kiln_layer_args *a);
    int dims;          /* of one input, without the batch; 0: any */
    const char *takes; /* "[channels, height, width]" */
} kiln_layer;

extern const kiln_layer kiln_layers[];
extern const int kiln_layer_count;

/* "model_file": "my-model.yaml:7: …" */
void *kiln_model_bad(const kiln_model_builder *b, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Counts parameters before they are made; false with an error when they cannot be meant. */
bool kiln_model_room(kiln_model_builder *b, const kiln_layer_args *a, double elements);

/* A list of layers, one after the other, repeated `times`; b's shape becomes that of its output. */
kiln_module *kiln_model_sequence(kiln_model_builder *b, const kiln_yaml *list, int64_t times);

#endif
