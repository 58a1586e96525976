/* Errors. The library never prints, aborts or exits: a call that fails returns NULL or false and leaves one structured
 * error in its thread. The first error stays until it is cleared, so a chain of calls needs one check at its end: NULL
 * given to a call gives NULL back, and is an error of its own only where none explains it yet. An error that is pending
 * does not keep later steps from running: a loop that is to end with the first one asks kiln_ok. */
#ifndef KILN_ERROR_H
#define KILN_ERROR_H

#include <stdio.h>
#include "kiln/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kiln_code {
    KILN_OK = 0,
    KILN_E_ARGUMENT,    /* a value no call can accept: NULL, a bad option, a size below zero */
    KILN_E_SHAPE,       /* shapes that do not fit the operation or each other */
    KILN_E_DTYPE,       /* an element type the operation does not take */
    KILN_E_DEVICE,      /* operands on different devices, or a device that is not there */
    KILN_E_INDEX,       /* an index or label outside its range, found when the step ran */
    KILN_E_MEMORY,      /* host or device memory, or a limit set on it, does not suffice */
    KILN_E_UNSUPPORTED, /* a device has no kernel for the operation in this dtype */
    KILN_E_GRADIENT,    /* backward from something that has no gradient */
    KILN_E_LOST,        /* the device failed and does not answer any more */
    KILN_E_STATE,       /* the call does not fit what was done before it */
    KILN_E_FORMAT,      /* a file that is not what it should be: truncated, lying, of another model */
    KILN_E_MISSING,     /* a file that is not there or may not be read */
    KILN_E_IO           /* reading or writing failed: a full disk, a read-only folder */
} kiln_code;

typedef struct kiln_error {
    kiln_code code;
    char operation[40]; /* "matmul", "cross_entropy"; empty where none is concerned */
    char message[640];  /* what is wrong, with shapes, dtypes, devices, names */
    char hint[320];     /* what to do about it; may be empty */
} kiln_error;

/* True while this thread has had no error since the last kiln_error_clear. */
KILN_API bool kiln_ok(void);

/* This thread's first error since the last clear; its code is KILN_OK when there is none. Never NULL. */
KILN_API const kiln_error *kiln_last_error(void);

/* Forgets this thread's error. */
KILN_API void kiln_error_clear(void);

/* Things worth saying that are no errors (a forgotten kiln_zero_grad, a variable KILN_… of the environment that makes
 * no sense): each is said once. The oldest one of this thread that was not taken yet, NULL when there is none; valid
 * until the next call. */
KILN_API const char *kiln_next_notice(void);

/* Writes the thread's notices and error to `stream` as a person would read them; returns 0 when there is no
 * error, else 1 (fit to be an exit status). */
KILN_API int kiln_report(FILE *stream);

/* "out of memory", "shapes do not fit", …: static text for a code. */
KILN_API const char *kiln_code_name(kiln_code code);

#ifdef __cplusplus
}
#endif
#endif
