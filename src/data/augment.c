/* Augmenting samples in host memory: see augment.h. */
#include "data/augment.h"
#include "core/fail.h"
#include "core/image.h"
#include "core/sized.h"
#include "ops/op.h"

bool kiln_augment_check(const kiln_dataset *d, const kiln_augment *a, const char *operation)
{
    const kiln_field *x = &d->info.x;
    if (!KILN_UNUSED(operation, a->reserved_))
        return false;
    if (!kiln_augments(a))
        return true;
    if (d->info.text || x->ndim < 2 || x->ndim > 3) {
        kiln_fail(KILN_E_SHAPE, operation, "samples of %s are %s %s: only images can be flipped and cropped",
                  d->info.name, d->info.text ? "text," : "of shape", kiln_shape_text(x->ndim, x->shape));
        return kiln_hint("an image is [channels, height, width] or [height, width]");
    }
    int64_t height = x->shape[x->ndim - 2], width = x->shape[x->ndim - 1], least = height < width ? height : width;
    if (a->crop >= 0 && a->crop < least)
        return true;
    kiln_fail(KILN_E_ARGUMENT, operation, "images of %lld×%lld pixels cannot be cropped by %d", (long long)height,
              (long long)width, a->crop);
    return kiln_hint("crop is how far an image is shifted at most: 0 to %lld pixels", (long long)least - 1);
}

void kiln_augment_sample(const kiln_dataset *d, const kiln_augment *a, uint64_t seed, int64_t epoch, int64_t index,
                         void *x)
{
    const kiln_field *item = &d->info.x;
    kiln_image image = kiln_image_of(item->ndim, item->shape, kiln_dtype_size(item->dtype), d->blank);
    kiln_pose pose = kiln_pose_draw(seed, (uint64_t)epoch, index, a->flip, a->crop);
    kiln_image_turn(&image, x, &pose);
}
