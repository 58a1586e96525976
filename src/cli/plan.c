/* kiln plan: what a training step would need, without running one. */
#include <stdlib.h>
#include <string.h>
#include "cli/step.h"
#include "core/largest.h"

static const option options[] = {
    {"model", 0, OPTION_TEXT, "MODEL", "name[:key=value,...] or FILE.yaml (mlp)", 0, 0, "<models>"},
    {"batch", 0, OPTION_COUNT, "N", "samples at once (32), or auto: the largest that fits", 1, 1e9, "auto"},
    {"length", 0, OPTION_COUNT, "N", "bytes of text seen at once (the model's own)", 1, 1 << 20, NULL},
    {"optim", 0, OPTION_WORD, "NAME", "(adam)", 0, 0, "<optimizers>"},
    {"mem-limit", 0, OPTION_SIZE, "SIZE", "what that costs, the largest batch: 512M, 2G", 0, 0, NULL},
    {"summary", 0, OPTION_FLAG, NULL, "also the model's layers, one a line", 0, 0, NULL},
    {"kernels", 0, OPTION_FLAG, NULL, "also every kernel, what it reads and what it writes", 0, 0, NULL},
    OPTION_DEVICE,
    OPTION_THREADS,
    OPTION_TF32,
    OPTION_AMP,
    {0}};

/* Records a step, looks at its plan and forgets it; the description (if wanted) is freed with kiln_string_free. */
static int look(step *s, kiln_plan_info *info, char **text)
{
    kiln_step {
        step_record(s);
        if (kiln_ok() && kiln_plan_pending(info) && text)
            *text = kiln_plan_describe();
        kiln_discard();
    }
    return kiln_ok() ? 0 : fail_kiln();
}

/* The same for a step that may take no more than `bytes`; *fits says whether it can be made to. */
static int look_within(step *s, uint64_t bytes, kiln_plan_info *info, bool *fits)
{
    kiln_step {
        step_record(s);
        bool recorded = kiln_ok();
        *fits = recorded && kiln_plan_pending_within(bytes, info);
        if (recorded && !*fits && kiln_last_error()->code == KILN_E_MEMORY)
            kiln_error_clear();
        kiln_discard();
    }
    return kiln_ok() ? 0 : fail_kiln();
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

/* All that is in use during a step with this batch. */
static uint64_t need_of(step *s, const kiln_plan_info *info)
{
    return bytes_of(kiln_state(s->net->module)) + bytes_of(kiln_optim_state(s->optim)) + bytes_of_tensor(s->x) +
           bytes_of_tensor(s->y) + (uint64_t)info->peak_bytes;
}

/* What a step with this batch leaves of the limit; negative: it does not fit. */
static int look_at_batch(step *s, int64_t batch, uint64_t limit, kiln_device device, double *spare)
{
    kiln_plan_info info;
    int code = step_set_batch(s, batch, device);
    if (!code)
        code = look(s, &info, NULL);
    if (!code)
        *spare = (double)limit - (double)need_of(s, &info);
    return code;
}

/* What the limit costs a step that does not fit as it is: values are computed a second time. */
static int say_recomputing(step *s, const kiln_plan_info *plain, uint64_t limit)
{
    kiln_plan_info within;
    bool can = false;
    uint64_t beside = need_of(s, plain) - (uint64_t)plain->peak_bytes;
    if (need_of(s, plain) <= limit) {
        printf("\nThat fits %s.\n", show_size(limit));
        return 0;
    }
    int code = limit > beside ? look_within(s, limit - beside, &within, &can) : 0;
    if (code)
        return code;
    if (!can) {
        printf("\nIt does not fit %s, also where all that can be is computed a second time.\n", show_size(limit));
        return 0;
    }
    printf(within.recomputed
               ? "\nWithin %s it runs by computing %s of its operations a second time for the backward pass:\n"
               : "\nWithin %s it runs, with memory laid out more closely:\n",
           show_size(limit), show_count(within.recomputed));
    printf("  %-12s%12s%14s%14s%14s\n", "", "the step", "together", "GFLOP", "at best");
    printf("  %-12s%12s%14s%14.4g%11.4g ms\n", "as it is", show_size((uint64_t)plain->peak_bytes),
           show_size(need_of(s, plain)), 1e-9 * (double)plain->flops, 1e3 * plain->seconds);
    printf("  %-12s%12s%14s%14.4g%11.4g ms\n", "within", show_size((uint64_t)within.peak_bytes),
           show_size(need_of(s, &within)), 1e-9 * (double)within.flops, 1e3 * within.seconds);
    printf("That is %.0f %% of the memory and about %.0f %% of the time; KILN_RECOMPUTE=0 refuses such steps.\n",
           100 * (double)within.peak_bytes / (double)plain->peak_bytes, 100 * within.seconds / plain->seconds);
    return 0;
}

/* *batch: the largest that fits, 0: none. */
static int find_largest(step *s, uint64_t limit, kiln_device device, int64_t *batch)
{
    kiln_largest l = {.most = 1 << 24, .inexact = 400};
    int code = 0;
    for (int64_t next; !code && (next = kiln_largest_next(&l));) {
        double spare = -1;
        code = look_at_batch(s, next, limit, device, &spare);
        if (!code)
            kiln_largest_tell(&l, next, spare);
    }
    *batch = l.low;
    return code;
}

static int say_largest(step *s, uint64_t limit, kiln_device device)
{
    int64_t fitting;
    int code = find_largest(s, limit, device, &fitting);
    if (code)
        return code;
    if (fitting)
        printf("\nlargest batch within %s: %s\n", show_size(limit), show_count(fitting));
    else
        printf("\nnot even a batch of 1 fits %s\n", show_size(limit));
    return 0;
}

static void say_row(const char *name, uint64_t bytes, const char *about)
{
    printf("  %-12s%12s  %s\n", name, show_size(bytes), about);
}

static void say_plan(step *s, const kiln_plan_info *info, int64_t batch, const char *optim)
{
    char counted[64];
    snprintf(counted, sizeof counted, "%s parameters", show_count(kiln_parameter_count(s->net->module)));
    uint64_t weights = bytes_of(kiln_state(s->net->module)), state = bytes_of(kiln_optim_state(s->optim));
    uint64_t data = bytes_of_tensor(s->x) + bytes_of_tensor(s->y);
    printf("A training step of %s with batch %s and %s:\n", s->net->name, show_count(batch), optim);
    say_row("weights", weights, counted);
    say_row(optim, state, "the optimizer's state");
    say_row("batch", data, "inputs and targets");
    say_row("the step", (uint64_t)info->peak_bytes, "activations, gradients, workspace: at most at once");
    say_row("together", need_of(s, info), "");
    printf("\nOf gradients there are %s, of activations %s all in all, %s at once at most;\n"
           "the plan places them in the same memory one after the other.\n",
           show_size((uint64_t)info->gradient_bytes), show_size((uint64_t)info->activation_bytes),
           show_size((uint64_t)info->activation_peak_bytes));
    printf("%s operations in %s kernels; %s%.4g GFLOP, %s%s moved\n", show_count(info->nodes),
           show_count(info->kernels), info->flops == INT64_MAX ? "over " : "", 1e-9 * (double)info->flops,
           info->bytes == INT64_MAX ? "over " : "", show_size((uint64_t)info->bytes));
}

/* Planning takes no memory, so nothing else tells that a step cannot run here. */
static int say_too_large(uint64_t need, kiln_device device)
{
    kiln_device_info about;
    if (!kiln_device_describe(device, &about))
        return fail_kiln();
    if (about.memory_total && need > about.memory_total)
        printf("\nThat is more than the %s of memory that %s has.\n", show_size(about.memory_total),
               kiln_device_name(device));
    return 0;
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

/* --batch auto: what fits into --mem-limit or what the device has free, of which some is left to others. */
static int choose_batch(const arguments *a, step *s, kiln_device device, int64_t *batch)
{
    kiln_device_info about;
    if (!kiln_device_describe(device, &about))
        return fail_kiln();
    uint64_t others = about.memory_free / (device == KILN_CPU ? 8 : 64);
    uint64_t limit = size_of(a, "mem-limit", about.memory_free - others);
    int code = find_largest(s, limit, device, batch);
    if (!code && !*batch)
        code = fail(EX_OSERR, "--batch auto: not even a batch of 1 fits into %s", show_size(limit));
    return code ? code : step_set_batch(s, *batch, device);
}

static int plan_step(const arguments *a, network *n, kiln_device device)
{
    const char *optim = text_of(a, "optim", "adam");
    int64_t batch = count_of(a, "batch", 32);
    step s;
    kiln_plan_info info;
    char *text = NULL;
    int code = step_make(&s, n, optim, batch, device);
    if (!code && !strcmp(text_of(a, "batch", ""), "auto"))
        code = choose_batch(a, &s, device, &batch);
    if (!code && given(a, "summary"))
        code = say_layers(n, batch);
    if (!code)
        code = look(&s, &info, given(a, "kernels") ? &text : NULL);
    if (!code && given(a, "kernels"))
        say("%s\n", text);
    if (!code)
        say_plan(&s, &info, batch, optim);
    if (!code)
        code = say_too_large(need_of(&s, &info), device);
    if (!code && given(a, "mem-limit"))
        code = say_recomputing(&s, &info, size_of(a, "mem-limit", 0));
    if (!code && given(a, "mem-limit"))
        code = say_largest(&s, size_of(a, "mem-limit", 0), device);
    kiln_string_free(text);
    step_free(&s);
    return code;
}

static int plan(const arguments *a)
{
    arguments unlimited = *a; /* here --mem-limit is a question, not a limit */
    kiln_device device;
    network n = {0};
    arguments_set(&unlimited, "mem-limit", NULL);
    int code = use_device(&unlimited, &device);
    if (code)
        return code;
    kiln_shapes_only { /* so that a model of any size can be looked at */
        code = step_network(a, &n, device);
        if (!code)
            code = plan_step(a, &n, device);
        network_free(&n);
    }
    return code;
}

const command command_plan = {.name = "plan",
                              .about = "Shows what a training step would need, without running it",
                              .options = options,
                              .notes = "Examples: kiln plan --model lenet --batch 256\n"
                                       "          kiln plan --model gpt2:layers=4,embed=128,heads=4 --mem-limit 2G\n",
                              .run = plan};
