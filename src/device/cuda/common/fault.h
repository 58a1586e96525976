/* How kernels tell the host of a bad index. Read by C, by CUDA sources and by generated kernels, which bring the
 * integer types along. */
#ifndef KILN_CUDA_FAULT_H
#define KILN_CUDA_FAULT_H

#ifndef __CUDACC_RTC__
#include <stdint.h>
#endif

/* What kernels know of faults, in device memory. A run that meets a bad index sets `stop`; from then on nothing is
 * written to slots, by it and by the runs behind it, until the host has learned of it. */
typedef struct kiln_cuda_status {
    int32_t stop;
    int32_t lock;           /* taken by threads that report */
    unsigned long long run; /* number of the run under way */
} kiln_cuda_status;

/* What the host sees of it without a copy: pinned, mapped memory. */
typedef struct kiln_cuda_record {
    volatile unsigned long long done; /* all runs up to this number are over */
    volatile unsigned long long run;  /* the run that failed; 0: none */
    volatile int32_t kernel;          /* of its plan */
    volatile int64_t index, limit, order;
} kiln_cuda_record;

/* How a kernel reports a bad index: kiln_cuda_report in report.cuh. Passed to kernels by value. */
typedef struct kiln_cuda_fault {
    kiln_cuda_status *state;
    kiln_cuda_record *record; /* mapped */
    int32_t kernel;
    unsigned long long run;      /* 0: the one that `state` names */
    unsigned long long *barrier; /* of a chain, which learns of the fault there; NULL: none */
} kiln_cuda_fault;

/* Set in a barrier's count: the run is to write no slot any more. */
#define KILN_CUDA_STOPPED (1ull << 63)

#endif
