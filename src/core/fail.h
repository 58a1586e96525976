/* How the library reports an error from inside. */
#ifndef KILN_CORE_FAIL_H
#define KILN_CORE_FAIL_H

#include "kiln/error.h"
#include "core/export.h"

/* Keeps the error for the calling thread unless it already has one. All return NULL/false so that callers can write
 * `return kiln_fail(…)`. `operation` may be NULL. */
KILN_PLUGIN_API void *kiln_fail(kiln_code code, const char *operation, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* NULL was given as an operand (1 is the first): an error of its own only where none explains it yet. */
KILN_PLUGIN_API void *kiln_fail_null(const char *operation, int operand);

/* Whether the first operand is there; false with that error otherwise. */
static inline bool kiln_given(const void *operand, const char *operation)
{
    return operand || kiln_fail_null(operation, 1);
}

/* Adds the hint to the error just kept by kiln_fail (a no-op when an earlier error is the one that stays). */
KILN_PLUGIN_API void *kiln_hint(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Raises an error that was met elsewhere, by another thread for instance, in the same words. */
KILN_PLUGIN_API void *kiln_fail_again(const kiln_error *error);

/* Keeps something worth saying that is no error, for kiln_next_notice. */
KILN_PLUGIN_API void kiln_notice(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A buffer of KILN_TEXT bytes for a piece of a message; the next calls of the thread return others, in turn. */
enum { KILN_TEXT = 200 };
char *kiln_text(void);

/* Counts errors ever raised in this thread, also those that did not become "the first": tells whether a call failed. */
KILN_PLUGIN_API uint64_t kiln_fail_count(void);

/* Forgets the error raised since the count was `count`, and that it was raised: a second attempt went well,
 * or it was nobody's. */
KILN_PLUGIN_API void kiln_fail_forget(uint64_t count);

#endif
