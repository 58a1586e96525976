/* Changing images in place, line by line: a line is read before it is written to, since lines are gone through in the
 * direction they come from. */
#include "core/image.h"
#include <string.h>

/* ---- Lines, for elements of a size that the compiler knows ---- */

static inline void blank_of(char *from, const char *end, uint64_t blank, size_t element)
{
    for (; from < end; from += element)
        memcpy(from, &blank, element); /* its lowest bytes, which come first */
}

static inline void mirror_of(char *line, int64_t width, size_t element)
{
    char *other = line + (size_t)(width - 1) * element, kept[8];
    for (; line < other; line += element, other -= element) {
        memcpy(kept, line, element);
        memcpy(line, other, element);
        memcpy(other, kept, element);
    }
}

static void blank_out(const kiln_image *image, char *from, const char *end)
{
    switch (image->element) {
    case 1: blank_of(from, end, image->blank, 1); break;
    case 2: blank_of(from, end, image->blank, 2); break;
    case 4: blank_of(from, end, image->blank, 4); break;
    default: blank_of(from, end, image->blank, 8);
    }
}

static void mirror(const kiln_image *image, char *line)
{
    switch (image->element) {
    case 1: mirror_of(line, image->width, 1); break;
    case 2: mirror_of(line, image->width, 2); break;
    case 4: mirror_of(line, image->width, 4); break;
    default: mirror_of(line, image->width, 8);
    }
}

/* ---- Images ---- */

/* Makes line `to` of line `from`, which may be the same, or none (NULL). */
static void turn_line(const kiln_image *image, char *to, const char *from, const kiln_pose *pose)
{
    int64_t low = pose->right < 0 ? -pose->right : 0; /* what lies inside: low … high-1 */
    int64_t high = pose->right > 0 ? image->width - pose->right : image->width;
    size_t element = image->element, begin = (size_t)low * element, end = (size_t)high * element;
    if (!from || low >= high) {
        blank_out(image, to, to + (size_t)image->width * element);
        return;
    }
    memmove(to + begin, from + (size_t)(low + pose->right) * element, end - begin);
    blank_out(image, to, to + begin);
    blank_out(image, to + end, to + (size_t)image->width * element);
    if (pose->mirrored)
        mirror(image, to);
}

void kiln_image_turn(const kiln_image *image, void *pixels, const kiln_pose *pose)
{
    if (!pose->down && !pose->right && !pose->mirrored)
        return;
    size_t line = (size_t)image->width * image->element;
    char *plane = pixels;
    for (int64_t p = 0; p < image->planes; p++, plane += (size_t)image->height * line)
        for (int64_t i = 0; i < image->height; i++) {
            int64_t y = pose->down < 0 ? image->height - 1 - i : i, from = y + pose->down;
            bool inside = from >= 0 && from < image->height;
            turn_line(image, plane + (size_t)y * line, inside ? plane + (size_t)from * line : NULL, pose);
        }
}
