/* What fuzz targets share: input bytes as a file that has a path, and a small device memory. */
#ifndef KILN_FUZZ_H
#define KILN_FUZZ_H

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "kiln.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A condition that must hold whatever the input is. */
#define must(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            kiln_report(stderr);                                                                                       \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* File number `which` (0 … 3) with these bytes; its path is valid until the process ends. */
static inline const char *fuzz_file(int which, const uint8_t *data, size_t size)
{
    static int fds[4];
    static char paths[4][32];
    if (!fds[which]) {
        fds[which] = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(paths[which], sizeof paths[which], "/proc/self/fd/%d", fds[which]);
    }
    must(fds[which] > 0 && ftruncate(fds[which], 0) == 0);
    must(pwrite(fds[which], data, size, 0) == (ssize_t)size);
    return paths[which];
}

/* What does not fit 4 MB is refused; otherwise inputs would spend their time on filling memory. */
static inline void fuzz_begin(void)
{
    static bool begun;
    if (!begun)
        kiln_set_num_threads(1);
    begun = true;
    kiln_memory_set_limit(KILN_CPU, 4 << 20);
    kiln_error_clear();
}

/* A call that failed must say why; nothing may stay in use. */
static inline void fuzz_end(bool worked)
{
    must(worked == kiln_ok());
    must(worked || kiln_last_error()->message[0]);
    while (kiln_next_notice())
        ;
    kiln_error_clear();
}

static inline uint64_t fuzz_in_use(void)
{
    kiln_memory_stats stats = {0};
    must(kiln_memory_get_stats(KILN_CPU, &stats));
    return stats.in_use;
}

#endif
