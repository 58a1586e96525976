/* The header of a safetensors file: a JSON object with one entry a tensor. It is walked name by name, and each entry is
 * given to the JSON library alone, so that a header of millions of entries costs what its entries hold and no more.
 * Nothing it says is believed before it was checked: names, types, shapes, and offsets that cover the data exactly. */
#include "io/safetensors.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/fail.h"
#include "ops/op.h"

enum {
    PREFIX = 8,
    ENTRY_MAX = 4096
}; /* bytes before the header; of one tensor's entry, far more than eight dims take */

typedef struct header {
    kiln_safetensors *file;
    const char *text;
    size_t size, at;
    uint64_t data;    /* bytes of tensors in the file */
    kiln_named *keys; /* of __metadata__ */
    int64_t key_capacity;
} header;

static const kiln_safe_dtype dtypes[] = {
    {"BOOL", 8, KILN_BOOL},      {"U8", 8, KILN_U8},       {"I32", 32, KILN_I32},       {"I64", 64, KILN_I64},
    {"F16", 16, KILN_F16},       {"BF16", 16, KILN_BF16},  {"F32", 32, KILN_F32},       {"F64", 64, KILN_F64},
    {"I8", 8, KILN_DTYPES},      {"I16", 16, KILN_DTYPES}, {"U16", 16, KILN_DTYPES},    {"U32", 32, KILN_DTYPES},
    {"U64", 64, KILN_DTYPES},    {"C64", 64, KILN_DTYPES}, {"F8_E5M2", 8, KILN_DTYPES}, {"F8_E4M3", 8, KILN_DTYPES},
    {"F8_E8M0", 8, KILN_DTYPES}, {"F4", 4, KILN_DTYPES},   {"F6_E2M3", 6, KILN_DTYPES}, {"F6_E3M2", 6, KILN_DTYPES},
};
enum { KNOWN = sizeof dtypes / sizeof *dtypes };

const kiln_safe_dtype *kiln_safe_dtype_named(const char *name)
{
    for (int i = 0; i < KNOWN; i++)
        if (!strcmp(dtypes[i].name, name))
            return &dtypes[i];
    return NULL;
}

const char *kiln_safe_dtype_name(kiln_dtype dtype)
{
    for (int i = 0; i < KNOWN; i++)
        if (dtypes[i].dtype == dtype && dtype != KILN_DTYPES)
            return dtypes[i].name;
    return NULL;
}

__attribute__((format(printf, 3, 4))) static bool bad(const header *h, size_t at, const char *format, ...)
{
    char what[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return kiln_fail(KILN_E_FORMAT, "safetensors", "%s: header, byte %zu: %s", h->file->path, PREFIX + at, what);
}

static void skip_space(header *h)
{
    while (h->at < h->size && memchr(" \t\r\n", h->text[h->at], 4))
        h->at++;
}

static bool take(header *h, char c)
{
    skip_space(h);
    if (h->at < h->size && h->text[h->at] == c) {
        h->at++;
        return true;
    }
    return false;
}

/* Lets the JSON library read text[from … to). */
static json_t *parse(const header *h, size_t from, size_t to)
{
    json_error_t error;
    json_t *value = json_loadb(h->text + from, to - from, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (!value && json_error_code(&error) == json_error_out_of_memory)
        kiln_fail(KILN_E_MEMORY, "safetensors", "%s: memory does not suffice for the header", h->file->path);
    else if (!value)
        bad(h, from + (error.position > 0 ? (size_t)error.position - 1 : 0), "%s", error.text);
    return value;
}

/* The end of the string that begins at `from`, 0 when it has none. */
static size_t string_end(const header *h, size_t from)
{
    for (size_t i = from + 1; i < h->size; i++)
        if (h->text[i] == '\\')
            i++;
        else if (h->text[i] == '"')
            return i + 1;
    return 0;
}

/* A string, copied to the file's names; NULL with an error. */
static const char *take_string(header *h, const char *what)
{
    skip_space(h);
    size_t from = h->at, to = from < h->size && h->text[from] == '"' ? string_end(h, from) : 0;
    if (!to) {
        bad(h, from, "%s expected", what);
        return NULL;
    }
    json_t *value = parse(h, from, to);
    size_t length = value ? json_string_length(value) : 0;
    char *copy = value ? kiln_arena_take(&h->file->names, length + 1, 1) : NULL;
    if (copy)
        memcpy(copy, json_string_value(value), length);
    json_decref(value);
    h->at = to;
    return copy;
}

/* The end of the object that begins at `from`; 0 with an error when it has none, or a longer one than entries are. */
static size_t object_end(header *h, size_t from, const char *name)
{
    int depth = 0;
    size_t limit = h->size - from < ENTRY_MAX ? h->size : from + ENTRY_MAX;
    for (size_t i = from; i < limit; i++) {
        char c = h->text[i];
        if (c == '"') {
            if (!(i = string_end(h, i)))
                break;
            i--;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if ((c == '}' || c == ']') && --depth == 0) {
            return i + 1;
        }
    }
    bad(h, from, "the entry of '%.80s' has no end", name);
    return 0;
}

/* A whole number from 0 up; false when it is something else. */
static bool whole(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static bool set_shape(const header *h, size_t at, const json_t *shape, kiln_safetensor *t)
{
    if (!json_is_array(shape))
        return bad(h, at, "'shape' of '%.80s' is not a list", t->name);
    size_t n = json_array_size(shape);
    if (n > KILN_MAX_DIMS)
        return bad(h, at, "'%.80s' has %zu dimensions, more than the %d of a tensor", t->name, n, KILN_MAX_DIMS);
    t->ndim = (int)n;
    for (size_t d = 0; d < n; d++) {
        uint64_t size;
        if (!whole(json_array_get(shape, d), &size))
            return bad(h, at, "'shape' of '%.80s' holds something else than whole numbers from 0 up", t->name);
        t->shape[d] = (int64_t)size;
    }
    return true;
}

static bool set_offsets(const header *h, size_t at, const json_t *offsets, kiln_safetensor *t)
{
    uint64_t begin, end;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !whole(json_array_get(offsets, 0), &begin) ||
        !whole(json_array_get(offsets, 1), &end))
        return bad(h, at, "'data_offsets' of '%.80s' is not a list of two whole numbers from 0 up", t->name);
    if (begin > end || end > h->data)
        return bad(h, at, "'%.80s' is said to be at %llu … %llu of the data, which has %llu bytes", t->name,
                   (unsigned long long)begin, (unsigned long long)end, (unsigned long long)h->data);
    t->offset = PREFIX + h->size + begin;
    t->bytes = end - begin;
    return true;
}

/* The bytes that dtype and shape ask for are the bytes that the offsets give. */
static bool check_size(const header *h, size_t at, const kiln_safetensor *t, const kiln_safe_dtype *known)
{
    int64_t n = kiln_count(t->ndim, t->shape), bits;
    if (n < 0)
        return bad(h, at, "the shape %s of '%.80s' is none that a tensor can have", kiln_shape_text(t->ndim, t->shape),
                   t->name);
    if (!known)
        return true;
    if (__builtin_mul_overflow(n, (int64_t)known->bits, &bits) || bits % 8 || (uint64_t)(bits / 8) != t->bytes)
        return bad(h, at, "'%.80s' of %s %s does not take the %llu bytes that its offsets give it", t->name,
                   known->name, kiln_shape_text(t->ndim, t->shape), (unsigned long long)t->bytes);
    return true;
}

static bool fill(header *h, size_t at, const json_t *entry, kiln_safetensor *t)
{
    const json_t *dtype = json_object_get(entry, "dtype"), *shape = json_object_get(entry, "shape"),
                 *offsets = json_object_get(entry, "data_offsets");
    if (!dtype || !shape || !offsets || json_object_size(entry) != 3)
        return bad(h, at, "the entry of '%.80s' must have 'dtype', 'shape' and 'data_offsets' and nothing else",
                   t->name);
    if (!json_is_string(dtype) || json_string_length(dtype) > 32)
        return bad(h, at, "'dtype' of '%.80s' is not the name of a type", t->name);
    const kiln_safe_dtype *known = kiln_safe_dtype_named(json_string_value(dtype));
    t->dtype = known ? known->dtype : KILN_DTYPES;
    if (known) {
        t->dtype_name = known->name;
    } else {
        char *copy = kiln_arena_take(&h->file->names, json_string_length(dtype) + 1, 1);
        if (!copy)
            return false;
        memcpy(copy, json_string_value(dtype), json_string_length(dtype));
        t->dtype_name = copy;
    }
    return set_shape(h, at, shape, t) && set_offsets(h, at, offsets, t) && check_size(h, at, t, known);
}

static bool take_tensor(header *h, const char *name, size_t name_at)
{
    kiln_safetensors *f = h->file;
    size_t from = h->at, to;
    if (h->at >= h->size || h->text[from] != '{')
        return bad(h, from, "the entry of '%.80s' is not an object", name);
    if (!(to = object_end(h, from, name)) || !KILN_GROW(f->tensors, f->capacity, f->count + 1) ||
        !KILN_GROW(f->by_name, f->named, f->count + 1))
        return false;
    json_t *entry = parse(h, from, to);
    kiln_safetensor *t = &f->tensors[f->count];
    *t = (kiln_safetensor){.name = name};
    bool ok = entry && fill(h, from, entry, t);
    json_decref(entry);
    f->by_name[f->count++] = (kiln_named){.name = name, .at = name_at};
    h->at = to;
    return ok;
}

static int compare_names(const void *a, const void *b)
{
    const kiln_named *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x->at > y->at) - (x->at < y->at);
}

static bool check_names(const header *h, kiln_named *names, int64_t n)
{
    if (n)
        qsort(names, (size_t)n, sizeof *names, compare_names);
    for (int64_t i = 1; i < n; i++)
        if (!strcmp(names[i - 1].name, names[i].name))
            return bad(h, names[i].at, "the name '%.80s' is there twice", names[i].name);
    return true;
}

/* The name of an object's next member, with the comma before it and the colon behind it; `at`: where it stands. */
static const char *take_name(header *h, bool first, const char *what, size_t *at)
{
    if (!first && !take(h, ',')) {
        bad(h, h->at, "',' or '}' expected");
        return NULL;
    }
    skip_space(h);
    *at = h->at;
    const char *name = take_string(h, what);
    if (name && !take(h, ':')) {
        bad(h, h->at, "':' expected");
        return NULL;
    }
    return name;
}

static bool take_metadata(header *h)
{
    kiln_safetensors *f = h->file;
    if (f->meta)
        return bad(h, h->at, "'__metadata__' is there twice");
    if (!take(h, '{'))
        return bad(h, h->at, "'__metadata__' is not an object");
    if (!KILN_GROW(f->meta, f->meta_capacity, 1))
        return false;
    for (bool more = !take(h, '}'); more; more = !take(h, '}')) {
        size_t at;
        const char *key = take_name(h, f->metas == 0, "a name in '__metadata__'", &at);
        if (!key)
            return false;
        const char *value = take_string(h, "a string for a name of '__metadata__'");
        if (!value || !KILN_GROW(f->meta, f->meta_capacity, f->metas + 1) ||
            !KILN_GROW(h->keys, h->key_capacity, f->metas + 1))
            return false;
        h->keys[f->metas] = (kiln_named){.name = key, .at = at};
        f->meta[f->metas++] = (kiln_meta){key, value};
    }
    return check_names(h, h->keys, f->metas);
}

static bool take_entries(header *h)
{
    if (!h->size || h->text[0] != '{')
        return bad(h, 0, "'{' expected");
    h->at = 1;
    for (bool more = !take(h, '}'), first = true; more; more = !take(h, '}'), first = false) {
        size_t at;
        const char *name = take_name(h, first, "a tensor's name", &at);
        if (!name)
            return false;
        skip_space(h);
        if (!(strcmp(name, "__metadata__") ? take_tensor(h, name, at) : take_metadata(h)))
            return false;
    }
    skip_space(h);
    return h->at == h->size || bad(h, h->at, "only spaces may follow the last '}'");
}

static int compare_offsets(const void *a, const void *b)
{
    const kiln_safetensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1; /* those without elements before the one that begins there */
    return strcmp(x->name, y->name);
}

/* Sorted, each tensor begins where the one before it ends, and the last ends where the file does. */
static bool check_cover(const header *h)
{
    kiln_safetensors *f = h->file;
    uint64_t start = PREFIX + h->size, at = start;
    if (f->count)
        qsort(f->tensors, (size_t)f->count, sizeof *f->tensors, compare_offsets);
    for (int64_t i = 0; i < f->count; i++) {
        const kiln_safetensor *t = &f->tensors[i];
        if (t->offset < at)
            return kiln_fail(KILN_E_FORMAT, "safetensors", "%s: the data of '%.80s' and '%.80s' overlap at byte %llu",
                             f->path, f->tensors[i - 1].name, t->name, (unsigned long long)t->offset);
        if (t->offset > at)
            return kiln_fail(KILN_E_FORMAT, "safetensors", "%s: bytes %llu … %llu before '%.80s' belong to no tensor",
                             f->path, (unsigned long long)at, (unsigned long long)t->offset, t->name);
        at += t->bytes;
    }
    if (at != start + h->data)
        return kiln_fail(KILN_E_FORMAT, "safetensors", "%s: bytes %llu … %llu at the end belong to no tensor", f->path,
                         (unsigned long long)at, (unsigned long long)(start + h->data));
    return true;
}

/* by_name was filled in the order of the header; tensors are sorted by offset since. */
static void number_names(kiln_safetensors *f)
{
    for (int64_t i = 0; i < f->count; i++) {
        kiln_named key = {.name = f->tensors[i].name};
        int64_t low = 0, high = f->count;
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (strcmp(f->by_name[middle].name, key.name) < 0)
                low = middle + 1;
            else
                high = middle;
        }
        f->by_name[low].index = i;
    }
}

bool kiln_safe_header(kiln_safetensors *f, const char *text, size_t bytes, uint64_t data)
{
    header h = {.file = f, .text = text, .size = bytes, .data = data};
    bool ok = take_entries(&h) && check_names(&h, f->by_name, f->count) && check_cover(&h);
    kiln_free(h.keys);
    if (ok)
        number_names(f);
    return ok;
}
