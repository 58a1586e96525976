/* The process's setting for products of f32. A segment notes it when it is closed, so that it belongs to the plan. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "kiln/device.h"

enum { UNSET = -1 };
static atomic_int setting = UNSET; /* until it is first asked for: then what the environment says */

bool kiln_get_tf32(void)
{
    int now = atomic_load_explicit(&setting, memory_order_relaxed);
    if (now != UNSET)
        return now;
    const char *text = getenv("KILN_TF32");
    int otherwise = text && *text && strcmp(text, "0") != 0;
    return atomic_compare_exchange_strong(&setting, &now, otherwise) ? otherwise : now;
}

void kiln_set_tf32(bool allowed)
{
    atomic_store(&setting, allowed);
}
