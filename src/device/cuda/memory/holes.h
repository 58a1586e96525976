/* The holes between blocks in a range of addresses, and how much of each has memory from its beginning on. Each call
 * but kiln_holes_each takes time that grows with the logarithm of their number. Knows nothing of memory itself. */
#ifndef KILN_CUDA_HOLES_H
#define KILN_CUDA_HOLES_H

#include <stdbool.h>
#include <stdint.h>

typedef struct kiln_hole {
    uint64_t offset, bytes;
    uint64_t ready; /* so many bytes from the offset on have memory */
} kiln_hole;

typedef struct kiln_holes_node { /* others by their index; 0: none */
    kiln_hole hole;
    uint64_t weight;                 /* at most that of the node above */
    uint64_t most_bytes, most_ready; /* of the holes here and below */
    int64_t left, right;
} kiln_holes_node;

typedef struct kiln_holes {
    kiln_holes_node *nodes; /* nodes[0] stands for none */
    int64_t capacity, used;
    int64_t root, spare; /* the tree; nodes that hold nothing, linked through `left` */
    int64_t count;
} kiln_holes;

/* Makes room for so many holes at the same time, so that adding them cannot fail. False with an error. */
bool kiln_holes_reserve(kiln_holes *h, int64_t count);
void kiln_holes_free(kiln_holes *h);

/* Adds a hole for which there is room and which overlaps no other. */
void kiln_holes_add(kiln_holes *h, kiln_hole hole);

/* The first hole with so many bytes that have memory; if there is none, the first with so many bytes. False: none. */
bool kiln_holes_find(const kiln_holes *h, uint64_t bytes, kiln_hole *hole);

/* Takes out the hole that begins there, or the one that ends there. False: there is none. */
bool kiln_holes_take_at(kiln_holes *h, uint64_t offset, kiln_hole *hole);
bool kiln_holes_take_until(kiln_holes *h, uint64_t end, kiln_hole *hole);

/* Calls `use` with each hole in order; it may change `ready`. */
void kiln_holes_each(kiln_holes *h, void (*use)(void *context, kiln_hole *hole), void *context);

#endif
