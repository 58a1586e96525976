/* A copy of a trace that a pass writes: what came before the segment as it was, then the nodes that the pass adds, old
 * ones and new ones. Values keep their numbers; those that are added stand behind all others. */
#ifndef KILN_PLAN_COPY_H
#define KILN_PLAN_COPY_H

#include "plan/draft.h"

typedef struct kiln_copy {
    const kiln_trace *from;
    kiln_trace *to;
    kiln_storage *nowhere; /* stands for the storages of what is added: nothing but their role is asked for */
} kiln_copy;

/* Room that the new nodes take, beside what the segment has. */
typedef struct kiln_copy_room {
    int64_t nodes, values, operands, ints;
} kiln_copy_room;

/* Of the draft's trace, without the segment's nodes. False with an error. */
bool kiln_copy_begin(kiln_copy *c, kiln_draft *d, kiln_copy_room more);

void kiln_copy_node(kiln_copy *c, const kiln_node *n);

/* A fresh value of its own memory, like another one. */
int32_t kiln_copy_value(kiln_copy *c, int32_t like);

/* A node that stands for n, or a part of it: without operands and integers yet, of one result. They are added one after
 * the other, before any other node is begun or written. */
kiln_node kiln_copy_start(const kiln_copy *c, const kiln_node *n, const kiln_op *op, int32_t out);
void kiln_copy_operand(kiln_copy *c, kiln_node *n, int32_t value);
void kiln_copy_int(kiln_copy *c, kiln_node *n, int64_t value);

/* A node of one operand and no integers. */
void kiln_copy_unary(kiln_copy *c, const kiln_node *n, const kiln_op *op, int32_t in, int32_t out);

/* A view of what `source` lies in: `window` says which. */
int32_t kiln_copy_view(kiln_copy *c, const kiln_node *n, int32_t source, const kiln_value *window);

#endif
