/* Parts of a batch. A batch that is gone through in parts, because it does not fit into memory as a whole, is to draw
 * the random numbers that it draws as a whole: each sample those of its place. So a forward pass of the whole batch is
 * recorded once, for its shapes alone, and what it draws is noted (kiln_whole). While a part is written each draw is
 * found again there, by how many numbers were drawn before it; it takes as many as the whole would, and gives the
 * part's own. A dim that has the batch in it is known by its size; where the batch shares it, samples lie behind each
 * other. */
#ifndef KILN_OPS_PART_H
#define KILN_OPS_PART_H

#include "ops/op.h"

typedef struct kiln_whole {
    int64_t size; /* samples in the batch */
    struct kiln_drawn {
        uint64_t at; /* blocks of random numbers that were drawn before */
        int ndim;
        int64_t shape[KILN_MAX_DIMS];
    } * drawn;
    int64_t count, capacity;
    bool mixes; /* an operation takes samples together: a norm over the batch, a permutation of it */
} kiln_whole;

/* Notes what this thread draws from now on; ends with NULL. */
void kiln_whole_note(kiln_whole *w);
void kiln_whole_free(kiln_whole *w);

/* What this thread writes from now on is the part of `size` samples from number `first` on; the random state is the one
 * that the whole batch begins with. Ends with NULL. */
void kiln_part_begin(const kiln_whole *w, int64_t first, int64_t size);

/* For operations that take samples together. */
void kiln_part_mixes(void);

/* Which part of what the whole batch draws here a draw of this shape is. */
typedef struct kiln_draw_part {
    int dim;              /* that the batch is in; -1: the draw has none */
    int64_t first, whole; /* elements of that dim: those before the part, and all */
} kiln_draw_part;
/* False with an error where the whole batch draws nothing like it. */
bool kiln_part_of_draw(const char *name, int ndim, const int64_t *shape, kiln_draw_part *p);

#endif
