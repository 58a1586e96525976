/* What a data set is from the inside: a description, a function that reads one sample, and one that frees. */
#ifndef KILN_DATA_DATASET_H
#define KILN_DATA_DATASET_H

#include <pthread.h>
#include "kiln/data.h"

/* One side of all samples as it lies in host memory: element e of sample i is element start + i · distance + e. */
typedef struct kiln_stored_side {
    const void *data; /* NULL: there are no targets */
    kiln_dtype dtype; /* that of a sample, or u8 and i32 for i64 */
    int64_t start, distance;
    const float *table; /* not NULL: u8 stands for f32, the number at that place of 256 */
} kiln_stored_side;

typedef struct kiln_stored {
    kiln_stored_side x, y;
} kiln_stored;

/* Functions of one kind of data set. `read` is called from several threads at once. */
typedef struct kiln_dataset_kind {
    /* Fills x (and y, where there are targets) of sample `index`, which is in range. False with an error. */
    bool (*read)(const kiln_dataset *d, int64_t index, void *x, void *y);
    /* How samples lie in memory, to be copied to a device as they are; false where they do not. (optional) */
    bool (*stored)(const kiln_dataset *d, kiln_stored *s);
    /* The set that this one is a range of, and the number there of its first sample. (optional) */
    kiln_dataset *(*whole)(const kiln_dataset *d, int64_t *first);
    void (*free)(kiln_dataset *d); /* what the kind itself has allocated, but not *d; (optional) */
} kiln_dataset_kind;

/* Kinds that know more put this struct first in their own. */
struct kiln_dataset {
    kiln_data_info info;
    const kiln_dataset_kind *kind;
    size_t x_bytes, y_bytes; /* of one sample; y_bytes 0: no targets */
    bool lacks_labels;       /* integer targets of it may be KILN_NO_LABEL */
    uint64_t blank;          /* the bits of an element of x that stands for nothing: a black pixel */

    pthread_mutex_t lock;           /* of what follows */
    unsigned forks;                 /* as kiln_forks said when the lock was made */
    struct kiln_resident *resident; /* copies of all samples on devices: resident.h */
    bool told;                      /* that they do not fit there */
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
