/* How the macros of the other headers write lists and options. In C these are compound literals, in C++ temporaries,
 * which live until the end of the statement they are written in. Programs use the macros; they have no need of what is
 * here. */
#ifndef KILN_MACROS_H
#define KILN_MACROS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#pragma GCC system_header /* g++ warns of each member that an option list leaves out, which is what lists are for */

template <class T, size_t N> struct kiln_list_ {
    T at[N];
    enum { count = N };
    const T *data() const
    {
        return at;
    }
};
template <class T, class... Elements> kiln_list_<T, sizeof...(Elements)> kiln_list_of_(Elements... elements)
{
    return {{static_cast<T>(elements)...}};
}
template <class T> const T *kiln_address_(const T &value)
{
    return &value;
}

#define KILN_LIST_(type, ...)                                                                                          \
    (int)decltype(kiln_list_of_<type>(__VA_ARGS__))::count, kiln_list_of_<type>(__VA_ARGS__).data()
#define KILN_OPTIONS_(type, ...) kiln_address_(type{.size = sizeof(type), __VA_ARGS__})

#else

/* "how many, array": two arguments of a function. */
#define KILN_LIST_(type, ...)                                                                                          \
    (int)(sizeof((type[]){__VA_ARGS__}) / sizeof(type)), (type const[])                                                \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

/* The address of an option list: a struct that begins with its size; what is not given is 0, which stands for the
 * default. Options are added at a struct's end. So a program that was compiled before there was one goes on to work
 * with the library that has it, and one that sets it is refused by a library that has not. */
#define KILN_OPTIONS_(type, ...) (&(const type){.size = sizeof(type), __VA_ARGS__})

#endif

/* Structs that the library fills travel by address, too, and functions that take one get its size: kiln_loader_next is
 * a line in the header that calls kiln_loader_next_ with the size the program was compiled with. Such structs grow at
 * their end, like options. Those that lie in others, or in arrays, keep their size and have room reserved. Those
 * that are values (kiln_field, kiln_meta, kiln_params, kiln_random_state) stay as they are. */

/* function(a, b, options): a trailing comma serves lists with and without options. */
#define KILN_CALL1_(function, type, a, ...)       function(a, KILN_OPTIONS_(type, __VA_ARGS__))
#define KILN_CALL2_(function, type, a, b, ...)    function(a, b, KILN_OPTIONS_(type, __VA_ARGS__))
#define KILN_CALL3_(function, type, a, b, c, ...) function(a, b, c, KILN_OPTIONS_(type, __VA_ARGS__))

#endif
