/* Training steps of one network, for the table of bench/zoo: zero_grad, forward, cross-entropy, backward, clipping,
 * optimizer, with the data on the device. One JSON object: microseconds a step (the median of five rounds, each of
 * which ends when the device has done all of it), how much of the device's memory they take, kernels, the first step.
 *
 * usage: kiln_bench_zoo --model MODEL --batch N [--length N] [option VALUE …]
 *   --model MODEL       as kiln bench takes it: a name with its options, or a model file
 *   --length N          tokens of a text; 0 (the default): images
 *   --padding 1         texts of different lengths, from half of it up, with zeros behind them
 *   --dtype TYPE        f32 (the default), tf32; bf16 or f16: under autocast
 *   --optimizer NAME    adam (the default) or adamw; --clip NORM: of all gradients together
 *   --device NAME       cpu (the default), cuda
 *   --seconds S         of a round (0.4)
 *   --first SECONDS     instead: how many steps the device has done 1, 3, 10, 30 and 60 seconds after --since (seconds
 *                       since 1970; the program's start), until SECONDS have passed. What is compiled in the background
 * is not waited for. */
#include "bench.h"
#include "models.h"

enum { ROUNDS = 5, MARKS = 5, IGNORED = -100 };
static const double marks[MARKS] = {1, 3, 10, 30, 60};

typedef struct request {
    const char *model, *dtype, *optimizer;
    int64_t batch, length, padding;
    double clip, seconds, first, since;
    kiln_device device;
} request;

typedef struct training {
    const request *r;
    kiln_dtype amp; /* KILN_F32: no autocast */
    kiln_module *model;
    kiln_optim *optim;
    kiln_tensor *x, *y;
} training;

/* ---- The network and its data ---- */

/* Ends the program where a model is asked for that there is not. */
static void refuse(const char *model, const char *why)
{
    fprintf(stderr, "kiln_bench_zoo: %s: %s\n", model, why);
    exit(2);
}

/* The network, and in shape[1…] what one of its inputs is; shape[0] is the batch. Returns the number of dims. */
static int build(training *t, int64_t *shape)
{
    const request *r = t->r;
    const char *end = strrchr(r->model, '.');
    kiln_model_file about = {.ndim = 3};
    if (end && strcmp(end, ".yaml") == 0)
        t->model = kiln_model_read(r->model, &about);
    else {
        char why[256];
        model_options o = {0};
        const model_entry *entry = model_find(r->model, &o, why, sizeof why);
        if (!entry || !model_check(entry, &o, why, sizeof why))
            refuse(r->model, why);
        if (!r->length && !(o.channels && o.height && o.width))
            refuse(r->model,
                   entry->tokens ? "give --length" : "give channels, height and width, as in mlp:channels=1,…");
        t->model = entry->build(o);
        about.shape[0] = o.channels;
        about.shape[1] = o.height;
        about.shape[2] = o.width;
    }
    kiln_module_to(t->model, r->device);
    if (r->length)
        about = (kiln_model_file){.ndim = 1, .shape = {r->length}};
    shape[0] = r->batch;
    memcpy(shape + 1, about.shape, (size_t)about.ndim * sizeof *shape);
    return 1 + about.ndim;
}

/* Tokens, the same as targets: learning does not matter here. With padding, text i of N ends behind half of the length
 * and i/N of the rest; what is left of it counts nowhere. */
static bool make_texts(training *t, int64_t vocabulary)
{
    const request *r = t->r;
    int64_t n = r->length, half = n / 2, count = r->batch * n;
    int64_t *x = malloc((size_t)count * sizeof *x), *y = malloc((size_t)count * sizeof *y);
    uint64_t random = 1;
    for (int64_t i = 0; x && y && i < count; i++) {
        bool behind = r->padding && i % n >= half + (n - half) * (i / n) / r->batch;
        random = random * 6364136223846793005u + 1442695040888963407u;
        x[i] = behind ? 0 : 1 + (int64_t)(random >> 33) % (vocabulary - 1);
        y[i] = behind ? IGNORED : x[i];
    }
    if (x && y) {
        t->x = kiln_keep(kiln_tensor_new(x, KILN_I64, KILN_SHAPE(r->batch, n), r->device));
        t->y = kiln_keep(kiln_tensor_new(y, KILN_I64, KILN_SHAPE(count), r->device));
    }
    free(x);
    free(y);
    return t->x && t->y;
}

static bool training_new(training *t)
{
    const request *r = t->r;
    int64_t shape[1 + KILN_MAX_DIMS], out[KILN_MAX_DIMS];
    int ndim = build(t, shape), out_ndim;
    if (!kiln_module_shape(t->model, ndim, shape, r->length ? KILN_I64 : KILN_F32, &out_ndim, out))
        return false;
    kiln_params params = kiln_parameters(t->model);
    t->optim =
        strcmp(r->optimizer, "adamw") ? kiln_optim_adam(params, .lr = 1e-3) : kiln_optim_adamw(params, .lr = 1e-3);
    if (r->length)
        return make_texts(t, out[out_ndim - 1]) && t->optim;
    t->x = kiln_keep(kiln_randn(ndim, shape, KILN_F32));
    t->y = kiln_keep(kiln_randint(0, out[1], KILN_SHAPE(r->batch), KILN_I64));
    return kiln_eval() && t->optim;
}

static void training_free(training *t)
{
    kiln_optim_free(t->optim);
    kiln_module_free(t->model);
    kiln_release(t->x);
    kiln_release(t->y);
}

/* ---- Steps ---- */

static void record(const training *t)
{
    kiln_tensor *loss = NULL;
    kiln_zero_grad(t->optim);
    kiln_autocast (t->amp) {
        kiln_tensor *z = kiln_forward(t->model, t->x);
        if (t->r->length)
            z = kiln_flatten(z, 0, 1);
        loss = kiln_cross_entropy(z, t->y);
    }
    kiln_backward(loss);
    if (t->r->clip > 0)
        kiln_clip_grad_norm(kiln_parameters(t->model), t->r->clip);
    kiln_optim_step(t->optim);
}

/* Seconds that n steps took, until the device has done them. */
static double run(const training *t, int64_t n)
{
    double start = kiln_seconds();
    for (int64_t i = 0; i < n && kiln_ok(); i++)
        kiln_step
            record(t);
    kiln_device_wait(t->r->device);
    return kiln_seconds() - start;
}

/* How many steps to give the device before waiting for it: about 20 ms of them, from what the last `n` took. */
static int64_t next_burst(int64_t n, double seconds)
{
    return seconds < 0.01 ? 2 * n : seconds > 0.04 && n > 1 ? n / 2 : n;
}

/* Seconds a step, once nothing is new to it any more: after ten steps and half a second (CPU: two, and 0.2 s). */
static double warm_up(const training *t)
{
    double start = kiln_seconds(), took = 0;
    bool cpu = t->r->device == KILN_CPU;
    int64_t done = 0, burst = 1;
    while ((done < (cpu ? 2 : 10) || kiln_seconds() - start < (cpu ? 0.2 : 0.5)) && kiln_ok()) {
        done += burst;
        took = run(t, burst) / (double)burst;
        burst = next_burst(burst, took * (double)burst);
    }
    return took;
}

static void measure(const training *t)
{
    const request *r = t->r;
    kiln_memory_reset_peak(r->device);
    double first = run(t, 1), each = warm_up(t), rounds[ROUNDS];
    int64_t n = each < r->seconds ? (int64_t)(r->seconds / each) : 1;
    for (int k = 0; k < ROUNDS; k++)
        rounds[k] = run(t, n) / (double)n;
    double seconds = bench_median(rounds, ROUNDS);
    kiln_plan_info plan = {0};
    kiln_memory_stats memory = {0};
    kiln_plan_last(&plan);
    kiln_memory_get_stats(r->device, &memory);
    if (!kiln_ok())
        return;
    printf(
        "{\"peer\": \"kiln\", \"us\": %.1f, \"spread\": %.3f, \"per_s\": %.0f, \"peak_mib\": %.1f, \"kernels\": %lld, "
        "\"first_s\": %.3f, \"parameters\": %lld}\n",
        1e6 * seconds, (rounds[ROUNDS - 1] - rounds[0]) / seconds,
        (double)(r->batch * (r->length ? r->length : 1)) / seconds, (double)memory.peak / 0x1p20,
        (long long)plan.kernels, first, (long long)kiln_parameter_count(t->model));
}

/* ---- The first minute ---- */

static double since_1970(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* What is done at a mark is what had been waited for by then: bursts are short, so little is missed. */
static void count_steps(const training *t)
{
    const request *r = t->r;
    int64_t done = 0, burst = 1, at[MARKS] = {0};
    for (double now = since_1970() - r->since; now < r->first && kiln_ok();) {
        double took = run(t, burst);
        now = since_1970() - r->since;
        for (int m = 0; m < MARKS; m++)
            if (now <= marks[m])
                at[m] = done + burst;
        done += burst;
        burst = next_burst(burst, took);
    }
    if (!kiln_ok())
        return;
    printf("{\"peer\": \"kiln\", \"steps\": {");
    for (int m = 0; m < MARKS && marks[m] <= r->first; m++)
        printf("%s\"%g\": %lld", m ? ", " : "", marks[m], (long long)at[m]);
    printf("}}\n");
}

/* ---- What is asked for ---- */

static void usage(void)
{
    fprintf(stderr, "usage: kiln_bench_zoo --model MODEL --batch N [--length N] [--padding 1] [--dtype TYPE]\n"
                    "                      [--optimizer NAME] [--clip NORM] [--device NAME] [--seconds S]\n"
                    "                      [--first SECONDS [--since SECONDS_SINCE_1970]]\n");
    exit(2);
}

static const char *const dtypes[] = {"f32", "tf32", "bf16", "f16", NULL}, *const optimizers[] = {"adam", "adamw", NULL};

static bool is_one_of(const char *word, const char *const *words)
{
    while (*words && strcmp(*words, word) != 0)
        words++;
    return *words != NULL;
}

static request read_request(int argc, char **argv)
{
    request r = {.dtype = "f32", .optimizer = "adam", .seconds = 0.4, .since = since_1970()};
    bool waits = true; /* for what would be compiled in the background */
    for (int i = 1; i < argc; i++)
        waits &= strcmp(argv[i], "--first") != 0;
    if (waits)
        setenv("KILN_CUDA_JIT", "wait", 0);
    r.device = bench_device(&argc, argv, "cpu");
    for (int i = 1; i < argc; i += 2) {
        const char *key = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!value || strncmp(key, "--", 2) != 0)
            usage();
        const struct {
            const char *name, **text;
            double *number;
            int64_t *count;
        } known[] = {{"model", &r.model, NULL, NULL},         {"dtype", &r.dtype, NULL, NULL},
                     {"optimizer", &r.optimizer, NULL, NULL}, {"clip", NULL, &r.clip, NULL},
                     {"seconds", NULL, &r.seconds, NULL},     {"first", NULL, &r.first, NULL},
                     {"since", NULL, &r.since, NULL},         {"batch", NULL, NULL, &r.batch},
                     {"length", NULL, NULL, &r.length},       {"padding", NULL, NULL, &r.padding}};
        size_t k = 0, n = sizeof known / sizeof *known;
        while (k < n && strcmp(known[k].name, key + 2) != 0)
            k++;
        if (k < n && known[k].text)
            *known[k].text = value;
        else if (k < n && known[k].number)
            *known[k].number = strtod(value, NULL);
        else if (k < n)
            *known[k].count = strtoll(value, NULL, 10);
        else
            usage();
    }
    if (!r.model || r.batch < 1 || r.length < 0 || !is_one_of(r.dtype, dtypes) || !is_one_of(r.optimizer, optimizers))
        usage();
    return r;
}

int main(int argc, char **argv)
{
    request r = read_request(argc, argv);
    training t = {.r = &r,
                  .amp = strcmp(r.dtype, "bf16") == 0  ? KILN_BF16
                         : strcmp(r.dtype, "f16") == 0 ? KILN_F16
                                                       : KILN_F32};
    kiln_set_tf32(strcmp(r.dtype, "f32") != 0);
    if (training_new(&t))
        (r.first > 0 ? count_steps : measure)(&t);
    training_free(&t);
    return kiln_report(stderr);
}
