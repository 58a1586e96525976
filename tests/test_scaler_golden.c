/* Training in mixed precision beside PyTorch's autocast and GradScaler on a GPU (golden/scaler.txt, made by
 * make_scaler.py): the scale's history and the steps that are left out are the same, losses as near as those of
 * PyTorch's own runs are to each other. */
#include <inttypes.h>
#include "models.h"
#include "support/by_formula.h"
#include "support/core.h"
#include "support/optim_with.h"
#include "support/where.h"

enum { STEPS = 14 };

static bool is_forced(int step)
{
    return step == 6 || step == 11;
}

typedef struct golden {
    char spec[128], type[16], optimizer[16];
    double lr;
    int64_t shape[4];
    int ndim;
    double off; /* how far rounding moves a loss, at most */
    struct golden_step {
        double loss, scale, off;
        int left_out;
    } steps[STEPS];
} golden;

static bool read_golden(FILE *f, golden *g)
{
    char line[512];
    memset(g, 0, sizeof *g);
    if (!fgets(line, sizeof line, f) ||
        sscanf(line, "model %127s %15s %15s %lf %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64, g->spec, g->type,
               g->optimizer, &g->lr, &g->shape[0], &g->shape[1], &g->shape[2], &g->shape[3]) < 6)
        return false;
    g->ndim = g->shape[2] ? 4 : 2;
    for (int i = 0; i < STEPS; i++) {
        if (!fgets(line, sizeof line, f) || sscanf(line, "step %lf %lf %d %lf", &g->steps[i].loss, &g->steps[i].scale,
                                                   &g->steps[i].left_out, &g->steps[i].off) != 4)
            return false;
        g->off = fmax(g->off, g->steps[i].off);
    }
    return true;
}

static kiln_tensor *loss_of(kiln_module *m, const golden *g, int step)
{
    kiln_tensor *x, *y, *loss = NULL;
    make_batch(g->shape, g->ndim, step, &x, &y);
    kiln_autocast (strcmp(g->type, "float16") ? KILN_BF16 : KILN_F16) {
        kiln_tensor *out = kiln_forward(m, x);
        if (g->ndim == 2) {
            out = kiln_reshape(out, KILN_SHAPE(-1, kiln_size(out, -1)));
            y = kiln_reshape(y, KILN_SHAPE(-1));
        }
        loss = kiln_cross_entropy(out, y);
    }
    return loss;
}

static double train_step(kiln_module *m, kiln_optim *o, kiln_scaler *s, const golden *g, int step)
{
    kiln_tensor *loss = NULL;
    bool half = !strcmp(g->type, "float16");
    kiln_step {
        loss = kiln_keep(loss_of(m, g, step));
        kiln_zero_grad(o);
        kiln_backward(kiln_scaler_scale(s, kiln_mul_scalar(loss, half && is_forced(step) ? INFINITY : 1)));
        kiln_scaler_step(s, o);
        kiln_scaler_update(s);
    }
    double value = kiln_item(loss);
    kiln_release(loss);
    return value;
}

static void check_run(const golden *g)
{
    char why[200];
    model_options options = {0};
    const model_entry *entry = model_find(g->spec, &options, why, sizeof why);
    assert_non_null(entry);
    kiln_module *m = entry->build(options);
    kiln_params p = kiln_parameters(m);
    for (int64_t i = 0; i < p.count; i++) {
        float *values = initial(p.tensors[i], p.names[i], (uint32_t)i);
        assert_true(kiln_write(p.tensors[i], values, (size_t)kiln_numel(p.tensors[i]) * sizeof(float)));
        free(values);
    }
    double momentum = strcmp(g->optimizer, "sgd") == 0 ? 0.9 : 0, worst = 0;
    kiln_optim *o = optim_with(g->optimizer, p, (kiln_optim_options){.lr = g->lr, .momentum = momentum});
    kiln_scaler *s = kiln_scaler_new(.init_scale = 0x1p40, .backoff_factor = 0x1p-13, .growth_interval = 3,
                                     .disabled = strcmp(g->type, "float16") != 0);
    assert_true(kiln_ok());
    for (int step = 0, left_out = 0; step < STEPS; step++) {
        const struct golden_step *want = &g->steps[step];
        double loss = train_step(m, o, s, g, step), off = fabs(loss - want->loss);
        kiln_scaler_state state = kiln_scaler_get(s);
        left_out += want->left_out;
        if (state.scale != want->scale || state.skipped != left_out)
            fail_msg("%s in %s, step %d: scale %g instead of %g, %lld steps left out instead of %d", g->spec, g->type,
                     step, state.scale, want->scale, (long long)state.skipped, left_out);
        if (!(off <= 3 * g->off + 1e-4 * want->loss))
            fail_msg("%s in %s on %s: loss %.7g in step %d, PyTorch's is %.7g ± %.2g", g->spec, g->type,
                     kiln_device_name(kiln_default_device()), loss, step, want->loss, g->off);
        worst = fmax(worst, off / want->loss);
    }
    print_message("%s in %s on %s: losses within %.1e of PyTorch's\n", g->spec, g->type,
                  kiln_device_name(kiln_default_device()), worst);
    kiln_scaler_free(s);
    kiln_optim_free(o);
    kiln_module_free(m);
}

static void golden_runs(void **state)
{
    (void)state;
    FILE *f = fopen(test_file("golden/scaler.txt"), "r");
    assert_non_null(f);
    golden g;
    int runs = 0;
    for (; read_golden(f, &g); runs++)
        check_run(&g);
    fclose(f);
    assert_int_equal(runs, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(golden_runs)};
    return CORE_MAIN(tests);
}
