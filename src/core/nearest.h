/* The nearest of several words, for "did you mean …?". */
#ifndef KILN_CORE_NEAREST_H
#define KILN_CORE_NEAREST_H

typedef struct kiln_nearest {
    const char *word; /* NULL: none was near enough */
    int distance;
} kiln_nearest;

/* Takes `word` if it is near enough to what was written (half of it may differ) and nearer than all that were offered
 * before. Case, '_' and '-' do not count: "MaxPool2D" is "max_pool2d". */
void kiln_nearest_offer(kiln_nearest *best, const char *written, const char *word);

#endif
