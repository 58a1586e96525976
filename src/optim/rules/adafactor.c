/* Adafactor (Shazeer and Stern, 2018: "Adafactor: adaptive learning rates with sublinear memory cost"), as PyTorch has
 * it: of the squares of a matrix's gradient only the averages of rows and of columns are kept. */
#include <math.h>
#include "optim/number.h"

enum { ROWS = KILN_STATE0, COLUMNS, SQUARES };

static bool is_factored(const kiln_tensor *p)
{
    return p->ndim > 1;
}

static bool has_state(const kiln_optim_options *o, const kiln_tensor *p, int slot, kiln_optim_state_shape *shape)
{
    (void)o;
    int input = KILN_STATE0 + slot;
    if (is_factored(p))
        shape->shape[input == ROWS ? p->ndim - 1 : p->ndim - 2] = 1;
    return is_factored(p) == (input != SQUARES);
}

/* The distance from 1 to the next number: what PyTorch takes for eps where nothing is given. */
static double precision(kiln_dtype dtype)
{
    return ldexp(1, dtype == KILN_F64 ? -52 : dtype == KILN_F32 ? -23 : dtype == KILN_F16 ? -10 : -7);
}

/* The state goes on towards what the step saw, and is that from now on. */
static kiln_tensor *averaged(kiln_update *u, int state, kiln_tensor *seen)
{
    kiln_number weight = kiln_number_to(u, kiln_number_step(u), -u->options->beta2_decay);
    kiln_tensor *next = kiln_update_lerp(u, kiln_update_tensor(u, state), seen, weight);
    return kiln_update_assign(u, state, next) ? next : NULL;
}

/* Estimates of the gradient's squares. */
static kiln_tensor *squares(kiln_update *u, kiln_tensor *g, double eps)
{
    kiln_tensor *square = kiln_square(g);
    if (!is_factored(g))
        return averaged(u, SQUARES, square);
    kiln_tensor *rows = averaged(u, ROWS, kiln_mean(square, KILN_DIMS(-1), true));
    kiln_tensor *columns = averaged(u, COLUMNS, kiln_mean(square, KILN_DIMS(-2), true));
    return kiln_div(kiln_mul(rows, columns), kiln_clamp(kiln_mean(rows, KILN_DIMS(-2), true), eps, INFINITY));
}

/* The root of the mean of all squares. */
static kiln_tensor *rms(const kiln_tensor *x)
{
    return kiln_mul_scalar(kiln_update_norm((kiln_tensor *)x), 1 / sqrt((double)kiln_numel(x)));
}

static bool compose(kiln_update *u)
{
    const kiln_optim_options *o = u->options;
    kiln_tensor *p = kiln_update_tensor(u, KILN_PARAMETER), *g = kiln_update_tensor(u, KILN_GRADIENT);
    if (kiln_numel(p) == 0)
        return true;
    double eps = o->eps > 0 ? o->eps : precision(kiln_dtype_of(p));
    kiln_number slowest = kiln_number_divided_by(u, 1, kiln_number_root(u, kiln_number_step(u)));
    kiln_tensor *by = kiln_mul(kiln_rsqrt(kiln_clamp(squares(u, g, eps), eps * eps, INFINITY)), g);
    kiln_number most_rate = kiln_number_at_most(u, slowest, o->lr);
    kiln_tensor *rate = kiln_update_scale(u, kiln_clamp(rms(p), o->eps2, INFINITY), most_rate);
    kiln_tensor *most = kiln_clamp(kiln_mul_scalar(rms(by), 1 / o->max_rms), 1, INFINITY);
    kiln_tensor *kept = o->weight_decay == 0 ? p : kiln_mul_scalar(p, 1 - o->lr * o->weight_decay);
    return kiln_update_assign(u, KILN_PARAMETER, kiln_sub(kept, kiln_mul(by, kiln_div(rate, most))));
}

const kiln_optim_rule kiln_optim_rule_adafactor = {
    .op = {.name = "adafactor", .cls = KILN_CLASS_COMPOSITE},
    .takes = KILN_TAKES(LR) | KILN_TAKES(WEIGHT_DECAY) | KILN_TAKES(EPS) | KILN_TAKES(EPS2) | KILN_TAKES(BETA2_DECAY) |
             KILN_TAKES(MAX_RMS),
    .defaults = {.lr = 1e-2, .beta2_decay = 0.8, .eps2 = 1e-3, .max_rms = 1},
    .state = {"row_var", "col_var", "variance"},
    .has_state = has_state,
    .compose = compose,
};
