/* Convolution by oneDNN, in f32, to which a task converts the images that it takes: running what conv_dnnl_set_up.c has
 * made. The weight's gradient is summed by chunk, then over chunks in their order.
 *
 * If oneDNN fails in the middle of a run, columns compute the result. Of what tasks have handed over by then nothing is
 * handed over again, since an update in place must not happen twice. */
#include "device/cpu/conv/conv.h"

#ifdef KILN_HAVE_DNNL

#include <string.h>
#include "device/cpu/conv/conv_dnnl.h"
#include "device/cpu/group/pointwise.h"

typedef kiln_dnnl_state state;
typedef kiln_dnnl_piece piece;
typedef kiln_dnnl_task task_objects;
typedef kiln_dnnl_role role;

static bool execute(dnnl_primitive_t primitive, dnnl_stream_t stream, int n, const dnnl_exec_arg_t *args)
{
    return dnnl_primitive_execute(primitive, stream, n, args) == dnnl_success &&
           dnnl_stream_wait(stream) == dnnl_success;
}

static bool reorder(const task_objects *t, const piece *p, role r, bool back)
{
    dnnl_exec_arg_t args[2] = {{DNNL_ARG_FROM, back ? t->wanted[r] : t->plain[r]},
                               {DNNL_ARG_TO, back ? t->plain[r] : t->wanted[r]}};
    return execute(p->reorder[r], t->stream, 2, args);
}

/* The workspace: the weight in f32; the weight of each part as oneDNN wants it, or the partial sums of each task; then
 * the workers' own. */
static char *shared_weight(const state *s, int64_t index)
{
    return s->workspace + s->weight_bytes + (size_t)index * s->pieces[0].bytes[W];
}

static char *own_arrays(const state *s, int worker)
{
    return s->workspace + s->weight_bytes + s->shared_bytes + (size_t)worker * s->task_bytes;
}

/* Elements of an image's planes, and of the share of them that is a task's. */
static int64_t image_elements(const state *s, role r)
{
    const kiln_conv *c = &s->shape;
    return r == X ? c->channels * c->size[0] * c->size[1] : c->outputs * c->out[0] * c->out[1];
}

static int64_t share_elements(const state *s, role r)
{
    return image_elements(s, r) / (s->parts > 1 && kiln_dnnl_part_offset(s, r, 1) ? s->parts : 1);
}

/* Where a task's share begins in the whole array, in elements. */
static int64_t user_offset(const state *s, role r, int64_t chunk, int64_t part)
{
    return kiln_dnnl_part_offset(s, r, part) + (r == W ? 0 : kiln_dnnl_first_image(s, chunk) * image_elements(s, r));
}

static char *user_array(const state *s, role r, int64_t chunk, int64_t part)
{
    char *base = r == X ? s->data.x : r == Y ? s->data.y : s->weight_bytes ? s->workspace : s->data.w;
    return base + (size_t)user_offset(s, r, chunk, part) * sizeof(float);
}

/* Fills in a task's addresses. */
static void place(const state *s, task_objects *t, int64_t index, int worker)
{
    const piece *p = kiln_dnnl_piece_of(s, index / s->parts);
    char *own = own_arrays(s, worker);
    bool sums = s->shape.kind == KILN_CONV_WEIGHT_GRAD;
    for (role r = X; r < ROLES; r++) {
        char *user = kiln_dnnl_is_own(s, r) ? own : user_array(s, r, index / s->parts, index % s->parts),
             *wanted = user;
        own += p->copy_bytes[r];
        if (r == W && (sums || p->reorder[W]))
            wanted = shared_weight(s, sums ? index : index % s->parts);
        else if (p->reorder[r]) {
            wanted = own;
            own += p->bytes[r];
        }
        dnnl_memory_set_data_handle(t->plain[r], user);
        dnnl_memory_set_data_handle(t->wanted[r], wanted);
    }
    dnnl_memory_set_data_handle(t->scratch, own);
}

static float *plain_array(const task_objects *t, role r)
{
    void *data = NULL;
    dnnl_memory_get_data_handle(t->plain[r], &data);
    return data;
}

/* The task's part of its images, in f32. */
static void convert(const state *s, const task_objects *t, role r, int64_t index)
{
    int64_t images = kiln_dnnl_piece_of(s, index / s->parts)->images, all = image_elements(s, r),
            share = share_elements(s, r);
    const char *from = r == X ? s->data.x : s->data.y;
    from += 2 * user_offset(s, r, index / s->parts, index % s->parts);
    float *to = plain_array(t, r);
    for (int64_t i = 0; i < images; i++)
        kiln_pw_best()->load[s->shape.dtype](to + i * share, from + 2 * i * all, share);
}

static void hand_over(state *s, const task_objects *t, role r, int64_t index, int worker)
{
    int64_t images = kiln_dnnl_piece_of(s, index / s->parts)->images, all = image_elements(s, r),
            share = share_elements(s, r);
    int64_t start = user_offset(s, r, index / s->parts, index % s->parts);
    const float *values = plain_array(t, r);
    for (int64_t i = 0; i < images; i++)
        s->data.finish(s->data.context, start + i * all, share, values + i * share, worker);
    s->done[index] = true;
}

static void run_task(void *context, int64_t index, int worker)
{
    static const int arguments[3][ROLES] = {
        [KILN_CONV_FORWARD] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
        [KILN_CONV_INPUT_GRAD] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
        [KILN_CONV_WEIGHT_GRAD] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST},
    };
    state *s = context;
    task_objects *t = &s->tasks[index];
    const piece *p = kiln_dnnl_piece_of(s, index / s->parts);
    const int *names = arguments[s->shape.kind];
    bool fine = true;
    place(s, t, index, worker);
    for (role r = X; fine && r < ROLES; r++) {
        if (r == W || kiln_dnnl_is_result(s, r))
            continue;
        if (kiln_dnnl_is_own(s, r))
            convert(s, t, r, index);
        if (p->reorder[r])
            fine = reorder(t, p, r, false);
    }
    dnnl_exec_arg_t args[ROLES + 1] = {{names[X], t->wanted[X]},
                                       {names[W], t->wanted[W]},
                                       {names[Y], t->wanted[Y]},
                                       {DNNL_ARG_SCRATCHPAD, t->scratch}};
    fine = fine && execute(p->convolution, t->stream, ROLES + 1, args);
    for (role r = X; fine && r < ROLES; r++) {
        if (r == W || !kiln_dnnl_is_result(s, r))
            continue;
        fine = !p->reorder[r] || reorder(t, p, r, true);
        if (fine && kiln_dnnl_is_own(s, r))
            hand_over(s, t, r, index, worker);
    }
    if (!fine)
        atomic_store(&s->failed, true);
}

/* Brings a part's weight into the shared place (the first chunk's objects point there). */
static void run_weight(void *context, int64_t part, int worker)
{
    state *s = context;
    place(s, &s->tasks[part], part, worker);
    if (!reorder(&s->tasks[part], &s->pieces[0], W, false))
        atomic_store(&s->failed, true);
}

static void convert_weight(void *context, int64_t output, int worker)
{
    (void)worker;
    const state *s = context;
    const kiln_conv *c = &s->shape;
    int64_t n = c->channels / c->groups * c->kernel[0] * c->kernel[1];
    kiln_pw_best()->load[c->dtype]((float *)(void *)s->workspace + output * n, (const char *)s->data.w + 2 * output * n,
                                   n);
}

/* Adds up a part's partial sums in the order of chunks, and hands the sum out. */
static void run_sum(void *context, int64_t part, int worker)
{
    state *s = context;
    const piece *p = &s->pieces[0];
    float *sum = (float *)(void *)shared_weight(s, part);
    for (int64_t chunk = 1; chunk < s->chunks; chunk++) {
        const float *more = (const float *)(const void *)shared_weight(s, chunk * s->parts + part);
        for (size_t i = 0; i < p->bytes[W] / sizeof(float); i++)
            sum[i] += more[i];
    }
    size_t bytes = dnnl_memory_desc_get_size(kiln_dnnl_ref(&p->plain[W]));
    place(s, &s->tasks[part], part, worker);
    if (p->reorder[W] && !reorder(&s->tasks[part], p, W, true))
        atomic_store(&s->failed, true);
    else if (s->shape.handed_over) {
        s->data.finish(s->data.context, kiln_dnnl_part_offset(s, W, part), (int64_t)(bytes / sizeof(float)),
                       p->reorder[W] ? plain_array(&s->tasks[part], W) : sum, worker);
        s->done[part] = true;
    } else if (!p->reorder[W])
        memcpy(user_array(s, W, 0, part), sum, bytes);
}

/* ---- When oneDNN fails in the middle of a run ---- */

/* Which element of `done` the result's element `at` belongs to, and how many from there on do, one behind the other. */
static int64_t owner(const state *s, int64_t at, int64_t *count)
{
    const kiln_conv *c = &s->shape;
    bool sums = c->kind == KILN_CONV_WEIGHT_GRAD;
    role r = c->kind == KILN_CONV_FORWARD ? Y : X;
    int64_t share = sums ? kiln_dnnl_weights(c) / s->parts : share_elements(s, r);
    *count = share - at % share;
    if (sums)
        return at / share;
    int64_t image = at / image_elements(s, r), chunk = 0;
    while (kiln_dnnl_first_image(s, chunk + 1) <= image)
        chunk++;
    return chunk * s->parts + at % image_elements(s, r) / share;
}

/* Gets all of the result from columns, and hands over what oneDNN has not. */
static void hand_over_rest(void *context, int64_t start, int64_t count, const void *values, int worker)
{
    const state *s = context;
    for (int64_t i = 0, n; i < count; i += n) {
        bool done = s->done[owner(s, start + i, &n)];
        n = n < count - i ? n : count - i;
        if (!done)
            s->data.finish(s->data.context, start + i, n, (const float *)values + i, worker);
    }
}

static void run_columns(state *s)
{
    kiln_conv_data rest = s->data;
    if (s->shape.handed_over) {
        rest.finish = hand_over_rest;
        rest.context = s;
    }
    kiln_conv_columns_run(&s->shape, &rest, s->workspace);
}

/* ---- A run ---- */

/* False where oneDNN failed. Nothing is computed, let alone handed over, from something that was not. */
static bool run_tasks(state *s)
{
    bool sums = s->shape.kind == KILN_CONV_WEIGHT_GRAD;
    if (s->weight_bytes)
        kiln_parallel(s->shape.outputs, convert_weight, s);
    if (!sums && s->pieces[0].reorder[W])
        kiln_parallel(s->parts, run_weight, s);
    if (!atomic_load(&s->failed))
        kiln_parallel(s->ntasks, run_task, s);
    if (sums && !atomic_load(&s->failed))
        kiln_parallel(s->parts, run_sum, s);
    return !atomic_load(&s->failed);
}

void kiln_conv_dnnl_run(void *state_, const kiln_conv_data *data, void *workspace)
{
    state *s = state_;
    pthread_mutex_lock(&s->mutex);
    s->data = *data;
    s->workspace = workspace;
    memset(s->done, 0, sizeof s->done);
    atomic_store(&s->failed, false);
    if (!run_tasks(s))
        run_columns(s);
    pthread_mutex_unlock(&s->mutex);
}

#else /* without oneDNN */

void kiln_conv_dnnl_run(void *state, const kiln_conv_data *data, void *workspace)
{
    (void)state, (void)data, (void)workspace;
}

#endif
