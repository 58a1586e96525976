/* What a data set is from the inside: a description, a function that reads one sample, and one that frees. */
#ifndef KILN_DATA_DATASET_H
#define KILN_DATA_DATASET_H

#include "kiln/data.h"

/* Functions of one kind of data set. `read` is called from several threads at once. */
typedef struct kiln_dataset_kind {
    /* Fills x (and y, where there are targets) of sample `index`, which is in range. False with an error. */
    bool (*read)(const kiln_dataset *d, int64_t index, void *x, void *y);
    void (*free)(kiln_dataset *d); /* what the kind itself has allocated, but not *d; (optional) */
} kiln_dataset_kind;

/* Kinds that know more put this struct first in their own. */
struct kiln_dataset {
    kiln_data_info info;
    const kiln_dataset_kind *kind;
    size_t x_bytes, y_bytes; /* of one sample; y_bytes 0: no targets */
};

/* Checks the description and fills in the sizes. False with an error of `operation`. */
bool kiln_dataset_init(kiln_dataset *d, const kiln_dataset_kind *kind, const kiln_data_info *info,
                       const char *operation);

/* Describes one side of a sample. */
kiln_field kiln_field_make(kiln_dtype dtype, int ndim, const int64_t *shape);

/* The last two parts of a path, as long as the name has room: "mnist/t10k-images-idx3-ubyte". */
void kiln_dataset_name(kiln_data_info *info, const char *path);

/* Reads a sample; an error names it. */
bool kiln_dataset_read(const kiln_dataset *d, int64_t index, void *x, void *y);

/* An integer of a dtype that is one. */
int64_t kiln_integer_at(kiln_dtype dtype, const void *values, int64_t i);

/* True where a label can be used with so many classes. -100 is what losses leave out. */
enum { KILN_NO_LABEL = -100 };
static inline bool kiln_label_fits(int64_t label, int64_t classes)
{
    return (label >= 0 && label < classes) || label == KILN_NO_LABEL;
}

#endif
