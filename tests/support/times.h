/* The last step that was timed, to be searched. */
#ifndef KILN_TEST_TIMES_H
#define KILN_TEST_TIMES_H

#include "support/core.h"

enum { TIMES_MOST = 2048 };

typedef struct times {
    kiln_kernel_time at[TIMES_MOST];
    int64_t n;
} times;

/* Of the last timed step; valid until the next call. */
static inline const times *times_read(void)
{
    static times t;
    t.n = kiln_step_times(t.at, TIMES_MOST);
    assert_true(t.n > 0 && t.n <= TIMES_MOST);
    return &t;
}

/* How many parts come from this operation of this module (NULL: of none), in the forward or the backward pass. */
static inline int times_of(const times *t, const char *operation, const char *module, bool backward)
{
    int n = 0;
    for (int64_t i = 0; i < t->n; i++) {
        const kiln_kernel_time *k = &t->at[i];
        bool there = module ? k->module && !strcmp(k->module, module) : !k->module;
        n += there && !strcmp(k->operation, operation) && k->backward == backward;
    }
    return n;
}

static inline void times_print(const times *t)
{
    for (int64_t i = 0; i < t->n; i++)
        print_message("%s of %s in %s%s\n", t->at[i].kernel, t->at[i].operation,
                      t->at[i].module ? t->at[i].module : "-", t->at[i].backward ? ", backward" : "");
}

/* At least one such part. */
#define assert_timed(t, operation, module, backward) times_expect(t, operation, module, backward, __FILE__, __LINE__)
static inline void times_expect(const times *t, const char *operation, const char *module, bool backward,
                                const char *file, int line)
{
    if (times_of(t, operation, module, backward))
        return;
    times_print(t);
    print_error("nothing of %s in %s\n", operation, module ? module : "-");
    _fail(file, line);
}

#endif
