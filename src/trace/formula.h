/* Formulas: several pointwise operations on tensors, and what they end in, recorded as one node. They end in
 * assignments (an optimizer's update of a parameter does) or in results (a gradient without its scale, and how many of
 * its elements are not finite). The host then pays for one node instead of sixteen; planning writes formulas out
 * (plan/expand.c), so that everything behind it sees what it would see had they been written operation by operation.
 *
 * A formula is built from registers: the first ones are its inputs, every row adds one. Its rows are integers of the
 * node and part of the plan's identity, its numbers are run-time scalars. */
#ifndef KILN_TRACE_FORMULA_H
#define KILN_TRACE_FORMULA_H

#include "ops/pointwise.h"

enum { KILN_FORMULA_INPUTS = 16, KILN_FORMULA_ROWS = 2 * KILN_MAX_INTS };
enum { KILN_FORMULA_REGISTERS = KILN_FORMULA_INPUTS + KILN_FORMULA_ROWS };

typedef int kiln_register;

typedef struct kiln_formula {
    kiln_call call;
    kiln_tensor *in[KILN_FORMULA_INPUTS];
    kiln_register to[KILN_MAX_OUTPUTS]; /* the inputs that are assigned to, in order; of results 0, of counts -1 */
    uint8_t dtype[KILN_FORMULA_REGISTERS];
    int nrows;
    bool full;   /* more was written than there is room for */
    bool uneven; /* operands of a row differ in type: it is written operation by operation, which converts them */
} kiln_formula;

/* Starts a formula; its first n registers are the inputs (NULL where one is absent and will not be used, or is set
 * later and expected to be of a type). */
void kiln_formula_begin(kiln_formula *p, kiln_tensor *const *in, int n);
void kiln_formula_expect(kiln_formula *p, kiln_register input, kiln_dtype dtype);

/* A row of pointwise.def with at most one number of its own, and no cast; operands and numbers beyond its own are
 * ignored. Operands broadcast to the shape of what the formula ends in, so a tensor without dims is a number that the
 * device has: a rate, a count of steps. Tests make flags, which where() takes. */
kiln_register kiln_formula_put(kiln_formula *p, kiln_pw_id row, kiln_register a, kiln_register b, double s);
kiln_register kiln_formula_put3(kiln_formula *p, kiln_pw_id row, kiln_register a, kiln_register b, kiln_register c,
                                double s);
kiln_register kiln_formula_cast(kiln_formula *p, kiln_register a, kiln_dtype dtype);

/* The same formula for as many other inputs, of the same types. */
void kiln_formula_set_inputs(kiln_formula *p, kiln_tensor *const *in);

/* ---- What a formula ends in: assignments, or results ---- */

/* The input `to` holds the register's value from now on. */
void kiln_formula_assign(kiln_formula *p, kiln_register to, kiln_register value);

/* Records it; false with an error. Outside kiln_no_grad, where destinations differ in shape, operands in type, or
 * memory is laid out otherwise, it is written operation by operation, which means the same. */
bool kiln_formula_record(kiln_formula *p);

/* The next result: the register's value, of the first input's shape; or the number of elements of it, a flag, that are
 * true, which is an i64 without dims. The first result is of the former kind. */
void kiln_formula_result(kiln_formula *p, kiln_register value);
void kiln_formula_count(kiln_formula *p, kiln_register flag);

/* Records it; out[j] receives handles that the scope owns. False with an error. */
bool kiln_formula_compute(kiln_formula *p, kiln_tensor **out);

/* ---- For the planner ---- */

extern const kiln_op kiln_op_formula;

/* Row i of a formula whose integers are given, two rows in each. KILN_PW_copy and KILN_FORMULA_COUNT make the node's
 * next output; with the last of them the formula ends. The second source of a cast is the dtype. */
enum { KILN_FORMULA_COUNT = KILN_PW_ROWS };
typedef struct kiln_formula_row {
    int row; /* kiln_pw_id, or KILN_FORMULA_COUNT */
    kiln_register src[3];
} kiln_formula_row;
kiln_formula_row kiln_formula_row_at(const int64_t *ints, int i);
static inline bool kiln_formula_row_ends(int row)
{
    return row == KILN_PW_copy || row == KILN_FORMULA_COUNT;
}

/* The type of what a row makes of operands of these types. */
kiln_dtype kiln_formula_dtype(int row, const uint8_t operands[3]);

#endif
