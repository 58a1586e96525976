/* Text that grows. */
#include "device/cuda/compile/writer.h"
#include <stdarg.h>
#include <stdio.h>
#include "core/alloc.h"
#include "kiln/tensor.h"

void kiln_cuda_say(kiln_cuda_writer *w, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int n = w->failed ? -1 : vsnprintf(NULL, 0, format, list);
    va_end(list);
    w->failed = w->failed || n < 0 || !KILN_GROW(w->text, w->capacity, w->length + n + 1);
    if (w->failed)
        return;
    va_start(list, format);
    vsnprintf(w->text + w->length, (size_t)n + 1, format, list);
    va_end(list);
    w->length += n;
}

char *kiln_cuda_written(kiln_cuda_writer *w)
{
    if (!w->failed)
        return w->text;
    kiln_free(w->text);
    return NULL;
}

void kiln_cuda_say_dtypes(kiln_cuda_writer *w)
{
    static const char *const names[KILN_DTYPES] = {
        [KILN_BOOL] = "BOOL", [KILN_U8] = "U8",     [KILN_I32] = "I32", [KILN_I64] = "I64",
        [KILN_F16] = "F16",   [KILN_BF16] = "BF16", [KILN_F32] = "F32", [KILN_F64] = "F64"};
    kiln_cuda_say(w, "enum {");
    for (int i = 0; i < KILN_DTYPES; i++)
        kiln_cuda_say(w, " KILN_%s = %d,", names[i], i);
    kiln_cuda_say(w, " KILN_DTYPES };\n");
}
