/* Convolution and pooling of integers, written with views that show every window. Slow beside a kernel, but exact, and
 * the same on all devices: integers are rare there. */
#include "ops/integer_windows.h"
#include <math.h>
#include "ops/pointwise.h"

static int64_t span(const kiln_window *by, int axis)
{
    return by->dilation[axis] * (by->kernel[axis] - 1) + 1;
}

/* x [N, C, H, W] with `fill` around it, as far as windows reach: [N, C, out_h, out_w, kernel_h, kernel_w], a view. */
static kiln_tensor *windows_of(kiln_tensor *x, const kiln_window *by, double fill)
{
    int64_t pad[4];
    for (int axis = 0; x && axis < 2; axis++) {
        pad[2 - 2 * axis] = by->padding[axis];
        pad[3 - 2 * axis] =
            (by->out[axis] - 1) * by->stride[axis] + span(by, axis) - by->padding[axis] - x->shape[2 + axis];
    }
    x = kiln_pad(x, 4, pad, KILN_PAD_CONSTANT, fill);
    for (int axis = 0; axis < 2; axis++)
        x = kiln_unfold(x, 2 + axis, span(by, axis), by->stride[axis]);
    for (int axis = 0; axis < 2; axis++)
        x = kiln_slice(x, 4 + axis, 0, span(by, axis), by->dilation[axis]);
    return x;
}

/* ---- Convolution ---- */

kiln_tensor *kiln_windows_convolve(kiln_tensor *x, kiln_tensor *w, const kiln_window *by, int64_t groups)
{
    int64_t n = x->shape[0], c = w->shape[1], out = w->shape[0], each = out / groups;
    const int64_t *k = by->kernel, *o = by->out;
    kiln_dtype dtype = (kiln_dtype)x->dtype;
    kiln_tensor *seen = kiln_reshape(windows_of(x, by, 0), KILN_SHAPE(n, groups, 1, c, o[0], o[1], k[0], k[1]));
    kiln_tensor *weight = kiln_reshape(w, KILN_SHAPE(groups, each, c, 1, 1, k[0], k[1]));
    kiln_tensor *sums = kiln_sum(kiln_mul(seen, weight), KILN_DIMS(3, 6, 7), false);
    return kiln_cast(kiln_reshape(sums, KILN_SHAPE(n, out, o[0], o[1])), dtype);
}

/* gy with stride - 1 zeros behind each element. */
static kiln_tensor *spread(kiln_tensor *gy, const kiln_window *by)
{
    const int64_t *s = gy->shape, *stride = by->stride;
    kiln_tensor *apart = kiln_reshape(gy, KILN_SHAPE(s[0], s[1], s[2], 1, s[3], 1));
    apart = kiln_pad(apart, 6, (int64_t[]){0, stride[1] - 1, 0, 0, 0, stride[0] - 1}, KILN_PAD_CONSTANT, 0);
    return kiln_reshape(apart, KILN_SHAPE(s[0], s[1], s[2] * stride[0], s[3] * stride[1]));
}

/* A convolution of the spread gradient with the kernels turned round. */
kiln_tensor *kiln_windows_convolve_back(kiln_tensor *gy, kiln_tensor *w, const kiln_window *by, int64_t groups,
                                        const int64_t *size)
{
    int64_t in = w->shape[0] / groups, out = w->shape[1], kh = w->shape[2], kw = w->shape[3], pad[4];
    kiln_window back = {.kernel = {kh, kw}, .stride = {1, 1}, .out = {size[0], size[1]}};
    for (int axis = 0; axis < 2; axis++) {
        back.dilation[axis] = by->dilation[axis];
        int64_t reach = by->dilation[axis] * (back.kernel[axis] - 1), before = reach - by->padding[axis];
        pad[2 - 2 * axis] = before;
        pad[3 - 2 * axis] = size[axis] + reach - before - gy->shape[2 + axis] * by->stride[axis];
    }
    kiln_tensor *x = kiln_pad(spread(gy, by), 4, pad, KILN_PAD_CONSTANT, 0);
    kiln_tensor *turned = kiln_permute(kiln_reshape(w, KILN_SHAPE(groups, in, out, kh, kw)), KILN_DIMS(0, 2, 1, 3, 4));
    turned = kiln_flip(kiln_reshape(turned, KILN_SHAPE(groups * out, in, kh, kw)), KILN_DIMS(2, 3));
    return x && turned ? kiln_windows_convolve(x, turned, &back, groups) : NULL;
}

/* ---- Pooling ---- */

/* start, start + step, …: n i64 numbers on x's device. */
static kiln_tensor *count_from(const kiln_tensor *x, int64_t n, int64_t start, int64_t step)
{
    extern const kiln_op kiln_op_iota;
    const kiln_attrs a = {.nints = 2, .i = {KILN_I64, n}, .nfloats = 2, .f = {(double)start, (double)step}};
    return kiln_op_create(&kiln_op_iota, &a, x->device);
}

/* Where the window's element number `place` lies in the plane, row by row. */
static kiln_tensor *place_in_plane(kiln_tensor *place, const kiln_tensor *x, const kiln_window *by)
{
    kiln_tensor *kw = kiln_scalar((double)by->kernel[1], KILN_I64), *at[2];
    at[0] = kiln_floor_divide(place, kw);
    at[1] = kiln_remainder(place, kw);
    for (int axis = 0; axis < 2; axis++) {
        kiln_tensor *first = count_from(x, by->out[axis], -by->padding[axis], by->stride[axis]);
        at[axis] =
            kiln_add(kiln_mul_scalar(at[axis], (double)by->dilation[axis]), axis ? first : kiln_unsqueeze(first, 1));
    }
    return kiln_add(kiln_mul_scalar(at[0], (double)x->shape[3]), at[1]);
}

bool kiln_windows_maximum(kiln_tensor *x, const kiln_window *by, kiln_tensor **values, kiln_tensor **indices)
{
    kiln_dtype dtype = (kiln_dtype)x->dtype;
    kiln_tensor *seen = windows_of(kiln_cast(x, KILN_I64), by, -0x1p63), *place; /* below anything that x may hold */
    seen =
        kiln_reshape(seen, KILN_SHAPE(x->shape[0], x->shape[1], by->out[0], by->out[1], by->kernel[0] * by->kernel[1]));
    *values = kiln_cast(kiln_max(seen, -1, false, &place), dtype);
    *indices = NULL;
    kiln_on_device (x->device)
        *indices = place_in_plane(place, x, by);
    return *values && *indices;
}

/* How many elements the windows along an axis hold, with the padding or without. */
static kiln_tensor *elements_along(const kiln_tensor *x, const kiln_window *by, int axis, bool include_pad)
{
    int64_t size = x->shape[2 + axis], pad = by->padding[axis];
    kiln_tensor *first = count_from(x, by->out[axis], -pad, by->stride[axis]);
    kiln_tensor *end = kiln_clamp(kiln_add_scalar(first, (double)by->kernel[axis]), -INFINITY, (double)(size + pad));
    if (include_pad)
        return kiln_sub(end, first);
    return kiln_sub(kiln_clamp(end, -INFINITY, (double)size), kiln_clamp(first, 0, INFINITY));
}

kiln_tensor *kiln_windows_mean(kiln_tensor *x, const kiln_window *by, bool include_pad)
{
    kiln_tensor *sums = kiln_sum(windows_of(x, by, 0), KILN_DIMS(4, 5), false);
    kiln_tensor *count =
        kiln_mul(kiln_unsqueeze(elements_along(x, by, 0, include_pad), 1), elements_along(x, by, 1, include_pad));
    /* The rows themselves, which give 0 for a window without elements. */
    kiln_tensor *rest = kiln_pw_call(&kiln_op_fmod, KILN_IN(sums, count), KILN_NO_ATTRS);
    kiln_tensor *mean = kiln_pw_call(&kiln_op_floor_divide, KILN_IN(kiln_sub(sums, rest), count), KILN_NO_ATTRS);
    return kiln_cast(mean, (kiln_dtype)x->dtype);
}
