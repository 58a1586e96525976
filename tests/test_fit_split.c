/* Batches that kiln_fit goes through in parts: the same weights, logs and results as with the whole batch within
 * rounding, random numbers to the bit, batch norm only where it was asked for, and parts as large as fit. */
#include "core/alloc.h"
#include "ops/part.h"
#include "support/files.h"
#include "support/fit.h"

/* ctest: name=eager env=KILN_EAGER=1 */

enum { EPOCHS = 2, BATCH = 16, METRICS = KILN_ACCURACY | KILN_TOP5 | KILN_PERPLEXITY };

/* ---- Random numbers ---- */

typedef kiln_tensor *(*drawing)(int64_t samples);

static kiln_tensor *of_samples(int64_t n)
{
    return kiln_rand(KILN_SHAPE(n, 5), KILN_F32);
}

static kiln_tensor *flattened(int64_t n)
{
    return kiln_randn(KILN_SHAPE(n * 3, 7), KILN_F32);
}

static kiln_tensor *in_the_middle(int64_t n)
{
    return kiln_rand(KILN_SHAPE(4, n, 3), KILN_F32);
}

static kiln_tensor *aligned(int64_t n)
{
    return kiln_rand(KILN_SHAPE(n, 8), KILN_F32);
}

static kiln_tensor *narrow_and_wide(int64_t n)
{
    kiln_tensor *a = kiln_cast(kiln_randn(KILN_SHAPE(n, 3), KILN_F64), KILN_F32);
    kiln_tensor *b = kiln_cast(kiln_rand(KILN_SHAPE(n, 3), KILN_F64), KILN_F32);
    kiln_tensor *c = kiln_cast(kiln_rand(KILN_SHAPE(n, 3), KILN_F16), KILN_F32);
    return kiln_add(kiln_add(a, b), c);
}

static kiln_tensor *integers_and_dropout(int64_t n)
{
    kiln_tensor *i = kiln_cast(kiln_randint(0, 100, KILN_SHAPE(n, 1), KILN_I64), KILN_F32);
    kiln_tensor *p = kiln_bernoulli(kiln_full(KILN_SHAPE(n, 1), 0.5, KILN_F32));
    return kiln_dropout(kiln_add(kiln_ones(KILN_SHAPE(n, 9), KILN_F32), kiln_add(i, p)), 0.3, true);
}

/* Two draws without the batch around one with it: the same for each part. */
static kiln_tensor *shared(int64_t n)
{
    kiln_tensor *a = kiln_rand(KILN_SHAPE(5), KILN_F32), *x = kiln_rand(KILN_SHAPE(n, 5), KILN_F32);
    return kiln_add(kiln_add(x, a), kiln_rand(0, NULL, KILN_F32));
}

static void check_parts(drawing draw, int dim, int64_t whole, int64_t size, bool steps)
{
    kiln_whole w = {.size = whole};
    kiln_manual_seed(9);
    kiln_tensor *first = kiln_rand(KILN_SHAPE(3), KILN_F32); /* so that the state is not at its beginning */
    kiln_random_state begun = kiln_random_get(), ended;
    assert_non_null(first);
    kiln_scope {
        kiln_whole_note(&w);
        kiln_tensor *all = draw(whole);
        kiln_whole_note(NULL);
        ended = kiln_random_get();
        for (int64_t at = 0; at < whole; at += size) {
            int64_t n = whole - at < size ? whole - at : size;
            kiln_random_set(begun);
            kiln_part_begin(&w, at, n);
            kiln_tensor *part = NULL;
            if (steps)
                kiln_step
                    part = kiln_keep(draw(n));
            else
                part = kiln_keep(draw(n));
            kiln_part_begin(NULL, 0, 0);
            assert_true(kiln_ok());
            kiln_random_state now = kiln_random_get();
            assert_true(now.seed == ended.seed && now.offset == ended.offset);
            int64_t per = kiln_size(all, dim) / whole;
            kiln_tensor *want = kiln_contiguous(kiln_slice(all, dim, at * per, (at + n) * per, 1));
            assert_int_equal(kiln_numel(part), kiln_numel(want));
            assert_memory_equal(core_f32(part), core_f32(want), (size_t)kiln_numel(want) * sizeof(float));
            kiln_release(part);
        }
    }
    kiln_release(first);
    kiln_whole_free(&w);
}

static void test_draws(void **state)
{
    (void)state;
    const struct {
        drawing draw;
        int dim;
    } all[] = {{of_samples, 0},           {flattened, 0}, {in_the_middle, 1}, {aligned, 0}, {narrow_and_wide, 0},
               {integers_and_dropout, 0}, {shared, 0}};
    const int64_t sizes[][2] = {{8, 4}, {7, 2}, {12, 5}, {6, 1}, {13, 12}, {9, 9}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
            for (int steps = 0; steps < 2; steps++)
                check_parts(all[i].draw, all[i].dim, sizes[k][0], sizes[k][1], steps);
}

/* What the whole batch does not draw there is refused. */
static void test_other_draws(void **state)
{
    (void)state;
    kiln_whole w = {.size = 6};
    kiln_scope {
        kiln_random_state begun = kiln_random_get();
        kiln_whole_note(&w);
        kiln_rand(KILN_SHAPE(6, 4), KILN_F32);
        kiln_whole_note(NULL);
        kiln_random_set(begun);
        kiln_part_begin(&w, 0, 2);
        assert_null(kiln_rand(KILN_SHAPE(2, 5), KILN_F32));
        expect_error(KILN_E_STATE, "rand", "[2, 5]");
        assert_null(kiln_rand(KILN_SHAPE(3, 4), KILN_F32));
        expect_error(KILN_E_STATE, "rand", "whole batch of 6");
        assert_non_null(kiln_rand(KILN_SHAPE(2, 4), KILN_F32));
        assert_null(kiln_rand(KILN_SHAPE(2, 4), KILN_F32));
        expect_error(KILN_E_STATE, "rand", "draws nothing like it");
        kiln_part_begin(NULL, 0, 0);
    }
    kiln_whole_free(&w);
}

/* ---- Training ---- */

typedef struct plan {
    fit_kind kind;
    int64_t batch, micro, accumulate, limit; /* batch: 0 stands for BATCH */
    kiln_fit_memory memory;
    double clip, lr; /* 0: 0.2 */
    const char *folder, *log;
    kiln_dataset *data;
} plan;

typedef struct trained {
    kiln_module *net;
    kiln_history history;
} trained;

static kiln_history fit(kiln_module *net, const plan *p)
{
    kiln_optim *sgd = kiln_optim_sgd(kiln_parameters(net), .lr = p->lr > 0 ? p->lr : 0.2, .momentum = 0.9);
    kiln_manual_seed(8); /* of dropout */
    kiln_history h = kiln_fit(net, p->data, .epochs = EPOCHS, .batch = p->batch ? p->batch : BATCH,
                              .accumulate = p->accumulate, .optim = sgd, .metrics = METRICS, .validate = p->data,
                              .seed = 4, .clip_norm = p->clip, .micro_batch = p->micro, .fit_memory = p->memory,
                              .limit = p->limit, .augment = {.flip = p->kind == FIT_CNN, .crop = p->kind == FIT_CNN},
                              .checkpoint = p->folder, .resume = p->folder != NULL, .log = p->log, .log_steps = 1);
    kiln_optim_free(sgd);
    return h;
}

static trained train(const plan *p)
{
    trained t = {.net = fit_net(p->kind, 0.3)};
    t.history = fit(t.net, p);
    if (!kiln_ok())
        fail_msg("%s", kiln_last_error()->message);
    return t;
}

static void end(trained *t)
{
    kiln_history_free(&t->history);
    kiln_module_free(t->net);
}

/* 44 samples in batches of 16, the last one of 12; parts of 5 leave 1 and 2. All networks have dropout. */
static void test_equals_whole(void **state)
{
    (void)state;
    const int64_t micro[] = {1, 5, 8, 15};
    for (fit_kind kind = 0; kind < FIT_KINDS; kind++)
        for (int ignored = 0; ignored <= 4; ignored += 4)
            for (size_t i = 0; i < sizeof micro / sizeof *micro; i++) {
                plan p = {.kind = kind, .data = fit_data(kind, ignored), .clip = i % 2 * 0.1, .accumulate = 1 + i % 3};
                trained whole = train(&p);
                p.micro = micro[i];
                trained parts = train(&p);
                fit_assert_same_weights(whole.net, parts.net, 1e-5);
                fit_assert_same_history(&whole.history, &parts.history, 1e-5);
                assert_null(kiln_next_notice());
                end(&whole);
                end(&parts);
                kiln_data_free(p.data);
            }
}

/* What a module and a loss of one's own draw, with the batch in it and without. */
static kiln_tensor *noisy(kiln_module *self, kiln_tensor *x, void *context)
{
    (void)self, (void)context;
    kiln_tensor *noise = kiln_randn(kiln_ndim(x), kiln_shape(x), KILN_F32), *scale = kiln_rand(0, NULL, KILN_F32);
    return kiln_add(x, kiln_mul(noise, scale));
}

static kiln_tensor *noisy_loss(kiln_tensor *output, kiln_tensor *x, kiln_tensor *y, void *context)
{
    (void)x, (void)context;
    int64_t samples = kiln_size(output, 0);
    kiln_tensor *weight = kiln_rand(KILN_SHAPE(samples, 1), KILN_F32);
    return kiln_cross_entropy(kiln_mul(output, weight), y);
}

static void test_own_draws(void **state)
{
    (void)state;
    kiln_dataset *data = fit_data(FIT_MLP, 0);
    kiln_module *net[2];
    kiln_history h[2];
    for (int i = 0; i < 2; i++) {
        kiln_manual_seed(3);
        net[i] = kiln_nn_sequential(kiln_nn_flatten(), kiln_module_new("Noise", noisy, NULL, NULL),
                                    kiln_nn_linear(25, FIT_CLASSES));
        assert_true(net[i] && kiln_module_to(net[i], kiln_default_device()));
        kiln_optim *sgd = kiln_optim_sgd(kiln_parameters(net[i]), .lr = 0.1);
        h[i] = kiln_fit(net[i], data, .epochs = EPOCHS, .batch = BATCH, .optim = sgd, .loss_fn = noisy_loss,
                        .metrics = METRICS, .micro_batch = i ? 6 : 0);
        assert_true(kiln_ok());
        kiln_optim_free(sgd);
    }
    fit_assert_same_weights(net[0], net[1], 1e-5);
    fit_assert_same_history(&h[0], &h[1], 1e-5);
    for (int i = 0; i < 2; i++) {
        kiln_history_free(&h[i]);
        kiln_module_free(net[i]);
    }
    kiln_data_free(data);
}

/* A part as large as the batch, or larger, is no part: to the bit, also with the batch that fits. */
static void test_whole_fits(void **state)
{
    (void)state;
    plan p = {.kind = FIT_MLP, .data = fit_data(FIT_MLP, 0)};
    trained whole = train(&p);
    for (int i = 0; i < 3; i++) {
        p.micro = i == 0 ? BATCH : i == 1 ? 100 : 0;
        p.memory = i == 2 ? KILN_FIT_SPLIT : KILN_FIT_WHOLE;
        trained same = train(&p);
        fit_assert_same_weights(whole.net, same.net, 0);
        assert_null(kiln_next_notice());
        end(&same);
    }
    end(&whole);
    kiln_data_free(p.data);
}

/* Parts of one size share their plans, wherever they begin. */
typedef struct watched {
    int64_t steps, fresh;
} watched;

static bool watch_step(void *context, int64_t epoch, int64_t step)
{
    watched *w = context;
    kiln_plan_info info;
    (void)step;
    assert_true(kiln_plan_last(&info));
    w->steps += epoch >= 2;
    w->fresh += epoch >= 2 && !info.replayed;
    return true;
}

static void test_replays(void **state)
{
    (void)state;
    skip_if_eager();
    kiln_dataset *data = fit_data(FIT_MLP, 3);
    kiln_module *net = fit_net(FIT_MLP, 0.3);
    watched w = {0};
    kiln_callback callback = {.step = watch_step, .context = &w};
    kiln_history h =
        kiln_fit(net, data, .epochs = 40, .batch = 20, .micro_batch = 7, .callbacks = &callback, .ncallbacks = 1);
    assert_true(kiln_ok());
    assert_int_equal(w.steps, 38 * 3);
    assert_int_equal(w.fresh, 0);
    assert_null(kiln_next_notice()); /* nor were the steps in between */
    kiln_history_free(&h);
    kiln_module_free(net);
    kiln_data_free(data);
}

/* ---- Logs and resuming ---- */

static void test_log(void **state)
{
    (void)state;
    plan p = {.kind = FIT_LSTM, .data = fit_data(FIT_LSTM, 3), .log = files_path("whole.jsonl")};
    trained whole = train(&p);
    p.log = files_path("parts.jsonl");
    p.micro = 5;
    trained parts = train(&p);
    FILE *a = fopen(files_path("whole.jsonl"), "r"), *b = fopen(files_path("parts.jsonl"), "r");
    char one[2048], other[2048];
    int lines = 0;
    assert_true(a && b);
    for (; fgets(one, sizeof one, a); lines++) {
        assert_non_null(fgets(other, sizeof other, b));
        if (lines == 0) {
            assert_null(strstr(one, "micro_batch"));
            assert_non_null(strstr(other, "\"batch\": 16, \"micro_batch\": 5,"));
            continue;
        }
        assert_memory_equal(one, other, strcspn(one, ",") + 1); /* which step, or epoch, it is about */
        const char *x = strstr(one, "\"loss\": "), *y = strstr(other, "\"loss\": ");
        assert_true(x && y);
        assert_near(strtod(x + 8, NULL), strtod(y + 8, NULL), 1e-5);
    }
    assert_null(fgets(other, sizeof other, b));
    assert_int_equal(lines, 1 + EPOCHS * (3 + 1));
    fclose(a);
    fclose(b);
    end(&whole);
    end(&parts);
    kiln_data_free(p.data);
}

static void test_resumes(void **state)
{
    (void)state;
    plan p = {.kind = FIT_GPT2, .data = fit_data(FIT_GPT2, 3), .folder = files_path("whole"), .micro = 5};
    trained whole = train(&p);
    kiln_module *net = fit_net(FIT_GPT2, 0.3);
    p.folder = files_path("parts");
    for (p.limit = 1; p.limit <= whole.history.steps; p.limit++) {
        kiln_history h = fit(net, &p);
        assert_true(kiln_ok());
        kiln_history_free(&h);
    }
    fit_assert_same_weights(whole.net, net, 0);
    kiln_module_free(net);
    end(&whole);
    kiln_data_free(p.data);
}

/* ---- Batch norm ---- */

static kiln_module *net_with_norm(void)
{
    kiln_manual_seed(3);
    kiln_module *m = kiln_nn_sequential(kiln_nn_flatten(), kiln_nn_linear(25, 8), kiln_nn_batch_norm(8), kiln_nn_relu(),
                                        kiln_nn_linear(8, FIT_CLASSES));
    assert_true(m && kiln_module_to(m, kiln_default_device()));
    return m;
}

static void test_batch_norm(void **state)
{
    (void)state;
    plan p = {.data = fit_data(FIT_MLP, 0), .micro = 4};
    kiln_module *net = net_with_norm(), *before = net_with_norm();
    kiln_history h = fit(net, &p);
    assert_non_null(strstr(kiln_last_error()->hint, "--fit-memory=local"));
    expect_error(KILN_E_UNSUPPORTED, "fit", "batch norm");
    fit_assert_same_weights(net, before, 0); /* nothing was trained, the running figures neither */
    assert_int_equal(h.steps, 0);
    kiln_history_free(&h);
    p.memory = KILN_FIT_LOCAL;
    h = fit(net, &p);
    assert_true(kiln_ok());
    assert_int_equal(h.steps, EPOCHS * 3);
    kiln_history_free(&h);
    /* that is what small batches are whose gradients are accumulated: statistics of each, and one step for all of them
     */
    plan small = {.data = p.data, .batch = 4, .accumulate = 4};
    h = fit(before, &small);
    assert_int_equal(h.steps, EPOCHS * 3);
    kiln_history_free(&h);
    fit_assert_same_weights(net, before, 1e-5);
    kiln_module_free(net);
    kiln_module_free(before);
    kiln_data_free(p.data);
}

/* In eval mode it takes nothing together: parts are the whole. */
static void test_frozen_batch_norm(void **state)
{
    (void)state;
    plan p = {.data = fit_data(FIT_MLP, 0)};
    kiln_module *nets[2];
    for (int i = 0; i < 2; i++) {
        nets[i] = net_with_norm();
        kiln_module_train(kiln_module_child(nets[i], "2"), false);
        p.micro = i ? 5 : 0;
        kiln_history h = fit(nets[i], &p);
        assert_true(kiln_ok());
        kiln_history_free(&h);
    }
    fit_assert_same_weights(nets[0], nets[1], 1e-5);
    for (int i = 0; i < 2; i++)
        kiln_module_free(nets[i]);
    kiln_data_free(p.data);
}

/* ---- Memory ---- */

enum { WIDE = 256 };

static kiln_module *wide_net(void)
{
    kiln_manual_seed(3);
    kiln_module *m = kiln_nn_sequential(kiln_nn_flatten(), kiln_nn_linear(25, 8), kiln_nn_unflatten(KILN_SHAPE(8, 1)),
                                        kiln_nn_linear(1, WIDE), kiln_nn_tanh(), kiln_nn_dropout(0.3),
                                        kiln_nn_linear(WIDE, 1), kiln_nn_flatten(), kiln_nn_linear(8, FIT_CLASSES));
    assert_true(m && kiln_module_to(m, kiln_default_device()));
    return m;
}

static kiln_history fit_within(kiln_module *net, const plan *p, uint64_t more)
{
    kiln_memory_stats stats;
    kiln_device device = kiln_default_device();
    kiln_loader *loader = kiln_loader_new(p->data, .device = device); /* what lies there whole does so before */
    assert_true(loader && kiln_memory_trim(device) && kiln_memory_get_stats(device, &stats));
    kiln_loader_free(loader);
    if (more)
        assert_true(kiln_memory_set_limit(device, stats.in_use + more));
    kiln_history h = fit(net, p);
    kiln_memory_set_limit(device, 0);
    return h;
}

/* Refused without, trains with it, with the same result and in as few parts as there can be. */
static void check_limit(kiln_module *whole, const kiln_history *want, kiln_dataset *data, uint64_t limit)
{
    plan p = {.data = data, .lr = 0.01};
    kiln_module *refused = wide_net(), *parts = wide_net(), *fewer = wide_net();
    kiln_history h = fit_within(refused, &p, limit);
    expect_error(KILN_E_MEMORY, "step", "MiB");
    kiln_history_free(&h);
    p.memory = KILN_FIT_SPLIT;
    h = fit_within(parts, &p, limit);
    if (!kiln_ok())
        fail_msg("%s", kiln_last_error()->message);
    fit_assert_same_weights(whole, parts, 1e-5);
    fit_assert_same_history(want, &h, 1e-5);
    kiln_history_free(&h);
    int64_t part = BATCH;
    for (const char *notice; (notice = kiln_next_notice());) { /* what the optimizer keeps comes with its first step */
        const char *size = strstr(notice, "in parts of ");
        assert_true(strstr(notice, "batch of 16") && size && strtoll(size + 12, NULL, 10) < part);
        part = strtoll(size + 12, NULL, 10);
    }
    int64_t count = (BATCH - 1) / part + 1;
    assert_true(part >= 1 && part < BATCH && count > 1);
    if (count > 2) { /* the two-part step is the whole otherwise, which was refused */
        p.memory = KILN_FIT_WHOLE;
        p.micro = (BATCH - 1) / (count - 1) + 1;
        h = fit_within(fewer, &p, limit);
        expect_error(KILN_E_MEMORY, "step", "MiB");
        kiln_history_free(&h);
    }
    kiln_module_free(refused);
    kiln_module_free(parts);
    kiln_module_free(fewer);
}

static void test_limit(void **state)
{
    (void)state;
    skip_if_eager();
    skip_if_cuda();
    for (int ignored = 0; ignored <= 3; ignored += 3) {
        plan p = {.data = fit_data(FIT_MLP, ignored), .lr = 0.01};
        kiln_module *whole = wide_net();
        kiln_history h = fit_within(whole, &p, 0);
        assert_true(kiln_ok());
        for (uint64_t kib = 180; kib < 700; kib += 70)
            check_limit(whole, &h, p.data, kib << 10);
        kiln_history_free(&h);
        kiln_module_free(whole);
        kiln_data_free(p.data);
    }
}

/* Not even one sample: the error says so, and nothing was changed. */
static void test_nothing_fits(void **state)
{
    (void)state;
    skip_if_eager();
    skip_if_cuda();
    plan p = {.data = fit_data(FIT_MLP, 0), .memory = KILN_FIT_SPLIT};
    kiln_module *net = wide_net(), *before = wide_net();
    kiln_history h = fit_within(net, &p, 8 << 10);
    assert_non_null(strstr(kiln_last_error()->hint, "one sample"));
    expect_error(KILN_E_MEMORY, "step", "MiB");
    fit_assert_same_weights(net, before, 0);
    kiln_history_free(&h);
    kiln_module_free(net);
    kiln_module_free(before);
    kiln_data_free(p.data);
}

/* ---- Failures ---- */

static bool read_row(void *context, int64_t index, void *x, void *y)
{
    for (int i = 0; i < 25; i++)
        ((float *)x)[i] = sinf((float)(index + i));
    *(int64_t *)y = index == *(int64_t *)context ? FIT_CLASSES : index % FIT_CLASSES; /* one is no class */
    return true;
}

/* A bad label in the third part: the step took no place, the gradients of the first two are gone. */
static void test_fails_as_a_whole(void **state)
{
    (void)state;
    int64_t bad = 20;
    kiln_data_info info = {.count = 32, .x = {KILN_F32, 3, {1, 5, 5}}, .y = {KILN_I64, 0, {0}}};
    kiln_dataset *data = kiln_data_generator(info, read_row, &bad);
    kiln_module *net = fit_net(FIT_MLP, 0.3), *one = fit_net(FIT_MLP, 0.3);
    kiln_optim *sgd = kiln_optim_sgd(kiln_parameters(net), .lr = 0.2);
    kiln_manual_seed(8);
    kiln_history h = kiln_fit(net, data, .batch = 16, .micro_batch = 2, .optim = sgd, .no_shuffle = true);
    expect_error(KILN_E_INDEX, NULL, "batch 2 of 2");
    kiln_params all = kiln_parameters(net);
    for (int64_t i = 0; i < all.count; i++)
        assert_null(kiln_grad_of(all.tensors[i]));
    assert_int_equal(kiln_optim_steps(sgd), 1);
    kiln_history_free(&h);
    kiln_optim *other = kiln_optim_sgd(kiln_parameters(one), .lr = 0.2);
    kiln_manual_seed(8);
    h = kiln_fit(one, data, .batch = 16, .micro_batch = 2, .optim = other, .no_shuffle = true, .limit = 1);
    assert_true(kiln_ok());
    fit_assert_same_weights(net, one, 0);
    kiln_history_free(&h);
    kiln_optim_free(sgd);
    kiln_optim_free(other);
    kiln_module_free(net);
    kiln_module_free(one);
    kiln_data_free(data);
}

static void test_errors(void **state)
{
    (void)state;
    plan p = {.data = fit_data(FIT_MLP, 0), .micro = -1};
    kiln_module *net = fit_net(FIT_MLP, 0);
    fit(net, &p);
    expect_error(KILN_E_ARGUMENT, "fit", "micro_batch");
    p = (plan){.data = p.data, .memory = (kiln_fit_memory)3};
    fit(net, &p);
    expect_error(KILN_E_ARGUMENT, "fit", "fit_memory");
    kiln_module_free(net);
    kiln_data_free(p.data);
}

static void test_memory_runs_out(void **state)
{
    (void)state;
    plan p = {.data = fit_data(FIT_MLP, 3), .memory = KILN_FIT_SPLIT, .micro = 7};
    kiln_module *net = fit_net(FIT_MLP, 0.3);
    for (int n = 0, done = 0; !done; n += 3) {
        kiln_alloc_fail_after(n);
        kiln_history h = fit(net, &p);
        kiln_alloc_fail_after(-1);
        done = kiln_ok();
        assert_int_equal(h.stop, done ? KILN_STOP_DONE : KILN_STOP_ERROR);
        kiln_history_free(&h);
        kiln_error_clear();
        assert_true(n < 60000);
    }
    kiln_module_free(net);
    kiln_data_free(p.data);
}

int main(void)
{
    setenv("KILN_RECOMPUTE", "0", 1); /* otherwise less has to be split */
    const struct CMUnitTest tests[] = {
        core_test(test_draws),
        core_test(test_other_draws),
        core_test(test_equals_whole),
        core_test(test_whole_fits),
        core_test(test_replays),
        core_test(test_own_draws),
        files_test(test_log),
        files_test(test_resumes),
        core_test(test_batch_norm),
        core_test(test_frozen_batch_norm),
        core_test(test_limit),
        core_test(test_nothing_fits),
        core_test(test_fails_as_a_whole),
        core_test(test_errors),
        core_test(test_memory_runs_out),
    };
    return CORE_MAIN(tests);
}
