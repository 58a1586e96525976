/* Work on several threads, cut into tasks whose number depends on the problem alone, never on the number of threads:
 * each task computes the same bits whoever runs it. The pool and all that concerns threads is in parallel.c. */
#ifndef KILN_CORE_PARALLEL_H
#define KILN_CORE_PARALLEL_H

#include <stdint.h>

/* Threads that kiln_parallel may use: KILN_NUM_THREADS, else OMP_NUM_THREADS, else one a core; at least 1.
 * A worker index passed to a body is always below this. */
int kiln_threads(void);

/* Sets that number for calls made after it (1 to 256; other values are clamped). */
void kiln_threads_set(int threads);

/* Runs body(context, task, worker) for task = 0 … tasks-1, in any order. `worker` tells apart the threads that run at
 * the same time, to index scratch memory. Inside another kiln_parallel it runs in the calling thread. Never fails. */
void kiln_parallel(int64_t tasks, void (*body)(void *context, int64_t task, int worker), void *context);

#endif
