/* Files: safetensors, checkpoints, model files. Every file is checked against its real size before memory is taken;
 * errors name the file and the offset, line or tensor. What is written appears under its name only when it is complete
 * and safe on disk: a file that is there is whole. What replaces a file has that one's mode. */
#ifndef KILN_IO_H
#define KILN_IO_H

#include "kiln/amp.h"
#include "kiln/data.h"
#include "kiln/nn.h"
#include "kiln/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- safetensors ---- */

/* A pair of the file's __metadata__. */
typedef struct kiln_meta {
    const char *key, *value;
} kiln_meta;

/* Writes tensors with their names, and n pairs of metadata. */
KILN_API bool kiln_safetensors_save(const char *path, kiln_params tensors, int n, const kiln_meta *metadata);
/* The same with all floats as this type (KILN_BF16 halves an f32 model), rounded to nearest even; integers stay. A
 * finite number that it cannot hold is an error that names the tensor, and no file is written. */
KILN_API bool kiln_safetensors_save_as(const char *path, kiln_params tensors, int n, const kiln_meta *metadata,
                                       kiln_dtype dtype);

/* An open file. Its header is read and checked; tensors are read when asked for. */
typedef struct kiln_safetensors kiln_safetensors;
typedef struct kiln_safetensor {
    const char *name;
    const char *dtype_name; /* as the file says: "F32", "I8" */
    kiln_dtype dtype;       /* KILN_DTYPES where Kiln has no such type */
    int ndim;
    int64_t shape[KILN_MAX_DIMS];
    uint64_t offset, bytes; /* of its data, from the start of the file */
} kiln_safetensor;
KILN_API kiln_safetensors *kiln_safetensors_open(const char *path);
KILN_API void kiln_safetensors_close(kiln_safetensors *f);
KILN_API int64_t kiln_safetensors_count(const kiln_safetensors *f);
KILN_API const kiln_safetensor *kiln_safetensors_at(const kiln_safetensors *f, int64_t i); /* in the order of offsets */
KILN_API int64_t kiln_safetensors_find(const kiln_safetensors *f, const char *name);       /* -1: not there */
KILN_API const char *kiln_safetensors_meta(const kiln_safetensors *f, const char *key);    /* NULL: not there */
KILN_API int kiln_safetensors_metas(const kiln_safetensors *f);
KILN_API kiln_meta kiln_safetensors_meta_at(const kiln_safetensors *f, int i);
/* A fresh tensor on `device`; or into one that is there (same shape; cast where floats differ). */
KILN_API kiln_tensor *kiln_safetensors_load(kiln_safetensors *f, int64_t i, kiln_device device);
KILN_API bool kiln_safetensors_load_into(kiln_safetensors *f, int64_t i, kiln_tensor *t);

/* A module's state, by name; _as: with floats of that type, as kiln_safetensors_save_as. Loading changes nothing unless
 * all names and shapes fit; the error lists those that do not. Floats of other types are cast, as PyTorch's
 * load_state_dict does. With `partial` names that only one side has are left alone. */
KILN_API bool kiln_module_save(kiln_module *m, const char *path);
KILN_API bool kiln_module_save_as(kiln_module *m, const char *path, kiln_dtype dtype);
KILN_API bool kiln_module_load(kiln_module *m, const char *path, bool partial);

/* ---- Checkpoints: folder/step-00001234/ with model.safetensors, optim.safetensors, ema.safetensors, state.json ----
 * The last complete one stays until the next is safe on disk; whatever interrupts a save, there is one to go on from.
 * Several threads and processes may save and load in one folder: they wait for each other by the lock of its file
 * .lock. Files that are none of a checkpoint's are never deleted. */
typedef struct kiln_checkpoint {
    kiln_module *model;
    kiln_optim *optim; /* NULL: none; the same for those below */
    kiln_schedule *schedule;
    kiln_ema *ema;
    int64_t epoch, batch; /* the next batch to be trained on: kiln_loader_seek's numbers */
    int64_t step;         /* optimizer steps taken; names the checkpoint */
    uint64_t seed;        /* of the loader */
    int nmeta;            /* pairs kept in model.safetensors: what model this is */
    const kiln_meta *meta;
    const char *extra; /* a JSON object that is kept as it is; loaded ones are freed with kiln_string_free */
    kiln_scaler *scaler;
} kiln_checkpoint;
/* Writes one. Afterwards older ones but the last `keep` (0: 1) are removed, and those of later steps, which belong to a
 * run that was given up. The calling thread's random state is part of it. */
KILN_API bool kiln_checkpoint_save_(const char *folder, const kiln_checkpoint *c, size_t size, int keep);
static inline bool kiln_checkpoint_save(const char *folder, const kiln_checkpoint *c, int keep)
{
    return kiln_checkpoint_save_(folder, c, sizeof *c, keep);
}
/* Loads the newest complete one into those of c's parts that are not NULL, and its numbers. False without an error when
 * the folder has none; an error when it is one of another model or optimizer: then nothing was changed, and the message
 * names what differs. One that was damaged is passed over with a notice; when all are, that is an error. */
KILN_API bool kiln_checkpoint_load_(const char *folder, kiln_checkpoint *c, size_t size);
static inline bool kiln_checkpoint_load(const char *folder, kiln_checkpoint *c)
{
    return kiln_checkpoint_load_(folder, c, sizeof *c);
}
/* The path of the newest complete one, or of `folder` itself when it is one; NULL without an error when there is none.
 * Freed with kiln_string_free. */
KILN_API char *kiln_checkpoint_find(const char *folder);

/* ---- Model files ----
 * YAML, for those who do not write C:
 *
 *     input: [1, 28, 28]
 *     layers:
 *       - conv2d: {out: 6, kernel: 5, padding: 2}
 *       - relu
 *       - max_pool2d: 2
 *       - flatten
 *       - linear: 10
 *
 * docs/model-files.md lists the layers. Sizes that follow from the layer before are not given. Errors name the line. */
typedef struct kiln_model_file {
    char name[64];
    int ndim; /* of one input, without the batch */
    int64_t shape[KILN_MAX_DIMS];
    kiln_dtype dtype; /* of the input: f32, or i64 for tokens */
} kiln_model_file;
KILN_API kiln_module *kiln_model_read_(const char *path, kiln_model_file *about, size_t size);
static inline kiln_module *kiln_model_read(const char *path, kiln_model_file *about) /* about may be NULL */
{
    return kiln_model_read_(path, about, sizeof *about);
}
/* From text; `name` stands for the file in messages. */
KILN_API kiln_module *kiln_model_parse_(const char *text, size_t bytes, const char *name, kiln_model_file *about,
                                        size_t size);
static inline kiln_module *kiln_model_parse(const char *text, size_t bytes, const char *name, kiln_model_file *about)
{
    return kiln_model_parse_(text, bytes, name, about, sizeof *about);
}

#ifdef __cplusplus
}
#endif
#endif
