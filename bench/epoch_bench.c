/* A training epoch as people run it, loading included, through kiln_fit: mlp and lenet on 28x28 images stored as bytes,
 * gpt2 on text. One JSON object a line, beside epoch_peer.py's. On the CPU the second epoch counts; elsewhere, where
 * one takes a fraction of a second and kernels are compiled in the background, the median of those after the first four
 * seconds.
 *
 * usage: kiln_bench_epoch [--device cuda] [mlp|lenet|gpt2 …] */
#include <unistd.h>
#include "bench.h"
#include "models.h"

enum {
    IMAGES = 60000,
    LENET_IMAGES = 12000,
    PIXELS = 28 * 28,
    BATCH = 32,
    TOKENS = 128,
    GPT_BATCH = 16,
    TEXT = 200000,
    MOST_EPOCHS = 400
};

static kiln_device device;

static void put(FILE *f, const char *bytes, size_t n)
{
    if (fwrite(bytes, 1, n, f) != n)
        perror("bench");
}

/* Random bytes in the format of MNIST's files: learning does not matter here. */
static bool write_idx(const char *images, const char *labels, int count)
{
    FILE *x = fopen(images, "wb"), *y = fopen(labels, "wb");
    if (x && y) {
        char n[4] = {(char)(count >> 24), (char)(count >> 16), (char)(count >> 8), (char)count}, row[PIXELS];
        put(x, "\0\0\x08\x03", 4);
        put(x, n, 4);
        put(x, "\0\0\0\x1c\0\0\0\x1c", 8);
        put(y, "\0\0\x08\x01", 4);
        put(y, n, 4);
        for (int i = 0; i < count; i++) {
            for (int k = 0; k < PIXELS; k++)
                row[k] = (char)(rand() >> 8);
            char label = (char)(i % 10);
            put(x, row, PIXELS);
            put(y, &label, 1);
        }
    }
    return (!x || !fclose(x)) & (!y || !fclose(y)) && x && y;
}

/* ---- Epochs ---- */

typedef struct watch {
    double start;
    int64_t warm, counted; /* epochs that are not measured, and those that are */
} watch;

/* Goes on until there is enough to take a median of. */
static bool watch_epoch(void *context, const kiln_epoch *e)
{
    (void)e;
    watch *w = context;
    double spent = kiln_seconds() - w->start;
    if (spent < (device == KILN_CPU ? 0 : 4) || !w->warm)
        w->warm++;
    else
        w->counted++;
    return w->counted < 1 || (device != KILN_CPU && spent < 6);
}

static void report(const char *work, const kiln_history *h, const watch *w, int64_t batch, int64_t samples, int workers,
                   int64_t tokens)
{
    double seconds[MOST_EPOCHS], waiting = 0;
    int n = 0;
    for (int64_t i = w->warm; i < h->count; i++) {
        waiting += h->epochs[i].data_wait;
        seconds[n++] = h->epochs[i].seconds;
    }
    if (!n)
        return;
    double one = bench_median(seconds, n);
    printf("{\"work\": \"epoch %s\", \"batch\": %lld, \"peer\": \"kiln\", \"workers\": %d, \"samples_s\": %.0f, "
           "\"us\": %.1f, \"data_wait\": %.3f}\n",
           work, (long long)batch, workers, (double)(samples * tokens) / one,
           1e6 * one * (double)batch / (double)samples, waiting / n);
    fflush(stdout);
}

static void measure(const char *work, kiln_module *m, kiln_dataset *d, int64_t batch, int workers, int64_t tokens)
{
    kiln_module_to(m, device);
    kiln_optim *adam = kiln_optim_adam(kiln_parameters(m), .lr = 1e-3);
    watch w = {.start = kiln_seconds()};
    const kiln_callback callback = {.epoch = watch_epoch, .context = &w};
    kiln_history h = kiln_fit(m, d, .epochs = MOST_EPOCHS, .batch = batch, .optim = adam, .workers = workers,
                              .callbacks = &callback, .ncallbacks = 1);
    report(work, &h, &w, batch, kiln_data_count(d), workers, tokens);
    kiln_history_free(&h);
    kiln_optim_free(adam);
    kiln_module_free(m);
    kiln_data_free(d);
}

static void images(const char *name, kiln_module *(*build)(model_options), int count)
{
    char x[64], y[64];
    snprintf(x, sizeof x, "/tmp/kiln-bench-%d-images", (int)getpid());
    snprintf(y, sizeof y, "/tmp/kiln-bench-%d-labels", (int)getpid());
    if (write_idx(x, y, count))
        for (int workers = 0; workers < 3; workers++)
            measure(name, build((model_options){0}), kiln_data_idx(x, y), BATCH, workers, 1);
    unlink(x);
    unlink(y);
}

static void text(void)
{
    char path[64], *bytes = malloc(TEXT);
    snprintf(path, sizeof path, "/tmp/kiln-bench-%d-text", (int)getpid());
    FILE *f = fopen(path, "wb");
    if (bytes && f) {
        for (int i = 0; i < TEXT; i++)
            bytes[i] = (char)(rand() >> 8);
        put(f, bytes, TEXT);
    }
    if (f && !fclose(f))
        measure(
            "gpt2 4x128",
            model_gpt2((model_options){.layers = 4, .embed = 128, .heads = 4, .context = TOKENS, .vocabulary = 256}),
            kiln_data_text(path, .length = TOKENS), GPT_BATCH, 0, TOKENS);
    unlink(path);
    free(bytes);
}

int main(int argc, char **argv)
{
    device = bench_device(&argc, argv, "cpu");
    const char *all[] = {"mlp", "lenet", "gpt2"};
    for (int i = 0; i < (argc > 1 ? argc - 1 : 3); i++) {
        const char *work = argc > 1 ? argv[i + 1] : all[i];
        if (strcmp(work, "mlp") == 0)
            images(work, model_mlp, IMAGES);
        else if (strcmp(work, "lenet") == 0)
            images(work, model_lenet, LENET_IMAGES);
        else
            text();
    }
    return kiln_report(stderr);
}
