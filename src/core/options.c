/* Reading option lists, whose size travels with them. */
#include "core/options.h"
#include <string.h>
#include "core/fail.h"

enum { LARGEST = 4096 }; /* a size beyond that is none, and nothing is read behind it */

bool kiln_options_take(const char *operation, void *own, size_t size, const void *given)
{
    size_t theirs = size;
    memset(own, 0, size);
    if (given)
        memcpy(&theirs, given, sizeof theirs);
    if (theirs < sizeof theirs || theirs > LARGEST) {
        kiln_fail(KILN_E_ARGUMENT, operation, "the options say that they take %zu bytes", theirs);
        return kiln_hint("write them with the macro of that name, or set .size = sizeof of the struct");
    }
    const unsigned char *beyond = given;
    for (size_t i = size; i < theirs; i++)
        if (beyond[i]) {
            kiln_fail(KILN_E_ARGUMENT, operation,
                      "an option is set that this version of the library does not have: "
                      "%zu bytes of options, of which it knows %zu",
                      theirs, size);
            return kiln_hint("use the library that the program was compiled for, or a newer one");
        }
    if (given)
        memcpy(own, given, theirs < size ? theirs : size);
    memcpy(own, &size, sizeof size);
    return true;
}
