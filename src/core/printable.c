/* Control characters in texts: those of ASCII, and those behind it, alone or as UTF-8. */
#include "core/printable.h"

#include <stdbool.h>
#include <string.h>

/* Bytes of the character of UTF-8 at `c`; 1 for one that is none. */
static int character_bytes(const unsigned char *c)
{
    int n = *c >= 0xc2 && *c < 0xe0 ? 2 : *c >= 0xe0 && *c < 0xf0 ? 3 : *c >= 0xf0 && *c < 0xf5 ? 4 : 1;
    for (int i = 1; i < n; i++)
        if ((c[i] & 0xc0) != 0x80)
            return 1;
    return n;
}

void kiln_make_printable(char *text)
{
    int n;
    for (unsigned char *c = (unsigned char *)text; *c; c += n) {
        n = character_bytes(c);
        bool control = n == 1 ? (*c < ' ' && *c != '\n') || *c >= 0x7f : *c == 0xc2 && c[1] < 0xa0;
        if (control)
            memset(c, '?', (size_t)n);
    }
}
