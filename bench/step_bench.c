/* Training steps without loading: zero_grad, forward, cross-entropy, backward, Adam. Microseconds a step, the median
 * of five rounds of 0.8 s after ten steps to warm up; one JSON object a line, beside peers.py's.
 *
 * usage: kiln_bench_step [mlp] [lenet] [gpt2] [lstm] */
#include <kiln.h>
#include <stdlib.h>
#include <string.h>
#include "core/clock.h"
#include "models.h"

enum { ROUNDS = 5, WARM_UP = 10, SIDE = 28, CLASSES = 10, VOCABULARY = 256 };
#define ROUND_SECONDS 0.8

typedef struct workload {
    const char *name, *model; /* as model_find takes it */
    int64_t batch, length;    /* length of texts; 0: images */
} workload;

static const workload workloads[] = {
    {"mlp", "mlp", 32, 0},
    {"mlp", "mlp", 1024, 0},
    {"lenet", "lenet", 32, 0},
    {"lenet", "lenet", 1024, 0},
    {"gpt2", "gpt2:layers=4,embed=128,heads=4,context=128,vocabulary=256", 16, 128},
    {"lstm", "char-lstm:embed=64,hidden=256", 32, 64},
};

typedef struct training {
    kiln_module *model;
    kiln_optim *adam;
    kiln_tensor *x, *y;
} training;

static training training_new(const workload *w)
{
    char why[200];
    model_options options = {0};
    const model_entry *entry = model_find(w->model, &options, why, sizeof why);
    training t = {.model = entry ? entry->build(options) : NULL};
    if (!entry)
        fprintf(stderr, "%s: %s\n", w->model, why);
    t.adam = kiln_optim_adam(kiln_parameters(t.model), .lr = 1e-3);
    if (w->length) { /* tokens are their own targets: learning does not matter here */
        t.x = kiln_keep(kiln_randint(0, VOCABULARY, KILN_SHAPE(w->batch, w->length), KILN_I64));
        t.y = kiln_keep(kiln_reshape(t.x, KILN_SHAPE(w->batch * w->length)));
    } else {
        t.x = kiln_keep(kiln_randn(KILN_SHAPE(w->batch, 1, SIDE, SIDE), KILN_F32));
        t.y = kiln_keep(kiln_randint(0, CLASSES, KILN_SHAPE(w->batch), KILN_I64));
    }
    kiln_eval();
    return t;
}

static void training_free(training *t)
{
    kiln_optim_free(t->adam);
    kiln_module_free(t->model);
    kiln_release(t->x);
    kiln_release(t->y);
}

static void record(const training *t)
{
    kiln_zero_grad(t->adam);
    kiln_tensor *z = kiln_forward(t->model, t->x);
    if (kiln_ndim(z) == 3) /* what each place of a text says */
        z = kiln_flatten(z, 0, 1);
    kiln_backward(kiln_cross_entropy(z, t->y));
    kiln_optim_step(t->adam);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const workload *w, double seconds, double recording)
{
    char batch[40], tokens[40] = "";
    kiln_plan_info info = {0};
    kiln_plan_last(&info);
    if (w->length) {
        snprintf(batch, sizeof batch, "\"%dx%d\"", (int)w->batch, (int)w->length);
        snprintf(tokens, sizeof tokens, " \"tok_s\": %.0f,", (double)(w->batch * w->length) / seconds);
    } else
        snprintf(batch, sizeof batch, "%d", (int)w->batch);
    printf("{\"work\": \"%s\", \"batch\": %s, \"peer\": \"kiln\", \"us\": %.1f,%s \"record_us\": %.2f, \"nodes\": %d, "
           "\"kernels\": %d}\n",
           w->name, batch, 1e6 * seconds, tokens, 1e6 * recording, (int)info.nodes, (int)info.kernels);
    fflush(stdout);
}

static void measure(const workload *w)
{
    training t = training_new(w);
    double rounds[ROUNDS], recording = 0;
    for (int i = 0; i < WARM_UP; i++)
        kiln_step
            record(&t);
    for (int r = 0; r < ROUNDS && kiln_ok(); r++) {
        double start = kiln_seconds(), spent = 0;
        int n = 0;
        while (kiln_seconds() - start < ROUND_SECONDS) {
            double begun = kiln_seconds();
            kiln_step {
                record(&t);
                spent += kiln_seconds() - begun;
            }
            n++;
        }
        rounds[r] = (kiln_seconds() - start) / n;
        recording += spent / n / ROUNDS;
    }
    if (kiln_ok()) {
        qsort(rounds, ROUNDS, sizeof *rounds, compare);
        report(w, rounds[ROUNDS / 2], recording);
    }
    training_free(&t);
}

static bool wanted(const char *name, int argc, char **argv)
{
    bool listed = argc < 2;
    for (int i = 1; i < argc; i++)
        listed |= strcmp(argv[i], name) == 0;
    return listed;
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof workloads / sizeof *workloads; i++)
        if (wanted(workloads[i].name, argc, argv))
            measure(&workloads[i]);
    return kiln_report(stderr);
}
