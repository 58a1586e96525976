/* Structs of the public interface whose size travels with them. */
#include "core/sized.h"
#include <string.h>
#include "core/fail.h"

enum { LARGEST = 4096 }; /* a size beyond that is none, and nothing is read behind it */

bool kiln_sized_unused(const char *operation, const void *reserved, size_t size)
{
    const unsigned char *bytes = reserved;
    for (size_t i = 0; i < size; i++)
        if (bytes[i]) {
            kiln_fail(KILN_E_ARGUMENT, operation, "an option is set that this version of the library does not have");
            return kiln_hint("use the library that the program was compiled for, or a newer one");
        }
    return true;
}

bool kiln_sized_take(const char *operation, void *own, size_t own_size, const void *given, size_t size)
{
    memset(own, 0, own_size);
    if (!given)
        return kiln_fail(KILN_E_ARGUMENT, operation, "the struct that says what to do is NULL");
    if (!size || size > LARGEST)
        return kiln_fail(KILN_E_ARGUMENT, operation, "a struct of %zu bytes is none of this function's", size);
    if (size > own_size && !kiln_sized_unused(operation, (const char *)given + own_size, size - own_size))
        return false;
    memcpy(own, given, size < own_size ? size : own_size);
    return true;
}

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
    if (given && !kiln_sized_take(operation, own, size, given, theirs))
        return false;
    memcpy(own, &size, sizeof size);
    return true;
}

void kiln_sized_give(void *to, size_t size, const void *own, size_t own_size)
{
    size_t known = size < own_size ? size : own_size;
    if (!to)
        return;
    memcpy(to, own, known);
    memset((char *)to + known, 0, size - known);
}
