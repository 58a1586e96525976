/* Runs that were given to the device and are not launched yet, so that several become one launch (multirun.h says when
 * that is). They are runs of one chain, the device's `pending`, and count as given: they have numbers and flights.
 *
 * Everything here is to be called with the device's lock held. */
#ifndef KILN_CUDA_PENDING_H
#define KILN_CUDA_PENDING_H

#include "device/cuda/chain/chain.h"

/* Adds a run to those that are pending, or launches them and begins anew if it cannot join them. The caller notes its
 * number and its flight before anything else happens. */
bool kiln_cuda_pend(kiln_cuda_device *d, kiln_cuda_chain *chain, const void *kernel, const kiln_binding *b);

/* Launches what is pending. Where that fails, which is an error of the caller's, these runs have failed, and are no
 * flights any more. */
bool kiln_cuda_flush(kiln_cuda_device *d);

/* The same if it is time to, for a run that is just being given and is the last of them. If it alone cannot be
 * launched, nothing has happened: where memory was lacking, it can be given again. */
bool kiln_cuda_flush_due(kiln_cuda_device *d);

/* Gives up what is pending, as runs that have failed: the device cannot be used any more. */
void kiln_cuda_abandon(kiln_cuda_device *d);

#endif
