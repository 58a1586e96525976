/* Kiln: train and run neural networks. This header is the whole public interface; each part below is one subject.
 *
 * It is C11, and C++17 for g++ and clang++. Options are written by name behind a call's arguments; C++ wants them in
 * the order in which their struct lists them. */
#ifndef KILN_H
#define KILN_H

#include "kiln/dtype.h"
#include "kiln/macros.h"
#include "kiln/error.h"
#include "kiln/device.h"
#include "kiln/tensor.h"
#include "kiln/ops.h"
#include "kiln/grad.h"
#include "kiln/plan.h"
#include "kiln/nn.h"
#include "kiln/optim.h"
#include "kiln/amp.h"
#include "kiln/data.h"
#include "kiln/io.h"
#include "kiln/train.h"

#endif
