/* A training run has the same bits whenever it is run: a second time in the same process, where its plans are replayed
 * (and, on a GPU, kernels have been generated meanwhile), and in another process. With KILN_EAGER=1, every operation
 * for itself, they are the same where fusion changes no bit (the CPU's kernels, f32 and f64), else the same up to
 * rounding.
 *
 *     test_replay_bits --run CASE DEVICE FILE    does one run and writes what came out */
#define _GNU_SOURCE
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include "models.h"
#include "support/core.h"

extern char **environ;

enum { STEPS = 30 };

typedef struct run_case {
    const char *name;
    const char *model; /* NULL: two layers written out, of that dtype */
    kiln_dtype dtype;
    int64_t batch;
    double tolerance; /* of the norm of all that came out, between runs whose roundings differ */
} run_case;

/* Adam turns a rounding of a small gradient into one of a whole step. */
static const run_case cases[] = {
    {"mlp", "mlp:dropout=0.2", KILN_F32, 16, 2e-3},
    {"lenet", "lenet", KILN_F32, 8, 2e-3},
    {"gpt2", "gpt2:layers=2,heads=2,embed=32,context=16,vocabulary=64,dropout=0.1", KILN_F32, 4, 2e-3},
    {"plain-f64", NULL, KILN_F64, 16, 1e-13},
    {"plain-f32", NULL, KILN_F32, 16, 1e-5},
    {"plain-bf16", NULL, KILN_BF16, 16, 0.016},
    {"plain-f16", NULL, KILN_F16, 16, 0.004},
};
enum { CASES = sizeof cases / sizeof *cases };

/* What a run leaves: its losses, then all weights, as f64. */
typedef struct outcome {
    int64_t count;
    double *values;
} outcome;

static void add(outcome *o, kiln_tensor *t)
{
    kiln_scope
        kiln_no_grad {
            kiln_tensor *wide = kiln_cast(t, KILN_F64);
            int64_t n = kiln_numel(t);
            o->values = realloc(o->values, (size_t)(o->count + n) * sizeof *o->values);
            assert_true(kiln_read(wide, o->values + o->count, (size_t)n * sizeof *o->values));
            o->count += n;
        }
}

static void outcome_free(outcome *o)
{
    free(o->values);
    *o = (outcome){0};
}

/* ---- Data ---- */

static kiln_tensor *labels(int step, int64_t n, int64_t classes)
{
    int64_t values[256];
    assert_true(n <= 256);
    for (int64_t i = 0; i < n; i++)
        values[i] = (i * 7 + step * 3 + i * i % 5) % classes;
    return kiln_tensor_new(values, KILN_I64, KILN_SHAPE(n), kiln_default_device());
}

/* ---- Models ---- */

static kiln_tensor *loss_of(kiln_module *m, const model_entry *e, const model_options *o, int64_t batch, int step)
{
    if (!e->tokens)
        return kiln_cross_entropy(kiln_forward(m, core_data(step, KILN_SHAPE(batch, 1, 28, 28))),
                                  labels(step, batch, 10));
    int64_t n = batch * o->context;
    kiln_tensor *x = kiln_reshape(labels(step, n, o->vocabulary), KILN_SHAPE(batch, o->context));
    kiln_tensor *out = kiln_forward(m, x);
    return kiln_cross_entropy(kiln_reshape(out, KILN_SHAPE(-1, o->vocabulary)), labels(step + 1, n, o->vocabulary));
}

static void train_model(const run_case *c, outcome *out)
{
    char why[256];
    model_options o = {0};
    const model_entry *e = model_find(c->model, &o, why, sizeof why);
    kiln_module *m = e ? e->build(o) : NULL;
    kiln_optim *adam = m ? kiln_optim_adam(kiln_parameters(m), .lr = 1e-3) : NULL;
    assert_non_null(adam);
    for (int i = 0; i < STEPS; i++) {
        kiln_tensor *loss = NULL;
        kiln_step {
            kiln_zero_grad(adam);
            loss = kiln_keep(loss_of(m, e, &o, c->batch, i));
            assert_true(kiln_backward(loss) && kiln_optim_step(adam));
        }
        add(out, loss);
        kiln_release(loss);
    }
    kiln_params p = kiln_parameters(m);
    for (int64_t i = 0; i < p.count; i++)
        add(out, p.tensors[i]);
    kiln_optim_free(adam);
    kiln_module_free(m);
}

/* ---- Two layers of any dtype ---- */

enum { IN = 20, HIDDEN = 33, OUT = 7, TENSORS = 4 };

static void train_plain(const run_case *c, outcome *out)
{
    static const int64_t shapes[TENSORS][2] = {{HIDDEN, IN}, {HIDDEN}, {OUT, HIDDEN}, {OUT}};
    kiln_tensor *w[TENSORS], *loss = NULL;
    for (int k = 0; k < TENSORS; k++)
        kiln_scope
            w[k] = kiln_keep(kiln_cast(kiln_mul_scalar(core_data(k, k % 2 ? 1 : 2, shapes[k]), 0.3), c->dtype));
    assert_true(kiln_eval());
    for (int k = 0; k < TENSORS; k++)
        assert_non_null(kiln_requires_grad(w[k], true));
    for (int i = 0; i < STEPS; i++) {
        kiln_step {
            for (int k = 0; k < TENSORS; k++)
                kiln_zero_grad_of(w[k]);
            kiln_tensor *x = kiln_cast(core_data(i + 9, KILN_SHAPE(c->batch, IN)), c->dtype);
            kiln_tensor *h = kiln_dropout(kiln_tanh(kiln_linear(x, w[0], w[1])), 0.2, true);
            loss = kiln_keep(kiln_cross_entropy(kiln_linear(h, w[2], w[3]), labels(i, c->batch, OUT)));
            assert_true(kiln_backward(loss));
            kiln_no_grad
                for (int k = 0; k < TENSORS; k++)
                    assert_true(kiln_assign(w[k], kiln_sub(w[k], kiln_mul_scalar(kiln_grad_of(w[k]), 0.1))));
        }
        add(out, loss);
        kiln_release(loss);
    }
    for (int k = 0; k < TENSORS; k++) {
        add(out, w[k]);
        kiln_release(w[k]);
    }
}

static outcome run(const run_case *c)
{
    outcome out = {0};
    kiln_manual_seed(11);
    c->model ? train_model(c, &out) : train_plain(c, &out);
    assert_true(kiln_ok());
    return out;
}

/* ---- Another process ---- */

static char program[512], folder[256];

static int write_run(const char *name, const char *device, const char *path)
{
    kiln_device d = kiln_device_parse(device);
    if (d == KILN_NO_DEVICE || !kiln_set_default_device(d))
        return kiln_report(stderr);
    for (int i = 0; i < CASES; i++) {
        if (strcmp(cases[i].name, name))
            continue;
        outcome o = run(&cases[i]);
        FILE *f = fopen(path, "wb");
        bool ok = f && fwrite(o.values, sizeof *o.values, (size_t)o.count, f) == (size_t)o.count && fclose(f) == 0;
        outcome_free(&o);
        return ok ? 0 : 1;
    }
    return 1;
}

/* The same run by another process, eager or not. */
static outcome run_elsewhere(const run_case *c, bool eager, int64_t expected)
{
    char path[300], device[32];
    pid_t child;
    int status;
    snprintf(path, sizeof path, "%s/%s", folder, c->name);
    snprintf(device, sizeof device, "%s", kiln_device_name(kiln_default_device()));
    char *arguments[] = {program, "--run", (char *)(uintptr_t)c->name, device, path, NULL};
    setenv("KILN_EAGER", eager ? "1" : "0", 1);
    int error = posix_spawn(&child, program, NULL, NULL, arguments, environ);
    unsetenv("KILN_EAGER");
    if (error)
        fail_msg("%s cannot be started: %s", program, strerror(error));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    outcome o = {expected, calloc((size_t)expected + 1, sizeof(double))};
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(o.values, sizeof *o.values, (size_t)expected + 1, f), expected);
    fclose(f);
    remove(path);
    return o;
}

/* ---- Comparing ---- */

static void assert_same_bits(const run_case *c, const outcome *a, const outcome *b, const char *what)
{
    assert_int_equal(a->count, b->count);
    for (int64_t i = 0; i < a->count; i++)
        if (memcmp(&a->values[i], &b->values[i], sizeof *a->values))
            fail_msg("%s, %s: value %lld (of which %d are losses) is %.17g instead of %.17g", c->name, what,
                     (long long)i, STEPS, b->values[i], a->values[i]);
}

/* Losses one by one, weights by the norm of their difference. */
static void assert_near_run(const run_case *c, const outcome *a, const outcome *b)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < a->count; i++) {
        double x = a->values[i], y = b->values[i];
        if (i < STEPS)
            assert_near(y, x, c->tolerance);
        difference += (x - y) * (x - y);
        norm += x * x;
    }
    if (!(sqrt(difference) <= c->tolerance * sqrt(norm)))
        fail_msg("%s, eager: the outcome is off by %g of its norm", c->name, sqrt(difference / norm));
}

static void check_case(const run_case *c)
{
    kiln_plan_info info;
    outcome first = run(c), second = run(c), other = run_elsewhere(c, false, first.count),
            eager = run_elsewhere(c, true, first.count);
    assert_true(kiln_plan_last(&info) && info.replayed);
    assert_same_bits(c, &first, &second, "a second time");
    assert_same_bits(c, &first, &other, "in another process");
    bool exact = has_cpu_bits(kiln_default_device()) && (c->dtype == KILN_F32 || c->dtype == KILN_F64);
    if (exact)
        assert_same_bits(c, &first, &eager, "eager");
    else
        assert_near_run(c, &first, &eager);
    bool learned = first.values[STEPS - 1] < first.values[0];
    assert_true(learned || !c->model); /* it is training that is compared, not standing still */
    outcome_free(&first);
    outcome_free(&second);
    outcome_free(&other);
    outcome_free(&eager);
}

#define TEST(name, number)                                                                                             \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        check_case(&cases[number]);                                                                                    \
    }
TEST(mlp, 0)
TEST(lenet, 1)
TEST(gpt2, 2)
TEST(f64, 3)
TEST(f32, 4)
TEST(bf16, 5)
TEST(f16, 6)

int main(int argc, char **argv)
{
    if (argc == 5 && !strcmp(argv[1], "--run"))
        return write_run(argv[2], argv[3], argv[4]);
    const char *tmp = getenv("TMPDIR");
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    snprintf(folder, sizeof folder, "%.200s/kiln-replay-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (n < 0 || !mkdtemp(folder)) {
        perror(folder);
        return 1;
    }
    unsetenv("KILN_EAGER");
    const struct CMUnitTest tests[] = {
        core_test(test_mlp), core_test(test_lenet), core_test(test_gpt2), core_test(test_f64),
        core_test(test_f32), core_test(test_bf16),  core_test(test_f16),
    };
    int result = CORE_MAIN(tests);
    rmdir(folder);
    return result;
}
