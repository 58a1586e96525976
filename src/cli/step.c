/* A training step on made-up data. */
#include <string.h>
#include "cli/step.h"

int step_network(const arguments *a, network *n, kiln_device device)
{
    int code = network_choose(n, text_of(a, "model", "mlp"));
    int64_t length = count_of(a, "length", 0);
    if (!code && length && !n->tokens)
        code = fail(EX_USAGE, "--length is for models of text; %s takes images", n->name);
    if (!code && length && n->entry)
        n->options.context = length;
    return code ? code : network_build(n, NULL, device);
}

int step_set_batch(step *s, int64_t batch, kiln_device device)
{
    const network *n = s->net;
    int64_t shape[KILN_MAX_DIMS] = {batch};
    memcpy(shape + 1, n->shape, (size_t)n->ndim * sizeof *shape);
    kiln_release(s->x);
    kiln_release(s->y);
    s->x = s->y = NULL;
    kiln_on_device (device)
        kiln_scope {
            s->x = kiln_keep(n->tokens ? kiln_randint(0, n->outputs, n->ndim + 1, shape, KILN_I64)
                                       : kiln_randn(n->ndim + 1, shape, KILN_F32));
            if (n->loss == KILN_CROSS_ENTROPY)
                s->y = kiln_keep(kiln_randint(0, n->outputs, n->tokens ? n->ndim + 1 : 1, shape, KILN_I64));
        }
    return kiln_eval() && kiln_ok() ? 0 : fail_kiln();
}

int step_make(step *s, network *n, const char *optim, int64_t batch, kiln_device device)
{
    *s = (step){.net = n};
    if (!(s->optim = kiln_optim_new(optim, kiln_parameters(n->module), NULL)))
        return fail_kiln();
    kiln_optim_state(s->optim); /* so that it is there before memory is looked at */
    return kiln_ok() ? step_set_batch(s, batch, device) : fail_kiln();
}

void step_free(step *s)
{
    kiln_release(s->x);
    kiln_release(s->y);
    kiln_optim_free(s->optim);
    *s = (step){0};
}

/* [N, …, classes] and [N, …], as rows of classes. */
static kiln_tensor *loss_of(const step *s, kiln_tensor *out)
{
    if (s->net->loss != KILN_CROSS_ENTROPY)
        return kiln_mse_loss(out, s->x, KILN_MEAN);
    if (kiln_ndim(out) > 2)
        return kiln_cross_entropy(kiln_reshape(out, KILN_SHAPE(-1, s->net->outputs)),
                                  kiln_reshape(s->y, KILN_SHAPE(-1)));
    return kiln_cross_entropy(out, s->y);
}

void step_record(step *s)
{
    kiln_zero_grad(s->optim);
    kiln_backward(loss_of(s, kiln_forward(s->net->module, s->x)));
    kiln_optim_step(s->optim);
}
