/* What the tests of modules share: a small network, its state to the bit, a training step. */
#ifndef KILN_TEST_NN_H
#define KILN_TEST_NN_H

#include "support/core.h"

/* Linear 3-4, tanh, and inside another sequential batch norm and linear 4-2. */
static inline kiln_module *small_net(void)
{
    return kiln_nn_sequential(kiln_nn_linear(3, 4), kiln_nn_tanh(),
                              kiln_nn_sequential(kiln_nn_batch_norm(4), kiln_nn_linear(4, 2)));
}

/* The tensor of that path, which must be there. */
static inline kiln_tensor *of(kiln_module *m, const char *path)
{
    kiln_tensor *t = kiln_module_tensor(m, path);
    if (!t)
        fail_msg("there is no %s", path);
    return t;
}

/* All of a module's state as bytes of f32 (the i64 counters as they are), for comparisons to the bit. */
typedef struct snapshot {
    size_t size;
    char bytes[4096];
} snapshot;

static inline snapshot state_of(kiln_module *m)
{
    snapshot s = {0};
    kiln_params p = kiln_state(m);
    for (int64_t i = 0; i < p.count; i++) {
        size_t n = (size_t)kiln_numel(p.tensors[i]) * kiln_dtype_size(kiln_dtype_of(p.tensors[i]));
        assert_true(s.size + n <= sizeof s.bytes);
        assert_true(kiln_read(p.tensors[i], s.bytes + s.size, n));
        s.size += n;
    }
    return s;
}

/* Gradients are added to those there are; plain gradient descent. */
static inline void train_step(kiln_module *m, int seed)
{
    kiln_step {
        kiln_tensor *x = NULL;
        kiln_on_device (kiln_module_device(m))
            x = core_data(seed, KILN_SHAPE(5, 3));
        kiln_backward(kiln_sum_all(kiln_square(kiln_forward(m, x))));
        kiln_params p = kiln_parameters(m);
        kiln_no_grad {
            for (int64_t i = 0; i < p.count; i++)
                if (kiln_grad_of(p.tensors[i]))
                    kiln_assign(p.tensors[i],
                                kiln_sub(p.tensors[i], kiln_mul_scalar(kiln_grad_of(p.tensors[i]), 0.01)));
        }
    }
    assert_true(kiln_ok());
}

#endif
