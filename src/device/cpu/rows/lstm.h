/* The part of an LSTM step that goes element by element, on rows of a block of units. */
#ifndef KILN_CPU_LSTM_H
#define KILN_CPU_LSTM_H

#include <stdint.h>

/* Rows are `row` elements apart in states (h, c and their gradients) and 4·row in gates, where those of one kind are
 * `row` apart; in scratch memory rows are 4·`block` and kinds `block` apart. Pointers are to the first row and unit. */
typedef struct kiln_lstm_rows {
    int64_t rows, units, row, block;
    const void
        *product;  /* scratch: h·w_hhᵀ of all gates; backward: the next step's part of gh, `block` apart; or NULL */
    const void *x; /* forward: the input's part of the gates */
    const void *c_before, *c;
    const void *gates;               /* backward */
    const void *gh, *gc, *ggates;    /* backward: gradients from outside; NULL: none */
    void *c_out, *h_out, *gates_out; /* forward */
    void *gx_out;                    /* backward: gradients of the gates before their activations */
    void *carry;                     /* backward: the gradient of c from the next step, then of the c before */
    int first;                       /* backward: there is no next step, and nothing in carry */
} kiln_lstm_rows;

#endif
