/* Training steps without loading, the data already on the device: zero_grad, forward, cross-entropy, backward, Adam.
 * Microseconds a step, the median of five rounds; one JSON object a line, beside peers.py's. On the CPU rounds take
 * 0.8 s after ten steps to warm up; elsewhere 0.4 s after half a second, and what would be compiled in the background
 * is waited for (KILN_CUDA_JIT=wait), so first_ms has that in it. A round ends when the device has done all of it.
 *
 * usage: kiln_bench_step [--device cuda] [mlp] [wide] [odd] [lenet] [gpt2] [lstm]      KILN_TF32=1: products in TF32
 *        KILN_BENCH_AMP=bf16, f16 or scaled: under autocast; scaled: to f16, with a gradient scaler
 *        KILN_BENCH_SECONDS: of a round */
#include "bench.h"
#include "models.h"

enum { ROUNDS = 5, WARM_UP = 10, SIDE = 28, CLASSES = 10, VOCABULARY = 256, ODD_INPUTS = 100 };

typedef struct workload {
    const char *name, *model; /* as model_find takes it; NULL: made here */
    int64_t batch, length;    /* length of texts; 0: images */
    bool large;               /* too much for a CPU */
} workload;

static const workload workloads[] = {
    {"mlp", "mlp", 32, 0, false},
    {"mlp", "mlp", 1024, 0, false},
    {"mlp", "mlp", 8192, 0, true},
    {"wide", NULL, 128, 0, false},
    {"wide", NULL, 512, 0, false},
    {"odd", NULL, 37, 0, false},
    {"lenet", "lenet", 32, 0, false},
    {"lenet", "lenet", 1024, 0, false},
    {"gpt2", "gpt2:layers=4,embed=128,heads=4,context=128,vocabulary=256", 16, 128, false},
    {"lstm", "char-lstm:embed=64,hidden=256", 32, 64, false},
};

static kiln_device device;

typedef struct training {
    kiln_module *model;
    kiln_optim *adam;
    kiln_tensor *x, *y;
    kiln_scaler *scaler; /* NULL: none */
} training;

/* Four layers of sizes that suit nothing. */
static kiln_module *odd_model(void)
{
    return kiln_nn_sequential(kiln_nn_linear(ODD_INPUTS, 300), kiln_nn_relu(), kiln_nn_linear(300, 77), kiln_nn_relu(),
                              kiln_nn_linear(77, 50), kiln_nn_relu(), kiln_nn_linear(50, CLASSES));
}

/* Weights that no cache but the last one holds. */
static kiln_module *wide_model(void)
{
    return kiln_nn_sequential(kiln_nn_linear(SIDE * SIDE, 2048), kiln_nn_relu(), kiln_nn_linear(2048, 2048),
                              kiln_nn_relu(), kiln_nn_linear(2048, CLASSES));
}

static bool is_wide(const workload *w)
{
    return strcmp(w->name, "wide") == 0;
}

static kiln_module *build(const workload *w)
{
    char why[200];
    model_options options = {0};
    const model_entry *entry = w->model ? model_find(w->model, &options, why, sizeof why) : NULL;
    if (w->model && !entry)
        fprintf(stderr, "%s: %s\n", w->model, why);
    kiln_module *m = entry ? entry->build(options) : w->model ? NULL : is_wide(w) ? wide_model() : odd_model();
    kiln_module_to(m, device);
    return m;
}

static training training_new(const workload *w)
{
    training t = {.model = build(w)};
    t.adam = kiln_optim_adam(kiln_parameters(t.model), .lr = 1e-3);
    if (w->length) { /* tokens are their own targets: learning does not matter here */
        t.x = kiln_keep(kiln_randint(0, VOCABULARY, KILN_SHAPE(w->batch, w->length), KILN_I64));
        t.y = kiln_keep(kiln_reshape(t.x, KILN_SHAPE(w->batch * w->length)));
    } else {
        t.x = kiln_keep(w->model ? kiln_randn(KILN_SHAPE(w->batch, 1, SIDE, SIDE), KILN_F32)
                                 : kiln_randn(KILN_SHAPE(w->batch, is_wide(w) ? SIDE * SIDE : ODD_INPUTS), KILN_F32));
        t.y = kiln_keep(kiln_randint(0, CLASSES, KILN_SHAPE(w->batch), KILN_I64));
    }
    kiln_eval();
    return t;
}

static void training_free(training *t)
{
    kiln_scaler_free(t->scaler);
    kiln_optim_free(t->adam);
    kiln_module_free(t->model);
    kiln_release(t->x);
    kiln_release(t->y);
}

/* What autocast converts to; KILN_F32: there is none. */
static bool scales(void)
{
    const char *asked = getenv("KILN_BENCH_AMP");
    return asked && strcmp(asked, "scaled") == 0;
}

static void record(const training *t)
{
    kiln_tensor *loss = NULL;
    kiln_zero_grad(t->adam);
    kiln_autocast (bench_amp()) {
        kiln_tensor *z = kiln_forward(t->model, t->x);
        if (kiln_ndim(z) == 3) /* what each place of a text says */
            z = kiln_flatten(z, 0, 1);
        loss = kiln_cross_entropy(z, t->y);
    }
    kiln_backward(t->scaler ? kiln_scaler_scale(t->scaler, loss) : loss);
    if (!t->scaler)
        kiln_optim_step(t->adam);
    else if (kiln_scaler_step(t->scaler, t->adam))
        kiln_scaler_update(t->scaler);
}

/* Who is measured: on a GPU there are several ways to multiply. */
static const char *own_name(void)
{
    const char *tf32 = getenv("KILN_TF32");
    if (bench_amp() != KILN_F32)
        return scales() ? "kiln f16 scaled" : bench_amp() == KILN_F16 ? "kiln f16" : "kiln bf16";
    return device == KILN_CPU ? "kiln" : tf32 && strcmp(tf32, "1") == 0 ? "kiln tf32" : "kiln f32";
}

static void report(const workload *w, double seconds, double processor, double recording, double first)
{
    char batch[40], tokens[40] = "";
    kiln_plan_info info = {0};
    kiln_plan_last(&info);
    if (w->length) {
        snprintf(batch, sizeof batch, "\"%dx%d\"", (int)w->batch, (int)w->length);
        snprintf(tokens, sizeof tokens, " \"tok_s\": %.0f,", (double)(w->batch * w->length) / seconds);
    } else
        snprintf(batch, sizeof batch, "%d", (int)w->batch);
    printf("{\"work\": \"%s\", \"batch\": %s, \"peer\": \"%s\", \"us\": %.1f, \"cpu_us\": %.1f,%s \"record_us\": %.2f, "
           "\"first_ms\": %.1f, \"nodes\": %d, \"kernels\": %d}\n",
           w->name, batch, own_name(), 1e6 * seconds, 1e6 * processor, tokens, 1e6 * recording, 1e3 * first,
           (int)info.nodes, (int)info.kernels);
    fflush(stdout);
}

/* What steps took, each. */
typedef struct cost {
    double seconds, recording; /* of it, spent on writing it down */
    double processor;          /* of all threads: with one thread that is the step without what others did meanwhile */
} cost;

/* Steps for so many seconds, at least so many of them. */
static cost steps(const training *t, double seconds, int least)
{
    double start = kiln_seconds(), processor = bench_processor_seconds(), spent = 0;
    int n = 0;
    while ((n < least || kiln_seconds() - start < seconds) && kiln_ok()) {
        double begun = kiln_seconds();
        kiln_step {
            record(t);
            spent += kiln_seconds() - begun;
        }
        n++;
    }
    kiln_device_wait(device);
    return (cost){(kiln_seconds() - start) / n, spent / n, (bench_processor_seconds() - processor) / n};
}

static void measure(const workload *w)
{
    bool cpu = device == KILN_CPU;
    const char *asked = getenv("KILN_BENCH_SECONDS");
    double seconds = asked ? atof(asked) : cpu ? 0.8 : 0.4;
    training t = training_new(w);
    t.scaler = scales() ? kiln_scaler_new() : NULL;
    double rounds[ROUNDS], processor[ROUNDS], recording = 0;
    kiln_device_wait(device);
    cost first = steps(&t, 0, 1);
    steps(&t, cpu ? 0 : 0.5, WARM_UP);
    for (int r = 0; r < ROUNDS && kiln_ok(); r++) {
        cost c = steps(&t, seconds, 1);
        rounds[r] = c.seconds;
        processor[r] = c.processor;
        recording += c.recording / ROUNDS;
    }
    if (kiln_ok())
        report(w, bench_median(rounds, ROUNDS), bench_median(processor, ROUNDS), recording, first.seconds);
    training_free(&t);
}

int main(int argc, char **argv)
{
    setenv("KILN_CUDA_JIT", "wait", 0);
    device = bench_device(&argc, argv, "cpu");
    for (size_t i = 0; i < sizeof workloads / sizeof *workloads && kiln_ok(); i++)
        if (bench_wanted(workloads[i].name, argc, argv) && !(workloads[i].large && device == KILN_CPU))
            measure(&workloads[i]);
    return kiln_report(stderr);
}
