/* Pictures in and out: PNG files as a model's input, and small drawings in a terminal. */
#include <math.h>
#include <png.h>
#include <stdlib.h>
#include "cli/work.h"

enum { LARGEST = 1 << 26 }; /* pixels of a file that is read: more is hardly meant for a network */

/* The grey values of a file, 0 … 255, transparent parts on white. */
static unsigned char *read_grey(const char *path, int64_t *height, int64_t *width, int *code)
{
    png_image image = {.version = PNG_IMAGE_VERSION};
    FILE *in = open_input(path, code);
    if (!in)
        return NULL;
    unsigned char *grey = NULL;
    png_color white = {255, 255, 255};
    bool begun = png_image_begin_read_from_stdio(&image, in);
    image.format = PNG_FORMAT_GRAY;
    if (begun && (uint64_t)image.width * image.height > LARGEST) {
        *code = fail(EX_DATAERR, "%s: %ux%u pixels are too many", path, image.width, image.height);
        png_image_free(&image);
    } else if (begun) {
        grey = must_alloc(PNG_IMAGE_SIZE(image), 1);
        *height = image.height;
        *width = image.width;
        begun = png_image_finish_read(&image, &white, grey, 0, NULL);
    }
    long offset = ftell(in);
    fclose(in);
    if (!begun) {
        *code = fail(EX_DATAERR, "%s: not a PNG file that can be read, by byte %ld: %s", path, offset, image.message);
        png_image_free(&image);
        free(grey);
        return NULL;
    }
    return grey;
}

/* The mean of the source pixels under one target pixel, weighted by how much of each is covered. */
static float area_mean(const unsigned char *grey, int64_t h, int64_t w, double y0, double y1, double x0, double x1)
{
    double sum = 0, weight = 0;
    for (int64_t y = (int64_t)y0; y < h && (double)y < y1; y++)
        for (int64_t x = (int64_t)x0; x < w && (double)x < x1; x++) {
            double part =
                (fmin(y1, (double)y + 1) - fmax(y0, (double)y)) * (fmin(x1, (double)x + 1) - fmax(x0, (double)x));
            sum += part * grey[y * w + x];
            weight += part;
        }
    return weight > 0 ? (float)(sum / weight / 255) : 0;
}

/* Digits are learned bright on dark. A picture whose border is bright is the other way round. */
static void bright_on_dark(float *pixels, int64_t h, int64_t w)
{
    double border = 0;
    for (int64_t x = 0; x < w; x++)
        border += pixels[x] + pixels[(h - 1) * w + x];
    for (int64_t y = 0; y < h; y++)
        border += pixels[y * w] + pixels[y * w + w - 1];
    if (border / (2 * (double)(h + w)) > 0.5)
        for (int64_t i = 0; i < h * w; i++)
            pixels[i] = 1 - pixels[i];
}

float *image_read(const char *path, int64_t height, int64_t width, int *code)
{
    int64_t h = 0, w = 0;
    unsigned char *grey = read_grey(path, &h, &w, code);
    if (!grey)
        return NULL;
    float *out = must_alloc((size_t)(height * width), sizeof *out);
    double sy = (double)h / (double)height, sx = (double)w / (double)width;
    for (int64_t y = 0; y < height; y++)
        for (int64_t x = 0; x < width; x++)
            out[y * width + x] =
                area_mean(grey, h, w, (double)y * sy, (double)(y + 1) * sy, (double)x * sx, (double)(x + 1) * sx);
    free(grey);
    bright_on_dark(out, height, width);
    return out;
}

void image_draw(const float *pixels, int64_t height, int64_t width, FILE *out)
{
    static const char *const blocks[] = {" ", "▀", "▄", "█"}; /* two pixels a character, one above the other */
    float low = pixels[0], high = pixels[0];
    for (int64_t i = 0; i < height * width; i++) {
        low = fminf(low, pixels[i]);
        high = fmaxf(high, pixels[i]);
    }
    float middle = low + 0.4f * (high - low);
    for (int64_t y = 0; y < height; y += 2) {
        fputs("    ", out);
        for (int64_t x = 0; x < width; x++) {
            bool above = pixels[y * width + x] > middle;
            bool below = y + 1 < height && pixels[(y + 1) * width + x] > middle;
            fputs(blocks[above + 2 * below], out);
        }
        fputc('\n', out);
    }
}
