/* Control over simulated devices, for tests: `kiln_sim_control` is looked up in the loaded plugin with dlsym. */
#ifndef KILN_SIM_SIM_H
#define KILN_SIM_SIM_H

#include <stdint.h>

typedef enum kiln_sim_command {
    KILN_SIM_MEMORY,      /* the device has this many bytes (0: 1 GiB) */
    KILN_SIM_FAIL_ALLOC,  /* after this many more allocations one fails; negative: none */
    KILN_SIM_LOSE_AFTER,  /* after this many more jobs the device is lost; negative: never */
    KILN_SIM_REVIVE,      /* a lost device answers again */
    KILN_SIM_SLOW_COPIES, /* every copy takes this many microseconds longer */
    KILN_SIM_SLOW_RUNS,   /* every run takes this many microseconds longer */
    KILN_SIM_OVERHEAD     /* what the device says that it takes for itself */
} kiln_sim_command;

/* Returns the number of bytes allocated on the device. */
typedef int64_t (*kiln_sim_control_fn)(int index, kiln_sim_command command, int64_t value);

#endif
