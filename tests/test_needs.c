/* What gradients read: each operation's, when a value was read before kiln_backward and nobody holds its operands and
 * results any more. The gradients are the same as without that, so all that they read was kept; and what is kept is
 * read in one of the cases at least, so nothing is kept in vain. */
#include <math.h>
#include "support/core.h"
#include "support/layouts.h"
#include "support/suite.h"
#include "trace/trace.h"

enum { LARGEST = 5000 }; /* elements of an operand: larger cases are about how work is split */

static kiln_dtype dtype; /* of the operands */
static double tolerance; /* with 16 bits: what is fused differs, and with it what is rounded */

/* What a record says is read, and what was read, over all cases of an operation: KILN_READS_*. With all operands
 * wanting gradients, and with each alone: products read the other one. */
enum { ALL = KILN_MAX_INPUTS, VARIANTS = ALL + 1 };
typedef struct reads {
    unsigned said[VARIANTS], seen[VARIANTS];
    int64_t checked;
} reads;

static bool place(const test_case *c, kiln_tensor **leaf)
{
    for (int k = 0; k < c->nin; k++) {
        leaf[k] = NULL;
        if (c->in[k].kind == '-')
            continue;
        ref_tensor values;
        operand_values(c, k, dtype, LAYOUT_DENSE, &values);
        placed_operand placed = {0};
        bool ok = operand_place(&values, LAYOUT_DENSE, KILN_CPU, &placed);
        free(placed.bits);
        operand_free(&values);
        leaf[k] = placed.tensor;
        if (!ok)
            return false;
    }
    return true;
}

/* The only node of the operation from the first one on; -1 where it is written by others. */
static int64_t node_of(const kiln_op *op, int64_t first)
{
    const kiln_trace *tr = kiln_trace_current();
    int64_t found = -1;
    for (int64_t i = first; i < tr->nnodes; i++)
        if (tr->nodes[i].op == op) {
            if (found >= 0)
                return -1;
            found = i;
        }
    return found;
}

/* The sum of the operation's results, weighted, and the operation's node; of the operands and results nothing but the
 * trace is left. */
static kiln_tensor *loss_of(const test_case *c, kiln_tensor *const *leaf, int64_t *node)
{
    kiln_tensor *in[KILN_MAX_INPUTS] = {NULL}, *outs[KILN_MAX_OUTPUTS] = {NULL}, *loss = NULL;
    for (int k = 0; k < c->nin; k++)
        in[k] = leaf[k] && kiln_needs_grad(leaf[k]) ? kiln_mul_scalar(leaf[k], 1) : leaf[k];
    int64_t first = kiln_trace_current()->nnodes;
    if (!kiln_op_call(c->op, in, c->nin, &c->attrs, outs))
        return NULL;
    *node = node_of(c->op, first);
    for (int j = 0; j < (c->op->nout ? c->op->nout : 1); j++) {
        if (!outs[j] || kiln_dtype_of(outs[j]) != dtype || !kiln_needs_grad(outs[j]))
            continue;
        kiln_tensor *ramp = kiln_reshape(kiln_linspace(0.5, 1.5, kiln_numel(outs[j]), KILN_F32), kiln_ndim(outs[j]),
                                         kiln_shape(outs[j]));
        kiln_tensor *sum = kiln_sum_all(kiln_mul(kiln_cast(outs[j], KILN_F64), ramp));
        loss = loss ? kiln_add(loss, sum) : sum;
    }
    if (loss)
        kiln_keep(loss);
    for (int k = 0; k < c->nin; k++)
        if (in[k] != leaf[k])
            kiln_release(in[k]);
    for (int j = 0; j < KILN_MAX_OUTPUTS; j++)
        if (outs[j] && outs[j] != loss)
            kiln_release(outs[j]);
    return loss;
}

static unsigned bit_of(int operand)
{
    return 1u << (operand < 7 ? operand : 7);
}

static void note_said(const kiln_trace *tr, const kiln_node *n, unsigned *said)
{
    unsigned reads = kiln_trace_reads(tr, n), there = KILN_READS_RESULT;
    for (int k = 0; k < n->nin; k++)
        if (tr->operands[n->in + k] >= 0)
            there |= bit_of(k);
    *said |= reads & there;
}

/* What the pending segment, which is the gradient, has brought in of the node's operands and results. */
static void note_seen(const kiln_trace *tr, const kiln_node *n, unsigned *seen)
{
    for (int64_t i = 0; i < tr->nimports; i++) {
        int32_t base = tr->values[tr->imports[i]].base;
        for (int k = 0; k < n->nin; k++)
            if (tr->operands[n->in + k] >= 0 && tr->values[tr->operands[n->in + k]].base == base)
                *seen |= bit_of(k);
        for (int j = 0; j < n->nout; j++)
            if (tr->values[n->out + j].base == base)
                *seen |= KILN_READS_RESULT;
    }
}

/* Whether gradients of this variant are there, in grads[k], new ones that the caller releases. */
static bool gradients(const test_case *c, kiln_tensor *const *leaf, bool read, reads *r, int variant,
                      kiln_tensor **grads)
{
    bool there = false;
    kiln_step {
        int64_t node = -1;
        kiln_tensor *loss = loss_of(c, leaf, &node);
        const kiln_trace *tr = kiln_trace_current();
        if (loss && read) {
            kiln_item(loss);
            if (node >= 0)
                note_said(tr, &tr->nodes[node], &r->said[variant]);
        }
        there = loss && kiln_backward(loss);
        if (there && read && node >= 0)
            note_seen(tr, &tr->nodes[node], &r->seen[variant]);
        for (int k = 0; k < c->nin; k++)
            grads[k] = there && leaf[k] && kiln_needs_grad(leaf[k]) && kiln_grad_of(leaf[k])
                           ? kiln_keep(kiln_clone(kiln_grad_of(leaf[k])))
                           : NULL;
        kiln_release(loss);
    }
    for (int k = 0; k < c->nin; k++)
        if (leaf[k])
            kiln_zero_grad_of(leaf[k]);
    return there;
}

static double largest_difference(kiln_tensor *a, kiln_tensor *b)
{
    double most = 0;
    if (kiln_numel(a))
        kiln_scope {
            kiln_tensor *scale = kiln_add_scalar(kiln_abs(a), 1);
            most = kiln_item(kiln_amax(kiln_div(kiln_abs(kiln_sub(a, b)), scale), 0, NULL, false));
        }
    return most;
}

static void compare(const test_case *c, kiln_tensor *const *leaf, reads *r, int variant)
{
    kiln_tensor *want[KILN_MAX_INPUTS], *got[KILN_MAX_INPUTS];
    if (!gradients(c, leaf, false, r, variant, want)) {
        kiln_error_clear(); /* nothing to differentiate */
        return;
    }
    if (!gradients(c, leaf, true, r, variant, got))
        complain(c->op->name, "gradient of '%s' after a read: %s", c->text, kiln_last_error()->message);
    kiln_error_clear();
    for (int k = 0; k < c->nin; k++) {
        double most = want[k] && got[k] ? largest_difference(want[k], got[k]) : want[k] || got[k] ? INFINITY : 0;
        if (!(most <= tolerance))
            complain(c->op->name, "gradient %d of '%s' is another after a read: by %g", k, c->text, most);
        kiln_release(want[k]);
        kiln_release(got[k]);
    }
    r->checked++;
}

static void check_case(const test_case *c, void *context)
{
    for (int k = 0; k < c->nin; k++)
        if (case_count(&c->in[k]) > LARGEST)
            return;
    kiln_scope {
        kiln_tensor *leaf[KILN_MAX_INPUTS];
        assert_true(place(c, leaf));
        for (int variant = 0; variant < VARIANTS; variant++) {
            int wanted = 0;
            for (int k = 0; k < c->nin; k++) {
                bool may = leaf[k] && kiln_dtype_of(leaf[k]) == dtype && !gradient_is_constant(c->op->name, k);
                if (leaf[k] && kiln_dtype_of(leaf[k]) == dtype)
                    kiln_requires_grad(leaf[k], may && (variant == ALL || variant == k));
                wanted += may && (variant == ALL || variant == k);
            }
            if (wanted)
                compare(c, leaf, context, variant);
        }
    }
    kiln_memory_trim(KILN_CPU);
}

static void check_operations(kiln_dtype with, double within)
{
    int64_t checked = 0;
    dtype = with;
    tolerance = within;
    for (int i = 0; i < kiln_op_count(); i++) {
        const kiln_op *op = kiln_op_at(i);
        if (!suite_wants(op) || !(op->dtypes >> dtype & 1))
            continue;
        reads r = {0};
        suite_cases(op, check_case, &r);
        checked += r.checked;
        for (int v = 0; v < VARIANTS; v++)
            if (dtype == KILN_F64 && r.said[v] & ~r.seen[v])
                complain(op->name, "keeps %#x in vain: reads %#x, where operand %d (%d: each) wants a gradient",
                         r.said[v] & ~r.seen[v], r.seen[v], v, ALL);
    }
    assert_true(checked > 100);
    assert_int_equal(complaints(), 0);
}

static void test_operations(void **state)
{
    (void)state;
    skip_if_eager();
    check_operations(KILN_F64, 1e-12);
    check_operations(KILN_BF16, 0.05);
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_operations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
