/* Kiln: train and run neural networks. This header is the whole public interface; each part below is one subject. */
#ifndef KILN_H
#define KILN_H

#include "kiln/dtype.h"
#include "kiln/error.h"
#include "kiln/device.h"
#include "kiln/tensor.h"
#include "kiln/ops.h"
#include "kiln/grad.h"
#include "kiln/plan.h"
#include "kiln/nn.h"
#include "kiln/optim.h"
#include "kiln/data.h"
#include "kiln/io.h"
#include "kiln/train.h"

#endif
