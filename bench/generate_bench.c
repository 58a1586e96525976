/* Writing text: tokens a second of decoders (models.h), all texts of a batch together, and how long the prompt takes.
 * 200 tokens behind a prompt of 32, the likeliest each time; the host looks at none before the last. cpu_ms: processor
 * time of all threads for one token of each text. One JSON object a line, beside generate_peer.py's.
 *
 * usage: kiln_bench_generate [--device NAME] [6x384] [gpt2] [f32] [amp] [bf16]
 *   amp: weights in f32, autocast to bf16; bf16: weights in bf16, too. Without any of these: all three. */
#include "bench.h"
#include "models.h"

enum { PROMPT = 32, TOKENS = 200, ROOM = 256, WARM_UP = 20, ROUNDS = 5 };
#define SECONDS 4.0 /* after which no round is begun */

static const struct {
    const char *name;
    model_options options;
} works[] = {
    {"6x384", {.layers = 6, .heads = 6, .embed = 384, .context = 256, .vocabulary = 256}},
    {"gpt2", {0}},
};
static const char *const dtypes[] = {"f32", "amp", "bf16"};
static const int64_t batches[] = {1, 32};

typedef struct figures {
    double prompt, tokens; /* seconds */
    double processor;      /* of all threads, for the tokens */
} figures;

static void append(model_decoder *d, kiln_tensor *tokens, kiln_tensor *next)
{
    kiln_no_grad
        kiln_scope {
            kiln_tensor *chosen = model_sample(model_decode(d, tokens), (model_sampling){0});
            kiln_assign(next, kiln_unsqueeze(chosen, 1));
            kiln_eval();
        }
}

static figures run_text(model_decoder *d, kiln_tensor *prompt, kiln_tensor *next, int count)
{
    kiln_device device = kiln_default_device();
    model_decoder_reset(d);
    double begun = kiln_seconds();
    append(d, prompt, next);
    kiln_device_wait(device);
    double between = kiln_seconds(), busy = bench_processor_seconds();
    for (int i = 1; i < count; i++)
        append(d, next, next);
    kiln_device_wait(device);
    return (figures){between - begun, kiln_seconds() - between, bench_processor_seconds() - busy};
}

static void measure(int work, kiln_module *m, int64_t batch, const char *dtype)
{
    figures best = {1e300, 1e300, 1e300};
    model_decoder *d = model_decoder_new(m, batch, ROOM);
    kiln_tensor *next = kiln_keep(kiln_zeros(KILN_SHAPE(batch, 1), KILN_I64));
    kiln_tensor *prompt = kiln_keep(kiln_randint(0, 256, KILN_SHAPE(batch, PROMPT), KILN_I64));
    run_text(d, prompt, next, WARM_UP);
    double begun = kiln_seconds();
    for (int i = 0; i < ROUNDS && (!i || kiln_seconds() - begun < SECONDS) && kiln_ok(); i++) {
        figures f = run_text(d, prompt, next, TOKENS);
        best.prompt = f.prompt < best.prompt ? f.prompt : best.prompt;
        best.tokens = f.tokens < best.tokens ? f.tokens : best.tokens;
        best.processor = f.processor < best.processor ? f.processor : best.processor;
    }
    if (kiln_ok())
        printf(
            "{\"work\": \"generate %s\", \"batch\": %lld, \"dtype\": \"%s\", \"peer\": \"kiln\", \"prompt_ms\": %.2f, "
            "\"tokens_s\": %.1f, \"cpu_ms\": %.3f}\n",
            works[work].name, (long long)batch, dtype, 1e3 * best.prompt, (double)batch * (TOKENS - 1) / best.tokens,
            1e3 * best.processor / (TOKENS - 1));
    fflush(stdout);
    kiln_release(prompt);
    kiln_release(next);
    model_decoder_free(d);
}

static void measure_dtype(int work, kiln_module *m, const char *dtype)
{
    for (size_t i = 0; i < sizeof batches / sizeof *batches && kiln_ok(); i++)
        kiln_autocast (strcmp(dtype, "amp") ? KILN_F32 : KILN_BF16)
            measure(work, m, batches[i], dtype);
}

/* Whether one of the words was given, or none of its kind. */
static bool wanted(const char *word, int n, const char *const *kind, int argc, char **argv)
{
    bool any = false;
    for (int i = 1; i < argc; i++)
        for (int k = 0; k < n; k++)
            any |= !strcmp(argv[i], kind[k]);
    return !any || bench_wanted(word, argc, argv);
}

int main(int argc, char **argv)
{
    const char *const names[] = {works[0].name, works[1].name};
    bench_device(&argc, argv, "cpu");
    for (int w = 0; w < 2 && kiln_ok(); w++) {
        if (!wanted(names[w], 2, names, argc, argv))
            continue;
        kiln_module *m = model_gpt2(works[w].options);
        kiln_module_train(m, false);
        for (int k = 0; k < 3 && m && kiln_ok(); k++) {
            if (!strcmp(dtypes[k], "bf16")) /* the last one */
                kiln_module_cast(m, KILN_BF16);
            if (wanted(dtypes[k], 3, dtypes, argc, argv))
                measure_dtype(w, m, dtypes[k]);
        }
        kiln_module_free(m);
    }
    return kiln_report(stderr);
}
