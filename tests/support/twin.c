/* Random programs and their functional twins: see twin.h. */
#include "support/twin.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "kiln.h"

enum { REGISTERS = 6, PARAMETERS = 3, CELLS = 36, MEMORIES = REGISTERS + 2 * TWIN_LENGTH };

typedef enum kind {
    ADD,
    SUB,
    MUL,
    COS,
    TANH,
    SCALE,
    SUM_ROWS,
    SUM_ALL,
    LOGSUMEXP,
    MATMUL,
    CAT,
    CLONE,
    TRANSPOSE,
    SLICE,
    SELECT,
    EXPAND,
    FLATTEN,
    RESHAPE,
    DIAGONAL,
    DETACH,
    ASSIGN,
    ASSIGN_COS,
    ASSIGN_NO_GRAD,
    GLANCE,
    RUN,
    DROP,
    BACKWARD,
    KINDS
} kind;

static const char *const names[KINDS] = {
    "add",      "sub",    "mul",    "cos",        "tanh",           "scale",  "sum_rows", "sum_all", "logsumexp",
    "matmul",   "cat",    "clone",  "transpose",  "slice",          "select", "expand",   "flatten", "reshape",
    "diagonal", "detach", "assign", "assign_cos", "assign_no_grad", "glance", "run",      "drop",    "backward"};

/* How often each comes up. */
static const uint8_t weights[KINDS] = {[ADD] = 5,
                                       [SUB] = 3,
                                       [MUL] = 5,
                                       [COS] = 3,
                                       [TANH] = 3,
                                       [SCALE] = 3,
                                       [SUM_ROWS] = 2,
                                       [SUM_ALL] = 1,
                                       [LOGSUMEXP] = 2,
                                       [MATMUL] = 3,
                                       [CAT] = 2,
                                       [CLONE] = 2,
                                       [TRANSPOSE] = 4,
                                       [SLICE] = 5,
                                       [SELECT] = 5,
                                       [EXPAND] = 2,
                                       [FLATTEN] = 4,
                                       [RESHAPE] = 3,
                                       [DIAGONAL] = 2,
                                       [DETACH] = 3,
                                       [ASSIGN] = 10,
                                       [ASSIGN_COS] = 8,
                                       [ASSIGN_NO_GRAD] = 3,
                                       [GLANCE] = 8,
                                       [RUN] = 2,
                                       [DROP] = 1,
                                       [BACKWARD] = 1};

typedef struct instruction {
    kind kind;
    int to, a, b, number; /* number: 0 … 255 */
} instruction;

static instruction decode(const uint8_t *bytes)
{
    int total = 0, k = 0;
    for (int i = 0; i < KINDS; i++)
        total += weights[i];
    for (int at = bytes[0] % total; at >= weights[k]; k++)
        at -= weights[k];
    return (instruction){(kind)k, bytes[1] % REGISTERS, bytes[2] % REGISTERS, bytes[3] % REGISTERS, bytes[4]};
}

static size_t length_of(size_t count)
{
    size_t n = count / TWIN_INSTRUCTION;
    return n < TWIN_LENGTH ? n : TWIN_LENGTH;
}

void twin_print(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < length_of(count); i++) {
        instruction in = decode(bytes + i * TWIN_INSTRUCTION);
        fprintf(stderr, "  %-14s r%d, r%d, r%d, %d\n", names[in.kind], in.to, in.a, in.b, in.number);
    }
}

/* ---- Windows and memory ---- */

typedef struct memory {
    int count;
    kiln_tensor *value; /* of the twin: all elements in a row */
} memory;

typedef struct window {
    memory *m; /* NULL: the register is empty */
    int ndim, shape[2], stride[2], offset;
    bool detached;
} window;

typedef struct machine {
    bool twin;
    window w[REGISTERS];
    kiln_tensor *t[REGISTERS]; /* of the program itself */
    kiln_tensor *parameters[PARAMETERS];
    memory memories[MEMORIES];
    int nmemories;
    char *why;
    size_t why_size;
} machine;

static bool complain(machine *m, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(m->why, m->why_size, format, args);
    va_end(args);
    return false;
}

static int rows_of(const window *w)
{
    return w->ndim > 0 ? w->shape[0] : 1;
}

static int columns_of(const window *w)
{
    return w->ndim > 1 ? w->shape[1] : 1;
}

static int count_of(const window *w)
{
    return rows_of(w) * columns_of(w);
}

static bool is_dense(const window *w)
{
    for (int d = w->ndim, step = 1; d-- > 0; step *= w->shape[d])
        if (w->shape[d] != 1 && w->stride[d] != step)
            return false;
    return true;
}

static bool is_expanded(const window *w)
{
    return (w->ndim > 0 && !w->stride[0] && w->shape[0] > 1) || (w->ndim > 1 && !w->stride[1] && w->shape[1] > 1);
}

static int element(const window *w, int i)
{
    int columns = columns_of(w), at = w->offset;
    at += w->ndim > 0 ? i / columns * w->stride[0] : 0;
    return at + (w->ndim > 1 ? i % columns * w->stride[1] : 0);
}

static kiln_tensor *shaped(kiln_tensor *t, const window *w)
{
    int64_t shape[2] = {rows_of(w), columns_of(w)};
    return kiln_reshape(t, w->ndim, shape);
}

static kiln_tensor *flat(kiln_tensor *t, int count)
{
    return kiln_reshape(t, KILN_SHAPE(count));
}

/* Elements of `row`, one-dimensional, at these places. */
static kiln_tensor *picked(kiln_tensor *row, const int64_t *places, int n)
{
    return kiln_index_select(row, 0, kiln_tensor_new(places, KILN_I64, KILN_SHAPE(n), kiln_default_device()));
}

/* What a register holds now. */
static kiln_tensor *get(const machine *m, int r)
{
    const window *w = &m->w[r];
    if (!m->twin)
        return m->t[r];
    int64_t places[CELLS];
    for (int i = 0; i < count_of(w); i++)
        places[i] = element(w, i);
    kiln_tensor *t = shaped(picked(w->m->value, places, count_of(w)), w);
    return w->detached ? kiln_clone(kiln_detach(t)) : t;
}

/* A register holds a fresh tensor from now on, whose shape is that of `like`. */
static bool set(machine *m, int r, kiln_tensor *t, const window *like)
{
    if (!t)
        return complain(m, "refused: %s", kiln_last_error()->message);
    window w = {.m = &m->memories[m->nmemories++], .ndim = like->ndim};
    w.shape[0] = rows_of(like);
    w.shape[1] = columns_of(like);
    w.stride[0] = w.ndim > 1 ? w.shape[1] : 1;
    w.stride[1] = 1;
    w.m->count = count_of(&w);
    w.m->value = m->twin ? flat(t, w.m->count) : NULL;
    m->w[r] = w;
    m->t[r] = t;
    return true;
}

/* ---- Instructions ---- */

/* The shape two windows broadcast to. */
static bool meet(const window *a, const window *b, window *out)
{
    *out = (window){.ndim = a->ndim > b->ndim ? a->ndim : b->ndim};
    for (int d = 0; d < out->ndim; d++) {
        int x = d < out->ndim - a->ndim ? 1 : a->shape[d - (out->ndim - a->ndim)];
        int y = d < out->ndim - b->ndim ? 1 : b->shape[d - (out->ndim - b->ndim)];
        if (x != y && x != 1 && y != 1)
            return false;
        out->shape[d] = x == 1 ? y : x;
    }
    return count_of(out) <= CELLS;
}

/* Numbers stay small: sums are halved, products are bounded. */
static bool do_binary(machine *m, instruction in)
{
    window out;
    if (!meet(&m->w[in.a], &m->w[in.b], &out))
        return true;
    kiln_tensor *a = get(m, in.a), *b = get(m, in.b);
    kiln_tensor *t = in.kind == ADD   ? kiln_mul_scalar(kiln_add(a, b), 0.5)
                     : in.kind == SUB ? kiln_mul_scalar(kiln_sub(a, b), 0.5)
                                      : kiln_sin(kiln_mul(a, b));
    return set(m, in.to, t, &out);
}

static bool do_unary(machine *m, instruction in)
{
    kiln_tensor *a = get(m, in.a);
    kiln_tensor *t = in.kind == COS     ? kiln_cos(a)
                     : in.kind == TANH  ? kiln_tanh(kiln_mul_scalar(a, 1.5))
                     : in.kind == SCALE ? kiln_mul_scalar(a, (in.number % 7 - 3) / 4.0)
                                        : kiln_clone(a);
    window like = m->w[in.a];
    return set(m, in.to, t, &like);
}

static bool do_reduce(machine *m, instruction in)
{
    const window *a = &m->w[in.a];
    window out = {.ndim = 0};
    kiln_tensor *x = get(m, in.a), *t;
    if (in.kind == SUM_ALL)
        t = kiln_tanh(kiln_sum_all(x));
    else if (a->ndim == 0)
        return true;
    else {
        out.ndim = a->ndim - 1;
        out.shape[0] = columns_of(a);
        t = in.kind == LOGSUMEXP ? kiln_logsumexp(x, KILN_DIMS(0), false) : kiln_tanh(kiln_sum(x, KILN_DIMS(0), false));
    }
    return set(m, in.to, t, &out);
}

static bool do_matmul(machine *m, instruction in)
{
    const window *a = &m->w[in.a], *b = &m->w[in.b];
    if (a->ndim != 2 || b->ndim != 2 || a->shape[1] != b->shape[0] || a->shape[0] * b->shape[1] > CELLS)
        return true;
    window out = {.ndim = 2, .shape = {a->shape[0], b->shape[1]}};
    return set(m, in.to, kiln_sin(kiln_matmul(get(m, in.a), get(m, in.b))), &out);
}

static bool do_cat(machine *m, instruction in)
{
    const window *a = &m->w[in.a], *b = &m->w[in.b];
    if (a->ndim < 1 || a->ndim != b->ndim || columns_of(a) != columns_of(b) || count_of(a) + count_of(b) > CELLS)
        return true;
    window out = {.ndim = a->ndim, .shape = {a->shape[0] + b->shape[0], columns_of(a)}};
    kiln_tensor *both[] = {get(m, in.a), get(m, in.b)};
    return set(m, in.to, kiln_cat(2, both, 0), &out);
}

/* Makes *w another window of the same memory, and *t, unless it is NULL, the view to match; false if there is none. */
static bool view(window *w, instruction in, kiln_tensor **t)
{
    int dim = w->ndim ? in.number % w->ndim : 0, at = w->ndim ? in.number / 4 % w->shape[dim] : 0, n = count_of(w);
    kiln_tensor *x = *t;
    switch (in.kind) {
    case TRANSPOSE:
        if (w->ndim != 2)
            return false;
        *w = (window){w->m, 2, {w->shape[1], w->shape[0]}, {w->stride[1], w->stride[0]}, w->offset, w->detached};
        *t = x ? kiln_transpose(x, 0, 1) : NULL;
        return true;
    case SLICE: {
        if (!w->ndim)
            return false;
        int step = 1 + in.number / 64 % 2, size = w->shape[dim];
        w->offset += at * w->stride[dim];
        w->shape[dim] = (size - at + step - 1) / step;
        w->stride[dim] *= step;
        *t = x ? kiln_slice(x, dim, at, size, step) : NULL;
        return true;
    }
    case SELECT:
        if (!w->ndim)
            return false;
        w->offset += at * w->stride[dim];
        for (int d = dim; d < 1; d++) {
            w->shape[d] = w->shape[d + 1];
            w->stride[d] = w->stride[d + 1];
        }
        w->ndim--;
        *t = x ? kiln_select(x, dim, at) : NULL;
        return true;
    case EXPAND:
        if (w->ndim != 1 || 3 * n > CELLS)
            return false;
        *w = (window){w->m, 2, {3, n}, {0, w->stride[0]}, w->offset, w->detached};
        *t = x ? kiln_expand(x, KILN_SHAPE(3, n)) : NULL;
        return true;
    case FLATTEN:
        if (!is_dense(w))
            return false;
        *w = (window){w->m, 1, {n, 1}, {1, 1}, w->offset, w->detached};
        *t = x ? kiln_reshape(x, KILN_SHAPE(-1)) : NULL;
        return true;
    case RESHAPE: {
        int rows = n % 2 ? 1 : 2;
        if (!is_dense(w))
            return false;
        *w = (window){w->m, 2, {rows, n / rows}, {n / rows, 1}, w->offset, w->detached};
        *t = x ? kiln_reshape(x, KILN_SHAPE(rows, n / rows)) : NULL;
        return true;
    }
    case DIAGONAL:
        if (w->ndim != 2)
            return false;
        *w = (window){w->m,
                      1,
                      {rows_of(w) < columns_of(w) ? rows_of(w) : columns_of(w), 1},
                      {w->stride[0] + w->stride[1], 1},
                      w->offset,
                      w->detached};
        *t = x ? kiln_diagonal(x, 0, 0, 1) : NULL;
        return true;
    default: /* DETACH */
        w->detached = true;
        *t = x ? kiln_detach(x) : NULL;
        return true;
    }
}

static bool do_view(machine *m, instruction in)
{
    window w = m->w[in.a];
    kiln_tensor *t = m->twin ? NULL : m->t[in.a];
    if (!view(&w, in, &t))
        return true;
    if (!t && !m->twin)
        return complain(m, "refused: %s", kiln_last_error()->message);
    m->w[in.to] = w;
    m->t[in.to] = t;
    return true;
}

/* The twin's memory with the source, already of the window's shape, in the window's place. */
static kiln_tensor *overwritten(const window *w, kiln_tensor *source)
{
    int64_t places[CELLS];
    if (is_dense(w) && count_of(w) == w->m->count)
        return flat(source, w->m->count); /* nothing of the old value is left */
    for (int i = 0; i < w->m->count; i++)
        places[i] = i;
    for (int i = 0; i < count_of(w); i++)
        places[element(w, i)] = w->m->count + i;
    kiln_tensor *both[] = {w->m->value, flat(source, count_of(w))};
    return picked(kiln_cat(2, both, 0), places, w->m->count);
}

/* The numbers of `value` with the gradient of `old`: what was assigned where nobody records. */
static kiln_tensor *unrecorded(kiln_tensor *old, kiln_tensor *value)
{
    if (!kiln_needs_grad(old))
        return kiln_detach(value);
    return kiln_add(old, kiln_detach(kiln_sub(value, old)));
}

static void assign_twin(window *to, kiln_tensor *source, bool no_grad)
{
    kiln_tensor *old = to->m->value;
    int64_t shape[2] = {rows_of(to), columns_of(to)};
    kiln_tensor *value = overwritten(to, kiln_clone(kiln_expand(source, to->ndim, shape)));
    if (no_grad || (to->detached && !kiln_needs_grad(source)))
        to->m->value = unrecorded(old, value);
    else {
        to->m->value = value;
        to->detached = false;
    }
}

static bool do_assign(machine *m, instruction in)
{
    window *to = &m->w[in.to], both;
    const window *a = &m->w[in.a];
    if (is_expanded(to) || !meet(to, a, &both) || both.ndim != to->ndim || rows_of(&both) != rows_of(to) ||
        columns_of(&both) != columns_of(to))
        return true;
    kiln_tensor *source = get(m, in.a);
    bool no_grad = in.kind == ASSIGN_NO_GRAD, ok = true;
    if (in.kind == ASSIGN_COS)
        source = kiln_cos(source);
    if (m->twin)
        assign_twin(to, source, no_grad);
    else if (no_grad)
        kiln_no_grad
            ok = kiln_assign(m->t[in.to], source);
    else
        ok = kiln_assign(m->t[in.to], source);
    if (ok && !m->twin && to->detached && !no_grad && kiln_needs_grad(source))
        to->detached = false;
    return ok || complain(m, "refused: %s", kiln_last_error()->message);
}

/* A look that must change nothing. */
static bool do_glance(machine *m, instruction in)
{
    double out[CELLS];
    kiln_tensor *t = m->t[in.a];
    if (m->twin)
        return true;
    kiln_scope
        switch (in.number % 5) {
        case 0: kiln_detach(t); break;
        case 1:
            kiln_no_grad
                kiln_add(t, t);
            break;
        case 2: kiln_argmax(kiln_reshape(t, KILN_SHAPE(-1)), 0, false); break;
        case 3: kiln_read(t, out, (size_t)kiln_numel(t) * sizeof *out); break;
        default: kiln_needs_grad(t); break;
        }
    return kiln_ok() || complain(m, "refused: %s", kiln_last_error()->message);
}

/* The sum over all registers, each bounded and weighted in its own way. */
static kiln_tensor *loss_of(const machine *m)
{
    kiln_tensor *loss = NULL;
    for (int r = 0; r < REGISTERS; r++)
        if (m->w[r].m) {
            kiln_tensor *sum = kiln_sum_all(kiln_mul_scalar(kiln_tanh(get(m, r)), r + 1));
            loss = loss ? kiln_add(loss, sum) : sum;
        }
    return loss;
}

static bool differentiate(machine *m)
{
    kiln_tensor *loss = loss_of(m);
    if (!loss)
        return kiln_ok() || complain(m, "refused: %s", kiln_last_error()->message);
    if (!kiln_needs_grad(loss))
        return true;
    return kiln_backward_retain(loss) || complain(m, "refused: %s", kiln_last_error()->message);
}

static bool step(machine *m, instruction in)
{
    bool assigns = in.kind >= ASSIGN && in.kind <= ASSIGN_NO_GRAD, binary = in.kind <= MUL || in.kind == MATMUL;
    if (in.kind != RUN && in.kind != BACKWARD && !m->w[in.a].m)
        return true;
    if ((assigns && !m->w[in.to].m) || ((binary || in.kind == CAT) && !m->w[in.b].m))
        return true;
    switch (in.kind) {
    case ADD:
    case SUB:
    case MUL: return do_binary(m, in);
    case COS:
    case TANH:
    case SCALE:
    case CLONE: return do_unary(m, in);
    case SUM_ROWS:
    case SUM_ALL:
    case LOGSUMEXP: return do_reduce(m, in);
    case MATMUL: return do_matmul(m, in);
    case CAT: return do_cat(m, in);
    case ASSIGN:
    case ASSIGN_COS:
    case ASSIGN_NO_GRAD: return do_assign(m, in);
    case GLANCE: return do_glance(m, in);
    case RUN: return m->twin || kiln_eval() || complain(m, "refused: %s", kiln_last_error()->message);
    case DROP: m->w[in.a] = (window){0}; return true;
    case BACKWARD: return differentiate(m);
    default: return do_view(m, in);
    }
}

/* ---- Running ---- */

typedef struct outcome {
    double values[REGISTERS][CELLS], gradients[PARAMETERS][CELLS];
    int counts[REGISTERS];
    bool needs_grad[REGISTERS];
} outcome;

static const int shapes[REGISTERS][2] = {{3, 4}, {4, 3}, {1, 3}, {3, 4}, {1, 1}, {1, 3}};

/* The first registers come from parameters, the others are constants. */
static bool load(machine *m)
{
    double numbers[CELLS];
    for (int r = 0; r < REGISTERS; r++) {
        window like = {.ndim = 2, .shape = {shapes[r][0], shapes[r][1]}};
        for (int i = 0; i < CELLS; i++)
            numbers[i] = sin(1.7 * i + 0.9 * r);
        kiln_tensor *t =
            kiln_tensor_new(numbers, KILN_F64, KILN_SHAPE(shapes[r][0], shapes[r][1]), kiln_default_device());
        if (r < PARAMETERS) {
            m->parameters[r] = kiln_requires_grad(t, true);
            t = kiln_mul_scalar(t, 1);
        }
        if (!set(m, r, t, &like))
            return false;
    }
    return true;
}

static bool collect(machine *m, outcome *out)
{
    for (int r = 0; r < REGISTERS; r++) {
        if (!m->w[r].m)
            continue;
        kiln_tensor *t = get(m, r);
        out->counts[r] = count_of(&m->w[r]);
        out->needs_grad[r] = kiln_needs_grad(t);
        if (kiln_numel(t) != out->counts[r] || !kiln_read(t, out->values[r], (size_t)out->counts[r] * sizeof(double)))
            return complain(m, "register %d cannot be read: %s", r, kiln_last_error()->message);
    }
    for (int p = 0; p < PARAMETERS; p++) {
        kiln_tensor *g = kiln_grad_of(m->parameters[p]);
        if (g && !kiln_read(g, out->gradients[p], (size_t)kiln_numel(g) * sizeof(double)))
            return complain(m, "gradient %d cannot be read: %s", p, kiln_last_error()->message);
    }
    return true;
}

static bool run(const uint8_t *bytes, size_t count, bool twin, outcome *out, char *why, size_t size)
{
    machine m = {.twin = twin, .why = why, .why_size = size};
    bool ok = false;
    memset(out, 0, sizeof *out);
    kiln_scope {
        ok = load(&m);
        kiln_recompute_scope again = {0}; /* every other program has parts that are computed again for gradients */
        for (size_t i = 0; ok && i < length_of(count); i++) {
            if (!twin && bytes[0] & 1 && i % 4 == 0) {
                kiln_recompute_scope_leave(&again);
                again = i % 12 ? kiln_recompute_scope_enter() : again;
            }
            ok = step(&m, decode(bytes + i * TWIN_INSTRUCTION));
            if (!ok)
                snprintf(why + strlen(why), size - strlen(why), " (instruction %zu%s)", i, twin ? " of the twin" : "");
        }
        kiln_recompute_scope_leave(&again);
        ok = ok && differentiate(&m) && collect(&m, out);
    }
    kiln_error_clear();
    return ok;
}

static bool same(double a, double b)
{
    return a == b || fabs(a - b) <= 1e-9 * (1 + fabs(b)) || (isnan(a) && isnan(b));
}

static bool compare(const outcome *got, const outcome *want, char *why, size_t size)
{
    for (int r = 0; r < REGISTERS; r++) {
        if (got->counts[r] && got->needs_grad[r] != want->needs_grad[r]) {
            snprintf(why, size, "register %d %s a gradient", r, got->needs_grad[r] ? "needs" : "does not need");
            return false;
        }
        for (int i = 0; i < got->counts[r]; i++)
            if (!same(got->values[r][i], want->values[r][i])) {
                snprintf(why, size, "element %d of register %d is %.17g instead of %.17g", i, r, got->values[r][i],
                         want->values[r][i]);
                return false;
            }
    }
    for (int p = 0; p < PARAMETERS; p++)
        for (int i = 0; i < CELLS; i++)
            if (!same(got->gradients[p][i], want->gradients[p][i])) {
                snprintf(why, size, "gradient %d of parameter %d is %.17g instead of %.17g", i, p, got->gradients[p][i],
                         want->gradients[p][i]);
                return false;
            }
    return true;
}

bool twin_check(const uint8_t *bytes, size_t count, char *why, size_t size)
{
    static outcome got, want;
    why[0] = 0;
    return run(bytes, count, true, &want, why, size) && run(bytes, count, false, &got, why, size) &&
           compare(&got, &want, why, size);
}
