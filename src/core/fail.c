/* The thread's error: the first one stays until it is cleared. */
#include "core/fail.h"

#include <stdarg.h>

static _Thread_local kiln_error error;
static _Thread_local uint64_t raised;
static _Thread_local bool last_was_kept; /* the latest kiln_fail became the error: a hint belongs to it */

void *kiln_fail(kiln_code code, const char *operation, const char *format, ...)
{
    raised++;
    last_was_kept = error.code == KILN_OK;
    if (!last_was_kept)
        return NULL;
    va_list arguments;
    va_start(arguments, format);
    error.code = code;
    error.hint[0] = '\0';
    snprintf(error.operation, sizeof error.operation, "%s", operation ? operation : "");
    vsnprintf(error.message, sizeof error.message, format, arguments);
    va_end(arguments);
    return NULL;
}

void *kiln_hint(const char *format, ...)
{
    if (!last_was_kept || error.code == KILN_OK)
        return NULL;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error.hint, sizeof error.hint, format, arguments);
    va_end(arguments);
    return NULL;
}

uint64_t kiln_fail_count(void)
{
    return raised;
}

bool kiln_ok(void)
{
    return error.code == KILN_OK;
}

const kiln_error *kiln_last_error(void)
{
    return &error;
}

void kiln_error_clear(void)
{
    error.code = KILN_OK;
    error.operation[0] = error.message[0] = error.hint[0] = '\0';
}

int kiln_report(FILE *stream)
{
    if (kiln_ok())
        return 0;
    fprintf(stream, "kiln: %s%s%s\n", error.operation, error.operation[0] ? ": " : "", error.message);
    if (error.hint[0])
        fprintf(stream, "  hint: %s\n", error.hint);
    return 1;
}

const char *kiln_code_name(kiln_code code)
{
    switch (code) {
    case KILN_OK: return "no error";
    case KILN_E_ARGUMENT: return "bad argument";
    case KILN_E_SHAPE: return "shapes do not fit";
    case KILN_E_DTYPE: return "element type not accepted";
    case KILN_E_DEVICE: return "device mismatch or device not present";
    case KILN_E_INDEX: return "index out of range";
    case KILN_E_MEMORY: return "out of memory";
    case KILN_E_UNSUPPORTED: return "not supported on the device";
    case KILN_E_GRADIENT: return "no gradient";
    case KILN_E_LOST: return "device lost";
    case KILN_E_STATE: return "not allowed in this state";
    }
    return "unknown error";
}
