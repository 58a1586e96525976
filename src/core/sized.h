/* Structs of the public interface whose size travels with them, so that programs and libraries of different age
 * understand each other: see kiln/macros.h. */
#ifndef KILN_CORE_SIZED_H
#define KILN_CORE_SIZED_H

#include <stdbool.h>
#include <stddef.h>

/* own = the options that were given (NULL: none, all defaults), as far as both sides know them; what only this side
 * knows is 0. False with an error in the operation's name when the size is none, or an option is set that is not known
 * here. */
#define KILN_TAKE_OPTIONS(operation, own, given) kiln_options_take(operation, &(own), sizeof(own), given)
bool kiln_options_take(const char *operation, void *own, size_t size, const void *given);

/* The same for a struct of `size` bytes that does not begin with its size. */
#define KILN_TAKE_SIZED(operation, own, given, size) kiln_sized_take(operation, &(own), sizeof(own), given, size)
bool kiln_sized_take(const char *operation, void *own, size_t own_size, const void *given, size_t size);

/* *to, of `size` bytes, becomes what both sides know of `own`; what only the other side knows is 0. NULL: nobody wants
 * it. */
#define KILN_GIVE_SIZED(to, size, own) kiln_sized_give(to, size, &(own), sizeof(own))
void kiln_sized_give(void *to, size_t size, const void *own, size_t own_size);

/* Room that a struct reserves for members to come. False with an error if one of them is set. */
#define KILN_UNUSED(operation, reserved) kiln_sized_unused(operation, &(reserved), sizeof(reserved))
bool kiln_sized_unused(const char *operation, const void *reserved, size_t size);

#endif
