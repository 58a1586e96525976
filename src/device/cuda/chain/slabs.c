/* Strands of slabs: links that work row by row, on the same number of rows, can follow each other in a block, which
 * takes the same slab of rows of each. For sums of whole columns, and what follows them, the rows are these columns. A
 * barrier of that block is enough between them, as long as no slab needs what another one has made. That follows from
 * memory: whatever two of the links share, one of them writing, must belong to the same row in both. */
#include "device/cuda/chain/link.h"

enum {
    LEAST_SLAB = 4 /* rows, and slabs are multiples of as many: they begin where four elements can be moved at once */
};

typedef struct cut { /* of a strand */
    int64_t rows;
    int64_t slab; /* rows; 0: any number */
    int64_t most; /* units that any of the links would have by itself */
} cut;

/* ---- How links can be cut ---- */

static bool cut_of(const kiln_cuda_chain *chain, const kiln_cuda_link *l, kiln_cuda_cut *c)
{
    return l->kind->cut && l->kind->cut(chain, l, c);
}

bool kiln_cuda_has_rows(const kiln_cuda_chain *chain, const kiln_cuda_link *link)
{
    kiln_cuda_cut c;
    return cut_of(chain, link, &c);
}

/* Makes *c suit the link too. */
static bool join_cut(const kiln_cuda_chain *chain, const kiln_cuda_link *s, cut *c)
{
    kiln_cuda_cut one;
    if (!cut_of(chain, s, &one) || (c->rows && one.rows && c->rows != one.rows) ||
        (c->slab && one.slab && c->slab != one.slab))
        return false;
    c->rows = c->rows ? c->rows : one.rows;
    c->slab = c->slab ? c->slab : one.slab;
    c->most = s->units > c->most ? s->units : c->most;
    return true;
}

/* What a strand's links below `end` ask for, with one more link if there is one. */
static bool join_cuts(const kiln_cuda_chain *chain, int32_t strand, int64_t end, const kiln_cuda_link *more, cut *c)
{
    *c = (cut){0};
    for (int64_t i = 0; i < end; i++)
        if (chain->links[i].strand == strand && !join_cut(chain, &chain->links[i], c))
            return false;
    return !more || join_cut(chain, more, c);
}

static int64_t slab_of(int64_t rows, int64_t slabs)
{
    return kiln_cuda_ceil_div(kiln_cuda_ceil_div(rows, slabs), LEAST_SLAB) * LEAST_SLAB;
}

/* The same, with slabs where the links do not mind. */
static bool cut_strand(const kiln_cuda_chain *chain, int32_t strand, int64_t end, const kiln_cuda_link *more, cut *c)
{
    if (!join_cuts(chain, strand, end, more, c) || c->rows < 1)
        return false;
    if (!c->slab)
        c->slab = slab_of(c->rows, c->most < chain->costs->blocks ? c->most : chain->costs->blocks);
    return true;
}

/* Whether a link with so many rows is left enough blocks. */
static bool suits(const kiln_cuda_chain *chain, const kiln_cuda_link *l, cut c)
{
    int64_t blocks = l->units < chain->costs->blocks ? l->units : chain->costs->blocks;
    kiln_cuda_cut own;
    return cut_of(chain, l, &own) && (!own.elements || own.elements % c.rows == 0) &&
           kiln_cuda_ceil_div(c.rows, c.slab) * 2 >= blocks;
}

/* ---- What links touch ---- */

typedef struct touch {
    int32_t buffer;
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

static bool has_second(const kiln_cuda_chain *chain, const kiln_cuda_link *l)
{
    return l + 1 < chain->links + chain->nlinks && l[1].kind->second && l[1].kernel == l->kernel;
}

/* Whether a link does what its kernel does there: the second half of a reduction reads what the first left in the
 * workspace, and has the result. */
static bool takes_part(const kiln_cuda_chain *chain, const kiln_cuda_link *l, const kiln_access *a)
{
    if (l->kind->second)
        return a->kind >= KILN_ACCESS_REDUCTION;
    return a->kind != KILN_ACCESS_REDUCTION || !has_second(chain, l);
}

/* Whether rows of the link touch rows of what it accesses. */
static bool is_by_rows(const kiln_cuda_cut *c, const kiln_access *a)
{
    if (a->kind == KILN_ACCESS_REDUCTION)
        return true;
    return a->operand && !c->columns && !(c->whole_second && a->kind == KILN_ACCESS_OPERAND && a->number > 0);
}

static touch touch_of(const kiln_cuda_chain *chain, const kiln_cuda_link *l, const kiln_access *a, int64_t rows)
{
    touch t = {.buffer = a->buffer, .writes = a->writes};
    kiln_cuda_cut c = {0};
    cut_of(chain, l, &c);
    if (!a->operand)
        t.writes = !l->kind->second;
    else {
        int64_t size = (int64_t)kiln_dtype_size((kiln_dtype)a->operand->dtype);
        t.from = a->operand->offset * size;
        t.row = is_by_rows(&c, a) ? row_of(a->operand, rows) * size : 0;
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

static bool apart(const kiln_cuda_chain *chain, const kiln_cuda_link *s, const kiln_cuda_link *t, int64_t rows)
{
    const kiln_kernel *k = kiln_cuda_link_kernel(chain, s), *other = kiln_cuda_link_kernel(chain, t);
    for (kiln_access a = {0}; kiln_next_access(k, &a);)
        for (kiln_access b = {0}; takes_part(chain, s, &a) && kiln_next_access(other, &b);) {
            touch x = touch_of(chain, s, &a, rows), y = touch_of(chain, t, &b, rows);
            if (takes_part(chain, t, &b) && !row_by_row(chain->plan, &x, &y))
                return false;
        }
    return true;
}

/* ---- Strands ---- */

bool kiln_cuda_goes_on(const kiln_cuda_chain *chain, int64_t link, int32_t strand)
{
    const kiln_cuda_link *s = &chain->links[link];
    cut c;
    if (!cut_strand(chain, strand, link, s, &c) || !suits(chain, s, c))
        return false;
    for (int64_t i = 0; i < link; i++) {
        const kiln_cuda_link *t = &chain->links[i];
        if (t->strand == strand && (!suits(chain, t, c) || !apart(chain, t, s, c.rows)))
            return false;
    }
    return true;
}

void kiln_cuda_cut_strand(kiln_cuda_chain *chain, int64_t link)
{
    const int32_t strand = chain->links[link].strand;
    int64_t members = 0;
    for (int64_t i = link; i < chain->nlinks; i++)
        members += chain->links[i].strand == strand;
    cut c = {0};
    bool slabs = members > 1 && cut_strand(chain, strand, chain->nlinks, NULL, &c);
    for (int64_t i = chain->nlinks; i-- > link;) {
        kiln_cuda_link *s = &chain->links[i];
        if (s->strand != strand)
            continue;
        s->strand = slabs ? strand : -1;
        s->slab = c.slab;
        s->units = slabs ? kiln_cuda_ceil_div(c.rows, c.slab) : s->units;
    }
}

bool kiln_cuda_recut_strand(kiln_cuda_chain *chain, int64_t link, int64_t slabs)
{
    const kiln_cuda_link first = chain->links[link];
    cut c;
    if (first.strand < 0 || !first.slab || !join_cuts(chain, first.strand, chain->nlinks, NULL, &c) || c.slab)
        return false;
    for (int64_t i = link; i < chain->nlinks; i++) {
        kiln_cuda_link *s = &chain->links[i];
        if (s->strand != first.strand)
            continue;
        s->slab = slab_of(c.rows, slabs);
        s->units = kiln_cuda_ceil_div(c.rows, s->slab);
    }
    return true;
}

int64_t kiln_cuda_slab_items(const kiln_cuda_chain *chain, const kiln_cuda_link *link)
{
    kiln_cuda_cut own = {0};
    cut c;
    cut_of(chain, link, &own);
    if (own.items)
        return own.items;
    if (!own.elements)
        return link->slab;
    return cut_strand(chain, link->strand, chain->nlinks, NULL, &c) ? link->slab * (own.elements / c.rows) : 0;
}
