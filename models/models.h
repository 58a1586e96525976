/* Networks people know, built on kiln.h alone: read them as examples, copy them into programs. The kiln command, the
 * tests and the benchmarks use them. Parameter names are those of the PyTorch models they correspond to (torchvision's
 * resnet, GPT-2 as published, Hugging Face's Llama and BERT, nn.Sequential for the small ones). Each returns a fresh
 * module, or NULL with Kiln's error. */
#ifndef KILN_MODELS_H
#define KILN_MODELS_H

#include <kiln.h>

/* Sizes that are 0 take the default in the comment. */
typedef struct model_options {
    int64_t channels, height, width; /* of an image: 1, 28, 28 (resnets and vit: 3, 32, 32; resnet50: 3, 224, 224) */
    int64_t classes;                 /* 10 */
    int64_t vocabulary;              /* of tokens: 256 (gpt2 50257, llama 32000, bert 30522) */
    int64_t context;                 /* tokens seen at once: gpt2 1024, llama 2048, bert 512 */
    int64_t layers;                  /* gpt2, bert and vit 12, llama 8, lstm 1 */
    int64_t heads;                   /* gpt2 and bert 12, llama 8, vit 3 */
    int64_t embed;                   /* width of the model: gpt2 and bert 768, llama 512, vit 192, lstm 64 */
    int64_t hidden;                  /* lstm 256, autoencoder's code 32; within a block: bert 4·embed, llama 8/3·embed
                                        rounded up to a multiple of 256 */
    int64_t patch;                   /* vit: side of a patch, 4 (images of 224 and more: 16) */
    double dropout;                  /* 0 */
    int64_t kv_heads;                /* llama: heads of keys and values, as many as heads */
} model_options;

kiln_module *model_mlp(model_options o);      /* flatten, 784-256-128-10 with ReLU */
kiln_module *model_lenet(model_options o);    /* LeNet-5 with ReLU and max pooling */
kiln_module *model_resnet18(model_options o); /* images below 64 pixels: 3x3 stem without pooling, as usual for CIFAR */
kiln_module *model_resnet50(model_options o);
kiln_module *model_vit_tiny(model_options o);  /* class token, learned positions, pre-norm */
kiln_module *model_char_lstm(model_options o); /* embedding, LSTM, linear: [N, T] tokens to [N, T, vocabulary] */
kiln_module *model_gpt2(model_options o);  /* [N, T] tokens to [N, T, vocabulary]; the head is the token embedding */
kiln_module *model_llama(model_options o); /* [N, T] tokens to [N, T, vocabulary]: RMS norm, rotary positions, SwiGLU */
kiln_module *model_bert(model_options o);  /* the same, seeing all tokens but 0, which is padding: masked words */
kiln_module *model_autoencoder(model_options o); /* 784-128-32-128-784, its output has the input's shape */

/* All of them by name, for programs that take one from the command line: "gpt2", "vit-tiny", … */
typedef struct model_entry {
    const char *name, *about; /* "lenet", "two convolutions, three linear layers" */
    kiln_module *(*build)(model_options o);
    bool tokens; /* takes i64 tokens instead of images */
    kiln_loss loss;
    const char *options; /* those of model_options it looks at, with blanks between them */
    bool sees_ahead;     /* a token sees those behind it, so that the next one is nothing to be learnt */
} model_entry;
extern const model_entry model_table[]; /* ends with a NULL name */

/* "gpt2:layers=4,embed=128,heads=4,context=128": the entry, and `options` with what the text sets on top of what they
 * hold. NULL when it names none; `why` then says what is wrong with it, with the nearest name or key. */
const model_entry *model_find(const char *text, model_options *options, char *why, size_t why_size);

/* Whether it looks at that option ("dropout"). */
bool model_has_option(const model_entry *e, const char *name);

/* Whether such a model can be built: sizes that fit each other and are no mistake. Otherwise `why` says what is wrong.
 */
bool model_check(const model_entry *e, const model_options *options, char *why, size_t why_size);

/* ---- Writing texts ----
 * A decoder goes on with a text token by token and computes each token once. It keeps what the model needs to know of
 * those before: keys and values of each layer, or a recurrent state, in the type that is computed in, on the model's
 * device. Where in the text it is is data, not a size: after the first few tokens all the others run the same plan. */
typedef struct model_decoder model_decoder;

/* For `batch` texts of the same length. `context`: tokens it looks back on, no more than the model can; 0: as many as
 * that, and for a model that is not known (any module from [N, T] tokens to [N, T, vocabulary] serves, without what
 * makes it fast) 128. The module must be in eval mode, and live as long as the decoder. NULL with an error. */
model_decoder *model_decoder_new(kiln_module *m, int64_t batch, int64_t context);
void model_decoder_free(model_decoder *d);  /* NULL is fine */
void model_decoder_reset(model_decoder *d); /* begins another text */

/* Appends tokens [batch, T], i64 on the model's device, and returns the logits of what comes next, [batch, vocabulary],
 * owned by the scope. Nothing is computed until something is read. A text that outgrows the context goes on with its
 * newer half: the older one is forgotten. NULL with an error; reset it then. */
kiln_tensor *model_decode(model_decoder *d, kiln_tensor *tokens);

/* How a token is chosen. */
typedef struct model_sampling {
    double temperature; /* 0: always the likeliest (of equal ones the first); 1: as learned; more: bolder */
    int64_t top_k;      /* among the k likeliest; 0: all */
    double top_p;       /* among the fewest whose probabilities add up to p, the likeliest first; 0 and 1: all */
} model_sampling;

/* Tokens [N] for logits [N, vocabulary], i64 on their device, drawn with the thread's random numbers. -1 where logits
 * are no numbers to choose by: NaN, infinity, all -infinity. */
kiln_tensor *model_sample(kiln_tensor *logits, model_sampling how);

/* For suggestions: how many letters must be put in, left out, replaced or swapped with the next one to make b of the
 * word a of n letters. */
int model_distance(const char *a, size_t n, const char *b);

#endif
