/* Loops over many items, cut into contiguous ranges that become tasks of kiln_parallel. */
#ifndef KILN_CPU_RANGES_H
#define KILN_CPU_RANGES_H

#include <stdint.h>

/* How many ranges to cut `items` into, each item costing about `work` element operations: enough to keep threads busy,
 * few enough for each to be worth starting. Depends on the problem alone. */
static inline int64_t kiln_range_count(int64_t items, int64_t work)
{
    enum { MOST = 64, WORTHWHILE = 1 << 14 };
    double tasks = (double)items * (double)work / WORTHWHILE;
    int64_t most = items < MOST ? items : MOST;
    return tasks < 1 ? items > 0 : tasks < (double)most ? (int64_t)tasks : most;
}

/* Where range `task` of `tasks` begins; it ends where the next one begins. */
static inline int64_t kiln_range_begin(int64_t items, int64_t tasks, int64_t task)
{
    return items / tasks * task + (items % tasks < task ? items % tasks : task);
}

#endif
