/* The CPU device: a plan becomes a list of kernel calls, run one after the other in the calling thread, each of them
 * spread over the worker threads. */
#include "device/device.h"
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/alloc.h"
#include "core/available.h"
#include "core/clock.h"
#include "core/fail.h"
#include "core/fork.h"
#include "core/hash.h"
#include "core/parallel.h"
#include "device/cpu/common/call.h"
#include "device/cpu/common/cpu.h"
#include "device/cpu/gemm/matmul.h"

/* ---- The structured kernels ---- */

static const kiln_cpu_kernel *const tables[] = {
    kiln_cpu_kernels_conv,    kiln_cpu_kernels_pool,      kiln_cpu_kernels_resize, kiln_cpu_kernels_index,
    kiln_cpu_kernels_sort,    kiln_cpu_kernels_scan,      kiln_cpu_kernels_rows,   kiln_cpu_kernels_random,
    kiln_cpu_kernels_put,     kiln_cpu_kernels_attention, kiln_cpu_kernels_lstm,   kiln_cpu_kernels_samples,
    kiln_cpu_kernels_require, kiln_cpu_kernels_rotary};

/* Asked for every operation that is recorded: rows by the address of their operation's record, filled once. */
enum { PLACES = 256 };
static struct {
    const kiln_op *op;
    const kiln_cpu_kernel *kernel;
} places[PLACES];
static pthread_once_t placed = PTHREAD_ONCE_INIT;

static size_t place_of(const kiln_op *op)
{
    return (size_t)(kiln_mix(0, (uintptr_t)op) % PLACES);
}

static void place_kernels(void)
{
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const kiln_cpu_kernel *k = tables[t]; k->op; k++) {
            const kiln_op *op = kiln_op_find(k->op);
            size_t at = place_of(op);
            while (op && places[at].kernel)
                at = (at + 1) % PLACES;
            if (op) {
                places[at].op = op;
                places[at].kernel = k;
            }
        }
}

static const kiln_cpu_kernel *find_kernel(const kiln_op *op, kiln_dtype dtype)
{
    pthread_once(&placed, place_kernels);
    for (size_t at = place_of(op); places[at].kernel; at = (at + 1) % PLACES)
        if (places[at].op == op && places[at].kernel->dtypes >> dtype & 1)
            return places[at].kernel;
    return NULL;
}

static pthread_mutex_t fault_lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void load(void)
{
    kiln_fork_hold(KILN_FORK_FAULTS, &fault_lock, NULL);
}

void kiln_fault_report(const kiln_cpu_call *c, int64_t order, int64_t index, int64_t limit)
{
    pthread_mutex_lock(&fault_lock);
    if (c->fault->kernel < 0 || order < c->fault->order)
        *c->fault = (kiln_fault){c->kernel, index, limit, order};
    pthread_mutex_unlock(&fault_lock);
}

bool kiln_cpu_supports(void *dev, const kiln_op *op, kiln_dtype dtype)
{
    (void)dev;
    switch (op->cls) {
    case KILN_CLASS_VIEW:
    case KILN_CLASS_POINTWISE:
    case KILN_CLASS_REDUCE: return true;
    case KILN_CLASS_MATMUL: return kiln_dtype_is_float(dtype);
    default: return find_kernel(op, dtype) != NULL;
    }
}

unsigned kiln_cpu_can(void *dev, const kiln_op *op, kiln_dtype dtype, const kiln_work *work)
{
    (void)dev, (void)work;
    const kiln_cpu_kernel *k = op->cls == KILN_CLASS_MATMUL ? NULL : find_kernel(op, dtype);
    return op->cls == KILN_CLASS_MATMUL ? KILN_CAN_END : k ? k->can : 0;
}

/* ---- Lowering ---- */

typedef enum step_kind { STEP_GROUP, STEP_REDUCE, STEP_MATMUL, STEP_CALL } step_kind;

typedef struct step {
    step_kind kind;
    const kiln_kernel *kernel;
    kiln_cpu_group group, lead; /* of a call: what finishes its result and makes its operands, if the kernel has them */
    size_t call_bytes;          /* of its workspace, before that of these */
    kiln_cpu_matmul *matmul;
    const kiln_cpu_kernel *call;
    void *state;
} step;

typedef struct exec {
    const kiln_plan *plan;
    kiln_arena pool;
    step *steps;
    int64_t nsteps;
} exec;

/* What a convolution's state takes with oneDNN's objects and the code generated for it: 61 KB on average in 164 plans
 * of a small U-Net at other sizes (113 KB where nothing was shared through oneDNN's own cache). */
enum { STATE_BYTES = 64 << 10 };

static kiln_dtype first_dtype(const kiln_kernel *k)
{
    return (kiln_dtype)(k->nin && k->in[0].buffer >= 0 ? k->in[0].dtype : k->out[0].dtype);
}

static kiln_cpu_operand plain_operand(const kiln_plan *plan, const kiln_operand *o, const kiln_binding *binding)
{
    if (o->buffer < 0 && !o->ndim)
        return (kiln_cpu_operand){0};
    kiln_cpu_operand p = {.dtype = (kiln_dtype)o->dtype, .ndim = o->ndim, .shape = o->shape, .stride = o->stride};
    if (binding && o->buffer >= 0)
        p.data = (char *)(uintptr_t)kiln_buffer_address(plan, binding, o->buffer) +
                 o->offset * (int64_t)kiln_dtype_size((kiln_dtype)o->dtype);
    return p;
}

/* The groups around a call. */
typedef struct surroundings {
    kiln_cpu_tile group, lead;
    size_t unit; /* of a value */
} surroundings;

static void finish(void *context, int64_t start, int64_t count, const void *values, int worker)
{
    const surroundings *s = context;
    kiln_cpu_group_finish(&s->group, start, count, values, s->unit, worker);
}

static void lead(void *context, int64_t start, int64_t count, void **to, int worker)
{
    const surroundings *s = context;
    kiln_cpu_group_give(&s->lead, start, count, to, worker);
}

/* A call without addresses when `binding` is NULL: shapes are all that workspace and prepare look at. */
static void make_call(kiln_cpu_call *c, const kiln_plan *plan, const kiln_kernel *k, const kiln_binding *binding)
{
    c->nin = k->nin;
    c->nout = k->nout;
    c->ints = k->ints;
    c->nints = k->nints;
    c->nfloats = k->nscalars;
    c->floats = binding ? binding->scalars + k->scalars : NULL;
    c->workspace = NULL;
    c->fault = NULL;
    c->state = NULL;
    c->finish = k->group ? finish : NULL;
    c->lead = k->lead ? lead : NULL;
    c->finish_context = c->lead_context = NULL;
    for (int i = 0; i < k->nin; i++)
        c->in[i] = plain_operand(plan, &k->in[i], binding);
    for (int j = 0; j < k->nout; j++)
        c->out[j] = plain_operand(plan, &k->out[j], binding);
    if (binding && k->workspace >= 0)
        c->workspace = (void *)(uintptr_t)kiln_buffer_address(plan, binding, k->workspace);
}

static bool is_call(const kiln_kernel *k)
{
    return !k->group || (k->op && k->op->cls != KILN_CLASS_REDUCE);
}

static size_t call_workspace(const kiln_kernel *k)
{
    enum { ALIGNMENT = 64 };
    const kiln_cpu_kernel *kernel = find_kernel(k->op, first_dtype(k));
    if (!kernel || !kernel->workspace)
        return 0;
    kiln_cpu_call c;
    make_call(&c, NULL, k, NULL);
    return (kernel->workspace(&c) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

size_t kiln_cpu_workspace(void *dev, const kiln_kernel *k)
{
    (void)dev;
    int threads = kiln_threads();
    if (k->op && k->op->cls == KILN_CLASS_MATMUL)
        return kiln_cpu_matmul_workspace(k, threads);
    return (k->group ? kiln_cpu_group_workspace(k->group, threads) : 0) +
           (k->lead ? kiln_cpu_group_workspace(k->lead, threads) : 0) + (is_call(k) ? call_workspace(k) : 0);
}

static bool lower_step(exec *e, step *s, const kiln_plan *plan, const kiln_kernel *k)
{
    s->kernel = k;
    if (k->op && k->op->cls == KILN_CLASS_MATMUL) {
        s->kind = STEP_MATMUL;
        s->matmul = KILN_ARENA_NEW(&e->pool, kiln_cpu_matmul, 1);
        return s->matmul && kiln_cpu_matmul_lower(s->matmul, plan, k, &e->pool);
    }
    if ((k->group && !kiln_cpu_group_lower(&s->group, plan, k->group, &e->pool)) ||
        (k->lead && !kiln_cpu_group_lower(&s->lead, plan, k->lead, &e->pool)))
        return false;
    s->kind = is_call(k) ? STEP_CALL : k->group->reduces ? STEP_REDUCE : STEP_GROUP;
    if (!is_call(k))
        return true;
    s->call_bytes = k->group || k->lead ? call_workspace(k) : 0;
    s->call = find_kernel(k->op, first_dtype(k));
    if (!s->call)
        return kiln_fail(KILN_E_UNSUPPORTED, k->op->name, "the cpu has no kernel for %s in %s", k->op->name,
                         kiln_dtype_name(first_dtype(k)));
    if (s->call->prepare) {
        kiln_cpu_call c;
        make_call(&c, plan, k, NULL);
        s->state = s->call->prepare(&c);
    }
    return true;
}

void kiln_cpu_dispose(void *dev, void *p)
{
    (void)dev;
    exec *e = p;
    for (int64_t i = 0; i < e->nsteps; i++)
        if (e->steps[i].state)
            e->steps[i].call->dispose(e->steps[i].state);
    kiln_arena_free(&e->pool);
    kiln_free(e);
}

void *kiln_cpu_lower(void *dev, const kiln_plan *plan)
{
    exec *e = kiln_alloc_zero(1, sizeof *e);
    if (!e)
        return NULL;
    e->plan = plan;
    e->steps = KILN_ARENA_NEW(&e->pool, step, plan->nkernels);
    bool ok = e->steps != NULL;
    for (int64_t i = 0; ok && i < plan->nkernels; i++) {
        e->nsteps++;
        ok = lower_step(e, &e->steps[i], plan, &plan->kernels[i]);
    }
    if (ok)
        return e;
    kiln_cpu_dispose(dev, e);
    return NULL;
}

size_t kiln_cpu_held(void *dev, const void *p)
{
    (void)dev;
    const exec *e = p;
    size_t states = 0;
    for (int64_t i = 0; i < e->nsteps; i++)
        states += e->steps[i].state != NULL;
    return sizeof *e + e->pool.total + states * STATE_BYTES;
}

/* ---- Running ---- */

static void run_call(const step *s, const kiln_plan *plan, const kiln_binding *binding, int32_t number,
                     kiln_fault *fault)
{
    kiln_cpu_call c;
    make_call(&c, plan, s->kernel, binding);
    char *room = c.workspace ? (char *)c.workspace + s->call_bytes : NULL;
    surroundings around = {{&s->group, plan, binding, room},
                           {&s->lead, plan, binding, room},
                           kiln_pw_class_size(kiln_pw_class_of(first_dtype(s->kernel)))};
    if (s->kernel->group && s->kernel->lead)
        around.lead.registers += kiln_cpu_group_workspace(s->kernel->group, kiln_threads());
    c.finish_context = c.lead_context = &around;
    c.kernel = number;
    c.fault = fault;
    c.state = s->state;
    s->call->run(&c);
}

static void run_step(const exec *e, int32_t number, const kiln_binding *binding, kiln_fault *fault)
{
    const step *s = &e->steps[number];
    switch (s->kind) {
    case STEP_GROUP: kiln_cpu_group_run(&s->group, e->plan, s->kernel, binding); break;
    case STEP_REDUCE: kiln_cpu_reduce_run(&s->group, e->plan, s->kernel, binding); break;
    case STEP_MATMUL: kiln_cpu_matmul_run(s->matmul, e->plan, s->kernel, binding); break;
    case STEP_CALL: run_call(s, e->plan, binding, number, fault); break;
    }
}

void kiln_cpu_execute(const void *p, const kiln_binding *binding, kiln_timing *timing, kiln_bad_index *bad)
{
    const exec *e = p;
    kiln_fault fault = {.kernel = -1};
    for (int32_t i = 0; i < e->nsteps && fault.kernel < 0; i++) {
        double start = timing ? kiln_seconds() : 0;
        run_step(e, i, binding, &fault);
        if (timing)
            timing->launches[timing->count++] = (kiln_launch_time){i, i + 1, 1e6 * (kiln_seconds() - start)};
    }
    *bad = (kiln_bad_index){fault.kernel, fault.index, fault.limit};
}

bool kiln_cpu_time(void *dev, void *p, const kiln_binding *binding, kiln_timing *timing)
{
    (void)dev;
    const exec *e = p;
    kiln_bad_index bad;
    kiln_cpu_execute(e, binding, timing, &bad);
    return bad.kernel < 0 || kiln_fail_bad_index(e->plan, &bad);
}

bool kiln_cpu_run(void *dev, void *p, const kiln_binding *binding)
{
    return kiln_cpu_time(dev, p, binding, NULL);
}

/* ---- The rest of the table ---- */

/* Blocks that were freed stay with the C library's heap. */
static void cpu_trim(void *dev)
{
    (void)dev;
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

static int cpu_count(char *why, size_t size)
{
    (void)why, (void)size;
    return 1;
}

static void processor_name(char *name, size_t size)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(name, size, "CPU");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':')) {
            snprintf(name, size, "%s", strchr(line, ':') + 2);
            name[strcspn(name, "\n")] = '\0';
            break;
        }
    if (f)
        fclose(f);
}

static bool cpu_describe(int index, kiln_device_info *info)
{
    (void)index;
    processor_name(info->name, sizeof info->name);
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    info->memory_total = (uint64_t)sysconf(_SC_PHYS_PAGES) * page;
    uint64_t available = kiln_available(); /* pages of files are given up when others are needed */
    info->memory_free = available < info->memory_total ? available : info->memory_total;
    info->threads = kiln_threads();
    snprintf(info->features, sizeof info->features, "%s kernels%s", kiln_pw_best()->isa,
#ifdef KILN_HAVE_DNNL
             ", oneDNN"
#else
             ""
#endif
    );
    return true;
}

static void *cpu_open(int index)
{
    (void)index;
    static char here;
    return &here;
}

static void cpu_close(void *dev)
{
    (void)dev;
}

static kiln_address cpu_allocate(void *dev, size_t bytes)
{
    (void)dev;
    return (kiln_address)(uintptr_t)kiln_alloc_aligned(bytes);
}

static void cpu_release(void *dev, kiln_address address, size_t bytes)
{
    (void)dev, (void)bytes;
    kiln_free((void *)(uintptr_t)address);
}

static bool cpu_copy_in(void *dev, kiln_address to, const void *from, size_t bytes)
{
    (void)dev;
    memcpy((void *)(uintptr_t)to, from, bytes);
    return true;
}

static bool cpu_copy_out(void *dev, void *to, kiln_address from, size_t bytes)
{
    (void)dev;
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return true;
}

static bool cpu_wait(void *dev)
{
    (void)dev;
    return true;
}

const kiln_device_table kiln_cpu_table = {.version = KILN_DEVICE_VERSION,
                                          .kind = "cpu",
                                          .count = cpu_count,
                                          .describe = cpu_describe,
                                          .open = cpu_open,
                                          .close = cpu_close,
                                          .allocate = cpu_allocate,
                                          .release = cpu_release,
                                          .copy_in = cpu_copy_in,
                                          .copy_out = cpu_copy_out,
                                          .trim = cpu_trim,
                                          .supports = kiln_cpu_supports,
                                          .can = kiln_cpu_can,
                                          .workspace = kiln_cpu_workspace,
                                          .lower = kiln_cpu_lower,
                                          .dispose = kiln_cpu_dispose,
                                          .held = kiln_cpu_held,
                                          .run = kiln_cpu_run,
                                          .time = kiln_cpu_time,
                                          .wait = cpu_wait};
