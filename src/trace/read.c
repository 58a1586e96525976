/* Data in and out of tensors: the calls that need values, and therefore run what is pending. */
#include <math.h>
#include <string.h>
#include "core/fail.h"
#include "core/alloc.h"
#include "core/half.h"
#include "tensor/memory.h"
#include "tensor/share.h"
#include "trace/shapes.h"

kiln_tensor *kiln_tensor_new(const void *data, kiln_dtype dtype, int ndim, const int64_t *shape, kiln_device device)
{
    size_t size = kiln_dtype_size(dtype);
    if (!size)
        return kiln_fail(KILN_E_DTYPE, "tensor_new", "%d is no dtype", (int)dtype);
    if (ndim < 0 || ndim > KILN_MAX_DIMS || (ndim && !shape))
        return kiln_fail(KILN_E_SHAPE, "tensor_new", "a tensor has 0 to %d dimensions, not %d", KILN_MAX_DIMS, ndim);
    int64_t n = kiln_count(ndim, shape);
    if (n < 0 || n > INT64_MAX / 16)
        return kiln_fail(KILN_E_SHAPE, "tensor_new", "%s is not a shape a tensor can have",
                         kiln_shape_text(ndim, shape));
    if (kiln_shapes_inside())
        return kiln_shapes_tensor(dtype, ndim, shape, device);
    kiln_storage *s = kiln_storage_new(device, (size_t)n * size);
    if (!s || !kiln_memory_take(device, s->bytes, &s->block)) {
        kiln_storage_unref(s);
        return NULL;
    }
    s->has_memory = true;
    s->address = s->block.address;
    void *zeros = data || !s->bytes ? NULL : kiln_alloc_zero(1, s->bytes);
    bool ok = !s->bytes || ((data || zeros) && kiln_copy_in(device, s->address, data ? data : zeros, s->bytes));
    kiln_free(zeros);
    if (!ok) {
        kiln_storage_unref(s);
        return NULL;
    }
    return kiln_tensor_make(s, dtype, ndim, shape, NULL, 0);
}

kiln_tensor *kiln_of_(const void *data, kiln_dtype dtype, size_t count, int ndim, const int64_t *shape)
{
    if (!kiln_check_list("tensor_new", ndim, shape, KILN_MAX_DIMS))
        return NULL;
    if (kiln_count(ndim, shape) != (int64_t)count)
        return kiln_fail(KILN_E_SHAPE, "tensor_new", "%zu values do not fill the shape %s", count,
                         kiln_shape_text(ndim, shape));
    return kiln_tensor_new(data, dtype, ndim, shape, kiln_default_device());
}

bool kiln_eval(void)
{
    kiln_trace *tr = kiln_trace_current();
    return tr && kiln_flush(tr, false) && kiln_trace_tidy(tr);
}

/* A dense tensor with memory that holds t's elements; NULL with an error. */
static kiln_tensor *computed(kiln_tensor *t, const char *who)
{
    if (!t)
        return NULL;
    kiln_trace *tr = kiln_trace_current();
    if (!tr)
        return NULL;
    if (kiln_is_shape_only(t)) {
        kiln_shapes_fail(t, who);
        return NULL;
    }
    if (t->storage->thunk && !(t = kiln_trace_follow(tr, t)))
        return NULL;
    if (!kiln_is_contiguous(t) || t->storage->version != t->storage->memory_version)
        kiln_no_grad
            t = kiln_contiguous(t);
    if (!t || !kiln_flush(tr, false))
        return NULL;
    if (!kiln_trace_has_value(t->storage, who) || (t->storage->shape_only && !kiln_shapes_fail(t, who)))
        return NULL;
    return t;
}

bool kiln_trace_copy_out(kiln_storage *s, void *to, kiln_address from, size_t bytes)
{
    kiln_storage_use(kiln_thread_state(), s);
    kiln_turn turn = kiln_storage_is_shared(s) ? KILN_TURN_READS : KILN_TURN_ALONE;
    kiln_turn_begin(turn);
    bool ok = kiln_copy_out(s->device, to, from, bytes);
    kiln_turn_end(turn);
    return ok;
}

bool kiln_read(kiln_tensor *t, void *out, size_t bytes)
{
    if (!kiln_tensor_given(t, "read", 1))
        return false;
    size_t size = kiln_dtype_size((kiln_dtype)t->dtype), want = (size_t)kiln_numel(t) * size;
    if (!out || bytes != want)
        return kiln_fail(KILN_E_ARGUMENT, "read", "the tensor %s of %s takes %zu bytes, but %zu were offered",
                         kiln_shape_text(t->ndim, t->shape), kiln_dtype_name((kiln_dtype)t->dtype), want,
                         out ? bytes : 0);
    bool ok = false;
    kiln_inner_scope
        if ((t = computed(t, "read")))
            ok =
                !bytes || kiln_trace_copy_out(t->storage, out, t->storage->address + (uint64_t)t->offset * size, bytes);
    return ok;
}

bool kiln_write(kiln_tensor *t, const void *data, size_t bytes)
{
    if (!kiln_tensor_given(t, "write", 1))
        return false;
    size_t size = kiln_dtype_size((kiln_dtype)t->dtype), want = (size_t)kiln_numel(t) * size;
    if (!data || bytes != want)
        return kiln_fail(KILN_E_ARGUMENT, "write", "the tensor %s of %s takes %zu bytes, but %zu were given",
                         kiln_shape_text(t->ndim, t->shape), kiln_dtype_name((kiln_dtype)t->dtype), want,
                         data ? bytes : 0);
    bool ok = false;
    kiln_inner_scope
        kiln_no_grad {
            kiln_tensor *source = kiln_tensor_new(data, (kiln_dtype)t->dtype, t->ndim, t->shape, t->device);
            ok = source && kiln_assign(t, source);
        }
    return ok;
}

/* Reads the only element of t, widened to f64 (floats) or i64 (the others). */
static bool read_one(kiln_tensor *t, double *f, int64_t *i)
{
    union {
        double f64;
        float f32;
        uint16_t half;
        int64_t i64;
        int32_t i32;
        uint8_t u8;
    } raw;
    if (!kiln_tensor_given(t, "item", 1))
        return false;
    if (kiln_numel(t) != 1)
        return kiln_fail(KILN_E_SHAPE, "item", "the tensor has shape %s, but one element is needed",
                         kiln_shape_text(t->ndim, t->shape));
    if (!kiln_read(t, &raw, kiln_dtype_size((kiln_dtype)t->dtype)))
        return false;
    switch ((kiln_dtype)t->dtype) {
    case KILN_F64: *f = raw.f64; break;
    case KILN_F32: *f = raw.f32; break;
    case KILN_F16: *f = kiln_f16_to_f32(raw.half); break;
    case KILN_BF16: *f = kiln_bf16_to_f32(raw.half); break;
    case KILN_I64: *i = raw.i64; break;
    case KILN_I32: *i = raw.i32; break;
    default: *i = raw.u8; break;
    }
    if (kiln_dtype_is_float((kiln_dtype)t->dtype))
        *i = *f >= -0x1p63 && *f < 0x1p63 ? (int64_t)*f : 0;
    else
        *f = (double)*i;
    return true;
}

double kiln_item(kiln_tensor *t)
{
    double f = 0;
    int64_t i = 0;
    return read_one(t, &f, &i) ? f : NAN;
}

int64_t kiln_item_i64(kiln_tensor *t)
{
    double f = 0;
    int64_t i = 0;
    return read_one(t, &f, &i) ? i : 0;
}
