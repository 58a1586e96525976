/* kiln predict: what a run's network says about samples of a data set, or about pictures. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "cli/work.h"

static const option options[] = {
    {"data", 0, OPTION_TEXT, "DATA", "as for train; its test part is used (the run's data)", 0, 0, "<data>"},
    {"split", 0, OPTION_NUMBER, "SHARE", "is left out at the front; 0: all samples (the run's)", 0, 0.9999, NULL},
    {"model", 0, OPTION_TEXT, "MODEL", "where the weights do not say it", 0, 0, "<models>"},
    {"limit", 0, OPTION_COUNT, "N", "the first N samples (10; all with --out)", 1, 1e15, NULL},
    {"out", 'o', OPTION_TEXT, "FILE.csv", "write a table there instead of showing it", 0, 0, "<files>"},
    {"batch", 0, OPTION_COUNT, "N", "samples at once (256)", 1, 1e9, NULL},
    {"length", 0, OPTION_COUNT, "N", "bytes of text seen at once (the run's)", 1, 1 << 20, NULL},
    OPTION_DEVICE,
    OPTION_THREADS,
    OPTION_MEM_LIMIT,
    OPTION_TF32,
    {0}};

enum { SHOWN = 10, DRAWN = 2 };

/* Where predictions go: a table on the screen, or a CSV file. */
typedef struct report {
    FILE *out;
    bool csv, classes, labels;
    int64_t right, seen;
} report;

static void say_head(const report *r)
{
    if (r->csv)
        fprintf(r->out, "index%s%s\n", r->labels ? ",label" : "", r->classes ? ",prediction,probability" : ",error");
    else
        fprintf(r->out, "%8s%s%s\n", "sample", r->labels ? "   label" : "",
                r->classes ? "   prediction   probability" : "   mean squared error");
}

/* The largest of the outputs and how sure the network is of it: its softmax. */
static int64_t answer(const float *outputs, int64_t n, double *probability)
{
    int64_t best = 0;
    double sum = 0;
    for (int64_t i = 1; i < n; i++)
        if (outputs[i] > outputs[best])
            best = i;
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)outputs[i] - (double)outputs[best]);
    *probability = 1 / sum;
    return best;
}

static void say_class(report *r, int64_t index, int64_t label, const float *outputs, int64_t n)
{
    double probability;
    int64_t guess = answer(outputs, n, &probability);
    r->right += guess == label;
    if (r->csv) {
        fprintf(r->out, "%lld,", (long long)index);
        if (r->labels)
            fprintf(r->out, "%lld,", (long long)label);
        fprintf(r->out, "%lld,%.6g\n", (long long)guess, probability);
        return;
    }
    fprintf(r->out, "%8lld", (long long)index);
    if (r->labels)
        fprintf(r->out, "%8lld", (long long)label);
    fprintf(r->out, "%13lld%12.2f %%%s\n", (long long)guess, 100 * probability,
            r->labels && guess != label ? "   wrong" : "");
}

static void say_error(report *r, int64_t index, int64_t label, const float *outputs, const float *inputs, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += pow((double)outputs[i] - (double)inputs[i], 2);
    fprintf(r->out, r->csv ? "%lld" : "%8lld", (long long)index);
    if (r->labels)
        fprintf(r->out, r->csv ? ",%lld" : "%8lld", (long long)label);
    fprintf(r->out, r->csv ? ",%.6g\n" : "%21.6f\n", sum / (double)n);
}

/* ---- Samples of a data set ---- */

typedef struct buffers {
    float *x, *out;
    int64_t *y;
} buffers;

static bool compute(const network *n, const kiln_batch *b, buffers *m, int64_t inputs, int64_t outputs)
{
    bool ok = false;
    kiln_no_grad
        kiln_scope {
            kiln_tensor *out = kiln_forward(n->module, b->x);
            ok = kiln_read(out, m->out, (size_t)(b->size * outputs) * sizeof *m->out) &&
                 kiln_read(b->x, m->x, (size_t)(b->size * inputs) * sizeof *m->x) &&
                 (!b->y || kiln_read(b->y, m->y, (size_t)b->size * sizeof *m->y));
        }
    return ok;
}

static bool is_image(const kiln_data_info *info)
{
    int n = info->x.ndim;
    return n >= 2 && info->x.shape[n - 1] <= 64 && info->x.shape[n - 2] <= 64 && (n == 2 || info->x.shape[0] == 1);
}

/* The first few on a terminal: a drawing, and what is said about it. */
static void say_drawn(report *r, const kiln_data_info *info, int64_t label, const float *x, const float *outputs,
                      int64_t n)
{
    double probability;
    int64_t guess = answer(outputs, n, &probability);
    r->right += guess == label;
    image_draw(x, info->x.shape[info->x.ndim - 2], info->x.shape[info->x.ndim - 1], r->out);
    fprintf(r->out, "    sample %lld: %lld (%.2f %%)", (long long)r->seen, (long long)guess, 100 * probability);
    if (r->labels)
        fprintf(r->out, ", %s: it is a %lld", guess == label ? "right" : "wrong", (long long)label);
    fprintf(r->out, "\n\n");
}

static void say_batch(report *r, const network *n, const kiln_data_info *info, const kiln_batch *b, const buffers *m,
                      int64_t inputs, int64_t outputs)
{
    int64_t drawn = !r->csv && r->classes && is_image(info) && isatty(STDOUT_FILENO) ? DRAWN : 0;
    for (int64_t i = 0; i < b->size; i++, r->seen++) {
        int64_t label = r->labels ? m->y[i] : -1;
        if (r->seen < drawn) {
            say_drawn(r, info, label, m->x + i * inputs, m->out + i * outputs, n->outputs);
            continue;
        }
        if (r->seen == drawn)
            say_head(r);
        if (r->classes)
            say_class(r, r->seen, label, m->out + i * outputs, n->outputs);
        else
            say_error(r, r->seen, label, m->out + i * outputs, m->x + i * inputs, inputs);
    }
}

static int64_t elements(const kiln_field *f)
{
    int64_t n = 1;
    for (int d = 0; d < f->ndim; d++)
        n *= f->shape[d];
    return n;
}

static int predict_data(const network *n, kiln_dataset *data, int64_t batch, kiln_device device, report *r)
{
    kiln_data_info info = kiln_data_describe(data);
    int64_t inputs = elements(&info.x), outputs = r->classes ? n->outputs : inputs;
    batch = batch < info.count ? batch : info.count;
    kiln_loader *loader = kiln_loader_new(data, .batch = batch, .workers = 1, .device = device);
    buffers m = {must_alloc((size_t)(batch * inputs), sizeof(float)),
                 must_alloc((size_t)(batch * outputs), sizeof(float)), must_alloc((size_t)batch, sizeof(int64_t))};
    kiln_batch b;
    while (loader && kiln_loader_next(loader, &b) && compute(n, &b, &m, inputs, outputs))
        say_batch(r, n, &info, &b, &m, inputs, outputs);
    int code = kiln_ok() ? 0 : fail_kiln();
    kiln_loader_free(loader);
    free(m.x);
    free(m.out);
    free(m.y);
    return code;
}

static int predict_set(const arguments *a, const network *n, const source *s, kiln_device device, report *r)
{
    kiln_dataset *from = s->test ? s->test : s->train;
    kiln_data_info info = kiln_data_describe(from);
    int64_t limit = count_of(a, "limit", r->csv ? info.count : SHOWN);
    limit = limit < info.count ? limit : info.count;
    r->labels = info.y.dtype == KILN_I64 && info.y.ndim == 0;
    kiln_dataset *part = kiln_data_range(from, 0, limit);
    int code = part ? predict_data(n, part, count_of(a, "batch", 256), device, r) : fail_kiln();
    kiln_data_free(part);
    if (!code && r->classes && r->labels && !r->csv)
        printf("%s of %s right\n", show_count(r->right), show_count(r->seen));
    return code;
}

/* ---- Pictures ---- */

static void put_csv_text(FILE *out, const char *text)
{
    bool quoted = text[strcspn(text, ",\"\r\n")] != '\0';
    if (quoted)
        fputc('"', out);
    for (; *text; text++)
        fputs(*text == '"' ? "\"\"" : (char[]){*text, '\0'}, out);
    if (quoted)
        fputc('"', out);
}

static int predict_picture(const network *n, const char *path, kiln_device device, report *r)
{
    int code = 0;
    int64_t h = n->shape[n->ndim - 2], w = n->shape[n->ndim - 1];
    float *pixels = image_read(path, h, w, &code);
    if (!pixels)
        return code;
    if (isatty(STDOUT_FILENO) && h <= 64 && w <= 64)
        image_draw(pixels, h, w, stdout);
    for (int64_t i = 0; i < h * w; i++) /* as MNIST's pictures and digits are */
        pixels[i] = (pixels[i] - 0.1307f) / 0.3081f;
    int64_t shape[4] = {1, 1, h, w};
    float *out = must_alloc((size_t)n->outputs, sizeof *out);
    kiln_no_grad
        kiln_scope {
            kiln_tensor *x = kiln_tensor_new(pixels, KILN_F32, 4, shape, device);
            if (!kiln_read(kiln_forward(n->module, x), out, (size_t)n->outputs * sizeof *out))
                code = fail_kiln();
        }
    double probability;
    int64_t guess = answer(out, n->outputs, &probability);
    if (!code && r->csv) {
        put_csv_text(r->out, path);
        fprintf(r->out, ",%lld,%.6g\n", (long long)guess, probability);
    } else if (!code) {
        put_shown(stdout, path);
        printf(": %lld (%.2f %%)\n", (long long)guess, 100 * probability);
    }
    free(pixels);
    free(out);
    return code;
}

static int predict_pictures(const arguments *a, const network *n, kiln_device device, report *r)
{
    if (!r->classes || n->ndim != 3 || n->shape[0] != 1)
        return fail(EX_USAGE, "pictures are for models that take grey images and give classes; %s takes %s", n->name,
                    show_shape(n->ndim, n->shape));
    int code = 0;
    if (r->csv)
        fprintf(r->out, "file,prediction,probability\n");
    for (int i = 1; !code && i < a->count; i++)
        code = predict_picture(n, a->rest[i], device, r);
    return code;
}

/* ---- All in all ---- */

static int predict_to(const arguments *a, const network *n, const source *s, kiln_device device)
{
    const char *path = text_of(a, "out", NULL);
    report r = {.out = stdout, .csv = path != NULL, .classes = n->loss == KILN_CROSS_ENTROPY};
    if (path && !(r.out = fopen(path, "w")))
        return fail(errno == ENOENT ? EX_NOINPUT : EX_IOERR, "%s: %s", path, strerror(errno));
    int code = a->count > 1 ? predict_pictures(a, n, device, &r) : predict_set(a, n, s, device, &r);
    bool bad = path && ferror(r.out);
    if (path && (fclose(r.out) != 0 || bad) && !code)
        code = fail(EX_IOERR, "%s: %s", path, errno ? strerror(errno) : "not everything could be written");
    if (path && !code && a->count <= 1)
        printf("%s predictions written to %s\n", show_count(r.seen), path);
    return code;
}

/* What people mean who leave the run out, or give options that pictures have no use for. */
static int check_pictures(const arguments *a)
{
    static const char *const of_data[] = {"data", "split", "limit", "length"};
    const char *dot = a->count == 1 ? strrchr(a->rest[0], '.') : NULL;
    if (dot && !strcasecmp(dot, ".png")) {
        fail(EX_USAGE, "%s is a picture; the run comes before it", a->rest[0]);
        hint("kiln predict " DEFAULT_RUN " %s", a->rest[0]);
        return EX_USAGE;
    }
    for (size_t i = 0; a->count > 1 && i < sizeof of_data / sizeof *of_data; i++)
        if (given(a, of_data[i]))
            return fail(EX_USAGE, "--%s is for data sets, and pictures were given", of_data[i]);
    return 0;
}

static int predict(const arguments *a)
{
    if (check_pictures(a))
        return EX_USAGE;
    network n;
    source data = {0};
    kiln_device device;
    int code = open_run(a, &n, a->count > 1 ? NULL : &data, &device);
    if (!code && n.tokens) {
        code = fail(EX_USAGE, "%s continues texts", n.name);
        hint("kiln generate %s", a->count ? a->rest[0] : "");
    }
    if (!code)
        code = predict_to(a, &n, &data, device);
    network_free(&n);
    source_free(&data);
    return code;
}

const command command_predict = {.name = "predict",
                                 .about = "Shows what a trained model says about samples or pictures",
                                 .operands = "[RUN [PICTURE.png...]]",
                                 .options = options,
                                 .max_operands = -1,
                                 .notes =
                                     "\nRUN is a folder that kiln train has made (kiln-run), or a safetensors file.\n"
                                     "Pictures are made grey, bright on dark, and as large as the model wants them.\n"
                                     "Examples: kiln predict\n"
                                     "          kiln predict kiln-run my-digit.png\n"
                                     "          kiln predict run --data mnist --out answers.csv\n",
                                 .run = predict};
