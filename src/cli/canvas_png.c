/* The PNG canvas: lines, dots and letters as pixels, smooth at the edges, two pixels for each of the SVG's. A shape is
 * first collected as coverage (how much of each pixel it takes) and then laid over the picture at once, so that a line
 * that meets itself is not darker there. */
#include <math.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>
#include "cli/canvas.h"
#include "cli/cli.h"

enum { SCALE = 2 };

typedef struct raster {
    canvas base;
    int w, h;
    unsigned char *pixels; /* RGB */
    float *cover;          /* of the shape that is being drawn */
    int x0, y0, x1, y1;    /* where it has been touched */
} raster;

static const unsigned char colours[][3] = {{255, 255, 255}, {31, 35, 40},   {89, 99, 110},  {227, 231, 236},
                                           {31, 111, 209},  {217, 104, 11}, {26, 138, 74},  {180, 48, 156},
                                           {14, 138, 148},  {196, 48, 43},  {109, 85, 200}, {132, 112, 10}};
enum { INKS = sizeof colours / sizeof *colours };

static const unsigned char *colour_of(ink colour)
{
    return colours[colour < INK_SERIES ? (int)colour : INK_SERIES + ((int)colour - INK_SERIES) % (INKS - INK_SERIES)];
}

/* ---- Shapes ---- */

static int clamp(double v, int low, int high) /* also of what is no number */
{
    return !(v > low) ? low : v > high ? high : (int)v;
}

static double distance(double x, double y, const double *a, const double *b)
{
    double dx = b[0] - a[0], dy = b[1] - a[1], length = dx * dx + dy * dy;
    double t = length > 0 ? ((x - a[0]) * dx + (y - a[1]) * dy) / length : 0;
    t = t < 0 ? 0 : t > 1 ? 1 : t;
    return hypot(x - a[0] - t * dx, y - a[1] - t * dy);
}

/* Covers what lies within `radius` of the segment, fading over the width of a pixel. */
static void cover_segment(raster *r, const double *a, const double *b, double radius)
{
    int x0 = clamp(fmin(a[0], b[0]) - radius - 1, 0, r->w), x1 = clamp(fmax(a[0], b[0]) + radius + 2, 0, r->w);
    int y0 = clamp(fmin(a[1], b[1]) - radius - 1, 0, r->h), y1 = clamp(fmax(a[1], b[1]) + radius + 2, 0, r->h);
    for (int y = y0; y < y1; y++)
        for (int x = x0; x < x1; x++) {
            double part = radius + 0.5 - distance(x + 0.5, y + 0.5, a, b);
            part = part < 0 ? 0 : part > 1 ? 1 : part;
            float *cover = &r->cover[(size_t)y * (size_t)r->w + (size_t)x];
            *cover = fmaxf(*cover, (float)part);
        }
    r->x0 = x0 < r->x0 ? x0 : r->x0;
    r->y0 = y0 < r->y0 ? y0 : r->y0;
    r->x1 = x1 > r->x1 ? x1 : r->x1;
    r->y1 = y1 > r->y1 ? y1 : r->y1;
}

static void lay_over(raster *r, ink colour, double opacity)
{
    const unsigned char *to = colour_of(colour);
    for (int y = r->y0; y < r->y1; y++)
        for (int x = r->x0; x < r->x1; x++) {
            size_t i = (size_t)y * (size_t)r->w + (size_t)x;
            double part = opacity * (double)r->cover[i];
            for (int k = 0; k < 3; k++)
                r->pixels[3 * i + (size_t)k] =
                    (unsigned char)lround(r->pixels[3 * i + (size_t)k] * (1 - part) + to[k] * part);
            r->cover[i] = 0;
        }
    r->x0 = r->w;
    r->y0 = r->h;
    r->x1 = r->y1 = 0;
}

static void png_line(canvas *c, int n, const double *xy, ink colour, double width, double opacity)
{
    raster *r = (raster *)c;
    for (int i = 0; i + 1 < n; i++) {
        double a[2] = {SCALE * xy[2 * i], SCALE * xy[2 * i + 1]}, b[2] = {SCALE * xy[2 * i + 2], SCALE * xy[2 * i + 3]};
        cover_segment(r, a, b, SCALE * width / 2);
    }
    lay_over(r, colour, opacity);
}

static void png_dot(canvas *c, double x, double y, double radius, ink colour)
{
    raster *r = (raster *)c;
    double at[2] = {SCALE * x, SCALE * y};
    cover_segment(r, at, at, SCALE * radius);
    lay_over(r, colour, 1);
}

/* ---- Letters ---- */

typedef struct pen {
    raster *r;
    double radius;
} pen;

static void draw_stroke(void *context, int n, const double *xy)
{
    pen *p = context;
    for (int i = 0; i + 1 < n; i++)
        cover_segment(p->r, xy + 2 * i, xy + 2 * i + 2, p->radius);
}

static void png_text_at(canvas *c, double x, double y, const char *text, double size, anchor where, ink colour,
                        bool bold)
{
    raster *r = (raster *)c;
    pen p = {r, SCALE * size * (bold ? 0.065 : 0.045)};
    double width = text_width(text, size);
    x -= where == ANCHOR_MIDDLE ? width / 2 : where == ANCHOR_RIGHT ? width : 0;
    x *= SCALE;
    for (unsigned letter; (letter = letter_next(&text));)
        x += letter_draw(letter, x, SCALE * y, SCALE * size, draw_stroke, &p);
    lay_over(r, colour, 1);
}

double text_width(const char *text, double size)
{
    double width = 0;
    for (unsigned letter; (letter = letter_next(&text));)
        width += letter_draw(letter, 0, 0, size, NULL, NULL);
    return width;
}

/* ---- The file ---- */

static bool png_finish(canvas *c, FILE *out)
{
    raster *r = (raster *)c;
    png_image image = {
        .version = PNG_IMAGE_VERSION, .width = (unsigned)r->w, .height = (unsigned)r->h, .format = PNG_FORMAT_RGB};
    bool ok = png_image_write_to_stdio(&image, out, 0, r->pixels, 0, NULL);
    free(r->pixels);
    free(r->cover);
    free(r);
    return ok;
}

canvas *canvas_png(double width, double height)
{
    raster *r = must_alloc(1, sizeof *r);
    r->base = (canvas){width, height, png_line, png_dot, png_text_at, png_finish};
    r->w = (int)(SCALE * width);
    r->h = (int)(SCALE * height);
    size_t count = (size_t)r->w * (size_t)r->h;
    r->pixels = must_alloc(count, 3);
    r->cover = must_alloc(count, sizeof *r->cover);
    memset(r->pixels, 255, 3 * count);
    r->x0 = r->w;
    r->y0 = r->h;
    return &r->base;
}
