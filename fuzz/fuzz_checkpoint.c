/* A checkpoint of which one file is replaced by the input: the first byte says which. Refused with an error and nothing
 * changed, or loaded. With KILN_FUZZ_SEEDS the files of a good one are written to that folder to begin with. */
#include "fuzz.h"

#include <fcntl.h>
#include <sys/stat.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);

enum { FILES = 3 };
static const char *const names[FILES] = {"state.json", "model.safetensors", "optim.safetensors"};
static char folder[64], step[96];
static uint8_t good[FILES][4096];
static size_t good_size[FILES];
static kiln_checkpoint parts;

static const char *path_of(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", step, name);
    return path;
}

static void put(const char *path, const void *data, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    must(fd >= 0 && write(fd, data, size) == (ssize_t)size && close(fd) == 0);
}

static void forget(void)
{
    for (int i = 0; i < FILES; i++)
        unlink(path_of(names[i]));
    rmdir(step);
    char lock[96];
    snprintf(lock, sizeof lock, "%s/.lock", folder);
    unlink(lock);
    rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    fuzz_begin();
    snprintf(folder, sizeof folder, "%s/kiln-fuzz-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    must(mkdtemp(folder));
    snprintf(step, sizeof step, "%s/step-00000003", folder);
    atexit(forget);
    parts.model = kiln_nn_linear(2, 2);
    parts.optim = kiln_optim_adam(kiln_parameters(parts.model));
    parts.schedule = kiln_schedule_cosine(parts.optim, 10, 0.1);
    parts.step = 3;
    parts.extra = "{\"a\": 1}";
    must(kiln_checkpoint_save(folder, &parts, 1));
    const char *seeds = getenv("KILN_FUZZ_SEEDS");
    for (int i = 0; i < FILES; i++) {
        FILE *f = fopen(path_of(names[i]), "rb");
        must(f);
        good_size[i] = fread(good[i], 1, sizeof good[i] - 1, f);
        fclose(f);
        uint8_t seed[sizeof good[i] + 1];
        char path[512];
        seed[0] = (uint8_t)i;
        memcpy(seed + 1, good[i], good_size[i]);
        snprintf(path, sizeof path, "%s/%s", seeds ? seeds : "", names[i]);
        if (seeds)
            put(path, seed, good_size[i] + 1);
    }
    return 0;
}

/* state.json with the size that a replaced file has, so that it is looked into. */
static void put_state(int file, size_t size)
{
    char text[sizeof good[0] + 32], *at = strstr((char *)good[0], names[file]);
    must(at);
    at = strchr(at, ':') + 2;
    int before = (int)(at - (char *)good[0]);
    int n = snprintf(text, sizeof text, "%.*s%zu%s", before, (char *)good[0], size, at + strspn(at, "0123456789"));
    put(path_of(names[0]), text, (size_t)n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    fuzz_begin();
    int file = data[0] % FILES;
    for (int i = 0; i < FILES; i++)
        put(path_of(names[i]), good[i], good_size[i]);
    put(path_of(names[file]), data + 1, size - 1);
    if (file)
        put_state(file, size - 1);
    float before[4], after[4];
    double rate = kiln_optim_lr(parts.optim, 0);
    kiln_tensor *weight = kiln_module_tensor(parts.model, "weight");
    must(kiln_read(weight, before, sizeof before));
    parts.extra = NULL;
    bool loaded = kiln_checkpoint_load(folder, &parts);
    fuzz_end(loaded);
    if (!loaded) {
        must(kiln_read(weight, after, sizeof after));
        must(!memcmp(before, after, sizeof before) && kiln_optim_lr(parts.optim, 0) == rate);
    }
    kiln_string_free((char *)parts.extra);
    return 0;
}
