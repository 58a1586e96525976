/* Writing safetensors files in the reference's layout, so that the same tensors give the same bytes: entries sorted by
 * dtype, wide ones first, then by name; the header padded with spaces to a multiple of eight. So data is aligned. */
#include "io/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/convert.h"
#include "core/fail.h"

typedef struct entry {
    const char *name;
    kiln_tensor *tensor;
    kiln_dtype dtype; /* in the file */
    int rank;         /* of that */
    uint64_t bytes;   /* of all, in the file */
} entry;

/* The reference's order of types. */
static const int ranks[KILN_DTYPES] = {
    [KILN_I64] = 0,  [KILN_F64] = 1, [KILN_F32] = 2, [KILN_I32] = 3,
    [KILN_BF16] = 4, [KILN_F16] = 5, [KILN_U8] = 6,  [KILN_BOOL] = 7,
};

static int compare_entries(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank - y->rank;
    return strcmp(x->name, y->name);
}

static bool no_memory(const char *path, const char *who)
{
    return kiln_fail(KILN_E_MEMORY, who, "%s: memory does not suffice for the header", path);
}

/* The entries in the order of the file, with floats of that type (KILN_DTYPES: as they are); NULL with an error. */
static entry *sort_entries(const char *path, kiln_params tensors, kiln_dtype floats, const char *who)
{
    entry *entries = kiln_alloc((size_t)tensors.count, sizeof *entries);
    for (int64_t i = 0; entries && i < tensors.count; i++) {
        kiln_tensor *t = tensors.tensors[i];
        const char *name = tensors.names[i];
        const char *why = !t || !name                     ? "is NULL"
                          : !strcmp(name, "__metadata__") ? "has a name that is reserved"
                                                          : NULL;
        if (why) {
            if (t || kiln_ok())
                kiln_fail(KILN_E_ARGUMENT, who, "%s: tensor %lld%s%.80s %s", path, (long long)i, name ? ", " : "",
                          name ? name : "", why);
            kiln_free(entries);
            return NULL;
        }
        kiln_dtype own = kiln_dtype_of(t), dtype = floats != KILN_DTYPES && kiln_dtype_is_float(own) ? floats : own;
        entries[i] = (entry){name, t, dtype, ranks[dtype], (uint64_t)kiln_numel(t) * kiln_dtype_size(dtype)};
    }
    if (entries && tensors.count)
        qsort(entries, (size_t)tensors.count, sizeof *entries, compare_entries);
    return entries;
}

static json_t *describe(const entry *e, uint64_t offset)
{
    json_t *shape = json_array();
    for (int d = 0; d < kiln_ndim(e->tensor); d++)
        json_array_append_new(shape, json_integer(kiln_shape(e->tensor)[d]));
    json_t *described = json_pack("{s:s, s:o, s:[I, I]}", "dtype", kiln_safe_dtype_name(e->dtype), "shape", shape,
                                  "data_offsets", (json_int_t)offset, (json_int_t)(offset + e->bytes));
    if (described && json_array_size(shape) == (size_t)kiln_ndim(e->tensor))
        return described;
    json_decref(described);
    return NULL;
}

static bool add_pair(json_t *object, const char *key, json_t *value, const char *path, const char *who)
{
    bool twice = key && json_object_get(object, key);
    if (key && value && !twice && json_object_set_new(object, key, value) == 0) /* takes value, also when it fails */
        return true;
    if (twice || !key)
        json_decref(value);
    if (twice)
        return kiln_fail(KILN_E_ARGUMENT, who, "%s: the name '%.80s' is given twice", path, key);
    return kiln_fail(KILN_E_ARGUMENT, who, "%s: '%.80s' or its value is not UTF-8 text", path, key ? key : "(null)");
}

static json_t *make_header(const char *path, const entry *entries, int64_t count, int n, const kiln_meta *metadata,
                           const char *who)
{
    json_t *root = json_object(), *pairs = n > 0 ? json_object() : NULL;
    bool ok = (root && (n <= 0 || pairs)) || no_memory(path, who);
    for (int i = 0; ok && i < n; i++)
        ok = add_pair(pairs, metadata[i].key, metadata[i].value ? json_string(metadata[i].value) : NULL, path, who);
    if (ok && pairs)
        ok = json_object_set(root, "__metadata__", pairs) == 0 || no_memory(path, who);
    uint64_t offset = 0;
    for (int64_t i = 0; ok && i < count; i++) {
        ok = add_pair(root, entries[i].name, describe(&entries[i], offset), path, who);
        offset += entries[i].bytes;
    }
    json_decref(pairs);
    if (ok)
        return root;
    json_decref(root);
    return NULL;
}

static bool put_header(kiln_writer *w, const char *path, json_t *root, const char *who)
{
    size_t bytes = json_dumpb(root, NULL, 0, JSON_COMPACT), padded = (bytes + 7) / 8 * 8;
    if (!bytes)
        return no_memory(path, who);
    char *text = kiln_alloc(8 + padded, 1);
    if (!text)
        return false;
    for (int i = 0; i < 8; i++)
        text[i] = (char)(padded >> 8 * i);
    memset(text + 8, ' ', padded);
    bool ok = (json_dumpb(root, text + 8, bytes, JSON_COMPACT) == bytes || no_memory(path, who)) &&
              kiln_writer_put(w, text, 8 + padded);
    kiln_free(text);
    return ok;
}

/* A number that the file's type cannot hold is refused: a file with infinite weights is of no use to anybody. */
static bool convert(const entry *e, void *to, const void *from, const char *path, const char *who)
{
    kiln_dtype own = kiln_dtype_of(e->tensor);
    int64_t at = kiln_convert_floats(to, e->dtype, from, own, kiln_numel(e->tensor));
    if (at < 0)
        return true;
    double value;
    kiln_convert_floats(&value, KILN_F64, (const char *)from + (size_t)at * kiln_dtype_size(own), own, 1);
    kiln_fail(KILN_E_ARGUMENT, who, "%s: element %lld of '%.80s' is %g, more than %s can hold", path, (long long)at,
              e->name, value, kiln_dtype_name(e->dtype));
    return kiln_hint(e->dtype == KILN_F16 ? "save as bf16, which holds what f32 does" : "save it as it is");
}

static bool put_tensor(kiln_writer *w, const entry *e, void *own, void *converted, const char *path, const char *who)
{
    size_t bytes = (size_t)kiln_numel(e->tensor) * kiln_dtype_size(kiln_dtype_of(e->tensor));
    if (!kiln_read(e->tensor, own, bytes))
        return false;
    if (kiln_dtype_of(e->tensor) == e->dtype)
        return kiln_writer_put(w, own, bytes);
    return convert(e, converted, own, path, who) && kiln_writer_put(w, converted, (size_t)e->bytes);
}

static bool put_data(kiln_writer *w, const entry *entries, int64_t count, const char *path, const char *who)
{
    uint64_t own = 0, converted = 0; /* the largest of them */
    for (int64_t i = 0; i < count; i++) {
        kiln_dtype dtype = kiln_dtype_of(entries[i].tensor);
        uint64_t bytes = (uint64_t)kiln_numel(entries[i].tensor) * kiln_dtype_size(dtype);
        own = bytes > own ? bytes : own;
        if (dtype != entries[i].dtype)
            converted = entries[i].bytes > converted ? entries[i].bytes : converted;
    }
    void *data = kiln_alloc((size_t)own, 1), *other = data ? kiln_alloc((size_t)converted, 1) : NULL;
    bool ok = other;
    for (int64_t i = 0; ok && i < count; i++)
        ok = put_tensor(w, &entries[i], data, other, path, who);
    kiln_free(data);
    kiln_free(other);
    return ok;
}

static bool write_file(const char *path, kiln_params tensors, int n, const kiln_meta *metadata, kiln_dtype floats,
                       const char *who, bool in_place, uint64_t *size)
{
    if (tensors.count < 0 || n < 0 || (tensors.count && (!tensors.tensors || !tensors.names)) || (n && !metadata))
        return kiln_fail(KILN_E_ARGUMENT, who, "the list of tensors or of metadata is not one");
    entry *entries = sort_entries(path, tensors, floats, who);
    json_t *root = entries ? make_header(path, entries, tensors.count, n, metadata, who) : NULL;
    kiln_writer w = {.fd = -1};
    bool ok = root && kiln_writer_begin(&w, path, who, in_place) && put_header(&w, path, root, who) &&
              put_data(&w, entries, tensors.count, path, who);
    if (size)
        *size = w.written;
    if (ok)
        ok = kiln_writer_commit(&w);
    else
        kiln_writer_abort(&w);
    json_decref(root);
    kiln_free(entries);
    return ok;
}

bool kiln_safetensors_write(const char *path, kiln_params tensors, int n, const kiln_meta *metadata, const char *who,
                            bool in_place, uint64_t *size)
{
    return write_file(path, tensors, n, metadata, KILN_DTYPES, who, in_place, size);
}

bool kiln_safetensors_check(kiln_params tensors, int n, const kiln_meta *metadata, const char *who)
{
    entry *entries = sort_entries("what is to be saved", tensors, KILN_DTYPES, who);
    json_t *root = entries ? make_header("what is to be saved", entries, tensors.count, n, metadata, who) : NULL;
    json_decref(root);
    kiln_free(entries);
    return root;
}

bool kiln_safetensors_save(const char *path, kiln_params tensors, int n, const kiln_meta *metadata)
{
    return kiln_safetensors_write(path ? path : "", tensors, n, metadata, "safetensors", false, NULL);
}

bool kiln_safetensors_save_as(const char *path, kiln_params tensors, int n, const kiln_meta *metadata, kiln_dtype dtype)
{
    return kiln_safetensors_write_as(path, tensors, n, metadata, dtype, "safetensors");
}

bool kiln_safetensors_write_as(const char *path, kiln_params tensors, int n, const kiln_meta *metadata,
                               kiln_dtype dtype, const char *who)
{
    if (!kiln_dtype_is_float(dtype)) {
        kiln_fail(KILN_E_DTYPE, who, "floats cannot be saved as %s",
                  kiln_dtype_size(dtype) ? kiln_dtype_name(dtype) : "what is no dtype");
        return kiln_hint("KILN_F16, KILN_BF16, KILN_F32 and KILN_F64 are the floats there are");
    }
    return write_file(path ? path : "", tensors, n, metadata, dtype, who, false, NULL);
}
