/* How quickly runs are given to a device and launched; multirun.h says what for. */
#ifndef KILN_CUDA_PACE_H
#define KILN_CUDA_PACE_H

typedef struct kiln_cuda_pace {
    int lonely;      /* launches in a row that had one run each; 0 also when something else is put on the stream */
    double given_at; /* when the last run was, in seconds */
} kiln_cuda_pace;

#endif
