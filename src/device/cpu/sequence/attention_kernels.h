/* Attention of one head, in blocks that stay in cache: a template that attention.c includes for REAL = float and
 * double.
 *
 * A tile of rows (queries) at a time: their scores, row by row the weights, then the products with them. Scores that a
 * causal mask hides are not computed, but for those inside the last tile. Matrix products are single tiles of the
 * gemm's kernels; their vector operands are read in place where rows are whole vectors, else from a padded copy. */

/* A matrix whose rows can be loaded as whole vectors. */
typedef struct NAME(matrix) {
    const REAL *at;
    int64_t row;
} NAME(matrix);

/* Where element `offset` of an operand or a result is: q, k, v and what is like them. */
static char *NAME(element_at)(const kiln_attention *a, const kiln_cpu_operand *x, int64_t offset)
{
    return (char *)x->data + (size_t)offset * a->element;
}

/* `count` elements to a result, from element `offset` on. */
static void NAME(put)(const kiln_attention *a, const kiln_cpu_operand *to, int64_t offset, const REAL *from,
                      int64_t count)
{
    if (a->half)
        kiln_pw_best()->store[to->dtype](NAME(element_at)(a, to, offset), from, count);
    else
        memcpy(NAME(element_at)(a, to, offset), from, (size_t)count * sizeof *from);
}

/* Rows of one head of an operand, copied to `copy` (which then moves on) where they cannot be used as they lie. */
static NAME(matrix) NAME(rows_of)(const kiln_attention *a, const kiln_cpu_operand *x, int64_t head, REAL **copy)
{
    int n = x->ndim;
    int64_t count = x->shape[n - 2], width = x->shape[n - 1], wide = kiln_round_up(width, a->gemm->lanes);
    const char *at = NAME(element_at)(a, x, kiln_attention_head(x, n - 2, head));
    REAL *to = *copy;
    *copy += count * wide;
    if (!a->half && x->stride[n - 1] == 1 && wide == width)
        return (NAME(matrix)){(const REAL *)(const void *)at, x->stride[n - 2]};
    a->pack(to, wide, at, x->stride[n - 1], x->stride[n - 2], width, wide, count);
    return (NAME(matrix)){to, wide};
}

/* The transpose of one head, in panels of `panel` columns (keys), each [width][panel]. */
static const REAL *NAME(panels_of)(const kiln_attention *a, const kiln_cpu_operand *x, int64_t head, REAL **copy)
{
    int n = x->ndim;
    int64_t count = x->shape[n - 2], width = x->shape[n - 1];
    const int64_t at = kiln_attention_head(x, n - 2, head);
    REAL *to = *copy;
    for (int64_t j = 0; j < count; j += a->panel)
        a->pack(to + j * width, a->panel, NAME(element_at)(a, x, at + j * x->stride[n - 2]), x->stride[n - 2],
                x->stride[n - 1], count - j < a->panel ? count - j : a->panel, a->panel, width);
    *copy += kiln_round_up(count, a->panel) * width;
    return to;
}

/* c [rows, cols] (+)= s·v over k: at most a tile's rows, whole vectors of columns. */
static void NAME(product)(const kiln_attention *a, int64_t rows, int64_t cols, int64_t k, const REAL *s, int64_t s_row,
                          int64_t s_k, NAME(matrix) v, REAL *c, int64_t c_row, bool accumulate)
{
    for (int64_t j = 0; j < cols; j += a->panel) {
        int vectors = cols - j < a->panel ? 1 : 2;
        a->gemm->tile[s_row == 1][vectors - 1][rows - 1](k, s, s_row, s_k, v.at + j, v.row, c + j, c_row, accumulate,
                                                         v.at + j);
    }
}

/* The products of a tile of rows with the first n keys (or values), to `line` apart rows of scores. */
static void NAME(scores)(const kiln_attention *a, int64_t rows, int64_t n, int64_t width, const REAL *s, int64_t s_row,
                         int64_t s_k, const REAL *panels, REAL *scores)
{
    for (int64_t j = 0; j < n; j += a->panel) {
        int64_t cols = kiln_round_up(n - j < a->panel ? n - j : a->panel, a->gemm->lanes);
        NAME(product)
        (a, rows, cols, width, s, s_row, s_k, (NAME(matrix)){panels + j * width, a->panel}, scores + j, a->line, false);
    }
}

static int64_t NAME(least)(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- Forward ---- */

static void NAME(forward_tile)(const kiln_attention *a, int64_t head, int64_t row, int64_t rows, const REAL *keys,
                               NAME(matrix) values, REAL *scratch, int worker)
{
    const kiln_cpu_operand *q = &a->c->in[0];
    int n = q->ndim;
    const char *at = NAME(element_at)(a, q, kiln_attention_head(q, n - 2, head) + row * q->stride[n - 2]);
    REAL *weights = scratch, *sums = scratch + a->tall * a->line, *copy = sums + a->tall * a->ev_wide;
    const REAL *from = a->half ? copy : (const REAL *)(const void *)at;
    int64_t from_row = a->half ? a->e : q->stride[n - 2], from_column = a->half ? 1 : q->stride[n - 1];
    REAL *lse = (REAL *)a->c->out[1].data + head * a->l + row;
    int64_t seen = kiln_attention_keys(a, row + rows);
    REAL share[KILN_GEMM_MAX_ROWS];
    kiln_attention_laid y;
    kiln_attention_upright(&a->c->out[0], &y);
    int64_t to = kiln_attention_head(&y.x, n - 2, head) + row * y.stride[n - 2];
    if (a->half)
        a->pack(copy, a->e, at, q->stride[n - 1], q->stride[n - 2], a->e, a->e, rows);
    NAME(scores)(a, rows, seen, a->e, from, from_row, from_column, keys, weights);
    kiln_attend_rows attended = kiln_attention_rows(a, weights, row, rows, seen);
    a->rows->attend(&attended, share, lse);
    NAME(product)(a, rows, a->ev_wide, seen, weights, a->line, 1, values, sums, a->ev_wide, false);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < a->ev; j++)
            sums[i * a->ev_wide + j] *= share[i];
        if (a->c->finish)
            a->c->finish(a->c->finish_context, to + i * y.stride[n - 2], a->ev, sums + i * a->ev_wide, worker);
        else
            NAME(put)(a, &y.x, to + i * y.stride[n - 2], sums + i * a->ev_wide, a->ev);
    }
}

/* Scratch: keys' panels, values, scores, sums, of halves a tile of q. */
static size_t NAME(forward_bytes)(const kiln_attention *a)
{
    return sizeof(REAL) * (size_t)(kiln_round_up(a->s, a->panel) * a->e + a->s * a->ev_wide +
                                   a->tall * (a->line + a->ev_wide + (a->half ? a->e : 0)));
}

static void NAME(forward)(const kiln_attention *a, int64_t head, int64_t row, int64_t end, void *scratch, int worker)
{
    REAL *free = scratch;
    const REAL *keys = NAME(panels_of)(a, &a->c->in[1], head, &free);
    NAME(matrix) values = NAME(rows_of)(a, &a->c->in[2], head, &free);
    for (; row < end; row += a->tall)
        NAME(forward_tile)(a, head, row, NAME(least)(a->tall, end - row), keys, values, free, worker);
}

/* ---- Backward ---- */

/* One head's operands and results. Results are summed in place where their rows are whole vectors. */
typedef struct NAME(back) {
    const kiln_attention *a;
    const REAL *keys, *values; /* transposed, in panels */
    NAME(matrix) q, k, y, gy;
    const REAL *lse, *glse;
    int64_t lse_step, glse_step;
    REAL *p, *d;                    /* a block of weights, and of the scores' gradients */
    REAL *gq, *gk, *gv;             /* gq: a tile of rows */
    REAL *gq_out;                   /* the result, where its rows can be summed in place; else NULL */
    int64_t at[3];                  /* where the head's rows begin in the results, … */
    int64_t apart[3];               /* … and from one to the next */
    int64_t gq_row, gk_row, gv_row; /* from one to the next where they are summed */
} NAME(back);

static void NAME(back_tile)(const NAME(back) * b, int64_t row, int64_t rows, int64_t in_block, int64_t seen_by_block)
{
    const kiln_attention *a = b->a;
    int64_t seen = kiln_attention_keys(a, row + rows);
    REAL *p = b->p + in_block * a->line, *d = b->d + in_block * a->line;
    NAME(scores)(a, rows, seen, a->e, b->q.at + row * b->q.row, b->q.row, 1, b->keys, p);
    NAME(scores)(a, rows, seen, a->ev, b->gy.at + row * b->gy.row, b->gy.row, 1, b->values, d);
    REAL along[KILN_GEMM_MAX_ROWS], lse[KILN_GEMM_MAX_ROWS];
    a->rows->row_dots(b->y.at + row * b->y.row, b->y.row, b->gy.at + row * b->gy.row, b->gy.row, rows, a->ev, along);
    for (int64_t i = 0; i < rows; i++) {
        lse[i] = b->lse[(row + i) * b->lse_step];
        along[i] -= b->glse ? b->glse[(row + i) * b->glse_step] : 0;
    }
    kiln_attend_rows attended = kiln_attention_rows(a, p, row, rows, seen_by_block);
    a->rows->attend_grad(&attended, d, lse, along);
    REAL *to = b->gq_out ? b->gq_out + row * b->gq_row : b->gq;
    NAME(product)(a, rows, a->e_wide, seen, d, a->line, 1, b->k, to, b->gq_row, false);
    for (int64_t i = 0; to == b->gq && i < rows; i++)
        NAME(put)(a, &a->c->out[0], b->at[0] + (row + i) * b->apart[0], to + i * b->gq_row, a->e);
}

/* Adds a block's part to the gradients of keys and values: products over the block's rows. */
static void NAME(back_keys)(const NAME(back) * b, int64_t row, int64_t rows, int64_t seen)
{
    const kiln_attention *a = b->a;
    for (int64_t j = 0; j < seen; j += a->tall) {
        int64_t first = a->causal && j > row ? j - row : 0, tile = NAME(least)(a->tall, seen - j);
        bool more = a->causal ? j < row : row > 0;
        const REAL *p = b->p + first * a->line + j, *d = b->d + first * a->line + j;
        NAME(matrix) gy = {b->gy.at + (row + first) * b->gy.row, b->gy.row};
        NAME(matrix) q = {b->q.at + (row + first) * b->q.row, b->q.row};
        NAME(product)(a, tile, a->ev_wide, rows - first, p, 1, a->line, gy, b->gv + j * b->gv_row, b->gv_row, more);
        NAME(product)(a, tile, a->e_wide, rows - first, d, 1, a->line, q, b->gk + j * b->gk_row, b->gk_row, more);
    }
}

/* Scratch: panels of keys and values, rows of q, k, y and gy, two blocks of scores, a tile of gq, gk and gv. */
static size_t NAME(backward_bytes)(const kiln_attention *a)
{
    int64_t keys = kiln_round_up(a->s, a->panel), elements = keys * (a->e + a->ev);
    elements += (a->l + a->s) * a->e_wide + 2 * a->l * a->ev_wide + 2 * a->block * a->line;
    elements += (a->tall + a->s) * a->e_wide + a->s * a->ev_wide;
    return sizeof(REAL) * (size_t)elements;
}

static REAL *NAME(take)(REAL **free, int64_t count)
{
    *free += count;
    return *free - count;
}

/* Where rows of a result are summed, and how far they are apart there: in place where they are whole vectors, else in
 * scratch memory. */
static REAL *NAME(place)(const kiln_attention *a, const NAME(back) * b, int which, bool whole, int64_t count,
                         int64_t wide, REAL **free, int64_t *row)
{
    bool there = !a->half && whole;
    *row = there ? b->apart[which] : wide;
    return there ? (REAL *)a->c->out[which].data + b->at[which] : NAME(take)(free, count * wide);
}

/* Copies sums to a result, unless they were made there; keys that nobody saw get zeros. */
static void NAME(put_rows)(const NAME(back) * b, int which, const REAL *from, int64_t from_row, int64_t width,
                           int64_t seen)
{
    const kiln_attention *a = b->a;
    const kiln_cpu_operand *to = &a->c->out[which];
    bool there = (const char *)from == NAME(element_at)(a, to, b->at[which]);
    for (int64_t j = 0; j < a->s; j++) {
        int64_t at = b->at[which] + j * b->apart[which];
        if (j >= seen)
            memset(NAME(element_at)(a, to, at), 0, (size_t)width * a->element);
        else if (!there)
            NAME(put)(a, to, at, from + j * from_row, width);
    }
}

static void NAME(backward)(const kiln_attention *a, int64_t head, void *scratch)
{
    REAL *free = scratch;
    const kiln_cpu_operand *in = a->c->in, *out = a->c->out;
    const bool whole = a->e_wide == a->e;
    const int n = in[0].ndim;
    NAME(back) b = {.a = a};
    kiln_attention_laid y, gy;
    kiln_attention_upright(&in[3], &y);
    kiln_attention_upright(&in[5], &gy);
    for (int i = 0; i < 3; i++) {
        kiln_attention_laid g;
        kiln_attention_upright(&out[i], &g);
        b.at[i] = kiln_attention_head(&g.x, n - 2, head);
        b.apart[i] = g.stride[n - 2];
    }
    b.keys = NAME(panels_of)(a, &in[1], head, &free);
    b.values = NAME(panels_of)(a, &in[2], head, &free);
    b.q = NAME(rows_of)(a, &in[0], head, &free);
    b.k = NAME(rows_of)(a, &in[1], head, &free);
    b.y = NAME(rows_of)(a, &y.x, head, &free);
    b.gy = NAME(rows_of)(a, &gy.x, head, &free);
    b.lse = (const REAL *)in[4].data + kiln_attention_head(&in[4], in[4].ndim - 1, head);
    b.lse_step = in[4].stride[in[4].ndim - 1];
    if (a->c->nin > 6 && in[6].data) {
        b.glse = (const REAL *)in[6].data + kiln_attention_head(&in[6], in[6].ndim - 1, head);
        b.glse_step = in[6].stride[in[6].ndim - 1];
    }
    b.p = NAME(take)(&free, a->block * a->line);
    b.d = NAME(take)(&free, a->block * a->line);
    b.gq = NAME(take)(&free, a->tall * a->e_wide);
    b.gq_row = a->e_wide;
    if (!a->half && whole)
        b.gq_out = NAME(place)(a, &b, 0, whole, 0, 0, &free, &b.gq_row);
    b.gk = NAME(place)(a, &b, 1, whole, a->s, a->e_wide, &free, &b.gk_row);
    b.gv = NAME(place)(a, &b, 2, a->ev_wide == a->ev, a->s, a->ev_wide, &free, &b.gv_row);
    for (int64_t row = 0; row < a->l; row += a->block) {
        int64_t rows = NAME(least)(a->block, a->l - row), seen = kiln_attention_keys(a, row + rows);
        for (int64_t i = 0; i < rows; i += a->tall)
            NAME(back_tile)(&b, row + i, NAME(least)(a->tall, rows - i), i, seen);
        NAME(back_keys)(&b, row, rows, seen);
    }
    int64_t seen = a->l ? kiln_attention_keys(a, a->l) : 0;
    NAME(put_rows)(&b, 1, b.gk, b.gk_row, a->e, seen);
    NAME(put_rows)(&b, 2, b.gv, b.gv_row, a->ev, seen);
}
