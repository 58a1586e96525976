/* Near words: the edit distance, of what is left when case and separators are put aside. */
#include "core/nearest.h"
#include <ctype.h>
#include <string.h>

enum { LONGEST = 32 }; /* letters that are compared */

static int simplify(const char *word, char out[LONGEST])
{
    int n = 0;
    for (; *word && n < LONGEST; word++)
        if (*word != '_' && *word != '-')
            out[n++] = (char)tolower((unsigned char)*word);
    return n;
}

/* Letters to be put in, left out or replaced to make one word of the other, and neighbours to be swapped. */
static int distance(const char *from, const char *to)
{
    char a[LONGEST], b[LONGEST];
    int n = simplify(from, a), m = simplify(to, b), rows[LONGEST + 1][LONGEST + 1];
    for (int i = 0; i <= n; i++)
        for (int j = 0; j <= m; j++) {
            int best = i > j ? i : j;
            if (i && j) {
                best = rows[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
                best = rows[i - 1][j] + 1 < best ? rows[i - 1][j] + 1 : best;
                best = rows[i][j - 1] + 1 < best ? rows[i][j - 1] + 1 : best;
            }
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && rows[i - 2][j - 2] + 1 < best)
                best = rows[i - 2][j - 2] + 1;
            rows[i][j] = best;
        }
    return rows[n][m];
}

void kiln_nearest_offer(kiln_nearest *best, const char *written, const char *word)
{
    int d = distance(written, word), length = (int)strnlen(written, LONGEST);
    if (d <= (length > 5 ? length / 2 : 2) && (!best->word || d < best->distance))
        *best = (kiln_nearest){word, d};
}
