/* IDX files, the format of MNIST and its relatives: two zero bytes, the element type, the number of dimensions, each
 * dimension as a big-endian word of 32 bits, then the elements. Images stay bytes in memory and become normalised
 * floats when they are read. */
#include <math.h>
#include <string.h>
#include "core/sized.h"
#include "core/alloc.h"
#include "core/available.h"
#include "core/fail.h"
#include "data/dataset.h"
#include "data/stream.h"

static const char operation[] = "data_idx";

enum { U8 = 0x08, MOST_DIMS = 3, FIRST_PIECE = 1 << 20 };

typedef struct idx_file {
    uint8_t *bytes;
    int64_t shape[MOST_DIMS];
} idx_file;

typedef struct idx {
    kiln_dataset base;
    uint8_t *images, *labels;
    float scale, shift;
    float table[256]; /* what each byte becomes */
} idx;

/* ---- Reading a file ---- */

static const char *type_name(int type)
{
    switch (type) {
    case 0x09: return "signed bytes";
    case 0x0b: return "16-bit integers";
    case 0x0c: return "32-bit integers";
    case 0x0d: return "32-bit floats";
    case 0x0e: return "64-bit floats";
    default: return NULL;
    }
}

static const char *kind_name(int ndim)
{
    return ndim == 3 ? "images" : "labels";
}

/* The first four bytes. */
static bool check_magic(const char *path, const uint8_t *h, int64_t got, int ndim)
{
    if (got < 4)
        return kiln_fail(KILN_E_FORMAT, operation, "%s ends at byte %lld, in the header of an IDX file", path,
                         (long long)got);
    if (h[0] || h[1] || (h[2] != U8 && !type_name(h[2])) || !h[3]) {
        kiln_fail(KILN_E_FORMAT, operation, "%s is no IDX file: it begins with the bytes %02x %02x %02x %02x", path,
                  h[0], h[1], h[2], h[3]);
        return kiln_hint("IDX %s begin with 00 00 08 %02x, or are gzipped", kind_name(ndim), ndim);
    }
    if (h[2] != U8)
        return kiln_fail(KILN_E_FORMAT, operation,
                         "%s holds %s (type %02x at byte 2); only unsigned bytes (08) are read", path, type_name(h[2]),
                         h[2]);
    if (h[3] == ndim)
        return true;
    if (h[3] != 1 && h[3] != 3)
        return kiln_fail(KILN_E_FORMAT, operation, "%s has %d dimensions; %s have %d", path, h[3], kind_name(ndim),
                         ndim);
    kiln_fail(KILN_E_FORMAT, operation, "%s holds %s, but was given as a file of %s", path, kind_name(h[3]),
              kind_name(ndim));
    return kiln_hint("the file of images comes first, the file of labels second");
}

/* The dimensions, and how many elements they make; 0 with an error. */
static uint64_t read_shape(const char *path, kiln_stream *f, int ndim, int64_t *shape)
{
    uint8_t words[4 * MOST_DIMS];
    uint64_t elements = 1;
    int64_t got = kiln_stream_read(f, words, (size_t)ndim * 4);
    if (got < ndim * 4) {
        if (got >= 0)
            kiln_fail(KILN_E_FORMAT, operation, "%s ends at byte %llu, in the header of an IDX file", path,
                      (unsigned long long)kiln_stream_offset(f));
        return 0;
    }
    for (int d = 0; d < ndim; d++) {
        const uint8_t *w = words + 4 * d;
        shape[d] = (int64_t)w[0] << 24 | (int64_t)w[1] << 16 | (int64_t)w[2] << 8 | (int64_t)w[3];
        if (shape[d] == 0) {
            kiln_fail(KILN_E_FORMAT, operation, "%s holds nothing: dimension %d, at byte %d, is 0", path, d, 4 + 4 * d);
            return 0;
        }
        if (__builtin_mul_overflow(elements, (uint64_t)shape[d], &elements) || elements > INT64_MAX / 16) {
            kiln_fail(KILN_E_FORMAT, operation, "%s declares more elements than a file can have, at byte %d", path,
                      4 + 4 * d);
            return 0;
        }
    }
    return elements;
}

static bool wrong_size(const char *path, const char *what, uint64_t declared, uint64_t real)
{
    kiln_fail(KILN_E_FORMAT, operation, "%s is %s: its header declares %llu bytes, and it has %llu", path, what,
              (unsigned long long)declared, (unsigned long long)real);
    return kiln_hint("the file is damaged or was not copied completely");
}

/* The elements. Memory grows with what really comes out of the file, whatever the header says. */
static uint8_t *read_elements(const char *path, kiln_stream *f, uint64_t count)
{
    uint64_t header = kiln_stream_offset(f), have = 0, room = 0;
    uint8_t *bytes = NULL, extra;
    while (have < count) {
        room = room ? room * 2 : FIRST_PIECE;
        room = room > count ? count : room;
        uint8_t *more = kiln_realloc(bytes, room, 1);
        int64_t got = more ? kiln_stream_read(f, more + have, room - have) : -1;
        bytes = more ? more : bytes;
        if (got < (int64_t)(room - have)) {
            if (got >= 0)
                wrong_size(path, "too short", header + count, kiln_stream_offset(f));
            kiln_free(bytes);
            return NULL;
        }
        have = room;
    }
    int64_t beyond = kiln_stream_read(f, &extra, 1); /* reaches the end of gzip data, and its check sum */
    if (!beyond)
        return bytes;
    if (beyond > 0) {
        kiln_fail(KILN_E_FORMAT, operation, "%s is too long: by its header it ends at byte %llu, but it goes on", path,
                  (unsigned long long)(header + count));
        kiln_hint("the file is damaged, or its header belongs to another");
    }
    kiln_free(bytes);
    return NULL;
}

static bool read_opened(const char *path, kiln_stream *f, int ndim, idx_file *out)
{
    uint8_t magic[4] = {0};
    int64_t got = kiln_stream_read(f, magic, 4);
    if (got < 0 || !check_magic(path, magic, got, ndim))
        return false;
    uint64_t count = read_shape(path, f, ndim, out->shape), header = kiln_stream_offset(f);
    if (!count)
        return false;
    bool exact;
    uint64_t size = kiln_stream_size(f, &exact);
    if (exact && size != header + count)
        return wrong_size(path, size < header + count ? "too short" : "too long", header + count, size);
    if (!exact && size < header + count)
        return kiln_fail(KILN_E_FORMAT, operation,
                         "%s is too short: its header declares %llu bytes, and gzip cannot have made it so small", path,
                         (unsigned long long)(header + count));
    if (!kiln_fits_memory(count, path, operation))
        return false;
    out->bytes = read_elements(path, f, count);
    return out->bytes != NULL;
}

static bool read_idx(const char *path, int ndim, idx_file *out)
{
    kiln_stream *f = kiln_stream_open(path, true, operation);
    bool ok = f && read_opened(path, f, ndim, out);
    kiln_stream_close(f);
    return ok;
}

/* ---- The data set ---- */

/* Sixteen pixels at a time, widened step by step: each step is one that vector units have. */
typedef uint8_t sixteen_bytes __attribute__((vector_size(16), aligned(1)));
typedef uint16_t sixteen_halves __attribute__((vector_size(32)));
typedef int32_t sixteen_words __attribute__((vector_size(64)));
typedef float sixteen_floats __attribute__((vector_size(64), aligned(4)));

static void normalise(const uint8_t *from, float *to, int64_t count, float scale, float shift)
{
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        sixteen_bytes bytes = *(const sixteen_bytes *)(from + i);
        sixteen_words words = __builtin_convertvector(__builtin_convertvector(bytes, sixteen_halves), sixteen_words);
        *(sixteen_floats *)(to + i) = __builtin_convertvector(words, sixteen_floats) * scale + shift;
    }
    for (; i < count; i++)
        to[i] = (float)from[i] * scale + shift;
}

static bool read_sample(const kiln_dataset *d, int64_t index, void *x, void *y)
{
    const idx *set = (const idx *)d;
    int64_t pixels = (int64_t)(d->x_bytes / sizeof(float));
    normalise(set->images + index * pixels, x, pixels, set->scale, set->shift);
    if (set->labels)
        *(int64_t *)y = set->labels[index];
    return true;
}

static bool stored_bytes(const kiln_dataset *d, kiln_stored *s)
{
    const idx *set = (const idx *)d;
    int64_t pixels = (int64_t)(d->x_bytes / sizeof(float));
    s->x = (kiln_stored_side){.data = set->images, .dtype = KILN_U8, .distance = pixels, .table = set->table};
    s->y = (kiln_stored_side){.data = set->labels, .dtype = KILN_U8, .distance = 1};
    return true;
}

static void free_bytes(kiln_dataset *d)
{
    idx *set = (idx *)d;
    kiln_free(set->images);
    kiln_free(set->labels);
}

static bool set_scale(idx *set, kiln_idx_options o)
{
    if (o.mean == 0 && o.std == 0)
        o = (kiln_idx_options){.mean = 0.1307, .std = 0.3081};
    if (!isfinite(o.mean) || !isfinite(o.std) || o.std <= 0)
        return kiln_fail(KILN_E_ARGUMENT, operation, "values cannot be normalised with mean %g and std %g", o.mean,
                         o.std);
    set->scale = (float)(1 / (255 * o.std));
    set->shift = (float)(-o.mean / o.std);
    for (int i = 0; i < 256; i++)
        normalise(&(uint8_t){(uint8_t)i}, &set->table[i], 1, set->scale, set->shift);
    memcpy(&set->base.blank, &set->table[0], sizeof *set->table);
    return true;
}

static bool open_files(idx *set, const char *images, const char *labels)
{
    static const kiln_dataset_kind kind = {.read = read_sample, .stored = stored_bytes, .free = free_bytes};
    idx_file x = {0}, y = {0};
    bool ok = read_idx(images, 3, &x) && (!labels || read_idx(labels, 1, &y));
    set->images = x.bytes;
    set->labels = y.bytes;
    if (!ok)
        return false;
    if (labels && x.shape[0] != y.shape[0])
        return kiln_fail(KILN_E_FORMAT, operation, "there are %lld images in %s, but %lld labels in %s",
                         (long long)x.shape[0], images, (long long)y.shape[0], labels);
    kiln_data_info info = {.count = x.shape[0],
                           .x = kiln_field_make(KILN_F32, 3, (int64_t[]){1, x.shape[1], x.shape[2]}),
                           .y = kiln_field_make(labels ? KILN_I64 : KILN_DTYPES, 0, NULL)};
    for (int64_t i = 0; labels && i < info.count; i++)
        if (set->labels[i] >= info.classes)
            info.classes = set->labels[i] + 1;
    kiln_dataset_name(&info, images);
    return kiln_dataset_init(&set->base, &kind, &info, operation);
}

kiln_dataset *kiln_data_idx_(const char *images, const char *labels, const kiln_idx_options *given)
{
    kiln_idx_options options;
    if (!KILN_TAKE_OPTIONS(operation, options, given))
        return NULL;
    if (!images)
        return kiln_fail(KILN_E_ARGUMENT, operation, "no file of images was given");
    idx *set = kiln_alloc_zero(1, sizeof *set);
    if (!set || (set_scale(set, options) && open_files(set, images, labels)))
        return set ? &set->base : NULL;
    free_bytes(&set->base);
    kiln_free(set);
    return NULL;
}
