/* Files that the user names. What is read is a plain file, so that nothing hangs or goes on without end; what is
 * written takes nobody's place by mistake. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cli/cli.h"

/* ---- Looking ---- */

bool path_exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0;
}

bool path_is_folder(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

bool path_is_inside(const char *path, const char *folder)
{
    char inner[PATH_MAX], outer[PATH_MAX];
    if (!realpath(path, inner) || !realpath(folder, outer))
        return false;
    size_t n = strlen(outer);
    return !strncmp(inner, outer, n) && (n == 1 || inner[n] == '/' || inner[n] == '\0');
}

/* ---- Reading ---- */

FILE *open_input(const char *path, int *code)
{
    struct stat s;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe that nobody writes to does not hold us up */
    if (fd >= 0 && fstat(fd, &s) == 0 && S_ISREG(s.st_mode)) {
        FILE *in = fdopen(fd, "rb");
        if (!in)
            exit(fail(EX_OSERR, "out of memory"));
        return in;
    }
    if (fd < 0)
        *code = fail(EX_NOINPUT, "%s: %s", path, strerror(errno));
    else if (S_ISDIR(s.st_mode))
        *code = fail(EX_NOINPUT, "%s: %s", path, strerror(EISDIR));
    else
        *code = fail(EX_NOINPUT, "%s is a pipe or a device, not a file", path);
    if (fd >= 0)
        close(fd);
    return NULL;
}

char *read_text(const char *path, size_t limit, int *code)
{
    FILE *in = open_input(path, code);
    if (!in)
        return NULL;
    char *text = NULL;
    size_t used = 0, room = 0;
    do {
        if (used + 1 >= room)
            text = must_resize(text, room = room ? 2 * room : 4096, 1);
        size_t n = fread(text + used, 1, room - used - 1, in);
        used += n;
        if (!n)
            break;
    } while (used <= limit);
    bool bad = ferror(in);
    fclose(in);
    text[used] = '\0';
    size_t length = strlen(text);
    if (!bad && used <= limit && length == used)
        return text;
    free(text);
    *code = bad            ? fail(EX_IOERR, "%s: cannot be read", path)
            : used > limit ? fail(EX_DATAERR, "%s: larger than %s", path, show_size(limit))
                           : fail(EX_DATAERR, "%s: byte %zu is zero: this is no text", path, length);
    return NULL;
}

/* ---- Writing ---- */

static int cannot_write(const output *o, int why)
{
    return fail(why == ENOENT ? EX_NOINPUT : EX_IOERR, "%s: cannot be written: %s", o->path,
                why ? strerror(why) : "not all of it");
}

/* Whether the file that is there is one of the kind, or empty. */
static int check_kind(const output *o, const char *what, output_kind kind)
{
    char head[64] = "";
    int fd = open(o->target, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, head, sizeof head - 1) : -1;
    int why = errno;
    if (fd >= 0)
        close(fd);
    if (n < 0)
        return cannot_write(o, why);
    if (n == 0 || kind(head))
        return 0;
    fail(EX_USAGE, "%s is there already and is no %s: it is left as it is", o->path, what);
    hint("choose another name, or move it away");
    return EX_USAGE;
}

/* A new file beside the target, which it will replace, with that one's mode. */
static int open_beside(output *o, const struct stat *replaced)
{
    o->temporary = must_format("%s.tmp-XXXXXX", o->target);
    int fd = mkostemp(o->temporary, O_CLOEXEC);
    mode_t mask = umask(0);
    umask(mask);
    if (fd >= 0 && fchmod(fd, replaced ? replaced->st_mode & 0777 : 0666 & ~mask) == 0)
        o->file = fdopen(fd, "w");
    if (o->file)
        return 0;
    int why = errno;
    if (fd >= 0) {
        close(fd);
        unlink(o->temporary);
    }
    free(o->temporary);
    o->temporary = NULL;
    if (fd < 0 && replaced && why == EACCES) /* the file may be written, its folder not */
        o->file = fopen(o->target, "w");
    return o->file ? 0 : cannot_write(o, why);
}

int output_open(output *o, const char *path, const char *what, output_kind kind)
{
    struct stat s;
    *o = (output){.path = path};
    if (!strcmp(path, "-")) {
        o->file = stdout;
        return 0;
    }
    o->target = realpath(path, NULL); /* a link stays one */
    bool there = o->target && stat(o->target, &s) == 0;
    if (!there)
        o->target = must_format("%s", path);
    int code = 0;
    if (there && S_ISDIR(s.st_mode))
        code = cannot_write(o, EISDIR);
    else if (there && !S_ISREG(s.st_mode))
        code = (o->file = fopen(path, "w")) ? 0 : cannot_write(o, errno);
    else if (!there || !(code = check_kind(o, what, kind)))
        code = open_beside(o, there ? &s : NULL);
    if (code)
        free(o->target);
    return code;
}

int output_close(output *o, int code)
{
    if (o->file == stdout)
        return code;
    errno = 0;
    bool bad = ferror(o->file) || (o->temporary && fflush(o->file) == 0 && fsync(fileno(o->file)) != 0);
    bad = fclose(o->file) != 0 || bad;
    int why = errno;
    if (!code && bad)
        code = cannot_write(o, why);
    if (!code && o->temporary && rename(o->temporary, o->target) != 0)
        code = cannot_write(o, errno);
    if (code && o->temporary)
        unlink(o->temporary);
    free(o->temporary);
    free(o->target);
    *o = (output){0};
    return code;
}
