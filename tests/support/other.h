/* Another thread, which does what it is told while the caller waits: what two threads do is in one order then. */
#ifndef KILN_TEST_OTHER_H
#define KILN_TEST_OTHER_H

#include <stdbool.h>

typedef struct other_thread other_thread;

other_thread *other_start(void); /* NULL: it could not be started */
void other_do(other_thread *o, void (*f)(void *context), void *context);
void other_end(other_thread *o);

#endif
