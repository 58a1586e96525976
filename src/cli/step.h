/* One training step on made-up data: what kiln plan looks at and kiln bench measures. */
#ifndef KILN_CLI_STEP_H
#define KILN_CLI_STEP_H

#include "cli/work.h"

typedef struct step {
    network *net;
    kiln_optim *optim;
    kiln_tensor *x, *y; /* y NULL: the input itself is the target */
} step;

int step_make(step *s, network *n, const char *optim, int64_t batch, kiln_device device);
int step_set_batch(step *s, int64_t batch, kiln_device device); /* another batch for the same model */
void step_free(step *s);
void step_record(step *s); /* inside a kiln_step */

/* The network of --model with --length; default mlp. */
int step_network(const arguments *a, network *n, kiln_device device);

#endif
