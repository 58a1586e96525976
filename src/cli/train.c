/* kiln train: a network, data, and a recipe, to a folder with weights, checkpoints, a log and a curve. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cli/recipe.h"

static const option options[] = {
    {"model", 0, OPTION_TEXT, "MODEL", "name[:key=value,...] or FILE.yaml (mlp; gpt2 for text)", 0, 0, "<models>"},
    {"data", 0, OPTION_TEXT, "DATA", "digits, folder or file with IDX, or text file (digits)", 0, 0, "<data>"},
    {"split", 0, OPTION_NUMBER, "SHARE", "trains, where there is no test set (0.9)", 0.001, 1, NULL},
    {"length", 0, OPTION_COUNT, "N", "bytes of text seen at once (128)", 1, 1 << 20, NULL},
    {"flip", 0, OPTION_FLAG, NULL, "mirror half of the images, other ones each epoch", 0, 0, NULL},
    {"crop", 0, OPTION_COUNT, "N", "shift images at random by up to N pixels (0)", 0, 1 << 20, NULL},
    {"dropout", 0, OPTION_NUMBER, "P", "of models that have it (0)", 0, 0.999, NULL},
    {"init", 0, OPTION_TEXT, "FILE", "begin with the weights of a safetensors file", 0, 0, "<files>"},
    OPTION_DEVICE,
    OPTION_THREADS,
    {"workers", 0, OPTION_COUNT, "N", "threads that prepare data (1)", 0, 256, NULL},
    OPTION_MEM_LIMIT,
    OPTION_TF32,
    {"epochs", 0, OPTION_COUNT, "N", "passes over the data (8; resnets 5, vit 10)", 1, 1e9, NULL},
    {"limit", 0, OPTION_COUNT, "N", "stop after N optimizer steps", 1, 1e15, NULL},
    {"batch", 0, OPTION_COUNT, "N", "samples at once (64; text 32)", 1, 1e9, NULL},
    {"accumulate", 0, OPTION_COUNT, "N", "batches whose gradients make a step (1)", 1, 1e9, NULL},
    {"lr", 0, OPTION_NUMBER, "RATE", "learning rate (1e-3; by model and optimizer)", 1e-12, 1e6, NULL},
    {"optim", 0, OPTION_WORD, "NAME", "sgd adam adamw rmsprop adagrad lion (adam; adamw)", 0, 0, OPTIMIZERS},
    {"momentum", 0, OPTION_NUMBER, "M", "of sgd (0.9) and rmsprop (0)", 0, 0.9999, NULL},
    {"weight-decay", 0, OPTION_NUMBER, "D", "(0; adamw 0.01)", 0, 1e3, NULL},
    {"schedule", 0, OPTION_WORD, "NAME", "constant step cosine one-cycle exponential plateau", 0, 0, SCHEDULES},
    {"warmup", 0, OPTION_COUNT, "N", "steps in which the rate rises (0; text 100)", 0, 1e15, NULL},
    {"clip", 0, OPTION_NUMBER, "NORM", "largest norm of all gradients (none; text 1)", 0, 1e9, NULL},
    {"ema", 0, OPTION_NUMBER, "DECAY", "average the weights, e.g. 0.999 (no)", 0, 0.999999999, NULL},
    {"early-stop", 0, OPTION_COUNT, "N", "stop after N epochs without a better test loss", 1, 1e9, NULL},
    {"seed", 0, OPTION_COUNT, "N", "of weights, dropout and order (0)", 0, 9e15, NULL},
    {"no-shuffle", 0, OPTION_FLAG, NULL, "take the samples in their order", 0, 0, NULL},
    {"save", 0, OPTION_TEXT, "DIR", "the run's folder (kiln-run)", 0, 0, "<folders>"},
    {"save-every", 0, OPTION_COUNT, "STEPS", "a checkpoint that often (after each epoch)", 1, 1e15, NULL},
    {"resume", 0, OPTION_FLAG, NULL, "go on from the folder's last checkpoint", 0, 0, NULL},
    {"log", 0, OPTION_TEXT, "FILE", ".jsonl or .csv (DIR/log.jsonl)", 0, 0, "<files>"},
    {"quiet", 'q', OPTION_FLAG, NULL, "say nothing but errors", 0, 0, NULL},
    {0}};

/* All a run consists of. */
typedef struct training {
    const arguments *a;
    network net;
    source data;
    recipe recipe;
    kiln_device device;
    kiln_optim *optim;
    kiln_schedule *schedule;
    kiln_ema *ema;
    const char *folder;
    char *log, *curve;
    char *kept_path, *kept_model, *kept_data, *kept_recipe; /* of the run that is resumed */
    char *moved;                                            /* where the run that was in the folder is now */
    bool quiet, resume, made_folder;
} training;

/* ---- Ctrl-C ---- */

static volatile sig_atomic_t asked_to_stop;

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

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND | SA_RESTART}, before;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* nohup goes on without the terminal */
        sigaction(SIGHUP, &action, NULL);
}

/* ---- The folder ---- */

static bool holds_run(const char *folder)
{
    char *best = must_format("%s/best.safetensors", folder), *checkpoint = kiln_checkpoint_find(folder);
    bool there = path_exists(best) || checkpoint;
    kiln_string_free(checkpoint);
    kiln_error_clear();
    free(best);
    return there;
}

/* Whether kiln_fit is at work in the folder, which it locks. */
static bool in_use(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool locked = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (fd >= 0)
        close(fd);
    return locked;
}

/* A run that is there is never overwritten: it is moved to the next free name. */
static int make_way(training *t)
{
    if (!holds_run(t->folder))
        return 0;
    if (in_use(t->folder)) {
        fail(EX_IOERR, "%s: another kiln train is at work in this folder", t->folder);
        hint("choose another folder by --save");
        return EX_IOERR;
    }
    size_t length = strlen(t->folder);
    while (length > 1 && t->folder[length - 1] == '/')
        length--;
    char *other = NULL;
    for (int i = 1; !other || path_exists(other); i++) {
        free(other);
        other = must_format("%.*s.%d", (int)length, t->folder, i);
    }
    int code = 0;
    if (rename(t->folder, other) != 0) {
        code = fail(EX_IOERR, "%s holds a run and cannot be moved to %s: %s", t->folder, other, strerror(errno));
        hint("go on with it by --resume, or choose another folder by --save");
    } else if (!t->quiet) {
        printf("The run that was in %.*s is now in %s\n", (int)length, t->folder, other);
    }
    if (code)
        free(other);
    else
        t->moved = other;
    return code;
}

/* After an error: where nothing came to be in the new folder, all is as it was before. */
static void undo_folder(training *t)
{
    struct stat s;
    if (stat(t->log, &s) == 0 && s.st_size == 0 && !given(t->a, "log"))
        unlink(t->log);
    if (rmdir(t->folder) == 0 && t->moved && rename(t->moved, t->folder) == 0 && !t->quiet)
        printf("The run is back in %s\n", t->folder);
}

/* Found out before a run is moved aside. */
static int check_log_folder(const training *t)
{
    const char *log = text_of(t->a, "log", ""), *slash = strrchr(log, '/');
    if (!slash || slash == log)
        return 0;
    char *folder = must_format("%.*s", (int)(slash - log), log);
    bool there = path_is_folder(folder), own = !strcmp(folder, t->folder);
    int code = there || own ? 0 : fail(EX_NOINPUT, "--log %s: there is no folder %s", log, folder);
    free(folder);
    return code;
}

static int make_folder(training *t)
{
    if (check_log_folder(t))
        return EX_NOINPUT;
    if (!t->resume) {
        int code = make_way(t);
        if (code)
            return code;
    }
    t->made_folder = mkdir(t->folder, 0777) == 0;
    if (t->made_folder || (errno == EEXIST && path_is_folder(t->folder)))
        return 0;
    int why = errno;
    if (why == EEXIST)
        return fail(EX_IOERR, "%s is a file; a run needs a folder", t->folder);
    fail(why == ENOENT ? EX_NOINPUT : EX_IOERR, "%s: the folder cannot be made: %s", t->folder, strerror(why));
    if (why == ENOENT)
        hint("the folder it is to be in does not exist");
    return why == ENOENT ? EX_NOINPUT : EX_IOERR;
}

/* What the run that is resumed says about itself. */
static int read_kept(training *t)
{
    if (!t->resume)
        return 0;
    char *newest = kiln_checkpoint_find(t->folder);
    if (!newest && !kiln_ok())
        return fail_kiln();
    if (!newest) {
        if (!t->quiet)
            printf("No checkpoint in %s yet: training from the start\n", t->folder);
        return 0;
    }
    char *path = must_format("%s/model.safetensors", newest);
    saved s;
    int code = saved_open(&s, path);
    if (!code) {
        t->kept_model = s.model ? must_format("%s", s.model) : NULL;
        t->kept_data = s.data ? must_format("%s", s.data) : NULL;
        t->kept_recipe = s.train ? must_format("%s", s.train) : NULL;
    }
    saved_close(&s);
    t->kept_path = path;
    kiln_string_free(newest);
    return code;
}

/* ---- Setting up ---- */

/* The model of --model, of the run, or the one that suits the data. */
static int choose_network(training *t, const char *data)
{
    const char *standard = source_is_text(data) ? "gpt2:layers=4,heads=4,embed=128" : "mlp";
    bool kept = t->kept_model && !given(t->a, "model");
    int code = kept ? network_choose_kept(&t->net, t->kept_model, t->kept_path)
                    : network_choose(&t->net, text_of(t->a, "model", standard));
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
    return recipe_schedule(r, t->optim, samples, &t->schedule);
}

/* ---- Talking ---- */

static void say_augmenting(const recipe *r)
{
    if (!r->flip && !r->crop)
        return;
    printf("images  %s%s", r->flip ? " mirrored at random" : "", r->flip && r->crop ? ", " : r->crop ? " " : "");
    if (r->crop)
        printf("shifted by up to %s pixel%s", show_count(r->crop), r->crop == 1 ? "" : "s");
    printf("\n");
}

static void say_start(const training *t)
{
    kiln_device_info info = {0};
    const kiln_data_info *d = &t->data.info;
    const recipe *r = &t->recipe;
    kiln_device_describe(t->device, &info);
    kiln_error_clear();
    bool cpu = t->device == KILN_CPU;
    printf("device   %s (%s, %d %s)%s\n", kiln_device_name(t->device), info.name,
           cpu ? kiln_get_num_threads() : info.threads, cpu ? "threads" : "multiprocessors",
           info.capability[0] && kiln_get_tf32() ? ", products in TF32" : "");
    printf("model    %s, %s parameters\n", t->net.name, show_count(kiln_parameter_count(t->net.module)));
    printf("data     %s: %s to train, %s to test, each %s", strcmp(t->data.origin, "digits") ? d->name : "digits",
           show_count(kiln_data_count(t->data.train)), show_count(kiln_data_count(t->data.test)),
           d->text ? "" : show_shape(d->x.ndim, d->x.shape));
    if (d->text)
        printf("%s bytes of text\n", show_count(d->x.shape[0]));
    else if (d->classes > 0)
        printf(", %s classes\n", show_count(d->classes));
    else
        printf(", no labels\n");
    say_augmenting(r);
    printf("training %s epoch%s, batch %s", show_count(r->epochs), r->epochs == 1 ? "" : "s", show_count(r->batch));
    if (r->accumulate > 1)
        printf(" x %s", show_count(r->accumulate));
    printf(", %s at %g, %s", r->optim, r->lr, r->schedule);
    if (r->warmup > 0)
        printf(" after %s steps of warm-up", show_count(r->warmup));
    printf("\n");
    fflush(stdout);
}

static void say_best(const kiln_history *h)
{
    for (int64_t i = 0; i < h->count; i++) {
        const kiln_epoch *e = &h->epochs[i];
        if (e->epoch != h->best)
            continue;
        const kiln_result *r = e->test.samples > 0 ? &e->test : &e->train;
        printf("Best epoch %lld, %s: loss %.4f", (long long)e->epoch + 1, e->test.samples > 0 ? "test" : "train",
               r->loss);
        if (!isnan(r->accuracy))
            printf(", accuracy %.2f %%", 100 * r->accuracy);
        if (!isnan(r->perplexity))
            printf(", perplexity %.2f", r->perplexity);
        printf("\n");
    }
}

static void say_end(const training *t, const kiln_history *h, double seconds)
{
    double trained = 0, waited = 0;
    for (int64_t i = 0; i < h->count; i++) {
        trained += h->epochs[i].seconds;
        waited += h->epochs[i].seconds * h->epochs[i].data_wait;
    }
    if (h->stop == KILN_STOP_EARLY)
        printf("Stopped early: the test loss has not fallen for %s epochs\n", show_count(t->recipe.early_stop));
    say_best(h);
    if (!(h->first_step > 0))
        return; /* a run that was done already */
    printf("Took %s %s %s%s, %s for the first", show_seconds(seconds), t->kept_recipe ? "up to step" : "for",
           show_count(h->steps), t->kept_recipe ? "" : " steps", show_seconds(h->first_step));
    if (trained > 0)
        printf("; %.0f %% of it waiting for data", 100 * waited / trained);
    kiln_memory_stats memory;
    if (kiln_memory_get_stats(t->device, &memory))
        printf("\nUsed at most %s of memory on %s", show_size(memory.peak), kiln_device_name(t->device));
    printf("\n");
}

/* A word as a shell would have to be given it. */
static void say_word(FILE *out, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./:,+@%";
    if (*word && strspn(word, plain) == strlen(word)) {
        fprintf(out, " %s", word);
        return;
    }
    fputs(" '", out);
    for (; *word; word++)
        *word == '\'' ? fputs("'\\''", out) : fputc(*word, out);
    fputc('\'', out);
}

static void say_files(const training *t, bool curve)
{
    const char *log = text_of(t->a, "log", NULL);
    printf("Saved %s/: best.safetensors%s%s%s\n", t->folder, log ? "" : ", log.jsonl", curve ? ", curve.svg" : "",
           ", the last checkpoint");
    if (log)
        printf("Saved %s\n", log);
    bool named = strcmp(t->folder, DEFAULT_RUN) != 0;
    printf("Try: kiln eval");
    if (named)
        say_word(stdout, t->folder);
    printf("; kiln %s", t->net.tokens ? "generate" : "predict");
    if (named)
        say_word(stdout, t->folder);
    printf("\n");
}

static int interrupted(const training *t, const kiln_history *h)
{
    fflush(stdout);
    fprintf(stderr, "interrupted: saved %s after %s steps; go on with: kiln train", t->folder, show_count(h->steps));
    for (int i = 0; i < t->a->argc; i++)
        if (strcmp(t->a->argv[i], "--resume") != 0)
            say_word(stderr, t->a->argv[i]);
    fputs(" --resume\n", stderr);
    return EXIT_INTERRUPTED;
}

/* ---- Training ---- */

static kiln_history fit(training *t, const kiln_meta *meta, int nmeta)
{
    const recipe *r = &t->recipe;
    return kiln_fit(t->net.module, t->data.train, .epochs = r->epochs, .batch = r->batch, .validate = t->data.test,
                    .optim = t->optim, .schedule = t->schedule, .loss = t->net.loss, .metrics = t->net.metrics,
                    .accumulate = r->accumulate, .clip_norm = r->clip, .ema = t->ema, .early_stop = r->early_stop,
                    .seed = (uint64_t)r->seed, .no_shuffle = r->no_shuffle,
                    .augment = {.flip = r->flip, .crop = (int)r->crop}, .workers = (int)count_of(t->a, "workers", 1),
                    .limit = count_of(t->a, "limit", 0), .checkpoint = t->folder,
                    .save_steps = count_of(t->a, "save-every", 0), .resume = t->resume, .nmeta = nmeta, .meta = meta,
                    .log = t->log, .progress = t->quiet ? NULL : stdout, .stop = &asked_to_stop);
}

static int fit_and_tell(training *t)
{
    char *data = source_meta(&t->data), *how = recipe_meta(&t->recipe);
    kiln_meta meta[] = {{"kiln.model", t->net.text}, {"kiln.data", data}, {"kiln.train", how}};
    double start = seconds_now();
    catch_signals();
    kiln_history h = fit(t, meta, 3);
    double seconds = seconds_now() - start;
    int code = 0;
    if (!kiln_ok())
        code = fail_kiln();
    say_notices();
    char title[160];
    const char *slash = strrchr(t->data.origin, '/');
    snprintf(title, sizeof title, "%s on %s", t->net.name, slash ? slash + 1 : t->data.origin);
    bool curve = !code && h.count > 0 && plot_logs(1, &t->log, t->curve, title) == 0;
    if (!code && !t->quiet && h.count > 0)
        say_end(t, &h, seconds);
    if (!code && h.stop == KILN_STOP_ASKED && asked_to_stop)
        code = interrupted(t, &h);
    else if (!code && !t->quiet)
        say_files(t, curve);
    kiln_history_free(&h);
    free(data);
    free(how);
    return code;
}

static int prepare_and_fit(training *t)
{
    int code = read_kept(t);
    if (!code)
        code = use_device(t->a, &t->device);
    if (!code)
        code = open_parts(t);
    if (!code)
        code = set_up(t);
    if (!code)
        code = make_folder(t);
    if (!code && !t->quiet)
        say_start(t);
    return code ? code : fit_and_tell(t);
}

static int train(const arguments *a)
{
    training t = {.a = a, .quiet = given(a, "quiet"), .resume = given(a, "resume")};
    const char *schedule = text_of(a, "schedule", NULL);
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
    if (code && t.made_folder)
        undo_folder(&t);
    free(t.log);
    free(t.curve);
    free(t.moved);
    free(t.kept_path);
    free(t.kept_model);
    free(t.kept_data);
    free(t.kept_recipe);
    return code;
}

const command command_train = {.name = "train",
                               .about = "Trains a model; all by itself: mlp on drawn digits",
                               .options = options,
                               .notes = "Examples: kiln train --data mnist --model lenet --epochs 5\n"
                                        "          kiln train --data text.txt --schedule cosine:final=0.1 --save run\n",
                               .run = train};
