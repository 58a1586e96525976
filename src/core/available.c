/* What the system says about memory. Linux gives memory out that it does not have, and ends a program that uses it:
 * what comes from a file has to be compared with what there is. */
#include "core/available.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"

enum { SMALL = 1 << 26 }; /* bytes that are not worth asking for */

/* The number behind a word that begins a line of a file; `without` where there is none. */
static uint64_t number_behind(const char *path, const char *word, uint64_t without)
{
    char line[256], *end;
    uint64_t found = without;
    FILE *f = fopen(path, "r");
    while (f && found == without && fgets(line, sizeof line, f)) {
        if (strncmp(line, word, strlen(word)) != 0)
            continue;
        uint64_t n = strtoull(line + strlen(word), &end, 10);
        if (end != line + strlen(word)) /* it may say "max" */
            found = n;
    }
    if (f)
        fclose(f);
    return found;
}

/* The container's own limit. Pages of files that it uses are put out when others are needed. */
static uint64_t from_cgroup(const char *limit_path, const char *used_path, const char *stat_path, const char *prefix)
{
    char active[32], inactive[32];
    snprintf(active, sizeof active, "%sactive_file ", prefix);
    snprintf(inactive, sizeof inactive, "%sinactive_file ", prefix);
    uint64_t limit = number_behind(limit_path, "", UINT64_MAX), used = number_behind(used_path, "", 0);
    uint64_t files = number_behind(stat_path, active, 0) + number_behind(stat_path, inactive, 0);
    used -= files < used ? files : used;
    return limit == UINT64_MAX ? limit : limit > used ? limit - used : 0;
}

uint64_t kiln_available(void)
{
    uint64_t kilobytes = number_behind("/proc/meminfo", "MemAvailable:", UINT64_MAX / 1024);
    uint64_t all[] = {
        kilobytes * 1024,
        from_cgroup("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", ""),
        from_cgroup("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
                    "/sys/fs/cgroup/memory/memory.stat", "total_")};
    uint64_t least = all[0];
    for (int i = 1; i < 3; i++)
        least = all[i] < least ? all[i] : least;
    return least;
}

uint64_t kiln_resident_set(void)
{
    return number_behind("/proc/self/status", "VmRSS:", 0) * 1024;
}

bool kiln_fits_memory(uint64_t bytes, const char *what, const char *operation)
{
    uint64_t there = bytes > SMALL ? kiln_available() : UINT64_MAX;
    if (bytes <= there)
        return true;
    return kiln_fail(KILN_E_MEMORY, operation,
                     "%s: %.1f GB are needed for what it holds, and %.1f GB of memory are there", what,
                     (double)bytes / 1e9, (double)there / 1e9);
}
