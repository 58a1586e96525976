/* All operations, family by family. */
#include <string.h>
#include "ops/op.h"

static const kiln_op *const *const families[] = {
    kiln_ops_pointwise, kiln_ops_view,    kiln_ops_shape, kiln_ops_create,    kiln_ops_random, kiln_ops_reduce,
    kiln_ops_scan,      kiln_ops_sort,    kiln_ops_index, kiln_ops_matmul,    kiln_ops_conv,   kiln_ops_pool,
    kiln_ops_resize,    kiln_ops_norm,    kiln_ops_nn,    kiln_ops_attention, kiln_ops_lstm,   kiln_ops_loss,
    kiln_ops_ctc,       kiln_ops_samples, kiln_ops_move,  kiln_ops_require,   kiln_ops_rotary,
};
enum { FAMILIES = sizeof families / sizeof *families };

const kiln_op *kiln_op_at(int i)
{
    for (int f = 0; f < FAMILIES; f++)
        for (const kiln_op *const *op = families[f]; *op; op++)
            if (i-- == 0)
                return *op;
    return NULL;
}

int kiln_op_count(void)
{
    int n = 0;
    for (int f = 0; f < FAMILIES; f++)
        for (const kiln_op *const *op = families[f]; *op; op++)
            n++;
    return n;
}

const kiln_op *kiln_op_find(const char *name)
{
    for (int f = 0; f < FAMILIES; f++)
        for (const kiln_op *const *op = families[f]; *op; op++)
            if (strcmp((*op)->name, name) == 0)
                return *op;
    return NULL;
}

unsigned kiln_op_reads(const kiln_op *op, int k)
{
    static const uint16_t unless_skipped[] = {
        KILN_READS_OPERANDS,
        [KILN_SKIPS_OPERANDS] = KILN_READS_RESULT,
        [KILN_SKIPS_RESULTS] = KILN_READS_OPERANDS,
        [KILN_SKIPS_BOTH] = KILN_READS_NOTHING,
    };
    unsigned said = 0;
    for (int i = 0; i <= k && i < 3; i++)
        said = op->grad_reads[i] ? op->grad_reads[i] : said;
    return said ? said : unless_skipped[op->grad_skips];
}
