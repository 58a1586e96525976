/* A training epoch as people run it, loading included, through kiln_fit: mlp and lenet on 28x28 images stored as bytes,
 * gpt2 on text; loop: the MLP by a loop of one's own, as examples/mixed_precision.c has it. One JSON object a line,
 * beside epoch_peer.py's. On the CPU the second epoch counts; elsewhere, where one takes a fraction of a second and
 * kernels are compiled in the background, the median of those after the first four seconds.
 *
 * usage: kiln_bench_epoch [--device cuda] [mlp|lenet|gpt2|loop …]
 *        KILN_BENCH_AMP=bf16, f16: under autocast; f16 with a gradient scaler */
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

typedef struct epochs {
    double seconds[MOST_EPOCHS]; /* of those that count */
    int count;
    double waiting; /* share of the time that went to waiting for data, summed up */
} epochs;

static void report(const char *work, epochs *e, int64_t batch, int64_t samples, int workers, int64_t tokens)
{
    const char *by = bench_amp() == KILN_F32 ? "kiln" : bench_amp() == KILN_BF16 ? "kiln bf16" : "kiln f16 scaled";
    if (!e->count)
        return;
    double one = bench_median(e->seconds, e->count);
    printf("{\"work\": \"epoch %s\", \"batch\": %lld, \"peer\": \"%s\", \"workers\": %d, \"samples_s\": %.0f, "
           "\"us\": %.1f, \"data_wait\": %.3f}\n",
           work, (long long)batch, by, workers, (double)(samples * tokens) / one,
           1e6 * one * (double)batch / (double)samples, e->waiting / e->count);
    fflush(stdout);
}

static void measure(const char *work, kiln_module *m, kiln_dataset *d, int64_t batch, int workers, int64_t tokens)
{
    kiln_module_to(m, device);
    kiln_optim *adam = kiln_optim_adam(kiln_parameters(m), .lr = 1e-3);
    watch w = {.start = kiln_seconds()};
    const kiln_callback callback = {.epoch = watch_epoch, .context = &w};
    kiln_history h = kiln_fit(m, d, .epochs = MOST_EPOCHS, .batch = batch, .optim = adam, .workers = workers,
                              .callbacks = &callback, .ncallbacks = 1, .autocast = bench_amp());
    epochs e = {0};
    for (int64_t i = w.warm; i < h.count; i++) {
        e.waiting += h.epochs[i].data_wait;
        e.seconds[e.count++] = h.epochs[i].seconds;
    }
    report(work, &e, batch, kiln_data_count(d), workers, tokens);
    kiln_history_free(&h);
    kiln_optim_free(adam);
    kiln_module_free(m);
    kiln_data_free(d);
}

/* An epoch of a loop of one's own; the last loss is read at its end, as people do. */
static void loop_epoch(kiln_module *m, kiln_loader *loader, kiln_optim *adam, kiln_scaler *scaler)
{
    kiln_tensor *loss = NULL;
    kiln_batch b;
    while (kiln_loader_next(loader, &b))
        kiln_step {
            kiln_zero_grad(adam);
            kiln_release(loss);
            kiln_autocast (bench_amp())
                loss = kiln_keep(kiln_cross_entropy(kiln_forward(m, b.x), b.y));
            kiln_backward(scaler ? kiln_scaler_scale(scaler, loss) : loss);
            if (!scaler)
                kiln_optim_step(adam);
            else if (kiln_scaler_step(scaler, adam))
                kiln_scaler_update(scaler);
        }
    if (loss)
        kiln_item(loss);
    kiln_release(loss);
}

static void loop(kiln_module *m, kiln_dataset *d, int workers)
{
    kiln_module_to(m, device);
    kiln_optim *adam = kiln_optim_adam(kiln_parameters(m), .lr = 1e-3);
    kiln_scaler *scaler = bench_amp() == KILN_F16 ? kiln_scaler_new() : NULL;
    kiln_loader *loader = kiln_loader_new(d, .batch = BATCH, .shuffle = true, .device = device, .workers = workers);
    watch w = {.start = kiln_seconds()};
    epochs e = {0};
    for (bool more = true; more && kiln_ok() && e.count < MOST_EPOCHS;) {
        int64_t counted = w.counted;
        double begun = kiln_seconds();
        loop_epoch(m, loader, adam, scaler);
        e.seconds[e.count] = kiln_seconds() - begun;
        more = watch_epoch(&w, NULL);
        e.count += w.counted > counted;
    }
    report("loop mlp", &e, BATCH, kiln_data_count(d), workers, 1);
    kiln_loader_free(loader);
    kiln_scaler_free(scaler);
    kiln_optim_free(adam);
    kiln_module_free(m);
    kiln_data_free(d);
}

static void images(const char *name, kiln_module *(*build)(model_options), int count)
{
    char x[64], y[64];
    snprintf(x, sizeof x, "/tmp/kiln-bench-%d-images", (int)getpid());
    snprintf(y, sizeof y, "/tmp/kiln-bench-%d-labels", (int)getpid());
    bool written = write_idx(x, y, count);
    for (int workers = 0; written && workers < 3; workers++)
        if (strcmp(name, "loop") == 0)
            loop(build((model_options){0}), kiln_data_idx(x, y), workers);
        else
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
    const char *all[] = {"mlp", "lenet", "gpt2", "loop"};
    for (int i = 0; i < (argc > 1 ? argc - 1 : 4); i++) {
        const char *work = argc > 1 ? argv[i + 1] : all[i];
        if (strcmp(work, "mlp") == 0 || strcmp(work, "loop") == 0)
            images(work, model_mlp, IMAGES);
        else if (strcmp(work, "lenet") == 0)
            images(work, model_lenet, LENET_IMAGES);
        else
            text();
    }
    return kiln_report(stderr);
}
