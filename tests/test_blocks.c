/* Blocks that a pool keeps: the right one is found whatever was added before it, and the oldest one. Compared with a
 * list that is searched from one end to the other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/alloc.h"
#include "device/blocks.h"

enum { MOST = 300, TURNS = 60000, SIZES = 40 };

static uint32_t next_number(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* ---- The list, oldest first ---- */

typedef struct list {
    kiln_block at[MOST];
    int n;
} list;

static kiln_block remove_at(list *l, int i)
{
    kiln_block block = l->at[i];
    for (l->n--; i < l->n; i++)
        l->at[i] = l->at[i + 1];
    return block;
}

/* -1: none */
static int best_of(const list *l, size_t least, size_t most)
{
    int best = -1;
    for (int i = 0; i < l->n; i++) {
        const kiln_block *b = &l->at[i], *other = best < 0 ? NULL : &l->at[best];
        if (b->size >= least && b->size <= most &&
            (!other || b->size < other->size || (b->size == other->size && b->address < other->address)))
            best = i;
    }
    return best;
}

static void assert_same(const kiln_block *a, const kiln_block *b)
{
    assert_true(a->address == b->address && a->size == b->size && a->bytes == b->bytes);
}

static void add(kiln_blocks *b, list *l, uint32_t *seed, int turn)
{
    size_t size = 64 * (1 + next_number(seed) % SIZES);
    kiln_block block = {(kiln_address)next_number(seed) << 32 | (kiln_address)turn, size - 5, size};
    assert_true(kiln_blocks_reserve(b, l->n + 1));
    kiln_blocks_add(b, block);
    l->at[l->n++] = block;
}

static void take(kiln_blocks *b, list *l, uint32_t *seed)
{
    size_t least = 64 * (next_number(seed) % SIZES), most = least + least / 2;
    kiln_block got;
    int best = best_of(l, least, most);
    assert_true(kiln_blocks_take(b, least, most, &got) == (best >= 0));
    if (best >= 0)
        assert_same(&got, &(kiln_block){remove_at(l, best).address, got.bytes, got.size});
}

static void take_oldest(kiln_blocks *b, list *l)
{
    kiln_block got, want;
    assert_true(kiln_blocks_take_oldest(b, &got) == (l->n > 0));
    if (l->n) {
        want = remove_at(l, 0);
        assert_same(&got, &want);
    }
}

static void test_random(void **state)
{
    (void)state;
    static list l;
    kiln_blocks b = {0};
    uint32_t seed = 1;
    for (int turn = 0; turn < TURNS; turn++) {
        uint32_t what = next_number(&seed) % 8;
        uint32_t adds = turn / 4000 % 2 ? 3 : 5; /* now it grows, now it shrinks */
        if (what < adds && l.n < MOST)
            add(&b, &l, &seed, turn);
        else if (what == 7)
            take_oldest(&b, &l);
        else
            take(&b, &l, &seed);
        assert_int_equal(b.count, l.n);
    }
    while (l.n)
        take_oldest(&b, &l);
    take_oldest(&b, &l);
    assert_int_equal(b.count, 0);
    kiln_blocks_free(&b);
}

static int depth_below(const kiln_blocks *b, int64_t i)
{
    if (!i)
        return 0;
    int left = depth_below(b, b->nodes[i].left), right = depth_below(b, b->nodes[i].right);
    return 1 + (left > right ? left : right);
}

/* Sizes that only grow, or only shrink, and all equal ones make no long paths: 17 at least, some 40 as a rule. */
static void test_depth(void **state)
{
    (void)state;
    enum { MANY = 100000 };
    for (int kind = 0; kind < 4; kind++) {
        kiln_blocks b = {0};
        kiln_block got;
        assert_true(kiln_blocks_reserve(&b, MANY));
        for (int i = 0; i < MANY; i++) {
            size_t size = kind == 0 ? (size_t)i : kind == 1 ? (size_t)(MANY - i) : 1;
            kiln_blocks_add(&b, (kiln_block){(kiln_address)(kind == 3 ? MANY - i : i + 1) * 64, size, size});
        }
        assert_true(depth_below(&b, b.root) < 80);
        for (int i = 0; i < MANY / 2; i++) {
            assert_true(kiln_blocks_take(&b, 0, SIZE_MAX, &got));
            assert_true(got.address == 64 * (kiln_address)(kind == 1 ? MANY - i : i + 1));
            assert_true(kiln_blocks_take_oldest(&b, &got));
            kiln_blocks_add(&b, got);
        }
        assert_int_equal(b.count, MANY / 2);
        assert_true(depth_below(&b, b.root) < 80);
        kiln_blocks_free(&b);
    }
}

/* Without memory for one more nothing has changed. */
static void test_no_memory(void **state)
{
    (void)state;
    kiln_blocks b = {0};
    kiln_block got;
    assert_true(kiln_blocks_reserve(&b, 1));
    kiln_blocks_add(&b, (kiln_block){64, 10, 64});
    kiln_alloc_fail_after(0);
    assert_false(kiln_blocks_reserve(&b, 100000));
    assert_int_equal(kiln_last_error()->code, KILN_E_MEMORY);
    kiln_error_clear();
    assert_true(kiln_blocks_take(&b, 10, 64, &got));
    assert_true(got.address == 64 && got.bytes == 10);
    kiln_blocks_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_depth),
                                       cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
