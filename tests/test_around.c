/* Groups around kernels that read and write row by row (layer norm, its gradient, normalising, attention): pointwise
 * operations that make their operands, or are done on their results, while these are in cache. f32 has the bits of the
 * same operations run one by one; of 16 bits a result is not rounded before the group ends. Random programs have the
 * same bits either way, and when parts of them are computed again. KILN_TEST_PROGRAM=n runs one of them. */
#include "support/core.h"

/* ctest: name=plain env=KILN_ISA=plain */
/* ctest: name=eager env=KILN_EAGER=1 */
/* ctest: name=threads env=KILN_NUM_THREADS=3 */

typedef struct shape {
    int64_t rows, n;
} shape;

static const shape shapes[] = {{5, 33}, {1, 64}, {130, 16}, {3, 2500} /* more than two tiles of a group */, {7, 1}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

enum { X, Y, WEIGHT, BIAS, OPERANDS };

static kiln_tensor *draw(int seed, int ndim, const int64_t *dims, kiln_dtype dtype)
{
    kiln_tensor *t = NULL;
    kiln_step
        t = kiln_keep(kiln_cast(core_data(seed, ndim, dims), dtype));
    assert_non_null(t);
    return t;
}

static void draw_operands(const shape *s, kiln_dtype dtype, kiln_tensor **o)
{
    o[X] = draw(1, KILN_SHAPE(s->rows, s->n), dtype);
    o[Y] = draw(2, KILN_SHAPE(s->rows, s->n), dtype);
    o[WEIGHT] = draw(3, KILN_SHAPE(s->n), dtype);
    o[BIAS] = draw(4, KILN_SHAPE(s->n), dtype);
}

static void release_all(kiln_tensor **o, int n)
{
    for (int i = 0; i < n; i++)
        kiln_release(o[i]);
}

/* Ends a group where operations are to be run one by one. */
static void end_group(bool one_by_one)
{
    if (one_by_one)
        assert_true(kiln_eval());
}

static kiln_tensor *norm(kiln_tensor *x, kiln_tensor *const *o)
{
    return kiln_layer_norm(x, KILN_SHAPE(kiln_size(x, -1)), o[WEIGHT], o[BIAS], 1e-5);
}

/* ---- Chains ---- */

/* What comes out: one or two tensors. */
typedef struct results {
    kiln_tensor *t[2];
} results;

typedef results chain(kiln_tensor *const *o, bool one_by_one);

static results sum_before(kiln_tensor *const *o, bool one_by_one)
{
    kiln_tensor *sum = kiln_add(o[X], o[Y]);
    end_group(one_by_one);
    return (results){{norm(sum, o)}};
}

/* The residual goes on beside the norm. */
static results sum_kept(kiln_tensor *const *o, bool one_by_one)
{
    kiln_tensor *sum = kiln_add(kiln_mul(o[X], o[BIAS]), o[Y]);
    end_group(one_by_one);
    return (results){{norm(sum, o), sum}};
}

static results activation_behind(kiln_tensor *const *o, bool one_by_one)
{
    kiln_tensor *y = norm(o[X], o);
    end_group(one_by_one);
    return (results){{kiln_gelu(y)}};
}

/* What is added is what was read: it must not be overwritten too early. */
static results residual_of_input(kiln_tensor *const *o, bool one_by_one)
{
    kiln_tensor *y = norm(o[X], o);
    end_group(one_by_one);
    return (results){{kiln_add(y, o[X]), y}};
}

static results both_sides(kiln_tensor *const *o, bool one_by_one)
{
    kiln_tensor *x = kiln_tanh(o[X]);
    end_group(one_by_one);
    x = norm(x, o);
    end_group(one_by_one);
    return (results){{kiln_mul(kiln_sigmoid(x), o[Y])}};
}

static results without_weight(kiln_tensor *const *o, bool one_by_one)
{
    kiln_tensor *x = kiln_sub(o[X], o[Y]);
    end_group(one_by_one);
    x = kiln_layer_norm(x, KILN_SHAPE(kiln_size(x, 1)), NULL, NULL, 1e-3);
    end_group(one_by_one);
    return (results){{kiln_relu(x)}};
}

/* In one group, so that rows are whole samples. */
static results group_norm(kiln_tensor *const *o, bool one_by_one)
{
    kiln_tensor *x = kiln_sub(o[X], o[Y]);
    end_group(one_by_one);
    return (results){{kiln_group_norm(x, 1, NULL, NULL, 1e-3)}};
}

/* Both operands that have rows are made on the way, and the gradient of another path is added behind. */
static results gradient(kiln_tensor *const *o, bool one_by_one)
{
    kiln_tensor *grads[3], *wrt[] = {o[X], o[WEIGHT], o[BIAS]};
    for (int i = 0; i < 3; i++)
        kiln_requires_grad(wrt[i], true);
    kiln_tensor *x = kiln_tanh(o[X]);
    end_group(one_by_one);
    kiln_tensor *y = norm(x, o);
    end_group(one_by_one);
    assert_true(kiln_grad(y, kiln_mul(o[Y], o[Y]), wrt, 3, grads));
    end_group(one_by_one);
    for (int i = 0; i < 3; i++)
        kiln_requires_grad(wrt[i], false);
    return (results){{kiln_add(grads[0], o[Y]), kiln_mul(grads[1], grads[2])}};
}

static const struct {
    const char *name;
    chain *run;
    int kernels; /* on devices that have all of this */
} chains[] = {{"sum before", sum_before, 1},
              {"sum kept", sum_kept, 1},
              {"activation behind", activation_behind, 1},
              {"residual of the input", residual_of_input, 1},
              {"both sides", both_sides, 1},
              {"without a weight", without_weight, 1},
              {"group norm", group_norm, 1},
              {"gradient", gradient, 3 /* the norm, its gradient, the product of the weight's and the bias's */}};
enum { CHAINS = sizeof chains / sizeof *chains };

/* All that a chain gives, in f64, one behind the other. */
static double *run_chain(int number, kiln_tensor *const *o, bool one_by_one, int64_t *kernels, int64_t *count)
{
    results r = {0};
    kiln_plan_info info = {0};
    kiln_step {
        r = chains[number].run(o, one_by_one);
        for (int i = 0; i < 2; i++)
            r.t[i] = r.t[i] ? kiln_keep(r.t[i]) : NULL;
    }
    assert_true(r.t[0] && kiln_plan_last(&info));
    *kernels = info.kernels;
    int64_t first = kiln_numel(r.t[0]);
    *count = first + (r.t[1] ? kiln_numel(r.t[1]) : 0);
    double *values = malloc((size_t)*count * sizeof *values);
    assert_non_null(values);
    kiln_scope
        for (int i = 0; i < 2 && r.t[i]; i++)
            assert_true(kiln_read(kiln_cast(r.t[i], KILN_F64), values + i * first,
                                  (size_t)kiln_numel(r.t[i]) * sizeof *values));
    release_all(r.t, 2);
    return values;
}

static void check_bits(int number, const shape *s, kiln_dtype dtype)
{
    kiln_tensor *o[OPERANDS];
    int64_t kernels, n;
    draw_operands(s, dtype, o);
    double *want = run_chain(number, o, true, &kernels, &n);
    double *got = run_chain(number, o, false, &kernels, &n);
    if (memcmp(got, want, (size_t)n * sizeof *got) != 0)
        fail_msg("%s in %s, %d rows of %d: other bits than one by one", chains[number].name, kiln_dtype_name(dtype),
                 (int)s->rows, (int)s->n);
    if (!core_eager() && has_cpu_bits(kiln_default_device()) && kernels != chains[number].kernels)
        fail_msg("%s, %d rows of %d: %d kernels", chains[number].name, (int)s->rows, (int)s->n, (int)kernels);
    free(got);
    free(want);
    release_all(o, OPERANDS);
}

static void test_bits(void **state)
{
    (void)state;
    for (int c = 0; c < CHAINS; c++)
        for (int i = 0; i < SHAPES; i++) {
            check_bits(c, &shapes[i], KILN_F32);
            check_bits(c, &shapes[i], KILN_F64);
        }
}

/* Beside f64, from the same operands. Operands that are made on the way are rounded to 16 bits, as those that lie in
 * memory are; rows of one element normalise to nothing but what was rounded, and are left out. */
static void check_halves(int number, const shape *s, kiln_dtype dtype)
{
    kiln_tensor *o[OPERANDS], *exact[OPERANDS];
    int64_t kernels, n;
    double unit = dtype == KILN_BF16 ? 0x1p-8 : 0x1p-11, largest = 0;
    draw_operands(s, dtype, o);
    kiln_step
        for (int i = 0; i < OPERANDS; i++)
            exact[i] = kiln_keep(kiln_cast(o[i], KILN_F64));
    double *want = run_chain(number, exact, true, &kernels, &n);
    double *got = run_chain(number, o, false, &kernels, &n);
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= 6 * unit * (largest + fabs(want[i]))))
            fail_msg("%s in %s, %d rows of %d, element %d: %.9g, not %.9g", chains[number].name, kiln_dtype_name(dtype),
                     (int)s->rows, (int)s->n, (int)i, got[i], want[i]);
    if (!core_eager() && has_cpu_bits(kiln_default_device()) && chains[number].run != group_norm)
        assert_int_equal(kernels, chains[number].kernels);
    free(got);
    free(want);
    release_all(exact, OPERANDS);
    release_all(o, OPERANDS);
}

static void test_halves(void **state)
{
    (void)state;
    for (int c = 0; c < CHAINS; c++)
        for (int i = 0; i < SHAPES; i++)
            if (shapes[i].n > 1) {
                check_halves(c, &shapes[i], KILN_BF16);
                check_halves(c, &shapes[i], KILN_F16);
            }
}

/* ---- Attention ---- */

static double *attend(bool one_by_one, int64_t *kernels, int64_t *count)
{
    static const int64_t dims[] = {2, 3, 37, 20};
    kiln_tensor *o[5], *y = NULL;
    kiln_plan_info info;
    for (int i = 0; i < 5; i++)
        o[i] = draw(i, 4, dims, KILN_F32);
    kiln_step {
        kiln_tensor *t = kiln_scaled_dot_product_attention(o[0], o[1], o[2], NULL, 0, true, 0);
        end_group(one_by_one);
        t = kiln_add(kiln_mul(t, o[3]), o[4]);
        y = kiln_keep(t);
    }
    assert_true(y && kiln_plan_last(&info));
    *kernels = info.kernels;
    *count = kiln_numel(y);
    double *values = malloc((size_t)*count * sizeof *values);
    assert_non_null(values);
    kiln_scope
        assert_true(kiln_read(kiln_cast(y, KILN_F64), values, (size_t)*count * sizeof *values));
    kiln_release(y);
    release_all(o, 5);
    return values;
}

static void test_attention(void **state)
{
    (void)state;
    int64_t kernels, n;
    double *want = attend(true, &kernels, &n), *got = attend(false, &kernels, &n);
    assert_memory_equal(got, want, (size_t)n * sizeof *got);
    if (!core_eager() && has_cpu_bits(kiln_default_device()))
        assert_true(kernels <= 2); /* the operands are turned, or what the heads' results are added to is copied */
    free(got);
    free(want);
}

/* ---- Slots ---- */

/* x is assigned what is made of it, twice: a row is overwritten only once all that is made of it has been read. */
static void assign(const shape *s, bool one_by_one, double *values)
{
    kiln_tensor *o[OPERANDS];
    draw_operands(s, KILN_F32, o);
    for (int i = 0; i < 2; i++)
        kiln_step {
            kiln_tensor *sum = kiln_add(o[X], o[Y]);
            end_group(one_by_one);
            kiln_tensor *y = norm(sum, o);
            end_group(one_by_one);
            kiln_tensor *to = kiln_mul_scalar(kiln_add(y, o[X]), 0.5);
            end_group(one_by_one);
            assert_true(kiln_assign(o[Y], sum) && kiln_assign(o[X], to));
        }
    kiln_scope
        for (int i = 0; i < 2; i++)
            assert_true(kiln_read(kiln_cast(o[i], KILN_F64), values + i * s->rows * s->n,
                                  (size_t)(s->rows * s->n) * sizeof *values));
    release_all(o, OPERANDS);
}

static void test_assigned(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        int64_t n = 2 * shapes[i].rows * shapes[i].n;
        double *want = malloc((size_t)n * sizeof *want), *got = malloc((size_t)n * sizeof *got);
        assert_true(want && got);
        assign(&shapes[i], true, want);
        assign(&shapes[i], false, got);
        assert_memory_equal(got, want, (size_t)n * sizeof *got);
        free(want);
        free(got);
    }
}

/* What goes on from a product belongs behind it, not before the norm: the product would be in memory first. */
static void test_behind_product(void **state)
{
    (void)state;
    skip_if_eager();
    for (int half = 0; half < 2; half++) {
        kiln_dtype dtype = half ? KILN_BF16 : KILN_F32;
        kiln_tensor *x = draw(1, KILN_SHAPE(40, 16), dtype), *w = draw(2, KILN_SHAPE(16, 16), dtype);
        kiln_tensor *b = draw(3, KILN_SHAPE(16), dtype), *residual = draw(4, KILN_SHAPE(40, 16), KILN_F32);
        kiln_tensor *o[OPERANDS], *y = NULL, *z = NULL;
        draw_operands(&(shape){40, 16}, KILN_F32, o);
        kiln_step {
            y = kiln_add(residual, kiln_cast(kiln_add(kiln_matmul(x, w), b), KILN_F32));
            z = kiln_keep(norm(y, o));
            y = kiln_keep(y);
            char *plan = kiln_plan_describe();
            assert_true(plan && strstr(plan, half ? "matmul then add·cast·add " : "matmul then add·add "));
            assert_null(strstr(plan, "into layer_norm_rows"));
            kiln_string_free(plan);
        }
        release_all((kiln_tensor *[]){x, w, b, residual, y, z}, 6);
        release_all(o, OPERANDS);
    }
}

/* ---- Random programs ---- */

enum { REGISTERS = 5, LENGTH = 14, PROGRAMS = 150, LEAVES = 3 };

typedef enum kind { ADD, MUL, SUB, TANH, GELU, SCALE, ROW, NORM, PLAIN_NORM, TURN, CAST, KINDS } kind;

static uint64_t rng_state;

static int below(int n)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((rng_state >> 33) % (uint64_t)n);
}

/* One instruction: what register `a` (and b) make. Tanh keeps numbers small. */
static kiln_tensor *apply(int what, kiln_tensor *a, kiln_tensor *b, kiln_tensor *const *o)
{
    switch (what) {
    case ADD: return kiln_add(a, b);
    case MUL: return kiln_mul(a, kiln_tanh(b));
    case SUB: return kiln_sub(a, b);
    case TANH: return kiln_tanh(a);
    case GELU: return kiln_gelu(a);
    case SCALE: return kiln_mul_scalar(a, 0.75);
    case ROW: return kiln_mul(a, o[WEIGHT]);
    case NORM: return norm(a, o);
    case PLAIN_NORM: return kiln_layer_norm(a, KILN_SHAPE(kiln_size(a, 1)), NULL, NULL, 1e-2);
    case TURN: return kiln_add(a, kiln_flip(b, KILN_DIMS(0))); /* not element by element */
    default: return kiln_cast(kiln_cast(a, KILN_BF16), kiln_dtype_of(a));
    }
}

static void run_program(kiln_tensor **r, kiln_tensor *const *o, unsigned seed, bool one_by_one)
{
    rng_state = seed;
    for (int i = 0; i < LENGTH; i++) {
        int what = below(KINDS), to = below(REGISTERS), a = below(REGISTERS), b = below(REGISTERS);
        r[to] = apply(what, r[a], r[b], o);
        end_group(one_by_one);
    }
}

static const shape program_shapes[] = {{6, 17}, {2, 1030}, {33, 8}};

static const shape *program_shape(unsigned seed)
{
    return &program_shapes[seed % (sizeof program_shapes / sizeof *program_shapes)];
}

/* The registers afterwards, and the leaves that were assigned the first of them. */
static float *forward(unsigned seed, bool one_by_one, int64_t *count)
{
    const shape *s = program_shape(seed);
    kiln_tensor *o[OPERANDS], *kept[REGISTERS] = {0};
    draw_operands(s, KILN_F32, o);
    kiln_step {
        kiln_tensor *r[REGISTERS] = {o[X], o[Y], o[X], o[Y], o[X]};
        run_program(r, o, seed, one_by_one);
        int keep = 1 + below(REGISTERS - 1);
        for (int i = 1; i <= keep; i++)
            kept[i] = kiln_keep(kiln_clone(r[i]));
        end_group(one_by_one);
        assert_true(kiln_assign(o[X], kiln_add(r[0], o[X])));
    }
    int64_t n = s->rows * s->n;
    float *values = calloc((size_t)(REGISTERS * n), sizeof *values);
    assert_non_null(values);
    kept[0] = o[X];
    for (int i = 0; i < REGISTERS; i++)
        if (kept[i])
            assert_true(kiln_read(kept[i], values + i * n, (size_t)n * sizeof *values));
    release_all(kept + 1, REGISTERS - 1);
    release_all(o, OPERANDS);
    *count = REGISTERS * n;
    return values;
}

/* Gradients of the leaves, with the program computed again for the walk back or not. */
static float *back(unsigned seed, kiln_dtype dtype, bool again, int64_t *count)
{
    const shape *s = program_shape(seed);
    kiln_tensor *o[OPERANDS], *grads[LEAVES];
    draw_operands(s, dtype, o);
    kiln_tensor *leaves[] = {o[X], o[Y], o[WEIGHT]};
    for (int i = 0; i < LEAVES; i++)
        kiln_requires_grad(leaves[i], true);
    kiln_step {
        kiln_tensor *r[REGISTERS] = {o[X], o[Y], o[X], o[Y], o[X]};
        if (again)
            kiln_recomputed run_program(r, o, seed, false);
        else
            run_program(r, o, seed, false);
        kiln_tensor *sum = kiln_add(kiln_tanh(r[0]), kiln_mul(r[1], r[2]));
        for (int i = 0; i < LEAVES; i++) /* all have a gradient */
            sum = kiln_add(sum, leaves[i]);
        assert_true(kiln_grad(kiln_sum_all(kiln_cast(sum, KILN_F32)), NULL, leaves, LEAVES, grads));
        for (int i = 0; i < LEAVES; i++)
            grads[i] = kiln_keep(kiln_cast(grads[i], KILN_F32));
    }
    int64_t n = s->rows * s->n;
    float *values = calloc((size_t)(LEAVES * n), sizeof *values);
    assert_non_null(values);
    for (int i = 0; i < LEAVES; i++)
        assert_true(kiln_read(grads[i], values + i * n, (size_t)kiln_numel(grads[i]) * sizeof *values));
    release_all(grads, LEAVES);
    release_all(o, OPERANDS);
    *count = LEAVES * n;
    return values;
}

static void check_program(unsigned seed)
{
    int64_t n;
    float *want = forward(seed, true, &n), *got = forward(seed, false, &n);
    if (memcmp(got, want, (size_t)n * sizeof *got) != 0)
        fail_msg("program %u: other bits than one by one", seed);
    free(want);
    free(got);
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_BF16, KILN_F16};
    kiln_dtype dtype = dtypes[seed % 3];
    want = back(seed, dtype, false, &n);
    got = back(seed, dtype, true, &n);
    if (memcmp(got, want, (size_t)n * sizeof *got) != 0)
        fail_msg("program %u: other gradients in %s when computed again", seed, kiln_dtype_name(dtype));
    free(want);
    free(got);
}

static void test_random_programs(void **state)
{
    (void)state;
    const char *only = getenv("KILN_TEST_PROGRAM"), *many = getenv("KILN_TEST_PROGRAMS");
    unsigned programs = many ? (unsigned)atoi(many) : PROGRAMS;
    if (only)
        check_program((unsigned)atoi(only));
    for (unsigned k = 0; !only && k < programs; k++)
        check_program(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_bits),           core_test(test_halves),
                                       core_test(test_attention),      core_test(test_assigned),
                                       core_test(test_behind_product), core_test(test_random_programs)};
    return CORE_MAIN(tests);
}
