/* How an image stands in a batch that is augmented: mirrored or not, shifted by a few pixels. It is drawn from Philox
 * by (seed, epoch, sample), so that it is the same wherever and in whatever order batches are made. Plain C that CUDA
 * compiles as well: define KILN_PHILOX_FN there, as for core/philox.h.
 *
 * Pixel (y, x) of the result is pixel (y + down, x + right) of the image; of a mirrored one (y + down,
 * width - 1 - x + right), as if the image was shifted first. Where that lies outside there is nothing to be seen. */
#ifndef KILN_CORE_POSE_H
#define KILN_CORE_POSE_H

#include "core/philox_words.h"
#ifdef KILN_PHILOX_HOST
#include <stdbool.h>
#endif

typedef struct kiln_pose {
    int32_t down, right; /* -crop … crop */
    int32_t mirrored;    /* 0 or 1 */
} kiln_pose;

/* One of -most … most, each equally likely. */
KILN_PHILOX_FN int32_t kiln_pose_shift(uint32_t word, int32_t most)
{
    return (int32_t)(((uint64_t)word * (2 * (uint64_t)most + 1)) >> 32) - most;
}

/* What is drawn for one change does not depend on which others are wanted. */
KILN_PHILOX_FN kiln_pose kiln_pose_draw(uint64_t seed, uint64_t epoch, int64_t sample, bool flip, int32_t crop)
{
    const uint32_t counter[4] = {(uint32_t)sample, (uint32_t)((uint64_t)sample >> 32), (uint32_t)epoch,
                                 (uint32_t)(epoch >> 32) ^ 0x706f7365};
    uint32_t word[4];
    kiln_philox_words((uint32_t)seed, (uint32_t)(seed >> 32), counter, word);
    kiln_pose pose;
    pose.down = kiln_pose_shift(word[0], crop);
    pose.right = kiln_pose_shift(word[1], crop);
    pose.mirrored = flip ? (int32_t)(word[2] >> 31) : 0;
    return pose;
}

#endif
