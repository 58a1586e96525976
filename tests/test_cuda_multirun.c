/* Several runs of a chain in one launch, without a device: where their words and addresses lie, and when they are
 * launched. The plugin keeps its symbols to itself, so the file is compiled in. */
#include "device/cuda/chain/multirun.c"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { HEAD = 48 };

static uint64_t address(int set, int64_t i)
{
    return (uint64_t)(set + 1) << 40 | (uint64_t)i;
}

static uint64_t word(int run, int64_t i)
{
    return (uint64_t)(run + 1) << 20 | (uint64_t)i;
}

static bool add(kiln_cuda_multirun *b, int run, int set)
{
    for (int64_t i = 0; i < b->npointers; i++)
        b->given[i] = address(set, i);
    uint64_t *words = kiln_cuda_multirun_add(b);
    for (int64_t i = 0; words && i < b->nwords; i++)
        words[i] = word(run, i);
    return words != NULL;
}

/* As a kernel finds them: void *data[most_sets][npointers]; uint64_t words[most][nwords]; uint8_t set[most]. */
static void check_run(const kiln_cuda_multirun *b, int run, int set)
{
    const uint64_t *data = (const uint64_t *)(const void *)(b->parameters + b->head);
    const uint64_t *words = data + b->most_sets * b->npointers;
    const uint8_t *sets = (const uint8_t *)(words + b->most * b->nwords);
    assert_true(sets + b->most <= b->parameters + b->bytes);
    assert_true(sets[run] < b->sets);
    for (int64_t i = 0; i < b->npointers; i++)
        assert_int_equal(data[sets[run] * b->npointers + i], address(set, i));
    for (int64_t i = 0; i < b->nwords; i++)
        assert_int_equal(words[run * b->nwords + i], word(run, i));
}

static void check_batch(int64_t npointers, int64_t nwords, int most)
{
    kiln_cuda_multirun b;
    assert_true(kiln_cuda_multirun_init(&b, HEAD, npointers, nwords, most));
    assert_true(b.most <= most);
    assert_true(b.most == 0 || (b.most_sets >= 1 && b.bytes <= KILN_CUDA_MOST_PARAMETERS));
    assert_true(b.most > 0 || npointers + nwords > (KILN_CUDA_MOST_PARAMETERS - HEAD) / 8 - 2); /* one has its room */
    for (int round = 0; round < 2 && b.most; round++) {
        for (int run = 0; run < b.most; run++)
            assert_true(add(&b, run, run % b.most_sets));
        assert_false(add(&b, b.most, 0)); /* full */
        for (int run = 0; run < b.most; run++)
            check_run(&b, run, run % b.most_sets);
        kiln_cuda_multirun_clear(&b);
    }
    kiln_cuda_multirun_free(&b);
}

static void test_runs_find_what_is_theirs(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2, 7, 60, 104, 480, 900, 1990, 3000, 3990};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    for (int i = 0; i < SIZES * SIZES; i++)
        for (int most = 1; most <= KILN_CUDA_MOST_RUNS; most += 5)
            check_batch(sizes[i % SIZES], sizes[i / SIZES] - 1, most);
    check_batch(5000, 1, KILN_CUDA_MOST_RUNS); /* too many */
    check_batch(1, 5000, 1);
}

static void test_room(void **state)
{
    (void)state;
    kiln_cuda_multirun b;
    assert_true(kiln_cuda_multirun_init(&b, HEAD, 49, 44, KILN_CUDA_MOST_RUNS)); /* a network of three layers */
    assert_int_equal(b.most, KILN_CUDA_ENOUGH_RUNS);
    assert_int_equal(b.most_sets, KILN_CUDA_MOST_SETS);
    for (int set = 0; set < b.most_sets; set++)
        assert_true(add(&b, set, set));
    assert_false(add(&b, b.most_sets, b.most_sets)); /* addresses that are new */
    assert_true(add(&b, b.most_sets, 1));
    check_run(&b, b.most_sets, 1);
    kiln_cuda_multirun_free(&b);
    assert_true(kiln_cuda_multirun_init(&b, HEAD, 3900, 20, KILN_CUDA_MOST_RUNS)); /* one set, and few runs */
    assert_int_equal(b.most_sets, 1);
    assert_true(b.most >= 1 && b.most < KILN_CUDA_MOST_RUNS);
    kiln_cuda_multirun_free(&b);
}

/* A device that takes `work` for a run, and a host that takes `gap` to give one and `launching` to launch some;
 * microseconds. */
typedef struct machine {
    kiln_cuda_multirun b;
    kiln_cuda_pace pace;
    int64_t work, gap, launching, now, free_at; /* free_at: when all that was launched is over */
    int64_t begins[4097];                       /* by run that was launched, from 1 on */
    uint64_t launched, launches, largest;
} machine;

static uint64_t done(const machine *m)
{
    uint64_t run = m->launched;
    while (run > 0 && m->begins[run] > m->now)
        run--;
    return run ? run - 1 : 0;
}

static void launch(machine *m)
{
    m->now += m->launching;
    m->largest = (uint64_t)m->b.runs > m->largest ? (uint64_t)m->b.runs : m->largest;
    for (int i = 0; i < m->b.runs; i++) {
        int64_t begin = m->free_at > m->now ? m->free_at : m->now;
        m->begins[++m->launched] = begin;
        m->free_at = begin + m->work;
    }
    m->launches++;
    kiln_cuda_multirun_clear(&m->b);
}

static void give(machine *m)
{
    m->now += m->gap;
    assert_true(add(&m->b, 0, 0));
    if (kiln_cuda_multirun_due(&m->b, &m->pace, m->launched, done(m), 1e-6 * (double)m->now))
        launch(m);
    assert_true(m->b.runs < A_FEW || m->free_at > m->now); /* never many are held back from an idle device … */
    if (m->gap >= 1e6 * quick || m->launched < LONELY)
        assert_true(m->b.runs == 0 || m->free_at > m->now); /* … nor one, if the next may take some time */
}

static machine work_for(int64_t work, int64_t gap, int64_t launching, int runs)
{
    machine m = {.work = work, .gap = gap, .launching = launching};
    assert_true(kiln_cuda_multirun_init(&m.b, HEAD, 1, 0, KILN_CUDA_MOST_RUNS));
    for (int i = 0; i < runs; i++)
        give(&m);
    kiln_cuda_multirun_free(&m.b);
    return m;
}

static void test_slow_hosts_wait_for_nothing(void **state)
{
    (void)state;
    machine m = work_for(10, 60, 3, 1000);
    assert_int_equal(m.launches, 1000);
    assert_int_equal(m.begins[1000], m.now);
}

static void test_fast_hosts_fill_launches(void **state)
{
    (void)state;
    machine m = work_for(14, 5, 0, 4000);
    assert_int_equal(m.largest, KILN_CUDA_MOST_RUNS);
    assert_true(m.launches < 4000 / KILN_CUDA_MOST_RUNS + 10);
    for (uint64_t run = 2; run <= m.launched; run++) /* the device has never waited */
        assert_int_equal(m.begins[run], m.begins[run - 1] + 14);
}

/* With a launch a run it would be slower than the device; with a launch for a few it is not, and then gets ahead. */
static void test_hosts_that_launching_slows_down(void **state)
{
    (void)state;
    machine m = work_for(20, 17, 5, 4000);
    assert_true(m.largest > A_FEW);
    assert_true(m.now < 20 * 4000 + 500);
    machine slow = work_for(17, 17, 5, 4000); /* never ahead: a launch for a few */
    assert_true(slow.now < 17 * 4000 + 5 * 4000 / A_FEW + 500);
    assert_true(slow.launches < 4000 / A_FEW + 20);
}

static void test_as_the_environment_asks(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int runs;
    } cases[] = {{"1", 1}, {"3", 3}, {"49", 49}, {"50", 50}, {"51", 50}, {"0", 50}, {"-4", 50}, {"many", 50}, {"", 50}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(setenv("KILN_CUDA_RUNS", cases[i].text, 1), 0);
        assert_int_equal(kiln_cuda_runs_wanted(), cases[i].runs);
    }
    unsetenv("KILN_CUDA_RUNS");
    assert_int_equal(kiln_cuda_runs_wanted(), KILN_CUDA_MOST_RUNS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_find_what_is_theirs),        cmocka_unit_test(test_room),
        cmocka_unit_test(test_slow_hosts_wait_for_nothing),     cmocka_unit_test(test_fast_hosts_fill_launches),
        cmocka_unit_test(test_hosts_that_launching_slows_down), cmocka_unit_test(test_as_the_environment_asks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
