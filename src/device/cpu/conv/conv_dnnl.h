/* Convolution by oneDNN: what a state consists of, which conv_dnnl_set_up.c makes and conv_dnnl.c runs.
 *
 * A state belongs to one node of one plan and holds oneDNN's objects, with addresses filled in by each task: a mutex
 * keeps runs of the same plan apart. */
#ifndef KILN_CPU_CONV_DNNL_H
#define KILN_CPU_CONV_DNNL_H

#include <dnnl.h>
#include <pthread.h>
#include <stdatomic.h>
#include "device/cpu/common/ranges.h"
#include "device/cpu/conv/conv.h"

enum { KILN_DNNL_TASKS = 32 }; /* at most: chunks × parts of large problems */

/* In 3.x descriptions are handles, in 2.x structs. */
typedef struct kiln_dnnl_layout {
    dnnl_memory_desc_t d;
} kiln_dnnl_layout;

#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t kiln_dnnl_layout_ref;
#else
typedef const dnnl_memory_desc_t *kiln_dnnl_layout_ref;
#endif

static inline kiln_dnnl_layout_ref kiln_dnnl_ref(const kiln_dnnl_layout *l)
{
#if DNNL_VERSION_MAJOR >= 3
    return l->d;
#else
    return &l->d;
#endif
}

typedef enum kiln_dnnl_role { X, W, Y, ROLES } kiln_dnnl_role; /* only two files see them */

/* The primitives for chunks of one size: the convolution, and a reorder for each array that oneDNN wants otherwise. */
typedef struct kiln_dnnl_piece {
    int64_t images;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t convolution;
    kiln_dnnl_layout plain[ROLES];
    bool has_plain[ROLES];
    size_t copy_bytes[ROLES];           /* of the plain array, where that is a task's own */
    kiln_dnnl_layout_ref wanted[ROLES]; /* they live in pd */
    dnnl_primitive_t reorder[ROLES];    /* NULL: the array is used as it is */
    size_t bytes[ROLES];                /* of the reordered array */
    kiln_dnnl_layout_ref scratch;
    size_t scratch_bytes;
} kiln_dnnl_piece;

/* The objects of one task; addresses are filled in when it runs. */
typedef struct kiln_dnnl_task {
    dnnl_stream_t stream;
    dnnl_memory_t plain[ROLES], wanted[ROLES], scratch;
} kiln_dnnl_task;

typedef struct kiln_dnnl_state {
    kiln_conv shape;
    pthread_mutex_t mutex;
    dnnl_engine_t engine;
    dnnl_primitive_attr_t attr;
    int64_t chunks, parts;
    kiln_dnnl_piece pieces[2]; /* for chunks of the larger and the smaller size */
    int npieces;
    kiln_dnnl_task tasks[KILN_DNNL_TASKS]; /* chunks × parts of them */
    int64_t ntasks;
    size_t weight_bytes; /* of the weight in f32, if it has to be converted */
    size_t shared_bytes; /* of the reordered weights, or partial sums */
    size_t task_bytes;   /* of the arrays of a task, which belong to its worker */
    /* of the run in progress: */
    kiln_conv_data data;
    char *workspace;
    bool done[KILN_DNNL_TASKS]; /* the task has handed over its result; of the weight's gradient, the part has */
    atomic_bool failed;
} kiln_dnnl_state;

/* ---- Its parts ---- */

static inline bool kiln_dnnl_is_result(const kiln_dnnl_state *s, kiln_dnnl_role r)
{
    return (s->shape.kind == KILN_CONV_FORWARD && r == Y) || (s->shape.kind == KILN_CONV_INPUT_GRAD && r == X) ||
           (s->shape.kind == KILN_CONV_WEIGHT_GRAD && r == W);
}

/* Whether a task has the array to itself: converted, or to be handed over. */
static inline bool kiln_dnnl_is_own(const kiln_dnnl_state *s, kiln_dnnl_role r)
{
    return kiln_dnnl_is_result(s, r) ? s->shape.handed_over : r != W && kiln_conv_is_half(&s->shape);
}

static inline int64_t kiln_dnnl_weights(const kiln_conv *c)
{
    return c->outputs * (c->channels / c->groups) * c->kernel[0] * c->kernel[1];
}

/* Where a part's share of an array begins, in elements from the beginning of its image (or of the weight). */
static inline int64_t kiln_dnnl_part_offset(const kiln_dnnl_state *s, kiln_dnnl_role r, int64_t part)
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

static inline int64_t kiln_dnnl_first_image(const kiln_dnnl_state *s, int64_t chunk)
{
    return kiln_range_begin(s->shape.batch, s->chunks, chunk);
}

static inline const kiln_dnnl_piece *kiln_dnnl_piece_of(const kiln_dnnl_state *s, int64_t chunk)
{
    int64_t images = kiln_dnnl_first_image(s, chunk + 1) - kiln_dnnl_first_image(s, chunk);
    return &s->pieces[images != s->pieces[0].images];
}

#endif
