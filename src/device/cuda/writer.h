/* Text that grows: what generated kernels are written into. */
#ifndef KILN_CUDA_WRITER_H
#define KILN_CUDA_WRITER_H

#include "device/cuda/program.h"

typedef struct kiln_cuda_writer {
    char *text;
    int64_t length, capacity;
    bool failed; /* no memory: nothing is added any more */
} kiln_cuda_writer;

void kiln_cuda_say(kiln_cuda_writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The text, to be freed with kiln_free; NULL when memory ran out. */
char *kiln_cuda_written(kiln_cuda_writer *w);

/* The enum of dtypes, which device headers expect to be there. */
void kiln_cuda_say_dtypes(kiln_cuda_writer *w);

/* How the struct of a group's program is written. It computes elements from `parameters k`. */
typedef struct kiln_cuda_naming {
    int number;   /* the struct is called program<number> */
    int pointers; /* where the group's loads, and its stores behind them, begin in k.data */
    int words;    /* where its scalars begin in k.words, converted by the host; -1: they are members, see below */
    bool whole;   /* it is only asked for as many elements as it takes at a time */
    bool product; /* the last load is no load: its elements come as an argument */
} kiln_cuda_naming;

void kiln_cuda_say_program(kiln_cuda_writer *w, const kiln_cuda_lowered *g, kiln_cuda_naming name);

/* What initialises the program's members: its parameters, its shared memory, its scalars. */
void kiln_cuda_say_members(kiln_cuda_writer *w, const kiln_cuda_lowered *g, kiln_cuda_naming name);

/* The parts of a lowered group's body. */
typedef struct kiln_cuda_parts {
    const kiln_cuda_op *ops;
    const kiln_cuda_load *loads;
    const kiln_cuda_store *stores;
    const kiln_cuda_dim *dims;
} kiln_cuda_parts;

static inline kiln_cuda_parts kiln_cuda_parts_of(const kiln_cuda_lowered *g)
{
    kiln_cuda_parts p;
    p.ops = (const kiln_cuda_op *)(const void *)g->k.body;
    p.loads = (const kiln_cuda_load *)(const void *)(p.ops + g->k.p.nops);
    p.stores = (const kiln_cuda_store *)(const void *)(p.loads + g->k.p.nloads);
    p.dims = (const kiln_cuda_dim *)(const void *)(p.stores + g->k.p.nstores);
    return p;
}

#endif
