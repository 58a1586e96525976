/* Skipping a test with the reason, which tools/gpu-check collects. After cmocka.h. */
#ifndef KILN_TEST_SKIP_H
#define KILN_TEST_SKIP_H

#define skip_because(why)                                                                                              \
    do {                                                                                                               \
        print_message("skipped: %s\n", why);                                                                           \
        skip();                                                                                                        \
    } while (0)

#endif
