/* Augmenting: what a loader changes at random about samples that it hands out. Where the data set lies on the device
 * take_samples does it (ops/samples.h), everywhere else these functions, with the same bits. */
#ifndef KILN_DATA_AUGMENT_H
#define KILN_DATA_AUGMENT_H

#include "data/dataset.h"

static inline bool kiln_augments(const kiln_augment *a)
{
    return a->flip || a->crop;
}

/* Whether the samples of d can be changed so. False with an error of `operation`. */
bool kiln_augment_check(const kiln_dataset *d, const kiln_augment *a, const char *operation);

/* Changes x of sample `index`, which was just read. */
void kiln_augment_sample(const kiln_dataset *d, const kiln_augment *a, uint64_t seed, int64_t epoch, int64_t index,
                         void *x);

#endif
