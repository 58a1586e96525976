/* Data by name: digits, IDX files, texts; and how they are parted into what trains and what tests. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cli/work.h"

/* ---- Which files ---- */

/* The first file (by name) of the folder that begins with `prefix` and has `word` in its name; NULL: none. */
static char *find_file(const char *folder, const char *prefix, const char *word)
{
    struct dirent **entries;
    int n = scandir(folder, &entries, NULL, alphasort);
    char *found = NULL;
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        if (!found && name[0] != '.' && !strncmp(name, prefix, strlen(prefix)) && strstr(name, word))
            found = must_format("%s/%s", folder, name);
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
    return found;
}

static bool looks_like_idx(const char *path)
{
    unsigned char head[4] = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe that nobody writes to does not hold us up */
    struct stat st;
    ssize_t n = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? read(fd, head, sizeof head) : 0;
    if (fd >= 0)
        close(fd);
    bool gzip = n >= 2 && head[0] == 0x1f && head[1] == 0x8b;
    return gzip || (n == 4 && head[0] == 0 && head[1] == 0 && head[2] != 0 && head[3] <= 8);
}

static char *replaced(const char *text, const char *old, const char *new)
{
    const char *at = strstr(text, old);
    return at ? must_format("%.*s%s%s", (int)(at - text), text, new, at + strlen(old)) : must_format("%s", text);
}

/* The labels that belong to an images file, by the names MNIST and its kin use, gzipped or not; NULL: there are none.
 */
static char *labels_of(const char *images)
{
    static const char *const endings[] = {"", ".gz"};
    const char *slash = strrchr(images, '/'), *name = slash ? slash + 1 : images;
    char *other = replaced(name, "images", "labels"), *typed = replaced(other, "idx3", "idx1"), *found = NULL;
    size_t length = strlen(typed);
    int gzipped = length > 3 && !strcmp(typed + length - 3, ".gz");
    for (int i = 0; i < 2 && !found && strcmp(name, typed) != 0; i++) { /* the same ending first */
        char *path = must_format("%.*s%.*s%s", (int)(name - images), images, (int)length - 3 * gzipped, typed,
                                 endings[(i + gzipped) % 2]);
        if (path_exists(path))
            found = path;
        else
            free(path);
    }
    free(other);
    free(typed);
    return found;
}

/* ---- Opening ---- */

static kiln_dataset *open_idx(const char *images)
{
    char *labels = labels_of(images);
    kiln_dataset *d = kiln_data_idx(images, labels);
    free(labels);
    return d;
}

/* The first `split` of the samples train, the rest tests. */
static int part(source *s, kiln_dataset *d)
{
    if (!d)
        return fail_kiln();
    int64_t count = kiln_data_count(d), first = llround((double)count * s->split);
    s->owned[0] = d;
    if (first > 0 && !(s->train = kiln_data_range(d, 0, first)))
        return fail_kiln();
    if (first < count && !(s->test = kiln_data_range(d, first, count - first)))
        return fail_kiln();
    return 0;
}

static int open_folder(source *s, const char *folder)
{
    if (access(folder, R_OK | X_OK) != 0)
        return fail(EX_NOINPUT, "%s: the folder cannot be read: %s", folder, strerror(errno));
    char *train = find_file(folder, "train", "images"), *test = find_file(folder, "t10k", "images");
    int code = 0;
    if (!test)
        test = find_file(folder, "test", "images");
    char *only = !train && !test ? find_file(folder, "", "images") : NULL;
    if (train && test) {
        s->owned[0] = s->train = open_idx(train);
        s->owned[1] = s->test = s->train ? open_idx(test) : NULL;
        code = s->test ? 0 : fail_kiln();
    } else if (train || test || only) {
        code = part(s, open_idx(train ? train : test ? test : only));
    } else {
        code = fail(EX_NOINPUT, "%s: no IDX files in this folder", folder);
        hint("expected names as MNIST's: train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-…");
    }
    free(train);
    free(test);
    free(only);
    return code;
}

static int open_text(source *s, const char *path)
{
    int64_t length = s->length;
    if (s->split > 0 && !(s->owned[0] = s->train = kiln_data_text(path, .length = length, .to = s->split)))
        return fail_kiln();
    if (s->split < 1 && !(s->owned[1] = s->test = kiln_data_text(path, .length = length, .from = s->split, .to = 1)))
        return fail_kiln();
    return 0;
}

/* "digits", or "digits:N" for N to train on and a sixth of that to test. */
static int open_digits(source *s, const char *text)
{
    int64_t count = 60000;
    if (text[6] && (text[6] != ':' || !parse_count(text + 7, &count) || count < 1))
        return fail(EX_USAGE, "--data %s: expected digits, or digits:N for the first N of them", text);
    int64_t tests = count / 6 < 1 ? 1 : count / 6;
    s->owned[0] = s->train = kiln_data_digits(.count = count);
    s->owned[1] = s->test = s->train ? kiln_data_digits(.test = true, .count = tests < 10000 ? tests : 10000) : NULL;
    return s->test ? 0 : fail_kiln();
}

static int no_such_data(const char *text)
{
    int why = errno;
    fail(EX_NOINPUT, "%s: %s", text, strerror(why));
    const char *near = nearest_word("digits", text);
    if (near)
        hint("did you mean --data %s?", near);
    else
        hint("--data takes digits, a folder or file with IDX images, or a text file");
    return EX_NOINPUT;
}

/* JSON takes text in UTF-8 alone. */
static bool fits_json(const char *text)
{
    json_t *kept = json_string(text);
    json_decref(kept);
    return kept != NULL;
}

static bool is_digits(const char *text)
{
    return !strcmp(text, "digits") || !strncmp(text, "digits:", 7);
}

bool source_is_text(const char *text)
{
    return !is_digits(text) && path_exists(text) && !path_is_folder(text) && !looks_like_idx(text);
}

int source_open(source *s, const char *text, double split, int64_t length)
{
    *s = (source){.split = split, .length = length};
    bool digits = is_digits(text);
    char whole[PATH_MAX];
    if (!digits && !realpath(text, whole))
        return no_such_data(text);
    if (!digits && !fits_json(whole))
        return fail(EX_DATAERR, "%s: the path is not in UTF-8 and cannot be kept with the weights; rename it", whole);
    s->origin = must_format("%s", digits ? text : whole);
    s->given = must_format("%s", text);
    int code = digits                 ? open_digits(s, text)
               : path_is_folder(text) ? open_folder(s, text)
               : looks_like_idx(text) ? part(s, open_idx(text))
                                      : open_text(s, text);
    if (!code)
        s->info = kiln_data_describe(s->train ? s->train : s->test);
    if (!code && s->train && s->test) { /* a class may be in the test set alone */
        int64_t tested = kiln_data_describe(s->test).classes;
        s->info.classes = tested > s->info.classes ? tested : s->info.classes;
    }
    return code;
}

void source_free(source *s)
{
    kiln_dataset *parts[] = {s->train, s->test};
    for (int i = 0; i < 2; i++)
        if (parts[i] != s->owned[0] && parts[i] != s->owned[1])
            kiln_data_free(parts[i]);
    kiln_data_free(s->owned[0]);
    kiln_data_free(s->owned[1]);
    free(s->origin);
    free(s->given);
    *s = (source){0};
}

char *source_meta(const source *s)
{
    json_t *o = json_pack("{s:s, s:s, s:f, s:I, s:b}", "source", s->origin, "input",
                          show_shape(s->info.x.ndim, s->info.x.shape), "split", s->split, "classes",
                          (json_int_t)s->info.classes, "text", s->info.text);
    if (o && s->info.text)
        json_object_set_new(o, "length", json_integer(s->length));
    char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(o);
    if (!text)
        exit(fail(EX_OSERR, "%s: its name cannot be kept", s->origin));
    return text;
}
