/* The models of models/: ten training steps give PyTorch's losses and weights (golden/models.txt, made by
 * make_models.py), from weights and batches that both sides make by formula. Also: names that do not exist, sizes,
 * every model on every device. */
#include <inttypes.h>
#include "models.h"
#include "support/by_formula.h"
#include "support/optim_with.h"
#include "support/core.h"
#include "support/where.h"

enum { STEPS = 10, SAMPLES = 6 };

/* ---- One block of the golden file ---- */

typedef struct golden {
    char spec[128], optimizer[16];
    double lr, loss[STEPS];
    int64_t shape[4];
    int ndim;
} golden;

static bool read_golden(FILE *f, golden *g)
{
    char line[512];
    memset(g, 0, sizeof *g);
    if (!fgets(line, sizeof line, f) ||
        sscanf(line, "model %127s %15s %lf %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64, g->spec, g->optimizer, &g->lr,
               &g->shape[0], &g->shape[1], &g->shape[2], &g->shape[3]) < 5)
        return false;
    g->ndim = g->shape[2] ? 4 : 2;
    for (int i = 0; i < STEPS; i++)
        if (!fgets(line, sizeof line, f) || sscanf(line, "loss %lf", &g->loss[i]) != 1)
            return false;
    return true;
}

/* Rounding alone moves a weight by some amount, more in deep networks; PyTorch's own f32 run shows by how much. Ours
 * may be off the exact change by a few times that. */
static void check_tensor(const char *spec, const char *line, const char *name, kiln_tensor *t, const float *before)
{
    char expected_name[128];
    double norm, noise, most, pick[SAMPLES], change = 0;
    int64_t n = kiln_numel(t);
    int got = sscanf(line, "tensor %127s %lf %lf %lf %lf %lf %lf %lf %lf %lf", expected_name, &norm, &noise, &most,
                     &pick[0], &pick[1], &pick[2], &pick[3], &pick[4], &pick[5]);
    assert_string_equal(name, expected_name);
    assert_int_equal(got, n >= SAMPLES ? 4 + SAMPLES : 4);
    float *after = malloc((size_t)n * sizeof *after);
    assert_true(kiln_read(t, after, (size_t)n * sizeof *after));
    for (int64_t i = 0; i < n; i++)
        change += ((double)after[i] - before[i]) * ((double)after[i] - before[i]);
    change = sqrt(change);
    if (fabs(change - norm) > 3 * noise + 1e-5 * norm)
        fail_msg("%s: %s changed by %.8g, PyTorch's by %.8g ± %.3g", spec, name, change, norm, noise);
    for (int k = 0; n >= SAMPLES && k < SAMPLES; k++) {
        int64_t at = k * (n - 1) / (SAMPLES - 1);
        double mine = (double)after[at] - before[at];
        if (fabs(mine - pick[k]) > 3 * most + 1e-5 * fabs(pick[k]))
            fail_msg("%s: %s[%" PRId64 "] changed by %.8g, PyTorch's by %.8g ± %.3g", spec, name, at, mine, pick[k],
                     most);
    }
    free(after);
}

static double train_step(kiln_module *m, kiln_optim *o, const golden *g, int step)
{
    double value = NAN;
    kiln_tensor *kept = NULL;
    kiln_step {
        kiln_tensor *x, *y;
        make_batch(g->shape, g->ndim, step, &x, &y);
        kiln_tensor *out = kiln_forward(m, x);
        if (g->ndim == 2) {
            out = kiln_reshape(out, KILN_SHAPE(-1, kiln_size(out, -1)));
            y = kiln_reshape(y, KILN_SHAPE(-1));
        }
        kept = kiln_keep(kiln_cross_entropy(out, y));
        kiln_zero_grad(o);
        kiln_backward(kept);
        kiln_optim_step(o);
    }
    value = kiln_item(kept);
    kiln_release(kept);
    return value;
}

static void check_model(FILE *f, const golden *g)
{
    char why[200], line[512];
    model_options options = {0};
    const model_entry *entry = model_find(g->spec, &options, why, sizeof why);
    assert_non_null(entry);
    kiln_module *m = entry->build(options);
    assert_non_null(m);
    kiln_params p = kiln_parameters(m);
    float **before = malloc((size_t)p.count * sizeof *before);
    for (int64_t i = 0; i < p.count; i++) {
        before[i] = initial(p.tensors[i], p.names[i], (uint32_t)i);
        assert_true(kiln_write(p.tensors[i], before[i], (size_t)kiln_numel(p.tensors[i]) * sizeof(float)));
    }
    double momentum = strcmp(g->optimizer, "sgd") == 0 ? 0.9 : 0;
    kiln_optim *o = optim_with(g->optimizer, p, (kiln_optim_options){.lr = g->lr, .momentum = momentum});
    assert_non_null(o);
    double worst = 0;
    for (int step = 0; step < STEPS; step++) {
        double loss = train_step(m, o, g, step), off = fabs(loss - g->loss[step]) / g->loss[step];
        if (!(off <= 1e-4))
            fail_msg("%s on %s: loss %.7g after %d steps, PyTorch's is %.7g", g->spec,
                     kiln_device_name(kiln_default_device()), loss, step, g->loss[step]);
        worst = off > worst ? off : worst;
    }
    for (int64_t i = 0; i < p.count; i++) {
        assert_non_null(fgets(line, sizeof line, f));
        check_tensor(g->spec, line, p.names[i], p.tensors[i], before[i]);
        free(before[i]);
    }
    free(before);
    print_message("%s on %s: losses within %.1e of PyTorch's\n", g->spec, kiln_device_name(kiln_default_device()),
                  worst);
    kiln_optim_free(o);
    kiln_module_free(m);
}

static void golden_runs(void **state)
{
    (void)state;
    FILE *f = fopen(test_file("golden/models.txt"), "r");
    assert_non_null(f);
    golden g;
    int models = 0;
    for (; read_golden(f, &g); models++)
        check_model(f, &g);
    fclose(f);
    assert_int_equal(models, 8);
    assert_int_equal(kiln_report(stderr), 0);
}

static void names_and_options(void **state)
{
    (void)state;
    char why[200];
    model_options o = {.channels = 3};
    const model_entry *e = model_find("gpt2:layers=4,embed=128,dropout=0.25", &o, why, sizeof why);
    assert_non_null(e);
    assert_string_equal(e->name, "gpt2");
    assert_true(o.layers == 4 && o.embed == 128 && o.dropout == 0.25 && o.channels == 3);
    assert_null(model_find("gtp2", &o, why, sizeof why));
    assert_non_null(strstr(why, "did you mean 'gpt2'"));
    assert_null(model_find("gpt2:layer=4", &o, why, sizeof why));
    assert_non_null(strstr(why, "did you mean 'layers'"));
    assert_null(model_find("gpt2:layers=x", &o, why, sizeof why));
    assert_null(model_find("gpt2:layers=0", &o, why, sizeof why));
    assert_null(model_find("gpt2:layers", &o, why, sizeof why));
    assert_null(model_find("gpt2:dropout=1", &o, why, sizeof why));
    assert_null(model_find("", &o, why, sizeof why));
    assert_null(model_find("resnet", &o, why, sizeof why));
    assert_non_null(strstr(why, "did you mean 'resnet18'"));
    assert_null(model_find("mlp:layers=3", &o, why, sizeof why)); /* it would have no effect */
    assert_non_null(strstr(why, "mlp has no option 'layers'; it has: channels height width classes dropout"));
}

/* Sizes that cannot be, told before anything is built. */
static void sizes(void **state)
{
    (void)state;
    const struct {
        const char *model, *why;
    } wrong[] = {{"gpt2:embed=100,heads=3", "multiple"},
                 {"gpt2:layers=1001", "too large"},
                 {"char-lstm:hidden=1000001", "too large"},
                 {"llama:heads=8,kv_heads=3", "kv_heads=3: it must be a multiple"},
                 {"llama:embed=72,heads=8", "must be even"},
                 {"bert:embed=100,heads=3", "multiple"},
                 {"vit-tiny:heads=5", "multiple"},
                 {"vit-tiny:patch=33,height=32,width=64", "patches are 33x33"},
                 {"vit-tiny:patch=5,height=32,width=32", "set patch to a divisor"},
                 {"lenet:width=11", "smallest are 12x12"},
                 {"mlp:channels=1000000000,height=1000000000,width=1000000000", "too large"}};
    char why[200];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        model_options o = {0};
        const model_entry *e = model_find(wrong[i].model, &o, why, sizeof why);
        assert_non_null(e);
        assert_false(model_check(e, &o, why, sizeof why));
        if (!strstr(why, wrong[i].why))
            fail_msg("%s: %s", wrong[i].model, why);
    }
    for (const model_entry *e = model_table; e->name; e++)
        assert_true(model_check(e, &(model_options){0}, why, sizeof why));
}

/* Every model of the table makes outputs of the right shape; nothing runs. */
static void shapes(void **state)
{
    (void)state;
    for (const model_entry *e = model_table; e->name; e++) {
        model_options o = {.classes = 7, .vocabulary = 50, .context = 16};
        bool resnet50 = strcmp(e->name, "resnet50") == 0;
        if (e->tokens && model_has_option(e, "heads")) /* 124 million parameters take their time */
            o.layers = o.heads = 2, o.embed = 32;
        if (resnet50)
            o.height = o.width = 32;
        kiln_module *m = e->build(o);
        if (!m)
            fail_msg("%s: %s", e->name, kiln_last_error()->message);
        bool small = !strcmp(e->name, "mlp") || !strcmp(e->name, "lenet") || !strcmp(e->name, "autoencoder");
        int64_t image[4] = {2, small ? 1 : 3, small ? 28 : 32, small ? 28 : 32}, tokens[2] = {2, 16}, out[8];
        int ndim;
        if (!kiln_module_shape(m, e->tokens ? 2 : 4, e->tokens ? tokens : image, e->tokens ? KILN_I64 : KILN_F32, &ndim,
                               out))
            fail_msg("%s: %s", e->name, kiln_last_error()->message);
        assert_int_equal(out[0], 2);
        assert_int_equal(ndim, e->tokens ? 3 : e->loss == KILN_RECONSTRUCTION ? 4 : 2);
        assert_int_equal(out[ndim - 1], e->tokens ? 50 : e->loss == KILN_RECONSTRUCTION ? 28 : 7);
        kiln_module_free(m);
    }
}

/* What bert says of a text does not depend on the padding behind it. */
static void padding(void **state)
{
    (void)state;
    enum { VOCABULARY = 32, SHORT = 5, LONG = 9 };
    static const int64_t tokens[2][LONG] = {{3, 31, 7, 1, 12, 0, 0, 0, 0}, {30, 2, 2, 9, 4, 8, 1, 17, 22}};
    kiln_module *m =
        model_bert((model_options){.vocabulary = VOCABULARY, .context = 16, .layers = 2, .heads = 2, .embed = 16});
    assert_non_null(m);
    float alone[SHORT][VOCABULARY], padded[2][LONG][VOCABULARY];
    kiln_scope {
        kiln_tensor *x = kiln_tensor_new(tokens, KILN_I64, KILN_SHAPE(2, LONG), kiln_default_device());
        kiln_tensor *first = kiln_slice(kiln_slice(x, 0, 0, 1, 1), 1, 0, SHORT, 1);
        assert_true(kiln_read(kiln_forward(m, first), alone, sizeof alone));
        assert_true(kiln_read(kiln_forward(m, x), padded, sizeof padded));
    }
    for (int t = 0; t < SHORT; t++)
        for (int v = 0; v < VOCABULARY; v++)
            assert_float_equal(padded[0][t][v], alone[t][v], 1e-5f);
    kiln_module_free(m);
}

/* Each kv head of llama serves its neighbours: with the same rows for all of them it is one of as many heads. */
static void shared_heads(void **state)
{
    (void)state;
    enum { EMBED = 16, HEADS = 4, KV_HEADS = 2, WIDTH = EMBED / HEADS, VOCABULARY = 32, LENGTH = 6 };
    model_options o = {.vocabulary = VOCABULARY, .layers = 1, .heads = HEADS, .embed = EMBED, .hidden = 24};
    kiln_manual_seed(3);
    kiln_module *all = model_llama(o);
    o.kv_heads = KV_HEADS;
    kiln_module *few = model_llama(o);
    assert_true(all && few);
    kiln_params from = kiln_parameters(few), to = kiln_parameters(all);
    assert_int_equal(from.count, to.count);
    float say[2][LENGTH][VOCABULARY];
    kiln_scope {
        for (int64_t i = 0; i < from.count; i++) {
            kiln_tensor *w = from.tensors[i];
            if (kiln_numel(w) != kiln_numel(to.tensors[i])) {
                w = kiln_reshape(w, KILN_SHAPE(KV_HEADS, 1, WIDTH, EMBED));
                w = kiln_expand(w, KILN_SHAPE(KV_HEADS, HEADS / KV_HEADS, WIDTH, EMBED));
                w = kiln_reshape(w, KILN_SHAPE(EMBED, EMBED));
            }
            kiln_no_grad
                kiln_assign(to.tensors[i], w);
        }
        kiln_tensor *x = kiln_randint(0, VOCABULARY, KILN_SHAPE(1, LENGTH), KILN_I64);
        assert_true(kiln_read(kiln_forward(all, x), say[0], sizeof say[0]));
        assert_true(kiln_read(kiln_forward(few, x), say[1], sizeof say[1]));
    }
    for (int t = 0; t < LENGTH; t++)
        for (int v = 0; v < VOCABULARY; v++)
            assert_float_equal(say[0][t][v], say[1][t][v], 1e-6f);
    kiln_module_free(all);
    kiln_module_free(few);
}

static void published_sizes(void **state)
{
    (void)state;
    kiln_module *m = model_resnet18((model_options){.height = 224, .width = 224, .classes = 1000});
    assert_int_equal(kiln_parameter_count(m), 11689512); /* torchvision's */
    kiln_module_free(m);
    m = model_resnet50((model_options){.classes = 1000});
    assert_int_equal(kiln_parameter_count(m), 25557032);
    kiln_module_free(m);
    m = model_gpt2((model_options){.layers = 1});
    assert_int_equal(kiln_parameter_count(m), 39385344 + 7087872); /* embeddings and final norm, one block */
    kiln_module_free(m);
    m = model_bert(
        (model_options){.layers = 1}); /* embeddings and head of bert-base-uncased's masked model, one block */
    assert_int_equal(kiln_parameter_count(m), 23837184 + 622650 + 7087872);
    kiln_module_free(m);
    m = model_llama((model_options){.layers = 1, .embed = 2048, .heads = 32, .kv_heads = 4, .hidden = 5632});
    assert_int_equal(kiln_parameter_count(m), 2 * 65536000 + 2048 + 44044288); /* TinyLlama's, with one block */
    kiln_module_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(golden_runs), core_test(names_and_options), core_test(sizes),
                                       core_test(shapes),      core_test(published_sizes),   core_test(padding),
                                       core_test(shared_heads)};
    return CORE_MAIN(tests);
}
