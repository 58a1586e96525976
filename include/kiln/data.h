/* Data: sets of samples, and a loader that turns them into batches on a device. */
#ifndef KILN_DATA_H
#define KILN_DATA_H

#include "kiln/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Data sets: `count` samples, each an input x and a target y, all of the same shapes ---- */
typedef struct kiln_dataset kiln_dataset;

typedef struct kiln_field { /* one side of a sample */
    kiln_dtype dtype;
    int ndim;
    int64_t shape[KILN_MAX_DIMS]; /* without the batch */
} kiln_field;

typedef struct kiln_data_info {
    char name[64]; /* "digits", "mnist/t10k-images-idx3-ubyte.gz" */
    int64_t count;
    kiln_field x, y; /* y.dtype is KILN_DTYPES where samples have no target */
    int64_t classes; /* how many different labels y can have; 0: no labels */
    bool text;       /* x and y are bytes of a text, y one further than x */
    bool repeatable; /* a sample is the same each time it is read, so a loader may read it once and keep it */
} kiln_data_info;
KILN_API void kiln_data_describe_(const kiln_dataset *d, kiln_data_info *info, size_t size);
static inline kiln_data_info kiln_data_describe(const kiln_dataset *d) /* count 0 and name "" with an error for NULL */
{
    kiln_data_info info;
    kiln_data_describe_(d, &info, sizeof info);
    return info;
}
KILN_API int64_t kiln_data_count(const kiln_dataset *d);
KILN_API void kiln_data_free(kiln_dataset *d); /* NULL is fine; not while a loader uses it */

/* Tensors in memory: x [count, …] and y [count, …] or NULL. The data is copied. NaN and infinity are refused, the error
 * names the sample. An integer y holds labels from 0 on (-100: none, as losses have it): classes are counted. */
KILN_API kiln_dataset *kiln_data_tensors(kiln_tensor *x, kiln_tensor *y);

/* Samples made on demand: `read` fills x (and y, if the item has one) of sample `index`, row-major; it is called from
 * several threads at once. False when it cannot; the error then names the sample. Integer y are checked against
 * info.classes, unless that is 0. Set info.repeatable where a sample depends on its index alone. `context` must outlive
 * the set. */
typedef bool (*kiln_read_fn)(void *context, int64_t index, void *x, void *y);
KILN_API kiln_dataset *kiln_data_generator_(const kiln_data_info *info, size_t size, kiln_read_fn read, void *context);
static inline kiln_dataset *kiln_data_generator(kiln_data_info info, kiln_read_fn read, void *context)
{
    return kiln_data_generator_(&info, sizeof info, read, context);
}

/* IDX files, the MNIST family's, gzipped or not: images as f32 [1, height, width], (value/255 - mean) / std; labels
 * i64. labels may be NULL. Everything is checked when opened: sizes against each other and against the file. Classes
 * are the highest label plus one. */
typedef struct kiln_idx_options {
    size_t size;      /* of the struct; the macros set it */
    double mean, std; /* both 0: MNIST's 0.1307 and 0.3081 */
} kiln_idx_options;
#define kiln_data_idx(...) KILN_CALL2_(kiln_data_idx_, kiln_idx_options, __VA_ARGS__, )
KILN_API kiln_dataset *kiln_data_idx_(const char *images, const char *labels, const kiln_idx_options *options);

/* A text as bytes: sample i is x = bytes[i·stride …][length] and y = the same one byte further, i64 below 256. */
typedef struct kiln_text_options {
    size_t size;     /* of the struct; the macros set it */
    int64_t length;  /* 128 */
    int64_t stride;  /* length */
    double from, to; /* the part of the file to use; 0, 0 stands for 0 … 1 */
} kiln_text_options;
#define kiln_data_text(...) KILN_CALL1_(kiln_data_text_, kiln_text_options, __VA_ARGS__, )
KILN_API kiln_dataset *kiln_data_text_(const char *path, const kiln_text_options *options);

/* Handwriting drawn on the spot: digits as strokes, distorted and noisy, f32 [1, 28, 28] normalised, labels i64 0 … 9.
 * A sample is a function of its index alone; there is no end to them. The test set's indices lie apart from the
 * training set's. */
typedef struct kiln_digits_options {
    size_t size; /* of the struct; the macros set it */
    bool test;
    int64_t count; /* 60,000; test: 10,000 */
} kiln_digits_options;
#define kiln_data_digits(...) kiln_data_digits_(KILN_OPTIONS_(kiln_digits_options, __VA_ARGS__))
KILN_API kiln_dataset *kiln_data_digits_(const kiln_digits_options *options);

/* Samples first … first+count-1 of another set, which must outlive it. */
KILN_API kiln_dataset *kiln_data_range(kiln_dataset *d, int64_t first, int64_t count);

/* ---- The loader ----
 * The order of samples is a function of (seed, epoch, position) alone, the same for any number of workers. A loader is
 * used by one thread at a time. Workers begin with the first call of kiln_loader_next and prepare nothing beyond the
 * epoch; where the system gives no threads the calling thread does their work.
 *
 * On a device other than the CPU a data set that fits is put there whole, as it is stored, when its first loader is
 * made; it stays until kiln_data_free. Batches are then gathered, converted and augmented there, as part of the step
 * that uses them, with the same bits: nothing is copied and nobody waited for. It must lie in memory (tensors, IDX,
 * text) or be repeatable (digits, generators that say so). */
typedef struct kiln_loader kiln_loader;

/* What is changed at random about x, which must be images, [channels, height, width] or [height, width], of any dtype.
 * What is drawn is a function of (seed, epoch, number of the sample) alone: each epoch has other versions of an image,
 * and they are the same for any batch size, any order, any number of workers and on all devices. */
typedef struct kiln_augment {
    bool flip; /* mirror it, left to right, with probability one half */
    int crop;  /* put so many pixels around it and cut its size out of that at a random place: a shift by up to so many
                  pixels, up or down and left or right, each equally likely. What comes in at the edges is zero as the
                  image is stored, before it is normalised: black in IDX files and digits, 0 in tensors and generators.
                  Less than height and width */
    int64_t reserved_[6];
} kiln_augment;

typedef struct kiln_loader_options {
    size_t size;   /* of the struct; the macros set it */
    int64_t batch; /* 32, or all where there are fewer. More than the data set has is an error */
    bool shuffle;
    uint64_t seed;
    int workers;          /* threads that prepare batches ahead; 0: the calling thread does it */
    int prefetch;         /* batches ready at most; 0: 4 a worker */
    bool drop_last;       /* leave out a last batch that is not full */
    kiln_device device;   /* where batches end up */
    kiln_augment augment; /* images, as in .augment = {.flip = true, .crop = 2}. All zero: samples as they are */
    double resident; /* the share of the device's memory that the data set may take there. 0: a quarter; below 0: none,
                        batches are copied one by one. A set that would need more is noticed (kiln_next_notice) */
} kiln_loader_options;
#define kiln_loader_new(...) KILN_CALL1_(kiln_loader_new_, kiln_loader_options, __VA_ARGS__, )
KILN_API kiln_loader *kiln_loader_new_(kiln_dataset *d, const kiln_loader_options *options);
KILN_API void kiln_loader_free(kiln_loader *l); /* before its data set */

/* A batch. The tensors belong to the loader and hold until the next call of kiln_loader_next or _seek. */
typedef struct kiln_batch {
    kiln_tensor *x, *y;   /* [size, …]; y NULL where there are no targets */
    int64_t size;         /* samples in it */
    int64_t epoch, index; /* the how manyth batch of which epoch, from 0 */
} kiln_batch;

/* The next batch; false at the end of the epoch (the call after that begins the next epoch) and on an error: a sample
 * that could not be read, by its number. After an error the next call tries the same batch again. */
KILN_API bool kiln_loader_next_(kiln_loader *l, kiln_batch *b, size_t size);
static inline bool kiln_loader_next(kiln_loader *l, kiln_batch *b)
{
    return kiln_loader_next_(l, b, sizeof *b);
}

/* Goes to a place: the next batch is number `index` of `epoch`; kiln_loader_batches stands for the epoch's end. */
KILN_API bool kiln_loader_seek(kiln_loader *l, int64_t epoch, int64_t index);

KILN_API int64_t kiln_loader_batches(const kiln_loader *l);                   /* in an epoch */
KILN_API int64_t kiln_loader_batch_size(const kiln_loader *l, int64_t index); /* samples in batch `index` */

/* Which sample stands at `position` of an epoch; -1 with an error when there is no such place. */
KILN_API int64_t kiln_loader_sample(const kiln_loader *l, int64_t epoch, int64_t position);

/* Seconds that kiln_loader_next has waited for workers, or read samples itself, since the loader was made. */
KILN_API double kiln_loader_waited(const kiln_loader *l);

#ifdef __cplusplus
}
#endif
#endif
