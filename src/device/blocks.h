/* Blocks that a pool keeps for reuse: by size and address for whoever asks for one, by age for whoever has to give some
 * back to the device. Each call takes time that grows with the logarithm of their number. Knows nothing of devices; not
 * safe for several threads at once. */
#ifndef KILN_DEVICE_BLOCKS_H
#define KILN_DEVICE_BLOCKS_H

#include "tensor/tensor.h"

typedef struct kiln_blocks_node { /* others by their index; 0: none */
    kiln_block block;
    uint64_t weight; /* at most that of the node above */
    int64_t left, right;
    int64_t older, newer;
} kiln_blocks_node;

typedef struct kiln_blocks {
    kiln_blocks_node *nodes;
    int64_t capacity, used; /* nodes that were ever in use, with nodes[0], which stands for none */
    int64_t root, spare;    /* the tree; nodes that hold nothing, linked through `left` */
    int64_t oldest, newest;
    int64_t count;
} kiln_blocks;

/* Makes room for so many blocks at the same time, so that adding them cannot fail. False with an error. */
bool kiln_blocks_reserve(kiln_blocks *b, int64_t count);
void kiln_blocks_free(kiln_blocks *b);

/* Adds a block for which there is room; it is the newest now. */
void kiln_blocks_add(kiln_blocks *b, kiln_block block);

/* Takes the smallest block of at least `least` and at most `most` bytes out, of equal ones that with the lowest
 * address. Which of them is taken must not depend on the order they were added in: steps that want the same then get it
 * at the same addresses each time, and devices that bake addresses in have to do so once. False if there is none. */
bool kiln_blocks_take(kiln_blocks *b, size_t least, size_t most, kiln_block *block);

/* Takes the block out that was added before all others; false if there are none. */
bool kiln_blocks_take_oldest(kiln_blocks *b, kiln_block *block);

#endif
