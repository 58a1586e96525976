/* Which groups behind a product cuBLASLt is asked to do: groups made by hand, no device. The plugin keeps its symbols
 * to itself, so the file is compiled in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "device/cuda/gemm/epilogue.c"

enum { M = 6, N = 8, MOST = 4 };

/* A product [M, N] with a group: no loads and no instructions yet, and one store. */
typedef struct made {
    kiln_operand in[2], loads[MOST];
    kiln_instr instrs[MOST];
    kiln_store stores[MOST];
    kiln_group group;
    kiln_kernel kernel;
} made;

static void start(made *x, kiln_dtype dtype)
{
    memset(x, 0, sizeof *x);
    x->group = (kiln_group){
        .count = (int64_t)M * N, .loads = x->loads, .instrs = x->instrs, .stores = x->stores, .nstores = 1, .head = 0};
    x->in[0].dtype = x->in[1].dtype = (uint8_t)dtype;
    x->stores[0].to =
        (kiln_operand){.dtype = (uint8_t)dtype, .ndim = 1, .dense = true, .shape = {(int64_t)M * N}, .stride = {1}};
    x->kernel = (kiln_kernel){.nin = 2, .in = x->in, .group = &x->group};
}

/* Before any instruction: registers are numbered loads first. */
static int16_t load(made *x, int ndim, const int64_t *shape, const int64_t *stride)
{
    kiln_operand *o = &x->loads[x->group.nloads];
    *o = (kiln_operand){.dtype = x->in[0].dtype, .ndim = (uint8_t)ndim};
    memcpy(o->shape, shape, (size_t)ndim * sizeof *shape);
    memcpy(o->stride, stride, (size_t)ndim * sizeof *stride);
    x->group.head++;
    return (int16_t)x->group.nloads++;
}

static int16_t load_bias(made *x)
{
    return load(x, 2, (int64_t[]){M, N}, (int64_t[]){0, 1});
}

/* Its result is what is stored, until there is another instruction. */
static int16_t instruct(made *x, int row, int16_t a, int16_t b)
{
    kiln_instr *in = &x->instrs[x->group.ninstrs];
    *in = (kiln_instr){.row = (int16_t)row, .dtype = x->in[0].dtype, .from = x->in[0].dtype, .src = {a, b, -1}};
    in->dst = (int16_t)(x->group.head + 1 + x->group.ninstrs++);
    x->stores[0].src = in->dst;
    return in->dst;
}

static bool fits(const made *x)
{
    return kiln_cuda_epilogue_of(&x->kernel, N).to != NULL;
}

static void assert_end(const made *x, int bias)
{
    kiln_cuda_epilogue e = kiln_cuda_epilogue_of(&x->kernel, N);
    assert_ptr_equal(e.to, &x->stores[0].to);
    assert_ptr_equal(e.bias, &x->loads[bias]);
}

static void linear(made *x, kiln_dtype dtype) /* the product and a bias */
{
    start(x, dtype);
    load_bias(x);
    instruct(x, KILN_PW_add, x->group.head, 0);
}

static void test_what_fits(void **state)
{
    (void)state;
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_F16, KILN_BF16};
    made x;
    for (int i = 0; i < 3; i++) {
        start(&x, dtypes[i]);
        instruct(&x, KILN_PW_relu, x.group.head, -1);
        assert_false(fits(&x));
        for (int first = 0; first < 2; first++) { /* the bias may be either operand */
            start(&x, dtypes[i]);
            load_bias(&x);
            int16_t sum = instruct(&x, KILN_PW_add, first ? 0 : x.group.head, first ? x.group.head : 0);
            assert_end(&x, 0);
            instruct(&x, KILN_PW_relu, sum, -1); /* the library's would hide a NaN */
            assert_false(fits(&x));
        }
    }
}

static bool fits_with(int ndim, const int64_t *shape, const int64_t *stride, int64_t offset, int64_t n)
{
    made x;
    start(&x, KILN_F32);
    x.group.count = kiln_count(ndim, shape);
    load(&x, ndim, shape, stride);
    x.loads[0].offset = offset;
    instruct(&x, KILN_PW_add, x.group.head, 0);
    return kiln_cuda_epilogue_of(&x.kernel, n).to != NULL;
}

static void test_biases(void **state)
{
    (void)state;
#define D(...) (int64_t[]){__VA_ARGS__}
    assert_true(fits_with(2, D(M, N), D(0, 1), 0, N));
    assert_true(fits_with(3, D(2, 3, N), D(0, 0, 1), 0, N)); /* rows in two dims */
    assert_true(fits_with(3, D(M, 2, 4), D(0, 4, 1), 0, N)); /* columns in two dims */
    assert_true(fits_with(4, D(1, M, 1, N), D(7, 0, 9, 1), 0, N));
    assert_true(fits_with(1, D(M), D(0), 0, 1)); /* one column */
    assert_true(fits_with(2, D(M, N), D(0, 1), 4, N));
    assert_false(fits_with(2, D(M, N), D(0, 1), 1, N)); /* 4 bytes behind an address that would do */
    assert_false(fits_with(2, D(M, N), D(0, 1), 2, N));
    assert_false(fits_with(2, D(M, N), D(N, 1), 0, N)); /* as large as the product */
    assert_false(fits_with(2, D(M, N), D(1, 0), 0, N)); /* along the columns */
    assert_false(fits_with(2, D(M, N), D(0, 2), 0, N)); /* with gaps */
    assert_false(fits_with(2, D(M, N), D(0, -1), 0, N));
    assert_false(fits_with(1, D(M * N), D(0), 0, N));         /* a single number */
    assert_false(fits_with(1, D(M * N), D(1), 0, N));         /* as large as the product */
    assert_false(fits_with(3, D(M, 2, 4), D(0, 0, 1), 0, N)); /* shorter than a row */
    assert_false(fits_with(3, D(3, 2, N), D(0, N, 1), 0, N)); /* longer than a row */
    assert_false(fits_with(3, D(M, 2, 4), D(0, 1, 2), 0, N)); /* a row turned around */
    assert_false(fits_with(3, D(2, 3, N), D(N, 0, 1), 0, N)); /* another one for each matrix */
    assert_false(fits_with(1, D(N), D(1), 0, N));             /* one row: the result may lie over it */
    assert_false(fits_with(2, D(1, N), D(0, 1), 0, N));       /* likewise */
    assert_false(fits_with(2, D(M, N), D(0, 1), 0, 2 * N));   /* rows of the product are longer */
    assert_false(fits_with(2, D(M, 2 * N), D(0, 1), 0, N));   /* rows of the product are shorter */
#undef D
}

static void test_other_groups(void **state)
{
    (void)state;
    made x;
    start(&x, KILN_F32); /* nothing is done, but stored */
    assert_false(fits(&x));
    linear(&x, KILN_F32);
    assert_true(fits(&x));
    x.kernel.group = NULL;
    assert_false(fits(&x));
    linear(&x, KILN_F32);
    x.group.head = -1;
    assert_false(fits(&x));
    linear(&x, KILN_F32); /* to a slot */
    x.kernel.commits = true;
    assert_false(fits(&x));
    linear(&x, KILN_F64);
    assert_false(fits(&x));
    linear(&x, KILN_F32);
    x.group.reduces = true;
    assert_false(fits(&x));
    linear(&x, KILN_F32); /* something more */
    instruct(&x, KILN_PW_mul_scalar, x.stores[0].src, -1);
    assert_false(fits(&x));
    start(&x, KILN_F32); /* another function */
    load_bias(&x);
    instruct(&x, KILN_PW_gelu, instruct(&x, KILN_PW_add, x.group.head, 0), -1);
    assert_false(fits(&x));
    start(&x, KILN_F32);
    load_bias(&x);
    instruct(&x, KILN_PW_sub, x.group.head, 0);
    assert_false(fits(&x));
    start(&x, KILN_F32);
    instruct(&x, KILN_PW_add_scalar, x.group.head, -1);
    assert_false(fits(&x));
    start(&x, KILN_F32); /* the product with itself */
    instruct(&x, KILN_PW_add, x.group.head, x.group.head);
    assert_false(fits(&x));
}

static void test_other_order(void **state)
{
    (void)state;
    made x;
    start(&x, KILN_F32); /* relu first */
    load_bias(&x);
    instruct(&x, KILN_PW_add, instruct(&x, KILN_PW_relu, x.group.head, -1), 0);
    assert_false(fits(&x));
    start(&x, KILN_F32); /* relu of the bias */
    load_bias(&x);
    instruct(&x, KILN_PW_add, instruct(&x, KILN_PW_relu, 0, -1), x.group.head);
    assert_false(fits(&x));
    start(&x, KILN_F32); /* relu of the product without its bias */
    load_bias(&x);
    instruct(&x, KILN_PW_add, x.group.head, 0);
    instruct(&x, KILN_PW_relu, x.group.head, -1);
    assert_false(fits(&x));
    start(&x, KILN_F32); /* two biases */
    load_bias(&x);
    load_bias(&x);
    instruct(&x, KILN_PW_add, instruct(&x, KILN_PW_add, x.group.head, 0), 1);
    assert_false(fits(&x));
    start(&x, KILN_F32); /* two biases, added to each other */
    load_bias(&x);
    load_bias(&x);
    instruct(&x, KILN_PW_add, 0, 1);
    assert_false(fits(&x));
}

static void test_stores(void **state)
{
    (void)state;
    made x;
    linear(&x, KILN_F32); /* the product is kept as well */
    x.group.nstores = 2;
    x.stores[1] = x.stores[0];
    x.stores[1].src = x.group.head;
    assert_false(fits(&x));
    linear(&x, KILN_F32); /* the product */
    x.stores[0].src = x.group.head;
    assert_false(fits(&x));
    linear(&x, KILN_F32); /* none */
    x.group.nstores = 0;
    assert_false(fits(&x));
    linear(&x, KILN_F32);
    x.stores[0].to.dense = false;
    assert_false(fits(&x));
}

static void test_dtypes(void **state)
{
    (void)state;
    made x;
    linear(&x, KILN_F16); /* a bias of another dtype is converted first */
    x.loads[0].dtype = KILN_F32;
    assert_false(fits(&x));
    linear(&x, KILN_F16);
    x.instrs[0].dtype = KILN_F32;
    assert_false(fits(&x));
    linear(&x, KILN_F16);
    x.instrs[0].from = KILN_F32;
    assert_false(fits(&x));
    linear(&x, KILN_F16);
    x.stores[0].to.dtype = KILN_F32;
    assert_false(fits(&x));
    linear(&x, KILN_BF16); /* 16 bytes are 8 elements */
    x.loads[0].offset = 4;
    assert_false(fits(&x));
    x.loads[0].offset = 8;
    assert_true(fits(&x));
}

/* other² ; the sum, stored ; relu of it ; both added, stored. */
static void go_on(made *x, kiln_store *stores)
{
    start(x, KILN_BF16);
    int16_t bias = load_bias(x), other = load(x, 1, (int64_t[]){(int64_t)M * N}, (int64_t[]){1});
    int16_t square = instruct(x, KILN_PW_mul, other, other);
    int16_t sum = instruct(x, KILN_PW_add, x->group.head, bias), relu = instruct(x, KILN_PW_relu, sum, -1);
    int16_t last = instruct(x, KILN_PW_add, relu, square);
    stores[0] = stores[1] = x->stores[0];
    stores[0].src = sum;
    stores[1].src = last;
    x->group.stores = stores;
    x->group.nstores = 2;
}

static void assert_instr(const kiln_instr *in, int row, int16_t a, int16_t b, int16_t to)
{
    assert_int_equal(in->row, row);
    assert_int_equal(in->src[0], a);
    assert_int_equal(in->src[1], b);
    assert_int_equal(in->dst, to);
}

/* A group that stores the sum and goes on from it: the library makes the sum, which is what the rest begins with. */
static void test_goes_on(void **state)
{
    (void)state;
    made x;
    kiln_store stores[2];
    go_on(&x, stores);
    kiln_cuda_epilogue e = kiln_cuda_epilogue_of(&x.kernel, N);
    assert_ptr_equal(e.to, &stores[0].to);
    assert_ptr_equal(e.bias, &x.loads[0]);
    assert_true(e.goes_on);
    for (int stored = 0; stored < 2; stored++) {
        kiln_group *rest = kiln_cuda_epilogue_rest(&x.kernel, &e, stored);
        assert_non_null(rest);
        assert_int_equal(rest->head, 2);
        assert_int_equal(rest->ninstrs, 3);
        assert_instr(&rest->instrs[0], KILN_PW_mul, 1, 1, 3);
        assert_instr(&rest->instrs[1], KILN_PW_relu, 2, -1, 4);
        assert_instr(&rest->instrs[2], KILN_PW_add, 4, 3, 5);
        assert_int_equal(rest->nstores, 1 + stored);
        assert_int_equal(rest->stores[0].src, stored ? 2 : 5);
        assert_int_equal(rest->stores[stored].src, 5);
        kiln_free(rest);
    }
    stores[0] = stores[1]; /* the sum is not stored: the library would have to write it for the rest alone */
    x.group.nstores = 1;
    assert_false(fits(&x));
    go_on(&x, stores);
    x.instrs[3].src[1] = x.group.head; /* the product itself is wanted, too */
    assert_false(fits(&x));
    go_on(&x, stores);
    x.kernel.commits = true;
    assert_false(fits(&x));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goes_on),      cmocka_unit_test(test_what_fits),   cmocka_unit_test(test_biases),
        cmocka_unit_test(test_other_groups), cmocka_unit_test(test_other_order), cmocka_unit_test(test_stores),
        cmocka_unit_test(test_dtypes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
