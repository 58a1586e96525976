/* Letters made of strokes, for pictures in pixels. A letter is its width and its strokes on a grid: x from 0, y from 0
 * (top of a capital) by 3 (top of a small letter) to 8 (base line) and b (11, below it). A stroke is a row of points, a
 * digit for x and one for y; one that begins with ~ is rounded: a curve that touches the middle of each side. */
#include <string.h>
#include "cli/canvas.h"

typedef struct glyph {
    char width; /* a digit */
    const char *strokes;
} glyph;

static const glyph glyphs[] = {
    [' '] = {'2', ""},
    ['!'] = {'1', "00 05, 08 08"},
    ['"'] = {'2', "00 02, 20 22"},
    ['#'] = {'5', "20 18, 40 38, 03 53, 05 55"},
    ['%'] = {'6', "~00 20 23 03 00, 60 08, ~45 65 68 48 45"},
    ['&'] = {'5', "~58 01 00 30 32 05 08 48 54"},
    ['\''] = {'1', "00 02"},
    ['('] = {'2', "~20 02 08 2a"},
    [')'] = {'2', "~00 22 28 0a"},
    ['*'] = {'4', "22 26, 03 45, 43 05"},
    ['+'] = {'4', "05 45, 23 27"},
    [','] = {'1', "17 0a"},
    ['-'] = {'3', "05 35"},
    ['.'] = {'1', "08 08"},
    ['/'] = {'4', "0a 40"},
    ['0'] = {'5', "~10 40 52 56 48 18 06 02 10"},
    ['1'] = {'5', "02 20 28, 08 48"},
    ['2'] = {'5', "~02 00 50 53 16 08, 08 58"},
    ['3'] = {'5', "~01 00 50 54 24, ~24 54 58 08 07"},
    ['4'] = {'5', "48 40 06 56"},
    ['5'] = {'5', "50 10 04, ~04 03 53 58 08 07"},
    ['6'] = {'5', "~03 53 58 08 03, ~40 10 03 06"},
    ['7'] = {'5', "00 50 18"},
    ['8'] = {'5', "~00 50 54 04 00, ~04 54 58 08 04"},
    ['9'] = {'5', "~00 50 55 05 00, ~52 55 48 18"},
    [':'] = {'1', "04 04, 08 08"},
    [';'] = {'1', "14 14, 17 0a"},
    ['<'] = {'4', "43 05 47"},
    ['='] = {'4', "04 44, 06 46"},
    ['>'] = {'4', "03 45 07"},
    ['?'] = {'4', "~01 00 40 44 25 26, 28 28"},
    ['@'] = {'6', "~66 68 08 00 60 65 46 43, ~43 23 26 46 43"},
    ['A'] = {'6', "08 30 68, 15 55"},
    ['B'] = {'5', "00 08, ~00 50 54 04, ~04 54 58 08"},
    ['C'] = {'5', "~52 50 00 08 58 56"},
    ['D'] = {'5', "00 08, ~00 50 58 08"},
    ['E'] = {'4', "40 00 08 48, 04 34"},
    ['F'] = {'4', "40 00 08, 04 34"},
    ['G'] = {'5', "~52 50 00 08 58 55, 35 55"},
    ['H'] = {'5', "00 08, 50 58, 04 54"},
    ['I'] = {'1', "00 08"},
    ['J'] = {'3', "~30 36 38 08 06"},
    ['K'] = {'5', "00 08, 50 05, 23 58"},
    ['L'] = {'4', "00 08 48"},
    ['M'] = {'6', "08 00 35 60 68"},
    ['N'] = {'5', "08 00 58 50"},
    ['O'] = {'6', "~00 60 68 08 00"},
    ['P'] = {'5', "00 08, ~00 50 55 05"},
    ['Q'] = {'6', "~00 60 68 08 00, 45 69"},
    ['R'] = {'5', "00 08, ~00 50 55 05, 25 58"},
    ['S'] = {'5', "~51 50 00 04 54 58 08 07"},
    ['T'] = {'6', "00 60, 30 38"},
    ['U'] = {'5', "~00 04 08 58 54 50"},
    ['V'] = {'6', "00 38 60"},
    ['W'] = {'8', "00 28 41 68 80"},
    ['X'] = {'5', "00 58, 50 08"},
    ['Y'] = {'6', "00 34 60, 34 38"},
    ['Z'] = {'5', "00 50 08 58"},
    ['['] = {'2', "20 00 0a 2a"},
    ['\\'] = {'4', "00 4a"},
    [']'] = {'2', "00 20 2a 0a"},
    ['^'] = {'4', "03 20 43"},
    ['_'] = {'5', "09 59"},
    ['`'] = {'2', "00 22"},
    ['a'] = {'4', "~03 43 48 08 03, 43 48"},
    ['b'] = {'4', "~03 43 48 08 03, 00 08"},
    ['c'] = {'4', "~44 43 03 08 48 47"},
    ['d'] = {'4', "~03 43 48 08 03, 40 48"},
    ['e'] = {'4', "05 45, ~45 43 03 08 48 47"},
    ['f'] = {'3', "~30 10 13, 13 18, 03 33"},
    ['g'] = {'4', "~03 43 48 08 03, 43 48, ~48 4b 0b 0a"},
    ['h'] = {'4', "00 08, ~05 03 43 45 48"},
    ['i'] = {'1', "03 08, 01 01"},
    ['j'] = {'2', "~23 29 2b 0b, 21 21"},
    ['k'] = {'4', "00 08, 43 06, 25 48"},
    ['l'] = {'1', "00 08"},
    ['m'] = {'6', "03 08, ~05 03 33 35 38, ~35 33 63 65 68"},
    ['n'] = {'4', "03 08, ~05 03 43 45 48"},
    ['o'] = {'4', "~03 43 48 08 03"},
    ['p'] = {'4', "~03 43 48 08 03, 03 0b"},
    ['q'] = {'4', "~03 43 48 08 03, 43 4b"},
    ['r'] = {'3', "03 08, ~05 03 33"},
    ['s'] = {'4', "~44 43 03 05 46 48 08 07"},
    ['t'] = {'3', "~10 16 18 38, 03 33"},
    ['u'] = {'4', "~03 06 08 48 46, 43 48"},
    ['v'] = {'4', "03 28 43"},
    ['w'] = {'6', "03 18 34 58 63"},
    ['x'] = {'4', "03 48, 43 08"},
    ['y'] = {'4', "03 28, 43 1b"},
    ['z'] = {'4', "03 43 08 48"},
    ['{'] = {'3', "~30 10 14 05, ~05 16 1a 3a"},
    ['|'] = {'1', "00 0a"},
    ['}'] = {'3', "~00 20 24 35, ~35 26 2a 0a"},
    ['~'] = {'4', "~06 04 25 46 44"},
};
static const glyph box = {'4', "03 43 48 08 03"}; /* what is not in the table */

enum { POINTS = 128, BASE = 8 };

static int digit(char c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

/* Cuts the corners off a line of points: two rounds of that are round enough for a letter. Returns how many there are.
 */
static int round_off(const double *in, int n, double *out)
{
    bool closed = in[0] == in[2 * n - 2] && in[1] == in[2 * n - 1] && n > 2;
    int m = 0;
    for (int i = 0; i + 1 < n; i++) {
        const double *a = in + 2 * i, *b = a + 2;
        double near = !closed && i == 0 ? 0 : 0.25, far = !closed && i + 2 == n ? 1 : 0.75;
        out[m++] = a[0] + near * (b[0] - a[0]);
        out[m++] = a[1] + near * (b[1] - a[1]);
        out[m++] = a[0] + far * (b[0] - a[0]);
        out[m++] = a[1] + far * (b[1] - a[1]);
    }
    if (closed) {
        out[m] = out[0];
        out[m + 1] = out[1];
        m += 2;
    }
    return m / 2;
}

static const char *read_stroke(const char *at, double x, double y, double unit, double *xy, int *n)
{
    bool round = *at == '~';
    double other[2 * POINTS];
    *n = 0;
    for (at += round; *at && *at != ','; at += at[0] == ' ' ? 1 : 2)
        if (*at != ' ') {
            xy[2 * *n] = x + unit * digit(at[0]);
            xy[2 * *n + 1] = y + unit * (digit(at[1]) - BASE);
            ++*n;
        }
    for (int i = 0; round && i < 3 && 2 * *n + 2 < POINTS; i++) {
        int more = round_off(xy, *n, other);
        memcpy(xy, other, sizeof *xy * 2 * (size_t)more);
        *n = more;
    }
    return *at ? at + 2 : at;
}

double letter_draw(unsigned letter, double x, double y, double size, stroke_fn stroke, void *context)
{
    double unit = size * 0.09, xy[2 * POINTS];
    const glyph *g = letter < sizeof glyphs / sizeof *glyphs && glyphs[letter].strokes ? &glyphs[letter] : &box;
    int n;
    for (const char *at = g->strokes; stroke && *at;) {
        at = read_stroke(at, x, y, unit, xy, &n);
        stroke(context, n, xy);
    }
    return unit * (digit(g->width) + 2);
}

unsigned letter_next(const char **text)
{
    const unsigned char *at = (const unsigned char *)*text;
    if (!*at)
        return 0;
    unsigned letter = *at++;
    while ((*at & 0xc0) == 0x80) /* the rest of a character of several bytes: drawn as a box */
        at++;
    *text = (const char *)at;
    return letter;
}
