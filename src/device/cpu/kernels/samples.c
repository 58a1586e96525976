/* Batches out of a data set that lies in memory whole: see ops/samples.h. */
#include <string.h>
#include "core/image.h"
#include "core/order.h"
#include "device/cpu/common/call.h"
#include "device/cpu/common/ranges.h"
#include "ops/op.h"
#include "ops/samples.h"

typedef struct taking {
    const kiln_cpu_call *call;
    kiln_order order;
    int64_t rows, elements, position, tasks;
    size_t from_size, to_size; /* of an element */
    uint64_t seed, epoch;
    bool augments;
    kiln_image image; /* where images are augmented: one of the result */
} taking;

static uint64_t joined(double low, double high)
{
    return (uint64_t)high << 32 | (uint64_t)low;
}

/* The sample of row `row`. The loader asks for none beyond the last; memory is safe if somebody does. */
static int64_t sample_of(const taking *t, int64_t row)
{
    int64_t position = t->position + row, last = t->order.size.n - 1;
    return kiln_order_at(&t->order, position < last ? position : last);
}

static const char *start_of(const taking *t, int64_t sample)
{
    int64_t start = t->call->ints[KILN_SAMPLES_START], distance = t->call->ints[KILN_SAMPLES_DISTANCE];
    return (const char *)t->call->in[0].data + (size_t)(start + sample * distance) * t->from_size;
}

static void take_row(const taking *t, const char *from, char *to)
{
    const float *table = t->call->nin > 1 ? t->call->in[1].data : NULL;
    if (table)
        for (int64_t e = 0; e < t->elements; e++)
            ((float *)to)[e] = table[((const uint8_t *)from)[e]];
    else if (t->from_size == t->to_size)
        memcpy(to, from, (size_t)t->elements * t->to_size);
    else if (t->from_size == 1)
        for (int64_t e = 0; e < t->elements; e++)
            ((int64_t *)to)[e] = ((const uint8_t *)from)[e];
    else
        for (int64_t e = 0; e < t->elements; e++)
            ((int64_t *)to)[e] = ((const int32_t *)from)[e];
}

static void augment_row(const taking *t, int64_t sample, char *row)
{
    const int64_t *ints = t->call->ints;
    kiln_pose pose =
        kiln_pose_draw(t->seed, t->epoch, sample, ints[KILN_SAMPLES_FLIP] != 0, (int32_t)ints[KILN_SAMPLES_CROP]);
    kiln_image_turn(&t->image, row, &pose);
}

static void take_rows(void *context, int64_t task, int worker)
{
    (void)worker;
    const taking *t = context;
    size_t row_bytes = (size_t)t->elements * t->to_size;
    int64_t end = kiln_range_begin(t->rows, t->tasks, task + 1);
    for (int64_t row = kiln_range_begin(t->rows, t->tasks, task); row < end; row++) {
        int64_t sample = sample_of(t, row);
        char *to = (char *)t->call->out[0].data + (size_t)row * row_bytes;
        take_row(t, start_of(t, sample), to);
        if (t->augments)
            augment_row(t, sample, to);
    }
}

static void take_samples(const kiln_cpu_call *c)
{
    const kiln_cpu_operand *out = &c->out[0];
    taking t = {.call = c,
                .rows = out->shape[0],
                .elements = kiln_count(out->ndim - 1, out->shape + 1),
                .position = (int64_t)c->floats[KILN_SAMPLES_POSITION],
                .from_size = kiln_dtype_size(c->in[0].dtype),
                .to_size = kiln_dtype_size(out->dtype)};
    t.seed = joined(c->floats[KILN_SAMPLES_SEED_LOW], c->floats[KILN_SAMPLES_SEED_HIGH]);
    t.epoch = joined(c->floats[KILN_SAMPLES_EPOCH_LOW], c->floats[KILN_SAMPLES_EPOCH_HIGH]);
    kiln_order_init(&t.order, c->ints[KILN_SAMPLES_COUNT], c->ints[KILN_SAMPLES_SHUFFLE] != 0, t.seed,
                    (int64_t)t.epoch);
    t.augments = c->ints[KILN_SAMPLES_FLIP] || c->ints[KILN_SAMPLES_CROP];
    if (t.augments)
        t.image = kiln_image_of(out->ndim - 1, out->shape + 1, t.to_size, (uint64_t)c->ints[KILN_SAMPLES_BLANK]);
    t.tasks = kiln_range_count(t.rows, t.elements + 50); /* finding a sample costs about that much */
    kiln_parallel(t.tasks, take_rows, &t);
}

const kiln_cpu_kernel kiln_cpu_kernels_samples[] = {
    {.op = "take_samples", .dtypes = KILN_T_ALL, .run = take_samples},
    {0},
};
