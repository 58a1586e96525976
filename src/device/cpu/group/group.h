/* Fused groups on the CPU. A group is run tile by tile: a tile's elements go through all instructions while they are in
 * the first-level cache. Each instruction is one call of a pointwise kernel, the same whether it runs alone or fused,
 * so fusion never changes a bit. */
#ifndef KILN_CPU_GROUP_H
#define KILN_CPU_GROUP_H

#include "device/cpu/group/pointwise.h"
#include "plan/plan.h"

enum { KILN_TILE = 1024 }; /* elements: 4 KiB an f32 register, a handful of which fit into 32 KiB */

typedef enum kiln_load_kind {
    KILN_LOAD_DIRECT, /* memory looks like a register and is read in order: no copy */
    KILN_LOAD_DENSE,  /* in order, but converted */
    KILN_LOAD_SCALAR, /* one element, repeated */
    KILN_LOAD_ROWS,   /* one element for each row, repeated along it; rows are longer than tiles */
    KILN_LOAD_STRIDED /* anything else */
} kiln_load_kind;

typedef struct kiln_cpu_load {
    kiln_load_kind kind;
    uint8_t dtype, ndim;
    int32_t buffer;
    int64_t size;                                        /* of an element, in bytes */
    int64_t offset;                                      /* in elements */
    int64_t shape[KILN_MAX_DIMS], stride[KILN_MAX_DIMS]; /* strided loads: dims joined where possible */
    int16_t physical;                                    /* where the register lives; -1 for direct ones */
} kiln_cpu_load;

typedef struct kiln_cpu_instr {
    kiln_pw_fn fn;
    void (*after)(void *reg, int64_t n); /* wraps integers, rounds casts to 16 bits; NULL: nothing to do */
    int16_t row;                         /* of pointwise.def */
    uint8_t dtype, from;                 /* of the result and of the operands */
    int16_t src[3], dst;                 /* registers as in the group */
    int16_t store;                       /* the result goes straight to this store's memory; -1: to its register */
    int32_t scalars;                     /* the first of them */
    int8_t joined;                       /* stands for a chain of instructions: which (kiln_join); -1: for itself */
    int8_t nscalars;                     /* a chain's own list of them */
    int32_t scalar[2];
} kiln_cpu_instr;

typedef struct kiln_cpu_store {
    int16_t src;
    bool done; /* the instruction wrote it already */
    uint8_t dtype;
    int32_t buffer;
    int64_t size;
} kiln_cpu_store;

typedef struct kiln_cpu_group {
    const kiln_group *group;
    const kiln_pw_table *table;
    int nloads, ninstrs, nstores, nregisters;
    kiln_cpu_load *loads;
    kiln_cpu_instr *instrs;
    kiln_cpu_store *stores;
    int16_t *same;          /* by register: the one that holds its values; itself, but for casts that change none */
    int16_t *physical;      /* by register: its place in the scratch memory; -1: it has none */
    int nphysical;          /* scratch registers */
    int64_t register_bytes; /* of each */
    int16_t head;           /* register handed in from outside; -1 */
    /* A reduction, its elements walked as [outer, reduced, inner]. */
    kiln_pw_class cls;
    int64_t outer, reduced, inner;
    int64_t chunk, chunks; /* the reduced dim is cut into pieces of `chunk`, each with a partial result */
} kiln_cpu_group;

/* Lowers a group of the plan into memory from `pool`; false with an error. */
bool kiln_cpu_group_lower(kiln_cpu_group *e, const kiln_plan *plan, const kiln_group *group, kiln_arena *pool);

/* Scratch bytes: registers for every thread, partial results of a reduction. */
size_t kiln_cpu_group_workspace(const kiln_group *g, int threads);

/* What a run of a group needs beside the group itself. */
typedef struct kiln_cpu_tile {
    const kiln_cpu_group *e;
    const kiln_plan *plan;
    const kiln_binding *binding;
    char *registers; /* kiln_threads() × nphysical × register_bytes */
} kiln_cpu_tile;

/* Elements start … start+n-1 (n ≤ KILN_TILE); `head`: the values of the head register, or NULL. `goes_on`: what this
 * worker did last with the group are the KILN_TILE elements before them. Returns where register `wanted` is (-1: none
 * wanted). */
const void *kiln_cpu_group_tile(const kiln_cpu_tile *t, int64_t start, int64_t n, const void *head, int worker,
                                bool goes_on, int16_t wanted);

/* Any number of elements from `start` on, whose head values lie one behind the other, `unit` bytes each. */
void kiln_cpu_group_finish(const kiln_cpu_tile *t, int64_t start, int64_t count, const void *values, size_t unit,
                           int worker);

/* Any number of elements from `start` on of what the group makes for operands of an operation: to[k] is room for those
 * of operand k, and on return where they are. What is of 16 bits comes as f32, rounded to them. */
void kiln_cpu_group_give(const kiln_cpu_tile *t, int64_t start, int64_t count, void **to, int worker);

/* True if a load of the group may read memory of the buffer. */
bool kiln_cpu_group_reads(const kiln_cpu_group *e, const kiln_plan *plan, int32_t buffer);

void kiln_cpu_group_run(const kiln_cpu_group *e, const kiln_plan *plan, const kiln_kernel *kernel,
                        const kiln_binding *binding);
void kiln_cpu_reduce_run(const kiln_cpu_group *e, const kiln_plan *plan, const kiln_kernel *kernel,
                         const kiln_binding *binding);

/* Work below this many element-instructions is not worth waking other threads for. */
enum { KILN_SERIAL_WORK = 32768 };

#endif
