/* The thread's error: the first one stays until it is cleared. It lives in a block of the thread's own, made when the
 * first text is needed: kept small, the library's thread-local data lets it be opened at run time (dlopen), too. */
#include "core/fail.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>

#include "core/environment.h"
#include "core/printable.h"

enum { TEXTS = 8, NOTICES = 4 };

typedef struct notes {
    kiln_error error;
    bool last_was_kept; /* the latest kiln_fail became the error: a hint belongs to it */
    char texts[TEXTS][KILN_TEXT];
    int turn;
    char notices[NOTICES][320]; /* a ring: when nobody takes them the oldest are lost */
    unsigned first_notice, next_notice;
} notes;

static _Thread_local notes *mine;
static _Thread_local uint64_t raised;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Where memory does not even suffice for the error, threads share this one. */
static notes last_resort;

static void make_key(void)
{
    pthread_key_create(&key, free);
}

static notes *get_notes(void)
{
    if (mine)
        return mine;
    pthread_once(&once, make_key);
    notes *n = calloc(1, sizeof *n);
    if (!n || pthread_setspecific(key, n)) {
        free(n);
        return &last_resort;
    }
    return mine = n;
}

char *kiln_text(void)
{
    notes *n = get_notes();
    return n->texts[n->turn++ % TEXTS];
}

void kiln_notice(const char *format, ...)
{
    notes *n = get_notes();
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(n->notices[n->next_notice++ % NOTICES], sizeof n->notices[0], format, arguments);
    va_end(arguments);
    if (n->next_notice - n->first_notice > NOTICES)
        n->first_notice++;
}

static const char *take_notice(notes *n)
{
    return n && n->first_notice != n->next_notice ? n->notices[n->first_notice++ % NOTICES] : NULL;
}

const char *kiln_next_notice(void)
{
    const char *notice = take_notice(mine);
    return notice || !kiln_environment_notice() ? notice : take_notice(get_notes());
}

void *kiln_fail(kiln_code code, const char *operation, const char *format, ...)
{
    notes *n = get_notes();
    raised++;
    n->last_was_kept = n->error.code == KILN_OK;
    if (!n->last_was_kept)
        return NULL;
    va_list arguments;
    va_start(arguments, format);
    n->error.code = code;
    n->error.hint[0] = '\0';
    snprintf(n->error.operation, sizeof n->error.operation, "%s", operation ? operation : "");
    vsnprintf(n->error.message, sizeof n->error.message, format, arguments);
    va_end(arguments);
    return NULL;
}

void *kiln_fail_null(const char *operation, int operand)
{
    return kiln_fail(KILN_E_ARGUMENT, operation, "operand %d is NULL", operand);
}

void *kiln_hint(const char *format, ...)
{
    notes *n = get_notes();
    if (!n->last_was_kept || n->error.code == KILN_OK)
        return NULL;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(n->error.hint, sizeof n->error.hint, format, arguments);
    va_end(arguments);
    return NULL;
}

void *kiln_fail_again(const kiln_error *error)
{
    kiln_fail(error->code, error->operation, "%s", error->message);
    return error->hint[0] ? kiln_hint("%s", error->hint) : NULL;
}

uint64_t kiln_fail_count(void)
{
    return raised;
}

void kiln_fail_forget(uint64_t count)
{
    kiln_error_clear();
    raised = count;
}

bool kiln_ok(void)
{
    return !mine || mine->error.code == KILN_OK;
}

const kiln_error *kiln_last_error(void)
{
    return &get_notes()->error;
}

void kiln_error_clear(void)
{
    if (!mine && last_resort.error.code == KILN_OK)
        return;
    kiln_error *e = &get_notes()->error;
    e->code = KILN_OK;
    e->operation[0] = e->message[0] = e->hint[0] = '\0';
}

int kiln_report(FILE *stream)
{
    char text[sizeof((notes *)0)->notices[0]];
    for (const char *notice; (notice = kiln_next_notice());) {
        snprintf(text, sizeof text, "%s", notice);
        kiln_make_printable(text);
        fprintf(stream, "kiln: note: %s\n", text);
    }
    kiln_error e = *kiln_last_error(); /* a copy: names in it are shown as a terminal can take them */
    if (e.code == KILN_OK)
        return 0;
    kiln_make_printable(e.message);
    kiln_make_printable(e.hint);
    fprintf(stream, "kiln: %s%s%s\n", e.operation, e.operation[0] ? ": " : "", e.message);
    if (e.hint[0])
        fprintf(stream, "  hint: %s\n", e.hint);
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
    case KILN_E_FORMAT: return "bad file";
    case KILN_E_MISSING: return "file not found";
    case KILN_E_IO: return "input or output failed";
    }
    return "unknown error";
}
