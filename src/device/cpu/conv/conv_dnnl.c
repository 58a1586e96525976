/* Convolution by oneDNN (2.6 or later, also 3.x), in f32, to which a task converts the images that it takes.
 *
 * oneDNN would split sums by the number of its threads. Here it runs on one thread at a time instead: the batch is cut
 * into chunks (and, when there are few images, their channels into parts) whose number depends on the shape alone, and
 * each is a task of kiln_parallel, inside which OpenMP has a single thread. oneDNN picks memory formats of its own;
 * what it wants otherwise is reordered on the way in and out. The weight's gradient is summed by chunk, then over
 * chunks in their order.
 *
 * A state belongs to one node of one plan and holds oneDNN's objects, with addresses filled in by each task: a mutex
 * keeps runs of the same plan apart.
 *
 * If oneDNN fails in the middle of a run, columns compute the result. Of what tasks have handed over by then nothing is
 * handed over again, since an update in place must not happen twice. */
#include "device/cpu/conv/conv.h"

#ifdef KILN_HAVE_DNNL

#include <dnnl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "core/alloc.h"
#include "core/fail.h"
#include "device/cpu/common/ranges.h"
#include "device/cpu/group/pointwise.h"

enum {
    MIN_TASKS = 8,       /* chunks × parts, where the shape allows */
    MAX_TASKS = 32,      /* of large problems */
    TASK_WORK = 8 << 20, /* multiply-adds that repay one more task */
    MIN_PART = 32,       /* channels: what a vector holds */
    ALIGNMENT = 64
};

/* ---- The two interfaces: in 3.x descriptions are handles, in 2.x structs ---- */

typedef struct layout {
    dnnl_memory_desc_t d;
} layout;

#if DNNL_VERSION_MAJOR >= 3

typedef const_dnnl_memory_desc_t layout_ref;

static layout_ref ref(const layout *l)
{
    return l->d;
}

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

typedef const dnnl_memory_desc_t *layout_ref;

static layout_ref ref(const layout *l)
{
    return &l->d;
}

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

/* ---- What a state holds ---- */

typedef enum role { X, W, Y, ROLES } role;

/* The primitives for chunks of one size: the convolution, and a reorder for each array that oneDNN wants otherwise. */
typedef struct piece {
    int64_t images;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t convolution;
    layout plain[ROLES];
    bool has_plain[ROLES];
    size_t copy_bytes[ROLES];        /* of the plain array, where that is a task's own */
    layout_ref wanted[ROLES];        /* they live in pd */
    dnnl_primitive_t reorder[ROLES]; /* NULL: the array is used as it is */
    size_t bytes[ROLES];             /* of the reordered array */
    layout_ref scratch;
    size_t scratch_bytes;
} piece;

/* The objects of one task; addresses are filled in when it runs. */
typedef struct task_objects {
    dnnl_stream_t stream;
    dnnl_memory_t plain[ROLES], wanted[ROLES], scratch;
} task_objects;

typedef struct state {
    kiln_conv shape;
    pthread_mutex_t mutex;
    dnnl_engine_t engine;
    dnnl_primitive_attr_t attr;
    int64_t chunks, parts;
    piece pieces[2]; /* for chunks of the larger and the smaller size */
    int npieces;
    task_objects tasks[MAX_TASKS]; /* chunks × parts of them */
    int64_t ntasks;
    size_t weight_bytes; /* of the weight in f32, if it has to be converted */
    size_t shared_bytes; /* of the reordered weights, or partial sums */
    size_t task_bytes;   /* of the arrays of a task, which belong to its worker */
    /* of the run in progress: */
    kiln_conv_data data;
    char *workspace;
    bool done[MAX_TASKS]; /* the task has handed over its result; of the weight's gradient, the part has */
    atomic_bool failed;
} state;

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static bool is_result(const state *s, role r)
{
    return (s->shape.kind == KILN_CONV_FORWARD && r == Y) || (s->shape.kind == KILN_CONV_INPUT_GRAD && r == X) ||
           (s->shape.kind == KILN_CONV_WEIGHT_GRAD && r == W);
}

/* Whether a task has the array to itself: converted, or to be handed over. */
static bool is_own(const state *s, role r)
{
    return is_result(s, r) ? s->shape.handed_over : r != W && kiln_conv_is_half(&s->shape);
}

/* ---- Cutting: chunks of images; parts of the groups, or of the output channels (input channels for the input's
 * gradient) ---- */

static int64_t weights(const kiln_conv *c)
{
    return c->outputs * (c->channels / c->groups) * c->kernel[0] * c->kernel[1];
}

static int64_t tasks_wanted(const kiln_conv *c)
{
    double work = (double)c->batch * (double)(c->out[0] * c->out[1]) * (double)c->outputs *
                  (double)(c->channels / c->groups * c->kernel[0] * c->kernel[1]);
    int64_t tasks = MIN_TASKS;
    while (tasks < MAX_TASKS && work > 2.0 * TASK_WORK * (double)tasks)
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
    double weight = (double)weights(c);
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

/* Where a part's share of an array begins, in elements from the beginning of its image (or of the weight). */
static int64_t part_offset(const state *s, role r, int64_t part)
{
    const kiln_conv *c = &s->shape;
    bool by_group = c->groups > 1, by_input = !by_group && c->kind == KILN_CONV_INPUT_GRAD;
    int64_t taps = c->kernel[0] * c->kernel[1], inputs = c->channels / c->groups;
    if (r == X)
        return by_group || by_input ? part * (c->channels / s->parts) * c->size[0] * c->size[1] : 0;
    if (r == Y)
        return by_input ? 0 : part * (c->outputs / s->parts) * c->out[0] * c->out[1];
    return by_input ? part * (c->channels / s->parts) * taps : part * (c->outputs / s->parts) * inputs * taps;
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
    else if (!is_own(s, r))
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
        if (is_own(s, (role)made))
            p->copy_bytes[made] = aligned((size_t)(strides[0] * shape[0]) * sizeof(float));
        if (!p->has_plain[made]) {
            layout_free(&any[made]);
            break;
        }
    }
    if (made == ROLES) {
        layout_ref x = ref(&any[X]), w = fixed ? fixed : ref(&any[W]), y = ref(&any[Y]);
        dnnl_primitive_desc_t hint = NULL;
        if (c.kind != KILN_CONV_FORWARD)
            hint = describe_kind(KILN_CONV_FORWARD, s->engine, s->attr, x, ref(&any[W]), y, &g, NULL);
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
        if (dnnl_memory_desc_equal(p->wanted[r], ref(&p->plain[r])))
            continue;
        layout_ref from = is_result(s, r) ? p->wanted[r] : ref(&p->plain[r]);
        layout_ref to = is_result(s, r) ? ref(&p->plain[r]) : p->wanted[r];
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

static int64_t first_image(const state *s, int64_t chunk)
{
    return kiln_range_begin(s->shape.batch, s->chunks, chunk);
}

static const piece *piece_of(const state *s, int64_t chunk)
{
    int64_t images = first_image(s, chunk + 1) - first_image(s, chunk);
    return &s->pieces[images != s->pieces[0].images];
}

static bool new_task(state *s, task_objects *t, const piece *p)
{
    bool made = dnnl_stream_create(&t->stream, s->engine, dnnl_stream_default_flags) == dnnl_success &&
                dnnl_memory_create(&t->scratch, p->scratch, s->engine, DNNL_MEMORY_NONE) == dnnl_success;
    for (role r = X; made && r < ROLES; r++)
        made = dnnl_memory_create(&t->plain[r], ref(&p->plain[r]), s->engine, DNNL_MEMORY_NONE) == dnnl_success &&
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
    return image_elements(s, r) / (s->parts > 1 && part_offset(s, r, 1) ? s->parts : 1);
}

/* Where a task's share begins in the whole array, in elements. */
static int64_t user_offset(const state *s, role r, int64_t chunk, int64_t part)
{
    return part_offset(s, r, part) + (r == W ? 0 : first_image(s, chunk) * image_elements(s, r));
}

static char *user_array(const state *s, role r, int64_t chunk, int64_t part)
{
    char *base = r == X ? s->data.x : r == Y ? s->data.y : s->weight_bytes ? s->workspace : s->data.w;
    return base + (size_t)user_offset(s, r, chunk, part) * sizeof(float);
}

/* Fills in a task's addresses. */
static void place(const state *s, task_objects *t, int64_t index, int worker)
{
    const piece *p = piece_of(s, index / s->parts);
    char *own = own_arrays(s, worker);
    bool sums = s->shape.kind == KILN_CONV_WEIGHT_GRAD;
    for (role r = X; r < ROLES; r++) {
        char *user = is_own(s, r) ? own : user_array(s, r, index / s->parts, index % s->parts), *wanted = user;
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
    int64_t images = piece_of(s, index / s->parts)->images, all = image_elements(s, r), share = share_elements(s, r);
    const char *from = r == X ? s->data.x : s->data.y;
    from += 2 * user_offset(s, r, index / s->parts, index % s->parts);
    float *to = plain_array(t, r);
    for (int64_t i = 0; i < images; i++)
        kiln_pw_best()->load[s->shape.dtype](to + i * share, from + 2 * i * all, share);
}

static void hand_over(state *s, const task_objects *t, role r, int64_t index, int worker)
{
    int64_t images = piece_of(s, index / s->parts)->images, all = image_elements(s, r), share = share_elements(s, r);
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
    const piece *p = piece_of(s, index / s->parts);
    const int *names = arguments[s->shape.kind];
    bool fine = true;
    place(s, t, index, worker);
    for (role r = X; fine && r < ROLES; r++) {
        if (r == W || is_result(s, r))
            continue;
        if (is_own(s, r))
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
        if (r == W || !is_result(s, r))
            continue;
        fine = !p->reorder[r] || reorder(t, p, r, true);
        if (fine && is_own(s, r))
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
    size_t bytes = dnnl_memory_desc_get_size(ref(&p->plain[W]));
    place(s, &s->tasks[part], part, worker);
    if (p->reorder[W] && !reorder(&s->tasks[part], p, W, true))
        atomic_store(&s->failed, true);
    else if (s->shape.handed_over) {
        s->data.finish(s->data.context, part_offset(s, W, part), (int64_t)(bytes / sizeof(float)),
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
    int64_t share = sums ? weights(c) / s->parts : share_elements(s, r);
    *count = share - at % share;
    if (sums)
        return at / share;
    int64_t image = at / image_elements(s, r), chunk = 0;
    while (first_image(s, chunk + 1) <= image)
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
        if (!new_task(s, &s->tasks[i], piece_of(s, i / s->parts)))
            return false;
    if (s->shape.kind != KILN_CONV_WEIGHT_GRAD && kiln_conv_is_half(&s->shape))
        s->weight_bytes = aligned((size_t)weights(&s->shape) * sizeof(float));
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

void kiln_conv_dnnl_run(void *state, const kiln_conv_data *data, void *workspace)
{
    (void)state, (void)data, (void)workspace;
}

void kiln_conv_dnnl_free(void *state)
{
    (void)state;
}

#endif
