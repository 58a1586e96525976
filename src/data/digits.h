/* Handwritten digits, drawn: what digit n looks like as strokes, and how one sample of it is drawn. */
#ifndef KILN_DATA_DIGITS_H
#define KILN_DATA_DIGITS_H

#include <stdint.h>

enum { KILN_DIGIT_SIDE = 28, KILN_DIGIT_PIXELS = KILN_DIGIT_SIDE * KILN_DIGIT_SIDE };

/* A point that the pen goes through, in hundredths of the letter's box, y downwards. */
typedef struct kiln_pen_point {
    int8_t x, y;
    char how; /* 0: in a curve; '/': a corner; '|': the first of a stroke, where the pen is put down */
} kiln_pen_point;

enum { KILN_PEN_POINTS = 16 };

/* One way of writing a digit. */
typedef struct kiln_glyph {
    int points;
    kiln_pen_point point[KILN_PEN_POINTS];
} kiln_glyph;

/* The ways people write `digit`; *count of them. */
const kiln_glyph *kiln_glyphs(int digit, int *count);

/* Draws sample number `index` into pixels, normalised to mean 0 and deviation 1 over many samples; returns its digit.
 * Nothing but +, -, * and / of IEEE numbers: the same bits on all machines. */
int kiln_digit_draw(uint64_t index, float *pixels);

/* A pixel without ink, normalised likewise. */
float kiln_digit_paper(void);

#endif
