/* Text that grows: what generated kernels are written into. */
#ifndef KILN_CUDA_WRITER_H
#define KILN_CUDA_WRITER_H

#include <stdbool.h>
#include <stdint.h>

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

#endif
