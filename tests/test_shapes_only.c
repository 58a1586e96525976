/* kiln_shapes_only: modules whose tensors have a shape and no memory, steps that are planned with them, what is
 * refused, and how they get values after all. */
#include "models.h"
#include "support/files.h"

/* ctest: name=eager env=KILN_EAGER=1 */

enum {
    LIMIT = 1 << 20
}; /* bytes: all that a test may take beside what a device takes for itself, where models are made that no machine could
      hold */

static int limit_memory(void **state)
{
    kiln_memory_stats stats = {0};
    bool ok = core_before(state) == 0 && kiln_memory_get_stats(kiln_default_device(), &stats);
    return !ok || !kiln_memory_set_limit(kiln_default_device(), stats.overhead + LIMIT);
}

static int unlimit_memory(void **state)
{
    bool ok = kiln_memory_set_limit(kiln_default_device(), 0);
    return core_after(state) || !ok;
}

#define limited_test(f) cmocka_unit_test_setup_teardown(f, limit_memory, unlimit_memory)

/* 175 billion weights. */
static kiln_module *huge_model(void)
{
    kiln_module *m = NULL;
    kiln_shapes_only
        m = model_gpt2((model_options){.layers = 96, .embed = 12288, .heads = 96, .context = 2048});
    assert_non_null(m);
    return m;
}

static kiln_module *small_model(void)
{
    return model_gpt2((model_options){.layers = 2, .embed = 16, .heads = 2, .context = 8, .vocabulary = 32});
}

static kiln_module *small_shapes(void)
{
    kiln_module *m = NULL;
    kiln_shapes_only
        m = small_model();
    assert_non_null(m);
    return m;
}

/* One training step on tokens [batch, length]. */
static void record(kiln_module *m, kiln_optim *o, int64_t batch, int64_t length)
{
    kiln_tensor *x = kiln_zeros(KILN_SHAPE(batch, length), KILN_I64), *y = kiln_forward(m, x);
    kiln_zero_grad(o);
    assert_true(kiln_backward(
        kiln_cross_entropy(kiln_reshape(y, KILN_SHAPE(-1, kiln_size(y, -1))), kiln_reshape(x, KILN_SHAPE(-1)))));
    assert_true(kiln_optim_step(o));
}

static kiln_plan_info plan_step(kiln_module *m, kiln_optim *o, int64_t batch, int64_t length, char **text)
{
    kiln_plan_info info = {0};
    kiln_step {
        record(m, o, batch, length);
        assert_true(kiln_plan_pending(&info));
        *text = kiln_plan_describe();
        kiln_discard();
    }
    return info;
}

static void assert_same_plan(kiln_plan_info a, kiln_plan_info b)
{
    assert_memory_equal(&a, &b, offsetof(kiln_plan_info, replayed));
}

/* ---- Planning ---- */

/* The plan is that of a model that is there, to the last kernel. */
static void test_same_plan(void **state)
{
    (void)state;
    skip_if_eager();
    kiln_module *there = small_model(), *shapes = small_shapes();
    for (const char *const *name = kiln_optim_names(); *name; name++) {
        char *text = NULL, *other = NULL;
        kiln_optim *o = kiln_optim_new(*name, kiln_parameters(there), NULL);
        kiln_optim *p = kiln_optim_new(*name, kiln_parameters(shapes), NULL);
        kiln_plan_cache_set_capacity(0); /* each makes its own */
        kiln_plan_info first = plan_step(there, o, 3, 8, &text);
        assert_same_plan(plan_step(shapes, p, 3, 8, &other), first);
        kiln_plan_cache_set_capacity(INT64_MAX);
        assert_true(first.peak_bytes > 0 && first.flops > 0);
        assert_string_equal(text, other);
        kiln_string_free(text);
        kiln_string_free(other);
        kiln_optim_free(o);
        kiln_optim_free(p);
    }
    kiln_module_free(there);
    kiln_module_free(shapes);
}

/* A step of any size, in no memory: the optimizer's state and its receipts have none either. */
static void test_huge_plan(void **state)
{
    (void)state;
    skip_if_eager();
    kiln_module *m = huge_model();
    kiln_optim *o = kiln_optim_adam(kiln_parameters(m), .lr = 1e-3);
    char *text = NULL;
    assert_true(kiln_parameter_count(m) > (int64_t)170e9);
    kiln_plan_info info = plan_step(m, o, 8, 2048, &text);
    assert_true(info.peak_bytes > (int64_t)4 * kiln_parameter_count(m));
    assert_non_null(strstr(text, "matmul"));
    assert_true(core_memory() < LIMIT);
    kiln_string_free(text);
    kiln_optim_free(o);
    kiln_module_free(m);
    assert_true(kiln_ok());
}

/* Inside the block a step can also end: then it has taken place, with shapes. */
static void test_step_inside(void **state)
{
    (void)state;
    kiln_module *m = NULL;
    kiln_optim *o = NULL;
    kiln_shapes_only {
        m = model_gpt2((model_options){.layers = 2, .embed = 65536, .heads = 2, .context = 2048});
        o = kiln_optim_adam(kiln_parameters(m), .lr = 1e-3);
        for (int i = 0; i < 3; i++)
            kiln_step
                record(m, o, 1 << 20, 2048);
        assert_int_equal(kiln_optim_steps(o), 3);
        assert_true(kiln_is_shape_only(kiln_grad_of(kiln_parameters(m).tensors[0])));
        kiln_params s = kiln_optim_state(o);
        for (int64_t i = 0; i < s.count; i++)
            assert_true(kiln_is_shape_only(s.tensors[i]));
        assert_int_equal(core_memory(), 0);
    }
    kiln_optim_free(o);
    kiln_module_free(m);
}

static void test_looking(void **state)
{
    (void)state;
    kiln_module *m = huge_model();
    int ndim;
    int64_t shape[KILN_MAX_DIMS];
    assert_true(kiln_module_shape(m, KILN_SHAPE(4, 2048), KILN_I64, &ndim, shape));
    assert_int_equal(ndim, 3);
    assert_int_equal(shape[2], 50257);
    char *table = kiln_summary(m, KILN_SHAPE(4, 2048), KILN_I64);
    assert_non_null(table);
    assert_non_null(strstr(table, "50257"));
    kiln_string_free(table);
    kiln_params p = kiln_state(m);
    for (int64_t i = 0; i < p.count; i++) {
        assert_true(kiln_is_shape_only(p.tensors[i]));
        assert_int_equal(kiln_device_of(p.tensors[i]), kiln_default_device());
    }
    assert_int_equal(core_memory(), 0);
    kiln_module_free(m);
}

/* Parameters and states have owners: many of them are no loop that nobody cleans up after. */
static void test_deep_model(void **state)
{
    (void)state;
    kiln_module *m = NULL;
    while (kiln_next_notice())
        continue;
    kiln_shapes_only
        m = model_gpt2((model_options){.layers = 200, .embed = 16, .heads = 1, .context = 8});
    kiln_optim *o = kiln_optim_adam(kiln_parameters(m), .lr = 1e-3);
    assert_true(kiln_optim_state(o).count > 4096);
    assert_null(kiln_next_notice());
    kiln_optim_free(o);
    kiln_module_free(m);
}

/* Sums end at 64 bits, and what they cannot count is refused. */
static void test_more_than_can_be_counted(void **state)
{
    (void)state;
    skip_if_eager();
    enum { WIDE = 1 << 29 }; /* a square of them takes 2^60 bytes in f32 */
    kiln_plan_info info = {0};
    kiln_tensor *a = NULL, *b = NULL;
    kiln_shapes_only {
        a = kiln_keep(kiln_zeros(KILN_SHAPE(WIDE, 1 << 24), KILN_F32));
        b = kiln_keep(kiln_zeros(KILN_SHAPE(1 << 24, WIDE), KILN_F32));
    }
    kiln_step {
        kiln_tensor *y = kiln_keep(kiln_sum_all(kiln_matmul(a, b)));
        assert_true(kiln_plan_pending(&info));
        assert_true(info.flops == INT64_MAX);
        kiln_discard();
        kiln_release(y);
    }
    kiln_step {
        kiln_tensor *y = kiln_matmul(a, b);
        for (int i = 0; i < 4; i++)
            y = kiln_matmul(y, y);
        assert_non_null(kiln_keep(y));
        assert_false(kiln_plan_pending(&info));
        expect_error(KILN_E_MEMORY, "step", "EiB");
        kiln_discard();
        kiln_release(y);
    }
    kiln_release(a);
    kiln_release(b);
}

/* Looks at a step whose tensors no machine could hold; how long it would take is known. */
static void look_at(kiln_tensor *y)
{
    kiln_plan_info info = {0};
    assert_non_null(kiln_keep(y));
    assert_true(kiln_plan_pending(&info));
    assert_true(info.flops > 0);
    kiln_discard();
    kiln_release(y);
}

/* Libraries are not asked what their own counting has no room for. */
static void test_larger_than_libraries_count(void **state)
{
    (void)state;
    skip_if_eager();
    static const int products[][3] = {/* m, k, n: powers of two */
                                      {29, 24, 29}, {24, 24, 24}, {20, 20, 20}, {40, 0, 0},  {0, 40, 0}, {0, 0, 40},
                                      {33, 2, 2},   {2, 33, 2},   {2, 2, 33},   {28, 1, 14}, {32, 4, 16}};
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        const int64_t m = INT64_C(1) << products[i][0], k = INT64_C(1) << products[i][1],
                      n = INT64_C(1) << products[i][2];
        kiln_step {
            kiln_tensor *a = NULL, *b = NULL;
            kiln_shapes_only {
                a = kiln_zeros(KILN_SHAPE(m, k), KILN_F32);
                b = kiln_zeros(KILN_SHAPE(k, n), KILN_F32);
            }
            look_at(kiln_matmul(a, b));
        }
    }
    kiln_step {
        kiln_tensor *x = NULL, *w = NULL;
        kiln_shapes_only {
            x = kiln_zeros(KILN_SHAPE(1, 1, 1 << 28, 1 << 28), KILN_F32);
            w = kiln_zeros(KILN_SHAPE(2, 1, 3, 3), KILN_F32);
        }
        look_at(kiln_conv2d(x, w, NULL));
    }
}

/* ---- What is refused ---- */

static void test_reading(void **state)
{
    (void)state;
    float one;
    kiln_scope {
        kiln_tensor *t = NULL, *column = NULL;
        kiln_shapes_only {
            t = kiln_set_name(kiln_full(KILN_SHAPE(2, 3), 7, KILN_F32), "scales");
            column = kiln_select(t, 1, 0);
        }
        assert_true(kiln_is_shape_only(t) && kiln_is_shape_only(column));
        assert_false(kiln_read(t, (float[6]){0}, 24));
        expect_error(KILN_E_STATE, "read", "scales [2, 3] has only a shape");
        assert_false(kiln_read(column, (float[2]){0}, 8));
        expect_error(KILN_E_STATE, "read", "[2] has only a shape");
        assert_null(kiln_to_string(t));
        expect_error(KILN_E_STATE, NULL, "has only a shape");
        assert_true(isnan(kiln_item(kiln_sum_all(t))));
        expect_error(KILN_E_STATE, NULL, "scales [2, 3] has only a shape");
        kiln_shapes_only
            assert_false(kiln_read(kiln_ones(0, NULL, KILN_F32), &one, sizeof one));
        expect_error(KILN_E_STATE, "read", "has only a shape");
    }
}

static void test_running(void **state)
{
    (void)state;
    kiln_module *m = small_shapes();
    kiln_optim *o = kiln_optim_sgd(kiln_parameters(m), .lr = 0.1);
    kiln_scope {
        kiln_tensor *x = kiln_zeros(KILN_SHAPE(1, 8), KILN_I64);
        kiln_tensor *seen = kiln_keep(kiln_full(KILN_SHAPE(1), 3, KILN_F32));
        kiln_no_grad
            kiln_step {
                kiln_tensor *y = kiln_forward(m, x);
                kiln_assign(seen, kiln_full(KILN_SHAPE(1), 4, KILN_F32));
                (void)y;
            }
        expect_error(KILN_E_STATE, NULL, "wpe.weight [8, 16] has only a shape");
        assert_f32(seen, 3);
        assert_int_equal(kiln_optim_steps(o), 0);
        kiln_release(seen);
    }
    assert_false(kiln_module_save(m, files_path("never.safetensors")));
    expect_error(KILN_E_STATE, NULL, "has only a shape");
    assert_int_equal(access(files_path("never.safetensors"), F_OK), -1);
    kiln_optim_free(o);
    kiln_module_free(m);
}

/* Inside the block nothing is computed, so nothing that has memory may change, be loaded or be trained. */
static void test_inside(void **state)
{
    (void)state;
    kiln_module *m = small_model();
    kiln_scope {
        kiln_tensor *t = kiln_full(KILN_SHAPE(2), 5, KILN_F32), *sum = NULL;
        kiln_shapes_only {
            assert_false(kiln_assign(t, kiln_zeros(KILN_SHAPE(2), KILN_F32)));
            expect_error(KILN_E_STATE, "assign", "[2] has memory");
            assert_false(kiln_is_shape_only(t));
            sum = kiln_add(t, t); /* reads memory, makes none */
            assert_null(kiln_predict(m, NULL, 0));
            kiln_error_clear();
        }
        assert_true(kiln_is_shape_only(sum));
        assert_f32(t, 5, 5);
        kiln_shapes_only
            kiln_shapes_only
                sum = kiln_add(t, t);
        assert_f32(kiln_add(t, t), 10, 10);
    }
    assert_true(kiln_module_save(m, files_path("shapes.safetensors")));
    kiln_shapes_only
        assert_false(kiln_module_load(m, files_path("shapes.safetensors"), false));
    expect_error(KILN_E_STATE, NULL, "nothing is computed inside kiln_shapes_only");
    kiln_scope {
        kiln_dataset *data = kiln_data_tensors(kiln_zeros(KILN_SHAPE(4, 8), KILN_I64), NULL);
        assert_non_null(data);
        kiln_shapes_only
            assert_null(kiln_predict(m, data, 0));
        expect_error(KILN_E_STATE, "predict", "nothing is computed");
        kiln_data_free(data);
    }
    kiln_module_free(m);
}

static kiln_tensor *leave_early(void)
{
    kiln_shapes_only
        return kiln_ones(KILN_SHAPE(2), KILN_F32);
    return NULL;
}

static void test_block_ends(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *before = kiln_full(KILN_SHAPE(1), 2, KILN_F32), *shape = leave_early();
        assert_true(kiln_is_shape_only(shape));
        assert_f32(before, 2); /* what was written before the block was computed */
        assert_f32(kiln_ones(KILN_SHAPE(2), KILN_F32), 1, 1);
        kiln_shapes_only
            break;
        kiln_error_clear();
        while (kiln_next_notice())
            continue;
        assert_f32(kiln_ones(KILN_SHAPE(2), KILN_F32), 1, 1);
    }
    assert_false(kiln_is_shape_only(NULL));
}

static void test_no_such_device(void **state)
{
    (void)state;
    kiln_shapes_only {
        assert_null(kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(2), (kiln_device)12345));
        expect_error(KILN_E_DEVICE, NULL, NULL);
        assert_null(kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(-2), KILN_CPU));
        expect_error(KILN_E_SHAPE, NULL, NULL);
    }
}

/* ---- Values after all ---- */

static void test_initialising(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *t = NULL, *whole = NULL;
        kiln_shapes_only {
            t = kiln_zeros(KILN_SHAPE(3, 4), KILN_F32);
            assert_ptr_equal(kiln_init_normal(t, 0, 1), t);
            assert_ptr_equal(kiln_init_orthogonal(t, 1), t);
            whole = kiln_zeros(KILN_SHAPE(2), KILN_F32);
        }
        assert_true(kiln_is_shape_only(t));
        assert_ptr_equal(kiln_init_constant(t, 2), t);
        assert_false(kiln_is_shape_only(t));
        assert_near(kiln_item(kiln_sum_all(t)), 24, 0);
        assert_true(kiln_write(whole, (float[]){1, 2}, 8));
        assert_f32(whole, 1, 2);
        assert_false(kiln_is_shape_only(whole));
    }
}

/* A part of a tensor does not make it whole. */
static void test_part_assigned(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *t = NULL;
        kiln_shapes_only
            t = kiln_zeros(KILN_SHAPE(2, 2), KILN_F32);
        assert_false(kiln_assign(kiln_select(t, 0, 1), kiln_ones(KILN_SHAPE(2), KILN_F32)) && kiln_eval());
        expect_error(KILN_E_STATE, NULL, "has only a shape");
        assert_true(kiln_is_shape_only(t));
    }
}

/* Memory that a step takes for it goes back when the step fails. */
static void test_assignment_fails(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *t = NULL, *indices = kiln_full(KILN_SHAPE(1), 9, KILN_I64);
        kiln_shapes_only
            t = kiln_zeros(KILN_SHAPE(1, 256), KILN_F32);
        assert_true(kiln_eval());
        uint64_t before = core_memory();
        kiln_step {
            kiln_tensor *table = kiln_zeros(KILN_SHAPE(4, 256), KILN_F32);
            kiln_assign(t, kiln_index_select(table, 0, indices));
        }
        kiln_device_wait(kiln_default_device());
        assert_false(kiln_ok());
        kiln_error_clear();
        assert_false(kiln_read(t, (float[256]){0}, 1024));
        expect_error(KILN_E_STATE, NULL, NULL);
        if (core_on("cpu")) { /* elsewhere it fails when the step has been left: then it has memory and no value */
            assert_true(kiln_is_shape_only(t));
            assert_int_equal(core_memory(), before);
        }
        kiln_init_constant(t, 1);
        assert_near(kiln_item(kiln_sum_all(t)), 256, 0);
    }
}

static void test_loading(void **state)
{
    (void)state;
    kiln_module *there = small_model(), *m = small_shapes();
    kiln_optim *o = kiln_optim_adam(kiln_parameters(m), .lr = 1e-3);
    assert_int_equal(kiln_optim_state(o).count, 2 * kiln_parameters(m).count + 1);
    assert_true(kiln_module_save(there, files_path("shapes.safetensors")));
    assert_true(kiln_module_load(m, files_path("shapes.safetensors"), false));
    core_same_tensors(kiln_state(m), kiln_state(there));
    kiln_step
        record(m, o, 2, 8); /* its state begins with the parameters' values */
    assert_true(kiln_ok());
    assert_int_equal(kiln_optim_steps(o), 1);
    kiln_optim *p = kiln_optim_adam(kiln_parameters(there), .lr = 1e-3);
    kiln_step
        record(there, p, 2, 8);
    core_same_tensors(kiln_state(m), kiln_state(there));
    kiln_optim_free(o);
    kiln_optim_free(p);
    kiln_module_free(m);
    kiln_module_free(there);
}

static void test_moving(void **state)
{
    (void)state;
    kiln_module *m = NULL;
    kiln_on_device (KILN_CPU)
        m = huge_model();
    kiln_optim *o = kiln_optim_adam(kiln_parameters(m), .lr = 1e-3);
    kiln_optim_state(o);
    assert_true(kiln_module_to(m, kiln_default_device()));
    kiln_params p = kiln_state(m);
    for (int64_t i = 0; i < p.count; i++)
        assert_true(kiln_is_shape_only(p.tensors[i]) && kiln_device_of(p.tensors[i]) == kiln_default_device());
    kiln_params s = kiln_optim_state(o);
    for (int64_t i = 0; i + 1 < s.count; i++)
        assert_true(kiln_is_shape_only(s.tensors[i]) && kiln_device_of(s.tensors[i]) == kiln_default_device());
    kiln_optim_free(o);
    kiln_module_free(m);
}

/* A model that is there keeps its values, also where it is moved inside the block; and it is not updated there. */
static void test_moving_inside(void **state)
{
    (void)state;
    kiln_module *m = NULL, *same = NULL;
    kiln_on_device (KILN_CPU) {
        kiln_manual_seed(5);
        m = small_model();
        kiln_manual_seed(5);
        same = small_model();
    }
    kiln_optim *o = kiln_optim_adam(kiln_parameters(m), .lr = 1e-3);
    kiln_shapes_only {
        assert_true(kiln_module_to(m, kiln_default_device()));
        kiln_step {
            kiln_tensor *x = kiln_zeros(KILN_SHAPE(1, 8), KILN_I64);
            assert_true(kiln_backward(kiln_mean_all(kiln_forward(m, x))));
            assert_false(kiln_optim_step(o));
        }
        expect_error(KILN_E_STATE, "adam", "weight");
    }
    assert_int_equal(kiln_optim_steps(o), 0);
    core_same_tensors(kiln_state(m), kiln_state(same));
    kiln_zero_grad(o);
    kiln_step
        record(m, o, 1, 8); /* its state is made anew, with values */
    assert_true(kiln_ok());
    kiln_optim_free(o);
    kiln_module_free(m);
    kiln_module_free(same);
}

/* A tensor of a shape gets its memory with the first value. Where that does not fit, the results of the run before stay
 * whose they are. */
static void test_no_memory_for_a_value(void **state)
{
    (void)state;
    kiln_device device = kiln_default_device();
    kiln_tensor *large = NULL;
    kiln_memory_stats before = {0}, after = {0};
    assert_true(kiln_memory_get_stats(device, &before));
    kiln_shapes_only
        large = kiln_keep(kiln_zeros(KILN_SHAPE((int64_t)1 << 28), KILN_F32));
    kiln_tensor *kept = kiln_keep(kiln_ones(KILN_SHAPE(100), KILN_F32));
    assert_true(kiln_eval());
    assert_true(kiln_memory_set_limit(device, before.in_use + before.overhead + ((uint64_t)64 << 20)));
    kiln_scope
        assert_false(kiln_assign(large, kiln_scalar(1, KILN_F32)) && kiln_eval());
    expect_error(KILN_E_MEMORY, "memory", "limit");
    float values[100];
    assert_true(kiln_read(kept, values, sizeof values) && values[99] == 1);
    kiln_release(kept);
    kiln_release(large);
    assert_true(kiln_memory_set_limit(device, 0) && kiln_memory_get_stats(device, &after));
    assert_int_equal(after.in_use, before.in_use);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_same_plan),
        core_test(test_no_memory_for_a_value),
        limited_test(test_huge_plan),
        limited_test(test_step_inside),
        limited_test(test_looking),
        core_test(test_deep_model),
        limited_test(test_more_than_can_be_counted),
        limited_test(test_larger_than_libraries_count),
        core_test(test_reading),
        files_test(test_running),
        files_test(test_inside),
        core_test(test_block_ends),
        core_test(test_no_such_device),
        core_test(test_initialising),
        core_test(test_part_assigned),
        core_test(test_assignment_fails),
        files_test(test_loading),
        limited_test(test_moving),
        core_test(test_moving_inside),
    };
    return CORE_MAIN(tests);
}
