/* Muon (Jordan et al., 2024: "Muon: an optimizer for hidden layers in neural networks"): momentum whose direction is
 * made orthogonal, with PyTorch's rates. It is for matrices; convolutions' kernels are taken as matrices of a row an
 * output. Parameters of one dim, and groups that ask for it (embeddings, heads), are updated by adamw. */
#include <math.h>
#include "optim/number.h"
#include "optim/rules/adam.h"

extern const kiln_optim_rule kiln_optim_rule_adamw;

static const kiln_optim_rule *rule_for(const kiln_optim_options *o, const kiln_tensor *p)
{
    return p->ndim < 2 || o->adamw ? &kiln_optim_rule_adamw : NULL;
}

/* Newton and Schulz's iteration by a polynomial of degree 5, whose coefficients bring all singular values to about 1 in
 * a few rounds. */
static kiln_tensor *orthogonal(kiln_tensor *x, int64_t rounds, double eps)
{
    static const double a = 3.4445, b = -4.775, c = 2.0315;
    x = kiln_div(x, kiln_clamp(kiln_update_norm(x), eps, INFINITY));
    for (int64_t i = 0; i < rounds; i++) {
        kiln_tensor *gram = kiln_matmul(x, kiln_transpose(x, 0, 1));
        kiln_tensor *by = kiln_add(kiln_mul_scalar(gram, b), kiln_mul_scalar(kiln_matmul(gram, gram), c));
        x = kiln_add(kiln_mul_scalar(x, a), kiln_matmul(by, x));
    }
    return x;
}

/* How far a step goes beside the rate: such that outputs change alike whatever the shape, or as far as adamw's. */
static double stride(const kiln_optim_options *o, double rows, double columns)
{
    return o->match_rms ? 0.2 * sqrt(fmax(rows, columns)) : sqrt(fmax(1, rows / columns));
}

static bool compose(kiln_update *u)
{
    const kiln_optim_options *o = u->options;
    kiln_tensor *p = kiln_update_tensor(u, KILN_PARAMETER), *g = kiln_update_tensor(u, KILN_GRADIENT);
    if (kiln_numel(p) == 0)
        return true;
    kiln_tensor *momentum = kiln_lerp(kiln_update_tensor(u, KILN_STATE0), g, 1 - o->momentum);
    if (!kiln_update_assign(u, KILN_STATE0, momentum))
        return false;
    kiln_tensor *by = o->nesterov ? kiln_lerp(g, momentum, o->momentum) : momentum;
    int64_t rows = p->shape[0], columns = kiln_numel(p) / rows;
    bool tall = rows > columns; /* the smaller product of the two */
    by = kiln_reshape(by, KILN_SHAPE(rows, columns));
    by = orthogonal(tall ? kiln_transpose(by, 0, 1) : by, (int64_t)o->iterations, o->eps);
    by = kiln_reshape(tall ? kiln_transpose(by, 0, 1) : by, p->ndim, p->shape);
    kiln_tensor *kept = o->weight_decay == 0 ? p : kiln_mul_scalar(p, 1 - o->lr * o->weight_decay);
    by = kiln_mul_scalar(by, o->lr * stride(o, (double)rows, (double)columns));
    return kiln_update_assign(u, KILN_PARAMETER, kiln_sub(kept, by));
}

const kiln_optim_rule kiln_optim_rule_muon = {
    .op = {.name = "muon", .cls = KILN_CLASS_COMPOSITE},
    .takes = KILN_ADAM_TAKES | KILN_TAKES(MOMENTUM) | KILN_TAKES(NESTEROV) | KILN_TAKES(ITERATIONS) |
             KILN_TAKES(MATCH_RMS) | KILN_TAKES(ADAMW),
    .defaults = {.lr = 1e-3,
                 .weight_decay = 0.1,
                 .momentum = 0.95,
                 .nesterov = true,
                 .beta1 = 0.9,
                 .beta2 = 0.999,
                 .eps = 1e-7,
                 .iterations = 5},
    .state = {"momentum_buffer"},
    .compose = compose,
    .rule_for = rule_for,
};
