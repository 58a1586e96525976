/* The gradient of a convolution's weight in bf16, on processors that multiply pairs of them, with x and gy in strips
 * (conv_strips.h): a matrix product for each tap of the kernel, gw_tap[o, c] = Σ over p of gy[o, p] · x[c, p +
 * distance], where pairs are of neighbours in a strip. Distances may be odd, so the strips of x are there twice: paired
 * from their first pixel on, and from their second one on.
 *
 * Images are cut into lanes, each with strips and sums of its own, which are added in order at the end. The tasks of a
 * lane are blocks of output channels by panels of input channels. How many lanes there are depends on the shape alone.
 */
#include <string.h>

#include "device/cpu/common/ranges.h"
#include "device/cpu/conv/conv_strips.h"
#include "device/cpu/gemm/gemm_plan.h"

enum {
    TASKS = 16,            /* wanted: there are lanes for that where channels are few */
    STRIP_BYTES = 8 << 20, /* about how much is in strips at once, of all lanes */
    STEP = 256,            /* pairs that all taps take in turn, while they are in the first-level cache */
    ALIGNMENT = 64
};

typedef struct job {
    const kiln_conv *s;
    const kiln_gemm_pairs *pairs;
    const kiln_conv_data *data;
    const uint16_t *x, *gy;
    kiln_strips strips, gradients; /* of x and gy; the latter is one, with as many rows and columns */
    int64_t taps;
    int64_t columns, panels; /* channels of x, filled up to whole vectors, and tiles across them */
    int64_t tall, blocks;    /* output channels of a tile, and tiles across them */
    int64_t k, paired;       /* pairs in a strip of gy, filled up, and of x */
    int64_t lanes, round;    /* of a lane's images, as many as fit into its strips are a round */
    size_t sum_bytes, pair_bytes, block_bytes, line_bytes; /* of a lane, of one pairing of a strip; of a worker */
    char *sums, *paired_x, *scalars, *lines;
} job;

static size_t aligned(int64_t bytes)
{
    return ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- Cutting ---- */

static int64_t pairings(const job *j) /* of a lane's strips */
{
    return j->strips.count * (j->taps > 1 ? 2 : 1);
}

static void make_strips(job *j)
{
    const kiln_conv *s = j->s;
    j->strips = kiln_strips_of(s);
    int64_t plane = j->strips.length[0] * j->strips.length[1];
    int64_t image_bytes = plane * 2 * (2 * s->stride[0] * s->stride[1] * j->columns + s->outputs);
    int64_t images = most(1, least(STRIP_BYTES / j->lanes / (image_bytes + 1), kiln_divide_up(s->batch, j->lanes)));
    kiln_strips_finish(&j->strips, images, 0);
    j->gradients = (kiln_strips){.size = {s->out[0], s->out[1]}, .phases = {1, 1}};
    memcpy(j->gradients.length, j->strips.length, sizeof j->strips.length);
    kiln_strips_finish(&j->gradients, images, 0);
    int64_t unit = j->pairs->unit, farthest = 0;
    for (int a = 0; a < 2; a++)
        farthest += (s->kernel[a] - 1) * s->dilation[a] / s->stride[a] * (a ? 1 : j->strips.length[1]);
    j->k = kiln_divide_up(kiln_divide_up(j->gradients.pixels, 2), unit) * unit;
    j->paired = j->k + kiln_divide_up(farthest, 2);
}

static job describe(const kiln_conv *s)
{
    job j = {.s = s, .pairs = kiln_gemm_pairs_best(), .taps = s->kernel[0] * s->kernel[1]};
    int64_t lanes = j.pairs->real.lanes;
    j.tall = j.pairs->real.rows;
    j.blocks = kiln_divide_up(s->outputs, j.tall);
    j.columns = kiln_divide_up(s->channels, lanes) * lanes;
    j.panels = kiln_divide_up(j.columns, KILN_GEMM_VECTORS * lanes);
    j.lanes = least(s->batch, kiln_divide_up(TASKS, j.blocks * j.panels));
    make_strips(&j);
    j.sum_bytes = aligned(j.taps * s->outputs * j.columns * 4);
    j.pair_bytes = aligned(j.paired * j.columns * 4);
    j.block_bytes = aligned(j.tall * j.k * 4);
    int64_t lines = most(lanes * j.strips.count * j.strips.pixels, j.tall * j.gradients.pixels);
    j.line_bytes = aligned(most(2 * lines, s->channels * j.taps * 4));
    return j;
}

size_t kiln_conv_pairs_weight_workspace(const kiln_conv *s)
{
    job j = describe(s);
    size_t lane = j.sum_bytes + (size_t)pairings(&j) * j.pair_bytes + (size_t)j.blocks * j.block_bytes;
    return (size_t)j.lanes * lane + j.line_bytes * (size_t)kiln_threads();
}

/* ---- Strips ---- */

static inline void copy_row(uint16_t *restrict to, const uint16_t *restrict from, const kiln_strip_columns *c)
{
    if (c->step == 1)
        memcpy(to, from, (size_t)c->count * sizeof *to);
    else if (c->step == 2) /* many elements at once, if the compiler sees it */
        for (int64_t n = 0; n < c->count; n++)
            to[n] = from[2 * n];
    else
        for (int64_t n = 0; n < c->count; n++)
            to[n] = from[n * c->step];
}

/* `channels` planes of each image as [channel, strip, pixel]; `image` elements lie between those of two images. */
static void fill(const kiln_strips *s, uint16_t *lines, const uint16_t *from, int64_t channels, int64_t image,
                 int64_t images)
{
    memset(lines, 0, (size_t)(channels * s->count * s->pixels) * sizeof *lines);
    for (int64_t phase = 0; phase < s->phases[1]; phase++) {
        const kiln_strip_columns columns = kiln_strips_columns(s, phase);
        for (int64_t c = 0; c < channels; c++)
            for (int64_t i = 0; i < images; i++) {
                const uint16_t *plane = from + i * image + c * s->size[0] * s->size[1] + columns.first;
                uint16_t *line = lines + c * s->count * s->pixels + columns.to;
                for (int64_t y = 0; y < s->size[0]; y++)
                    copy_row(line + kiln_strips_row(s, i, y), plane + y * s->size[1], &columns);
            }
    }
}

/* The lane's pairing of a strip, from its first pixel on or from the second: [pair, channel]. */
static char *pairs_of(const job *j, int64_t lane, int64_t strip, int64_t odd)
{
    return j->paired_x + (size_t)(lane * pairings(j) + odd * j->strips.count + strip) * j->pair_bytes;
}

/* Some channels of x, as many as a vector has. */
static void pair_channels(const job *j, int64_t lane, int64_t channel, const uint16_t *x, int64_t images,
                          uint16_t *lines)
{
    const kiln_strips *s = &j->strips;
    int64_t lanes = j->pairs->real.lanes, channels = least(lanes, j->s->channels - channel);
    int64_t plane = s->size[0] * s->size[1];
    fill(s, lines, x + channel * plane, channels, j->s->channels * plane, images);
    for (int64_t i = 0; i < pairings(j); i++) {
        int64_t strip = i % s->count, odd = i / s->count;
        j->pairs->pack(pairs_of(j, lane, strip, odd) + 4 * channel, j->columns, lines + strip * s->pixels + odd,
                       s->count * s->pixels, 1, channels, lanes, j->paired, s->pixels - odd);
    }
}

/* A block's rows of gy, packed step after step: those from pair `at` on. */
static char *scalars_of(const job *j, int64_t lane, int64_t block, int64_t at)
{
    return j->scalars + (size_t)(lane * j->blocks + block) * j->block_bytes + 4 * j->tall * at;
}

static void pack_block(const job *j, int64_t lane, int64_t block, const uint16_t *gy, int64_t images, uint16_t *lines)
{
    const kiln_strips *s = &j->gradients;
    int64_t plane = s->size[0] * s->size[1], rows = least(j->tall, j->s->outputs - block * j->tall);
    fill(s, lines, gy + block * j->tall * plane, rows, j->s->outputs * plane, images);
    for (int64_t at = 0; at < j->k; at += STEP)
        kiln_gemm_pack_rows(j->pairs, scalars_of(j, lane, block, at), lines + 2 * at, s->pixels, 1, rows,
                            least(STEP, j->k - at), most(0, s->pixels - 2 * at));
}

/* The images of a lane that this round takes. */
static int64_t images_of(const job *j, int64_t lane, int64_t *first)
{
    int64_t end = kiln_range_begin(j->s->batch, j->lanes, lane + 1);
    *first = kiln_range_begin(j->s->batch, j->lanes, lane) + j->round * j->strips.images;
    return most(0, least(j->strips.images, end - *first));
}

static void fill_task(void *context, int64_t task, int worker)
{
    const job *j = context;
    const kiln_conv *s = j->s;
    uint16_t *lines = (uint16_t *)(void *)(j->lines + (size_t)worker * j->line_bytes);
    int64_t vectors = j->columns / j->pairs->real.lanes, each = vectors + j->blocks, part = task % each, first;
    int64_t lane = task / each, images = images_of(j, lane, &first);
    if (images && part < vectors)
        pair_channels(j, lane, part * j->pairs->real.lanes, j->x + first * s->channels * s->size[0] * s->size[1],
                      images, lines);
    else if (images)
        pack_block(j, lane, part - vectors, j->gy + first * s->outputs * s->out[0] * s->out[1], images, lines);
}

/* ---- Products ---- */

static char *sums_of(const job *j, int64_t lane, int64_t tap, int64_t output)
{
    return j->sums + (size_t)lane * j->sum_bytes + 4 * (tap * j->s->outputs + output) * j->columns;
}

/* What tap multiplies gy's first pixel with. */
static const char *neighbours(const job *j, int64_t lane, int64_t tap)
{
    const kiln_conv *s = j->s;
    int64_t down = tap / s->kernel[1] * s->dilation[0], right = tap % s->kernel[1] * s->dilation[1];
    int64_t at = kiln_strips_distance(&j->strips, down, right), strip = at / j->strips.pixels;
    int64_t distance = at % j->strips.pixels;
    return pairs_of(j, lane, strip, distance % 2) + 4 * (distance / 2 * j->columns);
}

static void multiply_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const job *j = context;
    const kiln_gemm_real *real = &j->pairs->real;
    int64_t panel = task % j->panels, block = task / j->panels % j->blocks, lane = task / j->panels / j->blocks, first;
    int64_t column = panel * KILN_GEMM_VECTORS * real->lanes, rows = least(j->tall, j->s->outputs - block * j->tall);
    int64_t vectors = least((j->columns - column) / real->lanes, KILN_GEMM_VECTORS);
    kiln_gemm_tile *tile = real->tile[1][vectors - 1][rows - 1];
    if (!images_of(j, lane, &first))
        return;
    if (j->pairs->begin)
        j->pairs->begin();
    for (int64_t at = 0, n; at < j->k; at += n) {
        n = least(STEP, j->k - at);
        const char *scalars = scalars_of(j, lane, block, at);
        for (int64_t tap = 0; tap < j->taps; tap++) {
            const char *x = neighbours(j, lane, tap) + 4 * (at * j->columns + column);
            char *to = sums_of(j, lane, tap, block * j->tall) + 4 * column;
            tile(n, scalars, 1, rows, x, j->columns, to, j->columns, j->round > 0 || at > 0, x);
        }
    }
    if (j->pairs->end)
        j->pairs->end();
}

/* ---- Sums ---- */

/* Adds the lanes' sums of an output channel, as [channel, tap]. */
static void finish_task(void *context, int64_t o, int worker)
{
    const job *j = context;
    int64_t channels = j->s->channels, taps = j->taps;
    float *line = (float *)(void *)(j->lines + (size_t)worker * j->line_bytes);
    for (int64_t tap = 0; tap < taps; tap++)
        for (int64_t lane = 0; lane < j->lanes; lane++) {
            const float *sums = (const float *)(const void *)sums_of(j, lane, tap, o);
            for (int64_t c = 0; c < channels; c++)
                line[c * taps + tap] = (lane ? line[c * taps + tap] : 0) + sums[c];
        }
    j->data->finish(j->data->context, o * channels * taps, channels * taps, line, worker);
}

void kiln_conv_pairs_weight_run(const kiln_conv *s, const kiln_conv_data *data, void *workspace)
{
    job j = describe(s);
    j.x = data->x;
    j.gy = data->y;
    j.data = data;
    j.sums = workspace;
    j.paired_x = j.sums + (size_t)j.lanes * j.sum_bytes;
    j.scalars = j.paired_x + (size_t)(j.lanes * pairings(&j)) * j.pair_bytes;
    j.lines = j.scalars + (size_t)(j.lanes * j.blocks) * j.block_bytes;
    int64_t images = kiln_divide_up(s->batch, j.lanes); /* the first lane has the most */
    for (j.round = 0; j.round * j.strips.images < images; j.round++) {
        kiln_parallel(j.lanes * (j.columns / j.pairs->real.lanes + j.blocks), fill_task, &j);
        kiln_parallel(j.lanes * j.blocks * j.panels, multiply_task, &j);
    }
    kiln_parallel(s->outputs, finish_task, &j);
}
