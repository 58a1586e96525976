/* Convolution by oneDNN (2.6 or later, also 3.x): making its primitives for a shape.
 *
 * oneDNN would split sums by the number of its threads. Here it runs on one thread at a time instead: the batch is cut
 * into chunks (and, when there are few images, their channels into parts) whose number depends on the shape alone, and
 * each is a task of kiln_parallel, inside which OpenMP has a single thread. oneDNN picks memory formats of its own;
 * what it wants otherwise is reordered on the way in and out. */
#include "device/cpu/conv/conv.h"

#ifdef KILN_HAVE_DNNL

#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "device/cpu/conv/conv_dnnl.h"

enum {
    MIN_TASKS = 8,       /* chunks × parts, where the shape allows */
    TASK_WORK = 8 << 20, /* multiply-adds that repay one more task */
    MIN_PART = 32,       /* channels: what a vector holds */
    ALIGNMENT = 64
};

typedef kiln_dnnl_state state;
typedef kiln_dnnl_piece piece;
typedef kiln_dnnl_task task_objects;
typedef kiln_dnnl_role role;
typedef kiln_dnnl_layout layout;
typedef kiln_dnnl_layout_ref layout_ref;

/* ---- The two interfaces: in 3.x descriptions are handles, in 2.x structs ---- */

#if DNNL_VERSION_MAJOR >= 3

/* A description with the given strides, or, where they are NULL, in the format oneDNN likes best. */
static bool layout_new(layout *l, int ndim, const int64_t *shape, const int64_t *strides)
{
    return (strides
                ? dnnl_memory_desc_create_with_strides(&l->d, ndim, shape, dnnl_f32, strides)
                : dnnl_memory_desc_create_with_tag(&l->d, ndim, shape, dnnl_f32, dnnl_format_tag_any)) == dnnl_success;
}

static void layout_free(layout *l)
{
    dnnl_memory_desc_destroy(l->d);
}

#else

static bool layout_new(layout *l, int ndim, const int64_t *shape, const int64_t *strides)
{
    return (strides ? dnnl_memory_desc_init_by_strides(&l->d, ndim, shape, dnnl_f32, strides)
                    : dnnl_memory_desc_init_by_tag(&l->d, ndim, shape, dnnl_f32, dnnl_format_tag_any)) == dnnl_success;
}

static void layout_free(layout *l)
{
    (void)l;
}

#endif

typedef struct geometry {
    dnnl_dims_t stride, dilation, padding;
} geometry;

static dnnl_primitive_desc_t describe_kind(kiln_conv_kind kind, dnnl_engine_t engine, dnnl_primitive_attr_t attr,
                                           layout_ref x, layout_ref w, layout_ref y, const geometry *g,
                                           dnnl_primitive_desc_t hint)
{
    dnnl_primitive_desc_t pd = NULL;
    const dnnl_alg_kind_t direct = dnnl_convolution_direct;
    const dnnl_prop_kind_t training = dnnl_forward_training;
#if DNNL_VERSION_MAJOR >= 3
    dnnl_status_t status =
        kind == KILN_CONV_FORWARD
            ? dnnl_convolution_forward_primitive_desc_create(&pd, engine, training, direct, x, w, NULL, y, g->stride,
                                                             g->dilation, g->padding, g->padding, attr)
        : kind == KILN_CONV_INPUT_GRAD
            ? dnnl_convolution_backward_data_primitive_desc_create(&pd, engine, direct, x, w, y, g->stride, g->dilation,
                                                                   g->padding, g->padding, hint, attr)
            : dnnl_convolution_backward_weights_primitive_desc_create(&pd, engine, direct, x, w, NULL, y, g->stride,
                                                                      g->dilation, g->padding, g->padding, hint, attr);
#else
    dnnl_convolution_desc_t d;
    dnnl_status_t status =
        kind == KILN_CONV_FORWARD
            ? dnnl_dilated_convolution_forward_desc_init(&d, training, direct, x, w, NULL, y, g->stride, g->dilation,
                                                         g->padding, g->padding)
        : kind == KILN_CONV_INPUT_GRAD
            ? dnnl_dilated_convolution_backward_data_desc_init(&d, direct, x, w, y, g->stride, g->dilation, g->padding,
                                                               g->padding)
            : dnnl_dilated_convolution_backward_weights_desc_init(&d, direct, x, w, NULL, y, g->stride, g->dilation,
                                                                  g->padding, g->padding);
    if (status == dnnl_success)
        status = dnnl_primitive_desc_create(&pd, &d, attr, engine, hint);
#endif
    return status == dnnl_success ? pd : NULL;
}

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* ---- Cutting: chunks of images; parts of the groups, or of the output channels (input channels for the input's
 * gradient) ---- */

static int64_t tasks_wanted(const kiln_conv *c)
{
    double work = (double)c->batch * (double)(c->out[0] * c->out[1]) * (double)c->outputs *
                  (double)(c->channels / c->groups * c->kernel[0] * c->kernel[1]);
    int64_t tasks = MIN_TASKS;
    while (tasks < KILN_DNNL_TASKS && work > 2.0 * TASK_WORK * (double)tasks)
        tasks *= 2;
    return tasks;
}

static int64_t most_parts(const kiln_conv *c, int64_t tasks)
{
    int64_t channels = c->groups > 1 ? c->groups : c->kind == KILN_CONV_INPUT_GRAD ? c->channels : c->outputs;
    int64_t least = c->groups > 1 ? 1 : MIN_PART, parts = 1;
    while (parts * 2 <= tasks && channels % (parts * 2 * least) == 0)
        parts *= 2;
    return parts;
}

/* As many chunks as there can be, and parts where these are few. But each chunk of the weight's gradient costs a sum of
 * its own, while each part only costs bringing x into oneDNN's format again: the cheaper cut is taken. */
static void cut(state *s)
{
    const kiln_conv *c = &s->shape;
    int64_t tasks = tasks_wanted(c), most = most_parts(c, tasks), images = c->batch < tasks ? c->batch : tasks;
    double input = (double)c->batch * (double)c->channels * (double)c->size[0] * (double)c->size[1];
    double weight = (double)kiln_dnnl_weights(c);
    double least = 0;
    for (int64_t parts = 1; parts <= most; parts *= 2) {
        int64_t chunks = images < tasks / parts ? images : tasks / parts;
        double idle = 1e30 * (double)(tasks - chunks * parts);
        double cost =
            c->kind == KILN_CONV_WEIGHT_GRAD ? (double)chunks * weight * 2 + (double)parts * input : (double)parts;
        if (parts > 1 && idle + cost >= least)
            continue;
        least = idle + cost;
        s->chunks = chunks;
        s->parts = parts;
    }
}

/* One part's share of the problem. */
static kiln_conv part_shape(const state *s, int64_t images)
{
    kiln_conv c = s->shape;
    c.batch = images;
    if (c.groups > 1) {
        c.groups /= s->parts;
        c.channels /= s->parts;
        c.outputs /= s->parts;
    } else if (c.kind == KILN_CONV_INPUT_GRAD) {
        c.channels /= s->parts;
    } else {
        c.outputs /= s->parts;
    }
    return c;
}

/* ---- Pieces ---- */

static int shape_and_strides(const state *s, const kiln_conv *c, role r, int64_t *shape, int64_t *strides)
{
    int64_t planes[4] = {c->batch, r == X ? c->channels : c->outputs, r == X ? c->size[0] : c->out[0],
                         r == X ? c->size[1] : c->out[1]};
    int64_t weights[5] = {c->groups, c->outputs / c->groups, c->channels / c->groups, c->kernel[0], c->kernel[1]};
    int skip = c->groups == 1; /* a weight without groups has four dims */
    int ndim = r == W ? 5 - skip : 4;
    memcpy(shape, r == W ? weights + skip : planes, (size_t)ndim * sizeof *shape);
    strides[ndim - 1] = 1;
    for (int d = ndim - 2; d >= 0; d--)
        strides[d] = strides[d + 1] * shape[d + 1];
    /* A part is a slice of the whole arrays: from one image, or one output channel, to the next is as far as there. */
    const kiln_conv *whole = &s->shape;
    if (r == W)
        strides[1 - skip] = whole->channels / whole->groups * c->kernel[0] * c->kernel[1];
    else if (!kiln_dnnl_is_own(s, r))
        strides[0] = (r == X ? whole->channels : whole->outputs) * shape[2] * shape[3];
    return ndim;
}

static geometry geometry_of(const kiln_conv *c)
{
    geometry g = {{0}, {0}, {0}};
    for (int a = 0; a < 2; a++) {
        g.stride[a] = c->stride[a];
        g.dilation[a] = c->dilation[a] - 1; /* oneDNN counts the elements left out */
        g.padding[a] = c->padding[a];
    }
    return g;
}

/* `fixed`: the weight's format where another piece chose it already, since they share the weight. */
static bool describe_piece(state *s, piece *p, layout_ref fixed)
{
    kiln_conv c = part_shape(s, p->images);
    geometry g = geometry_of(&c);
    layout any[ROLES];
    dnnl_dims_t shape, strides;
    int made = 0;
    for (; made < ROLES; made++) {
        int ndim = shape_and_strides(s, &c, (role)made, shape, strides);
        if (!layout_new(&any[made], ndim, shape, NULL))
            break;
        p->has_plain[made] = layout_new(&p->plain[made], ndim, shape, strides);
        if (kiln_dnnl_is_own(s, (role)made))
            p->copy_bytes[made] = aligned((size_t)(strides[0] * shape[0]) * sizeof(float));
        if (!p->has_plain[made]) {
            layout_free(&any[made]);
            break;
        }
    }
    if (made == ROLES) {
        layout_ref x = kiln_dnnl_ref(&any[X]), w = fixed ? fixed : kiln_dnnl_ref(&any[W]), y = kiln_dnnl_ref(&any[Y]);
        dnnl_primitive_desc_t hint = NULL;
        if (c.kind != KILN_CONV_FORWARD)
            hint = describe_kind(KILN_CONV_FORWARD, s->engine, s->attr, x, kiln_dnnl_ref(&any[W]), y, &g, NULL);
        if (c.kind == KILN_CONV_FORWARD || hint)
            p->pd = describe_kind(c.kind, s->engine, s->attr, x, w, y, &g, hint);
        if (hint)
            dnnl_primitive_desc_destroy(hint);
    }
    while (made-- > 0)
        layout_free(&any[made]);
    return p->pd != NULL;
}

static bool new_reorder(state *s, layout_ref from, layout_ref to, dnnl_primitive_t *reorder)
{
    dnnl_primitive_desc_t pd = NULL;
    if (dnnl_reorder_primitive_desc_create(&pd, from, s->engine, to, s->engine, s->attr) != dnnl_success)
        return false;
    bool made = dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0)) == 0 &&
                dnnl_primitive_create(reorder, pd) == dnnl_success;
    dnnl_primitive_desc_destroy(pd);
    return made;
}

static bool new_piece(state *s, piece *p, layout_ref fixed)
{
    static const dnnl_query_t queries[3][ROLES] = {
        [KILN_CONV_FORWARD] = {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
        [KILN_CONV_INPUT_GRAD] = {dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
        [KILN_CONV_WEIGHT_GRAD] = {dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md},
    };
    if (!describe_piece(s, p, fixed) || dnnl_primitive_create(&p->convolution, p->pd) != dnnl_success)
        return false;
    for (role r = X; r < ROLES; r++) {
        p->wanted[r] = dnnl_primitive_desc_query_md(p->pd, queries[s->shape.kind][r], 0);
        p->bytes[r] = aligned(dnnl_memory_desc_get_size(p->wanted[r]));
        if (dnnl_memory_desc_equal(p->wanted[r], kiln_dnnl_ref(&p->plain[r])))
            continue;
        layout_ref from = kiln_dnnl_is_result(s, r) ? p->wanted[r] : kiln_dnnl_ref(&p->plain[r]);
        layout_ref to = kiln_dnnl_is_result(s, r) ? kiln_dnnl_ref(&p->plain[r]) : p->wanted[r];
        if (!new_reorder(s, from, to, &p->reorder[r]))
            return false;
    }
    p->scratch = dnnl_primitive_desc_query_md(p->pd, dnnl_query_scratchpad_md, 0);
    p->scratch_bytes = aligned(dnnl_memory_desc_get_size(p->scratch));
    return true;
}

static void free_piece(piece *p)
{
    for (role r = X; r < ROLES; r++) {
        if (p->has_plain[r])
            layout_free(&p->plain[r]);
        if (p->reorder[r])
            dnnl_primitive_destroy(p->reorder[r]);
    }
    if (p->convolution)
        dnnl_primitive_destroy(p->convolution);
    if (p->pd)
        dnnl_primitive_desc_destroy(p->pd);
}

/* ---- Tasks ---- */

static bool new_task(state *s, task_objects *t, const piece *p)
{
    bool made = dnnl_stream_create(&t->stream, s->engine, dnnl_stream_default_flags) == dnnl_success &&
                dnnl_memory_create(&t->scratch, p->scratch, s->engine, DNNL_MEMORY_NONE) == dnnl_success;
    for (role r = X; made && r < ROLES; r++)
        made = dnnl_memory_create(&t->plain[r], kiln_dnnl_ref(&p->plain[r]), s->engine, DNNL_MEMORY_NONE) ==
                   dnnl_success &&
               dnnl_memory_create(&t->wanted[r], p->wanted[r], s->engine, DNNL_MEMORY_NONE) == dnnl_success;
    return made;
}

static void free_task(task_objects *t)
{
    for (role r = X; r < ROLES; r++) {
        if (t->plain[r])
            dnnl_memory_destroy(t->plain[r]);
        if (t->wanted[r])
            dnnl_memory_destroy(t->wanted[r]);
    }
    if (t->scratch)
        dnnl_memory_destroy(t->scratch);
    if (t->stream)
        dnnl_stream_destroy(t->stream);
}

/* ---- The state ---- */

/* oneDNN keeps what it has generated for others to share: up to 1024 primitives, 60 MB of them after a few dozen
 * plans. Some of them serve, since layers of a plan are often alike and each is set up twice. */
enum { SHARED_PRIMITIVES = 256, ITS_DEFAULT = 1024 };
static pthread_once_t bounded = PTHREAD_ONCE_INIT;

static void bound_cache(void)
{
    int capacity = 0;
    if (dnnl_get_primitive_cache_capacity(&capacity) == dnnl_success && capacity == ITS_DEFAULT)
        dnnl_set_primitive_cache_capacity(SHARED_PRIMITIVES); /* somebody else's choice is left alone */
}

static bool set_up(state *s)
{
    pthread_once(&bounded, bound_cache);
    if (dnnl_engine_create(&s->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_primitive_attr_create(&s->attr) != dnnl_success ||
        dnnl_primitive_attr_set_scratchpad_mode(s->attr, dnnl_scratchpad_mode_user) != dnnl_success)
        return false;
    cut(s);
    s->npieces = s->shape.batch % s->chunks ? 2 : 1;
    s->pieces[0].images = (s->shape.batch + s->chunks - 1) / s->chunks;
    s->pieces[1].images = s->pieces[0].images - 1;
    for (int i = 0; i < s->npieces; i++)
        if (!new_piece(s, &s->pieces[i], i ? s->pieces[0].wanted[W] : NULL))
            return false;
    const piece *p = &s->pieces[0];
    s->ntasks = s->chunks * s->parts;
    for (int64_t i = 0; i < s->ntasks; i++)
        if (!new_task(s, &s->tasks[i], kiln_dnnl_piece_of(s, i / s->parts)))
            return false;
    if (s->shape.kind != KILN_CONV_WEIGHT_GRAD && kiln_conv_is_half(&s->shape))
        s->weight_bytes = aligned((size_t)kiln_dnnl_weights(&s->shape) * sizeof(float));
    if (s->shape.kind == KILN_CONV_WEIGHT_GRAD)
        s->shared_bytes = (size_t)s->ntasks * p->bytes[W];
    else if (p->reorder[W])
        s->shared_bytes = (size_t)s->parts * p->bytes[W];
    for (int i = 0; i < s->npieces; i++) {
        p = &s->pieces[i];
        size_t bytes = (p->reorder[X] ? p->bytes[X] : 0) + (p->reorder[Y] ? p->bytes[Y] : 0) + p->scratch_bytes +
                       p->copy_bytes[X] + p->copy_bytes[W] + p->copy_bytes[Y];
        s->task_bytes = bytes > s->task_bytes ? bytes : s->task_bytes;
    }
    return true;
}

static void tear_down(state *s)
{
    for (int64_t i = 0; i < s->ntasks; i++)
        free_task(&s->tasks[i]);
    for (int i = 0; i < s->npieces; i++)
        free_piece(&s->pieces[i]);
    if (s->attr)
        dnnl_primitive_attr_destroy(s->attr);
    if (s->engine)
        dnnl_engine_destroy(s->engine);
}

typedef struct set_up_call {
    state *s;
    bool done;
} set_up_call;

static void set_up_body(void *context, int64_t task, int worker)
{
    (void)task, (void)worker;
    set_up_call *call = context;
    call->done = set_up(call->s);
}

/* False when oneDNN does not take the shape; there is nothing to tear down then. */
static bool try_set_up(state *s, const kiln_conv *shape)
{
    if (shape->dtype == KILN_F64 || shape->batch == 0 || shape->channels == 0 || shape->outputs == 0)
        return false;
    s->shape = *shape;
    set_up_call call = {s, false};
    kiln_parallel(1, set_up_body, &call); /* inside it oneDNN finds one thread, and plans for one */
    if (!call.done)
        tear_down(s);
    return call.done;
}

/* Asked before a state is made, and without allocating, so that it cannot fail where kiln_conv_dnnl_new succeeds. */

size_t kiln_conv_dnnl_workspace(const kiln_conv *shape)
{
    state s = {0};
    if (!try_set_up(&s, shape))
        return 0;
    size_t bytes = s.weight_bytes + s.shared_bytes + (size_t)kiln_threads() * s.task_bytes;
    tear_down(&s);
    return bytes;
}

void *kiln_conv_dnnl_new(const kiln_conv *shape)
{
    state *s = kiln_alloc_zero(1, sizeof *s);
    if (s && try_set_up(s, shape)) {
        pthread_mutex_init(&s->mutex, NULL);
        return s;
    }
    kiln_free(s); /* for want of memory the error stays, and the plan is not made: the plain kernel gives other bits */
    return NULL;
}

void kiln_conv_dnnl_free(void *state_)
{
    state *s = state_;
    if (!s)
        return;
    tear_down(s);
    pthread_mutex_destroy(&s->mutex);
    kiln_free(s);
}

#else /* without oneDNN */

void *kiln_conv_dnnl_new(const kiln_conv *shape)
{
    (void)shape;
    return NULL;
}

size_t kiln_conv_dnnl_workspace(const kiln_conv *shape)
{
    (void)shape;
    return 0;
}

void kiln_conv_dnnl_free(void *state)
{
    (void)state;
}

#endif
