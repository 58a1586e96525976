/* A small classifier and its training step, for tests that disturb a step and compare what comes out, bit by bit, with
 * a run that nobody disturbed; and the switches of the simulated devices. */
#ifndef KILN_TEST_TRAIN_H
#define KILN_TEST_TRAIN_H

#include "device/sim/sim.h"
#include "kiln.h"

enum { NET_TENSORS = 4 };

typedef struct test_net {
    kiln_device device;
    int64_t in, hidden, classes;
    kiln_tensor *p[NET_TENSORS]; /* weight and bias of two layers, named "net.0.weight" and so on */
} test_net;

/* Parameters that depend on nothing but sizes and seed; false with Kiln's error. */
bool net_make(test_net *net, kiln_device device, int64_t in, int64_t hidden, int64_t classes, uint32_t seed);
void net_free(test_net *net);

/* Batch number `number`: x [batch, in] and labels [batch]. Owned by the current scope; false with Kiln's error. */
bool net_batch(const test_net *net, int64_t batch, uint32_t number, kiln_tensor **x, kiln_tensor **labels);

kiln_tensor *net_forward(test_net *net, kiln_tensor *x);

/* One step of gradient descent on batch `number`, in a kiln_step. True if no error came up. */
bool net_step(test_net *net, int64_t batch, uint32_t number);
bool net_step_on(test_net *net, kiln_tensor *x, kiln_tensor *labels); /* what net_step does within its kiln_step */

/* All parameters, one after the other, in memory to be freed with free(); NULL with Kiln's error. */
float *net_values(test_net *net, size_t *bytes);

/* What net_values gives after `steps` undisturbed steps. */
float *net_trained(kiln_device device, int64_t in, int64_t hidden, int64_t classes, uint32_t seed, int64_t batch,
                   int steps);

/* True if both hold the same bits as what `device` gives: net_values compared with `expected`. */
bool net_equals(test_net *net, const float *expected);

/* Pseudo-random numbers in [-1, 1). */
float test_number(uint32_t *state);

/* The loaded simulator's kiln_sim_control; NULL where there is no simulator. */
kiln_sim_control_fn sim_switch(void);

/* Bytes of a device in use, as kiln_memory_get_stats tells. */
uint64_t memory_in_use(kiln_device device);

/* cmocka's assertions are for the main thread: another one notes the first that does not hold in its `failed`, a line,
 * and `error`. */
#define CHECK(w, condition)                                                                                            \
    do {                                                                                                               \
        if (!(condition) && !(w)->failed) {                                                                            \
            (w)->failed = __LINE__;                                                                                    \
            (w)->error = *kiln_last_error();                                                                           \
        }                                                                                                              \
    } while (0)

#endif
