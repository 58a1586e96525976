/* What the command says when something is wrong, and which exit code (those of sysexits.h) goes with it. */
#define _GNU_SOURCE /* vasprintf */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cli/cli.h"

const char *current_command;

bool colour_on(FILE *stream)
{
    const char *none = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fileno(stream)) && !(none && *none) && !(term && !strcmp(term, "dumb"));
}

static void say_head(const char *colour)
{
    bool on = colour_on(stderr);
    fflush(stdout); /* so that the two come in the order they were written in */
    fprintf(stderr, "%skiln%s%s:%s ", on ? colour : "", current_command ? " " : "",
            current_command ? current_command : "", on ? "\033[0m" : "");
}

static void say_line(const char *format, va_list list)
{
    char *text = NULL;
    if (vasprintf(&text, format, list) >= 0)
        put_shown(stderr, text);
    fputc('\n', stderr);
    free(text);
}

int fail(int code, const char *format, ...)
{
    va_list list;
    say_head("\033[1;31m");
    va_start(list, format);
    say_line(format, list);
    va_end(list);
    return code;
}

void hint(const char *format, ...)
{
    va_list list;
    fputs("  hint: ", stderr);
    va_start(list, format);
    say_line(format, list);
    va_end(list);
}

void note(const char *format, ...)
{
    va_list list;
    say_head("\033[1;33m");
    fputs("note: ", stderr);
    va_start(list, format);
    say_line(format, list);
    va_end(list);
}

static int exit_code_of(kiln_code code)
{
    switch (code) {
    case KILN_OK: return EX_OK;
    case KILN_E_ARGUMENT: return EX_USAGE;
    case KILN_E_SHAPE:
    case KILN_E_DTYPE:
    case KILN_E_INDEX:
    case KILN_E_STATE: /* of a run: a loss that became NaN, a checkpoint that does not fit the options */
    case KILN_E_FORMAT: return EX_DATAERR;
    case KILN_E_MISSING: return EX_NOINPUT;
    case KILN_E_DEVICE:
    case KILN_E_UNSUPPORTED:
    case KILN_E_LOST: return EX_UNAVAILABLE;
    case KILN_E_MEMORY: return EX_OSERR;
    case KILN_E_IO: return EX_IOERR;
    case KILN_E_GRADIENT: break;
    }
    return EX_SOFTWARE;
}

/* An operation's name explains errors of shapes and indices; files and options are named by the message itself, and fit
 * and evaluate are what the command's own name says. */
static bool names_operation(kiln_code code, const char *operation)
{
    if (!*operation || !strcmp(operation, "fit") || !strcmp(operation, "evaluate"))
        return false;
    return code == KILN_E_SHAPE || code == KILN_E_DTYPE || code == KILN_E_INDEX || code == KILN_E_GRADIENT ||
           code == KILN_E_UNSUPPORTED;
}

int fail_kiln(void)
{
    say_notices();
    kiln_error e = *kiln_last_error();
    kiln_error_clear();
    if (e.code == KILN_OK)
        return fail(EX_SOFTWARE, "a call failed without saying why");
    bool named = names_operation(e.code, e.operation);
    int code = fail(exit_code_of(e.code), "%s%s%s", named ? e.operation : "", named ? ": " : "", e.message);
    if (e.hint[0])
        hint("%s", e.hint);
    else if (e.code == KILN_E_MEMORY)
        hint("a smaller model or --batch needs less; --mem-limit, where it was given, is what may be used");
    return code;
}

void say_notices(void)
{
    for (const char *notice; (notice = kiln_next_notice());)
        note("%s", notice);
}

/* A reader that has gone away (kiln inspect … | head) is no error worth words. */
static bool reader_is_gone(void)
{
    struct pollfd fd = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&fd, 1, 0) == 1 && (fd.revents & (POLLERR | POLLHUP));
}

int fail_output(int why)
{
    bool unwanted = why == EBADF || why == EPIPE || reader_is_gone(); /* EBADF: it was closed from the beginning */
    clearerr(stdout);
    return unwanted ? 0 : fail(EX_IOERR, "standard output: %s", why ? strerror(why) : "not everything was written");
}

int finish_output(int code)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    int failed = fail_output(errno);
    return code ? code : failed;
}
