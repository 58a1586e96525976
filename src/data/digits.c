/* The data set of drawn digits: sample i is drawing number i, the test set's numbers begin at 2^62. */
#include "core/sized.h"
#include "data/digits.h"
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "data/dataset.h"

#define FIRST_TEST (INT64_C(1) << 62)

typedef struct digits {
    kiln_dataset base;
    int64_t first;
} digits;

static bool read_digit(const kiln_dataset *d, int64_t index, void *x, void *y)
{
    *(int64_t *)y = kiln_digit_draw((uint64_t)(((const digits *)d)->first + index), x);
    return true;
}

kiln_dataset *kiln_data_digits_(const kiln_digits_options *given)
{
    static const kiln_dataset_kind kind = {.read = read_digit};
    kiln_digits_options options;
    if (!KILN_TAKE_OPTIONS("data_digits", options, given))
        return NULL;
    int64_t count = options.count ? options.count : options.test ? 10000 : 60000;
    if (count > FIRST_TEST)
        return kiln_fail(KILN_E_ARGUMENT, "data_digits", "at most %lld digits can be told apart, not %lld",
                         (long long)FIRST_TEST, (long long)count);
    digits *d = kiln_alloc_zero(1, sizeof *d);
    if (!d)
        return NULL;
    kiln_data_info info = {.name = "digits",
                           .count = count,
                           .x = kiln_field_make(KILN_F32, 3, (int64_t[]){1, KILN_DIGIT_SIDE, KILN_DIGIT_SIDE}),
                           .y = kiln_field_make(KILN_I64, 0, NULL),
                           .classes = 10,
                           .repeatable = true};
    if (options.test)
        snprintf(info.name, sizeof info.name, "digits (test)");
    d->first = options.test ? FIRST_TEST : 0;
    const float paper = kiln_digit_paper();
    memcpy(&d->base.blank, &paper, sizeof paper);
    if (kiln_dataset_init(&d->base, &kind, &info, "data_digits"))
        return &d->base;
    kiln_free(d);
    return NULL;
}
