/* take_samples: a batch out of a data set that lies whole on the device, as it is stored. Which samples make up the
 * batch is computed where it is gathered, from (seed, epoch, position) as core/order.h has it, and so is how images are
 * augmented (core/pose.h). The loader writes it; there is nothing in a data set to differentiate by. */
#include "ops/samples.h"
#include "ops/op.h"

extern const kiln_op kiln_op_take_samples;

/* Bytes become floats by a table, and labels i64; everything else stays what it is. */
static bool check_conversion(const kiln_call *c, kiln_dtype to)
{
    const kiln_tensor *table = c->nin > 1 ? c->in[1] : NULL;
    kiln_dtype from = (kiln_dtype)c->in[0]->dtype;
    if (table)
        return kiln_check_dtype(c, 1, 1 << KILN_F32) && kiln_check_ndim(c, 1, 1, 1) &&
               kiln_check_size(c, 1, 0, KILN_SAMPLES_TABLE) &&
               kiln_check_attr(c, from == KILN_U8 && to == KILN_F32, "a table turns u8 into f32, not %s into %s",
                               kiln_dtype_name(from), kiln_dtype_name(to));
    bool widens = to == KILN_I64 && (from == KILN_U8 || from == KILN_I32);
    return kiln_check_attr(c, from == to || widens, "samples stored in %s cannot be taken in %s", kiln_dtype_name(from),
                           kiln_dtype_name(to));
}

/* Whether the last element of the last sample is there. */
static bool all_inside(const kiln_call *c, int64_t elements)
{
    int64_t count = c->attrs.i[KILN_SAMPLES_COUNT], start = c->attrs.i[KILN_SAMPLES_START];
    int64_t distance = c->attrs.i[KILN_SAMPLES_DISTANCE], last, end;
    return count >= 1 && start >= 0 && distance >= 0 && !__builtin_mul_overflow(count - 1, distance, &last) &&
           !__builtin_add_overflow(last, start, &last) && !__builtin_add_overflow(last, elements, &end) &&
           end <= c->in[0]->shape[0];
}

/* Only images can be flipped and cropped; the last two dimensions are height and width. */
static bool check_augmenting(const kiln_call *c, int ndim, const int64_t *shape)
{
    int64_t flip = c->attrs.i[KILN_SAMPLES_FLIP], crop = c->attrs.i[KILN_SAMPLES_CROP];
    if (!flip && !crop)
        return true;
    return kiln_check_attr(c, ndim >= 3, "samples of a batch %s are no images, and cannot be flipped or cropped",
                           kiln_shape_text(ndim, shape)) &&
           kiln_check_attr(c, crop >= 0 && crop < INT32_MAX && crop < shape[ndim - 2] && crop < shape[ndim - 1],
                           "images of a batch %s cannot be cropped by %lld pixels", kiln_shape_text(ndim, shape),
                           (long long)crop);
}

static bool infer_take_samples(kiln_call *c)
{
    int64_t *ints = c->attrs.i, ndim = c->attrs.nints - KILN_SAMPLES_SHAPE;
    const int64_t *shape = ints + KILN_SAMPLES_SHAPE;
    if (!kiln_check_ndim(c, 0, 1, 1) ||
        !kiln_check_attr(c, ndim >= 1 && ndim <= KILN_MAX_DIMS && c->attrs.nfloats == KILN_SAMPLES_SCALARS,
                         "%d integers and %d scalars do not describe a batch", c->attrs.nints, c->attrs.nfloats))
        return false;
    if (ints[KILN_SAMPLES_DTYPE] < 0)
        ints[KILN_SAMPLES_DTYPE] = c->in[0]->dtype;
    if (!kiln_check_attr(c, ints[KILN_SAMPLES_DTYPE] < KILN_DTYPES, "%lld is no dtype", (long long)ints[0]) ||
        !check_conversion(c, (kiln_dtype)ints[KILN_SAMPLES_DTYPE]))
        return false;
    int64_t elements = kiln_count((int)ndim - 1, shape + 1);
    if (!kiln_check_attr(c, elements >= 0 && shape[0] >= 0 && shape[0] <= ints[KILN_SAMPLES_COUNT],
                         "%s is no batch out of %lld samples", kiln_shape_text((int)ndim, shape),
                         (long long)ints[KILN_SAMPLES_COUNT]) ||
        !kiln_check_attr(c, all_inside(c, elements), "the samples reach outside the storage %s",
                         kiln_shape_text(1, c->in[0]->shape)) ||
        !check_augmenting(c, (int)ndim, shape))
        return false;
    kiln_desc_set(&c->out[0], (kiln_dtype)ints[KILN_SAMPLES_DTYPE], (int)ndim, shape);
    return true;
}

const kiln_op kiln_op_take_samples = {
    .name = "take_samples",
    .attrs = "dtype samples start distance shuffle flip crop blank shape... | position seed_low seed_high epoch_low "
             "epoch_high",
    .cls = KILN_CLASS_INDEX,
    .picks = 1 << 0,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = 2,
    .infer = infer_take_samples,
    .cases =
        KILN_CASES{"x[60] | -1 6 0 10 0 0 0 0 4 10 | 0 0 0 0 0", "x[60] | -1 6 0 10 1 0 0 0 6 2 5 | 0 7 9 3 0",
                   "x[63] | -1 6 3 10 1 0 0 0 2 10 | 4 4294967295 1 8 2", "x[20] | -1 11 0 1 0 0 0 0 3 10 | 8 0 0 0 0",
                   "x[20] | -1 10 1 1 1 0 0 0 5 10 | 5 123456 0 70 0", "x[7] | -1 7 0 1 1 0 0 0 7 | 0 1 0 0 0",
                   "x[9] | -1 1 4 5 1 0 0 0 1 5 | 0 1 0 0 0", "x[64] | -1 4 0 16 1 0 0 0 3 16 | 1 5 0 5 0",
                   "x[10] | -1 5 0 2 1 0 0 0 0 2 | 0 1 0 0 0", "x[4] | -1 3 0 0 0 0 0 0 2 4 | 1 0 0 0 0",
                   "x[9000] | -1 3000 0 3 1 0 0 0 300 3 | 1500 77 5 12 0",
                   "x[60] | -1 5 0 12 1 1 0 0 4 3 4 | 1 7 9 3 0", "x[60] | -1 5 0 12 1 0 2 0 5 3 4 | 0 7 9 3 0",
                   "x[62] | -1 5 2 12 0 1 1 0 3 2 2 3 | 2 4294967295 1 8 2",
                   "x[900] | -1 30 0 30 1 1 4 0 20 1 6 5 | 10 5 0 70 0",
                   "x[512] | -1 8 0 64 1 1 3 0 8 2 4 8 | 0 77 5 12 1", NULL},
};

const kiln_op *const kiln_ops_samples[] = {&kiln_op_take_samples, NULL};
