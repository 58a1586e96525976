/* Strands of slabs: steps that work row by row, on the same number of rows, can follow each other in a block, which
 * takes the same slab of rows of each. For sums of whole columns, and what follows them, the rows are these columns. A
 * barrier of that block is enough between them, as long as no slab needs what another one has made. That follows from
 * memory: whatever two of the steps share, one of them writing, must belong to the same row in both. */
#include "device/cuda/chain/chain.h"

enum {
    LEAST_SLAB = 4 /* rows, and slabs are multiples of as many: they begin where four elements can be moved at once */
};

typedef struct cut {
    int64_t rows; /* 0: any number that divides the elements */
    int64_t slab; /* rows; 0: any number */
    int64_t most; /* units that any of the steps would have by itself */
} cut;

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static const kiln_kernel *kernel_of(const kiln_cuda_chain *chain, const kiln_cuda_step *s)
{
    return &chain->plan->kernels[s->kernel];
}

/* ---- How a step can be cut ---- */

/* The dims that stay come first, those that go behind them. */
static bool keeps_order(const kiln_group *g)
{
    bool gone = false;
    for (int d = 0; d < g->reduce_ndim; d++)
        if (g->reduce_shape[d] != 1) {
            bool goes = g->reduce_dims >> d & 1;
            if (gone && !goes)
                return false;
            gone |= goes;
        }
    return true;
}

/* Whether a step folds whole columns: its slabs are of those, and the rows of the strand the columns. */
static bool takes_columns(const kiln_cuda_step *s)
{
    return s->kind == KILN_CUDA_STEP_COLUMNS && s->group->k.p.r.chunks == 1;
}

/* How many blocks of columns such a step takes at once. */
static int64_t columns_at_once(const kiln_cuda_reduction *r)
{
    return KILN_CUDA_CHAIN_THREADS / r->threads;
}

static bool cut_reduction(const kiln_cuda_chain *chain, const kiln_cuda_step *s, cut *c)
{
    const kiln_cuda_reduction *r = &s->group->k.p.r;
    if (s->kind == KILN_CUDA_STEP_ROWS) {
        *c = (cut){.rows = r->outer};
        return r->chunks == 1 && r->lanes <= 32 && keeps_order(kernel_of(chain, s)->group);
    }
    if (takes_columns(s)) {
        *c = (cut){.rows = r->inner, .slab = 4 * r->lanes * columns_at_once(r)};
        return r->outer == 1;
    }
    *c = (cut){.rows = r->reduced, .slab = r->chunk};
    return r->chunks > 1 && r->outer == 1 && r->inner <= 4 * (int64_t)r->lanes && r->chunk % LEAST_SLAB == 0;
}

static bool cut_combining(const kiln_cuda_step *s, cut *c)
{
    const kiln_cuda_reduction *r = &s[-1].group->k.p.r;
    *c = (cut){.rows = r->inner, .slab = KILN_CUDA_COMBINED};
    return r->outer == 1 && r->inner >= KILN_CUDA_COMBINED;
}

/* Tiles as wide as the result: each is a slab, and needs its own rows of a. */
static bool cut_product(const kiln_cuda_step *s, cut *c)
{
    const kiln_cuda_tiling *t = &s->tiling;
    *c = (cut){.rows = s->product.m, .slab = t->rows};
    return t->across == 1 && t->tiles == t->down && t->rows % LEAST_SLAB == 0;
}

/* Softmax and its like: of the operand with classes, dim ints[0] is last. */
static bool cut_rows(const kiln_cuda_chain *chain, const kiln_cuda_step *s, cut *c)
{
    const kiln_kernel *k = kernel_of(chain, s);
    const kiln_operand *x = s->kind == KILN_CUDA_STEP_PLACE ? &k->out[0] : &k->in[0];
    int64_t rows = 1, inner = 1;
    for (int d = 0; d < x->ndim; d++)
        if (d != k->ints[0])
            *(d < k->ints[0] ? &rows : &inner) *= x->shape[d];
    *c = (cut){.rows = rows};
    return inner == 1;
}

static bool cut_of(const kiln_cuda_chain *chain, const kiln_cuda_step *s, cut *c)
{
    switch (s->kind) {
    case KILN_CUDA_STEP_MAP: *c = (cut){0}; return true;
    case KILN_CUDA_STEP_ROWS:
    case KILN_CUDA_STEP_COLUMNS: return cut_reduction(chain, s, c);
    case KILN_CUDA_STEP_COMBINE: return cut_combining(s, c);
    case KILN_CUDA_STEP_PRODUCT: return cut_product(s, c);
    case KILN_CUDA_STEP_JOIN:
    case KILN_CUDA_STEP_SAMPLES: return false;
    default: return cut_rows(chain, s, c);
    }
}

bool kiln_cuda_has_rows(const kiln_cuda_chain *chain, const kiln_cuda_step *step)
{
    cut c;
    return cut_of(chain, step, &c);
}

/* Makes *c suit the step too. */
static bool join_cut(const kiln_cuda_chain *chain, const kiln_cuda_step *s, cut *c)
{
    cut one;
    if (!cut_of(chain, s, &one) || (c->rows && one.rows && c->rows != one.rows) ||
        (c->slab && one.slab && c->slab != one.slab))
        return false;
    c->rows = c->rows ? c->rows : one.rows;
    c->slab = c->slab ? c->slab : one.slab;
    c->most = s->units > c->most ? s->units : c->most;
    return true;
}

/* What a strand's steps below `end` ask for, with one more step if there is one. */
static bool join_cuts(const kiln_cuda_chain *chain, int32_t strand, int64_t end, const kiln_cuda_step *more, cut *c)
{
    *c = (cut){0};
    for (int64_t i = 0; i < end; i++)
        if (chain->steps[i].strand == strand && !join_cut(chain, &chain->steps[i], c))
            return false;
    return !more || join_cut(chain, more, c);
}

static int64_t slab_of(int64_t rows, int64_t slabs)
{
    return ceil_div(ceil_div(rows, slabs), LEAST_SLAB) * LEAST_SLAB;
}

/* The same, with slabs where the steps do not mind. */
static bool cut_strand(const kiln_cuda_chain *chain, int32_t strand, int64_t end, const kiln_cuda_step *more, cut *c)
{
    if (!join_cuts(chain, strand, end, more, c) || c->rows < 1)
        return false;
    if (!c->slab)
        c->slab = slab_of(c->rows, c->most < KILN_CUDA_TILE_BLOCKS ? c->most : KILN_CUDA_TILE_BLOCKS);
    return true;
}

/* Whether a step with so many rows is left enough blocks. */
static bool suits(const kiln_cuda_step *s, cut c)
{
    int64_t blocks = s->units < KILN_CUDA_TILE_BLOCKS ? s->units : KILN_CUDA_TILE_BLOCKS;
    return (s->kind != KILN_CUDA_STEP_MAP || s->group->k.p.count % c.rows == 0) &&
           ceil_div(c.rows, c.slab) * 2 >= blocks;
}

/* ---- What steps touch ---- */

typedef struct touch {
    int32_t buffer; /* -1: nothing */
    bool writes;
    int64_t from, row; /* bytes: where rows begin, and from row to row; 0: not by rows */
} touch;

/* Elements from row to row of an operand whose outermost dims are so many rows; 0 where it is not cut like that, or
 * where a row has elements outside its own part. */
static int64_t row_of(const kiln_operand *o, int64_t rows)
{
    int64_t all = 1, row = 0, lead = 1, span = 0;
    for (int d = 0; d < o->ndim; d++)
        all *= o->shape[d];
    if (o->dense)
        return all % rows == 0 ? all / rows : 0;
    int inner = 0;
    while (inner < o->ndim && lead < rows)
        lead *= o->shape[inner++];
    if (lead != rows)
        return 0;
    for (int d = inner; d < o->ndim; d++) {
        if (o->stride[d] < 0)
            return 0;
        span += (o->shape[d] - 1) * o->stride[d];
    }
    int64_t apart = 1; /* rows from one of this dim to the next */
    for (int d = inner; d-- > 0; apart *= o->shape[d]) {
        if (o->shape[d] == 1)
            continue;
        row = row ? row : o->stride[d];
        if (o->stride[d] != row * apart)
            return 0;
    }
    return row > span ? row : 0;
}

/* Whether a step does what its kernel does there: the second half of a reduction reads what the first left in the
 * workspace, and has the result. */
static bool takes_part(const kiln_cuda_step *s, const kiln_access *a)
{
    if (s->kind == KILN_CUDA_STEP_COMBINE)
        return a->kind >= KILN_ACCESS_REDUCTION;
    return a->kind != KILN_ACCESS_REDUCTION || s->kind != KILN_CUDA_STEP_COLUMNS || takes_columns(s);
}

/* Whether rows of the step touch rows of what it accesses: all rows of a product need the whole of b, and columns all
 * of what they fold. */
static bool is_by_rows(const kiln_cuda_step *s, const kiln_access *a)
{
    if (a->kind == KILN_ACCESS_REDUCTION)
        return true;
    return a->operand && !takes_columns(s) &&
           !(s->kind == KILN_CUDA_STEP_PRODUCT && a->kind == KILN_ACCESS_OPERAND && a->number > 0);
}

static touch touch_of(const kiln_cuda_step *s, const kiln_access *a, int64_t rows)
{
    touch t = {.buffer = a->buffer, .writes = a->writes};
    if (!a->operand)
        t.writes = s->kind != KILN_CUDA_STEP_COMBINE;
    else {
        int64_t size = (int64_t)kiln_dtype_size((kiln_dtype)a->operand->dtype);
        t.from = a->operand->offset * size;
        t.row = is_by_rows(s, a) ? row_of(a->operand, rows) * size : 0;
    }
    return t;
}

/* Whether rows of the two never meet but each its own. */
static bool row_by_row(const kiln_plan *plan, const touch *a, const touch *b)
{
    if (!(a->writes || b->writes) || !kiln_cuda_share_memory(plan, a->buffer, b->buffer))
        return true;
    return a->buffer == b->buffer && a->from == b->from && a->row > 0 && a->row == b->row;
}

static bool apart(const kiln_cuda_chain *chain, const kiln_cuda_step *s, const kiln_cuda_step *t, int64_t rows)
{
    for (kiln_access a = {0}; kiln_next_access(kernel_of(chain, s), &a);)
        for (kiln_access b = {0}; takes_part(s, &a) && kiln_next_access(kernel_of(chain, t), &b);) {
            touch x = touch_of(s, &a, rows), y = touch_of(t, &b, rows);
            if (takes_part(t, &b) && !row_by_row(chain->plan, &x, &y))
                return false;
        }
    return true;
}

/* ---- Strands ---- */

bool kiln_cuda_goes_on(const kiln_cuda_chain *chain, int64_t step, int32_t strand)
{
    const kiln_cuda_step *s = &chain->steps[step];
    cut c;
    if (!cut_strand(chain, strand, step, s, &c) || !suits(s, c))
        return false;
    for (int64_t i = 0; i < step; i++) {
        const kiln_cuda_step *t = &chain->steps[i];
        if (t->strand == strand && (!suits(t, c) || !apart(chain, t, s, c.rows)))
            return false;
    }
    return true;
}

void kiln_cuda_cut_strand(kiln_cuda_chain *chain, int64_t step)
{
    const int32_t strand = chain->steps[step].strand;
    int64_t members = 0;
    for (int64_t i = step; i < chain->nsteps; i++)
        members += chain->steps[i].strand == strand;
    cut c = {0};
    bool slabs = members > 1 && cut_strand(chain, strand, chain->nsteps, NULL, &c);
    for (int64_t i = chain->nsteps; i-- > step;) {
        kiln_cuda_step *s = &chain->steps[i];
        if (s->strand != strand)
            continue;
        s->strand = slabs ? strand : -1;
        s->slab = c.slab;
        s->units = slabs ? ceil_div(c.rows, c.slab) : s->units;
    }
}

bool kiln_cuda_recut_strand(kiln_cuda_chain *chain, int64_t step, int64_t slabs)
{
    const kiln_cuda_step first = chain->steps[step];
    cut c;
    if (first.strand < 0 || !first.slab || !join_cuts(chain, first.strand, chain->nsteps, NULL, &c) || c.slab)
        return false;
    for (int64_t i = step; i < chain->nsteps; i++) {
        kiln_cuda_step *s = &chain->steps[i];
        if (s->strand != first.strand)
            continue;
        s->slab = slab_of(c.rows, slabs);
        s->units = ceil_div(c.rows, s->slab);
    }
    return true;
}

int64_t kiln_cuda_slab_items(const kiln_cuda_chain *chain, const kiln_cuda_step *step)
{
    cut c;
    switch (step->kind) {
    case KILN_CUDA_STEP_COLUMNS: return takes_columns(step) ? columns_at_once(&step->group->k.p.r) : 1;
    case KILN_CUDA_STEP_COMBINE: return 1;
    case KILN_CUDA_STEP_MAP:
        return cut_strand(chain, step->strand, chain->nsteps, NULL, &c) ? step->slab * (step->group->k.p.count / c.rows)
                                                                        : 0;
    default: return step->slab;
    }
}
