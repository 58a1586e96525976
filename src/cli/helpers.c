/* Memory that is there or ends the program, sizes and times as people write them, texts that a terminal can be shown.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "cli/cli.h"

static void *checked(void *p)
{
    if (!p)
        exit(fail(EX_OSERR, "out of memory"));
    return p;
}

void *must_alloc(size_t count, size_t size)
{
    return checked(calloc(count ? count : 1, size));
}

void *must_resize(void *p, size_t count, size_t size)
{
    return checked(reallocarray(p, count ? count : 1, size));
}

char *must_format(const char *format, ...)
{
    char *text = NULL;
    va_list list;
    va_start(list, format);
    int n = vasprintf(&text, format, list);
    va_end(list);
    return checked(n < 0 ? NULL : text);
}

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- Texts ---- */

enum { TEXT = 64 };

static char *turning(void)
{
    static char buffers[16][TEXT];
    static unsigned turn;
    return buffers[turn++ % 16];
}

const char *show_size(uint64_t bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    char *text = turning();
    double n = (double)bytes / 1024;
    int unit = 0;
    if (bytes < 1024) {
        snprintf(text, TEXT, "%llu B", (unsigned long long)bytes);
        return text;
    }
    for (; n >= 999.5 && unit < 3; unit++)
        n /= 1024;
    snprintf(text, TEXT, "%.*f %s", n < 99.95 ? 1 : 0, n, units[unit]);
    return text;
}

const char *show_count(int64_t n)
{
    char digits[32], *text = turning(), *out = text;
    int length = snprintf(digits, sizeof digits, "%lld", (long long)n);
    for (int i = 0; i < length; i++) {
        *out++ = digits[i];
        if ((length - i - 1) % 3 == 0 && i + 1 < length && digits[i] != '-')
            *out++ = ',';
    }
    *out = '\0';
    return text;
}

const char *show_seconds(double s)
{
    char *text = turning();
    if (!(s >= 0 && s < 3e9)) /* what a file says of itself */
        snprintf(text, TEXT, s > 0 ? "years" : "no time");
    else if (s < 1e-3)
        snprintf(text, TEXT, "%.0f us", s * 1e6);
    else if (s < 1)
        snprintf(text, TEXT, "%.*f ms", s < 0.01 ? 1 : 0, s * 1e3);
    else if (s < 100)
        snprintf(text, TEXT, "%.1f s", s);
    else if (s < 3600)
        snprintf(text, TEXT, "%lld min %lld s", (long long)s / 60, (long long)s % 60);
    else
        snprintf(text, TEXT, "%lld h %lld min", (long long)s / 3600, (long long)s / 60 % 60);
    return text;
}

const char *show_shape(int n, const int64_t *shape)
{
    char *text = turning();
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < n && used < TEXT - 1; i++)
        used += (size_t)snprintf(text + used, TEXT - used, "%s%lld", i ? "x" : "", (long long)shape[i]);
    if (!n)
        snprintf(text, TEXT, "scalar");
    return text;
}

int shown_bytes(const char *text)
{
    const unsigned char *c = (const unsigned char *)text;
    if (c[0] < 0x80)
        return c[0] >= ' ' && c[0] != 0x7f;
    int n = c[0] >= 0xc2 && c[0] < 0xe0 ? 2 : c[0] >= 0xe0 && c[0] < 0xf0 ? 3 : c[0] >= 0xf0 && c[0] < 0xf5 ? 4 : 0;
    for (int i = 1; i < n; i++)
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    bool control = c[0] == 0xc2 && c[1] < 0xa0, surrogate = c[0] == 0xed && c[1] >= 0xa0;
    bool too_long = (c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xf0 && c[1] < 0x90);
    return control || surrogate || too_long || (c[0] == 0xf4 && c[1] >= 0x90) ? 0 : n;
}

static void put_all(FILE *out, const char *text, const char *also)
{
    while (*text) {
        int n = strchr(also, *text) ? 1 : shown_bytes(text);
        if (n)
            fwrite(text, 1, (size_t)n, out);
        else
            fprintf(out, "\\x%02x", (unsigned char)*text);
        text += n ? n : 1;
    }
}

void put_shown(FILE *out, const char *text)
{
    put_all(out, text, "");
}

void put_lines(FILE *out, const char *text)
{
    put_all(out, text, "\n\t");
}

char *shown_text(const char *text)
{
    char *copy = NULL;
    size_t size = 0;
    FILE *out = checked(open_memstream(&copy, &size));
    put_shown(out, text);
    fclose(out);
    return checked(copy);
}

void say(const char *format, ...)
{
    char *text = NULL;
    va_list list;
    va_start(list, format);
    int n = vasprintf(&text, format, list);
    va_end(list);
    put_lines(stdout, checked(n < 0 ? NULL : text));
    free(text);
}
