/* take_samples: what its attributes are, for those who write it and for its kernels. */
#ifndef KILN_OPS_SAMPLES_H
#define KILN_OPS_SAMPLES_H

/* Integers. Element e of sample i is element start + i · distance + e of the storage. */
enum {
    KILN_SAMPLES_DTYPE, /* of the result; -1: the storage's */
    KILN_SAMPLES_COUNT, /* how many samples the set has */
    KILN_SAMPLES_START,
    KILN_SAMPLES_DISTANCE,
    KILN_SAMPLES_SHUFFLE, /* 0 or 1 */
    KILN_SAMPLES_FLIP,    /* 0 or 1: mirror images at random; with CROP as core/pose.h has it */
    KILN_SAMPLES_CROP,    /* shift images at random by up to so many pixels */
    KILN_SAMPLES_BLANK,   /* the bits of an element of the result that comes from outside of an image */
    KILN_SAMPLES_SHAPE    /* of the result: the batch, then a sample's own */
};

/* Run-time scalars, so that one plan serves all batches of all epochs. Numbers of 64 bits come in two halves, since a
 * double holds 53. */
enum {
    KILN_SAMPLES_POSITION, /* of the batch's first sample in the epoch */
    KILN_SAMPLES_SEED_LOW,
    KILN_SAMPLES_SEED_HIGH,
    KILN_SAMPLES_EPOCH_LOW,
    KILN_SAMPLES_EPOCH_HIGH,
    KILN_SAMPLES_SCALARS
};

/* Numbers that bytes can stand for. */
enum { KILN_SAMPLES_TABLE = 256 };

#endif
