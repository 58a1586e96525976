/* Convolution as matrix products. A column of `col` is what the kernel sees at one output position, so that
 *   y  = w · col(x)      x's gradient = col⁻¹(wᵀ · gy)      w's gradient = gy · col(x)ᵀ
 * for each image and group, where col⁻¹ adds columns back to where they came from. `col` is made in tiles that stay in
 * cache. The work is cut into lanes; their number depends on the shape alone.
 *
 * Of f16 and bf16 everything that is added up is f32: the columns that go back, and sums over images. */
#include "device/cpu/conv/conv.h"

#include <string.h>

#include "device/cpu/gemm/gemm.h"
#include "device/cpu/common/ranges.h"

enum {
    TILE_BYTES = 256 << 10, /* of col: half a usual L2 */
    GRAD_ROWS = 128,        /* about how many rows of col the input's gradient makes at once */
    MAX_LANES = 16,
    MAX_PARTIALS = 8,         /* sums of the weight's gradient made side by side … */
    PARTIAL_BYTES = 16 << 20, /* … while they take no more than this */
    ALIGNMENT = 64
};

typedef struct job {
    const kiln_conv *s;
    kiln_conv_data data;
    size_t element, wide;    /* bytes in memory, and of sums */
    int64_t inputs, outputs; /* channels of one group */
    int64_t taps, pixels;    /* elements of a kernel plane, and of an output plane */
    int64_t block, blocks;   /* channels handled at once, and how many such blocks a group has */
    int64_t tile, tiles;     /* columns of col handled at once, and how many such tiles an image has */
    int64_t items, lanes;
    bool direct; /* a 1×1 kernel at stride 1: x is col */
    size_t col_bytes, worker_bytes, partial_bytes;
    size_t planes_bytes; /* of a block of channels' sums, where these are handed over */
    char *scratch, *partials;
} job;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return b ? (a + b - 1) / b : 0;
}

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* ---- col and back ---- */

/* The tile of col: rows are (channel, u, v), columns output positions first … first + n - 1. */
typedef struct tile {
    int64_t channels, first, n;
} tile;

/* Output positions lo … hi-1 of a row whose tap v lies inside the input. */
static void inside(const kiln_conv *s, int64_t v, int64_t *lo, int64_t *hi)
{
    int64_t shift = v * s->dilation[1] - s->padding[1], stride = s->stride[1];
    *lo = shift < 0 ? (-shift + stride - 1) / stride : 0;
    *hi = shift < s->size[1] ? (s->size[1] - 1 - shift) / stride + 1 : 0;
    *hi = least(*hi, s->out[1]);
    *lo = least(*lo, *hi);
}

/* Walks along the tile's rows in runs that stay in one output row, with the input elements they correspond to: `BODY`
 * sees the run's `part` of col, its length `n`, the input row `line` (NULL outside the input), the shift and stride
 * of positions in it, and the sub-run from … to - 1 that lies inside it. */
#define WALK(T, x_plane, BODY)                                                                                         \
    int64_t width = s->size[1], stride = s->stride[1];                                                                 \
    for (int64_t channel = 0; channel < t->channels; channel++, x_plane += s->size[0] * width)                         \
        for (int64_t u = 0; u < s->kernel[0]; u++)                                                                     \
            for (int64_t v = 0; v < s->kernel[1]; v++, col += t->n) {                                                  \
                int64_t lo, hi;                                                                                        \
                inside(s, v, &lo, &hi);                                                                                \
                for (int64_t p = 0, n; p < t->n; p += n) {                                                             \
                    int64_t oy = (t->first + p) / s->out[1], ox = (t->first + p) % s->out[1];                          \
                    int64_t iy = oy * s->stride[0] + u * s->dilation[0] - s->padding[0];                               \
                    n = least(s->out[1] - ox, t->n - p);                                                               \
                    bool row_inside = iy >= 0 && iy < s->size[0];                                                      \
                    int64_t from = lo < ox ? 0 : least(lo - ox, n), to = hi < ox ? 0 : least(hi - ox, n);              \
                    to = row_inside ? to : from;                                                                       \
                    T *part = col + p;                                                                                 \
                    int64_t at =                                                                                       \
                        (row_inside ? iy : 0) * width + (ox + from) * stride + v * s->dilation[1] - s->padding[1];     \
                    BODY                                                                                               \
                }                                                                                                      \
            }

#define TO_COLUMNS(T, suffix)                                                                                          \
    static void to_columns_##suffix(const kiln_conv *s, const tile *t, const T *x, T *col)                             \
    {                                                                                                                  \
        WALK(T, x, {                                                                                                   \
            memset(part, 0, (size_t)from * sizeof(T));                                                                 \
            if (stride == 1 && to > from)                                                                              \
                memcpy(part + from, x + at, (size_t)(to - from) * sizeof(T));                                          \
            else                                                                                                       \
                for (int64_t i = from; i < to; i++, at += stride)                                                      \
                    part[i] = x[at];                                                                                   \
            memset(part + to, 0, (size_t)(n - to) * sizeof(T));                                                        \
        })                                                                                                             \
    }
TO_COLUMNS(uint16_t, 16)
TO_COLUMNS(float, f32)
TO_COLUMNS(double, f64)

#define FROM_COLUMNS(T, suffix)                                                                                        \
    static void from_columns_##suffix(const kiln_conv *s, const tile *t, T *x, T *col)                                 \
    {                                                                                                                  \
        WALK(T, x, {                                                                                                   \
            if (stride == 1)                                                                                           \
                for (int64_t i = from; i < to; i++)                                                                    \
                    x[at + i - from] += part[i];                                                                       \
            else                                                                                                       \
                for (int64_t i = from; i < to; i++, at += stride)                                                      \
                    x[at] += part[i];                                                                                  \
        })                                                                                                             \
    }                                                                                                                  \
    static void add_##suffix(T *sum, const T *part, int64_t n)                                                         \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                                                \
            sum[i] += part[i];                                                                                         \
    }
FROM_COLUMNS(float, f32)
FROM_COLUMNS(double, f64)

static bool is_half(const job *j)
{
    return j->element != j->wide;
}

/* The tile of col at `channel` of image n; x itself where x is col. */
static const char *columns_of(const job *j, int64_t n, int64_t channel, const tile *t, char *col)
{
    const kiln_conv *s = j->s;
    int64_t plane = s->size[0] * s->size[1];
    const char *x = (const char *)j->data.x + (size_t)((n * s->channels + channel) * plane) * j->element;
    if (j->direct)
        return x + (size_t)t->first * j->element;
    if (s->dtype == KILN_F64)
        to_columns_f64(s, t, (const double *)(const void *)x, (double *)(void *)col);
    else if (is_half(j))
        to_columns_16(s, t, (const uint16_t *)(const void *)x, (uint16_t *)(void *)col);
    else
        to_columns_f32(s, t, (const float *)(const void *)x, (float *)(void *)col);
    return col;
}

/* ---- The products ---- */

/* Where blocks of a product go that are not stored as they are. */
typedef struct target {
    const job *j;
    char *matrix;  /* of sums */
    int64_t start; /* in the result, for who finishes that */
    int64_t row;   /* elements from one row to the next */
    int worker;    /* of the lane: a product in a lane knows of one only */
} target;

static void finish(const job *j, int64_t start, int64_t count, const void *values, int worker)
{
    j->data.finish(j->data.context, start, count, values, worker);
}

static void add_block(void *context, int64_t batch, int64_t row, int64_t col, int64_t rows, int64_t cols, void *block,
                      int64_t block_row, int worker)
{
    (void)batch, (void)worker;
    const target *t = context;
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = (row + r) * t->row + col;
        if (t->j->s->dtype == KILN_F64)
            add_f64((double *)(void *)t->matrix + at, (const double *)block + r * block_row, cols);
        else
            add_f32((float *)(void *)t->matrix + at, (const float *)block + r * block_row, cols);
    }
}

/* Of halves: sums as they are before they are rounded. */
static void put_block(void *context, int64_t batch, int64_t row, int64_t col, int64_t rows, int64_t cols, void *block,
                      int64_t block_row, int worker)
{
    (void)batch, (void)worker;
    const target *t = context;
    for (int64_t r = 0; r < rows; r++)
        memcpy((float *)(void *)t->matrix + (row + r) * t->row + col, (const float *)block + r * block_row,
               (size_t)cols * sizeof(float));
}

static void finish_block(void *context, int64_t batch, int64_t row, int64_t col, int64_t rows, int64_t cols,
                         void *block, int64_t block_row, int worker)
{
    (void)batch, (void)worker;
    const target *t = context;
    for (int64_t r = 0; r < rows; r++)
        finish(t->j, t->start + (row + r) * t->row + col, cols,
               (const char *)block + (size_t)(r * block_row) * t->j->wide, t->worker);
}

static kiln_gemm product(const job *j, int64_t m, int64_t n, int64_t k, kiln_gemm_epilogue *epilogue)
{
    return (kiln_gemm){.m = m,
                       .n = n,
                       .k = k,
                       .batch = 1,
                       .dtype = j->s->dtype,
                       .a_col = 1,
                       .b_col = 1,
                       .epilogue = epilogue,
                       .store = !epilogue};
}

static kiln_gemm forward_product(const job *j, int64_t columns)
{
    int64_t rows = j->inputs * j->taps;
    kiln_gemm g = product(j, j->outputs, columns, rows, j->s->handed_over ? finish_block : NULL);
    g.a_row = rows;
    g.b_row = j->direct ? j->pixels : columns;
    g.c_row = j->pixels;
    return g;
}

static kiln_gemm input_grad_product(const job *j, int64_t channels, int64_t columns)
{
    kiln_gemm_epilogue *direct = j->s->handed_over ? finish_block : NULL, *summed = is_half(j) ? put_block : NULL;
    kiln_gemm g = product(j, channels * j->taps, columns, j->outputs, j->direct ? direct : summed);
    g.a_row = 1;
    g.a_col = j->inputs * j->taps;
    g.b_row = j->pixels;
    g.c_row = j->direct ? j->pixels : columns;
    return g;
}

static kiln_gemm weight_grad_product(const job *j, int64_t columns)
{
    kiln_gemm g = product(j, j->outputs, j->inputs * j->taps, columns, add_block);
    g.a_row = j->pixels;
    g.b_row = 1;
    g.b_col = j->direct ? j->pixels : columns;
    g.c_row = j->inputs * j->taps;
    return g;
}

/* ---- Lanes ---- */

static char *scratch_of(const job *j, int worker)
{
    return j->scratch + (size_t)worker * j->worker_bytes;
}

static tile tile_at(const job *j, int64_t index, int64_t channels)
{
    int64_t first = index * j->tile;
    return (tile){channels, first, least(j->tile, j->pixels - first)};
}

/* Items are tiles of (image, group). */
static void forward_lane(void *context, int64_t lane, int worker)
{
    const job *j = context;
    const kiln_conv *s = j->s;
    char *col = scratch_of(j, worker);
    int64_t last = kiln_range_begin(j->items, j->lanes, lane + 1);
    for (int64_t item = kiln_range_begin(j->items, j->lanes, lane); item < last; item++) {
        tile t = tile_at(j, item % j->tiles, j->inputs);
        int64_t group = item / j->tiles % s->groups, n = item / j->tiles / s->groups;
        kiln_gemm g = forward_product(j, t.n);
        target to = {j, NULL, (n * s->outputs + group * j->outputs) * j->pixels + t.first, g.c_row, worker};
        g.a = (const char *)j->data.w + (size_t)(group * g.m * g.k) * j->element;
        g.b = columns_of(j, n, group * j->inputs, &t, col);
        g.c = s->handed_over ? NULL : (char *)j->data.y + (size_t)to.start * j->element;
        g.epilogue_context = &to;
        kiln_gemm_run(&g, col + j->col_bytes);
    }
}

/* A tile of a block of channels, of which `to` is the first pixel. */
static void input_grad_tile(const job *j, int64_t n, int64_t group, int64_t first, const tile *t, target to, char *col)
{
    const kiln_conv *s = j->s;
    char *planes = to.matrix;
    kiln_gemm g = input_grad_product(j, t->channels, t->n);
    g.a = (const char *)j->data.w + (size_t)((group * j->outputs * j->inputs + first) * j->taps) * j->element;
    g.b = (const char *)j->data.y + (size_t)((n * s->outputs + group * j->outputs) * j->pixels + t->first) * j->element;
    g.c = !g.store ? NULL : j->direct ? planes + (size_t)t->first * j->element : col;
    to.matrix = col;
    to.start += t->first;
    to.row = g.c_row;
    g.epilogue_context = &to;
    kiln_gemm_run(&g, col + j->col_bytes);
    if (j->direct)
        return;
    if (s->dtype == KILN_F64)
        from_columns_f64(s, t, (double *)(void *)planes, (double *)(void *)col);
    else
        from_columns_f32(s, t, (float *)(void *)planes, (float *)(void *)col);
}

/* Items are blocks of channels of (image, group): no two write the same planes. */
static void input_grad_lane(void *context, int64_t lane, int worker)
{
    const job *j = context;
    const kiln_conv *s = j->s;
    char *scratch = scratch_of(j, worker);
    int64_t last = kiln_range_begin(j->items, j->lanes, lane + 1), plane = s->size[0] * s->size[1];
    for (int64_t item = kiln_range_begin(j->items, j->lanes, lane); item < last; item++) {
        int64_t first = item % j->blocks * j->block, channels = least(j->block, j->inputs - first);
        int64_t group = item / j->blocks % s->groups, n = item / j->blocks / s->groups;
        target to = {.j = j, .start = (n * s->channels + group * j->inputs + first) * plane, .worker = worker};
        to.matrix = s->handed_over ? scratch : (char *)j->data.x + (size_t)to.start * j->element;
        if (!j->direct)
            memset(to.matrix, 0, (size_t)(channels * plane) * j->wide);
        for (int64_t i = 0; i < j->tiles; i++) {
            tile t = tile_at(j, i, channels);
            input_grad_tile(j, n, group, first, &t, to, scratch + j->planes_bytes);
        }
        if (s->handed_over && !j->direct)
            finish(j, to.start, channels * plane, to.matrix, worker);
    }
}

/* Lane 0 sums in the result itself unless that is handed over, the others in partial sums behind the workers' scratch.
 */
static char *partial(const job *j, int64_t lane)
{
    int64_t in_result = !j->s->handed_over;
    return lane < in_result ? j->data.w : j->partials + (size_t)(lane - in_result) * j->partial_bytes;
}

static int64_t weights(const job *j)
{
    return j->s->outputs * j->inputs * j->taps;
}

/* Items are tiles of images. */
static void weight_grad_lane(void *context, int64_t lane, int worker)
{
    const job *j = context;
    const kiln_conv *s = j->s;
    char *col = scratch_of(j, worker), *gw = partial(j, lane);
    memset(gw, 0, (size_t)weights(j) * j->wide);
    int64_t last = kiln_range_begin(j->items, j->lanes, lane + 1);
    for (int64_t item = kiln_range_begin(j->items, j->lanes, lane); item < last; item++) {
        int64_t n = item / j->tiles;
        tile t = tile_at(j, item % j->tiles, j->inputs);
        for (int64_t group = 0; group < s->groups; group++) {
            kiln_gemm g = weight_grad_product(j, t.n);
            target to = {.j = j, .matrix = gw + (size_t)(group * g.m * g.n) * j->wide, .row = g.c_row};
            g.a = (const char *)j->data.y +
                  (size_t)((n * s->outputs + group * j->outputs) * j->pixels + t.first) * j->element;
            g.b = columns_of(j, n, group * j->inputs, &t, col);
            g.epilogue_context = &to;
            kiln_gemm_run(&g, col + j->col_bytes);
        }
    }
}

static void add_partials(void *context, int64_t task, int worker)
{
    const job *j = context;
    int64_t tasks = kiln_range_count(weights(j), j->lanes), first = kiln_range_begin(weights(j), tasks, task);
    int64_t n = kiln_range_begin(weights(j), tasks, task + 1) - first;
    char *to = partial(j, 0) + (size_t)first * j->wide;
    for (int64_t lane = 1; lane < j->lanes; lane++) {
        const char *from = partial(j, lane) + (size_t)first * j->wide;
        if (j->s->dtype == KILN_F64)
            add_f64((double *)(void *)to, (const double *)(const void *)from, n);
        else
            add_f32((float *)(void *)to, (const float *)(const void *)from, n);
    }
    if (j->s->handed_over)
        finish(j, first, n, to, worker);
}

/* ---- Cutting the work ---- */

static void cut(job *j)
{
    const kiln_conv *s = j->s;
    bool grad = s->kind == KILN_CONV_INPUT_GRAD;
    int64_t rows_wanted = grad ? GRAD_ROWS : j->inputs * j->taps;
    j->block = least(j->inputs, divide_up(rows_wanted, j->taps));
    j->blocks = divide_up(j->inputs, j->block);
    int64_t rows = j->block * j->taps, element = (int64_t)(grad ? j->wide : j->element);
    int64_t columns = TILE_BYTES / element / (rows > 0 ? rows : 1) / 16 * 16;
    j->tile = j->direct ? j->pixels : least(j->pixels, columns < 16 ? 16 : columns);
    j->tiles = divide_up(j->pixels, j->tile);
    j->col_bytes = j->direct ? 0 : aligned((size_t)(rows * j->tile * element));
    if (grad && s->handed_over && !j->direct)
        j->planes_bytes = aligned((size_t)(j->block * s->size[0] * s->size[1]) * j->wide);
}

/* Scratch for the products of a worker: those of the last, smaller block and tile may want more than the full ones. */
static size_t products_workspace(const job *j)
{
    size_t most = 0;
    for (int i = 0; i < 4; i++) {
        int64_t columns = i & 1 && j->pixels % j->tile ? j->pixels % j->tile : j->tile;
        int64_t channels = i & 2 && j->block ? j->inputs - (j->blocks - 1) * j->block : j->block;
        kiln_gemm g = j->s->kind == KILN_CONV_FORWARD      ? forward_product(j, columns)
                      : j->s->kind == KILN_CONV_INPUT_GRAD ? input_grad_product(j, channels, columns)
                                                           : weight_grad_product(j, columns);
        size_t bytes = kiln_gemm_workspace(&g, 1);
        most = bytes > most ? bytes : most;
    }
    return aligned(most);
}

static job describe(const kiln_conv *s)
{
    size_t element = kiln_dtype_size(s->dtype);
    job j = {.s = s, .element = element, .wide = element < sizeof(float) ? sizeof(float) : element};
    j.inputs = s->channels / s->groups;
    j.outputs = s->outputs / s->groups;
    j.taps = s->kernel[0] * s->kernel[1];
    j.pixels = s->out[0] * s->out[1];
    j.direct = j.taps == 1 && s->stride[0] == 1 && s->stride[1] == 1 && s->padding[0] == 0 && s->padding[1] == 0;
    cut(&j);
    int64_t most = MAX_LANES;
    if (s->kind == KILN_CONV_FORWARD) {
        j.items = s->batch * s->groups * j.tiles;
    } else if (s->kind == KILN_CONV_INPUT_GRAD) {
        j.items = s->batch * s->groups * j.blocks;
    } else {
        j.items = s->batch * j.tiles;
        j.partial_bytes = aligned((size_t)weights(&j) * j.wide);
        int64_t fit = 1 + (int64_t)(PARTIAL_BYTES / (j.partial_bytes ? j.partial_bytes : 1));
        most = least(fit, MAX_PARTIALS);
    }
    int64_t work = s->batch * j.pixels * weights(&j); /* multiply-adds in all */
    j.lanes = least(kiln_range_count(j.items, j.items ? divide_up(work, j.items) / 8 + 1 : 0), most);
    if (s->kind == KILN_CONV_WEIGHT_GRAD && j.lanes == 0)
        j.lanes = 1; /* an empty batch: its sum is zero */
    j.worker_bytes = j.planes_bytes + j.col_bytes + products_workspace(&j);
    return j;
}

size_t kiln_conv_columns_workspace(const kiln_conv *s)
{
    job j = describe(s);
    int64_t partials = j.lanes - !s->handed_over;
    return (size_t)kiln_threads() * j.worker_bytes + (size_t)(partials > 0 ? partials : 0) * j.partial_bytes;
}

void kiln_conv_columns_run(const kiln_conv *s, const kiln_conv_data *data, void *workspace)
{
    job j = describe(s);
    if (s->kind == KILN_CONV_WEIGHT_GRAD && weights(&j) == 0)
        return;
    j.data = *data;
    j.scratch = workspace;
    j.partials = j.scratch + (size_t)kiln_threads() * j.worker_bytes;
    if (s->kind == KILN_CONV_FORWARD)
        kiln_parallel(j.lanes, forward_lane, &j);
    else if (s->kind == KILN_CONV_INPUT_GRAD)
        kiln_parallel(j.lanes, input_grad_lane, &j);
    else
        kiln_parallel(j.lanes, weight_grad_lane, &j);
    if (s->kind == KILN_CONV_WEIGHT_GRAD && (j.lanes > 1 || s->handed_over))
        kiln_parallel(kiln_range_count(weights(&j), j.lanes), add_partials, &j);
}
