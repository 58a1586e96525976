/* What tests of files share: a folder of their own that goes away, whole files in and out, changed bytes. */
#ifndef KILN_TEST_FILES_H
#define KILN_TEST_FILES_H

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "support/core.h"

static char files_folder[128]; /* of the running test */

static inline int files_before(void **state)
{
    const char *base = getenv("TMPDIR");
    snprintf(files_folder, sizeof files_folder, "%.100s/kiln-test-XXXXXX", base && *base ? base : "/tmp");
    return !mkdtemp(files_folder) || core_before(state);
}

/* A file, or a folder with all that is in it. */
static inline void files_remove(const char *path)
{
    DIR *dir = unlink(path) == 0 ? NULL : opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char inner[512];
        snprintf(inner, sizeof inner, "%.200s/%s", path, e->d_name);
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            files_remove(inner);
    }
    if (dir)
        closedir(dir);
    rmdir(path);
}

static inline int files_after(void **state)
{
    files_remove(files_folder);
    return core_after(state);
}

#define files_test(f) cmocka_unit_test_setup_teardown(f, files_before, files_after)

/* "folder/name" in one of a few rotating buffers. */
static inline const char *files_path(const char *name)
{
    static char buffers[8][512];
    static int turn;
    char *path = buffers[turn++ % 8];
    snprintf(path, sizeof buffers[0], "%s/%s", files_folder, name);
    return path;
}

static inline void files_put(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f))
        fail_msg("%s cannot be written", path);
}

/* The whole file, to be freed. */
static inline char *files_get(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s cannot be opened", path);
    char *data = malloc(1 << 20);
    *bytes = fread(data, 1, 1 << 20, f);
    fclose(f);
    return data;
}

/* How many names a folder has, hidden ones too; the lock of a folder of checkpoints, which stays, is none of them. */
static inline int files_count(const char *folder)
{
    int n = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && strcmp(e->d_name, ".lock");
    closedir(dir);
    return n;
}

#endif
