/* Libraries that are opened when they are first needed: a device without them still does everything else. */
#ifndef KILN_CUDA_LIBRARY_H
#define KILN_CUDA_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

typedef struct kiln_cuda_symbol {
    const char *name;
    void **to; /* where its address goes */
} kiln_cuda_symbol;

/* Opens the library `file` ("libcudnn.so.9"); NULL with the reason: what was looked for, and where. */
void *kiln_cuda_library_find(const char *file, char *why, size_t size);

/* Opens the library `file`, which people know as `title`, and finds its symbols. NULL with an error
 * in the name of `operation` that says what was looked for and where. */
void *kiln_cuda_library_open(const char *operation, const char *file, const char *title,
                             const kiln_cuda_symbol *symbols, size_t count);
void kiln_cuda_library_close(void *library); /* NULL does nothing */

/* Whether libraries make products and convolutions. With KILN_CUDA_LIBRARIES=0 plain kernels of our own do, for tools
 * that do not see what libraries' kernels write, or break down in them. */
bool kiln_cuda_libraries_wanted(void);

/* A call of a library while a stream is captured may load its kernels just then, which the usual mode of capturing
 * forbids. Between these two it is allowed; what is put on the stream is captured all the same. */
int kiln_cuda_relax(void); /* what kiln_cuda_unrelax wants */
void kiln_cuda_unrelax(int before);

#endif
