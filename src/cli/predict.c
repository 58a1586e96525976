/* kiln predict: what a run's network says about samples of a data set, or about pictures. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "cli/table.h"
#include "cli/work.h"

static const option options[] = {
    {"data", 0, OPTION_TEXT, "DATA", "as for train; its test part is used (the run's data)", 0, 0, "<data>"},
    {"split", 0, OPTION_NUMBER, "SHARE", "is left out at the front; 0: all samples (the run's)", 0, 0.9999, NULL},
    {"model", 0, OPTION_TEXT, "MODEL", "where the weights do not say it", 0, 0, "<models>"},
    {"limit", 0, OPTION_COUNT, "N", "the first N samples (10; all with --out)", 1, 1e15, NULL},
    {"out", 'o', OPTION_TEXT, "FILE", "a table in a file: .csv or .json; -: standard output", 0, 0, "<files>"},
    {"format", 0, OPTION_WORD, "NAME", "csv json (by the file's name; csv)", 0, 0, "csv json"},
    {"batch", 0, OPTION_COUNT, "N", "samples at once (256)", 1, 1e9, NULL},
    {"length", 0, OPTION_COUNT, "N", "bytes of text seen at once (the run's)", 1, 1 << 20, NULL},
    OPTION_DEVICE,
    OPTION_THREADS,
    OPTION_MEM_LIMIT,
    OPTION_TF32,
    OPTION_AMP,
    {0}};

enum { SHOWN = 10, DRAWN = 2 };

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

static double squared_error(const float *outputs, const float *inputs, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += pow((double)outputs[i] - (double)inputs[i], 2);
    return sum / (double)n;
}

/* ---- Samples of a data set ---- */

typedef struct buffers {
    int64_t inputs, outputs; /* of a sample */
    float *x, *out;
    int64_t *y;
} buffers;

static bool compute(const network *n, const kiln_batch *b, buffers *m)
{
    bool ok = false;
    kiln_no_grad
        kiln_scope {
            kiln_tensor *out = kiln_forward(n->module, b->x);
            ok = kiln_read(kiln_cast(out, KILN_F32), m->out, (size_t)(b->size * m->outputs) * sizeof *m->out) &&
                 kiln_read(b->x, m->x, (size_t)(b->size * m->inputs) * sizeof *m->x) &&
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
static void say_drawn(const table *t, const kiln_data_info *info, const prediction *p, const float *x)
{
    image_draw(x, info->x.shape[info->x.ndim - 2], info->x.shape[info->x.ndim - 1], t->out);
    fprintf(t->out, "    sample %lld: %lld (%.2f %%)", (long long)p->index, (long long)p->answer, 100 * p->probability);
    if (t->labels)
        fprintf(t->out, ", %s: it is a %lld", p->answer == p->label ? "right" : "wrong", (long long)p->label);
    fprintf(t->out, "\n\n");
}

static void say_batch(table *t, const network *n, const kiln_data_info *info, const kiln_batch *b, const buffers *m,
                      int64_t *seen)
{
    int64_t inputs = m->inputs, outputs = m->outputs;
    int64_t drawn = t->format == TABLE_SCREEN && t->classes && is_image(info) && isatty(STDOUT_FILENO) ? DRAWN : 0;
    for (int64_t i = 0; i < b->size; i++) {
        const float *x = m->x + i * inputs, *out = m->out + i * outputs;
        prediction p = {.index = (*seen)++, .label = t->labels ? m->y[i] : -1};
        if (t->classes)
            p.answer = answer(out, n->outputs, &p.probability);
        else
            p.error = squared_error(out, x, inputs);
        t->right += t->classes && p.answer == p.label;
        if (p.index < drawn)
            say_drawn(t, info, &p, x);
        else
            table_row(t, &p);
    }
}

static int64_t elements(const kiln_field *f)
{
    int64_t n = 1;
    for (int d = 0; d < f->ndim; d++)
        n *= f->shape[d];
    return n;
}

static int predict_data(const network *n, kiln_dataset *data, int64_t batch, kiln_device device, table *t,
                        int64_t *seen)
{
    kiln_data_info info = kiln_data_describe(data);
    int64_t inputs = elements(&info.x), outputs = t->classes ? n->outputs : inputs;
    batch = batch < info.count ? batch : info.count;
    kiln_loader *loader = kiln_loader_new(data, .batch = batch, .workers = 1, .device = device);
    buffers m = {inputs, outputs, must_alloc((size_t)(batch * inputs), sizeof(float)),
                 must_alloc((size_t)(batch * outputs), sizeof(float)), must_alloc((size_t)batch, sizeof(int64_t))};
    kiln_batch b;
    while (loader && kiln_loader_next(loader, &b) && compute(n, &b, &m))
        say_batch(t, n, &info, &b, &m, seen);
    int code = kiln_ok() ? 0 : fail_kiln();
    kiln_loader_free(loader);
    free(m.x);
    free(m.out);
    free(m.y);
    return code;
}

static int predict_set(const arguments *a, const network *n, const source *s, kiln_device device, table *t)
{
    kiln_dataset *from = s->test ? s->test : s->train;
    kiln_data_info info = kiln_data_describe(from);
    int64_t limit = count_of(a, "limit", t->format == TABLE_SCREEN ? SHOWN : info.count), seen = 0;
    limit = limit < info.count ? limit : info.count;
    t->labels = info.y.dtype == KILN_I64 && info.y.ndim == 0;
    kiln_dataset *part = kiln_data_range(from, 0, limit);
    int code = part ? predict_data(n, part, count_of(a, "batch", 256), device, t, &seen) : fail_kiln();
    kiln_data_free(part);
    if (!code && t->classes && t->labels && t->format == TABLE_SCREEN)
        printf("%s of %s right\n", show_count(t->right), show_count(seen));
    return code;
}

/* ---- Pictures ---- */

static int predict_picture(const network *n, const char *path, kiln_device device, table *t)
{
    int code = 0;
    int64_t h = n->shape[n->ndim - 2], w = n->shape[n->ndim - 1];
    float *pixels = image_read(path, h, w, &code);
    if (!pixels)
        return code;
    if (t->format == TABLE_SCREEN && isatty(STDOUT_FILENO) && h <= 64 && w <= 64)
        image_draw(pixels, h, w, stdout);
    for (int64_t i = 0; i < h * w; i++) /* as MNIST's pictures and digits are */
        pixels[i] = (pixels[i] - 0.1307f) / 0.3081f;
    int64_t shape[4] = {1, 1, h, w};
    float *out = must_alloc((size_t)n->outputs, sizeof *out);
    kiln_no_grad
        kiln_scope {
            kiln_tensor *x = kiln_tensor_new(pixels, KILN_F32, 4, shape, device);
            if (!kiln_read(kiln_cast(kiln_forward(n->module, x), KILN_F32), out, (size_t)n->outputs * sizeof *out))
                code = fail_kiln();
        }
    prediction p = {.file = path};
    p.answer = answer(out, n->outputs, &p.probability);
    if (!code)
        table_row(t, &p);
    free(pixels);
    free(out);
    return code;
}

static int is_picture(const struct dirent *e)
{
    const char *dot = strrchr(e->d_name, '.');
    return dot && dot > e->d_name && !strcasecmp(dot, ".png");
}

/* All pictures of a folder, in the order of their names. */
static int predict_folder(const network *n, const char *folder, kiln_device device, table *t)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, is_picture, alphasort), code = 0;
    size_t length = strlen(folder);
    if (count < 0)
        return fail(EX_NOINPUT, "%s: %s", folder, strerror(errno));
    if (count == 0)
        code = fail(EX_NOINPUT, "%s: no pictures in this folder whose names end in .png", folder);
    for (int i = 0; i < count; i++) {
        char *path = must_format("%s%s%s", folder, length && folder[length - 1] == '/' ? "" : "/", entries[i]->d_name);
        if (!code)
            code = predict_picture(n, path, device, t);
        free(path);
        free(entries[i]);
    }
    free(entries);
    return code;
}

static int predict_pictures(const arguments *a, const network *n, kiln_device device, table *t)
{
    if (!t->classes || n->ndim != 3 || n->shape[0] != 1)
        return fail(EX_USAGE, "pictures are for models that take grey images and give classes; %s takes %s", n->name,
                    show_shape(n->ndim, n->shape));
    int code = 0;
    t->files = true;
    for (int i = 1; !code && i < a->count; i++)
        code = path_is_folder(a->rest[i]) ? predict_folder(n, a->rest[i], device, t)
                                          : predict_picture(n, a->rest[i], device, t);
    return code;
}

/* ---- All in all ---- */

static table_format format_of(const arguments *a)
{
    const char *path = text_of(a, "out", NULL), *named = text_of(a, "format", NULL),
               *dot = path ? strrchr(path, '.') : NULL;
    if (named)
        return !strcmp(named, "json") ? TABLE_JSON : TABLE_CSV;
    return dot && !strcasecmp(dot, ".json") ? TABLE_JSON : path ? TABLE_CSV : TABLE_SCREEN;
}

static int predict_to(const arguments *a, const network *n, const source *s, kiln_device device)
{
    table t = {.format = format_of(a), .classes = n->loss == KILN_CROSS_ENTROPY};
    bool json = t.format == TABLE_JSON;
    const char *path = text_of(a, "out", "-");
    output out;
    int code = output_open(&out, path, json ? "table of predictions in JSON" : "table of predictions in CSV",
                           json ? table_is_json : table_is_csv);
    if (code)
        return code;
    t.out = out.file;
    code = a->count > 1 ? predict_pictures(a, n, device, &t) : predict_set(a, n, s, device, &t);
    if (!code)
        table_end(&t);
    bool named = t.out != stdout;
    code = output_close(&out, code);
    if (!code && named)
        say("%s prediction%s written to %s\n", show_count(t.rows), t.rows == 1 ? "" : "s", path);
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
    if (code == EX_NOINPUT && a->count == 1 && path_is_folder(a->rest[0]))
        hint("a folder of pictures comes behind the run: kiln predict " DEFAULT_RUN " %s", a->rest[0]);
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
                                 .operands = "[RUN [PICTURE.png|FOLDER...]]",
                                 .options = options,
                                 .max_operands = -1,
                                 .notes =
                                     "\nRUN is a folder that kiln train has made (kiln-run), or a safetensors file.\n"
                                     "Pictures (all *.png of a FOLDER) are made grey, bright on dark, and as large as\n"
                                     "the model wants them.\n"
                                     "Examples: kiln predict\n"
                                     "          kiln predict kiln-run my-digit.png more-digits/ -o - --format json\n"
                                     "          kiln predict run --data mnist --out answers.csv\n",
                                 .run = predict};
