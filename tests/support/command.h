/* What tests of the kiln command share: it is run in a temporary folder of the test program, and exit codes, messages
 * and files are looked at. The command is the one of KILN_COMMAND, or ../bin/kiln beside the test program. It sees no
 * GPU unless it is run as $SHOW_GPUS $K: sizes and figures are those of the CPU. Include it first. */
#ifndef KILN_TEST_COMMAND_H
#define KILN_TEST_COMMAND_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "support/skip.h"

static char command[PATH_MAX]; /* the program under test */
static char *out, *err;        /* what it said last */

/* ---- Running ---- */

static inline char *slurp(const char *path, size_t *bytes)
{
    FILE *in = fopen(path, "rb");
    if (!in)
        fail_msg("%s: %s", path, strerror(errno));
    char *text = NULL;
    size_t used = 0, n;
    do {
        text = realloc(text, used + 65537);
        n = fread(text + used, 1, 65536, in);
        used += n;
    } while (n);
    fclose(in);
    text[used] = '\0';
    if (bytes)
        *bytes = used;
    return text;
}

static inline void put(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static inline void put_text(const char *path, const char *text)
{
    put(path, text, strlen(text));
}

/* Runs a shell line in which $K is the command; leaves its words in out and err, returns its exit code. */
__attribute__((format(printf, 1, 2))) static inline int shell(const char *format, ...)
{
    char line[4096];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    char *whole = NULL;
    assert_true(asprintf(&whole, "( %s ) >out.txt 2>err.txt </dev/null", line) > 0);
    int status = system(whole);
    free(whole);
    free(out);
    free(err);
    out = slurp("out.txt", NULL);
    err = slurp("err.txt", NULL);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The line must end with this code, and say these words where it says anything. */
static inline void expect_line(int code, const char *word, const char *line, const char *file, int at)
{
    int got = shell("%s", line);
    if (got == code && (!word || strstr(out, word) || strstr(err, word)))
        return;
    print_error("%s\nended with %d instead of %d, or did not say \"%s\"; it said:\n%s%s\n", line, got, code,
                word ? word : "", out, err);
    _fail(file, at);
}
#define expect(code, word, line) expect_line(code, word, line, __FILE__, __LINE__)

static inline bool there(const char *path)
{
    return access(path, F_OK) == 0;
}

static inline void assert_same_files(const char *a, const char *b)
{
    size_t n, m;
    char *x = slurp(a, &n), *y = slurp(b, &m);
    if (n != m || memcmp(x, y, n) != 0)
        fail_msg("%s and %s differ", a, b);
    free(x);
    free(y);
}

static inline int count_lines(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

/* ---- The folder ---- */

static char command_folder[] = "/tmp/kiln-cli-XXXXXX";

static inline int command_before(void **state)
{
    (void)state;
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    const char *given = getenv("KILN_COMMAND");
    if (n < 0 || !mkdtemp(command_folder) || chdir(command_folder) != 0)
        return -1;
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    if (given)
        snprintf(command, sizeof command, "%s", given);
    else if ((size_t)snprintf(command, sizeof command, "%s/../bin/kiln", self) >= sizeof command)
        return -1;
    unsetenv("NO_COLOR");
    char show[256] = "env -u CUDA_VISIBLE_DEVICES";
    if (getenv("CUDA_VISIBLE_DEVICES"))
        snprintf(show, sizeof show, "env CUDA_VISIBLE_DEVICES=%.200s", getenv("CUDA_VISIBLE_DEVICES"));
    setenv("SHOW_GPUS", show, 1);
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    return setenv("K", command, 1);
}

static inline int command_after(void **state)
{
    (void)state;
    free(out);
    free(err);
    char line[64];
    snprintf(line, sizeof line, "rm -rf %s", command_folder);
    return chdir("/") || system(line);
}

#endif
