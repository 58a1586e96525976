/* Gradients of attention that are joined: what makes them writes each to its place in the whole (plan/parts.c), which
 * has the bits of the gradients made one by one and joined by hand. Where somebody else reads a gradient, or the whole
 * has it twice, or parts come from elsewhere, they are copied. */
#include "support/core.h"

/* ctest: name=plain env=KILN_ISA=plain */
/* ctest: name=eager env=KILN_EAGER=1 */
/* ctest: name=threads env=KILN_NUM_THREADS=3 */

enum { MOST_PARTS = 4, MOST_BYTES = 1 << 16, ROUNDS = 150 };

static uint32_t state_of_draws;
static int draw(int n) /* one of 0 … n - 1 */
{
    state_of_draws = state_of_draws * 1664525u + 1013904223u;
    return (int)((state_of_draws >> 16) % (uint32_t)n);
}

/* q [N, H, L, E], k [N, H, S, E], v [N, H, S, V], and the gradient of what comes out. */
typedef struct problem {
    int64_t n, h, l, s, e, v;
    kiln_dtype dtype;
    bool causal;
    kiln_tensor *in[3], *gy;
} problem;

/* Heads in rows of one another, as they are in what q, k and v are usually slices of. */
static kiln_tensor *heads(int seed, int64_t n, int64_t l, int64_t h, int64_t e, kiln_dtype dtype)
{
    kiln_tensor *t = kiln_cast(core_data(seed, KILN_SHAPE(n, l, h, e)), dtype);
    return kiln_keep(kiln_transpose(t, 1, 2));
}

static void draw_operands(problem *p, int seed)
{
    kiln_step {
        p->in[0] = heads(seed, p->n, p->l, p->h, p->e, p->dtype);
        p->in[1] = heads(seed + 1, p->n, p->s, p->h, p->e, p->dtype);
        p->in[2] = heads(seed + 2, p->n, p->s, p->h, p->v, p->dtype);
        p->gy = heads(seed + 3, p->n, p->l, p->h, p->v, p->dtype);
    }
    assert_non_null(p->gy);
}

static void release_operands(problem *p)
{
    for (int i = 0; i < 3; i++)
        kiln_release(p->in[i]);
    kiln_release(p->gy);
}

static void record_gradients(const problem *p, kiln_tensor **g)
{
    kiln_tensor *in[3];
    for (int i = 0; i < 3; i++)
        in[i] = kiln_requires_grad(kiln_mul_scalar(p->in[i], 1), true);
    kiln_tensor *y = kiln_scaled_dot_product_attention(in[0], in[1], in[2], NULL, 0, p->causal, 0);
    assert_true(kiln_grad(y, p->gy, in, 3, g));
}

/* Gradient `which` as a part: heads apart, or one after the other in a row, as it lies in memory. */
static kiln_tensor *part_of(const problem *p, kiln_tensor *g, bool in_rows)
{
    kiln_tensor *t = kiln_transpose(g, 1, 2); /* [N, L, H, E] */
    return in_rows ? kiln_reshape(t, KILN_SHAPE(p->n, t->shape[1], t->shape[2] * t->shape[3])) : t;
}

static int64_t bytes_of(kiln_tensor *t)
{
    return kiln_numel(t) * (int64_t)kiln_dtype_size(kiln_dtype_of(t));
}

/* A row of each part in turn; rows are counted along the dims before the one they are joined along. Bytes in all. */
static int64_t join_by_hand(char *to, kiln_tensor *const *parts, int n, int dim)
{
    static char bytes[MOST_PARTS][MOST_BYTES];
    int64_t rows = 1, filled = 0;
    for (int d = 0; d < dim; d++)
        rows *= parts[0]->shape[d];
    for (int i = 0; i < n; i++) {
        assert_true(bytes_of(parts[i]) <= MOST_BYTES);
        assert_true(kiln_read(parts[i], bytes[i], (size_t)bytes_of(parts[i])));
    }
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < n; i++) {
            int64_t row = bytes_of(parts[i]) / rows;
            memcpy(to + filled, bytes[i] + r * row, (size_t)row);
            filled += row;
        }
    return filled;
}

/* Gradients `which` joined along a dim; `shared`: somebody else reads the first of them, too. */
typedef struct order {
    int which[MOST_PARTS], n, dim;
    bool in_rows, shared;
} order;

/* Whether the plan of what is pending has a kernel that joins. */
static bool joins_by_kernel(void)
{
    char *plan = kiln_plan_describe();
    assert_non_null(plan);
    bool joins = strstr(plan, "  cat -> ");
    kiln_string_free(plan);
    return joins;
}

/* True if a kernel joined them. */
static bool check(const problem *p, const order *o, int round)
{
    static char want[MOST_PARTS * MOST_BYTES], got[MOST_PARTS * MOST_BYTES];
    kiln_tensor *g[3], *parts[MOST_PARTS], *whole = NULL, *shared = NULL;
    int64_t bytes = 0;
    bool joins = false;
    kiln_step {
        record_gradients(p, g);
        for (int i = 0; i < o->n; i++)
            parts[i] = kiln_keep(kiln_contiguous(part_of(p, g[o->which[i]], o->in_rows)));
    }
    bytes = join_by_hand(want, parts, o->n, o->dim);
    for (int i = 0; i < o->n; i++)
        kiln_release(parts[i]);
    kiln_step {
        record_gradients(p, g);
        for (int i = 0; i < o->n; i++)
            parts[i] = part_of(p, g[o->which[i]], o->in_rows);
        whole = kiln_keep(kiln_cat(o->n, parts, o->dim));
        shared = o->shared ? kiln_keep(kiln_sum_all(g[o->which[0]])) : NULL;
        assert_non_null(whole);
        joins = !core_eager() && joins_by_kernel();
    }
    assert_int_equal(bytes_of(whole), bytes);
    assert_true(kiln_read(whole, got, (size_t)bytes));
    if (memcmp(got, want, (size_t)bytes))
        fail_msg("round %d: the whole has other bits than its parts", round);
    kiln_release(whole);
    kiln_release(shared);
    return joins;
}

static const problem plain = {.n = 2, .h = 3, .l = 5, .s = 5, .e = 4, .v = 4, .dtype = KILN_F32};

/* ---- Which are joined in place ---- */

static void test_in_place(void **state)
{
    static const order orders[] = {
        {{0, 1, 2}, 3, 2, true, false}, {{2, 0, 1}, 3, 2, true, false},  {{1, 0}, 2, 0, true, false},
        {{0, 1, 2}, 3, 1, true, false}, {{2, 1, 0}, 3, 3, false, false}, {{0, 2}, 2, 2, false, false},
        {{1}, 1, 2, true, false},
    };
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_F64, KILN_BF16, KILN_F16};
    (void)state;
    kiln_scope
        for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
            for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
                problem p = plain;
                p.dtype = dtypes[t];
                p.causal = i % 2;
                draw_operands(&p, (int)(10 * i));
                assert_false(check(&p, &orders[i], (int)i));
                release_operands(&p);
            }
}

static void test_copied(void **state)
{
    static const order orders[] = {
        {{0, 1, 2}, 3, 2, true, true}, {{0, 1, 0}, 3, 2, true, false}, {{2, 2}, 2, 0, true, false}};
    (void)state;
    kiln_scope
        for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
            problem p = plain;
            draw_operands(&p, (int)i);
            assert_int_equal(check(&p, &orders[i], (int)i), !core_eager());
            release_operands(&p);
        }
}

/* Parts that not one operation makes would keep the whole in memory from the first of them on. */
static void test_two_makers(void **state)
{
    (void)state;
    skip_if_eager();
    kiln_scope {
        problem p = plain, q = plain;
        kiln_tensor *g[3], *other[3], *whole = NULL;
        draw_operands(&p, 1);
        draw_operands(&q, 2);
        kiln_step {
            record_gradients(&p, g);
            record_gradients(&q, other);
            whole = kiln_keep(kiln_cat(2, (kiln_tensor *[]){part_of(&p, g[0], true), part_of(&q, other[0], true)}, 2));
            assert_true(joins_by_kernel());
        }
        kiln_release(whole);
        release_operands(&p);
        release_operands(&q);
    }
}

/* ---- Whatever is drawn ---- */

static order draw_order(const problem *p)
{
    order o = {.n = 1 + draw(MOST_PARTS), .in_rows = draw(2), .shared = draw(4) == 0};
    for (int i = 0; i < o.n; i++)
        o.which[i] = draw(3);
    if (o.n == 3 && draw(2))
        for (int i = 0, first = draw(3); i < 3; i++)
            o.which[i] = (first + i) % 3;
    bool alike = p->l == p->s;
    for (int i = 1; i < o.n && !alike; i++)
        o.n = (o.which[i] == 0) == (o.which[0] == 0) ? o.n : i; /* of one length */
    o.dim = p->e == p->v ? draw(o.in_rows ? 3 : 4) : o.in_rows ? 2 : 3;
    return o;
}

static void test_random(void **state)
{
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_F64, KILN_BF16, KILN_F16};
    static const int64_t sizes[] = {1, 2, 5, 17, 33};
    int joined = 0;
    (void)state;
    state_of_draws = 3;
    for (int round = 0; round < ROUNDS; round++)
        kiln_scope {
            problem p = {.n = 1 + draw(2), .h = 1 + draw(3), .dtype = dtypes[draw(4)], .causal = draw(2)};
            p.l = sizes[draw(5)];
            p.s = draw(3) ? p.l : sizes[draw(5)];
            p.e = sizes[draw(4)];
            p.v = draw(3) ? p.e : sizes[draw(4)];
            order o = draw_order(&p);
            draw_operands(&p, round);
            joined += check(&p, &o, round);
            release_operands(&p);
        }
    assert_true(core_eager() || (joined > ROUNDS / 10 && joined < ROUNDS - ROUNDS / 10));
}

/* ---- What it is for ---- */

enum { N = 2, L = 9, H = 2, E = 8, WIDTH = H * E };

static kiln_tensor *attend(kiln_tensor *x, kiln_tensor *w)
{
    kiln_tensor *parts[3];
    assert_int_equal(kiln_chunk(kiln_matmul(x, w), 3, 2, parts, 3), 3);
    for (int i = 0; i < 3; i++)
        parts[i] = kiln_transpose(kiln_reshape(parts[i], KILN_SHAPE(N, L, H, E)), 1, 2);
    return kiln_scaled_dot_product_attention(parts[0], parts[1], parts[2], NULL, 0, true, 0);
}

/* A layer whose q, k and v are slices of one product: nothing is copied on the way back, also where it is computed
 * again. */
static void test_layer(void **state)
{
    static float got[2][WIDTH * 3 * WIDTH];
    (void)state;
    for (int again = 0; again < 2; again++)
        kiln_scope {
            kiln_tensor *x = core_data(1, KILN_SHAPE(N, L, WIDTH)), *y = NULL;
            kiln_tensor *w = kiln_requires_grad(core_data(2, KILN_SHAPE(WIDTH, 3 * WIDTH)), true);
            kiln_step {
                if (again)
                    kiln_recomputed y = attend(x, w);
                else
                    y = attend(x, w);
                assert_true(kiln_backward(kiln_sum_all(kiln_square(y))));
                assert_true(core_eager() || !joins_by_kernel());
            }
            assert_true(kiln_read(kiln_grad_of(w), got[again], sizeof got[again]));
        }
    assert_memory_equal(got[0], got[1], sizeof got[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_in_place), core_test(test_copied), core_test(test_two_makers),
        core_test(test_random),   core_test(test_layer),
    };
    return CORE_MAIN(tests);
}
