/* A training run has the same bits whenever it is run: a second time in the same process, where its plans are replayed
 * (and, on a GPU, kernels have been generated meanwhile), and in another process, where a GPU runs generated kernels
 * from the first step on. With KILN_EAGER=1, every operation for itself, its first steps are the same where fusion
 * changes no bit (the CPU's kernels, f32 and f64), else the same up to rounding.
 *
 * Small forms of the networks of bench/zoo are among them.
 *
 *     test_replay_bits --run CASE DEVICE STEPS FILE    does so many steps and writes what came out
 *
 * KILN_TEST_DEVICES and KILN_TEST_SHARD: see support/devices.h and support/suite.h. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include "models.h"
#include "support/core.h"
#include "support/last_words.h"
#include "support/suite.h"

/* ctest: name=chunks env=KILN_TEST_CHUNK=2048;KILN_TEST_PITCH=8 */

extern char **environ;

/* A plan runs 16 times before a GPU's kernels are generated for it. */
enum { STEPS = 30, EAGER_STEPS = 6, MOST_SECONDS = 60 /* for a process */ };

typedef struct run_case {
    const char *name;
    const char *model; /* NULL: two layers written out, of that dtype */
    kiln_dtype dtype;  /* a model's: what autocast converts to */
    int64_t batch;
    double tolerance; /* of the norm of all that came out, between runs whose roundings differ */
    bool scaled;      /* by a gradient scaler; some steps are left out */
    bool one_batch;   /* for all steps: what learns slowly learns it */
} run_case;

/* Adam turns a rounding of a small gradient into one of a whole step. */
static const run_case cases[] = {
    {"mlp", "mlp:dropout=0.2", KILN_F32, 16, 2e-3, false, false},
    {"lenet", "lenet", KILN_F32, 8, 2e-3, false, false},
    {"gpt2", "gpt2:layers=2,heads=2,embed=32,context=16,vocabulary=64,dropout=0.1", KILN_F32, 4, 2e-3, false, false},
    {"plain-f64", NULL, KILN_F64, 16, 1e-13, false, false},
    {"plain-f32", NULL, KILN_F32, 16, 1e-5, false, false},
    {"plain-bf16", NULL, KILN_BF16, 16, 0.016, false, false},
    {"plain-f16", NULL, KILN_F16, 16, 0.004, false, false},
    {"mlp-bf16", "mlp", KILN_BF16, 16, 0.02, false, false},
    {"mlp-f16", "mlp", KILN_F16, 16, 0.02, false, false},
    {"lenet-bf16", "lenet", KILN_BF16, 8, 0.02, false, false},
    {"gpt2-bf16", "gpt2:layers=2,heads=2,embed=32,context=16,vocabulary=64", KILN_BF16, 4, 0.02, false, false},
    {"mlp-scaled", "mlp", KILN_F16, 16, 0.02, true, false},
    {"lenet-scaled", "lenet", KILN_F16, 8, 0.02, true, false},
    {"vit", "vit-tiny:layers=2,heads=3,embed=42,channels=1,height=28,width=28,classes=10", KILN_F32, 5, 2e-3, false,
     true},
    {"vit-bf16", "vit-tiny:layers=2,heads=3,embed=42,channels=1,height=28,width=28,classes=10", KILN_BF16, 5, 0.02,
     false, true},
    {"char-lstm", "char-lstm:embed=12,hidden=20,context=15,vocabulary=50", KILN_F32, 3, 2e-3, false, false},
    {"llama", "llama:layers=2,embed=40,heads=4,kv_heads=2,context=15,vocabulary=50", KILN_F32, 3, 2e-3, false, false},
    {"llama-bf16", "llama:layers=2,embed=40,heads=4,kv_heads=2,context=15,vocabulary=50", KILN_BF16, 3, 0.02, false,
     false},
    {"bert", "bert:layers=2,embed=40,heads=2,context=15,vocabulary=50", KILN_F32, 3, 2e-3, false, false},
    {"odd-heads", "gpt2:layers=2,heads=1,embed=40,context=33,vocabulary=51", KILN_F32, 3, 2e-3, false, false},
    {"odd-heads-bf16", "gpt2:layers=2,heads=1,embed=40,context=33,vocabulary=51", KILN_BF16, 3, 0.02, false, false},
};
enum { CASES = sizeof cases / sizeof *cases };

/* What a run leaves, as f64: losses and then all weights of its first steps, the same of the rest. */
typedef struct outcome {
    int64_t count;
    double *values;
    double first, last; /* losses */
} outcome;

/* In a test it fails; a process that a test has started says why and ends. */
static bool started;

static void must_(bool ok, const char *what, int line)
{
    if (ok)
        return;
    fprintf(stderr, "line %d: not so: %s\n", line, what);
    kiln_report(stderr);
    if (started)
        exit(3);
    fail();
}
#define must(condition) must_(condition, #condition, __LINE__)

static void add(outcome *o, kiln_tensor *t)
{
    kiln_scope
        kiln_no_grad {
            kiln_tensor *wide = kiln_cast(t, KILN_F64);
            int64_t n = kiln_numel(t);
            o->values = realloc(o->values, (size_t)(o->count + n) * sizeof *o->values);
            must(kiln_read(wide, o->values + o->count, (size_t)n * sizeof *o->values));
            o->count += n;
        }
}

static void add_loss(outcome *o, kiln_tensor *loss)
{
    add(o, loss);
    o->last = o->values[o->count - 1];
    o->first = o->count == 1 ? o->last : o->first;
    kiln_release(loss);
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
    must(n <= 256);
    for (int64_t i = 0; i < n; i++)
        values[i] = (i * 7 + step * 3 + i * i % 5) % classes;
    return kiln_tensor_new(values, KILN_I64, KILN_SHAPE(n), kiln_default_device());
}

/* Whether weights are noted after this step. */
static bool ends_part(int step)
{
    return step == EAGER_STEPS - 1 || step == STEPS - 1;
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

static void train_model(const run_case *c, int steps, outcome *out)
{
    char why[256];
    model_options o = {0};
    const model_entry *e = model_find(c->model, &o, why, sizeof why);
    kiln_module *m = e ? e->build(o) : NULL;
    kiln_optim *adam = m ? kiln_optim_adam(kiln_parameters(m), .lr = 1e-3) : NULL;
    kiln_scaler *scaler = kiln_scaler_new(.disabled = !c->scaled);
    must(adam && scaler);
    kiln_params p = kiln_parameters(m);
    for (int i = 0; i < steps; i++) {
        kiln_tensor *loss = NULL;
        kiln_step {
            kiln_zero_grad(adam);
            kiln_autocast (c->dtype)
                loss = kiln_keep(loss_of(m, e, &o, c->batch, c->one_batch ? 0 : i));
            kiln_tensor *share = c->scaled ? kiln_mul_scalar(loss, i % 7 == 3 ? INFINITY : 1) : loss;
            must(kiln_backward(kiln_scaler_scale(scaler, share)) && kiln_scaler_step(scaler, adam) &&
                 kiln_scaler_update(scaler));
        }
        add_loss(out, loss);
        for (int64_t k = 0; ends_part(i) && k < p.count; k++)
            add(out, p.tensors[k]);
    }
    kiln_scaler_free(scaler);
    kiln_optim_free(adam);
    kiln_module_free(m);
}

/* ---- Two layers of any dtype ---- */

enum { IN = 20, HIDDEN = 33, OUT = 7, TENSORS = 4 };

static void train_plain(const run_case *c, int steps, outcome *out)
{
    static const int64_t shapes[TENSORS][2] = {{HIDDEN, IN}, {HIDDEN}, {OUT, HIDDEN}, {OUT}};
    kiln_tensor *w[TENSORS], *loss = NULL;
    for (int k = 0; k < TENSORS; k++)
        kiln_scope
            w[k] = kiln_keep(kiln_cast(kiln_mul_scalar(core_data(k, k % 2 ? 1 : 2, shapes[k]), 0.3), c->dtype));
    must(kiln_eval());
    for (int k = 0; k < TENSORS; k++)
        must(kiln_requires_grad(w[k], true));
    for (int i = 0; i < steps; i++) {
        kiln_step {
            for (int k = 0; k < TENSORS; k++)
                kiln_zero_grad_of(w[k]);
            kiln_tensor *x = kiln_cast(core_data(i + 9, KILN_SHAPE(c->batch, IN)), c->dtype);
            kiln_tensor *h = kiln_dropout(kiln_tanh(kiln_linear(x, w[0], w[1])), 0.2, true);
            loss = kiln_keep(kiln_cross_entropy(kiln_linear(h, w[2], w[3]), labels(i, c->batch, OUT)));
            must(kiln_backward(loss));
            kiln_no_grad
                for (int k = 0; k < TENSORS; k++)
                    must(kiln_assign(w[k], kiln_sub(w[k], kiln_mul_scalar(kiln_grad_of(w[k]), 0.1))));
        }
        add_loss(out, loss);
        for (int k = 0; ends_part(i) && k < TENSORS; k++)
            add(out, w[k]);
    }
    for (int k = 0; k < TENSORS; k++)
        kiln_release(w[k]);
}

static outcome run(const run_case *c, int steps)
{
    outcome out = {0};
    kiln_manual_seed(11);
    c->model ? train_model(c, steps, &out) : train_plain(c, steps, &out);
    must(kiln_ok());
    return out;
}

/* ---- Another process ---- */

static char program[512], folder[256];

static int write_run(const char *name, const char *device, int steps, const char *path)
{
    started = true;
    core_passes();
    last_words(MOST_SECONDS);
    kiln_device d = kiln_device_parse(device);
    if (d == KILN_NO_DEVICE || !kiln_set_default_device(d))
        return kiln_report(stderr);
    for (int i = 0; i < CASES; i++) {
        if (strcmp(cases[i].name, name))
            continue;
        outcome o = run(&cases[i], steps);
        FILE *f = fopen(path, "wb");
        must(f && fwrite(o.values, sizeof *o.values, (size_t)o.count, f) == (size_t)o.count && fclose(f) == 0);
        outcome_free(&o);
        return 0;
    }
    return 1;
}

/* This process's environment with two variables more; threads may be looking at it, so it is not changed itself. */
static char **environment(const char *eager, const char *jit)
{
    static char *all[1024];
    int n = 0;
    for (char **e = environ; *e && n < 1000; e++)
        if (strncmp(*e, "KILN_EAGER=", 11) && strncmp(*e, "KILN_CUDA_JIT=", 14))
            all[n++] = *e;
    all[n++] = (char *)(uintptr_t)eager;
    all[n++] = (char *)(uintptr_t)jit;
    all[n] = NULL;
    return all;
}

static void fail_with_words(const run_case *c, const char *how, int status, const char *words)
{
    char line[512];
    FILE *f = fopen(words, "r");
    print_error("%s, %s: %s %d\n", c->name, how, WIFEXITED(status) ? "exit code" : "ended by signal",
                WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    while (f && fgets(line, sizeof line, f))
        print_error("%s", line);
    if (f)
        fclose(f);
    fail();
}

/* The same run by another process; eager: its first steps. */
static outcome run_elsewhere(const run_case *c, bool eager)
{
    char path[300], words[300], device[32], steps[16];
    pid_t child;
    int status;
    snprintf(path, sizeof path, "%s/%s", folder, c->name);
    snprintf(words, sizeof words, "%s/words", folder);
    snprintf(device, sizeof device, "%s", kiln_device_name(kiln_default_device()));
    snprintf(steps, sizeof steps, "%d", eager ? EAGER_STEPS : STEPS);
    char *arguments[] = {program, "--run", (char *)(uintptr_t)c->name, device, steps, path, NULL};
    char **variables =
        eager ? environment("KILN_EAGER=1", "KILN_CUDA_JIT=1") : environment("KILN_EAGER=0", "KILN_CUDA_JIT=wait");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, words, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int error = posix_spawn(&child, program, &actions, NULL, arguments, variables);
    posix_spawn_file_actions_destroy(&actions);
    if (error)
        fail_msg("%s cannot be started: %s", program, strerror(error));
    assert_int_equal(waitpid(child, &status, 0), child);
    if (status)
        fail_with_words(c, eager ? "eager" : "in another process", status, words);
    outcome o = {0};
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    o.values = malloc(1 << 24);
    o.count = (int64_t)fread(o.values, sizeof *o.values, (1 << 24) / sizeof *o.values, f);
    fclose(f);
    remove(path);
    remove(words);
    return o;
}

/* ---- Comparing ---- */

/* As far as b goes. */
static void assert_same_bits(const run_case *c, const outcome *a, const outcome *b, const char *what)
{
    for (int64_t i = 0; i < b->count; i++)
        if (memcmp(&a->values[i], &b->values[i], sizeof *a->values))
            fail_msg("%s, %s: value %lld (the first %d are losses) is %.17g instead of %.17g", c->name, what,
                     (long long)i, EAGER_STEPS, b->values[i], a->values[i]);
}

/* Losses one by one, weights by the norm of their difference. */
static void assert_near_run(const run_case *c, const outcome *a, const outcome *b)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < b->count; i++) {
        double x = a->values[i], y = b->values[i];
        if (i < EAGER_STEPS)
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
    if (!suite_wants_named(c->name, c - cases))
        skip_because("another shard's");
    outcome first = run(c, STEPS), second = run(c, STEPS);
    assert_true(kiln_plan_last(&info) && info.replayed);
    outcome other = run_elsewhere(c, false), eager = run_elsewhere(c, true);
    assert_int_equal(second.count, first.count);
    assert_same_bits(c, &first, &second, "a second time");
    assert_int_equal(other.count, first.count);
    assert_same_bits(c, &first, &other, "in another process");
    assert_int_equal(eager.count, (first.count - STEPS) / 2 + EAGER_STEPS);
    bool exact =
        has_cpu_bits(kiln_default_device()) && (c->dtype == KILN_F32 || c->dtype == KILN_F64) && !core_passes();
    if (exact)
        assert_same_bits(c, &first, &eager, "eager");
    else
        assert_near_run(c, &first, &eager);
    assert_true(first.last < first.first || !c->model); /* it is training that is compared, not standing still */
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
TEST(mlp_bf16, 7)
TEST(mlp_f16, 8)
TEST(lenet_bf16, 9)
TEST(gpt2_bf16, 10)
TEST(mlp_scaled, 11)
TEST(lenet_scaled, 12)
TEST(vit, 13)
TEST(vit_bf16, 14)
TEST(char_lstm, 15)
TEST(llama, 16)
TEST(llama_bf16, 17)
TEST(bert, 18)
TEST(odd_heads, 19)
TEST(odd_heads_bf16, 20)

int main(int argc, char **argv)
{
    if (argc == 6 && !strcmp(argv[1], "--run"))
        return write_run(argv[2], argv[3], atoi(argv[4]), argv[5]);
    const char *tmp = getenv("TMPDIR");
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    snprintf(folder, sizeof folder, "%.200s/kiln-replay-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (n < 0 || !mkdtemp(folder)) {
        perror(folder);
        return 1;
    }
    unsetenv("KILN_EAGER");
    last_words(0);
    const struct CMUnitTest tests[] = {
        core_test(test_mlp),          core_test(test_lenet),     core_test(test_gpt2),
        core_test(test_f64),          core_test(test_f32),       core_test(test_bf16),
        core_test(test_f16),          core_test(test_mlp_bf16),  core_test(test_mlp_f16),
        core_test(test_lenet_bf16),   core_test(test_gpt2_bf16), core_test(test_mlp_scaled),
        core_test(test_lenet_scaled), core_test(test_vit),       core_test(test_vit_bf16),
        core_test(test_char_lstm),    core_test(test_llama),     core_test(test_llama_bf16),
        core_test(test_bert),         core_test(test_odd_heads), core_test(test_odd_heads_bf16),
    };
    int result = CORE_MAIN(tests);
    rmdir(folder);
    return result;
}
