/* Calls of functions that hand something over, or change what others rely on. */
#include "calls_draw.h"
#include <math.h>

#define DEFINE_OWN(name) void own_##name(void)

DEFINE_OWN(kiln_error_clear)
{
    kiln_error_clear();
    must(kiln_ok());
}

DEFINE_OWN(kiln_report)
{
    FILE *stream_or_none = any_stream();
    if (stream_or_none)
        must(kiln_report(stream_or_none) == 0);
}

DEFINE_OWN(kiln_device_parse)
{
    said_why(kiln_device_parse(any_text()) != KILN_NO_DEVICE);
}

DEFINE_OWN(kiln_device_count)
{
    char *why = filled_memory(true);
    int n = kiln_device_count(any_text(), why, why ? byte() : 0);
    must(n >= 0);
}

DEFINE_OWN(kiln_device_at)
{
    said_why(kiln_device_at(any_text(), any_int()) != KILN_NO_DEVICE);
}

DEFINE_OWN(kiln_device_libraries_)
{
    const char *kind = any_text();
    if (kind && !strncmp(kind, "cuda", 4))
        return; /* opening them takes its time */
    must(kiln_device_libraries(kind, filled_memory(true), byte() % 4) >= 0);
}

DEFINE_OWN(kiln_memory_set_limit)
{
    said_why(kiln_memory_set_limit(any_device(), (uint64_t)any_size()));
}

DEFINE_OWN(kiln_set_num_threads)
{
    kiln_set_num_threads(byte() % 4 ? 2 : any_int() % 8);
    must(kiln_get_num_threads() >= 1);
    kiln_set_num_threads(1);
}

DEFINE_OWN(kiln_set_tf32)
{
    kiln_set_tf32(byte() % 2);
    kiln_set_tf32(false);
}

DEFINE_OWN(kiln_scope_enter)
{
    kiln_scope_mark mark = kiln_scope_enter(byte() % 2);
    kiln_tensor *t = own_tensor();
    kiln_backward(kiln_sum_all(t));
    kiln_scope_leave(&mark);
    kiln_scope_leave(&mark); /* is harmless */
}

DEFINE_OWN(kiln_scope_leave)
{
    kiln_scope_mark none = {0};
    kiln_scope_leave(&none);
}

DEFINE_OWN(kiln_scope_end)
{
    kiln_scope_mark mark = kiln_scope_enter(byte() % 2);
    mark.inside = byte() % 2; /* left by break */
    own_tensor();
    kiln_scope_end(&mark);
    kiln_scope_end(&mark);
}

DEFINE_OWN(kiln_step_begin)
{
    kiln_scope_mark mark = kiln_scope_enter(false);
    must(kiln_step_begin()); /* an error of what was written before it is possible all the same */
    own_tensor();
    kiln_scope_leave(&mark);
}

DEFINE_OWN(kiln_step_end)
{
    bool begun = byte() % 2 && kiln_step_begin();
    kiln_backward(kiln_sum_all(own_tensor()));
    kiln_error_clear();
    bool ended = kiln_step_end();
    must(begun || !ended);
    said_why(ended);
}

DEFINE_OWN(kiln_keep)
{
    kiln_tensor *t = byte() % 8 ? own_tensor() : NULL;
    must(kiln_keep(t) == t);
    if (t && pool.nkept < TENSORS_KEPT)
        pool.kept[pool.nkept++] = t;
    else
        kiln_release(t);
}

DEFINE_OWN(kiln_release)
{
    kiln_release(byte() % 2 ? own_tensor() : NULL);
}

/* Data that is there: as many elements as the shape has, or a shape that is none. */
static const void *data_for(kiln_dtype dtype, int n, const int64_t *shape)
{
    double bytes = (double)kiln_dtype_size(dtype);
    for (int d = 0; shape && n <= KILN_MAX_DIMS && d < n; d++)
        bytes *= (double)shape[d];
    return n >= 0 && n <= KILN_MAX_DIMS && shape && bytes > BYTES ? NULL : byte() % 4 ? filled_memory(false) : NULL;
}

DEFINE_OWN(kiln_tensor_new)
{
    kiln_dtype dtype = any_dtype();
    after_tensor(kiln_tensor_new(data_for(dtype, list.n, list.at), dtype, list.n, list.at, any_device()));
}

DEFINE_OWN(kiln_of_)
{
    kiln_dtype dtype = any_dtype();
    after_tensor(kiln_of_(data_for(dtype, list.n, list.at), dtype, byte() % 32, list.n, list.at));
}

DEFINE_OWN(kiln_size)
{
    said_why(kiln_size(any_tensor(), any_dim()) >= 0);
}

DEFINE_OWN(kiln_set_name)
{
    kiln_tensor *t = any_tensor();
    after_same(kiln_set_name(t, any_text()), t);
}

/* As many bytes as the tensor has, if there is room; or others. */
static size_t bytes_of(const kiln_tensor *t)
{
    double bytes = t ? (double)kiln_numel(t) * (double)kiln_dtype_size(kiln_dtype_of(t)) : 0;
    return byte() % 4 && bytes <= BYTES ? (size_t)bytes : bytes > BYTES ? 0 : byte();
}

DEFINE_OWN(kiln_read)
{
    kiln_tensor *t = any_tensor();
    size_t bytes = bytes_of(t);
    said_why(kiln_read(t, byte() % 8 ? filled_memory(false) : NULL, bytes));
}

DEFINE_OWN(kiln_write)
{
    kiln_tensor *t = any_tensor();
    size_t bytes = bytes_of(t);
    said_why(kiln_write(t, byte() % 8 ? filled_memory(false) : NULL, bytes));
}

DEFINE_OWN(kiln_item)
{
    double got = kiln_item(any_tensor());
    must(kiln_ok() || isnan(got));
}

DEFINE_OWN(kiln_item_i64)
{
    int64_t got = kiln_item_i64(any_tensor());
    must(kiln_ok() || got == 0);
}

DEFINE_OWN(kiln_string_free)
{
    kiln_string_free(NULL);
}

DEFINE_OWN(kiln_set_default_device)
{
    said_why(kiln_set_default_device(any_device()));
    kiln_set_default_device(KILN_CPU);
}

DEFINE_OWN(kiln_device_scope_enter)
{
    kiln_device_scope scope = kiln_device_scope_enter(any_device());
    kiln_device_scope_leave(&scope);
    kiln_device_scope_leave(&scope);
    must(kiln_default_device() == KILN_CPU);
}

DEFINE_OWN(kiln_device_scope_leave)
{
    kiln_device_scope none = {0};
    kiln_device_scope_leave(&none);
}

DEFINE_OWN(kiln_device_scope_end)
{
    kiln_device_scope scope = kiln_device_scope_enter(any_device());
    scope.inside = byte() % 2;
    kiln_device_scope_end(&scope);
    must(kiln_default_device() == KILN_CPU);
}

/* A tensor of any size, and what is made of it, go to the pool: all other calls meet them. */
DEFINE_OWN(kiln_shapes_scope_enter)
{
    kiln_shapes_scope scope = kiln_shapes_scope_enter();
    if (kiln_ok()) { /* what was pending could run */
        kiln_tensor *shape = kiln_tensor_new(NULL, any_dtype(), list.n, list.at, any_device());
        after_tensor(shape);
        if (shape && byte() % 2)
            after_tensor(kiln_add(shape, any_tensor()));
    }
    kiln_shapes_scope_leave(&scope);
    kiln_shapes_scope_leave(&scope);
}

DEFINE_OWN(kiln_shapes_scope_leave)
{
    kiln_shapes_scope none = {0};
    kiln_shapes_scope_leave(&none);
}

DEFINE_OWN(kiln_shapes_scope_end)
{
    kiln_shapes_scope none = {0};
    kiln_shapes_scope_end(&none);
}

DEFINE_OWN(kiln_zero_grad_of)
{
    kiln_zero_grad_of(any_tensor());
}

DEFINE_OWN(kiln_grad)
{
    kiln_tensor *grads[LISTED];
    for (int i = 0; i < LISTED; i++)
        grads[i] = GARBAGE;
    bool given = byte() % 8, worked = kiln_grad(any_tensor(), byte() % 2 ? NULL : any_tensor(), tensors.at, tensors.n,
                                                given ? grads : NULL);
    said_why(worked);
    for (int i = 0; given && i < tensors.n; i++) {
        must(worked ? grads[i] && grads[i] != GARBAGE : grads[i] == NULL);
        if (worked)
            add_tensor(grads[i]);
    }
}

DEFINE_OWN(kiln_autocast_scope_enter)
{
    kiln_autocast_scope scope = kiln_autocast_scope_enter((kiln_dtype)any_int());
    kiln_autocast_scope_leave(&scope);
    kiln_autocast_scope_leave(&scope);
    must(kiln_autocast_dtype() == KILN_F32);
    kiln_error_clear();
}

DEFINE_OWN(kiln_autocast_scope_leave)
{
    kiln_autocast_scope none = {.saved = KILN_F32};
    kiln_autocast_scope_leave(&none);
}

DEFINE_OWN(kiln_autocast_scope_end)
{
    kiln_autocast_scope scope = kiln_autocast_scope_enter(byte() % 2 ? KILN_BF16 : KILN_F32);
    scope.inside = byte() % 2;
    kiln_autocast_scope_end(&scope);
}

DEFINE_OWN(kiln_grad_scope_enter)
{
    kiln_grad_scope scope = kiln_grad_scope_enter(byte() % 2);
    kiln_grad_scope_leave(&scope);
    kiln_grad_scope_leave(&scope);
}

DEFINE_OWN(kiln_grad_scope_end)
{
    kiln_grad_scope scope = kiln_grad_scope_enter(byte() % 2);
    scope.inside = byte() % 2;
    kiln_grad_scope_end(&scope);
}

DEFINE_OWN(kiln_grad_scope_leave)
{
    kiln_grad_scope none = {0};
    kiln_grad_scope_leave(&none);
}

DEFINE_OWN(kiln_recompute_scope_enter)
{
    kiln_recompute_scope scope = kiln_recompute_scope_enter();
    kiln_recompute_scope_leave(&scope);
    kiln_recompute_scope_leave(&scope);
}

DEFINE_OWN(kiln_recompute_scope_end)
{
    kiln_recompute_scope scope = kiln_recompute_scope_enter();
    scope.inside = byte() % 2;
    kiln_recompute_scope_end(&scope);
}

DEFINE_OWN(kiln_recompute_scope_leave)
{
    kiln_recompute_scope none = {0};
    kiln_recompute_scope_leave(&none);
}

static kiln_tensor *squares(kiln_tensor **inputs, void *context)
{
    return context ? NULL : kiln_square(inputs[0]);
}

DEFINE_OWN(kiln_recompute)
{
    kiln_tensor *input = byte() % 8 ? small_tensor() : NULL;
    kiln_error_clear();
    said_why(kiln_recompute(byte() % 8 ? squares : NULL, NULL, byte() % 8 ? &input : NULL, byte() % 8 ? 1 : -1) !=
             NULL);
}

DEFINE_OWN(kiln_gradcheck)
{
    kiln_tensor *input = byte() % 8 ? kiln_ones(KILN_SHAPE(2), KILN_F64) : small_tensor();
    kiln_error_clear();
    said_why(kiln_gradcheck(byte() % 8 ? squares : NULL, byte() % 8 ? NULL : filled_memory(false),
                            byte() % 8 ? &input : NULL, byte() % 8 ? 1 : any_int() % 2, byte() % 2, any_number(),
                            any_number()));
}

DEFINE_OWN(kiln_discard)
{
    kiln_discard();
}

DEFINE_OWN(kiln_step_times_)
{
    must(kiln_step_times(filled_memory(true), byte() % 4) >= 0);
}

DEFINE_OWN(kiln_plan_cache_stats_)
{
    must(kiln_plan_cache_stats().capacity >= 0);
}

DEFINE_OWN(kiln_plan_cache_set_capacity)
{
    kiln_plan_cache_set_capacity(byte() % 2 ? 3 : any_size());
    kiln_plan_cache_set_capacity(16);
}

DEFINE_OWN(kiln_plan_cache_set_bytes)
{
    kiln_plan_cache_set_bytes(byte() % 2 ? 1000 : any_size());
    kiln_plan_cache_set_bytes(1 << 20);
}

DEFINE_OWN(kiln_manual_seed)
{
    kiln_manual_seed((uint64_t)any_size());
}

DEFINE_OWN(kiln_random_get)
{
    kiln_random_set(kiln_random_get());
}

DEFINE_OWN(kiln_random_set)
{
    kiln_random_set((kiln_random_state){(uint64_t)any_size(), (uint64_t)any_size()});
}

DEFINE_OWN(kiln_nn_sequence)
{
    kiln_module *children[3] = {take_module(), take_module(), take_module()};
    static const int counts[] = {3, 3, 3, -1, 0};
    int n = PICK(counts);
    kiln_error_clear();
    after_module(kiln_nn_sequence(n, children));
    for (int i = 0; n < 3 && i < 3; i++)
        kiln_module_free(children[i]);
}

DEFINE_OWN(kiln_nn_residual)
{
    kiln_module *body = take_module(), *shortcut = take_module();
    kiln_error_clear();
    after_module(kiln_nn_residual(body, shortcut));
}

DEFINE_OWN(kiln_module_add)
{
    kiln_module *child = take_module(), *parent = any_module();
    kiln_error_clear();
    kiln_module *added = kiln_module_add(parent, any_text(), child);
    said_why(added != NULL);
    must(!added || added == child);
}

static void add_to_module(kiln_tensor *(*add)(kiln_module *, const char *, kiln_tensor *))
{
    kiln_tensor *t = byte() % 8 ? own_tensor() : NULL;
    kiln_module *m = any_module();
    kiln_error_clear();
    kiln_tensor *added = add(m, any_text(), t);
    said_why(added != NULL);
    must(!added || added == t);
}

DEFINE_OWN(kiln_module_add_parameter)
{
    add_to_module(kiln_module_add_parameter);
}

DEFINE_OWN(kiln_module_add_buffer)
{
    add_to_module(kiln_module_add_buffer);
}

DEFINE_OWN(kiln_module_free)
{
    kiln_module_free(byte() % 2 ? NULL : kiln_nn_linear(2, 2));
}

DEFINE_OWN(kiln_module_train)
{
    kiln_module_train(any_module(), byte() % 2);
}

DEFINE_OWN(kiln_module_child_at)
{
    const char *name = (const char *)GARBAGE;
    const kiln_module *child = kiln_module_child_at(any_module(), any_int(), byte() % 4 ? &name : NULL);
    must(child || name == NULL || name == (const char *)GARBAGE);
    must(name == NULL || name == (const char *)GARBAGE || name[0]);
}

DEFINE_OWN(kiln_parameters)
{
    after_params(kiln_parameters(any_module()));
}

DEFINE_OWN(kiln_parameters_matching)
{
    after_params(kiln_parameters_matching(any_module(), any_text(), byte() % 2));
}

DEFINE_OWN(kiln_state)
{
    after_params(kiln_state(any_module()));
}

DEFINE_OWN(kiln_module_shape)
{
    int ndim = -77;
    int64_t shape[KILN_MAX_DIMS];
    bool worked = kiln_module_shape(any_module(), few.n, byte() % 8 ? few.at : NULL, any_dtype(),
                                    byte() % 8 ? &ndim : NULL, byte() % 8 ? shape : NULL);
    said_why(worked);
    must(!worked || (ndim >= 0 && ndim <= KILN_MAX_DIMS));
    must(worked || ndim <= 0);
}

DEFINE_OWN(kiln_optim_free)
{
    kiln_optim_free(NULL);
}

DEFINE_OWN(kiln_zero_grad)
{
    kiln_zero_grad(any_optim());
}

DEFINE_OWN(kiln_optim_defaults_)
{
    kiln_optim_options o = kiln_optim_defaults(optimizer_name());
    must(kiln_ok() ? o.lr > 0 : o.lr == 0);
    must(o.exact);
}

DEFINE_OWN(kiln_optim_lr)
{
    double lr = kiln_optim_lr(any_optim(), any_int());
    must(kiln_ok() || isnan(lr));
}

DEFINE_OWN(kiln_optim_state)
{
    after_params(kiln_optim_state(any_optim()));
}

DEFINE_OWN(kiln_ema_free)
{
    kiln_ema_free(NULL);
}

DEFINE_OWN(kiln_ema_state)
{
    after_params(kiln_ema_state(any_ema()));
}

DEFINE_OWN(kiln_schedule_warmup)
{
    kiln_optim *o = any_optim();
    kiln_schedule *then = byte() % 2 ? NULL : kiln_schedule_exponential(o, 0.5);
    kiln_error_clear();
    after_schedule(kiln_schedule_warmup(o, any_size(), any_number(), then));
}

DEFINE_OWN(kiln_schedule_free)
{
    kiln_schedule_free(NULL);
}

DEFINE_OWN(kiln_scaler_new_)
{
    kiln_scaler_options o = {byte() % 8 ? sizeof o : (size_t)any_size() % sizeof o,
                             any_number(),
                             any_number(),
                             any_number(),
                             any_size(),
                             byte() % 4 == 0};
    after_scaler(byte() % 2 ? kiln_scaler_new_(byte() % 8 ? &o : NULL) : kiln_scaler_new(.disabled = byte() % 2));
}

DEFINE_OWN(kiln_scaler_free)
{
    kiln_scaler_free(NULL);
}

DEFINE_OWN(kiln_scaler_scale)
{
    said_why(kiln_scaler_scale(any_scaler(), any_tensor()) != NULL);
}

DEFINE_OWN(kiln_scaler_get_)
{
    kiln_scaler_get(any_scaler());
}

DEFINE_OWN(kiln_scaler_set_)
{
    said_why(kiln_scaler_set(any_scaler(), (kiln_scaler_state){any_number(), any_size(), any_size()}));
}

DEFINE_OWN(kiln_scaler_blame_)
{
    kiln_scaler_blame(any_scaler(), any_optim());
}

DEFINE_OWN(kiln_schedule_get_)
{
    kiln_schedule_get(any_schedule());
}

DEFINE_OWN(kiln_schedule_set_)
{
    kiln_schedule_state s = {any_size(), any_number(), any_number(), any_size(), any_size()};
    said_why(kiln_schedule_set(any_schedule(), s));
}

DEFINE_OWN(kiln_data_describe_)
{
    must(kiln_data_describe(any_dataset()).count >= 0);
}

DEFINE_OWN(kiln_data_free)
{
    kiln_data_free(NULL);
}

static bool read_zeros(void *context, int64_t index, void *x, void *y)
{
    (void)context;
    memset(x, 0, 12);
    if (y)
        memset(y, 0, 8);
    return index != 3;
}

DEFINE_OWN(kiln_data_generator_)
{
    kiln_data_info info = {.count = byte() % 2 ? 5 : any_size(), .classes = byte() % 2 ? 2 : any_size()};
    bool good = byte() % 2;
    info.x = (kiln_field){KILN_F32, 1, {3}};
    info.y = (kiln_field){KILN_I64, 0, {0}};
    if (!good) {
        info.x = (kiln_field){any_dtype(), any_int(), {any_size(), any_size()}};
        info.y.dtype = any_dtype();
    }
    kiln_dataset *d = kiln_data_generator(info, byte() % 8 ? read_zeros : NULL, NULL);
    if (d && !good) { /* it is not read: the function fills three floats */
        kiln_data_free(d);
        return;
    }
    after_dataset(d);
}

DEFINE_OWN(kiln_data_range)
{
    after_dataset(kiln_data_range(any_dataset(), any_size(), any_size()));
}

DEFINE_OWN(kiln_loader_free)
{
    kiln_loader_free(NULL);
}

DEFINE_OWN(kiln_loader_next_)
{
    kiln_batch b;
    memset(&b, 0x5a, sizeof b);
    bool given = byte() % 8, worked = kiln_loader_next(any_loader(), given ? &b : NULL);
    after_maybe(worked);
    if (!given)
        return;
    must(worked ? b.x && b.size > 0 : !b.x && !b.y && b.size == 0);
    if (worked)
        check_tensor(b.x);
}

DEFINE_OWN(kiln_loader_sample)
{
    said_why(kiln_loader_sample(any_loader(), any_size(), any_size()) >= 0);
}

DEFINE_OWN(kiln_safetensors_close)
{
    kiln_safetensors_close(NULL);
}

DEFINE_OWN(kiln_safetensors_meta_at)
{
    kiln_meta m = kiln_safetensors_meta_at(any_file(), any_int());
    must(!m.key == !m.value);
}

DEFINE_OWN(kiln_checkpoint_save_)
{
    kiln_checkpoint c = {.model = any_module(),
                         .optim = byte() % 2 ? any_optim() : NULL,
                         .schedule = byte() % 4 ? NULL : any_schedule(),
                         .epoch = any_size(),
                         .batch = any_size(),
                         .step = any_size(),
                         .extra = byte() % 2 ? NULL : any_text()};
    kiln_error_clear();
    said_why(kiln_checkpoint_save(any_path(), byte() % 8 ? &c : NULL, any_int()));
}

DEFINE_OWN(kiln_checkpoint_load_)
{
    kiln_checkpoint c = {.model = any_module()};
    kiln_error_clear();
    bool worked = kiln_checkpoint_load(any_path(), byte() % 8 ? &c : NULL);
    after_maybe(worked);
    if (worked)
        kiln_string_free((char *)c.extra);
}

DEFINE_OWN(kiln_checkpoint_find)
{
    char *found = kiln_checkpoint_find(any_path());
    after_maybe(found != NULL);
    kiln_string_free(found);
}

DEFINE_OWN(kiln_model_read_)
{
    after_module(kiln_model_read(any_path(), filled_memory(true)));
}

DEFINE_OWN(kiln_model_parse_)
{
    static const char *const models[] = {"input: [2]\nlayers:\n  - linear: 3\n", "input: [2", "layers: x", ""};
    const char *text = byte() % 8 ? PICK(models) : NULL;
    after_module(kiln_model_parse(text, text ? strlen(text) : byte(), any_text(), filled_memory(true)));
}

DEFINE_OWN(kiln_result_free)
{
    kiln_result none = {0};
    kiln_result_free(byte() % 2 ? NULL : &none);
}

DEFINE_OWN(kiln_history_free)
{
    kiln_history none = {0};
    kiln_history_free(byte() % 2 ? NULL : &none);
}

static kiln_fit_options any_fit_options(void)
{
    static const int64_t numbers[] = {0, 1, 2, -1, 3, INT64_MAX, INT64_MIN, 1};
    return (kiln_fit_options){.size = byte() % 16 ? sizeof(kiln_fit_options)
                                                  : (size_t)any_size() % sizeof(kiln_fit_options),
                              .epochs = byte() % 4 ? 1 : -1,
                              .batch = PICK(numbers),
                              .validate = byte() % 4 ? NULL : small_dataset(),
                              .loss = (kiln_loss)any_int(),
                              .metrics = (unsigned)any_int(),
                              .accumulate = PICK(numbers),
                              .clip_norm = byte() % 2 ? 0 : any_number(),
                              .clip_value = byte() % 2 ? 0 : any_number(),
                              .early_stop = PICK(numbers),
                              .augment = {.flip = byte() % 8 == 0, .crop = byte() % 8 ? 0 : any_int()},
                              .workers = byte() % 8 ? 0 : any_int() % 3,
                              .limit = 1 + byte() % 2};
}

DEFINE_OWN(kiln_fit_)
{
    kiln_fit_options o = any_fit_options();
    if (o.size < sizeof o) /* the limit may not be among what is seen */
        o.epochs = 1;
    kiln_module *m = any_module();
    kiln_dataset *d = small_dataset();
    kiln_error_clear();
    kiln_history h = kiln_fit_with(m, d, byte() % 16 && m && d ? &o : m && d ? NULL : &o);
    must(h.count >= 0 && (h.stop == KILN_STOP_ERROR) == !kiln_ok());
    kiln_history_free(&h);
}

DEFINE_OWN(kiln_fit_forecast_)
{
    kiln_fit_options o = any_fit_options();
    kiln_module *m = any_module();
    kiln_dataset *d = small_dataset();
    kiln_error_clear();
    kiln_forecast f = kiln_fit_forecast_with(m, d, &o);
    must(f.batch >= 0 && (kiln_ok() || f.batch == 0));
}

DEFINE_OWN(kiln_evaluate_)
{
    kiln_evaluate_options o = {.size = sizeof o,
                               .batch = a_few(),
                               .loss = (kiln_loss)any_int(),
                               .metrics = (unsigned)any_int(),
                               .limit = byte() % 8 ? 3 : any_size()};
    kiln_module *m = any_module();
    kiln_dataset *d = small_dataset();
    kiln_error_clear();
    kiln_result r = kiln_evaluate_with(m, d, &o);
    must(kiln_ok() || (isnan(r.loss) && !r.confusion));
    kiln_result_free(&r);
}
