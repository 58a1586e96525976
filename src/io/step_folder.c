/* The folder of checkpoints. A checkpoint appears under its name (step-00001234) by one rename, when all of it is on
 * disk, and disappears by one rename, before anything in it is deleted; names that begin with a dot are never read. So
 * whenever the process is killed, what has a name is whole. Order matters in every function here.
 *
 * Several may save and load in one folder. Whoever makes, names or removes something in it holds the lock of its file
 * .lock alone; whoever looks for the newest one shares it. A checkpoint that is being written is locked by its writer
 * all the time, so one that is not is nobody's. */
#define _GNU_SOURCE /* renameat2 */
#include "io/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/fail.h"
#include "io/file.h"

enum { TRIES = 100, NAME = 64 };
#define LOCK_FILE ".lock"

static const char who[] = "checkpoint";

typedef struct entry { /* step-00000012, or step-00000012.3: the third of the same step */
    int64_t step, again;
    char name[NAME];
} entry;

typedef struct listing {
    entry *entries; /* newest first */
    int64_t count, capacity;
} listing;

static void name_of(char name[NAME], int64_t step, int64_t again)
{
    if (again)
        snprintf(name, NAME, "step-%08" PRId64 ".%" PRId64, step, again + 1);
    else
        snprintf(name, NAME, "step-%08" PRId64, step);
}

static bool parse_name(const char *name, entry *e)
{
    char *end;
    if (strncmp(name, "step-", 5) || strlen(name) >= NAME || name[5] < '0' || name[5] > '9')
        return false;
    errno = 0;
    e->step = strtoll(name + 5, &end, 10);
    e->again = *end == '.' ? strtoll(end + 1, NULL, 10) - 1 : 0;
    if (errno || e->again < 0)
        return false;
    name_of(e->name, e->step, e->again);
    return !strcmp(e->name, name);
}

static int newest_first(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->step != y->step)
        return x->step > y->step ? -1 : 1;
    return x->again > y->again ? -1 : x->again < y->again;
}

/* What has the name of a checkpoint. A folder that is not there has none. */
static bool list(const char *folder, listing *l)
{
    *l = (listing){0};
    DIR *dir = opendir(folder);
    if (!dir)
        return errno == ENOENT || errno == ENOTDIR || kiln_fail(KILN_E_MISSING, who, "%s: %s", folder, strerror(errno));
    bool ok = true;
    for (const char *name; ok && (name = kiln_folder_next(dir));) {
        entry found;
        if (parse_name(name, &found) && (ok = KILN_GROW(l->entries, l->capacity, l->count + 1)))
            l->entries[l->count++] = found;
    }
    closedir(dir);
    if (l->count)
        qsort(l->entries, (size_t)l->count, sizeof *l->entries, newest_first);
    return ok;
}

/* ---- The lock ---- */

/* Whether the file that was opened is still the one that has the name: somebody may have removed it in between. */
static bool is_named(int fd, const char *path)
{
    struct stat opened, named;
    return fstat(fd, &opened) == 0 && stat(path, &named) == 0 && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}

/* Waits for the folder's lock, to be given back by unlock_folder. *lock is -1 where there is none to be had: a folder
 * that nobody has saved to yet, a file system without locks. False with an error when memory runs out. */
static bool lock_folder(const char *folder, bool alone, int *lock)
{
    char *path = kiln_path_join(folder, LOCK_FILE);
    bool again = path;
    *lock = -1;
    for (int n = 0; again && n < TRIES; n++) {
        int fd = alone ? open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666)
                       : open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        int failed = -1;
        while (fd >= 0 && (failed = flock(fd, alone ? LOCK_EX : LOCK_SH)) != 0 && errno == EINTR)
            continue;
        again = !failed && !is_named(fd, path);
        if (!failed && !again)
            *lock = fd;
        else if (fd >= 0)
            close(fd);
    }
    kiln_free(path);
    return path;
}

static void unlock_folder(int *lock)
{
    if (*lock >= 0)
        close(*lock);
    *lock = -1;
}

/* ---- Removing ---- */

static bool is_ours(const char *name)
{
    bool ours = !strcmp(name, KILN_STATE_JSON);
    for (int i = 0; i < KILN_STATE_FILES; i++)
        ours |= !strcmp(name, kiln_state_names[i]);
    return ours;
}

/* Deletes the files of a checkpoint and its folder. False if that is still there: files of others are in it, or it
 * cannot be deleted; it has a name that nobody reads, and the next save tries again. */
static bool delete_folder(const char *path)
{
    if (unlink(path) == 0)
        return true; /* it was a file or a link */
    DIR *dir = opendir(path);
    for (const char *name; dir && (name = kiln_folder_next(dir));)
        if (is_ours(name))
            unlinkat(dirfd(dir), name, 0);
    if (dir)
        closedir(dir);
    return rmdir(path) == 0 || errno == ENOENT;
}

/* What others have put into a checkpoint is theirs: it stays, in a folder that is no checkpoint any more. */
static bool keep_the_rest(const char *folder, const char *name, const char *hidden)
{
    char visible[NAME + 32];
    bool ok = true, done = false;
    for (int n = 0; ok && !done && n < TRIES; n++) {
        snprintf(visible, sizeof visible, n ? "%s.kept-%d" : "%s.kept", name, n);
        char *to = kiln_path_join(folder, visible);
        ok = to;
        done = ok && (renameat2(AT_FDCWD, hidden, AT_FDCWD, to, RENAME_NOREPLACE) == 0 || errno != EEXIST);
        if (done && access(to, F_OK) == 0)
            kiln_notice("%s holds files that are none of a checkpoint's: they are left", to);
        kiln_free(to);
    }
    return ok;
}

/* Takes a checkpoint's name away, then deletes it: half deleted it is never seen. */
static bool retire(const char *folder, const char *name)
{
    char hidden[NAME + 32];
    struct stat st;
    char *from = kiln_path_join(folder, name), *to = NULL;
    bool ok = from;
    for (int n = 0; ok && n < TRIES; n++) {
        snprintf(hidden, sizeof hidden, ".%s.old-%ld-%d", name, (long)getpid(), n);
        kiln_free(to);
        ok = (to = kiln_path_join(folder, hidden));
        if (ok && lstat(to, &st) != 0)
            break;
    }
    if (ok && rename(from, to) != 0)
        kiln_notice("%s cannot be removed: %s", from, strerror(errno));
    else if (ok && !delete_folder(to) && errno == ENOTEMPTY)
        ok = keep_the_rest(folder, name, to);
    kiln_free(from);
    kiln_free(to);
    return ok;
}

/* Removes what saves that died have left: what was being deleted, and temporaries whose lock can be had. The folder's
 * lock is held, so a temporary that was just made and is not locked yet is never met. */
static bool clean(const char *folder)
{
    DIR *dir = opendir(folder);
    bool ok = true;
    for (const char *name; ok && dir && (name = kiln_folder_next(dir));) {
        bool old = strstr(name, ".old-"), temporary = strstr(name, ".tmp-");
        if (strncmp(name, ".step-", 6) || !(old || temporary))
            continue;
        int fd = openat(dirfd(dir), name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
            continue;
        char *path = kiln_path_join(folder, name);
        if (path && (old || flock(fd, LOCK_EX | LOCK_NB) == 0))
            delete_folder(path);
        ok = path;
        kiln_free(path);
        close(fd);
    }
    if (dir)
        closedir(dir);
    return ok;
}

/* ---- A new one ---- */

/* Makes a folder; one that is there is fine, and whether it is one is seen at the end. */
static bool make_one(const char *path)
{
    if (mkdir(path, 0777) != 0)
        return false;
    char *parent = kiln_path_folder(path);
    bool ok = parent && kiln_folder_sync(parent, who);
    kiln_free(parent);
    return ok;
}

/* Makes the folder and those above it. */
static bool make_folder(const char *folder)
{
    char *path = kiln_path_join("", folder);
    if (!path)
        return false;
    uint64_t raised = kiln_fail_count();
    int error = 0;
    for (char *p = path + 1;; p++) {
        if (*p && *p != '/')
            continue;
        char end = *p;
        *p = '\0';
        error = make_one(path) ? 0 : errno;
        *p = end;
        if (!end)
            break;
    }
    struct stat st;
    bool ok = kiln_fail_count() == raised;
    if (ok && stat(path, &st) != 0)
        ok = kiln_fail(KILN_E_IO, who, "%s: the folder cannot be made: %s", path, strerror(error));
    else if (ok && !S_ISDIR(st.st_mode))
        ok = kiln_fail(KILN_E_IO, who, "%s is a file; checkpoints need a folder", path);
    kiln_free(path);
    return ok;
}

/* The temporary folder, locked: from here on it is this writer's. The folder's lock is held. */
static bool make_temporary(kiln_step_folder *s)
{
    char base[NAME], name[NAME + 48];
    name_of(base, s->step, 0);
    int made = -1;
    for (int n = 0; made && n < TRIES; n++) {
        snprintf(name, sizeof name, ".%s.tmp-%ld-%llu", base, (long)getpid(), kiln_file_turn());
        kiln_free(s->path);
        if (!(s->path = kiln_path_join(s->folder, name)))
            return false;
        made = mkdir(s->path, 0777);
        if (made && errno != EEXIST)
            break;
    }
    if (made) {
        kiln_fail(KILN_E_IO, who, "%s: a checkpoint cannot be written there: %s", s->folder, strerror(errno));
        kiln_free(s->path);
        s->path = NULL;
        return false;
    }
    s->fd = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->fd >= 0)
        flock(s->fd, LOCK_EX | LOCK_NB); /* where locks do not work nobody gets one, and it stays as well */
    return true;
}

bool kiln_step_folder_begin(kiln_step_folder *s, const char *folder, int64_t step)
{
    *s = (kiln_step_folder){.folder = folder, .step = step, .fd = -1};
    if (!make_folder(folder))
        return false;
    int lock;
    bool ok = lock_folder(folder, true, &lock) && clean(folder) && make_temporary(s);
    unlock_folder(&lock);
    return ok;
}

/* Gives the folder at `from` the first name of its step that is free, or changes places with the last one that is not:
 * then `from` holds the old one. Between two renames there would be a moment without either. */
static bool take_name(const char *from, const char *folder, int64_t step, entry *taken)
{
    for (int64_t again = 0; again < TRIES; again++) {
        entry next;
        struct stat st;
        *taken = (entry){.step = step, .again = again};
        name_of(taken->name, step, again);
        name_of(next.name, step, again + 1);
        char *to = kiln_path_join(folder, taken->name), *beyond = kiln_path_join(folder, next.name);
        bool done = false, failed = !to || !beyond;
        if (!failed && lstat(beyond, &st) != 0) {
            done = rename(from, to) == 0;
            bool exists = !done && (errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR);
            failed = !done && !exists;
            if (exists)
                done = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0;
            if (failed)
                kiln_fail(KILN_E_IO, who, "%s cannot become %s: %s", from, to, strerror(errno));
        }
        kiln_free(to);
        kiln_free(beyond);
        if (done || failed)
            return done;
    }
    return kiln_fail(KILN_E_IO, who, "%s: there are too many checkpoints of step %" PRId64, folder, step);
}

/* Removes those that are stale beside the one that was just published. */
static bool retire_others(const char *folder, const entry *taken, int keep)
{
    listing l;
    bool ok = list(folder, &l);
    int64_t kept = 0;
    for (int64_t i = 0; ok && i < l.count; i++)
        if (newest_first(&l.entries[i], taken) < 0 || ++kept > keep)
            ok = retire(folder, l.entries[i].name);
    kiln_free(l.entries);
    return ok;
}

/* Under the lock from taking the name to removing the others: two that did this at the same time would each take the
 * other's for the stale one, and leave none. */
bool kiln_step_folder_publish(kiln_step_folder *s, int keep)
{
    entry taken;
    int lock;
    if (!kiln_folder_sync(s->path, who) || !lock_folder(s->folder, true, &lock))
        return false;
    bool ok = take_name(s->path, s->folder, s->step, &taken);
    if (ok && (ok = kiln_folder_sync(s->folder, who))) {
        /* It is safe now. What is left at s->path, if anything, is the one it has replaced. */
        delete_folder(s->path);
        kiln_free(s->path);
        s->path = NULL;
        ok = retire_others(s->folder, &taken, keep);
    }
    unlock_folder(&lock);
    return ok;
}

void kiln_step_folder_end(kiln_step_folder *s)
{
    if (s->path)
        delete_folder(s->path);
    if (s->fd >= 0)
        close(s->fd);
    kiln_free(s->path);
    *s = (kiln_step_folder){.fd = -1};
}

/* ---- Finding ---- */

/* Reads a candidate's state; why it is none goes to *why instead of the thread's error, unless memory ran out. */
static bool try_state(const char *path, kiln_train_state *state, kiln_error *why)
{
    bool was_ok = kiln_ok();
    if (kiln_state_read(state, path))
        return true;
    *why = *kiln_last_error();
    if (was_ok && why->code != KILN_E_MEMORY)
        kiln_error_clear();
    return false;
}

/* The first of the candidates that is complete; *damaged says what is wrong with the first that is not. */
static char *first_complete(const char *folder, const listing *l, kiln_train_state *state, kiln_error *damaged)
{
    for (int64_t i = 0; i < l->count; i++) {
        kiln_error why = {0};
        char *path = kiln_path_join(folder, l->entries[i].name);
        if (!path || try_state(path, state, &why))
            return path;
        if (!damaged->code)
            *damaged = why;
        bool vanished = access(path, F_OK) != 0; /* another process saves: there is a newer one now */
        kiln_free(path);
        if (vanished || why.code == KILN_E_MEMORY)
            break;
    }
    return NULL;
}

/* The newest one while the folder's lock is held. */
static char *find_newest(const char *folder, kiln_train_state *state)
{
    kiln_error damaged = {0};
    char *path = kiln_path_join(folder, KILN_STATE_JSON);
    bool itself = path && access(path, F_OK) == 0; /* the folder is a checkpoint, not one that holds some */
    kiln_free(path);
    if (!path)
        return NULL;
    if (itself) {
        path = kiln_path_join("", folder);
        if (path && kiln_state_read(state, path))
            return path;
        kiln_free(path);
        return NULL;
    }
    path = NULL;
    for (int round = 0; !path && round < 3; round++) { /* once more: without locks they may change meanwhile */
        listing l;
        damaged = (kiln_error){0};
        path = list(folder, &l) ? first_complete(folder, &l, state, &damaged) : NULL;
        kiln_free(l.entries);
        if (!damaged.code || damaged.code == KILN_E_MEMORY)
            break;
    }
    if (path && damaged.code)
        kiln_notice("%s; the checkpoint before it is used", damaged.message);
    else if (damaged.code && damaged.code != KILN_E_MEMORY) {
        kiln_fail(KILN_E_FORMAT, who, "%s holds no complete checkpoint: %s", folder, damaged.message);
        kiln_hint("bring the files back from a copy, or start afresh without resuming");
    }
    return path;
}

char *kiln_step_folder_newest(const char *folder, kiln_train_state *state, int *lock)
{
    char *path = lock_folder(folder, false, lock) ? find_newest(folder, state) : NULL;
    if (!path)
        kiln_step_folder_release(lock);
    return path;
}

void kiln_step_folder_release(int *lock)
{
    unlock_folder(lock);
}
