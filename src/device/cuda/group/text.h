/* A group as CUDA C: its program written out, as a kernel or as a part of one. */
#ifndef KILN_CUDA_GROUP_TEXT_H
#define KILN_CUDA_GROUP_TEXT_H

#include "device/cuda/compile/writer.h"
#include "device/cuda/group/program.h"

enum { KILN_CUDA_POINTERS = 480, KILN_CUDA_MAP_THREADS = 256 };
typedef struct kiln_cuda_generated { /* the parameter of a generated kernel; it knows how many pointers there are */
    kiln_cuda_reduction r;
    int64_t count;
    const double *scalars;
    const int32_t *stop;
    void *data[KILN_CUDA_POINTERS]; /* loads, then stores */
} kiln_cuda_generated;

/* To be freed with kiln_free; NULL when there is no memory. Nothing in it depends on where in a plan the group stands,
 * so that the layers of a network share their kernels. The group must have at most KILN_CUDA_POINTERS loads and
 * stores. */
char *kiln_cuda_group_text(const kiln_cuda_lowered *g);
void kiln_cuda_group_parameters(kiln_cuda_generated *to, const kiln_cuda_lowered *g);

/* The first of the scalars that a group has, among all of its plan; 0: it has none. */
int kiln_cuda_first_of_scalars(const kiln_cuda_lowered *g);

/* How the struct of a group's program is written. It computes elements from `parameters k`. */
typedef struct kiln_cuda_naming {
    int number;        /* the struct is called program<number> */
    bool view;         /* k is a view<number> of the parameters (chain/alike.h) */
    const int *places; /* which of k.data the group's loads are, and its stores behind them; NULL: as they come */
    int words;         /* where its scalars begin in k.words, converted by the host; -1: they are members, see below */
    int first_scalar;  /* of members: the first of all scalars that it has */
    int first_at;      /* k.first[first_at] says where that is in k.scalars; -1: it is the first there */
    bool whole;        /* it is only asked for as many elements as it takes at a time */
    bool product;      /* the last load is no load: its elements come as an argument */
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
