/* What a program says before it is ended by a signal: which one, and where each of its threads was. For programs that
 * tests start and know nothing of but how they ended. */
#ifndef KILN_TEST_LAST_WORDS_H
#define KILN_TEST_LAST_WORDS_H

/* Crashes, and being still there after `seconds` (0: when SIGALRM comes), are explained on stderr; the signal then ends
 * the program as ever. */
void last_words(unsigned seconds);

#endif
