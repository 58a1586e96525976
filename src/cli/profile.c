/* Kernels of a step by what they come from: see profile.h. */
#include "cli/profile.h"
#include <stdlib.h>
#include <string.h>

enum {
    REPEATS = 7,
    TRIES = 50,    /* steps at most until as many in a row had the same launches: a GPU's are compiled meanwhile */
    MOST_ROWS = 40 /* that are shown */
};

/* ---- Measuring ---- */

typedef struct series {
    kiln_kernel_time *launches; /* of the last step */
    int64_t count;
    double (*us)[REPEATS]; /* by launch */
    int taken;
} series;

static bool time_one(series *r, step *s)
{
    kiln_time_next_step();
    kiln_step
        step_record(s);
    int64_t n = kiln_step_times(NULL, 0);
    if (!kiln_ok())
        return false;
    if (n != r->count) { /* not the launches there were before */
        r->launches = must_resize(r->launches, (size_t)n + 1, sizeof *r->launches);
        r->us = must_resize(r->us, (size_t)n + 1, sizeof *r->us);
        r->count = n;
        r->taken = 0;
    }
    kiln_step_times(r->launches, n);
    for (int64_t i = 0; i < n; i++)
        r->us[i][r->taken] = r->launches[i].microseconds;
    r->taken++;
    return true;
}

static int by_number(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_number);
    return x[n / 2];
}

/* ---- Summing ---- */

/* "h.3.mlp" becomes "h.*.mlp"; freed by the caller. */
static char *class_of(const char *path)
{
    if (!path)
        return must_format("-");
    if (!*path)
        return must_format("(root)");
    char *class = must_format("%s", path), *to = class;
    for (const char *part = path; *part;) {
        size_t length = strcspn(part, "."), digits = strspn(part, "0123456789");
        if (digits == length)
            *to++ = '*';
        else {
            memcpy(to, part, length);
            to += length;
        }
        part += length;
        if (*part)
            *to++ = *part++;
    }
    *to = '\0';
    return class;
}

static profile_row *row_of(profile *p, const kiln_kernel_time *k)
{
    char *operation = must_format("%s%s", k->operation, k->backward ? ", backward" : "");
    char *module = class_of(k->module);
    for (int64_t i = 0; i < p->nrows; i++)
        if (!strcmp(p->rows[i].operation, operation) && !strcmp(p->rows[i].module, module)) {
            free(operation);
            free(module);
            return &p->rows[i];
        }
    p->rows = must_resize(p->rows, (size_t)p->nrows + 1, sizeof *p->rows);
    p->rows[p->nrows] = (profile_row){.operation = operation, .module = module};
    return &p->rows[p->nrows++];
}

static int longest_first(const void *a, const void *b)
{
    const profile_row *x = a, *y = b;
    int by_operation = strcmp(x->operation, y->operation);
    return x->us != y->us ? (x->us < y->us) - (x->us > y->us)
           : by_operation ? by_operation
                          : strcmp(x->module, y->module);
}

static void sum_up(profile *p, series *r)
{
    for (int64_t i = 0; i < r->count; i++) {
        profile_row *row = row_of(p, &r->launches[i]);
        double us = median(r->us[i], r->taken);
        row->us += us;
        row->flops += (double)r->launches[i].flops;
        row->bytes += (double)r->launches[i].bytes;
        row->launches++;
        p->us += us;
    }
    p->launches = r->count;
    qsort(p->rows, (size_t)p->nrows, sizeof *p->rows, longest_first);
}

int profile_take(profile *p, step *s)
{
    series r = {0};
    bool ok = true;
    for (int i = 0; ok && i < TRIES && r.taken < REPEATS; i++)
        ok = time_one(&r, s);
    *p = (profile){0};
    if (ok)
        sum_up(p, &r);
    free(r.launches);
    free(r.us);
    return ok ? 0 : fail_kiln();
}

/* ---- Showing ---- */

static void say_row(const profile *p, const profile_row *row)
{
    double rate = row->us > 0 ? 1e-3 / row->us : 0; /* from a count to 10⁹ a second */
    printf("%12.1f%8.1f %%%10lld%10.1f%10.1f  ", row->us, p->us > 0 ? 100 * row->us / p->us : 0,
           (long long)row->launches, row->flops * rate, row->bytes * rate);
    char *module = shown_text(row->module); /* names are the model file's */
    printf("%-32s  %s\n", row->operation, module);
    free(module);
}

void profile_say(const profile *p, int64_t batch, double seconds)
{
    double others = p->us;
    printf("\nkernels of a step with batch %s, one after the other:\n", show_count(batch));
    printf("%12s%10s%10s%10s%10s  %-32s  %s\n", "us", "share", "launches", "GFLOP/s", "GB/s", "operation", "module");
    for (int64_t i = 0; i < p->nrows && i < MOST_ROWS; i++) {
        say_row(p, &p->rows[i]);
        others -= p->rows[i].us;
    }
    if (p->nrows > MOST_ROWS)
        printf("%12.1f%8.1f %%  in %s other rows\n", others, 100 * others / p->us, show_count(p->nrows - MOST_ROWS));
    printf("%12.1f  in %s launches; the step takes %.1f us, with what the host does for it\n", p->us,
           show_count(p->launches), 1e6 * seconds);
}

void profile_free(profile *p)
{
    for (int64_t i = 0; i < p->nrows; i++) {
        free(p->rows[i].operation);
        free(p->rows[i].module);
    }
    free(p->rows);
    *p = (profile){0};
}
