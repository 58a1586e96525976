/* The memory that Kiln says a training step takes, beside what the process really takes while it runs: each model in a
 * process of its own. On the CPU that is the most memory it had (VmHWM) less what it had before its first tensor; on a
 * GPU, the most that the driver says is not free any more, asked by the process that started it, which has no context.
 * One JSON object a line; exit status 1 where the two differ by more than 1 % and 32 MiB.
 *
 * usage: kiln_bench_memory [--device cuda] [--curve] [MODEL BATCH]...      (mlp 8192, resnet50 8, gpt2 with 256 tokens
 *        2, a 3-layer LSTM 64)
 *        --curve: what a memory limit costs instead. Steps get 100, 90, … % of the memory that they take beside weights
 *        and optimizer, and compute values a second time to do with it; how long that was said to take, and takes.
 *        KILN_BENCH_AMP=bf16, f16: under autocast */
#include <errno.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include "bench.h"
#include "models.h"

extern char **environ;

enum { STEPS = 6, MIB = 1 << 20 };

typedef struct workload {
    const char *model;
    int64_t batch;
} workload;

static const workload standard[] = {
    {"mlp", 8192},
    {"resnet50", 8},
    {"gpt2:context=256", 2},
    {"char-lstm:layers=3,hidden=512,embed=128", 64},
};

/* Kilobytes behind a word of /proc/self/status. */
static uint64_t own_memory(const char *word)
{
    char line[256];
    unsigned long long kilobytes = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, word, strlen(word)) == 0)
            kilobytes = strtoull(line + strlen(word), NULL, 10);
    if (f)
        fclose(f);
    return (uint64_t)kilobytes * 1024;
}

/* ---- The process that trains ---- */

static void make_batch(const model_entry *e, const model_options *o, int64_t batch, kiln_tensor **x, kiln_tensor **y)
{
    int64_t length = o->context ? o->context : 128, classes = e->tokens && o->vocabulary ? o->vocabulary : 10;
    int64_t side = !strcmp(e->name, "resnet50") ? 224 : !strcmp(e->name, "mlp") || !strcmp(e->name, "lenet") ? 28 : 32;
    kiln_scope {
        *x = kiln_keep(e->tokens ? kiln_randint(0, classes, KILN_SHAPE(batch, length), KILN_I64)
                                 : kiln_randn(KILN_SHAPE(batch, side == 28 ? 1 : 3, side, side), KILN_F32));
        *y = kiln_keep(e->tokens ? kiln_randint(0, classes, KILN_SHAPE(batch, length), KILN_I64)
                                 : kiln_randint(0, classes, KILN_SHAPE(batch), KILN_I64));
    }
    kiln_eval();
}

typedef struct training {
    kiln_module *model;
    kiln_optim *adam;
    kiln_tensor *x, *y;
} training;

static void write_step(const training *t)
{
    kiln_tensor *loss = NULL;
    kiln_autocast (bench_amp()) {
        kiln_tensor *out = kiln_forward(t->model, t->x);
        if (kiln_ndim(out) > 2)
            out = kiln_reshape(out, KILN_SHAPE(-1, kiln_shape(out)[kiln_ndim(out) - 1]));
        loss = kiln_cross_entropy(out, kiln_reshape(t->y, KILN_SHAPE(-1)));
    }
    kiln_backward(loss);
    kiln_optim_step(t->adam);
    kiln_zero_grad(t->adam);
}

static bool begin(training *t, const char *model, int64_t batch, kiln_device device)
{
    model_options o = {0};
    char why[256];
    const model_entry *e = model_find(model, &o, why, sizeof why);
    if (!e) {
        fprintf(stderr, "%s\n", why);
        return false;
    }
    t->model = e->build(o);
    t->adam = t->model ? kiln_optim_adam(kiln_parameters(t->model)) : NULL;
    if (t->adam)
        kiln_optim_state(t->adam);
    make_batch(e, &o, batch, &t->x, &t->y);
    return kiln_memory_trim(device); /* what making weights and batch has left behind is not the step's */
}

static void end(training *t)
{
    kiln_release(t->x);
    kiln_release(t->y);
    kiln_optim_free(t->adam);
    kiln_module_free(t->model);
}

/* Trains and prints what Kiln says it takes, and what the process had before and at most. */
static int train(const char *model, int64_t batch, kiln_device device)
{
    training t = {0};
    kiln_plan_info info = {0};
    kiln_memory_stats stats = {0};
    uint64_t before = own_memory("VmRSS:"), stated = 0;
    if (!begin(&t, model, batch, device))
        return 2;
    for (int i = 0; i < STEPS && kiln_ok(); i++) {
        kiln_step
            write_step(&t);
        if (!kiln_device_wait(device) || !kiln_plan_last(&info) || !kiln_memory_get_stats(device, &stats))
            break;
        uint64_t now = stats.in_use + (uint64_t)info.peak_bytes + stats.overhead;
        now += device == KILN_CPU ? (uint64_t)kiln_plan_cache_stats().bytes : 0; /* plans lie in the host's memory */
        stated = now > stated ? now : stated;
    }
    if (kiln_report(stderr))
        return 1;
    printf("%llu %llu %llu\n", (unsigned long long)stated, (unsigned long long)before,
           (unsigned long long)own_memory("VmHWM:"));
    end(&t);
    return 0;
}

/* ---- What a limit costs ---- */

/* Seconds a step, the best of a few; 0 where it does not fit. */
static double time_steps(const training *t, kiln_device device, double at_least)
{
    double best = 0, all = 0;
    for (int i = 0; kiln_ok() && (i < 4 || all < at_least); i++) {
        double start = kiln_seconds();
        kiln_step
            write_step(t);
        kiln_device_wait(device);
        double took = kiln_seconds() - start;
        all += took;
        best = i > 1 && (best == 0 || took < best) ? took : best; /* the first ones are planned, and warm up */
    }
    return kiln_ok() ? best : 0;
}

typedef struct point {
    int percent;
    double limit, seconds; /* bytes, a step */
    kiln_plan_info info;
} point;

/* A limit of so many percent of what the step takes as it is; false where it cannot be kept. */
static bool run_within(const training *t, kiln_device device, const kiln_plan_info *plain, point *p)
{
    kiln_memory_stats stats = {0};
    uint64_t room = (uint64_t)plain->peak_bytes / 100 * (uint64_t)p->percent;
    kiln_memory_trim(device);
    kiln_memory_get_stats(device, &stats);
    kiln_memory_set_limit(device, stats.in_use + stats.overhead + room + MIB);
    p->limit = (double)room;
    p->seconds = time_steps(t, device, 2);
    kiln_memory_set_limit(device, 0);
    kiln_plan_last(&p->info);
    while (kiln_next_notice()) {
    }
    kiln_error_clear();
    return p->seconds > 0;
}

static bool curve(const char *name, kiln_device device, const workload *w)
{
    enum { POINTS = 10 };
    training t = {0};
    kiln_plan_info plain = {0};
    point points[POINTS];
    int n = 0;
    bool ok = begin(&t, w->model, w->batch, device);
    double whole = ok ? time_steps(&t, device, 2) : 0;
    ok = whole > 0 && kiln_plan_last(&plain);
    for (; ok && n < POINTS; n++) {
        points[n].percent = 100 - n * 100 / POINTS;
        if (!run_within(&t, device, &plain, &points[n]))
            break;
    }
    double again = ok ? time_steps(&t, device, 2) : 0; /* at the end as at the beginning, machines change their speed */
    whole = again > 0 && again < whole ? again : whole;
    for (int i = 0; i < n; i++) {
        const point *p = &points[i];
        printf("{\"model\": \"%s\", \"batch\": %lld, \"device\": \"%s\", \"percent\": %d, \"limit_mib\": %.0f, "
               "\"peak_mib\": %.0f, \"again\": %lld, \"planned\": %.3f, \"ms\": %.1f, \"times\": %.3f}\n",
               w->model, (long long)w->batch, name, p->percent, p->limit / MIB, (double)p->info.peak_bytes / MIB,
               (long long)p->info.recomputed, p->info.seconds / plain.seconds, 1e3 * p->seconds, p->seconds / whole);
    }
    fflush(stdout);
    ok = !kiln_report(stderr) && ok;
    end(&t);
    return ok;
}

/* ---- The one that looks on ---- */

/* Starts this program for one model; its output comes through the pipe that is returned, or -1. */
static int start(const char *self, const char *device, const workload *w, pid_t *pid)
{
    int ends[2];
    char batch[24];
    snprintf(batch, sizeof batch, "%lld", (long long)w->batch);
    char *arguments[] = {(char *)self, "--device", (char *)device, "--train", (char *)w->model, batch, NULL};
    posix_spawn_file_actions_t actions;
    if (pipe(ends))
        return -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    int failed = posix_spawn(pid, "/proc/self/exe", &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (!failed)
        return ends[0];
    close(ends[0]);
    return -1;
}

static uint64_t free_memory(kiln_device device)
{
    kiln_device_info info = {0};
    return kiln_device_describe(device, &info) ? info.memory_free : 0;
}

/* Until the process has ended: the least that was free. */
static uint64_t watch(pid_t pid, kiln_device device, int *status)
{
    uint64_t least = UINT64_MAX;
    while (waitpid(pid, status, WNOHANG) == 0) {
        uint64_t now = device == KILN_CPU ? 0 : free_memory(device);
        least = now < least ? now : least;
        usleep(device == KILN_CPU ? 20000 : 1000);
    }
    return least;
}

static bool measure(const char *self, const char *name, kiln_device device, const workload *w)
{
    pid_t pid;
    int status = 0;
    uint64_t idle = free_memory(device);
    int from = start(self, name, w, &pid);
    if (from < 0)
        return false;
    uint64_t least = watch(pid, device, &status);
    char line[200] = "";
    ssize_t n = read(from, line, sizeof line - 1);
    close(from);
    unsigned long long stated, before, most;
    if (status || n <= 0 || sscanf(line, "%llu %llu %llu", &stated, &before, &most) != 3) {
        fprintf(stderr, "%s with batch %lld: it did not train\n", w->model, (long long)w->batch);
        return false;
    }
    double taken = device == KILN_CPU ? (double)(most - before) : (double)idle - (double)least;
    double difference = taken - (double)stated, allowed = 0.01 * taken > 32 * MIB ? 0.01 * taken : 32 * MIB;
    bool good = difference <= allowed && difference >= -allowed;
    printf("{\"model\": \"%s\", \"batch\": %lld, \"device\": \"%s\", \"stated_mib\": %.1f, \"taken_mib\": %.1f, "
           "\"difference_mib\": %.1f, \"percent\": %.2f, \"good\": %s}\n",
           w->model, (long long)w->batch, name, (double)stated / MIB, taken / MIB, difference / MIB,
           100 * difference / taken, good ? "true" : "false");
    fflush(stdout);
    return good;
}

int main(int argc, char **argv)
{
    const char *name = "cpu";
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], "--device"))
            name = argv[i + 1];
    kiln_device device = bench_device(&argc, argv, name); /* which takes its option out of the list */
    if (argc == 4 && !strcmp(argv[1], "--train"))
        return train(argv[2], atoll(argv[3]), device);
    bool good = true, curves = argc > 1 && !strcmp(argv[1], "--curve");
    int first = 1 + curves;
    for (int i = first; i + 1 < argc; i += 2) {
        const workload w = {argv[i], atoll(argv[i + 1])};
        good &= curves ? curve(name, device, &w) : measure(argv[0], name, device, &w);
    }
    for (size_t i = 0; argc <= first && i < sizeof standard / sizeof *standard; i++)
        good &= curves ? curve(name, device, &standard[i]) : measure(argv[0], name, device, &standard[i]);
    return !good;
}
