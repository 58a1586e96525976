/* A YAML text as a tree: small, with line numbers, without aliases. */
#ifndef KILN_IO_YAML_H
#define KILN_IO_YAML_H

#include <stdbool.h>
#include <stddef.h>
#include "core/arena.h"

typedef enum kiln_yaml_kind { KILN_YAML_SCALAR, KILN_YAML_LIST, KILN_YAML_MAP } kiln_yaml_kind;

typedef struct kiln_yaml {
    kiln_yaml_kind kind;
    int line;         /* from 1 */
    const char *text; /* of a scalar; "" where nothing stands */
    const char *key;  /* of a value in a mapping, else NULL */
    int count;        /* of what a list or mapping holds */
    struct kiln_yaml *first, *last, *next;
} kiln_yaml;

/* The one document of a text, in memory of the arena; NULL with an error that names `name` and the line. Aliases,
 * duplicate keys and deep nesting are refused. */
kiln_yaml *kiln_yaml_parse(kiln_arena *arena, const char *text, size_t bytes, const char *name, const char *who);

kiln_yaml *kiln_yaml_get(const kiln_yaml *map, const char *key); /* NULL: not there */

#endif
