/* The calls of calls.def: each with arguments that are drawn, and with what must hold after it. */
#include "calls.h"
#include "calls_draw.h"

/* ---- What must hold after a call ---- */

void said_why(bool worked)
{
    must(worked == kiln_ok() && !(worked && stale_given));
    must(kiln_ok() || kiln_last_error()->message[0]);
}

void after_tensor(kiln_tensor *t)
{
    said_why(t != NULL);
    check_outs(t != NULL);
    if (t) {
        check_tensor(t);
        add_tensor(t);
    }
}

void after_same(const kiln_tensor *t, const kiln_tensor *given)
{
    said_why(t != NULL);
    must(!t || t == given);
}

void after_maybe(bool got)
{
    must(kiln_ok() || !got);
    must(!(stale_given && kiln_ok()));
    must(kiln_ok() || kiln_last_error()->message[0]);
}

static void after_count(int count)
{
    said_why(count >= 0);
    check_parts(count);
}

static void after_string(char *text)
{
    said_why(text != NULL);
    kiln_string_free(text);
}

void after_module(kiln_module *m)
{
    said_why(m != NULL);
    if (m)
        add_module(m);
}

#define AFTER_MADE(name, type, array, count, most, free_it)                                                            \
    void name(type *made)                                                                                              \
    {                                                                                                                  \
        said_why(made != NULL);                                                                                        \
        if (made && pool.count < (most))                                                                               \
            pool.array[pool.count++] = made;                                                                           \
        else                                                                                                           \
            free_it(made);                                                                                             \
    }
AFTER_MADE(after_optim, kiln_optim, optims, noptims, OTHERS_KEPT, kiln_optim_free)
AFTER_MADE(after_schedule, kiln_schedule, schedules, nschedules, OTHERS_KEPT, kiln_schedule_free)
AFTER_MADE(after_scaler, kiln_scaler, scalers, nscalers, OTHERS_KEPT, kiln_scaler_free)
AFTER_MADE(after_ema, kiln_ema, emas, nemas, OTHERS_KEPT, kiln_ema_free)
AFTER_MADE(after_dataset, kiln_dataset, datasets, ndatasets, 2 * OTHERS_KEPT, kiln_data_free)
AFTER_MADE(after_loader, kiln_loader, loaders, nloaders, OTHERS_KEPT, kiln_loader_free)
AFTER_MADE(after_file, kiln_safetensors, files, nfiles, OTHERS_KEPT, kiln_safetensors_close)

void after_params(kiln_params p)
{
    must(p.count >= 0 && (kiln_ok() || p.count == 0));
    for (int64_t i = 0; i < p.count; i++)
        check_tensor(p.tensors[i]);
}

static const kiln_meta metas[2] = {{"key", "value"}, {NULL, "value"}};

/* ---- The table ---- */

#define T                  any_tensor()
#define SMALL              small_tensor()
#define NUMBER             any_number()
#define SIZE               any_size()
#define FEW                a_few()
#define DIM                any_dim()
#define ANY_INT            any_int()
#define CHOICE             (any_int() % 5)
#define REDUCTION          ((kiln_reduction)(byte() % 4))
#define FLAG               (byte() % 2)
#define DTYPE              any_dtype()
#define DEVICE             any_device()
#define TEXT               any_text()
#define EQUATION           any_equation()
#define PATH               any_path()
#define STREAM             any_stream()
#define LIST               list.n, list.at
#define ANY_LENGTH         list.n > LISTED ? LISTED : list.n, list.at
#define TENSORS            (stale_given |= tensors.stale, tensors.n), tensors.at
#define PARTS              parts.at, parts.n
#define OUT_TENSOR         out_tensor()
#define OUT(type)          filled_memory(true)
#define OUT_NOT_NULL(type) filled_memory(false)
#define HOOK               any_hook()
#define FORWARD            any_forward()
#define M                  any_module()
#define O                  any_optim()
#define S                  any_schedule()
#define SCALER             any_scaler()
#define E                  any_ema()
#define D                  small_dataset()
#define L                  any_loader()
#define F                  any_file()
#define PARAMS             params
#define METAS              (int)(byte() % 3), byte() % 4 ? metas : NULL
#define CONV               conv_options()
#define POOL               pool_options()
#define CROSS_ENTROPY      cross_entropy_options()
#define SDPA               sdpa_options()
#define OPTIMIZER_NAME     optimizer_name()
#define OPTIMIZER_OPTIONS  optimizer_options()
#define LOADER_OPTIONS     loader_options()
#define DIGITS             digits_options()
#define TEXT_OPTIONS       text_options()
#define LINEAR             linear_options()
#define LAYER_CONV         layer_conv_options()
#define EMBEDDING          embedding_options()
#define NORM               norm_options()
#define LAYER_POOL         layer_pool_options()
#define ATTENTION          attention_options()
#define RECURRENT          recurrent_options()
#define IDX                idx_options()

#define CALL(name, after)                                                                                              \
    static void call_##name(void)                                                                                      \
    {                                                                                                                  \
        after;                                                                                                         \
    }
#define TENSOR(name, ...)   CALL(name, after_tensor(name(__VA_ARGS__)))
#define MODULE(name, ...)   CALL(name, after_module(name(__VA_ARGS__)))
#define OPTIM(name, ...)    CALL(name, after_optim(name(__VA_ARGS__)))
#define SCHEDULE(name, ...) CALL(name, after_schedule(name(__VA_ARGS__)))
#define EMA(name, ...)      CALL(name, after_ema(name(__VA_ARGS__)))
#define DATASET(name, ...)  CALL(name, after_dataset(name(__VA_ARGS__)))
#define LOADER(name, ...)   CALL(name, after_loader(name(__VA_ARGS__)))
#define FILE_(name, ...)    CALL(name, after_file(name(__VA_ARGS__)))
#define STRING(name, ...)   CALL(name, after_string(name(__VA_ARGS__)))
#define SAME(name, given, ...)                                                                                         \
    CALL(name, {                                                                                                       \
        kiln_tensor *t = given;                                                                                        \
        after_same(name(t, __VA_ARGS__), t);                                                                           \
    })
#define BOOL(name, ...)  CALL(name, said_why(name(__VA_ARGS__)))
#define COUNT(name, ...) CALL(name, after_count(name(__VA_ARGS__)))
#define MAYBE(name, ...) CALL(name, after_maybe(name(__VA_ARGS__)))
#define ASK(name, ...)   CALL(name, (void)name(__VA_ARGS__))
#define OWN(name)        CALL(name, own_##name())
#include "calls.def"
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
#undef OWN

#define ROW(name)           {#name, call_##name},
#define TENSOR(name, ...)   ROW(name)
#define MODULE(name, ...)   ROW(name)
#define OPTIM(name, ...)    ROW(name)
#define SCHEDULE(name, ...) ROW(name)
#define EMA(name, ...)      ROW(name)
#define DATASET(name, ...)  ROW(name)
#define LOADER(name, ...)   ROW(name)
#define FILE_(name, ...)    ROW(name)
#define STRING(name, ...)   ROW(name)
#define SAME(name, ...)     ROW(name)
#define BOOL(name, ...)     ROW(name)
#define COUNT(name, ...)    ROW(name)
#define MAYBE(name, ...)    ROW(name)
#define ASK(name, ...)      ROW(name)
#define OWN(name)           ROW(name)
static const struct {
    const char *name;
    void (*call)(void);
} table[] = {
#include "calls.def"
};
enum { FUNCTIONS = sizeof table / sizeof *table };

int calls_count(void)
{
    return FUNCTIONS;
}

const char *calls_name(int i)
{
    return table[i].name;
}

/* ---- Making them ---- */

static void set_limits(void)
{
    kiln_memory_set_limit(KILN_CPU, 4 << 20);
    kiln_error_clear();
}

void calls_make(const uint8_t *data, size_t size, int only)
{
    enum { MOST_CALLS = 40 };
    fuzz_begin();
    uint64_t before = fuzz_in_use();
    stream_begin(data, size);
    kiln_scope_mark scope = kiln_scope_enter(false);
    for (int i = 0; i < MOST_CALLS && !stream_is_empty(); i++) {
        unsigned number = byte() | byte() << 8;
        int which = only >= 0 ? only : (int)(number % FUNCTIONS);
        draw_lists();
        kiln_error_clear();
        if (getenv("KILN_FUZZ_SHOW"))
            fprintf(stderr, "%s\n", table[which].name);
        stale_given = false;
        table[which].call();
        while (kiln_next_notice())
            ;
        set_limits();
    }
    kiln_eval();
    kiln_error_clear();
    free_pool();
    kiln_scope_leave(&scope);
    kiln_discard(); /* a hook keeps what it hangs on until the trace goes */
    kiln_error_clear();
    must(fuzz_in_use() == before);
}
