/* Which sums of a plan are left to products, and the plan that comes of it: plans made by hand, no device. The plugin
 * keeps its symbols to itself, so the files are compiled in, with a library that can do anything. Skipped where CUDA's
 * headers are not there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "support/devices.h"
#ifdef KILN_TEST_CUDA
#include "device/cuda/common/depend.c"
#include "device/cuda/gemm/choice.h"
#include "device/cuda/launch/rewrite.c"
#include "device/cuda/launch/sums.c"

enum { ROWS = 6, IN = 5, OUT = 8, KERNELS = 6 };
enum { DY, X, DW, DB, WORK, OTHER, BUFFERS }; /* dy [ROWS, OUT], x [ROWS, IN] */

static const kiln_op matmul = {.name = "matmul", .cls = KILN_CLASS_MATMUL}, sum = {.name = "sum"};

/* ---- What stands for the rest of the plugin ---- */

static int asked;
static bool able, chained;

void kiln_cuda_make_call(kiln_cuda_call *c, kiln_cuda_device *d, const kiln_plan *plan, const kiln_kernel *k,
                         const kiln_binding *binding, const double *scalars)
{
    (void)scalars;
    *c = (kiln_cuda_call){.device = d, .kernel = k, .plan = plan, .binding = binding};
}

bool kiln_cuda_matmul_can_sum(const kiln_cuda_call *c, bool *can)
{
    int64_t of;
    assert_non_null(kiln_cuda_sum(c->kernel, &of));
    asked++;
    *can = able;
    return true;
}

int64_t kiln_cuda_cut(kiln_cuda_device *d, const kiln_plan *plan, kiln_cuda_part *parts)
{
    (void)d;
    if (chained)
        parts[0] = (kiln_cuda_part){.first = 0, .end = (int32_t)plan->nkernels};
    for (int32_t k = 0; !chained && k < plan->nkernels; k++)
        parts[k] = (kiln_cuda_part){.first = k, .end = k + 1};
    return chained ? 1 : plan->nkernels;
}

/* ---- Plans ---- */

typedef struct made {
    kiln_operand in[KERNELS][2], out[KERNELS], loads[KERNELS];
    kiln_store stores[KERNELS];
    kiln_group groups[KERNELS];
    kiln_kernel kernels[KERNELS];
    kiln_buffer buffers[BUFFERS];
    kiln_plan plan;
} made;

static kiln_operand matrix(int32_t buffer, int64_t rows, int64_t cols, int64_t row, int64_t col)
{
    return (kiln_operand){.buffer = buffer, .dtype = KILN_F32, .ndim = 2, .shape = {rows, cols}, .stride = {row, col}};
}

static kiln_operand vector(int32_t buffer, int64_t n)
{
    return (kiln_operand){.buffer = buffer, .dtype = KILN_F32, .ndim = 1, .dense = true, .shape = {n}, .stride = {1}};
}

static void start(made *x)
{
    memset(x, 0, sizeof *x);
    asked = 0;
    able = true;
    chained = false;
    for (int b = 0; b < BUFFERS; b++)
        x->buffers[b] = (kiln_buffer){.place = KILN_IN_ARENA, .offset = 1024 * b, .bytes = 1024};
    x->buffers[DB].place = KILN_IN_OUTPUT;
    x->plan = (kiln_plan){.kernels = x->kernels, .buffers = x->buffers, .nbuffers = BUFFERS, .noutputs = 1};
}

static kiln_kernel *add(made *x, const kiln_op *op)
{
    int64_t n = x->plan.nkernels++;
    x->kernels[n] = (kiln_kernel){.op = op, .in = x->in[n], .out = &x->out[n], .workspace = -1};
    x->groups[n] = (kiln_group){.loads = &x->loads[n], .stores = &x->stores[n], .head = -1};
    return &x->kernels[n];
}

/* dw = dyᵀ · x, or xᵀ · dy; with a group behind it where `grouped`. */
static kiln_kernel *add_product(made *x, int64_t of, bool grouped)
{
    kiln_kernel *k = add(x, &matmul);
    bool first = of == KILN_CUDA_SUM_OF_A;
    k->nin = 2;
    k->in[0] = first ? matrix(DY, OUT, ROWS, 1, OUT) : matrix(X, IN, ROWS, 1, IN);
    k->in[1] = first ? matrix(X, ROWS, IN, IN, 1) : matrix(DY, ROWS, OUT, OUT, 1);
    if (grouped) {
        k->group = &x->groups[k - x->kernels];
        k->group->head = 0;
        k->group->nstores = 1;
        k->group->stores[0].to = vector(DW, (int64_t)OUT * IN);
    } else {
        k->nout = 1;
        k->out[0] = vector(DW, (int64_t)OUT * IN);
    }
    return k;
}

static kiln_group *add_sum(made *x) /* of dy over its rows */
{
    kiln_kernel *k = add(x, &sum);
    kiln_group *g = k->group = &x->groups[k - x->kernels];
    g->count = (int64_t)ROWS * OUT;
    g->nloads = 1;
    g->loads[0] = matrix(DY, ROWS, OUT, OUT, 1);
    g->reduces = true;
    g->reduce_ndim = 2;
    g->reduce_shape[0] = ROWS;
    g->reduce_shape[1] = OUT;
    g->reduce_dims = 1;
    g->reduce_to = vector(DB, OUT);
    return g;
}

static void add_pointwise(made *x, int32_t from, int32_t to)
{
    kiln_kernel *k = add(x, NULL);
    k->group = &x->groups[k - x->kernels];
    k->group->nloads = k->group->nstores = 1;
    k->group->loads[0] = vector(from, OUT);
    k->group->stores[0].to = vector(to, OUT);
}

/* How many kernels are left. */
static int64_t absorbed(made *x)
{
    kiln_plan *p;
    kiln_cuda_device d = {0};
    assert_true(kiln_cuda_absorb_sums(&d, &x->plan, &p));
    int64_t n = p ? p->nkernels : x->plan.nkernels;
    kiln_cuda_plan_free(p);
    return n;
}

/* A sum and the product after it, changed: become one, or stay two, which is seen before the library is asked. */
#define LEAVES(kernels, ...)                                                                                           \
    do {                                                                                                               \
        start(&x);                                                                                                     \
        g = add_sum(&x);                                                                                               \
        k = add_product(&x, KILN_CUDA_SUM_OF_A, false);                                                                \
        __VA_ARGS__;                                                                                                   \
        assert_int_equal(absorbed(&x), kernels);                                                                       \
        assert_int_equal(asked, kernels == 1);                                                                         \
    } while (0)
#define BECOME_ONE(...) LEAVES(1, __VA_ARGS__)
#define STAY(...)       LEAVES(2, __VA_ARGS__)

/* ---- Tests ---- */

static void test_joined(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        made x;
        int64_t of = i & 1 ? KILN_CUDA_SUM_OF_A : KILN_CUDA_SUM_OF_B;
        bool grouped = i & 2, after = i & 4;
        start(&x);
        if (!after)
            add_sum(&x);
        add_product(&x, of, grouped);
        if (after)
            add_sum(&x);
        add_pointwise(&x, DB, OTHER);
        const made before = x;
        kiln_plan *p;
        kiln_cuda_device d = {0};
        assert_true(kiln_cuda_absorb_sums(&d, &x.plan, &p));
        assert_memory_equal(&x, &before, sizeof x); /* the plan itself is never changed */
        assert_non_null(p);
        assert_int_equal(p->nkernels, 2);
        assert_int_equal(p->noutputs, 1);
        const kiln_kernel *k = &p->kernels[0];
        assert_ptr_equal(k->op, &matmul);
        assert_int_equal(k->nout, grouped ? 1 : 2);
        assert_true(grouped || k->out[0].buffer == DW);
        int64_t made_of;
        const kiln_operand *to = kiln_cuda_sum(k, &made_of);
        assert_int_equal(made_of, of);
        assert_int_equal(to->buffer, DB);
        kiln_cuda_waits w; /* who reads the sum waits for the product */
        assert_true(kiln_cuda_find_waits(&w, p));
        assert_int_equal(w.first[2] - w.first[1], 1);
        assert_int_equal(w.of[w.first[1]], 0);
        kiln_cuda_free_waits(&w);
        kiln_cuda_plan_free(p);
    }
}

static void test_other_sums(void **state)
{
    (void)state;
    made x;
    kiln_group *g;
    kiln_kernel *k;
    BECOME_ONE();
    STAY(g->fold = KILN_FOLD_MAX);
    STAY(g->reduce_dims = 2);                 /* of each row */
    STAY(g->reduce_dims = 3);                 /* of everything */
    STAY(g->ninstrs = 1);                     /* of something else */
    STAY(g->nstores = 1);                     /* something else is stored, too */
    STAY(g->loads[0].buffer = X);             /* of another matrix */
    STAY(g->loads[0].offset = OUT);           /* of another part */
    STAY(g->loads[0].stride[0] = 2 * OUT);    /* of other rows */
    STAY(g->loads[0].shape[0] = ROWS - 1);    /* of fewer rows */
    STAY(g->loads[0].shape[1] = OUT - 1);     /* of fewer columns */
    STAY(g->reduce_to.dtype = KILN_F64);      /* to another dtype */
    STAY(g->loads[0].dtype = KILN_F16);       /* of other numbers */
    STAY(g->reduce_to.dense = false);         /* to a place with gaps */
    STAY(g->reduce_to.offset = 1);            /* to a place that the library does not take */
    STAY(x.buffers[DB].place = KILN_IN_SLOT); /* must not be written if the step fails */
    STAY(chained = true);                     /* with others in a kernel of its own */
    STAY(k->op = &sum);                       /* no product at all */
    BECOME_ONE(g->reduce_to.offset = 4);
}

static void add_dim(kiln_operand *o) /* of size 1 */
{
    o->ndim = 3;
    memmove(o->shape + 1, o->shape, 2 * sizeof *o->shape);
    memmove(o->stride + 1, o->stride, 2 * sizeof *o->stride);
    o->shape[0] = 1;
}

static void test_dims(void **state)
{
    (void)state;
    made x;
    kiln_group *g;
    kiln_kernel *k;
#define SHAPE(n, dims, ...)                                                                                            \
    (g->loads[0].ndim = n, g->reduce_dims = dims,                                                                      \
     memcpy(g->loads[0].shape, (int64_t[][n]){__VA_ARGS__}[0], n * sizeof(int64_t)),                                   \
     memcpy(g->loads[0].stride, (int64_t[][n]){__VA_ARGS__}[1], n * sizeof(int64_t)))
    BECOME_ONE(SHAPE(3, 3, {2, 3, OUT}, {3 * OUT, OUT, 1})); /* rows in two dims */
    BECOME_ONE(SHAPE(3, 1, {ROWS, 2, 4}, {OUT, 4, 1}));      /* columns in two dims */
    BECOME_ONE(SHAPE(4, 7, {1, ROWS, 1, OUT}, {9, OUT, 7, 1}));
    BECOME_ONE(SHAPE(2, 2, {OUT, ROWS}, {1, OUT}));    /* turned, like the product's own */
    STAY(SHAPE(3, 3, {3, 2, OUT}, {OUT, 3 * OUT, 1})); /* rows in another order: would do, is not looked for */
    STAY(SHAPE(3, 1, {ROWS, 4, 2}, {OUT, 1, 4}));      /* columns in another order */
    STAY(SHAPE(3, 1, {3, 2, OUT}, {2 * OUT, OUT, 1})); /* some of the rows */
    BECOME_ONE(add_dim(&k->in[0]), add_dim(&k->in[1]));
#undef SHAPE
}

/* What a kernel between the two may touch. */
static int64_t left_with(int32_t from, int32_t to, bool after)
{
    made x;
    start(&x);
    x.buffers[OTHER].offset = x.buffers[WORK].offset + 512; /* they share memory */
    x.buffers[DB].place = KILN_IN_ARENA;
    if (after)
        add_product(&x, KILN_CUDA_SUM_OF_A, false);
    else
        add_sum(&x);
    add_pointwise(&x, from, to);
    if (after)
        add_sum(&x);
    else
        add_product(&x, KILN_CUDA_SUM_OF_A, false);
    return absorbed(&x);
}

static void test_between(void **state)
{
    (void)state;
    for (int after = 0; after < 2; after++) {
        assert_int_equal(left_with(X, OTHER, after), 2);
        assert_int_equal(left_with(DY, OTHER, after), 2);
        assert_int_equal(left_with(DY, DY, after), 3);    /* writes what is summed */
        assert_int_equal(left_with(DB, OTHER, after), 3); /* reads the sum, or what lies there before */
        assert_int_equal(left_with(X, DB, after), 3);     /* writes there */
    }
}

static void test_shared_memory(void **state)
{
    (void)state;
    made x;
    kiln_group *g;
    kiln_kernel *k;
    BECOME_ONE(k->workspace = WORK);
    STAY(x.buffers[DB] = x.buffers[WORK], k->workspace = WORK); /* the product's scratch lies there */
    STAY(x.buffers[DB] = x.buffers[X]);                         /* its other operand does */
    STAY(x.buffers[DB] = x.buffers[DW]);                        /* its result does */
    STAY(x.buffers[DW] = x.buffers[DY]);                        /* its result lies where what is summed does */
    BECOME_ONE(x.kernels[0].workspace = WORK, x.buffers[WORK] = x.buffers[X]); /* scratch of the sum is not needed */
    (void)g;
}

static void test_one_each(void **state)
{
    (void)state;
    made x;
    start(&x); /* a sum twice: the product makes one */
    add_sum(&x);
    add_sum(&x)->reduce_to.buffer = OTHER;
    add_product(&x, KILN_CUDA_SUM_OF_A, false);
    assert_int_equal(absorbed(&x), 2);
    start(&x); /* two products: each makes one */
    add_sum(&x);
    add_sum(&x)->reduce_to.buffer = OTHER;
    add_product(&x, KILN_CUDA_SUM_OF_A, false);
    add_product(&x, KILN_CUDA_SUM_OF_B, true)->group->stores[0].to.buffer = WORK;
    assert_int_equal(absorbed(&x), 2);
}

static void test_library_cannot(void **state)
{
    (void)state;
    made x;
    start(&x);
    add_sum(&x);
    add_product(&x, KILN_CUDA_SUM_OF_A, false);
    add_product(&x, KILN_CUDA_SUM_OF_B, false)->out[0].buffer = WORK;
    able = false;
    assert_int_equal(absorbed(&x), 3);
    assert_int_equal(asked, 2);
}

/* In a plan that has to compute as another one did, sums are made by the products that made them there, and by no
 * other.
 */
static void test_chosen(void **state)
{
    (void)state;
    made x;
    kiln_group *g;
    kiln_kernel *k;
    BECOME_ONE(chained = true, x.kernels[0].choice.by = 2);
    STAY(x.kernels[0].choice.how = KILN_CUDA_BY_ITSELF);
    start(&x);
    add_sum(&x);
    add_product(&x, KILN_CUDA_SUM_OF_A, false);
    add_product(&x, KILN_CUDA_SUM_OF_B, false)->out[0].buffer = WORK;
    x.kernels[0].choice.by = 3;
    kiln_plan *p;
    kiln_cuda_device d = {0};
    assert_true(kiln_cuda_absorb_sums(&d, &x.plan, &p));
    assert_int_equal(p->nkernels, 2);
    assert_int_equal(p->kernels[0].nints, 0);
    assert_int_equal(p->kernels[1].nints, 1);
    kiln_cuda_plan_free(p);
    able = false; /* rather no step than one with other bits */
    assert_false(kiln_cuda_absorb_sums(&d, &x.plan, &p));
    assert_null(p);
    assert_string_equal(kiln_last_error()->operation, "sum");
    kiln_error_clear();
    (void)g;
    (void)k;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joined),         cmocka_unit_test(test_other_sums),    cmocka_unit_test(test_dims),
        cmocka_unit_test(test_between),        cmocka_unit_test(test_shared_memory), cmocka_unit_test(test_one_each),
        cmocka_unit_test(test_library_cannot), cmocka_unit_test(test_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    printf("skipped: the CUDA plugin was not built\n");
    return TEST_SKIPPED;
}
#endif
