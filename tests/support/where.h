/* Files of the tests' folder: where it was when the tests were built, or where KILN_TEST_DIR says it is now. */
#ifndef KILN_TEST_WHERE_H
#define KILN_TEST_WHERE_H

#include <stdio.h>
#include <stdlib.h>

/* The path of "golden/models.txt", in one of a few rotating buffers. */
static inline const char *test_file(const char *name)
{
    static char buffers[4][1024];
    static int turn;
    char *path = buffers[turn++ % 4];
    const char *folder = getenv("KILN_TEST_DIR");
    snprintf(path, sizeof buffers[0], "%s/%s", folder && *folder ? folder : KILN_TEST_DIR, name);
    return path;
}

#endif
