/* Tensors as text, laid out as PyTorch lays them out with its default print options, but with Kiln's dtype names. The
 * layout follows from the elements that are shown: one width and one notation for all of them. */
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "core/half.h"
#include "tensor/tensor.h"

enum {
    PRECISION = 4,    /* digits after the point */
    LINE_WIDTH = 80,  /* columns a row may fill before it wraps */
    THRESHOLD = 1000, /* tensors with more elements are summarized … */
    EDGE = 3,         /* … to this many at both ends of a dim */
    ELEMENT_TEXT = 64 /* room for one element: the longest are 20 digits of an i64 and the wide e-notation */
};

static const char prefix[] = "tensor(";

typedef struct text { /* a growing string; never ends in a zero before it is finished */
    char *chars;
    int64_t length, capacity;
    bool failed; /* memory ran out; what is put afterwards is dropped */
} text;

typedef struct printer {
    const kiln_tensor *t;
    const void *data;              /* all elements, row-major */
    int64_t stride[KILN_MAX_DIMS]; /* of `data` */
    bool summarize;
    bool fractions;         /* floats: some element is no integer */
    bool scientific;        /* floats: all in e-notation */
    double least, greatest; /* magnitudes of the finite nonzero elements */
    int width;              /* that elements are padded to */
    text out;
} printer;

/* ---- Text ---- */

static void put(text *out, const char *chars, size_t n)
{
    out->failed = out->failed || !KILN_GROW(out->chars, out->capacity, out->length + (int64_t)n);
    if (out->failed)
        return;
    memcpy(out->chars + out->length, chars, n);
    out->length += (int64_t)n;
}

static void put_string(text *out, const char *string)
{
    put(out, string, strlen(string));
}

static void put_repeated(text *out, char c, int n)
{
    while (n-- > 0)
        put(out, &c, 1);
}

/* ---- Elements ---- */

static double float_at(const printer *p, int64_t i)
{
    switch ((kiln_dtype)p->t->dtype) {
    case KILN_F16: return kiln_f16_to_f32(((const uint16_t *)p->data)[i]);
    case KILN_BF16: return kiln_bf16_to_f32(((const uint16_t *)p->data)[i]);
    case KILN_F32: return ((const float *)p->data)[i];
    default: return ((const double *)p->data)[i];
    }
}

static int64_t integer_at(const printer *p, int64_t i)
{
    switch ((kiln_dtype)p->t->dtype) {
    case KILN_BOOL:
    case KILN_U8: return ((const uint8_t *)p->data)[i];
    case KILN_I32: return ((const int32_t *)p->data)[i];
    default: return ((const int64_t *)p->data)[i];
    }
}

static bool is_float(const printer *p)
{
    return kiln_dtype_is_float((kiln_dtype)p->t->dtype);
}

/* Writes element i without padding; returns its length. */
static int element_text(const printer *p, int64_t i, char buffer[ELEMENT_TEXT])
{
    if (!is_float(p)) {
        int64_t value = integer_at(p, i);
        if (p->t->dtype == KILN_BOOL)
            return snprintf(buffer, ELEMENT_TEXT, "%s", value ? "True" : "False");
        return snprintf(buffer, ELEMENT_TEXT, "%" PRId64, value);
    }
    double value = float_at(p, i);
    if (isnan(value)) /* C would print the sign of a NaN */
        return snprintf(buffer, ELEMENT_TEXT, "nan");
    if (p->scientific)
        return snprintf(buffer, ELEMENT_TEXT, "%.*e", PRECISION, value);
    if (p->fractions)
        return snprintf(buffer, ELEMENT_TEXT, "%.*f", PRECISION, value);
    return snprintf(buffer, ELEMENT_TEXT, isinf(value) ? "%.0f" : "%.0f.", value);
}

static void put_element(printer *p, int64_t i)
{
    char buffer[ELEMENT_TEXT];
    int length = element_text(p, i, buffer);
    put_repeated(&p->out, ' ', p->width - length);
    put(&p->out, buffer, (size_t)length);
}

/* ---- What is shown, and how wide it is ---- */

static bool has_gap(const printer *p, int dim)
{
    return p->summarize && p->t->shape[dim] > 2 * EDGE;
}

/* The index shown after index i of a dim. */
static int64_t next_shown(const printer *p, int dim, int64_t i)
{
    return has_gap(p, dim) && i == EDGE - 1 ? p->t->shape[dim] - EDGE : i + 1;
}

static void for_each_shown(printer *p, int dim, int64_t at, void (*visit)(printer *p, int64_t element))
{
    if (dim == p->t->ndim) {
        visit(p, at);
        return;
    }
    for (int64_t i = 0; i < p->t->shape[dim]; i = next_shown(p, dim, i))
        for_each_shown(p, dim + 1, at + i * p->stride[dim], visit);
}

/* Zeros, infinities and NaNs have no say in the notation and the width of floats. */
static bool counts(const printer *p, int64_t i)
{
    return !is_float(p) || (isfinite(float_at(p, i)) && float_at(p, i) != 0);
}

static void survey(printer *p, int64_t i)
{
    if (!counts(p, i))
        return;
    double value = float_at(p, i), magnitude = fabs(value);
    p->fractions |= value != trunc(value);
    p->least = fmin(p->least, magnitude);
    p->greatest = fmax(p->greatest, magnitude);
}

static void measure(printer *p, int64_t i)
{
    char buffer[ELEMENT_TEXT];
    int length = counts(p, i) ? element_text(p, i, buffer) : 0;
    if (length > p->width)
        p->width = length;
}

static void choose_format(printer *p)
{
    p->least = INFINITY;
    p->width = 1;
    if (is_float(p)) {
        for_each_shown(p, 0, 0, survey);
        p->scientific =
            p->greatest > 0 && (p->greatest / p->least > 1000.0 || p->greatest > 1.0e8 || p->least < 1.0e-4);
    }
    for_each_shown(p, 0, 0, measure);
}

/* ---- Brackets ---- */

/* A row of elements: the last dim. Wraps to the column after its bracket. */
static void put_row(printer *p, int64_t at, int indent)
{
    const int dim = p->t->ndim - 1;
    const int fit = (LINE_WIDTH - indent) / (p->width + 2), per_line = fit > 1 ? fit : 1;
    int64_t written = 0;
    for (int64_t i = 0, next; i < p->t->shape[dim]; i = next) {
        next = next_shown(p, dim, i);
        for (int part = 0; part < (next == i + 1 ? 1 : 2); part++, written++) {
            if (written && written % per_line == 0) {
                put_string(&p->out, ",\n");
                put_repeated(&p->out, ' ', indent + 1);
            } else if (written) {
                put_string(&p->out, ", ");
            }
            if (part == 0)
                put_element(p, at + i);
            else
                put_string(&p->out, " ...");
        }
    }
}

/* The elements from dim `dim` on, in brackets; rows apart by a line end, planes by a blank line, and so on. */
static void put_brackets(printer *p, int dim, int64_t at, int indent)
{
    const int dims = p->t->ndim - dim;
    put_string(&p->out, "[");
    if (dims == 1) {
        put_row(p, at, indent);
    } else {
        for (int64_t i = 0, next; i < p->t->shape[dim]; i = next) {
            next = next_shown(p, dim, i);
            put_brackets(p, dim + 1, at + i * p->stride[dim], indent + 1);
            for (int part = next == i + 1; part < 2 && next < p->t->shape[dim]; part++) {
                put_string(&p->out, ",");
                put_repeated(&p->out, '\n', dims - 1);
                put_repeated(&p->out, ' ', indent + 1);
                if (part == 0)
                    put_string(&p->out, "...");
            }
        }
    }
    put_string(&p->out, "]");
}

static void put_contents(printer *p)
{
    if (kiln_numel(p->t) == 0) {
        put_string(&p->out, "[]");
        return;
    }
    choose_format(p);
    if (p->t->ndim)
        put_brackets(p, 0, 0, (int)strlen(prefix));
    else
        put_element(p, 0);
}

/* ---- What follows the elements ---- */

/* Adds ", word", on a line of its own when the last line has no room. `used` is that line's length as PyTorch reckons
 * it: two columns too long for the line that the elements ended. */
static void put_suffix(text *out, int64_t *used, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void put_suffix(text *out, int64_t *used, const char *format, ...)
{
    char word[256];
    va_list args;
    va_start(args, format);
    vsnprintf(word, sizeof word, format, args);
    va_end(args);
    const int64_t length = (int64_t)strlen(word), indent = (int64_t)strlen(prefix);
    if (*used + length + 2 > LINE_WIDTH) {
        put_string(out, ",\n");
        put_repeated(out, ' ', (int)indent);
        *used = indent + length;
    } else {
        put_string(out, ", ");
        *used += length + 2;
    }
    put(out, word, (size_t)length);
}

/* "(2, 0)" as Python writes a tuple of two or more. */
static void size_text(const kiln_tensor *t, char *buffer, size_t size)
{
    size_t n = 0;
    for (int d = 0; d < t->ndim && n < size; d++)
        n += (size_t)snprintf(buffer + n, size - n, "%s%" PRId64, d ? ", " : "(", t->shape[d]);
    if (n < size)
        snprintf(buffer + n, size - n, ")");
}

static void put_suffixes(printer *p, bool needs_grad)
{
    const kiln_tensor *t = p->t;
    const bool empty = kiln_numel(t) == 0;
    int64_t line = p->out.length;
    while (line > 0 && p->out.chars[line - 1] != '\n')
        line--;
    int64_t used = p->out.length - line + 2;
    if (t->device != KILN_CPU)
        put_suffix(&p->out, &used, "device='%s'", kiln_device_name(t->device));
    if (empty && t->ndim != 1) {
        char size[KILN_MAX_DIMS * 22 + 2];
        size_text(t, size, sizeof size);
        put_suffix(&p->out, &used, "size=%s", size);
    }
    /* Elements tell i64 and bool from f32; without any the dtype has to be said. */
    bool told = t->dtype == KILN_F32 || (!empty && (t->dtype == KILN_I64 || t->dtype == KILN_BOOL));
    if (!told)
        put_suffix(&p->out, &used, "dtype=%s", kiln_dtype_name((kiln_dtype)t->dtype));
    if (needs_grad)
        put_suffix(&p->out, &used, "requires_grad=True");
}

/* ---- The whole ---- */

/* Numbers have a decimal point whatever the program's locale says. */
static void put_tensor(printer *p, bool needs_grad)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    locale_t saved = plain ? uselocale(plain) : (locale_t)0;
    put_string(&p->out, prefix);
    put_contents(p);
    if (!p->out.failed)
        put_suffixes(p, needs_grad);
    put(&p->out, ")", sizeof ")");
    if (plain) {
        uselocale(saved);
        freelocale(plain);
    }
}

char *kiln_to_string(kiln_tensor *t)
{
    if (!kiln_tensor_given(t, "to_string", 1))
        return NULL;
    const int64_t count = kiln_numel(t);
    const size_t size = kiln_dtype_size((kiln_dtype)t->dtype);
    const bool needs_grad = kiln_needs_grad(t);
    void *data = kiln_alloc((size_t)count, size);
    if (!data)
        return NULL;
    printer p = {.t = t, .data = data, .summarize = count > THRESHOLD};
    kiln_dense_strides(t->ndim, t->shape, p.stride);
    if (kiln_read(t, data, (size_t)count * size))
        put_tensor(&p, needs_grad);
    else
        p.out.failed = true;
    kiln_free(data);
    if (!p.out.failed)
        return p.out.chars;
    kiln_free(p.out.chars);
    return NULL;
}

void kiln_string_free(char *string)
{
    kiln_free(string);
}

bool kiln_print(kiln_tensor *t, FILE *stream)
{
    if (!stream)
        return kiln_fail(KILN_E_ARGUMENT, "print", "the stream is NULL");
    char *string = kiln_to_string(t);
    if (!string)
        return false;
    bool written = fputs(string, stream) >= 0 && fputc('\n', stream) != EOF;
    kiln_string_free(string);
    return written || kiln_fail(KILN_E_STATE, "print", "the stream does not take the text");
}
