/* A text as bytes: windows of it, each with the same window one byte further as its target. */
#include "core/sized.h"
#include "core/alloc.h"
#include "core/available.h"
#include "core/fail.h"
#include "data/dataset.h"
#include "data/stream.h"

static const char operation[] = "data_text";

typedef struct text {
    kiln_dataset base;
    uint8_t *bytes;
    int64_t length, stride;
} text;

static bool read_window(const kiln_dataset *d, int64_t index, void *x, void *y)
{
    const text *t = (const text *)d;
    const uint8_t *from = t->bytes + index * t->stride;
    int64_t *in = x, *out = y;
    for (int64_t i = 0; i < t->length; i++) {
        in[i] = from[i];
        out[i] = from[i + 1];
    }
    return true;
}

static bool stored_text(const kiln_dataset *d, kiln_stored *s)
{
    const text *t = (const text *)d;
    s->x = s->y = (kiln_stored_side){.data = t->bytes, .dtype = KILN_U8, .distance = t->stride};
    s->y.start = 1;
    return true;
}

static void free_text(kiln_dataset *d)
{
    kiln_free(((text *)d)->bytes);
}

/* The bytes of the part from … to of the file; *size of them. */
static uint8_t *read_part(const char *path, kiln_stream *f, const kiln_text_options *o, int64_t *size)
{
    bool exact;
    double whole = (double)kiln_stream_size(f, &exact);
    int64_t begin = (int64_t)(whole * o->from), end = (int64_t)(whole * o->to);
    *size = end - begin;
    if (*size <= o->length) {
        kiln_fail(KILN_E_FORMAT, operation, "%s is too short: samples of %lld bytes need %lld, and %s has %lld", path,
                  (long long)o->length, (long long)o->length + 1, *size == (int64_t)whole ? "it" : "this part of it",
                  (long long)*size);
        return kiln_hint("choose a length below %lld or take a longer text", (long long)(*size > 1 ? *size : 2));
    }
    if (!kiln_fits_memory((uint64_t)*size, path, operation))
        return NULL;
    uint8_t *bytes = kiln_alloc((size_t)*size, 1);
    int64_t got = bytes && kiln_stream_seek(f, (uint64_t)begin) ? kiln_stream_read(f, bytes, (size_t)*size) : -1;
    if (got == *size)
        return bytes;
    if (got >= 0)
        kiln_fail(KILN_E_IO, operation, "%s ends at byte %lld: it was cut off while it was read", path,
                  (long long)(begin + got));
    kiln_free(bytes);
    return NULL;
}

static bool check_options(kiln_text_options *o)
{
    o->length = o->length ? o->length : 128;
    o->stride = o->stride ? o->stride : o->length;
    if (o->from == 0 && o->to == 0)
        o->to = 1;
    if (o->length < 1 || o->length > INT64_MAX / 16 || o->stride < 1)
        return kiln_fail(KILN_E_ARGUMENT, operation, "samples of %lld bytes, %lld apart, cannot be made",
                         (long long)o->length, (long long)o->stride);
    if (!(o->from >= 0 && o->from < o->to && o->to <= 1))
        return kiln_fail(KILN_E_ARGUMENT, operation, "%g to %g is no part of a file: it lies between 0 and 1", o->from,
                         o->to);
    return true;
}

static bool open_text(text *t, const char *path, kiln_text_options o)
{
    static const kiln_dataset_kind kind = {.read = read_window, .stored = stored_text, .free = free_text};
    int64_t size = 0;
    kiln_stream *f = check_options(&o) ? kiln_stream_open(path, false, operation) : NULL;
    t->bytes = f ? read_part(path, f, &o, &size) : NULL;
    kiln_stream_close(f);
    if (!t->bytes)
        return false;
    t->length = o.length;
    t->stride = o.stride;
    kiln_field item = kiln_field_make(KILN_I64, 1, &o.length);
    kiln_data_info info = {
        .count = (size - 1 - o.length) / o.stride + 1, .x = item, .y = item, .classes = 256, .text = true};
    kiln_dataset_name(&info, path);
    return kiln_dataset_init(&t->base, &kind, &info, operation);
}

kiln_dataset *kiln_data_text_(const char *path, const kiln_text_options *given)
{
    kiln_text_options options;
    if (!KILN_TAKE_OPTIONS(operation, options, given))
        return NULL;
    if (!path)
        return kiln_fail(KILN_E_ARGUMENT, operation, "no file was given");
    text *t = kiln_alloc_zero(1, sizeof *t);
    if (!t || open_text(t, path, options))
        return t ? &t->base : NULL;
    free_text(&t->base);
    kiln_free(t);
    return NULL;
}
