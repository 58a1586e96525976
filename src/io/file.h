/* Files from below: reading that knows the file's real size, and writing that appears whole or not at all. `who` is the
 * operation that messages name. */
#ifndef KILN_IO_FILE_H
#define KILN_IO_FILE_H

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Reading (read.c) ---- */

typedef struct kiln_file {
    int fd;        /* -1: not open */
    uint64_t size; /* when it was opened; a file that shrinks afterwards is an error where it is read */
    const char *path, *who;
} kiln_file;

/* Opens a regular file; path and who must outlive it. False with an error. */
bool kiln_file_open(kiln_file *f, const char *path, const char *who);
void kiln_file_close(kiln_file *f);
bool kiln_file_read(const kiln_file *f, void *to, size_t bytes, uint64_t offset);

/* The whole of a small file and a 0 after it; refused when it is larger than `limit`. Freed with kiln_free. */
char *kiln_file_text(const char *path, const char *who, size_t limit, size_t *bytes);

/* ---- Writing (write.c) ---- */

typedef struct kiln_writer {
    int fd;
    uint64_t written;
    const char *who;
    char *path;
    char *temporary; /* what is written to until kiln_writer_commit */
} kiln_writer;

/* Begins a file. With `in_place` it is written under its own name, in a folder that is itself a temporary. */
bool kiln_writer_begin(kiln_writer *w, const char *path, const char *who, bool in_place);
bool kiln_writer_put(kiln_writer *w, const void *data, size_t bytes);

/* Makes it safe on disk and gives it its name; ends the writer also when it fails. */
bool kiln_writer_commit(kiln_writer *w);
/* Ends it and leaves what was there before. Harmless after kiln_writer_commit or a failed begin. */
void kiln_writer_abort(kiln_writer *w);

/* Both at once. */
bool kiln_file_write(const char *path, const char *who, bool in_place, const void *data, size_t bytes);

bool kiln_folder_sync(const char *path, const char *who);   /* makes the names in a folder safe on disk */
char *kiln_path_join(const char *folder, const char *name); /* freed with kiln_free; NULL with an error */
char *kiln_path_folder(const char *path);                   /* "a/b/" of "a/b/c", "." of "c"; freed with kiln_free */
unsigned long long
kiln_file_turn(void);                   /* another number each time: what is written gets a name that was never there */
const char *kiln_folder_next(DIR *dir); /* the next name in it, "." and ".." left out; NULL at the end */

#endif
