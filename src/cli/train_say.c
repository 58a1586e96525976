/* What kiln train says about a run: before it, after it, and in its log. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "cli/training.h"

static void say_augmenting(const recipe *r)
{
    if (!r->flip && !r->crop)
        return;
    printf("images  %s%s", r->flip ? " mirrored at random" : "", r->flip && r->crop ? ", " : r->crop ? " " : "");
    if (r->crop)
        printf("shifted by up to %s pixel%s", show_count(r->crop), r->crop == 1 ? "" : "s");
    printf("\n");
}

/* The batch that --batch auto has found. */
static void say_batch(const training *t)
{
    const kiln_forecast *f = &t->planned;
    bool all = f->batch == kiln_data_count(t->data.train);
    printf("batch    %s: %s %s", show_count(f->batch), all ? "all samples fit into" : "the largest that fits into",
           show_size(f->room));
    printf(" (planned peak %s)\n", show_size(f->peak));
}

void say_start(const training *t)
{
    kiln_device_info info = {0};
    const kiln_data_info *d = &t->data.info;
    const recipe *r = &t->recipe;
    kiln_device_describe(t->device, &info);
    kiln_error_clear();
    bool cpu = t->device == KILN_CPU;
    printf("device   %s (%s, %d %s)%s%s\n", kiln_device_name(t->device), info.name,
           cpu ? kiln_get_num_threads() : info.threads, cpu ? "threads" : "multiprocessors",
           info.capability[0] && kiln_get_tf32() ? ", products in TF32" : "",
           r->amp == KILN_F16 ? ", autocast to f16"
           : r->amp           ? ", autocast to bf16"
                              : "");
    say("model    %s, %s parameters\n", t->net.given, show_count(kiln_parameter_count(t->net.module)));
    say("data     %s, %s to train, %s to test, each %s", t->data.given, show_count(kiln_data_count(t->data.train)),
        show_count(kiln_data_count(t->data.test)), d->text ? "" : show_shape(d->x.ndim, d->x.shape));
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
    if (r->fit_memory)
        printf(" (in parts where it does not fit%s)", r->fit_memory == KILN_FIT_LOCAL ? ", norms by part" : "");
    printf(", %s at %g, %s", r->optim, r->lr, r->schedule);
    if (r->warmup > 0)
        printf(" after %s steps of warm-up", show_count(r->warmup));
    printf("\n");
    if (r->find_batch)
        say_batch(t);
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

static void say_memory(const training *t, uint64_t used)
{
    printf("\nUsed at most %s of memory on %s", show_size(used), kiln_device_name(t->device));
    bool as_planned = t->planned.peak <= t->planned.room; /* else values were computed twice, or batches split */
    if (t->planned.peak && as_planned)
        printf("; planned were %s", show_size(t->planned.peak));
    if (t->planned_plain > t->planned.peak && as_planned)
        printf(", %s less than without --amp", show_size(t->planned_plain - t->planned.peak));
}

static void say_scale(const kiln_history *h)
{
    const kiln_epoch *last = &h->epochs[h->count - 1], *known = last;
    printf("\nScaled the loss by %g at the end; %s step%s left out", last->scale, show_count(last->skipped),
           last->skipped == 1 ? " was" : "s were");
    while (!known->culprit && known > h->epochs)
        known--;
    if (known->culprit)
        printf(": %s value%s of the gradient of %s %s not finite", show_count(known->bad_values),
               known->bad_values == 1 ? "" : "s", known->culprit, known->bad_values == 1 ? "was" : "were");
}

void say_end(const training *t, const kiln_history *h, double seconds)
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
    if (h->epochs[h->count - 1].scale > 0)
        say_scale(h);
    kiln_memory_stats memory;
    if (kiln_memory_get_stats(t->device, &memory))
        say_memory(t, memory.peak + memory.overhead);
    printf("\n");
}

/* A word as a shell would have to be given it: bash's $'…' where it holds what a terminal must not be shown. */
static void put_word(FILE *out, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./:,+@%";
    if (*word && strspn(word, plain) == strlen(word)) {
        fprintf(out, " %s", word);
        return;
    }
    bool coded = false;
    for (const char *at = word; *at; at += shown_bytes(at) ? shown_bytes(at) : 1)
        coded = coded || !shown_bytes(at);
    fputs(coded ? " $'" : " '", out);
    for (int n; *word; word += n ? n : 1) {
        n = shown_bytes(word);
        if (!n)
            fprintf(out, "\\x%02x", (unsigned char)*word);
        else if (*word == '\'' || (coded && *word == '\\'))
            fputs(coded ? (*word == '\'' ? "\\'" : "\\\\") : "'\\''", out);
        else
            fwrite(word, 1, (size_t)n, out);
    }
    fputc('\'', out);
}

void say_files(const training *t, bool curve)
{
    const char *log = text_of(t->a, "log", NULL);
    say("Saved %s/: best.safetensors%s%s%s\n", t->folder, log ? "" : ", log.jsonl", curve ? ", curve.svg" : "",
        ", the last checkpoint");
    if (log)
        say("Saved %s\n", log);
    bool named = strcmp(t->folder, DEFAULT_RUN) != 0;
    printf("Try: kiln eval");
    if (named)
        put_word(stdout, t->folder);
    printf("; kiln %s", t->net.tokens ? "generate" : "predict");
    if (named)
        put_word(stdout, t->folder);
    printf("\n");
}

int say_interrupted(const training *t, const kiln_history *h)
{
    fflush(stdout);
    fputs("interrupted: saved ", stderr);
    put_shown(stderr, t->folder);
    fprintf(stderr, " after %s steps; go on with: kiln train", show_count(h->steps));
    for (int i = 0; i < t->a->argc; i++)
        if (strcmp(t->a->argv[i], "--resume") != 0)
            put_word(stderr, t->a->argv[i]);
    fputs(" --resume\n", stderr);
    return EXIT_INTERRUPTED;
}

/* ---- The log ---- */

static char *command_line(const training *t)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        exit(fail(EX_OSERR, "out of memory"));
    fputs("kiln train", out);
    for (int i = 0; i < t->a->argc; i++)
        put_word(out, t->a->argv[i]);
    fclose(out);
    return text;
}

char *about_run(const training *t)
{
    const recipe *r = &t->recipe;
    char *line = command_line(t), *model = shown_text(t->net.given), *data = shown_text(t->data.origin);
    json_t *o = json_pack("{s:s, s:s, s:f, s:s, s:I, s:s, s:I}", "model", model, "data", data, "lr", r->lr, "schedule",
                          r->schedule, "warmup", (json_int_t)r->warmup, "command", line, "planned_peak",
                          (json_int_t)t->planned.peak);
    if (t->planned_plain)
        json_object_set_new(o, "planned_peak_without_amp", json_integer((json_int_t)t->planned_plain));
    char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(o);
    free(line);
    free(model);
    free(data);
    if (!text)
        exit(fail(EX_OSERR, "out of memory"));
    return text;
}
