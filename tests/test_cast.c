/* Models that are cast as a whole, and the f32 masters by which optimizers update 16-bit parameters. */
#include "core/half.h"
#include "models.h"
#include "support/files.h"
#include "support/nn.h"

/* ctest: name=eager env=KILN_EAGER=1 */

typedef kiln_tensor *T;

static const kiln_dtype floats[] = {KILN_BF16, KILN_F16, KILN_F64, KILN_F32};
enum { FLOATS = sizeof floats / sizeof *floats };

/* t's elements as f32. */
static const float *values_of(T t)
{
    const float *values = NULL;
    kiln_scope
        values = core_f32(kiln_cast(t, KILN_F32));
    return values;
}

/* v as the type can hold it. */
static float rounded(float v, kiln_dtype dtype)
{
    return dtype == KILN_BF16  ? kiln_bf16_to_f32(kiln_f32_to_bf16(v))
           : dtype == KILN_F16 ? kiln_f16_to_f32(kiln_f32_to_f16(v))
                               : v;
}

/* ---- Values ---- */

/* A sum that one kernel both casts and overwrites with what it makes of it: the cast is of what was there. A cast of a
 * cast is of what that left. */
static void test_cast_of_overwritten(void **state)
{
    static const int64_t sizes[] = {1, 5, 3000};
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 3; i++)
            kiln_scope {
                T x = core_data(1, KILN_SHAPE(sizes[i])), old = NULL, back = NULL, next = NULL;
                kiln_step {
                    T sum = kiln_cumsum(x, 0), twice = kiln_mul_scalar(sum, 2);
                    old = kiln_keep(kiln_cast(sum, floats[d]));
                    next = kiln_keep(kiln_cumsum(twice, 0));
                }
                kiln_step
                    back = kiln_keep(kiln_add_scalar(kiln_cast(kiln_cast(kiln_cumsum(x, 0), floats[d]), KILN_F32), 1));
                const float *casts = values_of(old), *again = core_f32(back), *sums = core_f32(kiln_cumsum(x, 0));
                for (int64_t k = 0; k < sizes[i]; k++) {
                    assert_true(casts[k] == rounded(sums[k], floats[d]));
                    assert_true(again[k] == rounded(sums[k], floats[d]) + 1);
                }
                kiln_release(old);
                kiln_release(back);
                kiln_release(next);
            }
}

/* ---- Casting ---- */

static void test_cast(void **state)
{
    (void)state;
    for (int d = 0; d < FLOATS; d++) {
        kiln_manual_seed(3);
        kiln_module *m = small_net();
        kiln_params all = kiln_state(m);
        T w = of(m, "0.weight"), count = of(m, "2.0.num_batches_tracked");
        train_step(m, 1);
        float before[12], gradient[12];
        memcpy(before, core_f32(w), sizeof before);
        memcpy(gradient, core_f32(kiln_grad_of(w)), sizeof gradient);
        assert_true(kiln_module_cast(m, floats[d]));
        assert_ptr_equal(kiln_state(m).tensors, all.tensors);
        for (int64_t i = 0; i < all.count; i++)
            assert_int_equal(kiln_dtype_of(all.tensors[i]), all.tensors[i] == count ? KILN_I64 : floats[d]);
        assert_int_equal(kiln_dtype_of(kiln_grad_of(w)), floats[d]);
        for (int i = 0; i < 12; i++) {
            assert_true(values_of(w)[i] == rounded(before[i], floats[d]));
            assert_true(values_of(kiln_grad_of(w))[i] == rounded(gradient[i], floats[d]));
        }
        kiln_step { /* it computes in that type, and its gradients are of it */
            T x = kiln_cast(core_data(2, KILN_SHAPE(5, 3)), floats[d]), y = kiln_forward(m, x);
            assert_non_null(y);
            assert_int_equal(kiln_dtype_of(y), floats[d]);
            assert_true(kiln_backward(kiln_sum_all(y)));
        }
        assert_true(kiln_ok());
        assert_int_equal(kiln_dtype_of(kiln_grad_of(w)), floats[d]);
        assert_true(kiln_module_cast(m, KILN_F32)); /* and back, with the digits that are left */
        for (int i = 0; i < 12; i++)
            assert_true(values_of(w)[i] == rounded(before[i], floats[d]));
        kiln_module_free(m);
    }
}

/* What does not fit is told, with what to do. */
static void test_mismatch(void **state)
{
    (void)state;
    kiln_module *nets[] = {kiln_nn_linear(4, 4),
                           kiln_nn_sequential(kiln_nn_unflatten(KILN_SHAPE(1, 4)), kiln_nn_conv1d(1, 2, 3)),
                           kiln_nn_sequential(kiln_nn_unflatten(KILN_SHAPE(1, 4)), kiln_nn_lstm(4, 4))};
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++) {
        assert_true(kiln_module_cast(nets[i], KILN_BF16));
        kiln_scope {
            T y = kiln_forward(nets[i], core_data(1, KILN_SHAPE(3, 4)));
            if (y)
                fail_msg("network %zu takes f32 in bf16", i);
            const kiln_error *e = kiln_last_error();
            bool told = e->code == KILN_E_DTYPE && strstr(e->message, "f32") && strstr(e->message, "bf16") &&
                        strstr(e->hint, "kiln_cast") && strstr(e->hint, "kiln_module_cast");
            if (!told)
                fail_msg("network %zu: %s (%s)", i, e->message, e->hint);
            kiln_error_clear();
        }
        kiln_module_free(nets[i]);
    }
}

static void test_cast_fails(void **state)
{
    (void)state;
    kiln_module *net = kiln_nn_sequential(kiln_nn_linear(4, 4), kiln_nn_linear(200, 200));
    snapshot before = state_of(kiln_module_child(net, "0"));
    assert_false(kiln_module_cast(net, KILN_I64));
    expect_error(KILN_E_DTYPE, "module_cast", "i64");
    assert_false(kiln_module_cast(net, (kiln_dtype)77));
    expect_error(KILN_E_DTYPE, "module_cast", "no dtype");
    assert_false(kiln_module_cast(NULL, KILN_F16));
    expect_error(KILN_E_ARGUMENT, "module_cast", NULL);
    kiln_device here = kiln_default_device();
    uint64_t used = core_memory();
    assert_true(kiln_memory_trim(here));
    kiln_memory_stats stats = {0};
    assert_true(kiln_memory_get_stats(here, &stats));
    assert_true(kiln_memory_set_limit(here, used + stats.overhead + 40000));
    assert_false(kiln_module_cast(net, KILN_F64)); /* no room for it */
    expect_error(KILN_E_MEMORY, NULL, NULL);
    assert_true(kiln_memory_set_limit(here, 0));
    snapshot after = state_of(kiln_module_child(net, "0"));
    assert_memory_equal(&before, &after, sizeof before);
    for (int64_t i = 0; i < kiln_state(net).count; i++)
        assert_int_equal(kiln_dtype_of(kiln_state(net).tensors[i]), KILN_F32);
    assert_true(kiln_module_cast(net, KILN_F64));
    kiln_module_free(net);
}

/* Every network of models/ in every type: a step runs, its loss is f32's up to the type's precision. */
static void test_models(void **state)
{
    (void)state;
    static const char *const small[] = {"mlp",
                                        "lenet",
                                        "autoencoder",
                                        "gpt2:layers=1,embed=16,heads=2,context=8,vocabulary=32",
                                        "llama:layers=1,embed=16,heads=4,kv_heads=2,hidden=24,vocabulary=32",
                                        "bert:layers=1,embed=16,heads=2,context=8,vocabulary=32",
                                        "vit-tiny:layers=1,embed=12,heads=3,height=8,width=8",
                                        "char-lstm:embed=8,hidden=8,vocabulary=32",
                                        "resnet18:height=8,width=8"};
    static const double precision[FLOATS] = {0.05, 0.01, 1e-4, 1e-4};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        double loss[FLOATS];
        for (int d = FLOATS; d-- > 0;) {
            char why[200];
            model_options o = {0};
            const model_entry *e = model_find(small[i], &o, why, sizeof why);
            assert_non_null(e);
            kiln_manual_seed(1);
            kiln_module *m = e->build(o);
            assert_true(m && kiln_module_cast(m, floats[d]));
            kiln_optim *optim = kiln_optim_sgd(kiln_parameters(m), .lr = 0.01);
            kiln_manual_seed(2);
            for (int step = 0; step < 2; step++)
                kiln_step {
                    T x = e->tokens
                              ? kiln_randint(0, 32, KILN_SHAPE(2, 8), KILN_I64)
                              : kiln_cast(
                                    core_data(5,
                                              KILN_SHAPE(
                                                  4, strcmp(e->name, "resnet18") && strcmp(e->name, "vit-tiny") ? 1 : 3,
                                                  o.height ? o.height : 28, o.width ? o.width : 28)),
                                    floats[d]);
                    T y = kiln_forward(m, x), l = y ? kiln_mean_all(kiln_square(kiln_cast(y, KILN_F32))) : NULL;
                    kiln_zero_grad(optim);
                    kiln_backward(l);
                    kiln_optim_step(optim);
                    if (!kiln_ok() || kiln_dtype_of(y) != floats[d])
                        fail_msg("%s in %s: %s", small[i], kiln_dtype_name(floats[d]), kiln_last_error()->message);
                    if (step == 0)
                        loss[d] = kiln_item(l);
                    assert_true(isfinite(kiln_item(l)));
                }
            if (!(fabs(loss[d] - loss[FLOATS - 1]) <= precision[d] * (1e-3 + fabs(loss[FLOATS - 1]))))
                fail_msg("%s in %s: the loss is %g instead of %g", small[i], kiln_dtype_name(floats[d]), loss[d],
                         loss[FLOATS - 1]);
            kiln_optim_free(optim);
            kiln_module_free(m);
        }
    }
}

/* ---- Masters ---- */

enum { ROWS = 6, COLUMNS = 5, N = ROWS * COLUMNS, STEPS = 5 };

static T parameter(kiln_dtype dtype, kiln_dtype by_way_of)
{
    T t = NULL;
    kiln_scope
        t = kiln_keep(kiln_cast(kiln_cast(core_data(11, KILN_SHAPE(ROWS, COLUMNS)), by_way_of), dtype));
    assert_true(kiln_eval() && kiln_requires_grad(t, true));
    return t;
}

/* A step by a gradient of 16 bits that the step's number gives. */
static void step_by(kiln_optim *o, T p, int step, kiln_dtype half)
{
    kiln_step {
        kiln_zero_grad(o);
        T g = kiln_cast(kiln_cast(core_data(100 + step, KILN_SHAPE(ROWS, COLUMNS)), half), kiln_dtype_of(p));
        assert_true(kiln_backward(kiln_sum_all(kiln_mul(p, g))));
        assert_true(kiln_optim_step(o));
    }
    assert_true(kiln_ok());
}

static T state_named(kiln_optim *o, const char *name)
{
    kiln_params s = kiln_optim_state(o);
    for (int64_t i = 0; i < s.count; i++)
        if (!strcmp(s.names[i], name))
            return s.tensors[i];
    return NULL;
}

/* The master of a 16-bit parameter, and its other state, go the way of an f32 parameter that gets the same gradients,
 * to the bit; the parameter is the master rounded. */
static void test_masters(void **state)
{
    (void)state;
    for (int h = 0; h < 2; h++)
        for (const char *const *name = kiln_optim_names(); *name; name++) {
            T wide = parameter(KILN_F32, floats[h]), narrow = parameter(floats[h], floats[h]);
            kiln_optim_options options = kiln_optim_defaults(*name);
            assert_true(options.master_weights);
            options.lr = 0.01;
            kiln_optim *a = kiln_optim_new(*name, (kiln_params){1, &wide, NULL}, &options);
            kiln_optim *b = kiln_optim_new(*name, (kiln_params){1, &narrow, NULL}, &options);
            for (int step = 0; step < STEPS; step++) {
                step_by(a, wide, step, floats[h]);
                step_by(b, narrow, step, floats[h]);
                const float *want = core_f32(wide), *master = core_f32(state_named(b, "0.master_param"));
                const float *got = values_of(narrow);
                for (int i = 0; i < N; i++)
                    if (master[i] != want[i] || got[i] != rounded(want[i], floats[h]))
                        fail_msg("%s, step %d, element %d: %.9g and %.9g instead of %.9g", *name, step, i, master[i],
                                 got[i], want[i]);
            }
            kiln_params of_a = kiln_optim_state(a), of_b = kiln_optim_state(b);
            for (int64_t i = 0; i < of_a.count; i++) {
                T t = state_named(b, of_a.names[i]);
                assert_int_equal(kiln_dtype_of(t), kiln_dtype_of(of_a.tensors[i]));
                if (kiln_dtype_of(t) == KILN_F32)
                    assert_memory_equal(core_f32(t), core_f32(of_a.tensors[i]), (size_t)kiln_numel(t) * sizeof(float));
            }
            assert_int_equal(of_b.count, of_a.count ? of_a.count + 1 : 2);
            kiln_optim_free(a);
            kiln_optim_free(b);
            kiln_release(wide);
            kiln_release(narrow);
        }
}

/* Steps that a 16-bit weight is too coarse for add up with a master, and are lost without. */
static void test_small_steps(void **state)
{
    (void)state;
    for (int master = 0; master < 2; master++) {
        T w = kiln_keep(kiln_ones(KILN_SHAPE(4), KILN_BF16));
        assert_true(kiln_eval() && kiln_requires_grad(w, true));
        kiln_optim_options options = kiln_optim_defaults("sgd");
        options.lr = 1e-3;
        options.master_weights = master;
        kiln_optim *o = kiln_optim_new("sgd", (kiln_params){1, &w, NULL}, &options);
        for (int step = 0; step < 64; step++)
            kiln_step {
                kiln_zero_grad(o);
                assert_true(kiln_backward(kiln_sum_all(w)) && kiln_optim_step(o));
            }
        float want = master ? rounded(1 - 0.064f, KILN_BF16) : 1;
        for (int i = 0; i < 4; i++)
            assert_true(values_of(w)[i] == want);
        assert_int_equal(kiln_optim_state(o).count, master ? 2 : 0);
        kiln_optim_free(o);
        kiln_release(w);
    }
}

/* Whoever changes the parameter is followed, where it was changed; what was not keeps its digits. */
static void test_changed_elsewhere(void **state)
{
    (void)state;
    T p = parameter(KILN_BF16, KILN_BF16);
    kiln_optim *o = kiln_optim_sgd(((kiln_params){1, &p, NULL}), .lr = 1e-3);
    assert_memory_equal(core_f32(state_named(o, "0.master_param")), values_of(p),
                        N * sizeof(float)); /* from the start */
    step_by(o, p, 0, KILN_BF16);
    float master[N];
    memcpy(master, core_f32(state_named(o, "0.master_param")), sizeof master);
    kiln_step
        kiln_no_grad
            kiln_assign(kiln_select(p, 0, 1), kiln_cast(kiln_full(KILN_SHAPE(COLUMNS), 3, KILN_F32), KILN_BF16));
    kiln_step {
        kiln_zero_grad(o);
        assert_true(kiln_backward(kiln_mul_scalar(kiln_sum_all(p), 0)) && kiln_optim_step(o));
    }
    const float *now = core_f32(state_named(o, "0.master_param"));
    for (int i = 0; i < N; i++)
        assert_true(now[i] == (i / COLUMNS == 1 ? 3 : master[i]));
    kiln_optim_free(o);
    kiln_release(p);
}

/* An optimizer that has state already goes on after a cast, down and up. */
static void test_cast_under_optimizer(void **state)
{
    (void)state;
    for (int d = 0; d < FLOATS; d++) {
        kiln_module *m = kiln_nn_linear(3, 2);
        T w = of(m, "weight");
        kiln_optim *o = kiln_optim_adam(kiln_parameters(m), .lr = 0.01);
        kiln_dtype now = KILN_F32;
        float average[6] = {0};
        for (int step = 0; step < 6; step++) {
            if (step % 2 == 0 && step) {
                now = step == 2 ? floats[d] : KILN_F32;
                assert_true(kiln_module_cast(m, now));
                memcpy(average, values_of(state_named(o, "weight.exp_avg")), sizeof average);
            }
            kiln_step {
                kiln_zero_grad(o);
                T x = kiln_cast(core_data(step, KILN_SHAPE(4, 3)), now);
                T loss = kiln_sum_all(kiln_square(kiln_cast(kiln_forward(m, x), KILN_F32)));
                assert_true(kiln_backward(loss) && kiln_optim_step(o));
            }
            assert_true(kiln_ok());
            bool half = now == KILN_BF16 || now == KILN_F16;
            assert_int_equal(kiln_dtype_of(w), now);
            assert_int_equal(kiln_dtype_of(state_named(o, "weight.exp_avg")), half ? KILN_F32 : now);
            assert_true(half == (state_named(o, "weight.master_param") != NULL));
            if (step == 2) /* it went on from what it was: nine tenths of it are there. The gradient is seen rounded */
                for (int i = 0; i < 6; i++)
                    assert_near(values_of(state_named(o, "weight.exp_avg"))[i],
                                0.9f * average[i] + 0.1f * values_of(kiln_grad_of(w))[i], half ? 1e-3 : 1e-6);
        }
        assert_int_equal(kiln_optim_steps(o), 6);
        kiln_optim_free(o);
        kiln_module_free(m);
    }
}

/* A step that is discarded leaves masters and parameters as they were, also the first one. */
static void test_discarded(void **state)
{
    (void)state;
    skip_if_eager();
    T p = parameter(KILN_F16, KILN_F16), twin = parameter(KILN_F16, KILN_F16);
    kiln_optim *o = kiln_optim_adam(((kiln_params){1, &p, NULL})),
               *q = kiln_optim_adam(((kiln_params){1, &twin, NULL}));
    for (int step = 0; step < 3; step++) {
        kiln_step {
            assert_true(kiln_backward(kiln_sum_all(kiln_square(p))) && kiln_optim_step(o));
            kiln_discard();
        }
        kiln_zero_grad(o);
        step_by(o, p, step, KILN_F16);
        step_by(q, twin, step, KILN_F16);
    }
    float want[N];
    memcpy(want, core_f32(state_named(q, "0.master_param")), sizeof want);
    assert_memory_equal(core_f32(state_named(o, "0.master_param")), want, sizeof want);
    kiln_optim_free(o);
    kiln_optim_free(q);
    kiln_release(p);
    kiln_release(twin);
}

/* ---- Averages, checkpoints ---- */

/* Averages of 16-bit weights have f32's digits, and keep them when they change places twice. */
static void test_ema(void **state)
{
    (void)state;
    kiln_module *m = kiln_nn_linear(3, 2);
    assert_true(kiln_module_cast(m, KILN_BF16));
    T w = of(m, "weight");
    kiln_ema *e = kiln_ema_new(m, 0.9);
    float want[6], weights[6];
    memcpy(want, values_of(w), sizeof want);
    for (int step = 0; step < 4; step++) {
        kiln_step
            kiln_no_grad
                kiln_assign(w, kiln_cast(core_data(step, KILN_SHAPE(2, 3)), KILN_BF16));
        assert_true(kiln_ema_update(e));
        for (int i = 0; i < 6; i++)
            want[i] += (values_of(w)[i] - want[i]) * (float)(1 - 0.9);
    }
    memcpy(weights, values_of(w), sizeof weights);
    T average = kiln_ema_state(e).tensors[0];
    assert_int_equal(kiln_dtype_of(average), KILN_F32);
    float kept[6];
    memcpy(kept, core_f32(average), sizeof kept);
    for (int i = 0; i < 6; i++)
        assert_near(kept[i], want[i], 1e-6);
    for (int turn = 0; turn < 2; turn++) {
        assert_true(kiln_ema_swap(e));
        for (int i = 0; i < 6; i++) {
            assert_true(values_of(w)[i] == rounded(kept[i], KILN_BF16));
            assert_true(core_f32(average)[i] == weights[i]);
        }
        assert_true(kiln_ema_swap(e));
        assert_memory_equal(values_of(w), weights, sizeof weights);
        assert_memory_equal(core_f32(average), kept, sizeof kept);
    }
    assert_true(kiln_module_cast(m, KILN_F64)); /* the average follows */
    assert_int_equal(kiln_dtype_of(kiln_ema_state(e).tensors[0]), KILN_F64);
    assert_true(kiln_ema_update(e) && kiln_ema_swap(e));
    kiln_ema_free(e);
    kiln_module_free(m);
}

typedef struct run {
    kiln_module *model;
    kiln_optim *optim;
    kiln_ema *ema;
} run;

static run begin_run(void)
{
    kiln_manual_seed(9);
    run r = {.model = small_net()};
    assert_true(kiln_module_cast(r.model, KILN_BF16));
    r.optim = kiln_optim_adamw(kiln_parameters(r.model), .lr = 1e-3);
    r.ema = kiln_ema_new(r.model, 0.9);
    return r;
}

static void train_run(run *r, int from, int to)
{
    for (int step = from; step < to; step++)
        kiln_step {
            kiln_zero_grad(r->optim);
            T y = kiln_forward(r->model, kiln_cast(core_data(step, KILN_SHAPE(5, 3)), KILN_BF16));
            kiln_backward(kiln_sum_all(kiln_square(y)));
            kiln_optim_step(r->optim);
            kiln_ema_update(r->ema);
        }
    assert_true(kiln_ok());
}

static void end_run(run *r)
{
    kiln_ema_free(r->ema);
    kiln_optim_free(r->optim);
    kiln_module_free(r->model);
}

static void assert_same_bits(kiln_params a, kiln_params b)
{
    assert_int_equal(a.count, b.count);
    for (int64_t i = 0; i < a.count; i++) {
        char x[1024], y[1024];
        size_t bytes = (size_t)kiln_numel(a.tensors[i]) * kiln_dtype_size(kiln_dtype_of(a.tensors[i]));
        assert_true(bytes <= sizeof x && kiln_read(a.tensors[i], x, bytes) && kiln_read(b.tensors[i], y, bytes));
        if (memcmp(x, y, bytes))
            fail_msg("%s differs", a.names[i]);
    }
}

/* A checkpoint holds the masters: a resumed run has the bits of one that was never stopped. */
static void test_checkpoint(void **state)
{
    (void)state;
    run whole = begin_run(), first = begin_run();
    train_run(&whole, 0, 8);
    train_run(&first, 0, 4);
    kiln_checkpoint c = {.model = first.model, .optim = first.optim, .ema = first.ema, .step = 4};
    assert_true(kiln_checkpoint_save(files_folder, &c, 1));
    end_run(&first);
    run second = begin_run();
    c = (kiln_checkpoint){.model = second.model, .optim = second.optim, .ema = second.ema};
    assert_true(kiln_checkpoint_load(files_folder, &c));
    train_run(&second, 4, 8);
    assert_same_bits(kiln_state(whole.model), kiln_state(second.model));
    assert_same_bits(kiln_optim_state(whole.optim), kiln_optim_state(second.optim));
    assert_same_bits(kiln_ema_state(whole.ema), kiln_ema_state(second.ema));
    end_run(&whole);
    end_run(&second);
}

/* fit trains a model that was cast, from data of its type, and resumes to the bit. */
static void fit_run(kiln_module **m, kiln_optim **o, const char *folder, int64_t epochs, kiln_dataset *d)
{
    kiln_manual_seed(3);
    *m = kiln_nn_sequential(kiln_nn_linear(8, 16), kiln_nn_relu(), kiln_nn_linear(16, 4));
    assert_true(kiln_module_cast(*m, KILN_BF16));
    *o = kiln_optim_adam(kiln_parameters(*m), .lr = 1e-2);
    kiln_history h = kiln_fit(*m, d, .epochs = epochs, .batch = 16, .optim = *o, .loss = KILN_CROSS_ENTROPY,
                              .checkpoint = folder, .resume = true);
    if (!kiln_ok())
        fail_msg("%s (%s)", kiln_last_error()->message, kiln_last_error()->hint);
    assert_true(h.count == epochs && h.epochs[epochs - 1].train.loss < h.epochs[0].train.loss);
    kiln_history_free(&h);
}

static void test_fit(void **state)
{
    (void)state;
    T x = NULL, y = NULL;
    kiln_scope {
        kiln_manual_seed(8);
        x = kiln_keep(kiln_cast(kiln_randn(KILN_SHAPE(64, 8), KILN_F32), KILN_BF16));
        y = kiln_keep(kiln_argmax(kiln_slice(x, 1, 0, 4, 1), 1, false));
    }
    assert_true(kiln_eval());
    kiln_dataset *d = kiln_data_tensors(x, y);
    assert_non_null(d);
    kiln_module *m[3];
    kiln_optim *o[3];
    fit_run(&m[0], &o[0], files_path("whole"), 6, d);
    fit_run(&m[1], &o[1], files_path("parts"), 3, d);
    fit_run(&m[2], &o[2], files_path("parts"), 6, d);
    assert_same_bits(kiln_state(m[0]), kiln_state(m[2]));
    assert_same_bits(kiln_optim_state(o[0]), kiln_optim_state(o[2]));
    for (int i = 0; i < 3; i++) {
        kiln_optim_free(o[i]);
        kiln_module_free(m[i]);
    }
    kiln_data_free(d);
    kiln_release(x);
    kiln_release(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_cast_of_overwritten),
                                       core_test(test_cast),
                                       core_test(test_mismatch),
                                       core_test(test_cast_fails),
                                       core_test(test_models),
                                       core_test(test_masters),
                                       core_test(test_small_steps),
                                       core_test(test_changed_elsewhere),
                                       core_test(test_cast_under_optimizer),
                                       core_test(test_discarded),
                                       core_test(test_ema),
                                       files_test(test_checkpoint),
                                       files_test(test_fit)};
    return CORE_MAIN(tests);
}
