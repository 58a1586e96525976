/* Curves as a picture: panels with axes, a legend, a title. */
#ifndef KILN_CLI_CHART_H
#define KILN_CLI_CHART_H

#include "cli/canvas.h"
#include "cli/curves.h"

/* How large the picture will be, and its drawing. */
void chart_size(int n, const curves *logs, double *width, double *height);
void chart_draw(canvas *c, int n, const curves *logs, const char *title);

#endif
