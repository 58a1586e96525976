/* An open safetensors file from inside. */
#ifndef KILN_IO_SAFETENSORS_H
#define KILN_IO_SAFETENSORS_H

#include "kiln/io.h"
#include "core/arena.h"
#include "io/file.h"

typedef struct kiln_named { /* a name of the header */
    const char *name;
    int64_t index; /* in tensors */
    size_t at;     /* where it stands, from the start of the file */
} kiln_named;

struct kiln_safetensors {
    kiln_file file;
    char *path;
    kiln_arena names;
    int64_t count, capacity;
    kiln_safetensor *tensors; /* in the order of offsets */
    kiln_named *by_name;      /* sorted */
    int64_t named;            /* room in by_name */
    int64_t metas, meta_capacity;
    kiln_meta *meta;
};

/* The element types that the format knows; `bits` 0: not known. */
typedef struct kiln_safe_dtype {
    const char *name;
    int bits;
    kiln_dtype dtype; /* KILN_DTYPES: Kiln has no such type */
} kiln_safe_dtype;
const kiln_safe_dtype *kiln_safe_dtype_named(const char *name); /* NULL: nobody knows it */
const char *kiln_safe_dtype_name(kiln_dtype dtype);

/* Fills f from the header's text; `data` bytes of tensors follow it in the file. False with an error. */
bool kiln_safe_header(kiln_safetensors *f, const char *text, size_t bytes, uint64_t data);

/* ---- Files against lists of tensors (match.c): what modules and checkpoints load with ---- */

typedef struct kiln_match {
    kiln_safetensors *file;
    kiln_params want;
    const char *who, *what; /* "module_load", "the module" */
    bool partial;           /* names that only one side has are left alone */
    kiln_tensor **loaded;   /* values that wait to be assigned, as want's; NULL where the file has none */
} kiln_match;

bool kiln_match_check(const kiln_match *m);                /* names, shapes, dtypes; the error lists what differs */
bool kiln_match_read(kiln_match *m);                       /* reads all values; nothing is changed */
bool kiln_match_assign(kiln_match *const *matches, int n); /* all of them or nothing */
void kiln_match_end(kiln_match *m);                        /* releases what was read, closes the file */

/* kiln_safetensors_save for a folder that is itself a temporary: written in place. Tells the file's size. */
bool kiln_safetensors_write(const char *path, kiln_params tensors, int n, const kiln_meta *metadata, const char *who,
                            bool in_place, uint64_t *size);

/* kiln_safetensors_save_as on behalf of `who`. */
bool kiln_safetensors_write_as(const char *path, kiln_params tensors, int n, const kiln_meta *metadata,
                               kiln_dtype dtype, const char *who);

/* Whether these can be saved, as far as that is known without writing: names and texts that a file can hold. */
bool kiln_safetensors_check(kiln_params tensors, int n, const kiln_meta *metadata, const char *who);

#endif
