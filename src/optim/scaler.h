/* Loss scaling: what others of the library need beside kiln/amp.h. */
#ifndef KILN_OPTIM_SCALER_H
#define KILN_OPTIM_SCALER_H

#include "kiln/amp.h"

/* A step with this scaler was run without being recorded: counts as kiln_scaler_update does. False with an error. */
bool kiln_scaler_passed(kiln_scaler *s);

#endif
