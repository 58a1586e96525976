/* Writing files so that one that is there is whole: written beside its place under a temporary name, synced, renamed,
 * the folder synced. A process that is killed leaves a temporary at most. Its writer holds a lock on it until it has
 * its name or is gone, so the next one can tell that nobody writes to it any more, and removes it. */
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/fail.h"

enum { TRIES = 100 };

static char *copy_text(const char *text, size_t length)
{
    char *copy = kiln_alloc(length + 1, 1);
    if (copy) {
        memcpy(copy, text, length);
        copy[length] = '\0';
    }
    return copy;
}

char *kiln_path_join(const char *folder, const char *name)
{
    size_t a = strlen(folder), b = strlen(name);
    char *path = kiln_alloc(a + b + 2, 1);
    if (!path)
        return NULL;
    memcpy(path, folder, a);
    if (a && folder[a - 1] != '/')
        path[a++] = '/';
    memcpy(path + a, name, b + 1);
    return path;
}

char *kiln_path_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? copy_text(path, (size_t)(slash - path) + 1) : copy_text(".", 1);
}

unsigned long long kiln_file_turn(void)
{
    static _Atomic unsigned long long turn;
    return atomic_fetch_add(&turn, 1);
}

const char *kiln_folder_next(DIR *dir)
{
    struct dirent *e;
    do
        e = readdir(dir); /* cppcheck-suppress readdirCalled ; each caller has a DIR of its own */
    while (e && (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")));
    return e ? e->d_name : NULL;
}

bool kiln_folder_sync(const char *path, const char *who)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL); /* EINVAL: a file system that does not sync folders */
    if (!ok)
        kiln_fail(KILN_E_IO, who, "%s: the folder cannot be synced: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return ok;
}

static bool write_error(const kiln_writer *w, const char *what)
{
    int error = errno;
    kiln_fail(KILN_E_IO, w->who, "%s: %s: %s", w->path, what, strerror(error));
    if (error == ENOSPC || error == EDQUOT || error == EFBIG)
        kiln_hint("make room on that disk; what was there before is unchanged");
    else if (error == ENOENT || error == ENOTDIR)
        kiln_hint("the folder it is to be in must exist");
    return false;
}

/* The path to write: the target where `path` is a link, so that the link stays one. */
static char *resolve(const char *path)
{
    struct stat st;
    char *real = lstat(path, &st) == 0 && S_ISLNK(st.st_mode) ? realpath(path, NULL) : NULL;
    char *copy = real ? copy_text(real, strlen(real)) : copy_text(path, strlen(path));
    free(real);
    return copy;
}

/* Whether an open file still has this name in the folder. */
static bool has_name(int fd, int folder, const char *name)
{
    struct stat opened, named;
    return fstat(fd, &opened) == 0 && fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

/* Removes temporaries of `base` in `folder` that belong to nobody any more: their lock can be had, and what has the
 * name is what was locked. */
static void remove_leftovers(const char *folder, const char *base)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return;
    size_t length = strlen(base);
    for (const char *name; (name = kiln_folder_next(dir));) {
        if (name[0] != '.' || strncmp(name + 1, base, length) || strncmp(name + 1 + length, ".tmp-", 5))
            continue;
        int fd = openat(dirfd(dir), name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && has_name(fd, dirfd(dir), name))
            unlinkat(dirfd(dir), name, 0);
        if (fd >= 0)
            close(fd);
    }
    closedir(dir);
}

/* Locks the temporary that was just made. False if someone who removes leftovers was quicker: it is theirs. */
static bool lock_temporary(const kiln_writer *w)
{
    struct stat st;
    bool taken = flock(w->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; /* there may be no locks at all */
    return !taken && fstat(w->fd, &st) == 0 && st.st_nlink > 0;
}

/* What takes the place of a file is as private as that one was, and its owner's. */
static bool keep_mode(const kiln_writer *w, const struct stat *replaced)
{
    bool other = replaced->st_uid != geteuid() || replaced->st_gid != getegid();
    if (other && fchown(w->fd, replaced->st_uid, replaced->st_gid) != 0)
        errno = 0; /* only root may give files away */
    return fchmod(w->fd, replaced->st_mode & 0777) == 0 || write_error(w, "cannot be given the mode it had");
}

/* Opens a file that only this writer has: ".name.tmp-PID-N" in the same folder. `replaced`: the file that is there, or
 * NULL. */
static bool open_temporary(kiln_writer *w, const struct stat *replaced)
{
    const char *slash = strrchr(w->path, '/'), *base = slash ? slash + 1 : w->path;
    char *folder = kiln_path_folder(w->path);
    size_t room = strlen(w->path) + 64;
    w->temporary = folder ? kiln_alloc(room, 1) : NULL;
    if (w->temporary)
        remove_leftovers(folder, base);
    for (int n = 0; w->temporary && w->fd < 0 && n < TRIES; n++) {
        snprintf(w->temporary, room, "%.*s.%s.tmp-%ld-%llu", (int)(base - w->path), w->path, base, (long)getpid(),
                 kiln_file_turn());
        w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, replaced ? 0600 : 0666);
        if (w->fd < 0 && errno != EEXIST)
            break;
        if (w->fd >= 0 && !lock_temporary(w)) {
            close(w->fd);
            w->fd = -1;
        }
    }
    bool had_memory = folder && w->temporary;
    kiln_free(folder);
    if (w->fd < 0)
        return had_memory && write_error(w, "cannot be written");
    return !replaced || keep_mode(w, replaced);
}

bool kiln_writer_begin(kiln_writer *w, const char *path, const char *who, bool in_place)
{
    *w = (kiln_writer){.fd = -1, .who = who};
    if (!path || !*path)
        return kiln_fail(KILN_E_ARGUMENT, who, "no file is named");
    struct stat st;
    if (!(w->path = resolve(path)))
        return false;
    bool there = stat(w->path, &st) == 0;
    if (path[strlen(path) - 1] == '/' || (there && S_ISDIR(st.st_mode))) {
        kiln_fail(KILN_E_IO, who, "%s is a folder; a file cannot take its place", path);
    } else if (there && !S_ISREG(st.st_mode)) {
        kiln_fail(KILN_E_IO, who, "%s is not a regular file; it is left alone", path);
    } else if (in_place) {
        w->fd = open(w->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (w->fd >= 0 || write_error(w, "cannot be written"))
            return true;
    } else if (open_temporary(w, there ? &st : NULL)) {
        return true;
    }
    kiln_writer_abort(w);
    return false;
}

bool kiln_writer_put(kiln_writer *w, const void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(w->fd, (const char *)data + done, bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            char what[64];
            if (n == 0)
                errno = ENOSPC;
            snprintf(what, sizeof what, "writing failed at byte %llu", (unsigned long long)w->written);
            return write_error(w, what);
        }
        done += (size_t)n;
        w->written += (uint64_t)n;
    }
    return true;
}

void kiln_writer_abort(kiln_writer *w)
{
    if (w->fd >= 0 && w->temporary)
        unlink(w->temporary);
    if (w->fd >= 0)
        close(w->fd);
    kiln_free(w->temporary);
    kiln_free(w->path);
    *w = (kiln_writer){.fd = -1};
}

bool kiln_writer_commit(kiln_writer *w)
{
    bool ok = fsync(w->fd) == 0 || write_error(w, "cannot be made safe on disk");
    if (ok && w->temporary) {
        char *folder = kiln_path_folder(w->path);
        ok = folder && (rename(w->temporary, w->path) == 0 || write_error(w, "cannot be renamed to"));
        if (ok) {
            close(w->fd); /* the name is the file's: nothing to remove any more */
            w->fd = -1;
            ok = kiln_folder_sync(folder, w->who);
        }
        kiln_free(folder);
    } else if (ok) {
        ok = close(w->fd) == 0 || write_error(w, "cannot be closed");
        w->fd = -1;
    }
    kiln_writer_abort(w);
    return ok;
}

bool kiln_file_write(const char *path, const char *who, bool in_place, const void *data, size_t bytes)
{
    kiln_writer w;
    if (!kiln_writer_begin(&w, path, who, in_place))
        return false;
    if (kiln_writer_put(&w, data, bytes))
        return kiln_writer_commit(&w);
    kiln_writer_abort(&w);
    return false;
}
