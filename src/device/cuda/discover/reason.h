/* Why there is no GPU, in words for a person. */
#ifndef KILN_CUDA_REASON_H
#define KILN_CUDA_REASON_H

#include <stdbool.h>
#include <stddef.h>

/* What was seen when the driver was asked for devices and had none. */
typedef struct kiln_cuda_signs {
    const char *loader;     /* why its library could not be opened; NULL: it was */
    const char *lacks;      /* a function the library does not have; NULL: it has all */
    int version, needed;    /* the CUDA it knows and the one Kiln needs: 13000 for 13.0. 0: it does not say */
    int code;               /* how its start ended: a CUresult */
    const char *code_text;  /* the driver's words for it */
    const char *visible;    /* CUDA_VISIBLE_DEVICES; NULL: not set */
    const char *missing;    /* a file of the kernel module's that is not there; NULL: all are */
    const char *forbidden;  /* one that this user may not open; NULL: none */
    bool module, container; /* whether the kernel module is loaded; whether this is a container */
} kiln_cuda_signs;

void kiln_cuda_reason(const kiln_cuda_signs *s, char *why, size_t size);

#endif
