/* Reading files: what is opened is a regular file, its size is known before memory is taken, short reads are errors. */
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/fail.h"

bool kiln_file_open(kiln_file *f, const char *path, const char *who)
{
    *f = (kiln_file){.fd = -1, .path = path, .who = who};
    if (!path || !*path)
        return kiln_fail(KILN_E_ARGUMENT, who, "no file is named");
    /* Without O_NONBLOCK a pipe that nobody writes to would hang here. */
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    if (f->fd < 0 || fstat(f->fd, &st) < 0) {
        bool missing = errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == EPERM || errno == ELOOP;
        kiln_fail(missing ? KILN_E_MISSING : KILN_E_IO, who, "%s: %s", path, strerror(errno));
    } else if (S_ISDIR(st.st_mode)) {
        kiln_fail(KILN_E_FORMAT, who, "%s is a folder, not a file", path);
    } else if (!S_ISREG(st.st_mode)) {
        kiln_fail(KILN_E_FORMAT, who, "%s is not a regular file", path);
    } else {
        f->size = (uint64_t)st.st_size;
        return true;
    }
    kiln_file_close(f);
    return false;
}

void kiln_file_close(kiln_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
}

bool kiln_file_read(const kiln_file *f, void *to, size_t bytes, uint64_t offset)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(f->fd, (char *)to + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return kiln_fail(KILN_E_IO, f->who, "%s: reading at byte %llu failed: %s", f->path,
                             (unsigned long long)(offset + done), strerror(errno));
        if (n == 0)
            return kiln_fail(KILN_E_FORMAT, f->who, "%s: the file ends at byte %llu; it had %llu when it was opened",
                             f->path, (unsigned long long)(offset + done), (unsigned long long)f->size);
        done += (size_t)n;
    }
    return true;
}

char *kiln_file_text(const char *path, const char *who, size_t limit, size_t *bytes)
{
    kiln_file f;
    if (!kiln_file_open(&f, path, who))
        return NULL;
    char *text = NULL;
    if (f.size > limit)
        kiln_fail(KILN_E_FORMAT, who, "%s has %llu bytes; at most %zu are read", path, (unsigned long long)f.size,
                  limit);
    else
        text = kiln_alloc((size_t)f.size + 1, 1);
    if (text && !kiln_file_read(&f, text, (size_t)f.size, 0)) {
        kiln_free(text);
        text = NULL;
    }
    if (text) {
        text[f.size] = '\0';
        *bytes = (size_t)f.size;
    }
    kiln_file_close(&f);
    return text;
}
