/* The folder of compiled kernels, and the hash they are known by: libmd's, which is opened when it is first needed. */
#define _GNU_SOURCE
#include "device/cuda/compile/cubins.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/alloc.h"
#include "core/clock.h"

/* ---- SHA-256 ---- */

#ifdef KILN_HAVE_MD
#include <sha2.h>

static struct {
    void *library; /* stays open */
    __typeof__(&SHA256Init) init;
    __typeof__(&SHA256Update) update;
    __typeof__(&SHA256Final) final;
} sha;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char no_sha[200]; /* why there is none */

static void open_md(void)
{
    sha.library = dlopen("libmd.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!sha.library) {
        snprintf(no_sha, sizeof no_sha, "libmd, which tells them apart, cannot be opened: %s", dlerror());
        return;
    }
    *(void **)&sha.init = dlsym(sha.library, "SHA256Init");
    *(void **)&sha.update = dlsym(sha.library, "SHA256Update");
    *(void **)&sha.final = dlsym(sha.library, "SHA256Final");
    if (!sha.init || !sha.update || !sha.final)
        snprintf(no_sha, sizeof no_sha, "libmd.so.0 does not compute SHA-256");
}

static bool has_sha(void)
{
    pthread_once(&once, open_md);
    return !no_sha[0];
}

static void digest(kiln_cuda_key *key, const void *data, size_t bytes)
{
    SHA2_CTX context;
    sha.init(&context);
    sha.update(&context, data, bytes);
    sha.final(key->hash, &context);
}

/* With the byte that ends each of them: where one stops and the next begins belongs to it. */
static void digest_texts(kiln_cuda_key *key, const char *const *texts, int count)
{
    SHA2_CTX context;
    sha.init(&context);
    for (int i = 0; i < count; i++)
        sha.update(&context, (const uint8_t *)texts[i], strlen(texts[i]) + 1);
    sha.final(key->hash, &context);
}
#else
static const char no_sha[] = "Kiln was built without libmd, which tells them apart";

static bool has_sha(void)
{
    return false;
}

static void digest(kiln_cuda_key *key, const void *data, size_t bytes)
{
    (void)key;
    (void)data;
    (void)bytes;
}

static void digest_texts(kiln_cuda_key *key, const char *const *texts, int count)
{
    (void)key;
    (void)texts;
    (void)count;
}
#endif

bool kiln_cuda_key_make(kiln_cuda_key *key, const char *const *texts, int count)
{
    if (has_sha())
        digest_texts(key, texts, count);
    return has_sha();
}

/* ---- The folder ---- */

enum { PATH = 1024, NAME = 96 };

/* False, with the reason, unless it is the user's and nobody else can write to it. */
static bool is_trusted(const struct stat *st, const char *what, char *why, size_t size)
{
    if (st->st_uid != geteuid())
        snprintf(why, size, "%.*s belongs to another user", PATH, what);
    else if (st->st_mode & (S_IWGRP | S_IWOTH))
        snprintf(why, size, "%.*s can be written to by others; chmod go-w takes that from them", PATH, what);
    else
        return true;
    return false;
}

/* Where it is, or should be; false when nobody says where. */
static bool folder_path(char *path, bool make)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool own = cache && *cache == '/';
    int n = own ? snprintf(path, PATH, "%s", cache) : snprintf(path, PATH, "%s/.cache", home && *home ? home : "");
    if ((!own && !(home && *home == '/')) || n < 0 || n > PATH - NAME)
        return false;
    if (make)
        mkdir(path, 0700);
    strcat(path, "/kiln");
    if (make)
        mkdir(path, 0700);
    return true;
}

/* Everything below goes through what was opened here and looked at, whatever becomes of the name. -1 with the reason;
 * an empty one if it is not there, and `make` is false. */
static int open_folder(bool make, char *why, size_t size)
{
    char path[PATH];
    struct stat st;
    *why = '\0';
    if (!folder_path(path, make)) {
        snprintf(why, size, "neither XDG_CACHE_HOME nor HOME says where");
        return -1;
    }
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) {
        if (make || errno != ENOENT)
            snprintf(why, size, "%.*s: %s", PATH, path, strerror(errno));
        return -1;
    }
    if (fstat(folder, &st) == 0 && is_trusted(&st, path, why, size))
        return folder;
    close(folder);
    return -1;
}

bool kiln_cuda_cubins_kept(char *why, size_t size)
{
    if (!has_sha()) {
        snprintf(why, size, "%s", no_sha);
        return false;
    }
    int folder = open_folder(true, why, size);
    if (folder >= 0)
        close(folder);
    return folder >= 0;
}

/* ---- Files ---- */

typedef struct file_header {
    char magic[8];
    kiln_cuda_key key, contents; /* what it was compiled from; what follows */
    uint64_t bytes;
} file_header;

static const char magic[8] = "kilncub2";

static void file_name(char name[NAME], const kiln_cuda_key *key)
{
    int n = snprintf(name, NAME, "cuda-");
    for (size_t i = 0; i < sizeof key->hash; i++)
        n += snprintf(name + n, (size_t)(NAME - n), "%02x", key->hash[i]);
    snprintf(name + n, (size_t)(NAME - n), ".cubin");
}

static bool is_what_it_says(const file_header *h, const kiln_cuda_key *key, const void *cubin)
{
    kiln_cuda_key contents;
    digest(&contents, cubin, h->bytes);
    return !memcmp(h->magic, magic, sizeof magic) && !memcmp(&h->key, key, sizeof *key) &&
           !memcmp(&h->contents, &contents, sizeof contents);
}

/* Takes over the file. */
static void *read_file(int fd, const kiln_cuda_key *key, size_t *bytes)
{
    char why[PATH + 200];
    struct stat st;
    file_header h;
    void *cubin = NULL;
    FILE *f = fdopen(fd, "rb");
    if (!f) {
        close(fd);
        return NULL;
    }
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && is_trusted(&st, "it", why, sizeof why) &&
        fread(&h, sizeof h, 1, f) == 1 && h.bytes > 0 && h.bytes == (uint64_t)st.st_size - sizeof h)
        cubin = kiln_alloc(h.bytes, 1);
    if (cubin && (fread(cubin, 1, h.bytes, f) != h.bytes || !is_what_it_says(&h, key, cubin))) {
        kiln_free(cubin);
        cubin = NULL;
    }
    fclose(f);
    *bytes = cubin ? h.bytes : 0;
    return cubin;
}

void *kiln_cuda_cubin_read(const kiln_cuda_key *key, size_t *bytes)
{
    char why[PATH + 200], name[NAME];
    int folder = has_sha() ? open_folder(false, why, sizeof why) : -1;
    *bytes = 0;
    if (folder < 0)
        return NULL;
    file_name(name, key);
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    close(folder);
    return fd < 0 ? NULL : read_file(fd, key, bytes);
}

static bool write_file(int fd, const file_header *h, const void *cubin)
{
    FILE *f = fdopen(fd, "wb");
    if (!f) {
        close(fd);
        return false;
    }
    bool ok = fwrite(h, sizeof *h, 1, f) == 1 && fwrite(cubin, 1, h->bytes, f) == h->bytes;
    return fclose(f) == 0 && ok;
}

void kiln_cuda_cubin_write(const kiln_cuda_key *key, const void *cubin, size_t bytes)
{
    char why[PATH + 200], name[NAME], temporary[NAME + 40];
    int folder = has_sha() ? open_folder(true, why, sizeof why) : -1;
    if (folder < 0)
        return;
    file_header h = {.key = *key, .bytes = bytes};
    memcpy(h.magic, magic, sizeof magic);
    digest(&h.contents, cubin, bytes);
    file_name(name, key);
    snprintf(temporary, sizeof temporary, "%s.%ld.%.9f", name, (long)getpid(), kiln_seconds());
    int fd = openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0 && (!write_file(fd, &h, cubin) || renameat(folder, temporary, folder, name) != 0))
        unlinkat(folder, temporary, 0);
    close(folder);
}
