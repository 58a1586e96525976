/* Journals: files that are appended to and gone on with. */
#include "train/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/alloc.h"
#include "core/fail.h"

enum { PIECE = 1 << 16, BEGINNING = 64 };

static bool fail_file(const kiln_journal *j, const char *what)
{
    int error = errno;
    kiln_fail(error == ENOENT ? KILN_E_MISSING : KILN_E_IO, "fit", "the %s %s cannot be %s: %s", j->what, j->path, what,
              strerror(error));
    kiln_hint(error == ENOENT || error == ENOTDIR ? "is the folder there that it is to be in?"
                                                  : "is there room on the disk, and may the file be written?");
    return false;
}

/* FNV-1a: enough to tell one file from another; nobody is kept from forging it. */
static void add_to_mark(kiln_mark *m, const char *text, size_t bytes)
{
    uint64_t hash = m->bytes ? m->hash : 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3u;
    *m = (kiln_mark){m->bytes + (int64_t)bytes, hash, true};
}

bool kiln_journal_put(kiln_journal *j, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(j->file, text, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail_file(j, "written");
        add_to_mark(&j->mark, text, (size_t)n);
        text += n;
        bytes -= (size_t)n;
    }
    return true;
}

bool kiln_journal_sync(kiln_journal *j)
{
    return j->file < 0 || fdatasync(j->file) == 0 || errno == EINVAL || errno == EROFS || fail_file(j, "written");
}

char *kiln_journal_read(kiln_journal *j)
{
    size_t size = (size_t)j->mark.bytes, have = 0;
    char *text = kiln_alloc(size + 1, 1);
    while (text && have < size) {
        ssize_t n = pread(j->file, text + have, size - have, (off_t)have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            fail_file(j, "read");
            kiln_free(text);
            return NULL;
        }
        have += (size_t)n;
    }
    if (text)
        text[size] = '\0';
    return text;
}

/* ---- Opening ---- */

static bool not_ours(const kiln_journal *j)
{
    kiln_fail(KILN_E_ARGUMENT, "fit", "%s is there already and is no %s of a run: it is left as it is", j->path,
              j->what);
    return kiln_hint("choose another name, or move it away");
}

static bool begins_well(const kiln_journal *j, kiln_journal_begins begins, bool *well)
{
    char text[BEGINNING + 1];
    ssize_t n = pread(j->file, text, BEGINNING, 0);
    if (n < 0)
        return fail_file(j, "read");
    text[n] = '\0';
    *well = begins(text);
    return true;
}

/* The mark of the file's first `bytes` bytes, which it has; false with an error. */
static bool mark_of(const kiln_journal *j, int64_t bytes, kiln_mark *m)
{
    char *piece = kiln_alloc(PIECE, 1);
    *m = (kiln_mark){0};
    while (piece && m->bytes < bytes) {
        int64_t rest = bytes - m->bytes;
        ssize_t n = pread(j->file, piece, rest < PIECE ? (size_t)rest : PIECE, m->bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            fail_file(j, "read");
            break;
        }
        add_to_mark(m, piece, (size_t)n);
    }
    bool whole = piece && m->bytes == bytes;
    kiln_free(piece);
    return whole;
}

/* How many of the first `size` bytes are whole lines. */
static bool whole_lines(const kiln_journal *j, int64_t size, int64_t *bytes)
{
    char c = '\n';
    for (*bytes = size; *bytes > 0; --*bytes) {
        if (pread(j->file, &c, 1, *bytes - 1) != 1)
            return fail_file(j, "read");
        if (c == '\n')
            break;
    }
    return true;
}

/* Where to go on: behind the mark, or, where the file does not reach that far, behind its last whole line. */
static bool find_end(kiln_journal *j, int64_t size, kiln_mark mark)
{
    int64_t bytes;
    if (!whole_lines(j, mark.bytes < size ? mark.bytes : size, &bytes) || !mark_of(j, bytes, &j->mark))
        return false;
    bool same = bytes == mark.bytes && (!mark.hashed || j->mark.hash == mark.hash);
    if (same || size < mark.bytes)
        return true;
    kiln_fail(KILN_E_STATE, "fit",
              "the %s %s is not the one that the checkpoint goes on with: it was changed, or is another's", j->what,
              j->path);
    return kiln_hint("put the right one back, or move this one away");
}

/* Drops what is behind the place to go on at, once it is known to be ours. */
static bool take_over(kiln_journal *j, int64_t size, kiln_mark mark, kiln_journal_begins begins)
{
    bool well = true;
    if (size > 0 && !begins_well(j, begins, &well))
        return false;
    if (!well)
        return not_ours(j);
    if (mark.bytes > 0 && !find_end(j, size, mark))
        return false;
    if (size > j->mark.bytes && ftruncate(j->file, j->mark.bytes) != 0)
        return fail_file(j, "cut to where it goes on");
    return lseek(j->file, j->mark.bytes, SEEK_SET) >= 0 || fail_file(j, "written");
}

bool kiln_journal_open(kiln_journal *j, const char *path, const char *what, kiln_mark mark, kiln_journal_begins begins)
{
    struct stat info;
    *j = (kiln_journal){.file = -1, .what = what};
    size_t length = strlen(path);
    if (!(j->path = kiln_alloc(length + 1, 1)))
        return false;
    memcpy(j->path, path, length + 1);
    j->file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    int error = errno;
    if (j->file < 0 && (error == EACCES || error == ENXIO || error == EINVAL))
        j->file = open(path, O_WRONLY | O_CLOEXEC); /* a pipe or a device */
    errno = error;
    if (j->file < 0 || fstat(j->file, &info) != 0)
        return fail_file(j, "opened");
    return !S_ISREG(info.st_mode) || take_over(j, info.st_size, mark, begins);
}

void kiln_journal_close(kiln_journal *j)
{
    if (j->file >= 0)
        close(j->file);
    kiln_free(j->path);
    *j = (kiln_journal){.file = -1};
}
