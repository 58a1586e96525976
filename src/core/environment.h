/* The variables KILN_…: what they can be set to, and a word where one is set to something else. */
#ifndef KILN_CORE_ENVIRONMENT_H
#define KILN_CORE_ENVIRONMENT_H

#include <stdbool.h>

/* What is wrong with one "NAME=value" of the environment, into `why`; false if nothing is, or it is none of Kiln's. */
bool kiln_environment_wrong(const char *entry, char *why, unsigned size);

/* Notices (kiln_notice) for all that is wrong, the first time it is called in a process; true if there were any. */
bool kiln_environment_notice(void);

#endif
