/* Compiling generated text: NVRTC, opened when it is first needed, and cubins on disk ($XDG_CACHE_HOME/kiln, else
 * ~/.cache/kiln). A file there counts only if its header, its length and its checksum are right; it appears by a
 * rename, so it is whole or not there. What cannot be read or written is compiled again. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/alloc.h"
#include "core/hash.h"
#include "device/cuda/codegen.h"
#include "device/cuda/library.h"

/* ---- Headers that generated text includes, as they were when this was compiled ---- */

#define EMBEDDED(X)                                                                                                    \
    X(fold, "device/cuda/fold.cuh")                                                                                    \
    X(words, "device/cuda/words.cuh")                                                                                  \
    X(pointwise, "device/cuda/pointwise.cuh")                                                                          \
    X(reduction, "device/cuda/reduction.h")                                                                            \
    X(walk, "device/cuda/walk.cuh")                                                                                    \
    X(walk_h, "device/cuda/walk.h")                                                                                    \
    X(fault, "device/cuda/fault.h")                                                                                    \
    X(report, "device/cuda/report.cuh")                                                                                \
    X(reduce, "device/cuda/reduce.cuh")                                                                                \
    X(lying, "device/cuda/lying.cuh")                                                                                  \
    X(held, "device/cuda/held.cuh")                                                                                    \
    X(halves, "device/cuda/halves.cuh")                                                                                \
    X(softmax, "device/cuda/softmax.cuh")                                                                              \
    X(picks, "device/cuda/picks.cuh")                                                                                  \
    X(tile, "device/cuda/tile.cuh")                                                                                    \
    X(tile_h, "device/cuda/tile.h")                                                                                    \
    X(staged, "device/cuda/staged.cuh")                                                                                \
    X(tensor, "device/cuda/tensor.cuh")                                                                                \
    X(straight, "device/cuda/straight.cuh")                                                                            \
    X(async, "device/cuda/async.cuh")                                                                                  \
    X(samples, "device/cuda/samples.cuh")                                                                              \
    X(samples_h, "device/cuda/samples.h")                                                                              \
    X(sample_ints, "ops/samples.h")                                                                                    \
    X(order, "core/order.h")                                                                                           \
    X(pose, "core/pose.h")                                                                                             \
    X(philox, "core/philox_words.h")                                                                                   \
    X(math, "ops/pointwise_math.h")

#define EMBED(name, path)                                                                                              \
    __asm__(".section .rodata\nkiln_cuda_text_" #name ":\n.incbin \"" path "\"\n.byte 0\n.previous\n");                \
    extern const char text_##name[] __asm__("kiln_cuda_text_" #name);
EMBEDDED(EMBED)

#define LISTED(name, path) {path, text_##name},
static const struct {
    const char *name, *text;
} headers[] = {EMBEDDED(LISTED)};
enum { HEADERS = sizeof headers / sizeof *headers };

int kiln_cuda_compiles(void)
{
    const char *wish = getenv("KILN_CUDA_JIT");
    return !wish ? 1 : strcmp(wish, "0") == 0 ? 0 : strcmp(wish, "wait") == 0 ? 2 : 1;
}

/* ---- NVRTC ---- */

typedef struct _nvrtcProgram *nvrtc_program;
static struct {
    int (*create)(nvrtc_program *p, const char *text, const char *name, int n, const char *const *texts,
                  const char *const *names);
    int (*destroy)(nvrtc_program *p);
    int (*compile)(nvrtc_program p, int n, const char *const *options);
    int (*log_size)(nvrtc_program p, size_t *bytes);
    int (*log)(nvrtc_program p, char *log);
    int (*cubin_size)(nvrtc_program p, size_t *bytes);
    int (*cubin)(nvrtc_program p, char *cubin);
} rtc;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *library;
static bool tried;

/* Once a process: a machine without it does not get it meanwhile. */
static bool open_nvrtc(void)
{
    static const kiln_cuda_symbol symbols[] = {
        {"nvrtcCreateProgram", (void **)&rtc.create},   {"nvrtcDestroyProgram", (void **)&rtc.destroy},
        {"nvrtcCompileProgram", (void **)&rtc.compile}, {"nvrtcGetProgramLogSize", (void **)&rtc.log_size},
        {"nvrtcGetProgramLog", (void **)&rtc.log},      {"nvrtcGetCUBINSize", (void **)&rtc.cubin_size},
        {"nvrtcGetCUBIN", (void **)&rtc.cubin}};
    pthread_mutex_lock(&lock);
    if (!tried) {
        tried = true;
        library = kiln_cuda_library_open("a fused group", "libnvrtc.so.13", "NVRTC", symbols,
                                         sizeof symbols / sizeof *symbols);
    }
    bool there = library != NULL;
    pthread_mutex_unlock(&lock);
    return there || kiln_fail(KILN_E_UNSUPPORTED, NULL, "libnvrtc.so.13 cannot be opened");
}

static void *fail_with_log(nvrtc_program p)
{
    size_t bytes = 0;
    char *log = rtc.log_size(p, &bytes) == 0 && bytes ? kiln_alloc(bytes, 1) : NULL;
    bool there = log && rtc.log(p, log) == 0;
    kiln_fail(KILN_E_UNSUPPORTED, "a fused group", "its generated kernel does not compile: %.400s", there ? log : "?");
    kiln_free(log);
    return NULL;
}

static void *compile(const char *text, int capability, size_t *bytes)
{
    char architecture[32];
    snprintf(architecture, sizeof architecture, "--gpu-architecture=sm_%d", capability);
    /* Nothing is contracted, as in the interpreter and on the CPU: a group's bits do not depend on what runs it. */
    const char *const options[] = {architecture, "--std=c++17", "--fmad=false"};
    const char *texts[HEADERS], *names[HEADERS];
    for (int i = 0; i < HEADERS; i++) {
        texts[i] = headers[i].text;
        names[i] = headers[i].name;
    }
    nvrtc_program p = NULL;
    if (rtc.create(&p, text, "generated.cu", HEADERS, texts, names) != 0)
        return kiln_fail(KILN_E_UNSUPPORTED, "a fused group", "NVRTC takes no text");
    void *cubin = NULL;
    if (rtc.compile(p, (int)(sizeof options / sizeof *options), options) != 0)
        fail_with_log(p);
    else if (rtc.cubin_size(p, bytes) == 0 && *bytes && (cubin = kiln_alloc(*bytes, 1)) && rtc.cubin(p, cubin) != 0) {
        kiln_free(cubin);
        cubin = kiln_fail(KILN_E_UNSUPPORTED, "a fused group", "NVRTC gives no cubin");
    }
    rtc.destroy(&p);
    return cubin;
}

/* ---- On disk ---- */

typedef struct file_header {
    char magic[8];
    uint64_t key[2]; /* of the text, the headers, CUDA's version and the device */
    uint64_t bytes, checksum;
} file_header;

static const char magic[8] = "kilncub1";

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    for (; bytes >= 8; p += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        hash = kiln_mix(hash, word);
    }
    uint64_t rest = bytes;
    for (; bytes; bytes--)
        rest = rest << 8 | *p++;
    return kiln_mix(hash, rest);
}

static file_header header_of(const char *text, int capability)
{
    file_header h = {0};
    memcpy(h.magic, magic, sizeof magic);
    for (int k = 0; k < 2; k++) {
        uint64_t hash = kiln_mix((uint64_t)k + 1, (uint64_t)CUDART_VERSION << 32 | (uint64_t)capability);
        for (int i = 0; i < HEADERS; i++)
            hash = hash_bytes(hash, headers[i].text, strlen(headers[i].text));
        h.key[k] = hash_bytes(hash, text, strlen(text));
    }
    return h;
}

enum { PATH = 1024 };

/* The folder, with a slash at its end; false when nobody says where. */
static bool cache_folder(char *path, bool make)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool own = cache && *cache == '/';
    int n = own ? snprintf(path, PATH, "%s/", cache) : snprintf(path, PATH, "%s/.cache/", home && *home ? home : "");
    if ((!own && !(home && *home == '/')) || n < 0 || n > PATH - 128)
        return false;
    if (make)
        mkdir(path, 0700);
    strcat(path, "kiln/");
    return !make || mkdir(path, 0700) == 0 || errno == EEXIST;
}

static void file_name(char *path, const file_header *h)
{
    size_t n = strlen(path);
    snprintf(path + n, PATH - n, "cuda-%016llx%016llx.cubin", (unsigned long long)h->key[0],
             (unsigned long long)h->key[1]);
}

static void *read_cubin(const file_header *want, size_t *bytes)
{
    char path[PATH];
    if (!cache_folder(path, false))
        return NULL;
    file_name(path, want);
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    file_header h;
    struct stat st;
    void *cubin = NULL;
    if (fread(&h, sizeof h, 1, f) == 1 && !memcmp(h.magic, want->magic, sizeof h.magic) &&
        !memcmp(h.key, want->key, sizeof h.key) && fstat(fileno(f), &st) == 0 && h.bytes > 0 &&
        (uint64_t)st.st_size == sizeof h + h.bytes && (cubin = kiln_alloc(h.bytes, 1)) &&
        (fread(cubin, 1, h.bytes, f) != h.bytes || hash_bytes(0, cubin, h.bytes) != h.checksum)) {
        kiln_free(cubin);
        cubin = NULL;
    }
    fclose(f);
    *bytes = cubin ? h.bytes : 0;
    return cubin;
}

static void write_cubin(const file_header *key, const void *cubin, size_t bytes)
{
    char path[PATH], temporary[PATH + 32];
    if (!cache_folder(path, true))
        return;
    file_name(path, key);
    snprintf(temporary, sizeof temporary, "%s.%ld.XXXXXX", path, (long)getpid());
    int fd = mkstemp(temporary);
    FILE *f = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (!f) {
        if (fd >= 0)
            close(fd);
        return;
    }
    file_header h = *key;
    h.bytes = bytes;
    h.checksum = hash_bytes(0, cubin, bytes);
    bool ok = fwrite(&h, sizeof h, 1, f) == 1 && fwrite(cubin, 1, bytes, f) == bytes;
    if (fclose(f) != 0 || !ok || rename(temporary, path) != 0)
        unlink(temporary);
}

static void *find_or_compile(const char *text, int capability, size_t *bytes)
{
    file_header key = header_of(text, capability);
    void *cubin = read_cubin(&key, bytes);
    if (cubin)
        return cubin;
    cubin = open_nvrtc() ? compile(text, capability, bytes) : NULL;
    if (cubin)
        write_cubin(&key, cubin, *bytes);
    return cubin;
}

/* What goes wrong here is met again, and passed over, by the thread that compiles: it is no error of the caller's. */
void kiln_cuda_compiler_prepare(const char *text, int capability, void (*at_exit)(void))
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static bool prepared;
    uint64_t failures = kiln_fail_count();
    bool was_ok = kiln_ok();
    size_t bytes = 0;
    pthread_mutex_lock(&once);
    file_header key = header_of(text, capability);
    void *cubin = prepared ? NULL : read_cubin(&key, &bytes);
    if (!cubin && !prepared && open_nvrtc()) {
        prepared = true;
        cubin = compile("__global__ void nothing() {}", capability, &bytes);
        atexit(at_exit);
    }
    pthread_mutex_unlock(&once);
    kiln_free(cubin);
    if (was_ok)
        kiln_fail_forget(failures);
}

bool kiln_cuda_compile(const char *text, int capability, bool (*take)(void *context, const void *cubin, size_t bytes),
                       void *context)
{
    size_t bytes = 0;
    void *cubin = find_or_compile(text, capability, &bytes);
    bool ok = cubin && take(context, cubin, bytes);
    kiln_free(cubin);
    return ok;
}
