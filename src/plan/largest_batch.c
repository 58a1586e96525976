/* How large a batch would fit: for the message of a step that is refused. The plan was made for one batch size; what of
 * its memory grows with the batch is told from sizes, and where in doubt taken for fixed, so that the answer rather
 * comes out too small. */
#include "core/alloc.h"
#include "plan/backend.h"
#include "tensor/memory.h"
#include "trace/trace.h"

/* Bytes as a function of the batch: fixed + per_item · batch. */
typedef struct growth {
    double fixed, per_item;
} growth;

static const kiln_storage *import_storage(const kiln_trace *tr, int64_t i)
{
    return tr->values[tr->values[tr->imports[i]].base].storage;
}

/* The batch a step was recorded with: what it takes from a data set, or the leading size of its largest operand that is
 * data. 0 if there is none. */
static int64_t batch_size(const kiln_trace *tr)
{
    extern const kiln_op kiln_op_take_samples;
    int64_t batch = 0;
    size_t largest = 0;
    for (int64_t i = tr->first_node; i < tr->nnodes; i++)
        if (tr->nodes[i].op == &kiln_op_take_samples)
            return tr->values[tr->nodes[i].out].shape[0];
    for (int64_t i = 0; i < tr->nimports; i++) {
        const kiln_value *v = &tr->values[tr->imports[i]];
        const kiln_storage *s = import_storage(tr, i);
        if (s->role == KILN_ROLE_DATA && v->ndim > 0 && s->bytes > largest) {
            largest = s->bytes;
            batch = v->shape[0];
        }
    }
    return batch;
}

/* Memory of the batch itself: the data operands with its leading size, which a smaller batch would shrink too. */
static double data_bytes(const kiln_trace *tr, int64_t batch)
{
    double bytes = 0;
    for (int64_t i = 0; i < tr->nslots; i++)
        bytes += tr->slots[i]->role == KILN_ROLE_DATA && tr->slots[i]->bytes % (size_t)batch == 0
                     ? (double)tr->slots[i]->bytes
                     : 0;
    return bytes;
}

/* A buffer as large as a parameter, in whatever dtype, is its gradient or a copy of it. */
static bool like_parameter(const kiln_trace *tr, int64_t bytes)
{
    for (int64_t i = 0; i < tr->nimports; i++) {
        const kiln_value *v = &tr->values[tr->imports[i]];
        int64_t n = (int64_t)(import_storage(tr, i)->bytes / kiln_dtype_size((kiln_dtype)v->dtype));
        if (import_storage(tr, i)->role == KILN_ROLE_PARAMETER &&
            (bytes == n || bytes == 2 * n || bytes == 4 * n || bytes == 8 * n))
            return true;
    }
    return false;
}

static bool is_product(const kiln_kernel *k)
{
    return k->op && k->op->cls == KILN_CLASS_MATMUL && k->nin == 2;
}

/* Whether a product copies its operands together before it starts depends on its size: the device is asked. */
static double product_workspace(const kiln_plan *p, const kiln_kernel *k, int64_t from, int64_t to)
{
    if (!is_product(k))
        return 0;
    kiln_operand in[2] = {k->in[0], k->in[1]};
    kiln_kernel smaller = *k;
    for (int i = 0; i < 2; i++)
        for (int d = 0; d < in[i].ndim; d++)
            if (in[i].shape[d] % from == 0)
                in[i].shape[d] = in[i].shape[d] / from * to;
    smaller.in = in;
    return (double)kiln_backend_workspace(p->device, &smaller);
}

static void add_buffer(growth *d, const kiln_buffer *b, int64_t batch, bool grows)
{
    if (grows)
        d->per_item += (double)b->bytes / (double)batch;
    d->fixed += (double)(grows ? KILN_BLOCK_ALIGN : b->bytes + KILN_BLOCK_ALIGN);
}

static double at_batch(const growth *d, int64_t batch)
{
    return d->fixed + d->per_item * (double)batch;
}

/* What all outputs and, by kernel, the live part of the arena growth; `live` has room for all kernels. */
static void survey(const kiln_trace *tr, const kiln_plan *p, int64_t batch, growth *outputs, growth *live)
{
    for (int64_t i = 0; i < p->nbuffers; i++) {
        const kiln_buffer *b = &p->buffers[i];
        bool work = b->role == KILN_ROLE_WORKSPACE,
             grows = !work && b->bytes % batch == 0 && !like_parameter(tr, b->bytes);
        if (work && is_product(&p->kernels[b->first]))
            continue; /* asked for again by product_workspace */
        if (b->place == KILN_IN_OUTPUT)
            add_buffer(outputs, b, batch, grows);
        for (int32_t k = b->first; b->place == KILN_IN_ARENA && k <= b->last; k++)
            add_buffer(&live[k], b, batch, grows);
    }
}

static double arena_at(const kiln_plan *p, const growth *live, int64_t from, int64_t batch)
{
    double most = 0;
    for (int64_t k = 0; k < p->nkernels; k++) {
        double bytes = at_batch(&live[k], batch) + product_workspace(p, &p->kernels[k], from, batch);
        most = bytes > most ? bytes : most;
    }
    return most;
}

int64_t kiln_plan_fitting_batch(const kiln_trace *tr, const kiln_plan *p, int64_t left, int64_t *batch)
{
    *batch = batch_size(tr);
    growth outputs = {0}, *live = *batch > 1 ? kiln_alloc_zero((size_t)p->nkernels, sizeof *live) : NULL;
    if (!live)
        return 0;
    survey(tr, p, *batch, &outputs, live);
    double data = data_bytes(tr, *batch), all = arena_at(p, live, *batch, *batch);
    /* Buffers leave holes between them, and with other sizes other ones: as large as now, and an eighth more. */
    double holes = all > 0 && (double)p->arena_bytes > all ? (double)p->arena_bytes / all + 0.125 : 1.125;
    int64_t low = 0, high = *batch; /* low fits, high does not */
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        double need = at_batch(&outputs, middle) + holes * arena_at(p, live, *batch, middle);
        double room = (double)left + data * (1 - (double)middle / (double)*batch);
        *(need <= room ? &low : &high) = middle;
    }
    kiln_free(live);
    return low;
}
