/* Direct convolution, computed in f32, for layers of few channels, where what matrix products and oneDNN spend on
 * bringing the operands into shape is most of the time. Two ways:
 *
 * - rows: the lanes of a vector are neighbours in a row of the result, whose few channels are made together. The
 *   gradient of the input is such a convolution too, of the output's gradient with the kernel turned around.
 * - taps: the gradient of the weight, where lanes are the output's channels and a kernel plane stays in registers.
 *
 * Work is cut into lanes, ranges of images, which get their padding in scratch memory and become f32 on the way there.
 * The number of lanes depends on the shape alone, and the weight's gradient is summed over lanes in their order. */
#include <string.h>

#include "device/cpu/conv/conv.h"
#include "device/cpu/conv/conv_kernels.h"
#include "device/cpu/common/isa.h"
#include "device/cpu/common/ranges.h"
#include "device/cpu/group/pointwise.h"

enum { MAX_LANES = 16, MAX_PARTIALS = 8, ALIGNMENT = 64 };

/* The convolution that is computed: for the input's gradient, not the one that was asked for. */
typedef struct job {
    const kiln_conv_kernels *kernels;
    const kiln_conv_width *width; /* for taps */
    kiln_conv_kind kind;
    int64_t batch, channels, outputs;
    int64_t size[2], out[2], kernel[2], stride[2], padding[2];
    int64_t pitch, lines; /* of a padded plane; rows need padding to the left and right only */
    int64_t sums;         /* of a partial gradient, in floats */
    int64_t lanes;
    int64_t shared_floats; /* the weight in f32 and packed, or partial gradients, before the workers' scratch */
    int64_t worker_floats;
    int64_t line_floats; /* what becomes f32 before it is padded or turned, and what is made before it is handed over */
    kiln_dtype dtype;
    const char *x, *y; /* taps: input and the output's gradient */
    float *result, *shared;
    const kiln_conv_data *data;
} job;

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static int64_t taps_of(const job *j)
{
    return j->kernel[0] * j->kernel[1];
}

static int64_t weights(const job *j)
{
    return j->outputs * j->channels * taps_of(j);
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static bool is_half(const job *j)
{
    return j->dtype != KILN_F32;
}

static void measure_taps(job *j, int64_t an_image)
{
    j->width = j->outputs > j->kernels->narrow.lanes ? &j->kernels->wide : &j->kernels->narrow;
    int64_t outputs = round_up(j->outputs, j->width->lanes), pixels = j->out[0] * j->out[1];
    j->pitch = j->size[1] + 2 * j->padding[1];
    j->lines = j->size[0] + 2 * j->padding[0];
    j->sums = outputs * j->channels * taps_of(j);
    j->lanes = kiln_range_count(j->batch, an_image);
    j->lanes = j->lanes < MAX_PARTIALS ? j->lanes : MAX_PARTIALS;
    j->line_floats = is_half(j) ? most(j->channels * j->size[0] * j->size[1], j->width->lanes * pixels) : 0;
    j->worker_floats = j->channels * j->lines * j->pitch + outputs * pixels + j->line_floats;
    j->worker_floats = round_up(most(j->worker_floats, weights(j)), ALIGNMENT / 4);
    j->shared_floats = j->lanes * j->sums;
}

static void measure_rows(job *j, int64_t an_image, bool handed_over)
{
    j->pitch = round_up(j->out[1], j->kernels->lanes) + j->kernel[1] - 1;
    j->lines = j->size[0];
    j->lanes = kiln_range_count(j->batch, an_image);
    j->lanes = j->lanes < MAX_LANES ? j->lanes : MAX_LANES;
    int64_t read = is_half(j) ? j->channels * j->size[0] * j->size[1] : 0;
    j->line_floats = most(read, handed_over ? j->outputs * j->out[0] * j->out[1] : 0);
    j->worker_floats = round_up(j->channels * j->lines * j->pitch + j->line_floats, ALIGNMENT / 4);
    j->shared_floats = round_up(weights(j) * (is_half(j) ? 2 : 1), ALIGNMENT / 4);
}

static job describe(const kiln_conv *s)
{
    job j = {.kind = s->kind, .batch = s->batch, .channels = s->channels, .outputs = s->outputs, .dtype = s->dtype};
    j.kernels = kiln_isa_pick(kiln_conv_plain, kiln_conv_avx2, kiln_conv_avx512);
    bool turned = s->kind == KILN_CONV_INPUT_GRAD;
    if (turned) {
        j.channels = s->outputs;
        j.outputs = s->channels;
    }
    for (int a = 0; a < 2; a++) {
        j.size[a] = turned ? s->out[a] : s->size[a];
        j.out[a] = turned ? s->size[a] : s->out[a];
        j.kernel[a] = s->kernel[a];
        j.stride[a] = s->stride[a];
        j.padding[a] = turned ? s->kernel[a] - 1 - s->padding[a] : s->padding[a];
    }
    int64_t work = s->batch * s->outputs * s->out[0] * s->out[1] * s->channels * taps_of(&j);
    int64_t an_image = s->batch ? work / s->batch / 8 + 1 : 0;
    if (s->kind == KILN_CONV_WEIGHT_GRAD)
        measure_taps(&j, an_image);
    else
        measure_rows(&j, an_image, s->handed_over);
    return j;
}

/* By measurement on Zen 4 against oneDNN 2.6 and the matrix products. */
bool kiln_conv_direct_takes(const kiln_conv *s)
{
    if (s->dtype == KILN_F64 || s->groups != 1 || s->dilation[0] != 1 || s->dilation[1] != 1)
        return false;
    job j = describe(s);
    if (s->kind == KILN_CONV_WEIGHT_GRAD)
        return j.kernel[1] <= KILN_CONV_MAX_TAPS && j.width->taps[j.kernel[1] - 1][0] && j.outputs <= 16 &&
               j.channels <= 16;
    bool turned = s->kind == KILN_CONV_INPUT_GRAD;
    return j.outputs <= 8 && j.channels <= 16 && j.stride[1] == 1 && j.padding[1] >= 0 && j.padding[0] >= 0 &&
           (!turned || j.stride[0] == 1) && taps_of(&j) > 1;
}

size_t kiln_conv_direct_workspace(const kiln_conv *s)
{
    job j = describe(s);
    return (size_t)(j.shared_floats + kiln_threads() * j.worker_floats) * sizeof(float);
}

static float *scratch_of(const job *j, int worker)
{
    return j->shared + j->shared_floats + worker * j->worker_floats;
}

/* `count` elements of an array from `first` on, converted into `to` if need be. */
static const float *as_floats(const job *j, const char *from, int64_t first, int64_t count, float *to)
{
    if (!is_half(j))
        return (const float *)(const void *)from + first;
    kiln_pw_best()->load[j->dtype](to, from + 2 * first, count);
    return to;
}

/* ---- Rows ---- */

/* An image's planes with zeros on all four sides as far as `lines` and `pitch` go. */
static void pad(const job *j, const float *x, int64_t top, float *to)
{
    int64_t left = j->padding[1], right = j->pitch - left - j->size[1];
    for (int64_t c = 0; c < j->channels; c++) {
        memset(to, 0, (size_t)(top * j->pitch) * sizeof *to);
        to += top * j->pitch;
        for (int64_t i = 0; i < j->size[0]; i++, x += j->size[1], to += j->pitch) {
            for (int64_t k = 0; k < left; k++)
                to[k] = 0;
            memcpy(to + left, x, (size_t)j->size[1] * sizeof *to);
            for (int64_t k = 0; k < right; k++)
                to[left + j->size[1] + k] = 0;
        }
        int64_t bottom = j->lines - top - j->size[0];
        memset(to, 0, (size_t)(bottom * j->pitch) * sizeof *to);
        to += bottom * j->pitch;
    }
}

/* w [o, c, u, v], or for the input's gradient [c, o, U-u, V-v], as blocks of [c, u, v, o in the block]. */
static void pack_weight(const job *j, const float *w, float *to)
{
    int64_t taps = taps_of(j), block = j->kernels->block;
    for (int64_t first = 0; first < j->outputs; first += block) {
        int64_t count = j->outputs - first < block ? j->outputs - first : block;
        for (int64_t c = 0; c < j->channels; c++)
            for (int64_t t = 0; t < taps; t++)
                for (int64_t o = first; o < first + count; o++)
                    *to++ = j->kind == KILN_CONV_FORWARD ? w[(o * j->channels + c) * taps + t]
                                                         : w[(c * j->outputs + o) * taps + taps - 1 - t];
    }
}

/* One row of the result's channels first … first + count - 1. Rows of the kernel that lie above or below the input are
 * left out. */
static void make_row(const job *j, const float *x, const float *w, float *y, int64_t line, int64_t count)
{
    int64_t top = line * j->stride[0] - j->padding[0], from = top < 0 ? -top : 0;
    int64_t to = j->size[0] - top < j->kernel[0] ? j->size[0] - top : j->kernel[0];
    int64_t lanes = j->kernels->lanes;
    kiln_conv_row r = {.channels = j->channels,
                       .rows = to > from ? to - from : 0,
                       .taps = j->kernel[1],
                       .x = x + (to > from ? top + from : 0) * j->pitch,
                       .x_plane = j->lines * j->pitch,
                       .x_row = j->pitch,
                       .x_tap = 1,
                       .w = w + from * j->kernel[1] * count,
                       .w_plane = taps_of(j) * count,
                       .w_row = j->kernel[1] * count,
                       .y = y + line * j->out[1],
                       .y_plane = j->out[0] * j->out[1]};
    for (int64_t at = 0; at < j->out[1]; at += r.n, r.x += r.n, r.y += r.n) {
        int64_t most = KILN_CONV_MAX_VECTORS * lanes;
        r.n = j->out[1] - at < most ? j->out[1] - at : most;
        j->kernels->row[(r.n + lanes - 1) / lanes - 1][count - 1](&r);
    }
}

static void rows_lane(void *context, int64_t lane, int worker)
{
    const job *j = context;
    float *x = scratch_of(j, worker), *line = x + j->channels * j->lines * j->pitch;
    int64_t block = j->kernels->block, plane = j->out[0] * j->out[1], image = j->channels * j->size[0] * j->size[1];
    int64_t end = kiln_range_begin(j->batch, j->lanes, lane + 1);
    for (int64_t n = kiln_range_begin(j->batch, j->lanes, lane); n < end; n++) {
        pad(j, as_floats(j, j->x, n * image, image, line), 0, x);
        const float *w = j->shared;
        float *y = j->data->finish ? line : j->result + n * j->outputs * plane;
        for (int64_t first = 0; first < j->outputs; first += block) {
            int64_t count = j->outputs - first < block ? j->outputs - first : block;
            for (int64_t row = 0; row < j->out[0]; row++)
                make_row(j, x, w, y + first * plane, row, count);
            w += count * j->channels * taps_of(j);
        }
        if (j->data->finish)
            j->data->finish(j->data->context, n * j->outputs * plane, j->outputs * plane, y, worker);
    }
}

/* ---- Taps ---- */

/* The weight's gradient of a lane, as [block of outputs, c, u, v, output in the block]. */
static void taps_lane(void *context, int64_t lane, int worker)
{
    const job *j = context;
    const kiln_conv_width *width = j->width;
    float *sums = j->shared + lane * j->sums, *x = scratch_of(j, worker);
    int64_t pixels = j->out[0] * j->out[1], plane = j->lines * j->pitch, lanes = width->lanes, taps = j->kernel[1];
    int64_t image = j->channels * j->size[0] * j->size[1];
    float *gy = x + j->channels * plane, *line = gy + round_up(j->outputs, lanes) * pixels;
    int64_t most_rows = j->kernels->sums / taps < KILN_CONV_MAX_ROWS ? j->kernels->sums / taps : KILN_CONV_MAX_ROWS;
    memset(sums, 0, (size_t)j->sums * sizeof *sums);
    int64_t end = kiln_range_begin(j->batch, j->lanes, lane + 1);
    for (int64_t n = kiln_range_begin(j->batch, j->lanes, lane); n < end; n++) {
        pad(j, as_floats(j, j->x, n * image, image, line), j->padding[0], x);
        float *to = sums;
        for (int64_t first = 0; first < j->outputs; first += lanes) {
            int64_t count = j->outputs - first < lanes ? j->outputs - first : lanes;
            width->turn(gy, as_floats(j, j->y, (n * j->outputs + first) * pixels, count * pixels, line), count, pixels);
            for (int64_t c = 0; c < j->channels; c++)
                for (int64_t u = 0, rows; u < j->kernel[0]; u += rows, to += rows * taps * lanes) {
                    rows = j->kernel[0] - u < most_rows ? j->kernel[0] - u : most_rows;
                    kiln_conv_taps t = {.height = j->out[0],
                                        .width = j->out[1],
                                        .gy = gy,
                                        .x = x + c * plane + u * j->pitch,
                                        .x_line = j->stride[0] * j->pitch,
                                        .x_step = j->stride[1],
                                        .x_row = j->pitch,
                                        .gw = to};
                    width->taps[taps - 1][rows - 1](&t);
                }
        }
    }
}

static void sum_lanes(void *context, int64_t task, int worker)
{
    (void)task;
    const job *j = context;
    int64_t lanes = j->width->lanes, a_block = j->channels * taps_of(j);
    float *to = j->data->finish ? scratch_of(j, worker) : j->result;
    for (int64_t lane = 1; lane < j->lanes; lane++)
        for (int64_t i = 0; i < j->sums; i++)
            j->shared[i] += j->shared[lane * j->sums + i];
    for (int64_t o = 0; o < j->outputs; o++)
        for (int64_t t = 0; t < a_block; t++) /* without lanes: an empty batch */
            to[o * a_block + t] = j->lanes ? j->shared[(o / lanes * a_block + t) * lanes + o % lanes] : 0;
    if (j->data->finish)
        j->data->finish(j->data->context, 0, weights(j), to, worker);
}

/* ---- Running ---- */

void kiln_conv_direct_run(const kiln_conv *s, const kiln_conv_data *data, void *workspace)
{
    job j = describe(s);
    j.data = data;
    j.shared = workspace;
    j.x = s->kind == KILN_CONV_INPUT_GRAD ? data->y : data->x;
    j.y = data->y;
    j.result = s->kind == KILN_CONV_FORWARD ? data->y : s->kind == KILN_CONV_INPUT_GRAD ? data->x : data->w;
    if (s->kind == KILN_CONV_WEIGHT_GRAD) {
        kiln_parallel(j.lanes, taps_lane, &j);
        kiln_parallel(1, sum_lanes, &j);
        return;
    }
    pack_weight(&j, as_floats(&j, data->w, 0, weights(&j), j.shared + weights(&j)), j.shared);
    kiln_parallel(j.lanes, rows_lane, &j);
}
