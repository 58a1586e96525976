/* kiln eval: how good a run's weights are on data they were not trained on. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cli/work.h"

static const option options[] = {
    {"data", 0, OPTION_TEXT, "DATA", "as for train; its test part is used (the run's data)", 0, 0, "<data>"},
    {"split", 0, OPTION_NUMBER, "SHARE", "is not for testing; 0: all samples test (the run's)", 0, 0.9999, NULL},
    {"length", 0, OPTION_COUNT, "N", "bytes of text seen at once (the run's)", 1, 1 << 20, NULL},
    {"model", 0, OPTION_TEXT, "MODEL", "where the weights do not say it", 0, 0, "<models>"},
    {"confusion", 0, OPTION_FLAG, NULL, "a table: which class was taken for which", 0, 0, NULL},
    {"batch", 0, OPTION_COUNT, "N", "samples at once (256; text 32)", 1, 1e9, NULL},
    {"limit", 0, OPTION_COUNT, "N", "look at the first N samples only", 1, 1e15, NULL},
    {"workers", 0, OPTION_COUNT, "N", "threads that prepare data (1)", 0, 256, NULL},
    OPTION_DEVICE,
    OPTION_THREADS,
    OPTION_MEM_LIMIT,
    OPTION_TF32,
    OPTION_AMP,
    {"quiet", 'q', OPTION_FLAG, NULL, "no progress", 0, 0, NULL},
    {0}};

/* ---- The confusion matrix ---- */

static int64_t row_sum(const kiln_result *r, int64_t row)
{
    int64_t n = 0;
    for (int64_t c = 0; c < r->classes; c++)
        n += r->confusion[row * r->classes + c];
    return n;
}

static int64_t column_sum(const kiln_result *r, int64_t column)
{
    int64_t n = 0;
    for (int64_t c = 0; c < r->classes; c++)
        n += r->confusion[c * r->classes + column];
    return n;
}

static double share(int64_t part, int64_t whole)
{
    return whole ? 100 * (double)part / (double)whole : NAN;
}

static void say_share(double percent)
{
    if (isnan(percent))
        printf("%9s", "-");
    else
        printf("%8.2f%%", percent);
}

static void say_classes(const kiln_result *r)
{
    printf("\n%-7s%9s%9s%9s\n", "class", "samples", "found", "right");
    for (int64_t c = 0; c < r->classes; c++) {
        int64_t hits = r->confusion[c * r->classes + c];
        printf("%-7lld%9lld", (long long)c, (long long)row_sum(r, c));
        say_share(share(hits, row_sum(r, c)));
        say_share(share(hits, column_sum(r, c)));
        printf("\n");
    }
    puts("found: share of the class that was recognised; right: share of such answers that were");
}

static void say_confusion(const kiln_result *r)
{
    enum { WIDEST = 20 }; /* a wider table does not fit a screen */
    say_classes(r);
    if (r->classes > WIDEST) {
        printf("The table of %lld classes is too wide to be shown.\n", (long long)r->classes);
        return;
    }
    int width = snprintf(NULL, 0, "%lld", (long long)r->samples) + 1;
    width = width < 4 ? 4 : width;
    printf("\nrow: the label; column: what it was taken for\n%5s |", "");
    for (int64_t c = 0; c < r->classes; c++)
        printf("%*lld", width, (long long)c);
    printf("\n------+");
    for (int64_t c = 0; c < r->classes * width; c++)
        putchar('-');
    putchar('\n');
    for (int64_t row = 0; row < r->classes; row++) {
        printf("%5lld |", (long long)row);
        for (int64_t c = 0; c < r->classes; c++) {
            int64_t n = r->confusion[row * r->classes + c];
            n ? printf("%*lld", width, (long long)n) : printf("%*s", width, ".");
        }
        putchar('\n');
    }
}

/* ---- All in all ---- */

static void say_result(const network *n, const source *data, const kiln_result *r)
{
    printf("%-12s", "data");
    put_shown(stdout, data->origin);
    printf("\n%-12s%s\n", "samples", show_count(r->samples));
    printf("%-12s%.4f%s\n", "loss", r->loss, n->tokens ? " nats a byte" : "");
    if (!isnan(r->perplexity))
        printf("%-12s%.3f\n", "perplexity", r->perplexity);
    if (!isnan(r->accuracy))
        printf("%-12s%.2f %%\n", "accuracy", 100 * r->accuracy);
    if (!isnan(r->top5))
        printf("%-12s%.2f %%\n", "top-5", 100 * r->top5);
    printf("%-12s%s (%s samples/s)\n", "time", show_seconds(r->seconds),
           show_count(r->seconds > 0 ? (int64_t)((double)r->samples / r->seconds) : 0));
}

static int look(const arguments *a, const network *n, const source *data)
{
    unsigned metrics = n->metrics;
    bool classes = n->loss == KILN_CROSS_ENTROPY && !n->tokens;
    if (n->loss == KILN_CROSS_ENTROPY)
        metrics |= KILN_ACCURACY;
    if (classes && n->outputs > 5)
        metrics |= KILN_TOP5;
    if (given(a, "confusion")) {
        if (!classes)
            return fail(EX_USAGE, "--confusion is for models that tell classes apart; %s does not", n->name);
        metrics |= KILN_CONFUSION;
    }
    bool show = !given(a, "quiet") && isatty(STDERR_FILENO);
    kiln_result r = kiln_evaluate(n->module, data->test, .batch = count_of(a, "batch", n->tokens ? 32 : 256),
                                  .loss = n->loss, .metrics = metrics, .workers = (int)count_of(a, "workers", 1),
                                  .limit = count_of(a, "limit", 0), .progress = show ? stderr : NULL);
    int code = kiln_ok() ? 0 : fail_kiln();
    if (!code && !isfinite(r.loss)) {
        code = fail(EX_DATAERR, "%s: the loss is %s", data->origin, isnan(r.loss) ? "not a number" : "infinite");
        hint("these weights are too large for the data, as after training with too high a learning rate");
    }
    if (!code) {
        say_result(n, data, &r);
        if (r.confusion)
            say_confusion(&r);
    }
    kiln_result_free(&r);
    return code;
}

static int eval(const arguments *a)
{
    network n;
    source data;
    kiln_device device;
    int code = open_run(a, &n, &data, &device);
    if (!code && !data.test)
        code = fail(EX_USAGE, "--split leaves no samples to test with");
    if (!code && n.loss == KILN_CROSS_ENTROPY && !n.tokens && data.info.classes == 0) {
        code = fail(EX_DATAERR, "%s: there are no labels to compare with", data.origin);
        hint("kiln predict does without");
    }
    if (!code)
        code = look(a, &n, &data);
    network_free(&n);
    source_free(&data);
    return code;
}

const command command_eval = {.name = "eval",
                              .about = "Measures a trained model on test data",
                              .operands = "[RUN]",
                              .options = options,
                              .max_operands = 1,
                              .notes = "\nRUN is a folder that kiln train has made (kiln-run), or a safetensors file.\n"
                                       "Examples: kiln eval\n"
                                       "          kiln eval run --data mnist --confusion\n",
                              .run = eval};
