/* The folder of a run: what is there is never overwritten. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cli/training.h"

static bool holds_weights(const char *folder)
{
    char *best = must_format("%s/best.safetensors", folder);
    bool there = path_exists(best);
    free(best);
    return there;
}

static bool holds_run(const char *folder)
{
    char *checkpoint = kiln_checkpoint_find(folder);
    bool there = holds_weights(folder) || checkpoint || !kiln_ok(); /* a damaged one is one, too */
    kiln_string_free(checkpoint);
    kiln_error_clear();
    return there;
}

/* Whether kiln_fit is at work in the folder, which it locks. */
static bool in_use(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool locked = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (fd >= 0)
        close(fd);
    return locked;
}

/* ---- Moving aside ---- */

/* Moves a file or folder to the next free name: other.1, other.2, … NULL after an error was reported. */
static char *move_aside(const char *path, const char *what, const char *instead)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    char *other = NULL;
    struct stat s;
    for (int i = 1; !other || lstat(other, &s) == 0; i++) {
        free(other);
        other = must_format("%.*s.%d", (int)length, path, i);
    }
    if (rename(path, other) == 0)
        return other;
    fail(EX_IOERR, "%s holds %s and cannot be moved to %s: %s", path, what, other, strerror(errno));
    hint("%s", instead);
    free(other);
    return NULL;
}

static bool is_same_folder(const char *a, const char *b)
{
    return path_is_inside(a, b) && path_is_inside(b, a);
}

/* What the user named to be read would be gone from where it is, would the folder be moved. */
static int check_inputs(const training *t, bool moved)
{
    const struct {
        const char *option, *path;
    } inputs[] = {{"data", t->data.origin}, {"model", t->net.entry ? NULL : text_of(t->a, "model", NULL)}};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        if (inputs[i].path &&
            (moved ? path_is_inside(inputs[i].path, t->folder) : is_same_folder(inputs[i].path, t->folder))) {
            fail(EX_USAGE, "--save %s: that is where --%s %s is; a run needs a folder of its own", t->folder,
                 inputs[i].option, text_of(t->a, inputs[i].option, inputs[i].path));
            return EX_USAGE;
        }
    if (moved && path_is_inside(".", t->folder)) {
        fail(EX_USAGE, "--save %s: it holds a run, and cannot be moved aside from under the current folder", t->folder);
        hint("go on with it by --resume, or choose another folder by --save");
        return EX_USAGE;
    }
    return 0;
}

/* A run that is there is never overwritten. */
static int move_run(training *t)
{
    bool there = holds_run(t->folder);
    int code = check_inputs(t, there);
    if (code || !there)
        return code;
    if (in_use(t->folder)) {
        fail(EX_IOERR, "%s: another kiln train is at work in this folder", t->folder);
        hint("choose another folder by --save");
        return EX_IOERR;
    }
    t->moved = move_aside(t->folder, "a run", "go on with it by --resume, or choose another folder by --save");
    if (t->moved && !t->quiet)
        say("The run that was in %s is now in %s\n", t->folder, t->moved);
    return t->moved ? 0 : EX_IOERR;
}

static bool is_log(const char *path)
{
    static const char *const beginnings[] = {"{\"run\": {", "{\"step\": ", "{\"epoch\": ", "epoch,step,loss"};
    char head[32] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool is = false;
    struct stat s;
    if (fd >= 0 && fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && read(fd, head, sizeof head - 1) > 0)
        for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
            is = is || !strncmp(head, beginnings[i], strlen(beginnings[i]));
    if (fd >= 0)
        close(fd);
    return is;
}

/* Nor is the log of another run, where this one's is to be somewhere else than in its folder. What is no log is left to
 * kiln_fit, which refuses it. */
static int move_log(training *t)
{
    if (!given(t->a, "log") || !is_log(t->log))
        return 0;
    t->moved_log = move_aside(t->log, "a log", "choose another file by --log");
    if (t->moved_log && !t->quiet)
        say("The log that was in %s is now in %s\n", t->log, t->moved_log);
    return t->moved_log ? 0 : EX_IOERR;
}

/* Found out before a run is moved aside. */
static int check_log_folder(const training *t)
{
    const char *log = text_of(t->a, "log", ""), *slash = strrchr(log, '/');
    if (!slash || slash == log)
        return 0;
    char *folder = must_format("%.*s", (int)(slash - log), log);
    bool there = path_is_folder(folder), own = !strcmp(folder, t->folder);
    int code = there || own ? 0 : fail(EX_NOINPUT, "--log %s: there is no folder %s", log, folder);
    free(folder);
    return code;
}

int folder_make(training *t)
{
    int code = check_log_folder(t);
    if (!code && !t->resume)
        code = move_run(t);
    if (!code && !t->resume)
        code = move_log(t);
    if (code)
        return code;
    t->made_folder = mkdir(t->folder, 0777) == 0;
    if (t->made_folder || (errno == EEXIST && path_is_folder(t->folder)))
        return 0;
    int why = errno;
    if (why == EEXIST)
        return fail(EX_IOERR, "%s is a file; a run needs a folder", t->folder);
    fail(why == ENOENT ? EX_NOINPUT : EX_IOERR, "%s: the folder cannot be made: %s", t->folder, strerror(why));
    if (why == ENOENT)
        hint("the folder it is to be in does not exist");
    return why == ENOENT ? EX_NOINPUT : EX_IOERR;
}

/* Removes a log in which nothing was written. */
static void remove_empty(const char *log)
{
    struct stat s;
    if (lstat(log, &s) == 0 && S_ISREG(s.st_mode) && s.st_size == 0)
        unlink(log);
}

void folder_undo(training *t)
{
    char *lock = must_format("%s/.lock", t->folder);
    if (t->made_folder && !given(t->a, "log"))
        remove_empty(t->log);
    if (t->made_folder && !holds_run(t->folder))
        unlink(lock);
    bool gone = t->made_folder ? rmdir(t->folder) == 0 : !path_exists(t->folder);
    if (gone && t->moved && rename(t->moved, t->folder) == 0 && !t->quiet)
        say("The run is back in %s\n", t->folder);
    if (t->moved_log)
        remove_empty(t->log);
    if (t->moved_log && !path_exists(t->log) && rename(t->moved_log, t->log) == 0 && !t->quiet)
        say("The log is back in %s\n", t->log);
    free(lock);
}

/* ---- Going on ---- */

/* Nothing to go on from. */
static int begin_instead(const training *t)
{
    if (holds_weights(t->folder)) {
        fail(EX_NOINPUT, "%s has no checkpoint to go on from, only weights: best.safetensors", t->folder);
        hint("begin another run with them: --init %s --save FOLDER, and the --model and --data they belong to",
             t->folder);
        return EX_NOINPUT;
    }
    if (!t->quiet)
        say("No checkpoint in %s yet: training from the start\n", t->folder);
    return 0;
}

int folder_resume(training *t)
{
    if (!t->resume)
        return 0;
    char *newest = kiln_checkpoint_find(t->folder);
    if (!newest)
        return kiln_ok() ? begin_instead(t) : fail_kiln();
    char *path = must_format("%s/model.safetensors", newest);
    int code = saved_open(&t->kept, path);
    if (!code) {
        t->kept_model = t->kept.model ? must_format("%s", t->kept.model) : NULL;
        t->kept_data = t->kept.data ? must_format("%s", t->kept.data) : NULL;
        t->kept_recipe = t->kept.train ? must_format("%s", t->kept.train) : NULL;
    }
    free(path);
    kiln_string_free(newest);
    return code;
}
