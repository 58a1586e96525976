/* Which casts and numbers of a plan chains read through, and the plan that comes of it: plans made by hand, no device.
 * The plugin keeps its symbols to itself, so the files are compiled in. Skipped where CUDA's headers are not there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "support/devices.h"
#ifdef KILN_TEST_CUDA
#include "device/cuda/common/depend.c"
#include "device/cuda/launch/rewrite.c"
#include "device/cuda/launch/through.c"
#include "device/cuda/launch/numbers.c"
#include "device/cuda/launch/casts.c"

enum { ROWS = 6, IN = 5, OUT = 8, KERNELS = 6 };
enum {
    WEIGHT,
    HALF,
    X,
    Y,
    OTHER,
    BUFFERS
}; /* weight [OUT, IN] in f32, the same in bf16, x [ROWS, IN], y [ROWS, OUT] */

static const kiln_op matmul = {.name = "matmul", .cls = KILN_CLASS_MATMUL}, softmax = {.cls = KILN_CLASS_ROWS};

typedef struct made {
    kiln_operand in[KERNELS][2], out[KERNELS], loads[KERNELS][2];
    kiln_instr instrs[KERNELS];
    kiln_store stores[KERNELS];
    kiln_group groups[KERNELS];
    kiln_kernel kernels[KERNELS];
    kiln_buffer buffers[BUFFERS];
    kiln_plan plan;
    kiln_cuda_part part; /* all of it, unless a test says otherwise */
} made;

static kiln_operand vector(int32_t buffer, kiln_dtype dtype, int64_t n)
{
    return (kiln_operand){
        .buffer = buffer, .dtype = (uint8_t)dtype, .ndim = 1, .dense = true, .shape = {n}, .stride = {1}};
}

static kiln_kernel *add(made *x, const kiln_op *op)
{
    int64_t n = x->plan.nkernels++;
    x->kernels[n] = (kiln_kernel){.op = op, .in = x->in[n], .out = &x->out[n], .workspace = -1};
    x->groups[n] = (kiln_group){.loads = x->loads[n], .instrs = &x->instrs[n], .stores = &x->stores[n], .head = -1};
    x->part.end = (int32_t)n + 1;
    for (int b = 0; b < BUFFERS; b++)
        x->buffers[b].last = (int32_t)n;
    return &x->kernels[n];
}

static kiln_group *add_group(made *x, const kiln_op *op)
{
    kiln_kernel *k = add(x, op);
    return k->group = &x->groups[k - x->kernels];
}

/* The plan begins with the cast of the weight, whose elements begin at the third of its buffer. */
static kiln_group *start(made *x)
{
    memset(x, 0, sizeof *x);
    for (int b = 0; b < BUFFERS; b++)
        x->buffers[b] = (kiln_buffer){.place = KILN_IN_ARENA, .offset = 1024 * b, .bytes = 1024};
    x->buffers[WEIGHT].place = KILN_IN_SLOT;
    x->plan = (kiln_plan){.kernels = x->kernels, .buffers = x->buffers, .nbuffers = BUFFERS, .nslots = 1};
    kiln_group *g = add_group(x, NULL);
    g->count = (int64_t)OUT * IN;
    g->nloads = g->ninstrs = g->nstores = 1;
    g->loads[0] = vector(WEIGHT, KILN_F32, g->count);
    g->loads[0].offset = 3;
    g->instrs[0] = (kiln_instr){
        .row = KILN_PW_cast, .dtype = KILN_BF16, .from = KILN_F32, .src = {0, -1, -1}, .dst = 1, .node = 7};
    g->stores[0] = (kiln_store){.src = 1, .to = vector(HALF, KILN_BF16, g->count)};
    return g;
}

/* y = x · weightᵀ, with a group that stores it and adds a column of the weight. */
static kiln_kernel *add_product(made *x)
{
    kiln_group *g = add_group(x, &matmul);
    kiln_kernel *k = &x->kernels[x->plan.nkernels - 1];
    k->nin = 2;
    k->in[0] = (kiln_operand){.buffer = X, .dtype = KILN_BF16, .ndim = 2, .shape = {ROWS, IN}, .stride = {IN, 1}};
    k->in[1] = (kiln_operand){
        .buffer = HALF, .dtype = KILN_BF16, .ndim = 2, .shape = {IN, OUT}, .stride = {1, IN}, .offset = 2};
    g->count = (int64_t)ROWS * OUT;
    g->nloads = g->ninstrs = g->nstores = 1;
    g->loads[0] =
        (kiln_operand){.buffer = HALF, .dtype = KILN_BF16, .ndim = 2, .shape = {ROWS, OUT}, .stride = {0, IN}};
    g->head = 1;
    g->instrs[0] = (kiln_instr){.row = KILN_PW_add, .dtype = KILN_BF16, .from = KILN_BF16, .src = {1, 0, -1}, .dst = 2};
    g->stores[0] = (kiln_store){.src = 2, .to = vector(Y, KILN_BF16, g->count)};
    return k;
}

static void add_write(made *x, int32_t buffer)
{
    kiln_group *g = add_group(x, NULL);
    g->nstores = 1;
    g->stores[0].to = vector(buffer, KILN_F32, OUT);
}

static kiln_plan *through(made *x)
{
    kiln_plan *p;
    assert_true(kiln_cuda_read_through(&x->plan, &x->part, 1, &p));
    return p;
}

static bool is_gone(const kiln_plan *p)
{
    return !p->kernels[0].group && !p->kernels[0].op;
}

/* Both the operand and the load are those of the cast; the given plan stays as it was. */
static void test_product(void **state)
{
    (void)state;
    made x;
    start(&x);
    add_product(&x);
    kiln_plan *p = through(&x);
    assert_non_null(p);
    assert_true(is_gone(p));
    const kiln_kernel *k = &p->kernels[1];
    assert_int_equal(k->rounds_to, KILN_BF16);
    assert_int_equal(k->in[0].buffer, X);
    assert_int_equal(k->in[1].buffer, WEIGHT);
    assert_int_equal(k->in[1].dtype, KILN_F32);
    assert_int_equal(k->in[1].offset, 5);
    assert_int_equal(k->in[1].stride[1], IN);
    const kiln_group *g = k->group;
    assert_int_equal(g->loads[0].buffer, WEIGHT);
    assert_int_equal(g->loads[0].dtype, KILN_F32);
    assert_int_equal(g->loads[0].offset, 3);
    assert_int_equal(g->ninstrs, 2);
    assert_int_equal(g->instrs[0].row, KILN_PW_cast);
    assert_int_equal(g->instrs[0].src[0] * 10 + g->instrs[0].dst, 2);
    assert_int_equal(g->instrs[1].src[0] * 10 + g->instrs[1].src[1], 12); /* the product, and what was cast */
    assert_int_equal(g->instrs[1].src[2], -1);
    assert_int_equal(g->instrs[1].dst, 3);
    assert_int_equal(g->stores[0].src, 3);
    assert_int_equal(x.kernels[1].in[1].buffer, HALF);
    assert_int_equal(x.groups[1].ninstrs, 1);
    assert_non_null(x.kernels[0].group);
    kiln_cuda_plan_free(p);
}

/* A product that runs when the weight is written already, or writes it, needs the copy; others do not. */
static void test_written_in_between(void **state)
{
    (void)state;
    made x;
    start(&x);
    add_product(&x);
    add_write(&x, WEIGHT);
    add_product(&x);
    kiln_plan *p = through(&x);
    assert_non_null(p);
    assert_false(is_gone(p));
    assert_int_equal(p->kernels[1].in[1].buffer, WEIGHT);
    assert_int_equal(p->kernels[3].in[1].buffer, HALF);
    assert_int_equal(p->kernels[3].rounds_to, 0);
    kiln_cuda_plan_free(p);
    start(&x);
    add_product(&x)->group->stores[0].to.buffer = WEIGHT;
    assert_null(through(&x));
}

/* What is no link of the same chain, or cannot convert, reads the copy. */
static void test_other_readers(void **state)
{
    (void)state;
    made x;
    start(&x);
    add_product(&x);
    add_product(&x);
    x.part.end = 2;
    kiln_plan *p = through(&x);
    assert_non_null(p);
    assert_false(is_gone(p));
    assert_int_equal(p->kernels[1].in[1].buffer, WEIGHT);
    assert_int_equal(p->kernels[2].in[1].buffer, HALF);
    kiln_cuda_plan_free(p);
    start(&x);
    kiln_kernel *k = add(&x, &softmax);
    k->nin = 1;
    k->in[0] = vector(HALF, KILN_BF16, OUT);
    assert_null(through(&x));
}

/* Casts that are more than that, from another dtype, of elements in another order, or to memory that outlives the run.
 */
static void test_other_casts(void **state)
{
    (void)state;
    for (int which = 0; which < 6; which++) {
        made x;
        kiln_group *g = start(&x);
        add_product(&x);
        switch (which) {
        case 0: g->loads[0].stride[0] = 2; break;
        case 1: g->loads[0].dtype = KILN_F64; break;
        case 2: g->instrs[0].row = KILN_PW_relu; break;
        case 3: g->instrs[0].dtype = KILN_F32; break;
        case 4: x.buffers[HALF].place = KILN_IN_OUTPUT; break;
        default: g->nstores = 2; break;
        }
        assert_null(through(&x));
    }
}

/* ---- Numbers ---- */

enum { COUNTED = WEIGHT, LIMIT = HALF, FOUND = X, MANY = Y }; /* the same buffers by other names */

static const kiln_op sum = {.name = "sum", .cls = KILN_CLASS_REDUCE};

/* A count, whether it is above a limit, and elements that are negated where it is: y = found ? y : -y. What the second
 * kernel makes is a number; all of it is one chain. */
typedef struct gated {
    made x;
    kiln_instr number[2], update[2];
    kiln_store kept[2];
} gated;

static kiln_operand single(int32_t buffer, kiln_dtype dtype)
{
    return (kiln_operand){.buffer = buffer, .dtype = (uint8_t)dtype};
}

static void start_gated(gated *g)
{
    made *x = &g->x;
    memset(g, 0, sizeof *g);
    for (int b = 0; b < BUFFERS; b++)
        x->buffers[b] = (kiln_buffer){.place = KILN_IN_ARENA, .offset = 1024 * b, .bytes = 1024};
    x->buffers[LIMIT].place = KILN_IN_SLOT;
    x->plan = (kiln_plan){.kernels = x->kernels, .buffers = x->buffers, .nbuffers = BUFFERS, .nslots = 1};
    kiln_group *count = add_group(x, &sum);
    count->count = OUT;
    count->nloads = 1;
    count->loads[0] = vector(OTHER, KILN_I64, OUT);
    count->reduces = true;
    count->reduce_to = single(COUNTED, KILN_I64);
    kiln_group *verdict = add_group(x, NULL);
    verdict->count = 1;
    verdict->nloads = 2;
    verdict->loads[0] = single(LIMIT, KILN_I64);
    verdict->loads[1] = single(COUNTED, KILN_I64);
    verdict->instrs = g->number; /* the first is of no use to whoever wants the second */
    g->number[0] = (kiln_instr){.row = KILN_PW_neg, .dtype = KILN_I64, .from = KILN_I64, .src = {0, -1, -1}, .dst = 2};
    g->number[1] = (kiln_instr){.row = KILN_PW_gt, .dtype = KILN_BOOL, .from = KILN_I64, .src = {1, 0, -1}, .dst = 3};
    verdict->ninstrs = 2;
    verdict->stores = g->kept;
    verdict->nstores = 1;
    g->kept[0] = (kiln_store){.src = 3, .to = single(FOUND, KILN_BOOL)};
    kiln_group *update = add_group(x, NULL);
    update->count = OUT;
    update->nloads = 2;
    update->loads[0] = single(FOUND, KILN_BOOL);
    update->loads[1] = vector(MANY, KILN_F32, OUT);
    update->instrs = g->update;
    update->ninstrs = 2;
    g->update[0] = (kiln_instr){.row = KILN_PW_neg, .dtype = KILN_F32, .from = KILN_F32, .src = {1, -1, -1}, .dst = 2};
    g->update[1] = (kiln_instr){.row = KILN_PW_where, .dtype = KILN_F32, .from = KILN_F32, .src = {0, 1, 2}, .dst = 3};
    update->nstores = 1;
    update->stores[0] = (kiln_store){.src = 3, .to = vector(MANY, KILN_F32, OUT)};
}

/* The reader has the number's loads, of which the first takes the place of what it read, and its one instruction. */
static void test_number(void **state)
{
    (void)state;
    gated g;
    start_gated(&g);
    kiln_plan *p = through(&g.x);
    assert_non_null(p);
    assert_true(!p->kernels[1].group && !p->kernels[1].op);
    const kiln_group *u = p->kernels[2].group;
    assert_int_equal(u->nloads, 3);
    assert_int_equal(u->loads[0].buffer, LIMIT);
    assert_int_equal(u->loads[1].buffer, MANY);
    assert_int_equal(u->loads[2].buffer, COUNTED);
    assert_int_equal(u->loads[2].dtype, KILN_I64);
    assert_int_equal(u->ninstrs, 3);
    assert_int_equal(u->instrs[0].row, KILN_PW_gt);
    assert_int_equal(u->instrs[0].src[0] * 10 + u->instrs[0].src[1], 20);
    assert_int_equal(u->instrs[0].src[2], -1);
    assert_int_equal(u->instrs[0].dst, 3);
    assert_int_equal(u->instrs[1].row, KILN_PW_neg);
    assert_int_equal(u->instrs[1].src[0] * 10 + u->instrs[1].dst, 14);
    assert_int_equal(u->instrs[2].src[0] * 100 + u->instrs[2].src[1] * 10 + u->instrs[2].src[2], 314);
    assert_int_equal(u->instrs[2].dst, 5);
    assert_int_equal(u->stores[0].src, 5);
    assert_int_equal(g.x.kernels[2].group->nloads, 2); /* the plan that was given is as it was */
    kiln_cuda_plan_free(p);
}

/* Its kernel stays where something else needs it, and is what is read where its operands are not what they were, or are
 * no counts of the same chain. */
static void test_numbers_that_stay(void **state)
{
    (void)state;
    gated g;
    start_gated(&g);
    g.kept[1] = (kiln_store){.src = 2, .to = single(OTHER, KILN_I64)};
    g.x.kernels[1].group->nstores = 2;
    g.x.buffers[OTHER].place = KILN_IN_OUTPUT;
    kiln_plan *p = through(&g.x);
    assert_non_null(p);
    assert_non_null(p->kernels[1].group);
    assert_int_equal(p->kernels[2].group->nloads, 3);
    kiln_cuda_plan_free(p);
    for (int which = 0; which < 5; which++) {
        start_gated(&g);
        switch (which) {
        case 0: g.x.kernels[2].group->stores[0].to.buffer = LIMIT; break;       /* the reader writes over it */
        case 1: g.x.buffers[FOUND].offset = g.x.buffers[COUNTED].offset; break; /* its maker does */
        case 2: g.x.kernels[0].group->reduce_to.buffer = OTHER; break;
        case 3: g.x.part.first = 1; break;
        default: g.number[1].dtype = g.kept[0].to.dtype = KILN_F16; break; /* rounded where it is stored */
        }
        assert_null(through(&g.x));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_product),       cmocka_unit_test(test_written_in_between),
                                       cmocka_unit_test(test_other_readers), cmocka_unit_test(test_other_casts),
                                       cmocka_unit_test(test_number),        cmocka_unit_test(test_numbers_that_stay)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include <stdio.h>

int main(void)
{
    printf("skipped: CUDA's headers are not there\n");
    return TEST_SKIPPED;
}
#endif
