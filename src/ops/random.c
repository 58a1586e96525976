/* Random numbers. Each thread has a generator: a seed and an offset into the seed's endless row of blocks (see
 * core/philox.h). Writing a random operation takes the blocks it needs; seed and offset are its run-time scalars, so a
 * replayed step draws fresh numbers. */
#include <math.h>
#include "ops/helpers.h"
#include "ops/part.h"
#include "ops/require.h"

extern const kiln_op kiln_op_random_uniform, kiln_op_random_normal;

typedef struct generator {
    double seed, offset; /* whole numbers below 2^53: they travel as run-time scalars */
} generator;

static _Thread_local generator state;

void kiln_manual_seed(uint64_t seed)
{
    if (seed >> 53) { /* larger seeds are mixed down (splitmix64's finaliser) rather than cut off */
        seed = (seed ^ seed >> 30) * 0xBF58476D1CE4E5B9u;
        seed = (seed ^ seed >> 27) * 0x94D049BB133111EBu;
        seed = (seed ^ seed >> 31) >> 11;
    }
    state = (generator){.seed = (double)seed};
}

kiln_random_state kiln_random_get(void)
{
    return (kiln_random_state){(uint64_t)state.seed, (uint64_t)state.offset};
}

void kiln_random_set(kiln_random_state s)
{
    kiln_manual_seed(s.seed);
    state.offset = (double)(s.offset & ((UINT64_C(1) << 53) - 1));
}

/* A block holds two f64 numbers or four f32 ones: blocks are taken for f64, so that both start at the same place. */
void kiln_random_take(int64_t n, double *seed_and_offset)
{
    seed_and_offset[0] = state.seed;
    seed_and_offset[1] = state.offset;
    double next = state.offset + (double)(n / 2 + n % 2);
    state.offset = next < 0x1p53 ? next : 0;
}

/* ---- The two nodes ---- */

static bool infer_random(kiln_call *c)
{
    int64_t dtype = c->attrs.nints ? c->attrs.i[0] : -1;
    int ndim = c->attrs.nints - 1;
    if (dtype < 0 || dtype >= KILN_DTYPES || !(KILN_T_FLOATS >> dtype & 1))
        return kiln_fail(KILN_E_DTYPE, c->op->name, "dtype %s: random numbers are floats",
                         dtype < 0 || dtype >= KILN_DTYPES ? "?" : kiln_dtype_name((kiln_dtype)dtype));
    if (ndim > KILN_MAX_DIMS || kiln_count(ndim, c->attrs.i + 1) < 0)
        return kiln_fail(KILN_E_SHAPE, c->op->name, "%s is no shape a tensor can have",
                         ndim > KILN_MAX_DIMS ? "a list of more than 8 sizes" : kiln_shape_text(ndim, c->attrs.i + 1));
    kiln_desc_set(&c->out[0], (kiln_dtype)dtype, ndim, c->attrs.i + 1);
    return true;
}

/* The node in f32, for types that have no kernel. */
static kiln_tensor *in_f32(kiln_call *c)
{
    kiln_attrs a = c->attrs;
    if (a.i[0] == KILN_F32)
        return kiln_fail(KILN_E_UNSUPPORTED, c->op->name, "%s has no kernel for it",
                         kiln_device_name(kiln_default_device()));
    a.i[0] = KILN_F32;
    return kiln_op_create(c->op, &a, kiln_default_device());
}

/* Cut to the bits that a half's fraction holds, since rounding could reach 1. */
static bool compose_uniform(kiln_call *c, kiln_tensor **out)
{
    kiln_dtype dtype = c->out[0].dtype;
    double steps = dtype == KILN_F16 ? 0x1p11 : dtype == KILN_BF16 ? 0x1p8 : 0x1p24;
    kiln_tensor *whole = kiln_floor(kiln_mul_scalar(in_f32(c), steps));
    return (out[0] = kiln_cast(kiln_mul_scalar(whole, 1 / steps), dtype)) != NULL;
}

static bool compose_normal(kiln_call *c, kiln_tensor **out)
{
    return (out[0] = kiln_cast(in_f32(c), c->out[0].dtype)) != NULL;
}

#define RANDOM_CASES                                                                                                   \
    KILN_CASES                                                                                                         \
    {                                                                                                                  \
        "| 6 2 3 | 1 0", "| 7 2 3 | 1 0", "| 6 7 | 5 1000", "| 7 9 | 5 1000", "| 6 | 3 2", "| 6 0 4 | 1 0",            \
            "| 6 70 33 | 123456789012 77", "| 7 70 33 | 123456789012 77", "| 4 5 7 | 1 0", "| 5 5 7 | 1 0", NULL       \
    }

const kiln_op kiln_op_random_uniform = {
    .name = "random_uniform",
    .attrs = "dtype shape... | seed offset",
    .cls = KILN_CLASS_RANDOM,
    .dtypes = KILN_T_FLOATS,
    .infer = infer_random,
    .compose = compose_uniform,
    .cases = RANDOM_CASES,
};

const kiln_op kiln_op_random_normal = {
    .name = "random_normal",
    .attrs = "dtype shape... | seed offset",
    .cls = KILN_CLASS_RANDOM,
    .dtypes = KILN_T_FLOATS,
    .infer = infer_random,
    .compose = compose_normal,
    .cases = RANDOM_CASES,
};

/* ---- What users call ---- */

static kiln_tensor *make(const kiln_op *op, kiln_dtype dtype, int ndim, const int64_t *shape, const double *from,
                         kiln_device device)
{
    kiln_attrs a = {.nints = 1, .i = {dtype}, .nfloats = 2, .f = {from[0], from[1]}};
    for (int d = 0; d < ndim; d++)
        a.i[a.nints++] = shape[d];
    return kiln_op_create(op, &a, device);
}

/* Part of the draw that a whole batch makes, from the whole's place on: the same numbers. Where the part begins inside
 * a block the draw begins with that block, and has the same length for all parts, so that they share a plan. */
static kiln_tensor *make_part(const kiln_op *op, kiln_dtype dtype, int ndim, const int64_t *shape, const double *from,
                              const kiln_draw_part *p, kiln_device device)
{
    KILN_TIDY;
    int64_t inner = kiln_count(ndim - p->dim - 1, shape + p->dim + 1), count = kiln_count(ndim, shape);
    if (kiln_count(p->dim, shape) > 1) { /* the part lies scattered */
        int64_t whole[KILN_MAX_DIMS];
        for (int d = 0; d < ndim; d++)
            whole[d] = d == p->dim ? p->whole : shape[d];
        kiln_tensor *all = make(op, dtype, ndim, whole, from, device);
        return KILN_KEPT(kiln_slice(all, p->dim, p->first, p->first + shape[p->dim], 1));
    }
    int64_t block = op == &kiln_op_random_uniform && dtype == KILN_F64 ? 2 : 4;
    int64_t skipped = p->first * inner, inside = skipped % block;
    double there[2] = {from[0], from[1] + (double)(skipped / block)};
    if (!inside)
        return KILN_KEPT(make(op, dtype, ndim, shape, there, device));
    kiln_tensor *line = make(op, dtype, KILN_SHAPE(count + block - 1), there, device);
    return KILN_KEPT(kiln_reshape(kiln_slice(line, 0, inside, inside + count, 1), ndim, shape));
}

static kiln_tensor *draw(const kiln_op *op, const char *name, int ndim, const int64_t *shape, kiln_dtype dtype,
                         kiln_device device)
{
    if (!kiln_check_list(name, ndim, shape, KILN_MAX_DIMS))
        return NULL;
    int64_t count = kiln_count(ndim, shape);
    if (count < 0)
        return kiln_fail(KILN_E_SHAPE, name, "%s is no shape a tensor can have", kiln_shape_text(ndim, shape));
    if (dtype >= KILN_DTYPES || !kiln_dtype_is_float(dtype))
        return kiln_fail(KILN_E_DTYPE, name, "dtype %s: random numbers are floats", kiln_dtype_name(dtype));
    kiln_draw_part part;
    double from[2];
    if (!kiln_part_of_draw(name, ndim, shape, &part))
        return NULL;
    if (part.dim < 0) {
        kiln_random_take(count, from);
        return make(op, dtype, ndim, shape, from, device);
    }
    kiln_random_take(count / shape[part.dim] * part.whole, from);
    return make_part(op, dtype, ndim, shape, from, &part, device);
}

kiln_tensor *kiln_rand(int ndim, const int64_t *shape, kiln_dtype dtype)
{
    return draw(&kiln_op_random_uniform, "rand", ndim, shape, dtype, kiln_default_device());
}

kiln_tensor *kiln_randn(int ndim, const int64_t *shape, kiln_dtype dtype)
{
    return draw(&kiln_op_random_normal, "randn", ndim, shape, dtype, kiln_default_device());
}

/* The whole numbers a dtype counts to without a gap. */
static bool holds(kiln_dtype dtype, int64_t low, int64_t last)
{
    static const int64_t least[KILN_DTYPES] = {0,     0,    INT32_MIN,  INT64_MIN,
                                               -2048, -256, -(1 << 24), -(INT64_C(1) << 53)};
    static const int64_t most[KILN_DTYPES] = {1, 255, INT32_MAX, INT64_MAX, 2048, 256, 1 << 24, INT64_C(1) << 53};
    return low >= least[dtype] && last <= most[dtype];
}

/* floor(u · range) + low with 53 random bits: for small ranges as good as unbiased, for 2^53 exact. */
kiln_tensor *kiln_randint(int64_t low, int64_t high, int ndim, const int64_t *shape, kiln_dtype dtype)
{
    KILN_TIDY;
    int64_t range;
    if (dtype >= KILN_DTYPES)
        return kiln_fail(KILN_E_DTYPE, "randint", "%d is no dtype", (int)dtype);
    if (high <= low || __builtin_sub_overflow(high, low, &range) || range > INT64_C(1) << 53)
        return kiln_fail(KILN_E_ARGUMENT, "randint", "there must be 1 to 2^53 numbers from low %lld to below high %lld",
                         (long long)low, (long long)high);
    if (!holds(dtype, low, high - 1))
        return kiln_fail(KILN_E_ARGUMENT, "randint", "%s does not hold all numbers from %lld to below %lld",
                         kiln_dtype_name(dtype), (long long)low, (long long)high);
    kiln_tensor *u = draw(&kiln_op_random_uniform, "randint", ndim, shape, KILN_F64, kiln_default_device());
    kiln_tensor *whole = kiln_cast(kiln_floor(kiln_mul_scalar(u, (double)range)), KILN_I64);
    int64_t fine = low & 0xffffffff, coarse = low - fine; /* each exact as a run-time scalar */
    if (fine)
        whole = kiln_add(whole, kiln_scalar((double)fine, KILN_I64));
    if (coarse)
        whole = kiln_add(whole, kiln_scalar((double)coarse, KILN_I64));
    return KILN_KEPT(kiln_cast(whole, dtype));
}

static bool compose_bernoulli(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *p = c->in[0];
    kiln_dtype wide = p->dtype == KILN_F64 ? KILN_F64 : KILN_F32;
    kiln_tensor *u = draw(&kiln_op_random_uniform, "bernoulli", p->ndim, p->shape, wide, p->device);
    kiln_tensor *checked = kiln_require(kiln_cast(p, wide), KILN_REQUIRE_PROBABILITY);
    out[0] = kiln_cast(kiln_lt(u, checked), (kiln_dtype)p->dtype);
    return out[0] != NULL;
}

/* Draws anew at each call, so it is none of the operations that are tested by their cases. */
static const kiln_op bernoulli = {
    .name = "bernoulli",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_FLOATS,
    .min_in = 1,
    .max_in = 1,
    .compose = compose_bernoulli,
};

kiln_tensor *kiln_bernoulli(kiln_tensor *p)
{
    return kiln_op_one(&bernoulli, KILN_IN(p), KILN_NO_ATTRS);
}

kiln_tensor *kiln_randperm(int64_t n, kiln_dtype dtype)
{
    KILN_TIDY;
    if (n < 0)
        return kiln_fail(KILN_E_ARGUMENT, "randperm", "%lld numbers: there must be at least 0", (long long)n);
    if (dtype >= KILN_DTYPES || !holds(dtype, 0, n - 1))
        return kiln_fail(KILN_E_DTYPE, "randperm", "%s does not hold all numbers below %lld", kiln_dtype_name(dtype),
                         (long long)n);
    kiln_part_mixes(); /* perhaps of a batch's samples */
    kiln_tensor *u = draw(&kiln_op_random_uniform, "randperm", 1, &n, KILN_F64, kiln_default_device());
    return KILN_KEPT(kiln_cast(kiln_argsort(u, 0, false), dtype));
}

const kiln_op *const kiln_ops_random[] = {&kiln_op_random_uniform, &kiln_op_random_normal, NULL};
