/* Planes of images as strips: row behind row with zeros around them, so that a tap of a convolution's kernel is one
 * distance, wherever in the strip. At a stride of 2 the even and the odd rows and columns are strips of their own, in
 * which neighbours of the result have neighbours. Several images stand behind each other. */
#ifndef KILN_CPU_CONV_STRIPS_H
#define KILN_CPU_CONV_STRIPS_H

#include "device/cpu/conv/conv.h"

/* Pairs are height, width. */
typedef struct kiln_strips {
    int64_t size[2], before[2]; /* of a plane, and zeros above and to its left */
    int64_t phases[2];          /* rows and columns that lie so far apart are neighbours */
    int64_t length[2], plane;   /* rows and columns of an image in a strip, and pixels: their product */
    int64_t images, count;      /* in a strip, and strips */
    int64_t pixels;             /* from one strip to the next */
} kiln_strips;

/* `slack`: pixels that may be read behind the last one of a strip. */
static inline void kiln_strips_finish(kiln_strips *s, int64_t images, int64_t slack)
{
    s->plane = s->length[0] * s->length[1];
    s->images = images;
    s->count = s->phases[0] * s->phases[1];
    s->pixels = images * s->plane + slack;
}

/* For what the convolution reads forward. */
static inline kiln_strips kiln_strips_of(const kiln_conv *c)
{
    kiln_strips s = {0};
    for (int a = 0; a < 2; a++) {
        s.size[a] = c->size[a];
        s.before[a] = c->padding[a];
        s.phases[a] = c->stride[a];
        s.length[a] = (c->size[a] + 2 * c->padding[a] + c->stride[a] - 1) / c->stride[a];
    }
    return s;
}

/* From a pixel of the result to the one that lies `down` and `right` of its first neighbour in a plane with zeros. */
static inline int64_t kiln_strips_distance(const kiln_strips *s, int64_t down, int64_t right)
{
    return (down % s->phases[0] * s->phases[1] + right % s->phases[1]) * s->pixels +
           down / s->phases[0] * s->length[1] + right / s->phases[1];
}

/* Columns of a plane that share a strip: `count` of them, `step` apart, and where in a row of the strip they begin. */
typedef struct kiln_strip_columns {
    int64_t first, step, count, to;
} kiln_strip_columns;

static inline kiln_strip_columns kiln_strips_columns(const kiln_strips *s, int64_t phase)
{
    int64_t step = s->phases[1], first = (phase - s->before[1] % step + step) % step;
    return (kiln_strip_columns){.first = first,
                                .step = step,
                                .count = first < s->size[1] ? (s->size[1] - first + step - 1) / step : 0,
                                .to = phase * s->pixels + (first + s->before[1]) / step};
}

/* Where a row of an image begins in its strip, but for the columns' phase. */
static inline int64_t kiln_strips_row(const kiln_strips *s, int64_t image, int64_t y)
{
    int64_t row = y + s->before[0], phases = s->phases[0];
    return image * s->plane +
           (phases == 1 ? row * s->length[1] : row % phases * s->phases[1] * s->pixels + row / phases * s->length[1]);
}

/* Whether a tap of the kernel reads a phase at all. */
static inline bool kiln_strips_reads(const kiln_conv *c, int axis, int64_t phase)
{
    bool any = false;
    for (int64_t u = 0; u < c->kernel[axis] && !any; u++)
        any = u * c->dilation[axis] % c->stride[axis] == phase;
    return any;
}

#endif
