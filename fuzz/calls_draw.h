/* What calls are made with: values drawn from the input's bytes, and a pool of what earlier calls have made. */
#ifndef KILN_FUZZ_CALLS_DRAW_H
#define KILN_FUZZ_CALLS_DRAW_H

#include "calls.h"

/* ---- Bytes ---- */

void stream_begin(const uint8_t *data, size_t size);
bool stream_is_empty(void);
unsigned byte(void); /* 0 when there are no more */
#define PICK(list) ((list)[byte() % (sizeof(list) / sizeof *(list))])

/* ---- The pool ---- */

enum { TENSORS_KEPT = 16, MODULES_KEPT = 8, OTHERS_KEPT = 4, LISTED = 8, BYTES = 4096 };

typedef struct module_entry {
    kiln_module *m;
    bool held; /* an optimizer or an average has its parameters: it is not given away */
} module_entry;

typedef struct call_pool {
    kiln_tensor *tensors[TENSORS_KEPT];
    kiln_tensor *kept[TENSORS_KEPT]; /* out of the scope: released at the end */
    int ntensors, nkept, nmodules, noptims, nschedules, nscalers, nemas, ndatasets, nloaders, nfiles;
    module_entry modules[MODULES_KEPT];
    kiln_optim *optims[OTHERS_KEPT];
    kiln_schedule *schedules[OTHERS_KEPT];
    kiln_scaler *scalers[OTHERS_KEPT];
    kiln_ema *emas[OTHERS_KEPT];
    kiln_dataset *datasets[2 * OTHERS_KEPT];
    kiln_loader *loaders[OTHERS_KEPT];
    kiln_safetensors *files[OTHERS_KEPT];
} call_pool;
extern call_pool pool;

void add_tensor(kiln_tensor *t);
void add_module(kiln_module *m);
void free_pool(void);

/* ---- Numbers and words ---- */

int64_t any_size(void); /* from the lowest to the highest, mostly small */
int64_t a_few(void);    /* a size that memory may be taken for */
double any_number(void);
int any_dim(void);
int any_int(void);
kiln_dtype any_dtype(void);
kiln_device any_device(void);
const char *any_text(void);
const char *any_equation(void);
const char *any_path(void);
FILE *any_stream(void);

/* ---- Tensors ---- */

extern bool stale_given; /* one of those drawn since it was cleared had been released: the call must say so */
kiln_tensor *any_tensor(void);
kiln_tensor *small_tensor(void); /* one whose sizes may be gone through, or NULL */
kiln_tensor *own_tensor(void);   /* not NULL, and nobody's but the caller's */
void check_tensor(const kiln_tensor *t);

/* ---- Lists and out-parameters. They are drawn before a call: in which order a call's arguments are evaluated is open.
 */

typedef struct drawn_list {
    int n;
    const int64_t *at;
    int64_t numbers[2 * LISTED];
} drawn_list;
extern drawn_list list, few; /* few: sizes that may be gone through */

typedef struct drawn_tensors {
    int n;
    bool stale; /* one of them is */
    kiln_tensor **at, *tensors[LISTED];
} drawn_tensors;
extern drawn_tensors tensors, parts; /* parts: room for results */
extern kiln_params params;
void draw_lists(void);  /* all of them */
void draw_params(void); /* one of them */

#define GARBAGE ((kiln_tensor *)(uintptr_t)0x5a5a5a5a5a5a5a5a)
kiln_tensor **out_tensor(void);        /* full of garbage, or NULL */
void check_outs(bool worked);          /* all there, or none */
void check_parts(int count);           /* so many of them, and NULL behind */
void *filled_memory(bool may_be_null); /* BYTES bytes of garbage */

/* ---- Modules, data, files ---- */

kiln_module *any_module(void);
kiln_module *take_module(void); /* one that is given away: it leaves the pool */
kiln_optim *any_optim(void);
kiln_schedule *any_schedule(void);
kiln_scaler *any_scaler(void);
kiln_ema *any_ema(void);
kiln_dataset *any_dataset(void);
kiln_dataset *small_dataset(void); /* one that may be gone through, or NULL */
kiln_loader *any_loader(void);
kiln_safetensors *any_file(void);
kiln_forward_fn any_forward(void);
kiln_hook any_hook(void);

/* ---- Options ---- */

const kiln_conv_options *conv_options(void);
const kiln_pool_options *pool_options(void);
const kiln_cross_entropy_options *cross_entropy_options(void);
const kiln_sdpa_options *sdpa_options(void);
const kiln_linear_options *linear_options(void);
const kiln_layer_conv_options *layer_conv_options(void);
const kiln_embedding_options *embedding_options(void);
const kiln_norm_options *norm_options(void);
const kiln_layer_pool_options *layer_pool_options(void);
const kiln_attention_options *attention_options(void);
const kiln_recurrent_options *recurrent_options(void);
const kiln_optim_options *optimizer_options(void);
const char *optimizer_name(void);
const kiln_loader_options *loader_options(void);
const kiln_digits_options *digits_options(void);
const kiln_text_options *text_options(void);
const kiln_idx_options *idx_options(void);

/* ---- What must hold after a call (calls.c) ---- */

void said_why(bool worked); /* an error is there if and only if it did not */
void after_tensor(kiln_tensor *t);
void after_same(const kiln_tensor *t, const kiln_tensor *given);
void after_maybe(bool got);
void after_module(kiln_module *m);
void after_schedule(kiln_schedule *made);
void after_scaler(kiln_scaler *made);
void after_dataset(kiln_dataset *made);
void after_params(kiln_params p);

/* ---- Functions with a call of their own (calls_own.c) ---- */

#define OWN(name) void own_##name(void);
#define TENSOR(...)
#define MODULE(...)
#define OPTIM(...)
#define SCHEDULE(...)
#define EMA(...)
#define DATASET(...)
#define LOADER(...)
#define FILE_(...)
#define STRING(...)
#define SAME(...)
#define BOOL(...)
#define COUNT(...)
#define MAYBE(...)
#define ASK(...)
#include "calls.def"
#undef OWN
#undef TENSOR
#undef MODULE
#undef OPTIM
#undef SCHEDULE
#undef EMA
#undef DATASET
#undef LOADER
#undef FILE_
#undef STRING
#undef SAME
#undef BOOL
#undef COUNT
#undef MAYBE
#undef ASK

#endif
