/* Devices: asking what is there, naming one, memory limits and figures. */
#ifndef KILN_DEVICE_H
#define KILN_DEVICE_H

#include "kiln/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A device is a small value that can be copied and compared. Only KILN_CPU is known ahead; others come from
 * kiln_device_parse, kiln_device_auto or kiln_device_at. In a child of fork the CPU can be used; a device that the
 * parent has opened is refused there with KILN_E_DEVICE, and so is CUDA where the parent has asked for its devices. */
typedef int32_t kiln_device;
#define KILN_CPU       ((kiln_device)0)
#define KILN_NO_DEVICE ((kiln_device)-1)

/* What one device says about itself. */
typedef struct kiln_device_info {
    char name[128];        /* "AMD EPYC", "NVIDIA H200" */
    uint64_t memory_total; /* bytes; 0 where it cannot be told */
    uint64_t memory_free;  /* bytes at the moment of asking; the total where that cannot be told */
    int threads;           /* worker threads or multiprocessors */
    int capability[2];     /* a GPU's compute capability: {9, 0}; {0, 0} for others */
    char bus[32];          /* a GPU's place: "0000:17:00.0"; empty for others */
    char features[128];    /* "AVX-512, oneDNN 2.6" or "compute capability 9.0" */
    char refused[256];     /* why it cannot be used though it is there; empty: it can */
} kiln_device_info;

/* A library that a kind of device works with. */
typedef struct kiln_device_library {
    char name[32];    /* "cuDNN" */
    char version[32]; /* "9.13.0"; empty: it cannot be used */
    char why[480];    /* … and the reason: what was looked for, and where */
} kiln_device_library;

/* "cpu", "cuda", "cuda:1", "opencl:0", "sim:1", "auto". KILN_NO_DEVICE and an error saying why when it is not there:
 * a device asked for by name is never replaced by another. */
KILN_API kiln_device kiln_device_parse(const char *text);

/* The best device present; never fails, since the CPU always is. */
KILN_API kiln_device kiln_device_auto(void);

/* "cpu", "cuda:0"; "none" for KILN_NO_DEVICE. Valid until the thread has asked for a few more texts. */
KILN_API const char *kiln_device_name(kiln_device device);

/* How many devices of a kind ("cuda", "sim") there are. When 0, `why` (which may be NULL) receives the reason;
 * otherwise it is empty, or says what may hide others. */
KILN_API int kiln_device_count(const char *kind, char *why, size_t why_size);

/* The device with that number, to be described: unlike kiln_device_parse it takes one that cannot be used, too.
 * KILN_NO_DEVICE and an error when it is not there. */
KILN_API kiln_device kiln_device_at(const char *kind, int index);

/* The libraries a kind of device works with, at most `room` of them, also where there is no device; how many were
 * listed. They are opened for this, which takes its time. */
KILN_API int kiln_device_libraries_(const char *kind, kiln_device_library *list, int room, size_t size);
static inline int kiln_device_libraries(const char *kind, kiln_device_library *list, int room)
{
    return kiln_device_libraries_(kind, list, room, sizeof *list);
}

/* Fills *info (NULL: only looks whether it is there); false with an error if the device is not there. Does not open it.
 */
KILN_API bool kiln_device_describe_(kiln_device device, kiln_device_info *info, size_t size);
static inline bool kiln_device_describe(kiln_device device, kiln_device_info *info)
{
    return kiln_device_describe_(device, info, sizeof *info);
}

/* Waits until the device has done everything given to it; false with the error of what failed on the way. Where several
 * threads use a device each is told once of a failure, here or when it next reads or runs something: that its own step
 * failed, that one was skipped because another thread's failed before it, or that another thread's failed. */
KILN_API bool kiln_device_wait(kiln_device device);

/* Bytes of one device's memory as Kiln uses it. */
typedef struct kiln_memory_stats {
    uint64_t in_use;      /* held by tensors and running steps now */
    uint64_t peak;        /* the largest in_use since the last reset */
    uint64_t cached;      /* kept for reuse, given back by kiln_memory_trim; with in_use at most twice the most that was
                           * in use since, and 16 MiB */
    uint64_t limit;       /* 0: no limit but the device's own */
    uint64_t allocations; /* blocks asked of the device since the start */
    uint64_t overhead; /* what the device takes beside them: its context, libraries, rounding up. 0 until it is used */
} kiln_memory_stats;

KILN_API bool kiln_memory_get_stats_(kiln_device device, kiln_memory_stats *stats, size_t size);
static inline bool kiln_memory_get_stats(kiln_device device, kiln_memory_stats *stats)
{
    return kiln_memory_get_stats_(device, stats, sizeof *stats);
}
KILN_API bool kiln_memory_reset_peak(kiln_device device);

/* At most `bytes` are taken from the device from now on (0: no limit), with all that a GPU's context and libraries
 * take. A step that needs more is refused before it runs. False with KILN_E_MEMORY for a limit below what the device
 * takes for itself, which makes a GPU be opened. */
KILN_API bool kiln_memory_set_limit(kiln_device device, uint64_t bytes);

/* Gives cached memory back to the device. */
KILN_API bool kiln_memory_trim(kiln_device device);

/* Threads the CPU's kernels use. The results do not depend on it. */
KILN_API int kiln_get_num_threads(void);
KILN_API void kiln_set_num_threads(int threads);

/* Whether products and convolutions of f32 may round their operands to TF32, which keeps 11 of 24 bits, on devices that
 * are much faster then; others take no notice. Holds for steps that run from now on, in all threads. Off unless the
 * environment says KILN_TF32=1. */
KILN_API bool kiln_get_tf32(void);
KILN_API void kiln_set_tf32(bool allowed);

#ifdef __cplusplus
}
#endif
#endif
