/* Compiling generated text: NVRTC, opened when it is first needed, unless the kernel is on disk already (cubins.h). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/alloc.h"
#include "device/cuda/compile/codegen.h"
#include "device/cuda/compile/cubins.h"
#include "device/cuda/common/library.h"

/* ---- Headers that generated text includes, as they were when this was compiled ---- */

#define EMBEDDED(X)                                                                                                    \
    X(fold, "device/cuda/group/fold.cuh")                                                                              \
    X(words, "device/cuda/group/words.cuh")                                                                            \
    X(pointwise, "device/cuda/kernels/pointwise.cuh")                                                                  \
    X(reduction, "device/cuda/group/reduction.h")                                                                      \
    X(links, "device/cuda/chain/links.cuh")                                                                            \
    X(parameters, "device/cuda/chain/parameters.h")                                                                    \
    X(fault, "device/cuda/common/fault.h")                                                                             \
    X(report, "device/cuda/kernels/report.cuh")                                                                        \
    X(reduce, "device/cuda/kernels/reduce.cuh")                                                                        \
    X(lying, "device/cuda/kernels/lying.cuh")                                                                          \
    X(held, "device/cuda/kernels/held.cuh")                                                                            \
    X(halves, "device/cuda/kernels/halves.cuh")                                                                        \
    X(around, "device/cuda/kernels/around.cuh")                                                                        \
    X(norm, "device/cuda/kernels/norm.cuh")                                                                            \
    X(softmax, "device/cuda/kernels/softmax.cuh")                                                                      \
    X(softmax_h, "device/cuda/kernels/softmax.h")                                                                      \
    X(picks, "device/cuda/kernels/picks.cuh")                                                                          \
    X(tile, "device/cuda/gemm/tile.cuh")                                                                               \
    X(tile_h, "device/cuda/gemm/tile.h")                                                                               \
    X(staged, "device/cuda/gemm/staged.cuh")                                                                           \
    X(tensor, "device/cuda/gemm/tensor.cuh")                                                                           \
    X(panel, "device/cuda/gemm/panel.cuh")                                                                             \
    X(straight, "device/cuda/gemm/straight.cuh")                                                                       \
    X(async, "device/cuda/gemm/async.cuh")                                                                             \
    X(samples, "device/cuda/kernels/samples.cuh")                                                                      \
    X(samples_h, "device/cuda/kernels/samples.h")                                                                      \
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

/* ---- With what is on disk ---- */

/* What a kernel is compiled from: the text, the headers, CUDA's version and the device. */
static kiln_cuda_key of_headers;
static bool have_headers;
static pthread_once_t hashed = PTHREAD_ONCE_INIT;

static void hash_headers(void)
{
    const char *texts[2 * HEADERS];
    for (int i = 0; i < HEADERS; i++) {
        texts[2 * i] = headers[i].name;
        texts[2 * i + 1] = headers[i].text;
    }
    have_headers = kiln_cuda_key_make(&of_headers, texts, 2 * HEADERS);
}

static bool key_of(const char *text, int capability, kiln_cuda_key *key)
{
    char in_words[2 * sizeof of_headers.hash + 1], versions[64];
    pthread_once(&hashed, hash_headers);
    for (size_t i = 0; i < sizeof of_headers.hash; i++)
        snprintf(in_words + 2 * i, 3, "%02x", of_headers.hash[i]);
    snprintf(versions, sizeof versions, "CUDA %d, capability %d", CUDART_VERSION, capability);
    const char *const texts[] = {in_words, versions, text};
    return have_headers && kiln_cuda_key_make(key, texts, sizeof texts / sizeof *texts);
}

static void *find_or_compile(const char *text, int capability, size_t *bytes)
{
    kiln_cuda_key key;
    bool kept = key_of(text, capability, &key);
    void *cubin = kept ? kiln_cuda_cubin_read(&key, bytes) : NULL;
    if (cubin)
        return cubin;
    cubin = open_nvrtc() ? compile(text, capability, bytes) : NULL;
    if (cubin && kept)
        kiln_cuda_cubin_write(&key, cubin, *bytes);
    return cubin;
}

/* Once a process, to the first thread that wants something compiled. */
static void say_if_not_kept(void)
{
    static bool said;
    char why[256];
    if (!said && !kiln_cuda_cubins_kept(why, sizeof why))
        kiln_notice("compiled kernels are not kept for other processes: %s", why);
    said = true;
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
    say_if_not_kept();
    kiln_cuda_key key;
    void *cubin = !prepared && key_of(text, capability, &key) ? kiln_cuda_cubin_read(&key, &bytes) : NULL;
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
