/* How operands lie in memory: the same values dense, transposed, cut out of a larger buffer, or expanded from fewer. */
#ifndef KILN_TEST_LAYOUTS_H
#define KILN_TEST_LAYOUTS_H

#include "support/cases.h"
#include "support/ref.h"

typedef enum layout {
    LAYOUT_DENSE,
    LAYOUT_TRANSPOSED, /* a permuted window onto storage in reversed order of dims */
    LAYOUT_SLICED,     /* every second element of a larger buffer, from the second on; NaN or -1 around them */
    LAYOUT_EXPANDED,   /* one dim has stride 0 */
    LAYOUT_MIXED,      /* each operand another one of these */
    LAYOUTS
} layout;
extern const char *const layout_names[LAYOUTS];

/* What operand k gets when the case runs in layout l: LAYOUT_DENSE where l makes no difference to it. */
layout layout_of(const test_case *c, int k, layout l);

/* The operand's values (in an expanded layout they repeat along the expanded dim). Freed with operand_free. */
void operand_values(const test_case *c, int k, kiln_dtype dtype, layout l, ref_tensor *values);
void operand_free(ref_tensor *values);

/* The operand on a device, owned by the current scope. `base` is the buffer it is a window of; `bits` are its bytes,
 * which no operation may change (freed by the caller). */
typedef struct placed_operand {
    kiln_tensor *tensor, *base;
    void *bits;
    size_t size;
} placed_operand;
bool operand_place(const ref_tensor *values, layout l, kiln_device device, placed_operand *placed);

/* True while the buffer holds what it held. */
bool operand_intact(const placed_operand *placed);

#endif
