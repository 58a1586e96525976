/* Something to draw on, and its two kinds: SVG text and PNG pixels. Coordinates are pixels of the SVG, y downwards. */
#ifndef KILN_CLI_CANVAS_H
#define KILN_CLI_CANVAS_H

#include <stdbool.h>
#include <stdio.h>

/* Colours by what they are for: the SVG has others of them in dark mode. */
typedef enum ink {
    INK_PAPER,
    INK_TEXT,
    INK_FAINT, /* labels of axes */
    INK_GRID,
    INK_SERIES, /* the first of INK_COLOURS colours of lines */
    INK_COLOURS = 8
} ink;

typedef enum anchor { ANCHOR_LEFT, ANCHOR_MIDDLE, ANCHOR_RIGHT } anchor;

typedef struct canvas canvas;
struct canvas {
    double width, height;
    void (*line)(canvas *c, int n, const double *xy, ink colour, double width, double opacity);
    void (*dot)(canvas *c, double x, double y, double radius, ink colour);
    void (*text)(canvas *c, double x, double y, const char *text, double size, anchor where, ink colour, bool bold);
    bool (*finish)(canvas *c, FILE *out); /* writes all of it and frees the canvas; false where that went wrong */
};

#define SVG_BEGINNING "<svg xmlns=\"http://www.w3.org/2000/svg\"" /* of every SVG file that is written */
canvas *canvas_svg(double width, double height);
canvas *canvas_png(double width, double height);

/* Roughly how wide a text will be. */
double text_width(const char *text, double size);

/* ---- Letters made of strokes, for pixels ---- */

/* Draws one letter with its left end at x and its base line at y: `stroke` gets each stroke as a line of points.
 * Returns how far the next letter is. */
typedef void (*stroke_fn)(void *context, int n, const double *xy);
double letter_draw(unsigned letter, double x, double y, double size, stroke_fn stroke, void *context);
unsigned letter_next(const char **text); /* the next character of UTF-8 text; 0 at its end */

#endif
