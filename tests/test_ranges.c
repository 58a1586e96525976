/* The allocator below the CUDA device's memory, on any machine: random blocks against an oracle that knows what every
 * byte and every granule is used for. */
#include "device/cuda/memory/holes.c"
#include "device/cuda/memory/ranges.c"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>
#include "support/train.h"

enum { GRANULE = 4096, GRANULES = 256, BLOCKS = 128, UNIT = KILN_RANGES_ALIGN, UNITS = GRANULE * GRANULES / UNIT };

typedef struct machine { /* what maps granules */
    bool mapped[GRANULES];
    int64_t count, most, wrong; /* `wrong`: mapped twice, or unmapped without having been mapped */
} machine;

static bool map(void *owner, uint64_t first, uint64_t count)
{
    machine *m = owner;
    if (m->count + (int64_t)count > m->most)
        return false;
    for (uint64_t g = first; g < first + count; g++) {
        m->wrong += g >= GRANULES || m->mapped[g];
        m->mapped[g % GRANULES] = true;
    }
    m->count += (int64_t)count;
    return true;
}

static void unmap(void *owner, uint64_t first, uint64_t count)
{
    machine *m = owner;
    for (uint64_t g = first; g < first + count; g++) {
        m->wrong += g >= GRANULES || !m->mapped[g];
        m->mapped[g % GRANULES] = false;
    }
    m->count -= (int64_t)count;
}

static void make(kiln_ranges *r, machine *m, int64_t most)
{
    *m = (machine){.most = most};
    assert_true(kiln_ranges_init(r, (uint64_t)GRANULE * GRANULES, GRANULE, (kiln_granules){m, map, unmap}));
}

typedef struct look { /* at holes, one after the other */
    const machine *m;
    uint64_t end; /* of the last */
    int64_t seen;
} look;

static void check_hole(void *context, kiln_hole *hole)
{
    look *l = context;
    assert_true(hole->bytes > 0 && hole->ready <= hole->bytes);
    assert_true(!l->seen || l->end < hole->offset); /* in order, and absorbed */
    l->end = hole->offset + hole->bytes;
    l->seen++;
    for (uint64_t at = hole->offset; at < hole->offset + hole->ready; at += UNIT)
        assert_true(l->m->mapped[at / GRANULE]);
    if (hole->ready < hole->bytes)
        assert_false(l->m->mapped[(hole->offset + hole->ready) / GRANULE]);
}

static void check_figures(kiln_ranges *r, const machine *m)
{
    look l = {m, 0, 0};
    assert_int_equal(m->wrong, 0);
    assert_int_equal(r->mapped, m->count * GRANULE);
    kiln_holes_each(&r->holes, check_hole, &l);
    assert_int_equal(l.seen, r->holes.count);
    assert_true(l.seen <= r->blocks + 1 && l.seen < r->holes.capacity);
}

static void test_blocks_share_granules(void **state)
{
    (void)state;
    kiln_ranges r;
    machine m;
    uint64_t a, b, c;
    make(&r, &m, GRANULES);
    assert_true(kiln_ranges_take(&r, 1, &a) && kiln_ranges_take(&r, 1000, &b) && kiln_ranges_take(&r, 2 * GRANULE, &c));
    assert_true(a == 0 && b == UNIT && c == UNIT + 1024);
    assert_int_equal(m.count, 3);
    kiln_ranges_give(&r, c, 2 * GRANULE);
    assert_int_equal(m.count, 3); /* until it is trimmed */
    kiln_ranges_trim(&r);
    assert_int_equal(m.count, 1); /* the first two blocks hold on to theirs */
    uint64_t again;
    assert_true(kiln_ranges_take(&r, 2 * GRANULE, &again));
    assert_int_equal(again, c);
    kiln_ranges_give(&r, a, 1);
    kiln_ranges_give(&r, again, 2 * GRANULE);
    kiln_ranges_give(&r, b, 1000);
    kiln_ranges_trim(&r);
    assert_int_equal(m.count, 0);
    check_figures(&r, &m);
    kiln_ranges_free(&r);
}

/* Room that has memory is taken before room that has none, even if that would fit better. */
static void test_memory_is_used_first(void **state)
{
    (void)state;
    kiln_ranges r;
    machine m;
    uint64_t at[5];
    make(&r, &m, GRANULES);
    static const uint64_t sizes[5] = {GRANULE, 2 * GRANULE, GRANULE, 4 * GRANULE, GRANULE};
    for (int i = 0; i < 5; i++)
        assert_true(kiln_ranges_take(&r, sizes[i], &at[i]));
    kiln_ranges_give(&r, at[1], sizes[1]);
    kiln_ranges_trim(&r); /* a hole of two granules without memory */
    kiln_ranges_give(&r, at[3], sizes[3]);
    uint64_t offset;
    assert_true(kiln_ranges_take(&r, 2 * GRANULE, &offset));
    assert_int_equal(offset, at[3]);
    assert_true(kiln_ranges_take(&r, 2 * GRANULE, &offset));
    assert_int_equal(offset, at[3] + 2 * GRANULE);
    assert_int_equal(m.count, 7);
    assert_true(kiln_ranges_take(&r, 2 * GRANULE, &offset)); /* then the first hole */
    assert_int_equal(offset, at[1]);
    check_figures(&r, &m);
    kiln_ranges_free(&r);
    assert_int_equal(m.count, 0);
}

/* What cannot be had changes nothing, also when a part of it could be mapped. */
static void test_refusals(void **state)
{
    (void)state;
    kiln_ranges r;
    machine m;
    uint64_t a, b, offset = 77;
    make(&r, &m, 6);
    assert_true(kiln_ranges_take(&r, GRANULE, &a) && kiln_ranges_take(&r, GRANULE, &b));
    kiln_ranges_give(&r, a, GRANULE);
    kiln_ranges_trim(&r);
    assert_int_equal(m.count, 1);
    assert_false(kiln_ranges_take(&r, 6 * GRANULE, &offset));
    assert_false(kiln_ranges_take(&r, 0, &offset));
    assert_false(kiln_ranges_take(&r, UINT64_MAX, &offset));
    assert_false(kiln_ranges_take(&r, UINT64_MAX - 2 * UNIT, &offset));
    assert_false(kiln_ranges_take(&r, (uint64_t)GRANULE * GRANULES + 1, &offset));
    assert_int_equal(offset, 77);
    assert_int_equal(m.count, 1);
    assert_int_equal(r.blocks, 1);
    check_figures(&r, &m);
    kiln_ranges_give(&r, b, GRANULE);
    assert_true(kiln_ranges_take(&r, 6 * GRANULE, &offset));
    assert_int_equal(offset, 0); /* around the granule that had memory: two runs were mapped */
    check_figures(&r, &m);
    kiln_ranges_give(&r, offset, 6 * GRANULE);
    m.most = 7;
    assert_false(kiln_ranges_take(&r, 8 * GRANULE, &offset));
    kiln_ranges_trim(&r);
    assert_int_equal(m.count, 0);
    kiln_ranges_free(&r);
}

/* ---- Many holes ---- */

/* How deep the tree is below a node. */
static int depth(const kiln_holes *h, int64_t i)
{
    if (!i)
        return 0;
    int left = depth(h, h->nodes[i].left), right = depth(h, h->nodes[i].right);
    return 1 + (left > right ? left : right);
}

/* Every other of 100,000 blocks is given back: what looking for a place takes is the depth of the tree. */
static void test_many_holes(void **state)
{
    (void)state;
    enum { MANY = 100000, BIG = UNIT * MANY };
    kiln_ranges r;
    machine m = {.most = 1};
    uint64_t at;
    assert_true(kiln_ranges_init(&r, 2 * BIG, 2 * BIG, (kiln_granules){&m, map, unmap}));
    for (uint64_t i = 0; i < MANY; i++)
        assert_true(kiln_ranges_take(&r, UNIT, &at) && at == i * UNIT);
    for (uint64_t i = 0; i < MANY; i += 2)
        kiln_ranges_give(&r, i * UNIT, UNIT);
    assert_int_equal(r.holes.count, MANY / 2 + 1);
    assert_in_range(depth(&r.holes, r.holes.root), 1, 64);         /* 17 at best */
    assert_true(kiln_ranges_take(&r, 2 * UNIT, &at) && at == BIG); /* behind all of them */
    kiln_ranges_give(&r, at, 2 * UNIT);
    for (uint64_t i = 0; i < MANY; i += 2)
        assert_true(kiln_ranges_take(&r, 1, &at) && at == i * UNIT);
    for (uint64_t i = 0; i < MANY; i++)
        kiln_ranges_give(&r, i * UNIT, UNIT);
    assert_int_equal(r.holes.count, 1);
    kiln_ranges_free(&r);
    assert_int_equal(m.count, 0);
}

/* ---- Random blocks ---- */

typedef struct oracle {
    kiln_ranges r;
    machine m;
    uint8_t owner[UNITS]; /* which block has the unit, plus one */
    uint64_t offset[BLOCKS], bytes[BLOCKS];
} oracle;

static void check_block(oracle *o, int i)
{
    assert_true(o->offset[i] % UNIT == 0 && o->offset[i] + o->bytes[i] <= (uint64_t)GRANULE * GRANULES);
    for (uint64_t u = o->offset[i] / UNIT; u * UNIT < o->offset[i] + o->bytes[i]; u++) {
        assert_int_equal(o->owner[u], 0);
        assert_true(o->m.mapped[u * UNIT / GRANULE]);
        o->owner[u] = (uint8_t)(i + 1);
    }
}

static void give(oracle *o, int i)
{
    for (uint64_t u = o->offset[i] / UNIT; u * UNIT < o->offset[i] + o->bytes[i]; u++)
        o->owner[u] = 0;
    kiln_ranges_give(&o->r, o->offset[i], o->bytes[i]);
    o->bytes[i] = 0;
}

/* After trimming, exactly the granules that some block touches have memory. */
static void check_trimmed(oracle *o)
{
    kiln_ranges_trim(&o->r);
    for (int g = 0; g < GRANULES; g++) {
        bool touched = false;
        for (int u = 0; u < GRANULE / UNIT; u++)
            touched |= o->owner[g * (GRANULE / UNIT) + u] != 0;
        assert_int_equal(o->m.mapped[g], touched);
    }
}

/* A refusal is right only if no hole is large enough, or memory was short: what is free in all tells. */
static void check_refusal(const oracle *o, uint64_t bytes)
{
    uint64_t run = 0, longest = 0;
    for (int u = 0; u < UNITS; u++) {
        run = o->owner[u] ? 0 : run + 1;
        longest = run > longest ? run : longest;
    }
    uint64_t granules = bytes / GRANULE + 2;
    assert_true(longest * UNIT < bytes || o->m.count + (int64_t)granules > o->m.most);
}

static uint32_t below(uint32_t *seed, uint32_t n)
{
    return (uint32_t)((test_number(seed) + 1) / 2 * (float)n) % n;
}

static void test_random_blocks(void **state)
{
    (void)state;
    static oracle o;
    for (uint32_t round = 0; round < 6; round++) {
        uint32_t seed = round + 1, refused = 0;
        memset(&o, 0, sizeof o);
        make(&o.r, &o.m, round % 2 ? 120 : GRANULES);
        for (int n = 0; n < 20000; n++) {
            int i = (int)below(&seed, BLOCKS);
            if (o.bytes[i])
                give(&o, i);
            else {
                uint64_t bytes = 1 + below(&seed, below(&seed, 8) ? 3 * GRANULE : 24 * GRANULE);
                if (kiln_ranges_take(&o.r, bytes, &o.offset[i])) {
                    o.bytes[i] = bytes;
                    check_block(&o, i);
                } else {
                    refused++;
                    check_refusal(&o, bytes);
                }
            }
            check_figures(&o.r, &o.m);
            if (n % 500 == 499)
                check_trimmed(&o);
        }
        assert_true(refused > 0);
        for (int i = 0; i < BLOCKS; i++)
            if (o.bytes[i])
                give(&o, i);
        check_trimmed(&o);
        assert_int_equal(o.m.count, 0);
        assert_int_equal(o.r.holes.count, 1);
        kiln_ranges_free(&o.r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks_share_granules),
                                       cmocka_unit_test(test_memory_is_used_first), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_many_holes), cmocka_unit_test(test_random_blocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
