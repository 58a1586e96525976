/* Programs: several pointwise operations on tensors of one shape, and the assignments they end in, recorded as one
 * node. An optimizer's update of a parameter is one. The host then pays for one node instead of sixteen; planning
 * writes programs out (plan/expand.c), so that everything behind it sees what it would see had they been written
 * operation by operation.
 *
 * A program is built from registers: the first ones are its inputs, every row adds one. Its rows are integers of the
 * node and part of the plan's identity, its numbers are run-time scalars. */
#ifndef KILN_TRACE_PROGRAM_H
#define KILN_TRACE_PROGRAM_H

#include "ops/pointwise.h"

enum { KILN_PROGRAM_INPUTS = 8, KILN_PROGRAM_ROWS = 2 * KILN_MAX_INTS };
enum { KILN_PROGRAM_REGISTERS = KILN_PROGRAM_INPUTS + KILN_PROGRAM_ROWS };

typedef int kiln_register;

typedef struct kiln_program {
    kiln_call call;
    kiln_tensor *in[KILN_PROGRAM_INPUTS];
    kiln_register to[KILN_MAX_OUTPUTS]; /* the inputs that are assigned to, in order */
    int nrows;
    bool full; /* more was written than there is room for */
} kiln_program;

/* Starts a program; its first n registers are the inputs (NULL where one is absent and will not be used). */
void kiln_program_begin(kiln_program *p, kiln_tensor *const *in, int n);

/* A row of pointwise.def whose result has the type of its operands; operands and numbers beyond its own are ignored. */
kiln_register kiln_program_put(kiln_program *p, kiln_pw_id row, kiln_register a, kiln_register b, double s);

/* The input `to` holds the register's value from now on. */
void kiln_program_assign(kiln_program *p, kiln_register to, kiln_register value);

/* The same program for as many other inputs. */
void kiln_program_set_inputs(kiln_program *p, kiln_tensor *const *in);

/* Records it; false with an error. Outside kiln_no_grad, or where shapes, types or memory layouts differ, it is written
 * operation by operation, which means the same. */
bool kiln_program_record(kiln_program *p);

/* ---- For the planner ---- */

extern const kiln_op kiln_op_program;

/* Row i of a program whose integers are given, two rows in each. KILN_PW_copy is the assignment to the node's next
 * output; with the last of them the program ends. */
typedef struct kiln_program_row {
    kiln_pw_id row;
    kiln_register src[2];
} kiln_program_row;
kiln_program_row kiln_program_row_at(const int64_t *ints, int i);

#endif
