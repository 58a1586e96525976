/* Modules, optimizers, data, files and options out of the input's bytes. */
#include "calls_draw.h"

/* ---- Modules, and what holds on to them ---- */

kiln_params params;
static kiln_tensor *params_tensors[LISTED];
static const char *params_names[LISTED];

static kiln_tensor *forward_twice(kiln_module *self, kiln_tensor *x, void *context)
{
    (void)self, (void)context;
    return kiln_add(x, x);
}

static kiln_tensor *forward_nothing(kiln_module *self, kiln_tensor *x, void *context)
{
    (void)self, (void)x, (void)context;
    return NULL;
}

kiln_forward_fn any_forward(void)
{
    static const kiln_forward_fn functions[] = {forward_twice, forward_nothing, NULL};
    return PICK(functions);
}

static kiln_tensor *same_gradient(kiln_tensor *grad, void *context)
{
    (void)context;
    return grad;
}

static kiln_tensor *no_gradient(kiln_tensor *grad, void *context)
{
    (void)grad, (void)context;
    return NULL;
}

kiln_hook any_hook(void)
{
    static const kiln_hook hooks[] = {same_gradient, no_gradient, NULL};
    return PICK(hooks);
}

void add_module(kiln_module *m)
{
    if (pool.nmodules < MODULES_KEPT)
        pool.modules[pool.nmodules++].m = m;
    else
        kiln_module_free(m);
}

static module_entry *module_entry_of(void)
{
    if (byte() % 8 == 0)
        return NULL;
    if (!pool.nmodules) {
        kiln_module *m = NULL;
        switch (byte() % 6) {
        case 0: m = kiln_nn_linear(3, 2); break;
        case 1: m = kiln_nn_sequential(kiln_nn_conv2d(2, 3, 2), kiln_nn_relu(), kiln_nn_batch_norm(3)); break;
        case 2: m = kiln_nn_lstm(3, 2, .bidirectional = true); break;
        case 3: m = kiln_nn_gru(3, 2, .layers = 2); break;
        case 4: m = kiln_nn_multihead_attention(4, 2); break;
        default: m = kiln_nn_embedding(5, 3);
        }
        kiln_error_clear();
        if (m)
            add_module(m);
    }
    return pool.nmodules ? &pool.modules[byte() % (unsigned)pool.nmodules] : NULL;
}

kiln_module *any_module(void)
{
    module_entry *e = module_entry_of();
    return e ? e->m : NULL;
}

/* A module that is given away: it leaves the pool. */
kiln_module *take_module(void)
{
    module_entry *e = module_entry_of();
    if (!e || e->held)
        return byte() % 2 ? NULL : kiln_nn_relu();
    kiln_module *m = e->m;
    *e = pool.modules[--pool.nmodules];
    pool.modules[pool.nmodules] = (module_entry){0};
    return m;
}

static kiln_module *held_module(void)
{
    module_entry *e = module_entry_of();
    if (e)
        e->held = true;
    return e ? e->m : NULL;
}

void draw_params(void)
{
    switch (byte() % 8) {
    case 0: params = (kiln_params){0}; return;
    case 1: params = (kiln_params){.count = -1}; return;
    case 2: params = (kiln_params){.count = 2}; return;
    case 3:
    case 4:
        for (int i = 0; i < LISTED; i++) {
            params_tensors[i] = byte() % 8 ? own_tensor() : NULL;
            params_names[i] = any_text();
        }
        params = (kiln_params){
            .count = byte() % LISTED, .tensors = params_tensors, .names = byte() % 2 ? params_names : NULL};
        return;
    default: {
        kiln_module *m = held_module();
        params = m ? kiln_parameters(m) : (kiln_params){0};
        kiln_error_clear();
    }
    }
}

#define ANY_OF(array, count) ((count) && byte() % 8 ? (array)[byte() % (unsigned)(count)] : NULL)

kiln_optim *any_optim(void)
{
    if (!pool.noptims && byte() % 8) {
        kiln_module *m = held_module();
        kiln_optim *o = m && kiln_parameters(m).count ? kiln_optim_adam(kiln_parameters(m)) : NULL;
        kiln_error_clear();
        if (o)
            pool.optims[pool.noptims++] = o;
    }
    return ANY_OF(pool.optims, pool.noptims);
}

kiln_schedule *any_schedule(void)
{
    if (!pool.nschedules && byte() % 8) {
        kiln_schedule *s = kiln_schedule_plateau(any_optim(), 0.5, 2, false);
        kiln_error_clear();
        if (s)
            pool.schedules[pool.nschedules++] = s;
    }
    return ANY_OF(pool.schedules, pool.nschedules);
}

kiln_scaler *any_scaler(void)
{
    if (!pool.nscalers && byte() % 8) {
        kiln_scaler *s = kiln_scaler_new(.growth_interval = 2);
        kiln_error_clear();
        if (s)
            pool.scalers[pool.nscalers++] = s;
    }
    return ANY_OF(pool.scalers, pool.nscalers);
}

kiln_ema *any_ema(void)
{
    if (!pool.nemas && byte() % 8) {
        kiln_ema *e = kiln_ema_new(held_module(), 0.9);
        kiln_error_clear();
        if (e)
            pool.emas[pool.nemas++] = e;
    }
    return ANY_OF(pool.emas, pool.nemas);
}

/* ---- Data and files ---- */

kiln_dataset *any_dataset(void)
{
    if (!pool.ndatasets && byte() % 8) {
        kiln_dataset *d =
            byte() % 2 ? kiln_data_digits(.count = 5)
                       : kiln_data_tensors(kiln_zeros(KILN_SHAPE(4, 3), KILN_F32), kiln_zeros(KILN_SHAPE(4), KILN_I64));
        kiln_error_clear();
        if (d)
            pool.datasets[pool.ndatasets++] = d;
    }
    return ANY_OF(pool.datasets, pool.ndatasets);
}

/* What is gone through whole. */
kiln_dataset *small_dataset(void)
{
    kiln_dataset *d = any_dataset();
    return d && kiln_data_count(d) > 64 ? NULL : d;
}

kiln_loader *any_loader(void)
{
    if (!pool.nloaders && byte() % 8) {
        kiln_loader *l = kiln_loader_new(any_dataset(), .batch = 2, .shuffle = true);
        kiln_error_clear();
        if (l)
            pool.loaders[pool.nloaders++] = l;
    }
    return ANY_OF(pool.loaders, pool.nloaders);
}

kiln_safetensors *any_file(void)
{
    static char path[64];
    if (!path[0]) { /* one good file */
        static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
        uint64_t bytes = sizeof header - 1;
        int fd = memfd_create("calls", MFD_CLOEXEC);
        must(fd > 0 && write(fd, &bytes, 8) == 8 && write(fd, header, bytes) == (ssize_t)bytes &&
             write(fd, &bytes, 8) == 8);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (!pool.nfiles && byte() % 8) {
        kiln_safetensors *f = kiln_safetensors_open(path);
        must(f != NULL);
        pool.files[pool.nfiles++] = f;
    }
    return ANY_OF(pool.files, pool.nfiles);
}

/* ---- Options ---- */

/* A list with a size that may be none, and something behind it that must be 0 or unseen. */
static const void *told(const void *options, size_t size)
{
    static _Alignas(16) char given[2 * BYTES];
    memset(given, 0, sizeof given);
    memcpy(given, options, size);
    size_t says = byte() % 16 ? size : (size_t)any_size();
    if (byte() % 4 == 0)
        given[size + byte() % 16] = 1;
    memcpy(given, &says, sizeof says);
    return byte() % 8 ? given : NULL;
}
#define TOLD(type, ...) told(&(type){__VA_ARGS__}, sizeof(type))

const kiln_linear_options *linear_options(void)
{
    return TOLD(kiln_linear_options, .no_bias = byte() % 2);
}

static int64_t mostly_default(void)
{
    return byte() % 2 ? 0 : a_few();
}

const kiln_layer_conv_options *layer_conv_options(void)
{
    return TOLD(kiln_layer_conv_options, .stride = mostly_default(), .padding = mostly_default(),
                .dilation = mostly_default(), .output_padding = byte() % 4 ? 0 : a_few(), .groups = mostly_default(),
                .kernel_w = byte() % 4 ? 0 : a_few(), .stride_w = byte() % 4 ? 0 : a_few(),
                .padding_w = byte() % 4 ? 0 : a_few(), .no_bias = byte() % 2);
}

const kiln_embedding_options *embedding_options(void)
{
    return TOLD(kiln_embedding_options, .has_padding = byte() % 2, .padding_idx = mostly_default());
}

const kiln_norm_options *norm_options(void)
{
    return TOLD(kiln_norm_options, .eps = byte() % 2 ? 0 : any_number(), .momentum = byte() % 4 ? 0 : any_number(),
                .no_affine = byte() % 4 == 0, .no_bias = byte() % 4 == 0, .no_tracking = byte() % 4 == 0);
}

const kiln_layer_pool_options *layer_pool_options(void)
{
    return TOLD(kiln_layer_pool_options, .stride = mostly_default(), .padding = mostly_default(),
                .dilation = byte() % 4 ? 0 : a_few(), .ceil_mode = byte() % 2, .exclude_pad = byte() % 4 == 0);
}

const kiln_attention_options *attention_options(void)
{
    return TOLD(kiln_attention_options, .dropout = byte() % 2 ? 0 : any_number(), .causal = byte() % 2,
                .no_bias = byte() % 2);
}

const kiln_recurrent_options *recurrent_options(void)
{
    return TOLD(kiln_recurrent_options, .layers = mostly_default(), .dropout = byte() % 2 ? 0 : any_number(),
                .batch_first = byte() % 2, .bidirectional = byte() % 2, .no_bias = byte() % 2, .relu = byte() % 8 == 0);
}

const kiln_conv_options *conv_options(void)
{
    static kiln_conv_options o;
    o = (kiln_conv_options){.size = sizeof o, .groups = a_few()};
    for (int i = 0; i < 2; i++) {
        o.stride[i] = a_few();
        o.padding[i] = a_few();
        o.dilation[i] = byte() % 2 ? 1 : any_size();
        o.output_padding[i] = byte() % 2 ? 0 : any_size();
    }
    return byte() % 8 ? &o : NULL;
}

const kiln_pool_options *pool_options(void)
{
    static kiln_pool_options o;
    o = (kiln_pool_options){.size = sizeof o, .ceil_mode = byte() % 2, .exclude_pad = byte() % 2};
    for (int i = 0; i < 2; i++) {
        o.stride[i] = a_few();
        o.padding[i] = byte() % 2 ? 0 : any_size();
        o.dilation[i] = byte() % 2 ? 0 : any_size();
    }
    return byte() % 8 ? &o : NULL;
}

const kiln_cross_entropy_options *cross_entropy_options(void)
{
    static kiln_cross_entropy_options o;
    if (byte() % 8 == 0)
        return NULL; /* and no tensor is drawn that nobody gets */
    o = (kiln_cross_entropy_options){.size = sizeof o,
                                     .weight = byte() % 2 ? NULL : any_tensor(),
                                     .ignore_index = any_size(),
                                     .ignore_zero = byte() % 2,
                                     .reduction = (kiln_reduction)any_int(),
                                     .label_smoothing = byte() % 2 ? 0 : any_number()};
    return &o;
}

const kiln_sdpa_options *sdpa_options(void)
{
    static kiln_sdpa_options o;
    if (byte() % 8 == 0)
        return NULL; /* and no tensor is drawn that nobody gets */
    o = (kiln_sdpa_options){.size = sizeof o,
                            .mask = byte() % 2 ? NULL : any_tensor(),
                            .lengths = byte() % 2 ? NULL : any_tensor(),
                            .dropout = byte() % 2 ? 0 : any_number(),
                            .causal = byte() % 2,
                            .scale = byte() % 2 ? 0 : any_number()};
    return &o;
}

const kiln_optim_options *optimizer_options(void)
{
    static kiln_optim_options o;
    o = (kiln_optim_options){
        .size = sizeof o, .lr = any_number(), .nesterov = byte() % 8 == 0, .amsgrad = byte() % 8 == 0};
    o.weight_decay = byte() % 2 ? 0 : any_number();
    o.momentum = byte() % 2 ? 0 : any_number();
    o.beta1 = byte() % 2 ? 0 : any_number();
    o.eps = byte() % 2 ? 0 : any_number();
    o.iterations = byte() % 4 ? 0 : any_number();
    o.max_rms = byte() % 4 ? 0 : any_number();
    o.match_rms = byte() % 8 == 0;
    o.adamw = byte() % 8 == 0;
    o.exact = byte() % 8 == 0;
    return byte() % 8 ? &o : NULL;
}

const char *optimizer_name(void)
{
    static const char *const bad[] = {"adan", "", NULL};
    int n = 0;
    while (kiln_optim_names()[n])
        n++;
    return byte() % 8 ? kiln_optim_names()[byte() % n] : PICK(bad);
}

const kiln_loader_options *loader_options(void)
{
    static kiln_loader_options o;
    o = (kiln_loader_options){.size = sizeof o,
                              .batch = a_few(),
                              .shuffle = byte() % 2,
                              .workers = byte() % 8 ? 0 : any_int() % 3,
                              .prefetch = byte() % 8 ? 0 : any_int() % 100,
                              .drop_last = byte() % 2,
                              .device = any_device(),
                              .augment = {.flip = byte() % 4 == 0, .crop = byte() % 4 ? 0 : any_int()},
                              .resident = byte() % 2 ? 0 : any_number()};
    return byte() % 8 ? &o : NULL;
}

const kiln_digits_options *digits_options(void)
{
    static kiln_digits_options o;
    o = (kiln_digits_options){.size = sizeof o, .test = byte() % 2, .count = any_size()};
    return &o;
}

const kiln_text_options *text_options(void)
{
    static kiln_text_options o;
    o = (kiln_text_options){.size = sizeof o, .length = any_size(), .stride = any_size()};
    o.from = byte() % 2 ? 0 : any_number();
    o.to = byte() % 2 ? 0 : any_number();
    return byte() % 8 ? &o : NULL;
}

const kiln_idx_options *idx_options(void)
{
    static kiln_idx_options o;
    o = (kiln_idx_options){.size = sizeof o, .mean = any_number(), .std = any_number()};
    return byte() % 4 ? &o : NULL;
}

/* ---- The end ---- */

void free_pool(void)
{
    for (int i = 0; i < pool.nloaders; i++)
        kiln_loader_free(pool.loaders[i]);
    for (int i = pool.ndatasets; i-- > 0;) /* ranges after what they are of */
        kiln_data_free(pool.datasets[i]);
    for (int i = 0; i < pool.nschedules; i++)
        kiln_schedule_free(pool.schedules[i]);
    for (int i = 0; i < pool.nscalers; i++)
        kiln_scaler_free(pool.scalers[i]);
    for (int i = 0; i < pool.noptims; i++)
        kiln_optim_free(pool.optims[i]);
    for (int i = 0; i < pool.nemas; i++)
        kiln_ema_free(pool.emas[i]);
    for (int i = 0; i < pool.nmodules; i++)
        kiln_module_free(pool.modules[i].m);
    for (int i = 0; i < pool.nfiles; i++)
        kiln_safetensors_close(pool.files[i]);
    for (int i = 0; i < pool.nkept; i++)
        kiln_release(pool.kept[i]);
    memset(&pool, 0, sizeof pool);
}
