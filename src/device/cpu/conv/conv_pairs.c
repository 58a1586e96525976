/* Convolution of bf16 on processors that multiply pairs of them, with x in strips (conv_strips.h): a matrix product for
 * each tap of the kernel, y[o, p] = Σ over taps of w_tap[o, c] · x[c, p + distance], where pairs are of channels. What
 * is made between rows and images is left out.
 *
 * The gradient of the input is the same with the kernel turned around. At a stride it is several such, called sweeps
 * here, since not all taps reach all pixels.
 *
 * Tasks are ranges of images and parts of the result's channels. */
#include <string.h>

#include "device/cpu/common/ranges.h"
#include "device/cpu/conv/conv_strips.h"
#include "device/cpu/gemm/gemm_plan.h"

enum {
    FEWEST = 16,             /* channels on either side: with less, most of a tile is zeros */
    PIECE = 256,             /* pixels whose sums stay in the first-level cache until they are stored */
    STRIP_BYTES = 512 << 10, /* about how much is brought into strips at once */
    LANES = 32,              /* most ranges of images, … */
    LANE_PIXELS = 128,       /* … and least pixels of one, for which all weights are read */
    TASKS = 16,              /* where there are fewer than this, channels are parted too */
    SLACK = 32,              /* pixels that a tile may read behind a strip */
    ALIGNMENT = 64
};

/* Which of the kernel's, and from a pixel of the result to what it multiplies. */
typedef struct tap {
    int64_t number, distance;
} tap;

typedef struct job {
    const kiln_conv *s;
    const kiln_gemm_pairs *pairs;
    const kiln_conv_data *data;
    const char *from;
    int64_t channels, outputs, taps; /* that are summed over; that are made; of a kernel plane */
    int64_t size[2];                 /* of the result */
    kiln_strips strips;
    int64_t k;            /* pairs of channels, filled up */
    int64_t tall, blocks; /* channels of the result made at once, and how often */
    int64_t lanes, parts;
    int64_t sweeps;
    size_t block_bytes, weight_bytes, strip_bytes, sum_bytes, plane_bytes, worker_bytes;
    char *weights, *workers;
} job;

static size_t aligned(int64_t bytes)
{
    return ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* How far before its own place the gradient of a pixel has its last neighbour, in pixels of gy. */
static int64_t reach(const kiln_conv *s, int axis)
{
    return (s->kernel[axis] - 1) * s->dilation[axis] / s->stride[axis];
}

static kiln_strips strips_of_gradient(const kiln_conv *c)
{
    kiln_strips s = {.phases = {1, 1}};
    for (int a = 0; a < 2; a++) {
        int64_t last = (c->size[a] - 1 + c->padding[a]) / c->stride[a];
        s.size[a] = c->out[a];
        s.before[a] = reach(c, a);
        s.length[a] = s.before[a] + (last + 1 > c->out[a] ? last + 1 : c->out[a]);
    }
    return s;
}

static job describe(const kiln_conv *s)
{
    bool forward = s->kind == KILN_CONV_FORWARD;
    job j = {.s = s, .pairs = kiln_gemm_pairs_best(), .taps = s->kernel[0] * s->kernel[1]};
    j.channels = forward ? s->channels : s->outputs;
    j.outputs = forward ? s->outputs : s->channels;
    memcpy(j.size, forward ? s->out : s->size, sizeof j.size);
    j.strips = forward ? kiln_strips_of(s) : strips_of_gradient(s);
    j.k = kiln_divide_up(kiln_divide_up(j.channels, 2), j.pairs->unit) * j.pairs->unit;
    j.tall = j.pairs->real.rows;
    j.blocks = kiln_divide_up(j.outputs, j.tall);
    int64_t pixels = j.strips.length[0] * j.strips.length[1];
    j.lanes = least(s->batch, least(LANES, kiln_divide_up(s->batch * pixels, LANE_PIXELS)));
    for (j.parts = 1; j.lanes * j.parts < TASKS && 2 * j.parts <= j.blocks;)
        j.parts *= 2;
    int64_t image_bytes = j.k * j.strips.phases[0] * j.strips.phases[1] * pixels * 4;
    int64_t fit = STRIP_BYTES / (image_bytes + 1), most = kiln_divide_up(s->batch, j.lanes);
    kiln_strips_finish(&j.strips, fit < 1 ? 1 : least(fit, most), SLACK);
    j.block_bytes = aligned(j.tall * j.k * 4);
    j.weight_bytes = (size_t)(j.taps * j.blocks) * j.block_bytes;
    j.strip_bytes = aligned(j.k * j.strips.count * j.strips.pixels * 4);
    j.sum_bytes = aligned(j.tall * PIECE * 4);
    j.plane_bytes = aligned(j.strips.images * j.tall * j.size[0] * j.size[1] * 4);
    j.worker_bytes = j.strip_bytes + j.sum_bytes + j.plane_bytes + aligned(j.taps * (int64_t)sizeof(tap));
    j.sweeps = forward ? 1 : s->stride[0] * s->stride[1];
    return j;
}

bool kiln_conv_pairs_takes(const kiln_conv *s)
{
    bool pointwise = s->kernel[0] * s->kernel[1] * s->stride[0] * s->stride[1] == 1; /* one product, as it lies there */
    return s->dtype == KILN_BF16 && kiln_gemm_pairs_best() && s->groups == 1 && !pointwise && s->channels >= FEWEST &&
           s->outputs >= FEWEST && s->batch && s->size[0] && s->size[1] && s->out[0] && s->out[1];
}

size_t kiln_conv_pairs_workspace(const kiln_conv *s)
{
    job j = describe(s);
    return j.weight_bytes + j.worker_bytes * (size_t)kiln_threads();
}

/* ---- Weights: a packed matrix for each tap and block of the result's channels ---- */

static char *weights_of(const job *j, int64_t number, int64_t block)
{
    return j->weights + (size_t)(number * j->blocks + block) * j->block_bytes;
}

static int64_t rows_of(const job *j, int64_t block)
{
    return least(j->tall, j->outputs - block * j->tall);
}

static void pack_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const job *j = context;
    int64_t number = task / j->blocks, block = task % j->blocks, rows = rows_of(j, block);
    int64_t across = j->taps, down = j->s->channels * j->taps; /* from one channel of w to the next */
    bool forward = j->s->kind == KILN_CONV_FORWARD;
    int64_t row = forward ? down : across, k = forward ? across : down;
    kiln_gemm_pack_rows(j->pairs, weights_of(j, number, block),
                        (const char *)j->data->w + 2 * (block * j->tall * row + number), row, k, rows, j->k,
                        j->channels);
}

/* ---- Strips: [pair of channels, strip, pixel] ---- */

static void fill_phase(const job *j, char *strips, int64_t phase, int64_t first, int64_t images)
{
    const kiln_strips *s = &j->strips;
    const kiln_strip_columns c = kiln_strips_columns(s, phase);
    int64_t plane = s->size[0] * s->size[1];
    for (int64_t i = 0; i < images; i++)
        for (int64_t y = 0; y < s->size[0]; y++) {
            if (s->phases[0] > 1 && !kiln_strips_reads(j->s, 0, (y + s->before[0]) % s->phases[0]))
                continue;
            const char *from = j->from + 2 * ((first + i) * j->channels * plane + y * s->size[1] + c.first);
            j->pairs->pack(strips + 4 * (kiln_strips_row(s, i, y) + c.to), s->count * s->pixels, from, c.step, plane,
                           c.count, c.count, j->k, j->channels);
        }
}

static void fill(const job *j, char *strips, int64_t first, int64_t images)
{
    for (int64_t phase = 0; phase < j->strips.phases[1]; phase++)
        if (j->strips.count == 1 || kiln_strips_reads(j->s, 1, phase))
            fill_phase(j, strips, phase, first, images);
}

/* ---- Sweeps ---- */

/* Pixels of the result that the same taps make: `count` of them along both axes, `step` apart in the result. */
typedef struct sweep {
    int64_t first[2], count[2], step[2];
    int64_t start; /* of the first one in the strip */
    tap *taps;
    int64_t ntaps;
} sweep;

static void add_tap(const job *j, sweep *w, int64_t u, int64_t v, int64_t down, int64_t right)
{
    w->taps[w->ntaps++] = (tap){u * j->s->kernel[1] + v, kiln_strips_distance(&j->strips, down, right)};
}

static sweep sweep_forward(const job *j, tap *taps)
{
    const kiln_conv *s = j->s;
    sweep w = {.count = {s->out[0], s->out[1]}, .step = {1, 1}, .taps = taps};
    for (int64_t u = 0; u < s->kernel[0]; u++)
        for (int64_t v = 0; v < s->kernel[1]; v++)
            add_tap(j, &w, u, v, u * s->dilation[0], v * s->dilation[1]);
    return w;
}

/* The pixels i of x with (i + padding) % stride == phase, along both axes. They are i = stride·t + phase - padding; tap
 * u brings them gy's pixel t - (dilation·u - phase) / stride, where that can be divided. */
static sweep sweep_gradient(const job *j, const int64_t *phase, tap *taps)
{
    const kiln_conv *s = j->s;
    sweep w = {.taps = taps};
    int64_t begin[2];
    for (int a = 0; a < 2; a++) {
        int64_t short_of = s->padding[a] - phase[a], stride = s->stride[a];
        begin[a] = short_of > 0 ? kiln_divide_up(short_of, stride) : 0;
        w.first[a] = stride * begin[a] - short_of;
        w.step[a] = stride;
        w.count[a] = w.first[a] < s->size[a] ? kiln_divide_up(s->size[a] - w.first[a], stride) : 0;
    }
    w.start = begin[0] * j->strips.length[1] + begin[1];
    for (int64_t u = 0; u < s->kernel[0]; u++)
        for (int64_t v = 0; v < s->kernel[1]; v++) {
            int64_t down = u * s->dilation[0] - phase[0], right = v * s->dilation[1] - phase[1];
            if (down >= 0 && down % s->stride[0] == 0 && right >= 0 && right % s->stride[1] == 0)
                add_tap(j, &w, u, v, reach(s, 0) - down / s->stride[0], reach(s, 1) - right / s->stride[1]);
        }
    return w;
}

/* The sums of `n` pixels from `at` on, for a block of channels, PIECE apart. */
static void make_piece(const job *j, const sweep *w, const char *strips, int64_t block, int64_t at, int64_t n,
                       char *sums)
{
    const kiln_gemm_real *real = &j->pairs->real;
    int64_t rows = rows_of(j, block), line = j->strips.count * j->strips.pixels, lanes = real->lanes;
    if (w->ntaps == 0)
        memset(sums, 0, (size_t)(rows * PIECE) * 4);
    for (int64_t first = 0; first < n; first += KILN_GEMM_VECTORS * lanes) {
        int64_t vectors = least(kiln_divide_up(n - first, lanes), KILN_GEMM_VECTORS);
        kiln_gemm_tile *tile = real->tile[1][vectors - 1][rows - 1];
        for (int64_t t = 0; t < w->ntaps; t++) {
            const char *x = strips + 4 * (w->start + at + first + w->taps[t].distance);
            tile(j->k, weights_of(j, w->taps[t].number, block), 1, rows, x, line, sums + 4 * first, PIECE, t > 0, x);
        }
    }
}

/* `n` neighbours in a strip go to the planes of all channels of a block. */
static void place_run(const job *j, const sweep *w, const char *sums, char *to, int64_t rows, int64_t n)
{
    int64_t plane = j->size[0] * j->size[1], step = w->step[1];
    for (int64_t r = 0; r < rows; r++, sums += 4 * PIECE, to += 4 * plane)
        if (step == 1)
            memcpy(to, sums, 4 * (size_t)n);
        else
            for (int64_t i = 0; i < n; i++)
                memcpy(to + 4 * i * step, sums + 4 * i, 4);
}

static void place_piece(const job *j, const sweep *w, const char *sums, char *planes, int64_t rows, int64_t at,
                        int64_t n)
{
    const int64_t *length = j->strips.length, plane = j->strips.plane;
    for (int64_t p = at, run; p < at + n; p += run) {
        int64_t image = p / plane, y = p % plane / length[1], x = p % length[1];
        run = least(length[1] - x, at + n - p);
        if (y >= w->count[0] || x >= w->count[1])
            continue;
        int64_t line = (image * rows * j->size[0] + w->first[0] + y * w->step[0]) * j->size[1];
        place_run(j, w, sums + 4 * (p - at), planes + 4 * (line + w->first[1] + x * w->step[1]), rows,
                  least(run, w->count[1] - x));
    }
}

static sweep sweep_number(const job *j, int64_t number, tap *taps)
{
    int64_t across = j->s->stride[1];
    return j->s->kind == KILN_CONV_FORWARD ? sweep_forward(j, taps)
                                           : sweep_gradient(j, (int64_t[]){number / across, number % across}, taps);
}

/* All sweeps of a block of channels, over the images in the strips: planes [image, channel, pixel]. */
static void make_planes(const job *j, char *own, int64_t block, int64_t images)
{
    char *sums = own + j->strip_bytes, *planes = sums + j->sum_bytes;
    tap *taps = (tap *)(void *)(planes + j->plane_bytes);
    for (int64_t number = 0; number < j->sweeps; number++) {
        sweep w = sweep_number(j, number, taps);
        if (!w.count[0] || !w.count[1])
            continue;
        int64_t pixels = (images - 1) * j->strips.plane + (w.count[0] - 1) * j->strips.length[1] + w.count[1];
        for (int64_t at = 0; at < pixels; at += PIECE) {
            int64_t n = least(PIECE, pixels - at);
            make_piece(j, &w, own, block, at, n, sums);
            place_piece(j, &w, sums, planes, rows_of(j, block), at, n);
        }
    }
}

static void run_task(void *context, int64_t task, int worker)
{
    const job *j = context;
    char *own = j->workers + j->worker_bytes * (size_t)worker, *planes = own + j->strip_bytes + j->sum_bytes;
    int64_t lane = task / j->parts, part = task % j->parts, end = kiln_range_begin(j->s->batch, j->lanes, lane + 1);
    int64_t end_block = kiln_range_begin(j->blocks, j->parts, part + 1), plane = j->size[0] * j->size[1];
    memset(own, 0, j->strip_bytes);
    for (int64_t first = kiln_range_begin(j->s->batch, j->lanes, lane), images; first < end; first += images) {
        images = least(j->strips.images, end - first);
        fill(j, own, first, images);
        for (int64_t block = kiln_range_begin(j->blocks, j->parts, part); block < end_block; block++) {
            int64_t count = rows_of(j, block) * plane;
            if (j->pairs->begin)
                j->pairs->begin();
            make_planes(j, own, block, images);
            if (j->pairs->end)
                j->pairs->end();
            for (int64_t i = 0; i < images; i++)
                j->data->finish(j->data->context, ((first + i) * j->outputs + block * j->tall) * plane, count,
                                planes + 4 * i * count, worker);
        }
    }
}

void kiln_conv_pairs_run(const kiln_conv *s, const kiln_conv_data *data, void *workspace)
{
    job j = describe(s);
    j.data = data;
    j.from = s->kind == KILN_CONV_FORWARD ? data->x : data->y;
    j.weights = workspace;
    j.workers = j.weights + j.weight_bytes;
    kiln_parallel(j.taps * j.blocks, pack_task, &j);
    kiln_parallel(j.lanes * j.parts, run_task, &j);
}
