/* Reading files, through zlib where they are gzipped. zlib's own file functions would do, but they pass over garbage
 * behind the data and cannot say where in the file it went wrong. */
#include "data/stream.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include "core/alloc.h"
#include "core/fail.h"

enum {
    WINDOW = 65536,
    GZIP_WINDOW_BITS = 15 + 16, /* zlib: the largest window, a gzip header */
    MOST_EXPANSION = 1032       /* deflate: a bit for 129 bytes, at the very best */
};

struct kiln_stream {
    const char *path, *operation;
    int handle;
    uint64_t size;   /* of the file */
    uint64_t taken;  /* bytes read from it */
    uint64_t offset; /* bytes given to the caller */
    bool gzipped, ended;
    z_stream z;
    unsigned char window[WINDOW]; /* bytes of a gzipped file */
};

static bool read_failed(const kiln_stream *f)
{
    return kiln_fail(KILN_E_IO, f->operation, "reading %s failed at byte %llu: %s", f->path,
                     (unsigned long long)f->taken, strerror(errno));
}

/* Bytes as they are in the file; fewer than asked for only at its end. -1 with an error. */
static int64_t read_raw(kiln_stream *f, void *to, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = read(f->handle, (char *)to + done, bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            read_failed(f);
            return -1;
        }
        if (n == 0)
            break;
        done += (size_t)n;
        f->taken += (uint64_t)n;
    }
    return (int64_t)done;
}

static void *zlib_alloc(void *opaque, unsigned items, unsigned size)
{
    (void)opaque;
    return kiln_alloc_zero(items, size);
}

static void zlib_free(void *opaque, void *p)
{
    (void)opaque;
    kiln_free(p);
}

/* Looks at the first two bytes. */
static bool begin_gzip(kiln_stream *f)
{
    int64_t n = read_raw(f, f->window, WINDOW);
    if (n < 0)
        return false;
    if (n < 2 || f->window[0] != 0x1f || f->window[1] != 0x8b)
        return kiln_stream_seek(f, 0);
    f->gzipped = true;
    f->z = (z_stream){.zalloc = zlib_alloc, .zfree = zlib_free, .next_in = f->window, .avail_in = (unsigned)n};
    if (inflateInit2(&f->z, GZIP_WINDOW_BITS) == Z_OK)
        return true;
    f->gzipped = false;
    return kiln_fail(KILN_E_MEMORY, f->operation, "there is no memory to read %s with", f->path);
}

static bool open_plain(kiln_stream *f)
{
    f->handle = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe nobody writes to does not hold us up */
    if (f->handle < 0) {
        bool missing =
            errno == ENOENT || errno == EACCES || errno == ENOTDIR || errno == ENAMETOOLONG || errno == EPERM;
        return kiln_fail(missing ? KILN_E_MISSING : KILN_E_IO, f->operation, "cannot open %s: %s", f->path,
                         strerror(errno));
    }
    struct stat status;
    if (fstat(f->handle, &status))
        return read_failed(f);
    if (S_ISDIR(status.st_mode))
        return kiln_fail(KILN_E_FORMAT, f->operation, "%s is a folder, not a file", f->path);
    if (!S_ISREG(status.st_mode))
        return kiln_fail(KILN_E_FORMAT, f->operation, "%s is a device or a pipe, not a file with a size", f->path);
    if (status.st_size == 0)
        return kiln_fail(KILN_E_FORMAT, f->operation, "%s is empty", f->path);
    f->size = (uint64_t)status.st_size;
    return true;
}

kiln_stream *kiln_stream_open(const char *path, bool gzip, const char *operation)
{
    kiln_stream *f = kiln_alloc(1, sizeof *f);
    if (!f)
        return NULL;
    memset(f, 0, offsetof(kiln_stream, window));
    f->path = path;
    f->operation = operation;
    f->handle = -1;
    if (open_plain(f) && (!gzip || begin_gzip(f)))
        return f;
    kiln_stream_close(f);
    return NULL;
}

void kiln_stream_close(kiln_stream *f)
{
    if (!f)
        return;
    if (f->gzipped)
        inflateEnd(&f->z);
    if (f->handle >= 0)
        close(f->handle);
    kiln_free(f);
}

uint64_t kiln_stream_size(const kiln_stream *f, bool *exact)
{
    *exact = !f->gzipped;
    if (!f->gzipped)
        return f->size;
    return f->size > UINT64_MAX / MOST_EXPANSION ? UINT64_MAX : f->size * MOST_EXPANSION;
}

bool kiln_stream_seek(kiln_stream *f, uint64_t offset)
{
    if (offset > INT64_MAX || lseek(f->handle, (off_t)offset, SEEK_SET) < 0)
        return read_failed(f);
    f->taken = f->offset = offset;
    return true;
}

uint64_t kiln_stream_offset(const kiln_stream *f)
{
    return f->offset;
}

/* Where in the gzipped file the next byte would come from. */
static uint64_t gzip_offset(const kiln_stream *f)
{
    return f->taken - f->z.avail_in;
}

/* More of the file into the window, behind what is still there; false with an error. */
static bool refill(kiln_stream *f)
{
    memmove(f->window, f->z.next_in, f->z.avail_in);
    int64_t n = read_raw(f, f->window + f->z.avail_in, WINDOW - f->z.avail_in);
    if (n < 0)
        return false;
    f->z.next_in = f->window;
    f->z.avail_in += (unsigned)n;
    return true;
}

/* At the end of a gzip stream: another one may follow, nothing else. */
static bool next_member(kiln_stream *f)
{
    if (f->z.avail_in < 2 && !refill(f))
        return false;
    if (f->z.avail_in == 0) {
        f->ended = true;
        return true;
    }
    if (f->z.avail_in >= 2 && f->z.next_in[0] == 0x1f && f->z.next_in[1] == 0x8b && inflateReset(&f->z) == Z_OK)
        return true;
    return kiln_fail(KILN_E_FORMAT, f->operation, "%s goes on behind the end of its gzip data, at byte %llu", f->path,
                     (unsigned long long)gzip_offset(f));
}

/* One call of inflate; false with an error. */
static bool inflate_some(kiln_stream *f)
{
    if (!f->z.avail_in && !refill(f))
        return false;
    bool no_more = !f->z.avail_in;
    int status = inflate(&f->z, Z_NO_FLUSH);
    if (status == Z_STREAM_END)
        return next_member(f);
    if (status == Z_MEM_ERROR)
        return kiln_fail(KILN_E_MEMORY, f->operation, "there is no memory to read %s with", f->path);
    if (no_more && (status == Z_BUF_ERROR || status == Z_OK))
        return kiln_fail(KILN_E_FORMAT, f->operation, "%s is cut off: its gzip data does not end by byte %llu", f->path,
                         (unsigned long long)f->size);
    if (status != Z_OK && status != Z_BUF_ERROR)
        return kiln_fail(KILN_E_FORMAT, f->operation, "the gzip data of %s is damaged near byte %llu: %s", f->path,
                         (unsigned long long)gzip_offset(f), f->z.msg ? f->z.msg : "it needs a dictionary");
    return true;
}

int64_t kiln_stream_read(kiln_stream *f, void *to, size_t bytes)
{
    int64_t done = 0;
    if (!f->gzipped)
        done = read_raw(f, to, bytes);
    else
        while ((size_t)done < bytes && !f->ended) {
            size_t part = bytes - (size_t)done;
            unsigned room = part > 1u << 30 ? 1u << 30 : (unsigned)part;
            f->z.next_out = (unsigned char *)to + done;
            f->z.avail_out = room;
            if (!inflate_some(f))
                return -1;
            done += room - f->z.avail_out;
        }
    if (done > 0)
        f->offset += (uint64_t)done;
    return done;
}
