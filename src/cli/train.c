/* kiln train: a network, data, and a recipe, to a folder with weights, checkpoints, a log and a curve. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cli/training.h"

static const option options[] = {
    {"model", 0, OPTION_TEXT, "MODEL", "name[:key=value,...] or FILE.yaml (mlp; gpt2 for text)", 0, 0, "<models>"},
    {"data", 0, OPTION_TEXT, "DATA", "digits, folder or file with IDX, or text file (digits)", 0, 0, "<data>"},
    {"split", 0, OPTION_NUMBER, "SHARE", "trains, where there is no test set (0.9)", 0.001, 1, NULL},
    {"length", 0, OPTION_COUNT, "N", "bytes of text seen at once (128)", 1, 1 << 20, NULL},
    {"flip", 0, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    {"crop", 0, OPTION_COUNT, "N", "mirror half of the images; shift them by up to N pixels", 0, 1 << 20, NULL},
    {"dropout", 0, OPTION_NUMBER, "P", "of models that have it (0)", 0, 0.999, NULL},
    {"init", 0, OPTION_TEXT, "FILE", "begin with the weights of a safetensors file", 0, 0, "<files>"},
    OPTION_DEVICE,
    OPTION_THREADS,
    {"workers", 0, OPTION_COUNT, "N", "threads that prepare data (1)", 0, 256, NULL},
    OPTION_MEM_LIMIT,
    OPTION_TF32,
    OPTION_AMP,
    {"epochs", 0, OPTION_COUNT, "N", "passes over the data (8; resnets 5, vit 10)", 1, 1e9, NULL},
    {"limit", 0, OPTION_COUNT, "N", "stop after N optimizer steps", 1, 1e15, NULL},
    {"batch", 0, OPTION_COUNT, "N", "samples at once (64; text 32); auto: what fits", 1, 1e9, "auto"},
    {"accumulate", 0, OPTION_COUNT, "N", "batches whose gradients make a step (1)", 1, 1e9, NULL},
    {"fit-memory", 0, OPTION_FLAG, NULL, "take batches that do not fit part by part", 0, 0, "local"},
    {"lr", 0, OPTION_NUMBER, "RATE", "learning rate (1e-3; by model and optimizer)", 1e-12, 1e6, NULL},
    {"optim", 0, OPTION_WORD, "NAME", "(adam; adamw)", 0, 0, "<optimizers>"},
    {"momentum", 0, OPTION_NUMBER, "M", "of sgd (0.9), muon (0.95), rmsprop (0)", 0, 0.9999, NULL},
    {"weight-decay", 0, OPTION_NUMBER, "D", "(0; adamw, lamb 0.01, muon 0.1)", 0, 1e3, NULL},
    {"schedule", 0, OPTION_WORD, "NAME", "constant step cosine one-cycle exponential plateau", 0, 0, SCHEDULES},
    {"warmup", 0, OPTION_COUNT, "N", "steps in which the rate rises (0; text 100)", 0, 1e15, NULL},
    {"clip", 0, OPTION_NUMBER, "NORM", "largest norm of all gradients (none; text 1)", 0, 1e9, NULL},
    {"ema", 0, OPTION_NUMBER, "DECAY", "average the weights, e.g. 0.999 (no)", 0, 0.999999999, NULL},
    {"early-stop", 0, OPTION_COUNT, "N", "stop after N epochs without a better test loss", 1, 1e9, NULL},
    {"seed", 0, OPTION_COUNT, "N", "of weights, dropout and order (0)", 0, 9e15, NULL},
    {"no-shuffle", 0, OPTION_FLAG, NULL, "take the samples in their order", 0, 0, NULL},
    {"save", 0, OPTION_TEXT, "DIR", "the run's folder (kiln-run)", 0, 0, "<folders>"},
    {"save-every", 0, OPTION_COUNT, "STEPS", "a checkpoint that often (after each epoch)", 1, 1e15, NULL},
    {"save-dtype", 0, OPTION_WORD, "TYPE", "bf16 f16 f32: of best.safetensors (f32)", 0, 0, "bf16 f16 f32"},
    {"resume", 0, OPTION_FLAG, NULL, "go on from the folder's last checkpoint", 0, 0, NULL},
    {"log", 0, OPTION_TEXT, "FILE", NULL, 0, 0, "<files>"},
    {"log-every", 0, OPTION_COUNT, "STEPS", ".jsonl or .csv (DIR/log.jsonl); how often", 1, 1e15, NULL},
    {"quiet", 'q', OPTION_FLAG, NULL, "say nothing but errors", 0, 0, NULL},
    {0}};

/* ---- Signals ---- */

static volatile sig_atomic_t asked_to_stop, asked_to_save;

static void on_save(int signal_number)
{
    (void)signal_number;
    asked_to_save = 1;
}

/* From the very beginning: a scheduler may ask for a checkpoint while data is still being read. */
static void catch_save(void)
{
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = on_save, .sa_flags = SA_RESTART}, NULL);
}

static void on_signal(int signal_number)
{
    (void)signal_number; /* SA_RESETHAND: the second one ends the program at once */
    static const char text[] = "\nstopping after this step; once more to stop at once\n";
    asked_to_stop = 1;
    if (isatty(STDERR_FILENO)) {
        ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
        (void)ignored;
    }
}

static void catch_stop(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND | SA_RESTART}, before;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* nohup goes on without the terminal */
        sigaction(SIGHUP, &action, NULL);
}

/* ---- Setting up ---- */

/* The model of --model, of the run, or the one that suits the data. */
static int choose_network(training *t, const char *data)
{
    const char *standard = source_is_text(data) ? "gpt2:layers=4,heads=4,embed=128" : "mlp";
    bool kept = t->kept_model && !given(t->a, "model");
    int code =
        kept ? network_choose_kept(&t->net, &t->kept) : network_choose(&t->net, text_of(t->a, "model", standard));
    if (!code && given(t->a, "dropout"))
        t->net.options.dropout = number_of(t->a, "dropout", 0);
    if (!code && given(t->a, "dropout") && !t->net.entry)
        code = fail(EX_USAGE, "--dropout is for models by name; a model file has dropout layers");
    if (!code && number_of(t->a, "dropout", 0) > 0 && !model_has_option(t->net.entry, "dropout"))
        code = fail(EX_USAGE, "--dropout: %s has none", t->net.name);
    return code;
}

static int open_source(training *t, const char *data)
{
    double own = (double)(t->net.entry ? t->net.options.context : t->net.tokens ? t->net.shape[0] : 0), split, length;
    int code = kept_number(t->kept_data, "split", 0.9, 0, 1, &split);
    if (!code)
        code = kept_number(t->kept_data, "length", own > 0 ? own : 128, 1, 1 << 20, &length);
    if (code)
        return code;
    code = source_open(&t->data, data, number_of(t->a, "split", split), count_of(t->a, "length", (int64_t)length));
    if (code && t->kept_data && !given(t->a, "data"))
        hint("that is what the run was trained on; --data says where the data is now");
    return code;
}

static int open_parts(training *t)
{
    char *kept = meta_text(t->kept_data, "source", NULL);
    const char *data = text_of(t->a, "data", kept ? kept : "digits");
    int code = choose_network(t, data);
    if (!code && t->net.tokens && !given(t->a, "data") && !kept)
        code = fail(EX_USAGE, "the model %s takes text: give --data FILE.txt", t->net.name);
    if (!code)
        code = open_source(t, data);
    free(kept);
    if (!code && !t->data.train)
        code = fail(EX_USAGE, "--split leaves no samples to train on");
    if (!code && t->net.loss == KILN_CROSS_ENTROPY && t->data.info.y.dtype == KILN_DTYPES) {
        fail(EX_DATAERR, "%s has no labels: there is no file of labels beside the images", t->data.info.name);
        hint("labels of train-images-idx3-ubyte are in train-labels-idx1-ubyte; --model autoencoder needs none");
        code = EX_DATAERR;
    }
    return code;
}

/* The weights of a file, or the best ones of a run. */
static int load_init(training *t)
{
    saved s;
    int code = saved_open(&s, text_of(t->a, "init", ""));
    if (!code && !kiln_module_load(t->net.module, s.path, false))
        code = fail_kiln();
    if (!code)
        code = check_finite(&t->net, s.path);
    saved_close(&s);
    return code;
}

/* ---- Training ---- */

/* What is noticed while it trains is said then, not hours later. */
static bool tell_notices(void *context, int64_t epoch, int64_t step)
{
    (void)context, (void)epoch, (void)step;
    say_notices();
    return true;
}

/* 0: as they are. */
static kiln_dtype save_dtype(const arguments *a)
{
    static const kiln_dtype floats[] = {KILN_BF16, KILN_F16, KILN_F32};
    const char *name = text_of(a, "save-dtype", "");
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        if (!strcmp(name, kiln_dtype_name(floats[i])))
            return floats[i];
    return 0;
}

static kiln_fit_options fit_options(const training *t)
{
    static const kiln_callback notices = {.step = tell_notices};
    const recipe *r = &t->recipe;
    return (kiln_fit_options){.size = sizeof(kiln_fit_options),
                              .epochs = r->epochs,
                              .batch = r->batch,
                              .validate = t->data.test,
                              .optim = t->optim,
                              .schedule = t->schedule,
                              .loss = t->net.loss,
                              .metrics = t->net.metrics,
                              .accumulate = r->accumulate,
                              .clip_norm = r->clip,
                              .ema = t->ema,
                              .early_stop = r->early_stop,
                              .seed = (uint64_t)r->seed,
                              .no_shuffle = r->no_shuffle,
                              .augment = {.flip = r->flip, .crop = (int)r->crop},
                              .workers = (int)count_of(t->a, "workers", 1),
                              .limit = count_of(t->a, "limit", 0),
                              .checkpoint = t->folder,
                              .save_steps = count_of(t->a, "save-every", 0),
                              .resume = t->resume,
                              .log = t->log,
                              .log_steps = count_of(t->a, "log-every", 0),
                              .progress = t->quiet ? NULL : stdout,
                              .autocast = r->amp,
                              .callbacks = &notices,
                              .ncallbacks = 1,
                              .stop = &asked_to_stop,
                              .save = &asked_to_save,
                              .save_dtype = save_dtype(t->a),
                              .fit_memory = r->fit_memory};
}

/* What a step takes, and the batch where that is to be found. */
static int plan_memory(training *t)
{
    kiln_fit_options o = fit_options(t);
    o.batch = t->recipe.find_batch ? KILN_BATCH_AUTO : o.batch;
    t->planned = kiln_fit_forecast_with(t->net.module, t->data.train, &o);
    if (!t->recipe.find_batch && !kiln_ok()) {
        kiln_error_clear(); /* training meets it too, and says more */
        return 0;
    }
    if (!kiln_ok())
        return fail_kiln();
    if (!t->planned.batch) {
        fail(EX_OSERR, "--batch auto: not even a batch of 1 fits into %s", show_size(t->planned.room));
        hint("a smaller model needs less; --mem-limit, where it was given, is what may be used");
        return EX_OSERR;
    }
    t->recipe.batch = o.batch = t->planned.batch;
    if (t->recipe.amp && !t->quiet) {
        o.autocast = KILN_F32;
        t->planned_plain = kiln_fit_forecast_with(t->net.module, t->data.train, &o).peak;
    }
    return kiln_ok() ? 0 : fail_kiln();
}

static int set_up(training *t)
{
    const recipe *r = &t->recipe;
    int64_t samples = kiln_data_count(t->data.train);
    int code = recipe_choose(&t->recipe, t->a, &t->net, samples, t->kept_recipe);
    if (!code)
        code = recipe_check_images(r, &t->data.info);
    if (code)
        return code;
    kiln_manual_seed((uint64_t)r->seed);
    code = network_build(&t->net, &t->data.info, t->device);
    if (code)
        return code;
    if (given(t->a, "init") && (code = load_init(t)))
        return code;
    if (!(t->optim = recipe_optim(r, t->net.module)) || (r->ema > 0 && !(t->ema = kiln_ema_new(t->net.module, r->ema))))
        return fail_kiln();
    if ((code = plan_memory(t)) || (code = recipe_length(&t->recipe, t->a, &t->net, samples, t->kept_recipe)))
        return code;
    return recipe_schedule(r, t->optim, samples, &t->schedule);
}

static kiln_history fit(training *t, const kiln_meta *meta, int nmeta, const char *about)
{
    kiln_fit_options o = fit_options(t);
    o.nmeta = nmeta;
    o.meta = meta;
    o.about = about;
    return kiln_fit_with(t->net.module, t->data.train, &o);
}

static int fit_and_tell(training *t)
{
    char *data = source_meta(&t->data), *how = recipe_meta(&t->recipe, t->net.given), *about = about_run(t);
    kiln_meta meta[] = {{"kiln.model", t->net.text}, {"kiln.data", data}, {"kiln.train", how}};
    double start = seconds_now();
    catch_stop();
    kiln_history h = fit(t, meta, 3, about);
    double seconds = seconds_now() - start;
    int code = 0;
    if (!kiln_ok())
        code = fail_kiln();
    say_notices();
    const char *slash = strrchr(t->data.origin, '/');
    char *title = must_format("%.70s on %.80s", t->net.name, slash && slash[1] ? slash + 1 : t->data.origin);
    bool curve = !code && h.count > 0 && plot_logs(1, &t->log, t->curve, title) == 0;
    free(title);
    if (!code && !t->quiet && h.count > 0)
        say_end(t, &h, seconds);
    if (!code && h.stop == KILN_STOP_ASKED && asked_to_stop)
        code = say_interrupted(t, &h);
    else if (!code && !t->quiet)
        say_files(t, curve);
    kiln_history_free(&h);
    free(data);
    free(how);
    free(about);
    return code;
}

static int prepare_and_fit(training *t)
{
    int code = folder_resume(t);
    if (!code)
        code = use_device(t->a, &t->device);
    if (!code)
        code = open_parts(t);
    if (!code)
        code = set_up(t);
    saved_close(&t->kept);
    if (!code)
        code = folder_make(t);
    if (!code && !t->quiet)
        say_start(t);
    return code ? code : fit_and_tell(t);
}

static int train(const arguments *a)
{
    training t = {.a = a, .quiet = given(a, "quiet"), .resume = given(a, "resume")};
    const char *schedule = text_of(a, "schedule", NULL);
    catch_save();
    signal(SIGPIPE, SIG_IGN); /* a reader that goes away does not end the training */
    if (schedule && schedule_check(schedule))
        return EX_USAGE;
    t.folder = text_of(a, "save", DEFAULT_RUN);
    t.log = given(a, "log") ? must_format("%s", text_of(a, "log", "")) : must_format("%s/log.jsonl", t.folder);
    t.curve = must_format("%s/curve.svg", t.folder);
    int code = prepare_and_fit(&t);
    kiln_schedule_free(t.schedule);
    kiln_ema_free(t.ema);
    kiln_optim_free(t.optim);
    network_free(&t.net);
    source_free(&t.data);
    if (code)
        folder_undo(&t);
    free(t.log);
    free(t.curve);
    free(t.moved);
    free(t.moved_log);
    free(t.kept_model);
    free(t.kept_data);
    free(t.kept_recipe);
    return code;
}

const command command_train = {.name = "train",
                               .about = "Trains a model; all by itself: mlp on drawn digits",
                               .options = options,
                               .notes = "Example: kiln train --data mnist --model lenet --epochs 5 --save run\n",
                               .run = train};
