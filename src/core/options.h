/* Reading option lists, whose size travels with them: see kiln/macros.h. */
#ifndef KILN_CORE_OPTIONS_H
#define KILN_CORE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

/* own = what was given (NULL: nothing, all defaults), as far as both sides know it; what only this side knows is 0.
 * False with an error in the operation's name when the size is none, or an option is set that is not known here. */
#define KILN_TAKE_OPTIONS(operation, own, given) kiln_options_take(operation, &(own), sizeof(own), given)
bool kiln_options_take(const char *operation, void *own, size_t size, const void *given);

#endif
