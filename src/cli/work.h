/* What training, evaluating and predicting work with: a network, data, and the files of a run. Functions return 0, or
 * the exit code after they have reported what is wrong. */
#ifndef KILN_CLI_WORK_H
#define KILN_CLI_WORK_H

#include <models.h>
#include "cli/cli.h"

/* ---- Options that several commands have ---- */
#define OPTION_MODEL                                                                                                   \
    {                                                                                                                  \
        "model", 0, OPTION_TEXT, "MODEL", "name[:key=value,...] or a FILE.yaml", 0, 0, "<models>"                      \
    }
#define OPTION_DEVICE                                                                                                  \
    {                                                                                                                  \
        "device", 0, OPTION_TEXT, "DEVICE", "cpu, cuda, cuda:1, opencl, auto (auto: the best)", 0, 0,                  \
            "auto cpu cuda opencl"                                                                                     \
    }
#define OPTION_THREADS                                                                                                 \
    {                                                                                                                  \
        "threads", 0, OPTION_COUNT, "N", "of the CPU's kernels (all cores)", 1, 4096, NULL                             \
    }
#define OPTION_MEM_LIMIT                                                                                               \
    {                                                                                                                  \
        "mem-limit", 0, OPTION_SIZE, "SIZE", "use no more of the device's memory: 512M, 2G", 0, 0, NULL                \
    }
#define OPTION_TF32                                                                                                    \
    {                                                                                                                  \
        "tf32", 0, OPTION_FLAG, NULL, "products of f32 may round to TF32 on a GPU: faster", 0, 0, NULL                 \
    }
#define OPTION_AMP                                                                                                     \
    {                                                                                                                  \
        "amp", 0, OPTION_FLAG, NULL, "mixed precision: bf16, or f16, where that is fast", 0, 0, "bf16 f16"             \
    }

/* Device, threads, memory limit, TF32 and autocast as the options say; options a command does not have are left alone.
 */
int use_device(const arguments *a, kiln_device *device);

/* The type of --amp; 0: it was not given. */
kiln_dtype amp_of(const arguments *a);

/* ---- Weights in files ---- */
typedef struct saved {
    char *path; /* of the safetensors file */
    kiln_safetensors *file;
    const char *model, *data, *train; /* its metadata; NULL where it has none */
} saved;

/* ---- Networks ---- */
typedef struct network {
    const model_entry *entry; /* NULL: from a model file */
    model_options options;    /* of the entry */
    char *text;               /* what describes it in a run: name and options, or the model file itself */
    char *given;              /* as the user named it: "gpt2:layers=4", "nets/small.yaml" */
    char name[256];           /* for messages: "gpt2", or what the model file calls itself, made fit to be shown */
    bool kept;                /* it was described by a run, not on the command line */
    const char *file;         /* that of the run, which holds so many values; NULL: none */
    int64_t values;
    kiln_module *module;
    bool tokens; /* takes bytes of a text */
    int ndim;    /* of one input */
    int64_t shape[KILN_MAX_DIMS];
    kiln_dtype dtype;
    int64_t outputs; /* last size of the output: classes, or how many bytes there are */
    kiln_loss loss;
    unsigned metrics; /* those that suit the loss, for training */
} network;

/* From what --model takes: "name:key=value,…" or the path of a model file. Nothing is built yet when it is a name. */
int network_choose(network *n, const char *text);
/* From what a run keeps: a name with options, or the text of a model file. A file can name any: one that is larger than
 * what the file holds is refused before memory is taken for it. The file must stay open until the network is built. */
int network_choose_kept(network *n, const saved *s);
/* Takes the sizes that were not given from the data (NULL: the model's own defaults), builds, and checks that they fit.
 */
int network_build(network *n, const kiln_data_info *data, kiln_device device);
void network_free(network *n);
int64_t network_context(const network *n); /* bytes of text it sees at once; 0: as many as it is given */

/* ---- Data ---- */
typedef struct source {
    char *origin; /* "digits", or an absolute path */
    char *given;  /* as the user named it */
    double split;
    int64_t length;
    kiln_dataset *owned[2]; /* what train and test are parts of */
    kiln_dataset *train, *test;
    kiln_data_info info; /* of the samples */
} source;

int source_open(source *s, const char *text, double split, int64_t length);
bool source_is_text(const char *text); /* whether --data TEXT names a text */
void source_free(source *s);
char *source_meta(const source *s); /* a JSON object; freed by the caller */

/* ---- Runs ---- */
#define DEFAULT_RUN "kiln-run"

/* Opens a run's best weights (else its newest checkpoint's), or a safetensors file. */
int saved_open(saved *s, const char *path);
void saved_close(saved *s);
/* A text and a number from the JSON object of a metadata pair; `otherwise` where it has none. */
char *meta_text(const char *json, const char *key, const char *otherwise);
double meta_number(const char *json, const char *key, double otherwise);
/* The same for one that must be `otherwise` or from min to max, since a file can say anything. */
int kept_number(const char *json, const char *key, double otherwise, double min, double max, double *out);
/* Checks that a network has numbers for weights; `path` is the file they came from. */
int check_finite(const network *n, const char *path);

/* What eval, predict and generate begin with: the network of the run in a->rest[0] (DEFAULT_RUN without), with its
 * weights, in eval mode; and its data or that of --data, unless `s` is NULL. */
int open_run(const arguments *a, network *n, source *s, kiln_device *device);

/* Says what a run is, how far it came and how good it is; checkpoint: its newest one's folder, or NULL. */
int report_run(const char *folder, const char *checkpoint);

/* ---- Images ---- */

/* A grey picture from a PNG file, scaled to height x width, 0 … 1; freed by the caller. NULL after an error. */
float *image_read(const char *path, int64_t height, int64_t width, int *code);
void image_draw(const float *pixels, int64_t height, int64_t width, FILE *out); /* with block characters */

/* ---- Curves ---- */

/* Draws logs to a file whose name ends in .svg or .png. */
int plot_logs(int n, char *const *logs, const char *path, const char *title);

#endif
