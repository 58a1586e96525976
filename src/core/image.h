/* Images in host memory, and changing them as core/pose.h has it. */
#ifndef KILN_CORE_IMAGE_H
#define KILN_CORE_IMAGE_H

#include <stddef.h>
#include <stdint.h>
#include "core/pose.h"

/* [planes, height, width] of elements of any dtype. */
typedef struct kiln_image {
    int64_t planes, height, width;
    size_t element; /* bytes: 1, 2, 4 or 8 */
    uint64_t blank; /* the bits of an element where there is nothing to be seen */
} kiln_image;

/* The sizes of an image of two or more dimensions; the last two are height and width. */
static inline kiln_image kiln_image_of(int ndim, const int64_t *shape, size_t element, uint64_t blank)
{
    kiln_image image = {1, shape[ndim - 2], shape[ndim - 1], element, blank};
    for (int d = 0; d < ndim - 2; d++)
        image.planes *= shape[d];
    return image;
}

/* Makes the image at `pixels` stand that way, in place. */
void kiln_image_turn(const kiln_image *image, void *pixels, const kiln_pose *pose);

#endif
