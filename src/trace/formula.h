/* Formulas: several pointwise operations on tensors, and the assignments they end in, recorded as one
 * node. An optimizer's update of a parameter is one. The host then pays for one node instead of sixteen; planning
 * writes formulas out (plan/expand.c), so that everything behind it sees what it would see had they been written
 * operation by operation.
 *
 * A formula is built from registers: the first ones are its inputs, every row adds one. Its rows are integers of the
 * node and part of the plan's identity, its numbers are run-time scalars. */
#ifndef KILN_TRACE_FORMULA_H
#define KILN_TRACE_FORMULA_H

#include "ops/pointwise.h"

enum { KILN_FORMULA_INPUTS = 10, KILN_FORMULA_ROWS = 2 * KILN_MAX_INTS };
enum { KILN_FORMULA_REGISTERS = KILN_FORMULA_INPUTS + KILN_FORMULA_ROWS };

typedef int kiln_register;

typedef struct kiln_formula {
    kiln_call call;
    kiln_tensor *in[KILN_FORMULA_INPUTS];
    kiln_register to[KILN_MAX_OUTPUTS]; /* the inputs that are assigned to, in order */
    int nrows;
    bool full; /* more was written than there is room for */
} kiln_formula;

/* Starts a formula; its first n registers are the inputs (NULL where one is absent and will not be used). */
void kiln_formula_begin(kiln_formula *p, kiln_tensor *const *in, int n);

/* A row of pointwise.def with at most one number of its own, and no cast; operands and numbers beyond its own are
 * ignored. Operands broadcast to the destinations' shape, so a tensor without dims is a number that the device has: a
 * rate, a count of steps. Tests make flags, which where() takes. */
kiln_register kiln_formula_put(kiln_formula *p, kiln_pw_id row, kiln_register a, kiln_register b, double s);
kiln_register kiln_formula_put3(kiln_formula *p, kiln_pw_id row, kiln_register a, kiln_register b, kiln_register c,
                                double s);

/* The input `to` holds the register's value from now on. */
void kiln_formula_assign(kiln_formula *p, kiln_register to, kiln_register value);

/* The same formula for as many other inputs. */
void kiln_formula_set_inputs(kiln_formula *p, kiln_tensor *const *in);

/* Records it; false with an error. Outside kiln_no_grad, where destinations differ in shape, floats in type, or memory
 * is laid out otherwise, it is written operation by operation, which means the same. */
bool kiln_formula_record(kiln_formula *p);

/* ---- For the planner ---- */

extern const kiln_op kiln_op_formula;

/* Row i of a formula whose integers are given, two rows in each. KILN_PW_copy is the assignment to the node's next
 * output; with the last of them the formula ends. */
typedef struct kiln_formula_row {
    kiln_pw_id row;
    kiln_register src[3];
} kiln_formula_row;
kiln_formula_row kiln_formula_row_at(const int64_t *ints, int i);

#endif
