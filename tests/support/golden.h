/* Reads the golden files that golden/make_golden.py writes: calls made with PyTorch, and what came out. */
#ifndef KILN_TEST_GOLDEN_H
#define KILN_TEST_GOLDEN_H

#include "kiln.h"

enum { GOLDEN_TENSORS = 8, GOLDEN_NUMBERS = 24 };

typedef struct golden_tensor {
    bool present, wants_grad;
    kiln_dtype dtype;
    int ndim;
    int64_t shape[KILN_MAX_DIMS], count;
    double *data;
} golden_tensor;

typedef struct golden_case {
    char op[48], text[64];
    int line; /* of the file, for messages */
    int nints, nfloats, nin, nout;
    int64_t ints[GOLDEN_NUMBERS];
    double floats[GOLDEN_NUMBERS];
    golden_tensor in[GOLDEN_TENSORS], out[GOLDEN_TENSORS];
    golden_tensor grad[GOLDEN_TENSORS]; /* of input i, where present */
} golden_case;

typedef struct golden_file {
    char *text, *at;
    int line;
} golden_file;

bool golden_open(golden_file *f, const char *path); /* false when it cannot be read */
void golden_close(golden_file *f);

/* The next case: 1; 0 at the end of the file; -1 when the file is malformed (at f->line). */
int golden_next(golden_file *f, golden_case *c);
void golden_case_free(golden_case *c);

#endif
