/* Writing a window into a copy of its base: what assignment to a view becomes. */
#include <string.h>
#include "device/cpu/call.h"
#include "ops/op.h"

static void as_strided_put(const kiln_cpu_call *c)
{
    const kiln_cpu_operand *base = &c->in[0], *x = &c->in[1];
    size_t size = kiln_dtype_size(base->dtype);
    char *out = c->out[0].data;
    const char *from = x->data;
    memcpy(out, base->data, (size_t)kiln_count(base->ndim, base->shape) * size);
    int64_t n = kiln_count(x->ndim, x->shape);
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, place = c->ints[x->ndim];
        for (int d = x->ndim; d-- > 0; rest /= x->shape[d])
            place += rest % x->shape[d] * c->ints[d];
        memcpy(out + (size_t)place * size, from + (size_t)i * size, size);
    }
}

const kiln_cpu_kernel kiln_cpu_kernels_put[] = {{.op = "as_strided_put", .dtypes = KILN_T_ALL, .run = as_strided_put},
                                                {0}};
