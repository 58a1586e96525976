/* Products of a plan, with or without a group that finishes them: small ones by tiles (tiled.h), the rest by cuBLASLt,
 * which does some groups itself (epilogue.h) and some sums of operands (sums.h), or, without libraries and where the
 * library has no algorithm, by the plain kernel (plain.h).
 * The library takes matrices with one dim without gaps and one stride from matrix to matrix: operands that lie
 * otherwise are gathered first, and batches with more than one stride take several calls. */
#include "core/alloc.h"
#include "device/cuda/kernels/copy.h"
#include "device/cuda/common/depend.h"
#include "device/cuda/gemm/choice.h"
#include "device/cuda/gemm/epilogue.h"
#include "device/cuda/common/library.h"
#include "device/cuda/gemm/plain.h"
#include "device/cuda/gemm/tiled.h"
#include "device/cuda/gemm/matmul.h"
#include "device/cuda/group/program.h"

enum {
    ALIGNMENT = 256,    /* of what lies in the workspace */
    OPERAND_ALIGN = 64, /* of buffers */
    MAX_CALLS = 64,     /* beyond which operands are gathered so that fewer suffice */
    MAX_BATCH = 65535   /* matrices in a call */
};

typedef struct side {
    bool copied, turned;
    int64_t ld;
    int64_t stride[KILN_MAX_DIMS]; /* by dim of the batch; 0 where the operand is repeated */
    int64_t offset;                /* elements from the start of its buffer */
    kiln_cuda_window window;       /* what is copied … */
    size_t bytes;                  /* … and how much that is, rounded up; 0: nothing */
} side;

typedef struct job {
    kiln_dtype dtype;
    bool tf32;
    size_t element;
    int64_t m, n, k;
    int ndim; /* of the batch */
    int64_t shape[KILN_MAX_DIMS], c_stride[KILN_MAX_DIMS];
    int64_t count; /* matrices in all */
    side a, b;
    int inner; /* the dim of the batch that the library walks; -1: there is one matrix */
    bool small;
    kiln_cuda_matrices matrices; /* of a small one; its sides are left out */
    kiln_cuda_tiling tiling;
    kiln_cuda_epilogue end; /* what the library does of the group */
    bool aside; /* it goes to the workspace: where it belongs, something lies that the rest of the group reads */
    const kiln_operand *sum; /* what it makes beside the product; NULL: nothing */
    int64_t sum_of, scratch; /* of what that is the sum; bytes that the library may take */
} job;

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* ---- Operands ---- */

static void set_batch(job *j, const kiln_cuda_operand *a, const kiln_cuda_operand *b)
{
    int na = a->ndim - 2, nb = b->ndim - 2;
    j->ndim = na > nb ? na : nb;
    j->count = 1;
    for (int d = 0; d < j->ndim; d++) {
        int at_a = d - (j->ndim - na), at_b = d - (j->ndim - nb);
        int64_t size = at_a < 0 ? 1 : a->shape[at_a];
        j->shape[d] = size == 1 && at_b >= 0 ? b->shape[at_b] : size;
        j->count *= j->shape[d];
    }
}

/* Whether the library takes [rows, cols] with these strides as it is. A dim of size 1 may have any stride. */
static bool fits(side *s, int64_t rows, int64_t cols, int64_t row, int64_t col)
{
    if ((cols == 1 || col == 1) && (rows == 1 || row >= cols)) {
        s->turned = false;
        s->ld = rows == 1 ? cols : row;
        return true;
    }
    if ((rows == 1 || row == 1) && (cols == 1 || col >= rows)) {
        s->turned = true;
        s->ld = cols == 1 ? rows : col;
        return true;
    }
    return false;
}

/* Lets the operand be copied to dense matrices: those that differ, or, `full`, one for each of the batch. */
static void copy_side(side *s, const job *j, const kiln_cuda_operand *x, int64_t rows, int64_t cols, bool full)
{
    int missing = j->ndim - (x->ndim - 2);
    int64_t size = rows * cols;
    s->copied = true;
    s->turned = false;
    s->ld = cols;
    s->offset = 0;
    s->window = (kiln_cuda_window){.ndim = j->ndim + 2};
    for (int d = j->ndim; d-- > 0;) {
        int64_t from = d < missing || x->shape[d - missing] == 1 ? 0 : x->stride[d - missing];
        bool kept = j->shape[d] > 1 && (full || from);
        s->window.shape[d] = kept ? j->shape[d] : 1;
        s->window.stride[d] = from;
        s->stride[d] = kept ? size : 0;
        size *= s->window.shape[d];
    }
    s->window.shape[j->ndim] = rows;
    s->window.shape[j->ndim + 1] = cols;
    s->window.stride[j->ndim] = x->stride[x->ndim - 2];
    s->window.stride[j->ndim + 1] = x->stride[x->ndim - 1];
    s->bytes = round_up((size_t)size * j->element);
}

static void set_side(side *s, const job *j, const kiln_cuda_operand *x, const kiln_operand *o, int64_t rows,
                     int64_t cols)
{
    int missing = j->ndim - (x->ndim - 2);
    bool backwards = false;
    s->offset = o->offset;
    for (int d = 0; d < j->ndim; d++) {
        s->stride[d] = d < missing || x->shape[d - missing] == 1 ? 0 : x->stride[d - missing];
        backwards |= s->stride[d] < 0;
    }
    if (backwards || !fits(s, rows, cols, x->stride[x->ndim - 2], x->stride[x->ndim - 1]))
        copy_side(s, j, x, rows, cols, false);
}

/* ---- Batches ---- */

static bool goes_on(const side *s, int before, int d, int64_t size)
{
    return s->stride[before] == s->stride[d] * size;
}

/* Joins dims of the batch that are one walk for all three matrices, and picks the longest for the library. */
static void join(job *j)
{
    int n = 0;
    for (int d = 0; d < j->ndim; d++) {
        int64_t size = j->shape[d];
        if (size == 1)
            continue;
        if (n && goes_on(&j->a, n - 1, d, size) && goes_on(&j->b, n - 1, d, size))
            j->shape[n - 1] *= size;
        else
            j->shape[n++] = size;
        j->a.stride[n - 1] = j->a.stride[d];
        j->b.stride[n - 1] = j->b.stride[d];
    }
    j->ndim = n;
    j->inner = -1;
    int64_t step = j->m * j->n;
    for (int d = n; d-- > 0; step *= j->shape[d]) {
        j->c_stride[d] = step;
        if (j->inner < 0 || j->shape[d] > j->shape[j->inner])
            j->inner = d;
    }
}

static bool one_stride(const side *s, const job *j)
{
    int before = -1;
    for (int d = 0; d < j->ndim; d++) {
        if (j->shape[d] == 1)
            continue;
        if (before >= 0 && !goes_on(s, before, d, j->shape[d]))
            return false;
        before = d;
    }
    return true;
}

static int64_t calls(job j) /* a copy */
{
    join(&j);
    return j.inner < 0 ? 1 : j.count / j.shape[j.inner];
}

static bool too_large(const job *j, int64_t rows, int64_t cols)
{
    int64_t n;
    return __builtin_mul_overflow(rows, cols, &n) || __builtin_mul_overflow(n, j->count, &n) ||
           __builtin_mul_overflow(n, (int64_t)j->element, &n);
}

/* All but addresses. False when there is nothing to compute. */
static bool describe(job *j, const kiln_cuda_call *c)
{
    const kiln_cuda_operand *a = &c->in[0], *b = &c->in[1];
    const kiln_operand *in = c->kernel->in;
    *j =
        (job){.dtype = a->dtype, .tf32 = c->kernel->tf32 && a->dtype == KILN_F32, .element = kiln_dtype_size(a->dtype)};
    j->scratch = KILN_CUDA_LT_SCRATCH;
    j->m = a->shape[a->ndim - 2];
    j->k = a->shape[a->ndim - 1];
    j->n = b->shape[b->ndim - 1];
    set_batch(j, a, b);
    if (!j->m || !j->n || !j->count)
        return false;
    j->small = kiln_cuda_tiled_of(c, &j->matrices, &j->tiling) && (c->tiling || !j->tiling.large);
    if (j->k && !j->small) {
        set_side(&j->a, j, a, &in[0], j->m, j->k);
        set_side(&j->b, j, b, &in[1], j->k, j->n);
        if (calls(*j) > MAX_CALLS) {
            if (!one_stride(&j->a, j) && !too_large(j, j->m, j->k))
                copy_side(&j->a, j, a, j->m, j->k, true);
            if (!one_stride(&j->b, j) && !too_large(j, j->k, j->n))
                copy_side(&j->b, j, b, j->k, j->n, true);
        }
    }
    join(j);
    return true;
}

/* ---- What the library is asked for ---- */

/* The largest power of two, at most OPERAND_ALIGN, that divides all distances between addresses that calls begin at. */
static int64_t alignment(const job *j, int64_t offset, const int64_t *stride)
{
    uint64_t all = (uint64_t)offset;
    for (int d = 0; d < j->ndim; d++)
        all |= (uint64_t)stride[d];
    all = all * j->element | OPERAND_ALIGN;
    return (int64_t)(all & -all);
}

static kiln_cuda_matrix matrix_of(const job *j, const side *s, int64_t batch)
{
    return (kiln_cuda_matrix){.turned = s->turned,
                              .ld = s->ld,
                              .stride = batch > 1 ? s->stride[j->inner] : 0,
                              .align = alignment(j, s->offset, s->stride)};
}

static kiln_cuda_product product_of(const job *j, int64_t batch, int64_t c_offset)
{
    return (kiln_cuda_product){.dtype = j->dtype,
                               .tf32 = j->tf32,
                               .m = j->m,
                               .n = j->n,
                               .k = j->k,
                               .batch = batch,
                               .a = matrix_of(j, &j->a, batch),
                               .b = matrix_of(j, &j->b, batch),
                               .c_stride = batch > 1 ? j->c_stride[j->inner] : 0,
                               .c_align = alignment(j, c_offset, j->c_stride),
                               .bias = j->end.bias != NULL,
                               .sum = j->sum_of,
                               .scratch = j->scratch};
}

static int64_t inner_size(const job *j)
{
    return j->inner < 0 ? 1 : j->shape[j->inner];
}

/* Where the result's first element lies in its buffer; the workspace's is aligned. */
static int64_t result_offset(const kiln_cuda_call *c, const job *j)
{
    return j->end.to && !j->aside ? j->end.to->offset : c->kernel->group ? 0 : c->kernel->out[0].offset;
}

/* Whether what the rest of the group reads lies where the sum belongs: groups may write over their operands. */
static bool is_in_the_way(const kiln_cuda_call *c, const kiln_cuda_epilogue *e)
{
    const kiln_group *g = c->kernel->group;
    for (int i = 0; i < g->nloads && e->goes_on; i++)
        if (g->loads[i].buffer == e->to->buffer || kiln_cuda_share_memory(c->plan, g->loads[i].buffer, e->to->buffer))
            return true;
    return false;
}

/* Lets the library do the group, or its beginning, where it can. False with an error. */
static bool find_end(const kiln_cuda_call *c, job *j)
{
    bool has = false;
    if (!j->k || j->small || j->count != 1 || !kiln_cuda_libraries_wanted() ||
        kiln_cuda_way_of(c->kernel->choice.how) == KILN_CUDA_BY_LIBRARY)
        return true;
    j->end = kiln_cuda_epilogue_of(c->kernel, j->n);
    if (!j->end.to)
        return true;
    kiln_cuda_product p = product_of(j, 1, result_offset(c, j));
    if (!kiln_cuda_lt_has(c->device, &p, &has))
        return false;
    if (!has)
        j->end = (kiln_cuda_epilogue){0};
    j->aside = has && c->binding && is_in_the_way(c, &j->end);
    return true;
}

/* Scratch of the library's, over all calls. */
static bool library_bytes(const kiln_cuda_call *c, const job *j, size_t *bytes)
{
    int64_t size = inner_size(j),
            sizes[] = {size < MAX_BATCH ? size : MAX_BATCH, size > MAX_BATCH ? size % MAX_BATCH : 0};
    *bytes = 0;
    for (int i = 0; i < 2 && kiln_cuda_libraries_wanted(); i++) {
        size_t more = 0;
        kiln_cuda_product p = product_of(j, sizes[i], result_offset(c, j));
        if (sizes[i] && !kiln_cuda_lt_bytes(c->device, &p, &more))
            return false;
        *bytes = more > *bytes ? more : *bytes;
    }
    *bytes = round_up(*bytes);
    return true;
}

/* ---- Room ---- */

/* The workspace: the product, where a group's kernel is to finish it or may have to; behind it first what the product
 * takes, then what the group takes. */
static size_t product_bytes(const kiln_cuda_call *c, const job *j)
{
    return c->kernel->group && (!j->end.to || j->end.goes_on) ? round_up((size_t)(j->count * j->m * j->n) * j->element)
                                                              : 0;
}

static size_t partial_bytes(const job *j) /* of a small one; only its sizes matter */
{
    return round_up(kiln_cuda_tiling_partials(&j->tiling, kiln_cuda_sizes_of(&j->matrices, &j->tiling, true, NULL)));
}

static size_t workspace(const kiln_cuda_call *c)
{
    job j;
    size_t library = 0;
    if (!describe(&j, c) || !kiln_cuda_enter(c->device) || !find_end(c, &j) ||
        (j.k && !j.small && !library_bytes(c, &j, &library)))
        return 0; /* what is wrong is said when it is launched */
    size_t scratch = j.small ? partial_bytes(&j) : j.a.bytes + j.b.bytes + library;
    size_t group = c->kernel->group ? kiln_cuda_group_workspace(c->device, c->kernel->group) : 0;
    size_t bytes = product_bytes(c, &j) + (scratch > group ? scratch : group);
    return bytes ? bytes + ALIGNMENT : 0; /* buffers are aligned to less */
}

/* Whether the kernel will be of a chain is not known yet. */
size_t kiln_cuda_matmul_workspace(const kiln_cuda_call *c)
{
    kiln_cuda_matrices m;
    kiln_cuda_tiling t;
    kiln_cuda_call chained = *c;
    chained.tiling = &t;
    size_t alone = workspace(c), with_tiles = kiln_cuda_tiled_of(c, &m, &t) && t.large ? workspace(&chained) : 0;
    return alone > with_tiles ? alone : with_tiles;
}

static char *aligned(void *workspace)
{
    return (char *)(uintptr_t)(((uintptr_t)workspace + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

/* What is left of the workspace for the library. */
static size_t scratch_bytes(const kiln_cuda_call *c, const job *j)
{
    int32_t buffer = c->kernel->workspace;
    return buffer < 0
               ? 0
               : (size_t)c->plan->buffers[buffer].bytes - ALIGNMENT - product_bytes(c, j) - j->a.bytes - j->b.bytes;
}

/* ---- Sums ---- */

/* When room was made nobody knew of the sum: the library has to do with what there is. */
static void find_sum(const kiln_cuda_call *c, job *j)
{
    j->sum = kiln_cuda_sum(c->kernel, &j->sum_of);
    if (j->sum)
        j->scratch = (int64_t)scratch_bytes(c, j);
}

/* Where the product's operands may be rounded to TF32 the sum's might be, too; the library has no sums in f64; and it
 * does not make what goes straight to a slot. */
bool kiln_cuda_matmul_can_sum(const kiln_cuda_call *c, bool *can)
{
    job j;
    *can = false;
    if (!kiln_cuda_libraries_wanted() || !describe(&j, c) || !j.k || j.small || j.count != 1 || j.tf32 ||
        j.dtype == KILN_F64 || (!c->kernel->group && kiln_cuda_writes_slot(c->plan, c->kernel)))
        return true;
    if (!kiln_cuda_enter(c->device) || !find_end(c, &j))
        return false;
    if (j.end.to)
        return true;
    find_sum(c, &j);
    kiln_cuda_product p = product_of(&j, 1, result_offset(c, &j));
    return kiln_cuda_lt_has(c->device, &p, can);
}

/* ---- Choices ---- */

bool kiln_cuda_matmul_choose(const kiln_cuda_call *c, uint64_t *choice)
{
    job j;
    *choice = 0;
    if (!describe(&j, c))
        return true;
    if (!find_end(c, &j))
        return false;
    *choice = j.small ? kiln_cuda_choose_tiles(&j.tiling) : j.end.to ? KILN_CUDA_WITH_BIAS : KILN_CUDA_BY_LIBRARY;
    return true;
}

/* ---- Launching ---- */

static const char *gathered(const kiln_cuda_call *c, const job *j, const side *s, const kiln_cuda_operand *x,
                            char *room)
{
    if (!s->copied)
        return x->data;
    kiln_cuda_gather(c->stream, room, x->data, j->element, &s->window);
    return room;
}

/* One call, of the library or of what stands in for it, which makes no sums: the library takes no dims of 2^31. */
static bool multiply_once(const kiln_cuda_call *c, const kiln_cuda_product *p, const char *a, const char *b,
                          void *vector, char *to, void *scratch, size_t bytes)
{
    bool takes = false;
    if (kiln_cuda_libraries_wanted() && !kiln_cuda_lt_has(c->device, p, &takes))
        return false;
    if (takes || p->sum)
        return kiln_cuda_lt_run(c->device, p, a, b, vector, to, scratch, bytes);
    kiln_cuda_plain_run(c->stream, p, a, b, to);
    return true;
}

/* One call for each element of the batch's dims but the inner one. */
static bool multiply(const kiln_cuda_call *c, const job *j, char *to, char *room)
{
    size_t bytes = scratch_bytes(c, j);
    const char *a = gathered(c, j, &j->a, &c->in[0], room);
    const char *b = gathered(c, j, &j->b, &c->in[1], room + j->a.bytes);
    const kiln_operand *vector = j->end.bias ? j->end.bias : j->sum;
    void *vector_at = vector ? kiln_cuda_address(c, vector) : NULL;
    void *scratch = room + j->a.bytes + j->b.bytes;
    int64_t size = inner_size(j), element = (int64_t)j->element;
    for (int64_t i = 0; i < j->count / size; i++) {
        int64_t rest = i, at_a = 0, at_b = 0, at_c = 0;
        for (int d = j->ndim; d-- > 0;) {
            if (d == j->inner)
                continue;
            int64_t index = rest % j->shape[d];
            rest /= j->shape[d];
            at_a += index * j->a.stride[d];
            at_b += index * j->b.stride[d];
            at_c += index * j->c_stride[d];
        }
        for (int64_t done = 0; done < size; done += MAX_BATCH) {
            int64_t batch = size - done < MAX_BATCH ? size - done : MAX_BATCH, skip = j->inner < 0 ? 0 : done;
            int64_t in = j->inner < 0 ? 0 : j->inner;
            kiln_cuda_product p = product_of(j, batch, result_offset(c, j));
            if (!multiply_once(c, &p, a + (at_a + skip * j->a.stride[in]) * element,
                               b + (at_b + skip * j->b.stride[in]) * element, vector_at,
                               to + (at_c + skip * j->c_stride[in]) * element, scratch, bytes))
                return false;
        }
    }
    return true;
}

/* `group`: what is done behind the product by a kernel of its own; NULL: nothing. */
static bool launch(const kiln_cuda_call *c, const job *j, const kiln_group *group)
{
    char *room = aligned(c->workspace);
    bool placed = j->end.to && !j->aside;
    char *to = placed ? kiln_cuda_address(c, j->end.to) : group ? room : c->out[0].data;
    room += product_bytes(c, j);
    const int32_t *stop = group ? NULL : c->stop; /* the group heeds it */
    if (!j->k)
        kiln_cuda_zero(c->stream, to, (size_t)(j->count * j->m * j->n) * j->element, stop);
    else if (j->small) {
        if (!kiln_cuda_tiled_launch(c, &j->matrices, &j->tiling, j->dtype, to, (float *)(void *)room))
            return false;
    } else if (stop) /* plans write slots by groups, so this is here for the sake of the rule */
        kiln_cuda_plain_guarded(c);
    else if (!multiply(c, j, to, room))
        return false;
    if (!kiln_cuda_launched(c))
        return false;
    if (!group)
        return true;
    kiln_cuda_call rest = *c;
    rest.workspace = room;
    return kiln_cuda_group_launch(&rest, group, to);
}

bool kiln_cuda_matmul_launch(const kiln_cuda_call *c)
{
    job j;
    if (!describe(&j, c))
        return true;
    if (!find_end(c, &j))
        return false;
    find_sum(c, &j);
    if (!j.end.to)
        return launch(c, &j, c->kernel->group);
    kiln_group *rest = j.end.goes_on ? kiln_cuda_epilogue_rest(c->kernel, &j.end, j.aside) : NULL;
    bool ok = (rest || !j.end.goes_on) && launch(c, &j, rest);
    kiln_free(rest);
    return ok;
}
