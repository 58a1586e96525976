/* Random programs against a plain interpreter. A program is a list of instructions over a few registers: arithmetic,
 * views, reductions, products, copies, assignments to whole tensors and to views, handles released early, values looked
 * at. Each is run several times, with mutations between the runs, so that cached plans meet programs that differ from
 * theirs in one thing only. All numbers are small integers in f64, so that every order of additions gives the same
 * bits. */
#include "support/core.h"

/* ctest: name=eager env=KILN_EAGER=1 */
/* ctest: name=chunks env=KILN_TEST_CHUNK=24 */
/* ctest: name=apart env=KILN_SIM_APART=1 */
/* ctest: name=small-cache env=KILN_TEST_CACHE=3 */

enum { REGISTERS = 8, LENGTH = 24, CELLS = 64, LIMIT = 999 };

typedef enum kind {
    ADD,
    SUB,
    MUL,
    MAXIMUM,
    NEG,
    ABS,
    SCALE,
    SUM_0,
    SUM_1,
    SUM_ALL,
    MATMUL,
    TRANSPOSE,
    SLICE,
    SELECT,
    EXPAND,
    RESHAPE,
    CLONE,
    CAT,
    WHERE,
    CUMSUM,
    ASSIGN,
    ASSIGN_SCALED,
    SWAP,
    RELEASE,
    LOOK,
    RUN,
    KINDS
} kind;

typedef struct instr {
    int8_t kind, to, a, b;
    int8_t number;
} instr;

typedef struct program {
    instr code[LENGTH];
} program;

static uint64_t rng_state;

static int below(int n)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((rng_state >> 33) % (uint64_t)n);
}

static instr random_instr(void)
{
    static const int8_t weights[KINDS] = {
        [ADD] = 6,           [SUB] = 4,     [MUL] = 4,     [MAXIMUM] = 2, [NEG] = 2,   [ABS] = 2,    [SCALE] = 4,
        [SUM_0] = 2,         [SUM_1] = 2,   [SUM_ALL] = 1, [MATMUL] = 4,  [SLICE] = 4, [SELECT] = 2, [TRANSPOSE] = 4,
        [EXPAND] = 2,        [RESHAPE] = 3, [CLONE] = 3,   [CAT] = 2,     [WHERE] = 2, [CUMSUM] = 1, [ASSIGN] = 6,
        [ASSIGN_SCALED] = 4, [SWAP] = 3,    [RELEASE] = 2, [LOOK] = 1,    [RUN] = 1};
    int total = 0, k = 0;
    for (int i = 0; i < KINDS; i++)
        total += weights[i];
    for (int at = below(total); at >= weights[k]; k++)
        at -= weights[k];
    return (instr){(int8_t)k, (int8_t)below(REGISTERS), (int8_t)below(REGISTERS), (int8_t)below(REGISTERS),
                   (int8_t)(below(5) - 2)};
}

/* ---- The interpreter ---- */

typedef struct memory { /* what several windows may share */
    double cells[CELLS];
    int count;
} memory;

typedef struct window {
    memory *m; /* NULL: the register is empty */
    int ndim, shape[2], stride[2], offset;
} window;

static memory pool[REGISTERS + LENGTH * 2 + 8];
static int npool;

static int count_of(const window *w)
{
    return (w->ndim > 0 ? w->shape[0] : 1) * (w->ndim > 1 ? w->shape[1] : 1);
}

static double *cell(const window *w, int i)
{
    int at = w->offset;
    if (w->ndim == 1)
        at += i * w->stride[0];
    else if (w->ndim == 2)
        at += i / w->shape[1] * w->stride[0] + i % w->shape[1] * w->stride[1];
    return &w->m->cells[at];
}

static window fresh(int ndim, int s0, int s1)
{
    window w = {&pool[npool++], ndim, {s0, s1}, {ndim == 2 ? s1 : 1, 1}, 0};
    w.m->count = count_of(&w);
    return w;
}

static double clamp(double x)
{
    return x < -LIMIT ? -LIMIT : x > LIMIT ? LIMIT : x;
}

static bool same_shape(const window *a, const window *b)
{
    return a->ndim == b->ndim && (a->ndim < 1 || a->shape[0] == b->shape[0]) &&
           (a->ndim < 2 || a->shape[1] == b->shape[1]);
}

/* Element i of a shape like `over`, of a window that broadcasts to it. */
static double broadcast(const window *w, const window *over, int i)
{
    if (same_shape(w, over))
        return *cell(w, i);
    if (w->ndim == 0)
        return *cell(w, 0);
    int column = over->ndim == 2 ? i % over->shape[1] : i, row = over->ndim == 2 ? i / over->shape[1] : 0;
    if (w->ndim == 1)
        return *cell(w, w->shape[0] == 1 ? 0 : column);
    return *cell(w, (w->shape[0] == 1 ? 0 : row) * w->shape[1] + (w->shape[1] == 1 ? 0 : column));
}

/* The shape two windows broadcast to; false when they do not. */
static bool meet(const window *a, const window *b, int *ndim, int shape[2])
{
    *ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
    for (int d = 0; d < *ndim; d++) {
        int x = d < *ndim - a->ndim ? 1 : a->shape[d - (*ndim - a->ndim)];
        int y = d < *ndim - b->ndim ? 1 : b->shape[d - (*ndim - b->ndim)];
        if (x != y && x != 1 && y != 1)
            return false;
        shape[d] = x == 1 ? y : x;
    }
    return (*ndim < 1 || shape[0] > 0) && (*ndim > 0 ? shape[0] : 1) * (*ndim > 1 ? shape[1] : 1) <= CELLS;
}

static bool is_dense(const window *w)
{
    int step = 1;
    for (int d = w->ndim; d-- > 0;) {
        if (w->shape[d] != 1 && w->stride[d] != step)
            return false;
        step *= w->shape[d];
    }
    return true;
}

static bool is_expanded(const window *w)
{
    for (int d = 0; d < w->ndim; d++)
        if (w->stride[d] == 0 && w->shape[d] > 1)
            return true;
    return false;
}

/* ---- Both at once ---- */

typedef struct machine {
    window plain[REGISTERS];
    kiln_tensor *t[REGISTERS];
} machine;

static void check(const machine *m, int r, const char *where)
{
    double out[CELLS] = {0};
    const window *w = &m->plain[r];
    if (!w->m)
        return;
    int n = count_of(w);
    if (kiln_ndim(m->t[r]) != w->ndim || kiln_numel(m->t[r]) != n)
        fail_msg("%s: register %d has another shape", where, r);
    if (!kiln_read(m->t[r], out, (size_t)n * sizeof *out))
        fail_msg("%s: register %d cannot be read: %s", where, r, kiln_last_error()->message);
    for (int i = 0; i < n; i++)
        if (out[i] != *cell(w, i))
            fail_msg("%s: element %d of register %d is %g instead of %g", where, i, r, out[i], *cell(w, i));
}

static void put(machine *m, int r, window w, kiln_tensor *t)
{
    if (!t)
        fail_msg("refused: %s", kiln_last_error()->message);
    m->plain[r] = w;
    m->t[r] = t;
}

static kiln_tensor *clamped(kiln_tensor *t)
{
    return kiln_clamp(t, -LIMIT, LIMIT);
}

static void do_binary(machine *m, instr in)
{
    const window *a = &m->plain[in.a], *b = &m->plain[in.b];
    int ndim, shape[2] = {1, 1};
    if (!a->m || !b->m || !meet(a, b, &ndim, shape))
        return;
    window w = fresh(ndim, shape[0], shape[1]);
    for (int i = 0; i < w.m->count; i++) {
        double x = broadcast(a, &w, i), y = broadcast(b, &w, i);
        double z = in.kind == ADD       ? x + y
                   : in.kind == SUB     ? x - y
                   : in.kind == MUL     ? x * y
                   : in.kind == MAXIMUM ? (x > y ? x : y)
                                        : (x > y ? y : x);
        w.m->cells[i] = clamp(z);
    }
    kiln_tensor *x = m->t[in.a], *y = m->t[in.b], *t;
    t = in.kind == ADD       ? kiln_add(x, y)
        : in.kind == SUB     ? kiln_sub(x, y)
        : in.kind == MUL     ? kiln_mul(x, y)
        : in.kind == MAXIMUM ? kiln_maximum(x, y)
                             : kiln_where(kiln_gt(x, y), y, x);
    put(m, in.to, w, clamped(t));
}

static void do_unary(machine *m, instr in)
{
    const window *a = &m->plain[in.a];
    if (!a->m)
        return;
    window w = fresh(a->ndim, a->ndim > 0 ? a->shape[0] : 1, a->ndim > 1 ? a->shape[1] : 1);
    for (int i = 0; i < w.m->count; i++) {
        double x = *cell(a, i);
        w.m->cells[i] = in.kind == NEG     ? 0 - x
                        : in.kind == ABS   ? fabs(x)
                        : in.kind == SCALE ? clamp(x * in.number) + 0
                                           : x;
        if (in.kind == CUMSUM && a->ndim)
            w.m->cells[i] +=
                i >= (a->ndim == 2 ? a->shape[1] : 1) ? w.m->cells[i - (a->ndim == 2 ? a->shape[1] : 1)] : 0;
    }
    for (int i = 0; in.kind == CUMSUM && i < w.m->count; i++)
        w.m->cells[i] = clamp(w.m->cells[i]);
    kiln_tensor *x = m->t[in.a];
    kiln_tensor *t = in.kind == NEG     ? kiln_neg(x)
                     : in.kind == ABS   ? kiln_abs(x)
                     : in.kind == SCALE ? clamped(kiln_mul_scalar(x, in.number))
                     : in.kind == CLONE ? kiln_clone(x)
                                        : clamped(a->ndim ? kiln_cumsum(x, 0) : kiln_clone(x));
    put(m, in.to, w, t);
}

static void do_sum(machine *m, instr in)
{
    const window *a = &m->plain[in.a];
    if (!a->m || (in.kind != SUM_ALL && a->ndim != 2))
        return;
    int rows = a->ndim == 2 ? a->shape[0] : 1, columns = count_of(a) / rows;
    window w = in.kind == SUM_ALL ? fresh(0, 1, 1) : fresh(1, in.kind == SUM_0 ? columns : rows, 1);
    memset(w.m->cells, 0, sizeof w.m->cells);
    for (int i = 0; i < count_of(a); i++)
        w.m->cells[in.kind == SUM_ALL ? 0 : in.kind == SUM_0 ? i % columns : i / columns] += *cell(a, i);
    for (int i = 0; i < w.m->count; i++)
        w.m->cells[i] = clamp(w.m->cells[i]);
    int64_t dim = in.kind == SUM_1;
    kiln_tensor *x = m->t[in.a];
    put(m, in.to, w, clamped(in.kind == SUM_ALL ? kiln_sum_all(x) : kiln_sum(x, 1, &dim, false)));
}

static void do_matmul(machine *m, instr in)
{
    const window *a = &m->plain[in.a], *b = &m->plain[in.b];
    if (!a->m || !b->m || a->ndim != 2 || b->ndim != 2 || a->shape[1] != b->shape[0] ||
        a->shape[0] * b->shape[1] > CELLS)
        return;
    int k = a->shape[1], n = b->shape[1];
    window w = fresh(2, a->shape[0], n);
    for (int i = 0; i < w.m->count; i++) {
        double sum = 0;
        for (int j = 0; j < k; j++)
            sum += *cell(a, i / n * k + j) * *cell(b, j * n + i % n);
        w.m->cells[i] = clamp(sum);
    }
    put(m, in.to, w, clamped(kiln_matmul(m->t[in.a], m->t[in.b])));
}

static void do_cat(machine *m, instr in)
{
    const window *a = &m->plain[in.a], *b = &m->plain[in.b];
    if (!a->m || !b->m || a->ndim < 1 || a->ndim != b->ndim || (a->ndim == 2 && a->shape[1] != b->shape[1]) ||
        count_of(a) + count_of(b) > CELLS)
        return;
    window w = fresh(a->ndim, a->shape[0] + b->shape[0], a->ndim == 2 ? a->shape[1] : 1);
    for (int i = 0; i < w.m->count; i++)
        w.m->cells[i] = i < count_of(a) ? *cell(a, i) : *cell(b, i - count_of(a));
    put(m, in.to, w, kiln_cat(2, (kiln_tensor *[]){m->t[in.a], m->t[in.b]}, 0));
}

static void do_view(machine *m, instr in)
{
    window w = m->plain[in.a];
    kiln_tensor *x = m->t[in.a], *t = NULL;
    if (!w.m)
        return;
    if (in.kind == TRANSPOSE && w.ndim == 2) {
        w = (window){w.m, 2, {w.shape[1], w.shape[0]}, {w.stride[1], w.stride[0]}, w.offset};
        t = kiln_transpose(x, 0, 1);
    } else if (in.kind == SLICE && w.ndim >= 1 && w.shape[0] > 1) {
        int start = in.number > 0, step = in.number == 2 ? 2 : 1, end = in.number < 0 ? w.shape[0] - 1 : w.shape[0];
        w.offset += start * w.stride[0];
        w.shape[0] = (end - start + step - 1) / step;
        w.stride[0] *= step;
        t = kiln_slice(x, 0, start, end, step);
    } else if (in.kind == SELECT && w.ndim >= 1) {
        int at = w.shape[0] > 1 ? in.number & 1 : 0;
        w.offset += at * w.stride[0];
        w.shape[0] = w.shape[1];
        w.stride[0] = w.stride[1];
        w.ndim--;
        t = kiln_select(x, 0, at);
    } else if (in.kind == EXPAND && w.ndim == 1 && 3 * w.shape[0] <= CELLS) {
        w = (window){w.m, 2, {3, w.shape[0]}, {0, w.stride[0]}, w.offset};
        t = kiln_expand(x, KILN_SHAPE(3, w.shape[1]));
    } else if (in.kind == RESHAPE && w.ndim == 2 && is_dense(&w)) {
        w = (window){w.m, 2, {w.shape[1], w.shape[0]}, {w.shape[0], 1}, w.offset};
        t = kiln_reshape(x, KILN_SHAPE(w.shape[0], w.shape[1]));
    }
    if (t)
        put(m, in.to, w, t);
}

static void do_assign(machine *m, instr in)
{
    window *to = &m->plain[in.to];
    const window *a = &m->plain[in.a];
    int ndim, shape[2];
    if (!to->m || !a->m || is_expanded(to) || !meet(to, a, &ndim, shape) || ndim != to->ndim ||
        (ndim > 0 && shape[0] != to->shape[0]) || (ndim > 1 && shape[1] != to->shape[1]))
        return;
    double values[CELLS];
    bool scaled = in.kind == ASSIGN_SCALED;
    for (int i = 0; i < count_of(to); i++)
        values[i] = scaled ? clamp(broadcast(a, to, i) * in.number) + 0 : broadcast(a, to, i);
    for (int i = 0; i < count_of(to); i++)
        *cell(to, i) = values[i];
    kiln_tensor *source = m->t[in.a];
    if (!kiln_assign(m->t[in.to], scaled ? clamped(kiln_mul_scalar(source, in.number)) : source))
        fail_msg("refused: %s", kiln_last_error()->message);
}

/* a, b = b, a + b */
static void do_swap(machine *m, instr in)
{
    window *a = &m->plain[in.a], *b = &m->plain[in.b];
    if (!a->m || !b->m || in.a == in.b || a->m == b->m || !same_shape(a, b) || is_expanded(a) || is_expanded(b))
        return;
    for (int i = 0; i < count_of(a); i++) {
        double x = *cell(a, i), y = *cell(b, i);
        *cell(a, i) = y;
        *cell(b, i) = clamp(x + y);
    }
    kiln_tensor *x = m->t[in.a], *y = m->t[in.b], *sum = clamped(kiln_add(x, y));
    if (!kiln_assign(x, y) || !kiln_assign(y, sum))
        fail_msg("refused: %s", kiln_last_error()->message);
}

static void step(machine *m, instr in)
{
    switch ((kind)in.kind) {
    case ADD:
    case SUB:
    case MUL:
    case WHERE:
    case MAXIMUM: do_binary(m, in); break;
    case NEG:
    case ABS:
    case SCALE:
    case CUMSUM:
    case CLONE: do_unary(m, in); break;
    case SUM_0:
    case SUM_1:
    case SUM_ALL: do_sum(m, in); break;
    case MATMUL: do_matmul(m, in); break;
    case CAT: do_cat(m, in); break;
    case ASSIGN:
    case ASSIGN_SCALED: do_assign(m, in); break;
    case SWAP: do_swap(m, in); break;
    case RELEASE:
        if (in.a != in.to && m->t[in.to] != m->t[in.a])
            m->plain[in.to] = (window){0};
        break;
    case LOOK: check(m, in.a, "on the way"); break;
    case RUN: assert_true(kiln_eval()); break;
    default: do_view(m, in); break;
    }
}

static const int shapes[REGISTERS][2] = {{3, 4}, {3, 4}, {4, 3}, {4, 4}, {1, 4}, {4, 4}, {3, 1}, {3, 3}};

static void load_registers(machine *m, int seed)
{
    npool = 0;
    for (int r = 0; r < REGISTERS; r++) {
        window w = fresh(2, shapes[r][0], shapes[r][1]);
        for (int i = 0; i < w.m->count; i++)
            w.m->cells[i] = (i * 7 + r * 5 + seed * 3) % 11 - 5;
        put(m, r, w, kiln_tensor_new(w.m->cells, KILN_F64, KILN_SHAPE(w.shape[0], w.shape[1]), kiln_default_device()));
    }
}

/* `held`: bit r says that register r is read at the end; the others are released before anything has run. */
static void run_program(const program *p, int seed, unsigned held)
{
    machine m = {0};
    kiln_scope {
        load_registers(&m, seed);
        for (int i = 0; i < LENGTH; i++)
            step(&m, p->code[i]);
        char *text = held & 1 << REGISTERS ? kiln_plan_describe() : NULL;
        kiln_error_clear(); /* nothing may be pending */
        kiln_string_free(text);
        for (int r = 0; r < REGISTERS; r++)
            if (held >> r & 1)
                check(&m, r, "at the end");
    }
}

typedef double gradients[REGISTERS][16];

/* Runs a program on parameters, everything pending where `evals` says so, and differentiates the sum of all registers.
 * False when a value that the gradient needs was overwritten and is gone. */
static bool differentiate(const program *p, uint32_t evals, gradients out)
{
    machine m = {0};
    kiln_tensor *parameters[REGISTERS], *loss = NULL;
    bool ok = false;
    memset(out, 0, sizeof(gradients));
    kiln_scope {
        load_registers(&m, 1);
        for (int r = 0; r < REGISTERS; r++) {
            parameters[r] = kiln_requires_grad(m.t[r], true);
            m.t[r] = kiln_mul_scalar(m.t[r], 1);
        }
        for (int i = 0; i < LENGTH; i++) {
            if (p->code[i].kind != LOOK && p->code[i].kind != RUN)
                step(&m, p->code[i]);
            if (evals >> i & 1)
                assert_true(kiln_eval());
        }
        for (int r = 0; r < REGISTERS; r++)
            if (m.plain[r].m) {
                kiln_tensor *sum = kiln_sum_all(kiln_mul_scalar(m.t[r], r + 1));
                loss = loss ? kiln_add(loss, sum) : sum;
            }
        if (evals >> LENGTH & 1)
            for (int r = 0; r < REGISTERS; r++)
                check(&m, r, "before the gradient");
        if (kiln_needs_grad(loss)) {
            ok = kiln_backward(loss);
            if (!ok)
                expect_error(KILN_E_STATE, NULL, "overwritten");
        }
        for (int r = 0; ok && r < REGISTERS; r++)
            if (kiln_grad_of(parameters[r]))
                assert_true(
                    kiln_read(kiln_grad_of(parameters[r]), out[r], (size_t)kiln_numel(parameters[r]) * sizeof(double)));
    }
    return ok;
}

static void random_programs(unsigned first, int programs)
{
    const char *cache = getenv("KILN_TEST_CACHE");
    if (cache)
        kiln_plan_cache_set_capacity(atoi(cache));
    for (int k = 0; k < programs; k++) {
        rng_state = first + (unsigned)k;
        below(2);
        program p;
        for (int i = 0; i < LENGTH; i++)
            p.code[i] = random_instr();
        for (int variant = 0; variant < 6; variant++) {
            unsigned held = variant % 3 == 2 ? (unsigned)below(2 << REGISTERS) : (1u << REGISTERS) - 1;
            if (getenv("KILN_TEST_VERBOSE"))
                print_message("program %u variant %d\n", first + (unsigned)k, variant);
            run_program(&p, variant, held);
            if (variant % 2) /* the next two differ from these in one instruction */
                p.code[below(LENGTH)] = random_instr();
        }
        kiln_step {
        }
    }
    kiln_plan_cache_set_capacity(256);
}

static void test_programs(void **state)
{
    (void)state;
    const char *only = getenv("KILN_TEST_PROGRAM"), *many = getenv("KILN_TEST_PROGRAMS");
    if (only)
        random_programs((unsigned)atoi(only), 1);
    else
        random_programs(1, many ? atoi(many) : kiln_default_device() == KILN_CPU ? 1500 : 300);
}

/* Looking at values on the way changes no gradient: it is the same to the bit, or an error says what was overwritten.
 */
static void test_gradients(void **state)
{
    (void)state;
    int programs = kiln_default_device() == KILN_CPU ? 1000 : 200, right = 0;
    const char *only = getenv("KILN_TEST_PROGRAM"), *many = getenv("KILN_TEST_PROGRAMS");
    unsigned first = only ? (unsigned)atoi(only) : 1;
    programs = only ? 1 : many ? atoi(many) : programs;
    for (int k = 0; k < programs; k++) {
        rng_state = first + (unsigned)k;
        program p;
        for (int i = 0; i < LENGTH; i++)
            p.code[i] = random_instr();
        gradients want, got;
        if (!differentiate(&p, 0, want))
            continue;
        for (int variant = 0; variant < 4; variant++) {
            uint32_t evals = variant == 3 ? ~0u : 1u << below(LENGTH) | 1u << below(LENGTH + 1);
            if (!differentiate(&p, evals, got))
                continue;
            right++;
            if (memcmp(want, got, sizeof want) != 0)
                fail_msg("program %u: another gradient when it is run at %x", first + (unsigned)k, evals);
        }
        kiln_step {
        }
    }
    assert_true(only || right > programs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_programs), core_test(test_gradients)};
    return CORE_MAIN(tests);
}
