/* kiln plan: what a training step would need, without running one. */
#include <stdlib.h>
#include <string.h>
#include "cli/step.h"

static const option options[] = {
    {"model", 0, OPTION_TEXT, "MODEL", "name[:key=value,...] or FILE.yaml (mlp)", 0, 0, "<models>"},
    {"batch", 0, OPTION_COUNT, "N", "samples at once (32)", 1, 1e9, NULL},
    {"length", 0, OPTION_COUNT, "N", "bytes of text seen at once (the model's own)", 1, 1 << 20, NULL},
    {"optim", 0, OPTION_WORD, "NAME", "sgd adam adamw rmsprop adagrad lion (adam)", 0, 0, OPTIMIZERS},
    {"mem-limit", 0, OPTION_SIZE, "SIZE", "find the largest batch that fits: 512M, 2G", 0, 0, NULL},
    {"summary", 0, OPTION_FLAG, NULL, "also the model's layers, one a line", 0, 0, NULL},
    {"kernels", 0, OPTION_FLAG, NULL, "also every kernel, what it reads and what it writes", 0, 0, NULL},
    OPTION_DEVICE,
    OPTION_THREADS,
    {0}};

/* Records a step, takes the plan's description, and discards the step: an error in a step is how to do that. */
static char *describe(step *s)
{
    char *text = NULL;
    kiln_step {
        step_record(s);
        text = kiln_plan_describe();
        if (text)
            kiln_item(NULL);
    }
    if (text)
        kiln_error_clear();
    return text;
}

/* The size after `word` in the description, as the description rounds it. */
static uint64_t find_bytes(const char *text, const char *word)
{
    const char *at = text ? strstr(text, word) : NULL;
    char unit[8] = "";
    double n = 0;
    if (!at || sscanf(at + strlen(word), " %lf %7[A-Za-z]", &n, unit) != 2)
        return 0;
    double scale = !strcmp(unit, "KiB") ? 1024 : !strcmp(unit, "MiB") ? 1 << 20 : !strcmp(unit, "GiB") ? 1 << 30 : 1;
    return (uint64_t)(n * scale);
}

static uint64_t bytes_of(kiln_params p)
{
    uint64_t n = 0;
    for (int64_t i = 0; i < p.count; i++)
        n += (uint64_t)kiln_numel(p.tensors[i]) * kiln_dtype_size(kiln_dtype_of(p.tensors[i]));
    return n;
}

static uint64_t bytes_of_tensor(const kiln_tensor *t)
{
    return t ? (uint64_t)kiln_numel(t) * kiln_dtype_size(kiln_dtype_of(t)) : 0;
}

/* All that is in use during a step with this batch; 0 with a reported error. */
static uint64_t need_of(network *n, const char *optim, int64_t batch, kiln_device device, int *code)
{
    step s;
    uint64_t need = 0;
    *code = step_make(&s, n, optim, batch, device);
    char *text = *code ? NULL : describe(&s);
    if (text)
        need = bytes_of(kiln_state(n->module)) + bytes_of(kiln_optim_state(s.optim)) + bytes_of_tensor(s.x) +
               bytes_of_tensor(s.y) + find_bytes(text, "\npeak:");
    else if (!*code)
        *code = fail_kiln();
    kiln_string_free(text);
    step_free(&s);
    return need;
}

static int say_largest(network *n, const char *optim, uint64_t limit, kiln_device device)
{
    int64_t fits = 0, too_large = 1;
    int code = 0;
    while (!code && too_large < (1 << 24) && need_of(n, optim, too_large, device, &code) <= limit) {
        fits = too_large;
        too_large *= 2;
    }
    while (!code && too_large - fits > 1) {
        int64_t middle = fits + (too_large - fits) / 2;
        *(need_of(n, optim, middle, device, &code) <= limit ? &fits : &too_large) = middle;
    }
    if (code)
        return code;
    if (fits)
        printf("\nlargest batch within %s: %s\n", show_size(limit), show_count(fits));
    else
        printf("\nnot even a batch of 1 fits %s\n", show_size(limit));
    return 0;
}

static void say_row(const char *name, uint64_t bytes, const char *about)
{
    printf("  %-12s%12s  %s\n", name, show_size(bytes), about);
}

static void say_plan(step *s, const char *text, int64_t batch, const char *optim)
{
    char counted[64];
    snprintf(counted, sizeof counted, "%s parameters", show_count(kiln_parameter_count(s->net->module)));
    uint64_t weights = bytes_of(kiln_state(s->net->module)), state = bytes_of(kiln_optim_state(s->optim));
    uint64_t data = bytes_of_tensor(s->x) + bytes_of_tensor(s->y), peak = find_bytes(text, "\npeak:");
    const char *work = strstr(text, "work: ");
    printf("A training step of %s with batch %s and %s:\n", s->net->name, show_count(batch), optim);
    say_row("weights", weights, counted);
    say_row(optim, state, "the optimizer's state");
    say_row("batch", data, "inputs and targets");
    say_row("the step", peak, "activations, gradients, workspace: at most at once");
    say_row("together", weights + state + data + peak, "");
    printf("\nOf gradients there are %s, of activations %s all in all; the plan places them\n"
           "in the same memory one after the other.\n",
           show_size(find_bytes(text, "gradients")), show_size(find_bytes(text, "activations")));
    printf("%.*s", (int)strcspn(text, "\n") + 1, text);
    if (work)
        fputs(work, stdout);
}

static int say_layers(const network *n, int64_t batch)
{
    int64_t shape[KILN_MAX_DIMS] = {batch};
    memcpy(shape + 1, n->shape, (size_t)n->ndim * sizeof *shape);
    char *table = kiln_summary(n->module, n->ndim + 1, shape, n->dtype);
    if (!table)
        return fail_kiln();
    printf("%s\n", table);
    kiln_string_free(table);
    return 0;
}

static int plan_step(const arguments *a, network *n, kiln_device device)
{
    const char *optim = text_of(a, "optim", "adam");
    int64_t batch = count_of(a, "batch", 32);
    step s;
    int code = step_make(&s, n, optim, batch, device);
    if (!code && given(a, "summary"))
        code = say_layers(n, batch);
    char *text = code ? NULL : describe(&s);
    if (!code && !text)
        code = fail_kiln();
    if (!code && given(a, "kernels"))
        printf("%s\n", text);
    if (!code)
        say_plan(&s, text, batch, optim);
    kiln_string_free(text);
    step_free(&s);
    if (!code && given(a, "mem-limit"))
        code = say_largest(n, optim, size_of(a, "mem-limit", 0), device);
    return code;
}

static int plan(const arguments *a)
{
    arguments unlimited = *a; /* here --mem-limit is a question, not a limit */
    kiln_device device;
    network n = {0};
    arguments_set(&unlimited, "mem-limit", NULL);
    int code = use_device(&unlimited, &device);
    if (!code)
        code = step_network(a, &n, device);
    if (!code)
        code = plan_step(a, &n, device);
    network_free(&n);
    return code;
}

const command command_plan = {.name = "plan",
                              .about = "Shows what a training step would need, without running it",
                              .options = options,
                              .notes = "Examples: kiln plan --model lenet --batch 256\n"
                                       "          kiln plan --model gpt2:layers=4,embed=128,heads=4 --mem-limit 2G\n",
                              .run = plan};
