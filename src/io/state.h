/* A checkpoint's state.json: everything but the tensors, to the last bit. */
#ifndef KILN_IO_STATE_H
#define KILN_IO_STATE_H

#include "kiln/io.h"

enum { KILN_STATE_GROUPS = 64 }; /* parameter groups whose rates are kept */

typedef enum kiln_state_file { KILN_STATE_MODEL, KILN_STATE_OPTIM, KILN_STATE_EMA, KILN_STATE_FILES } kiln_state_file;
#define KILN_STATE_JSON "state.json"
extern const char *const kiln_state_names[KILN_STATE_FILES]; /* "model.safetensors", … */

typedef struct kiln_train_state {
    int64_t step, epoch, batch;
    uint64_t seed;
    kiln_random_state random;
    char optim[32]; /* the optimizer's name; "" without */
    int64_t optim_steps;
    int groups;
    double lr[KILN_STATE_GROUPS];
    bool has_schedule;
    kiln_schedule_state schedule;
    bool has_scaler;
    kiln_scaler_state scaler;
    bool has[KILN_STATE_FILES];
    uint64_t size[KILN_STATE_FILES]; /* of the files */
    char *extra;                     /* freed with kiln_string_free */
} kiln_train_state;

/* Writes folder/state.json in place, and makes it safe on disk. */
bool kiln_state_write(const kiln_train_state *s, const char *extra, const char *folder);

/* Reads folder/state.json and checks that the files it lists are there in their sizes. False with an error; then
 * nothing needs to be freed. */
bool kiln_state_read(kiln_train_state *s, const char *folder);

#endif
