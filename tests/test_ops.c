/* Every operation, with every case of its record: times every dtype it declares, times layouts of its operands in
 * memory, on every device, against a plain reference; where the CPU's own kernels run (simulated devices) results must
 * equal the first device's to the bit. Then what it must refuse, and its gradients.
 *
 *   KILN_TEST_DEVICES=cpu,sim:0    where to run (see support/devices.h)
 *   KILN_TEST_ONLY=matmul,conv2d   only these operations
 *   KILN_TEST_DIGEST=file          hashes of all results on the first device: test_bits compares them between runs
 *   KILN_TEST_SMALL=1              a few cases of each operation (see support/suite.h)
 *   KILN_TEST_SHARD=2/8            every eighth operation, from the third on
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "support/compare.h"
#include "support/layouts.h"
#include "support/numbers.h"
#include "support/skip.h"
#include "support/suite.h"

/* ctest: name=eager env=KILN_EAGER=1 */

static kiln_device devices[TEST_DEVICES];
static int ndevices;
static int64_t cases_run, compared;
static gradient_counts gradients;

/* Views of memory as it lies: with some layouts they have no window to show, and say so. */
static bool may_refuse(const char *name, layout l)
{
    return l != LAYOUT_DENSE && (!strcmp(name, "view") || !strcmp(name, "as_strided"));
}

/* ---- One case on one device ---- */

/* A run: what it is about, for complaints. */
typedef struct run {
    const test_case *c;
    kiln_dtype dtype;
    layout l;
    kiln_device device;
    kiln_attrs attrs;
} run;

static void blame(const run *r, const char *what)
{
    complain(r->c->op->name, "'%s' %s %s on %s: %s", r->c->text, kiln_dtype_name(r->dtype), layout_names[r->l],
             kiln_device_name(r->device), what);
}

/* The bits of an operation's results. */
typedef struct results {
    void *bits[KILN_MAX_OUTPUTS];
    size_t size[KILN_MAX_OUTPUTS];
    int n;
} results;

static void results_free(results *r)
{
    for (int j = 0; j < r->n; j++)
        free(r->bits[j]);
    r->n = 0;
}

static bool call(const run *r, placed_operand *in, kiln_tensor **outs)
{
    kiln_tensor *tensors[KILN_MAX_INPUTS];
    for (int k = 0; k < r->c->nin; k++)
        tensors[k] = in[k].tensor;
    if (r->c->op->max_in == 0) {
        kiln_on_device (r->device) /* compositions make their parts there */
            outs[0] = kiln_op_create(r->c->op, &r->attrs, r->device);
        return outs[0] != NULL;
    }
    return kiln_op_call(r->c->op, tensors, r->c->nin, &r->attrs, outs);
}

/* How often a 16-bit result may be rounded: everything before the result is computed in f32, but for states that are
 * handed on from step to step, and what other devices have no kernels for. */
static int roundings(const run *r, const ref_entry *entry)
{
    bool handed_on = !strncmp(r->c->op->name, "lstm", 4);
    return has_cpu_bits(r->device) && !handed_on ? 1 : (int)ceil(4 * fmax(entry->loose, 1));
}

/* Reads the results; checks kind, values (against `want`, unless it is NULL) and place. */
static bool read_results(const run *r, const ref_entry *entry, const ref_call *want, kiln_tensor **outs, results *got)
{
    char why[200];
    for (int j = 0; j < (r->c->op->nout ? r->c->op->nout : 1); j++) {
        kiln_tensor *t = outs[j];
        size_t size = (size_t)kiln_numel(t) * kiln_dtype_size(kiln_dtype_of(t));
        got->bits[j] = calloc(size + 8, 1);
        got->size[j] = size;
        got->n = j + 1;
        if (want && !compare_kind(&want->out[j], t, why)) {
            blame(r, why);
            return false;
        }
        if (kiln_device_of(t) != r->device) {
            blame(r, "the result is on another device");
            return false;
        }
        if (!kiln_read(t, got->bits[j], size)) {
            blame(r, kiln_last_error()->message);
            return false;
        }
        if (want && !compare_result(&want->out[j], got->bits[j], entry->loose, roundings(r, entry), why)) {
            blame(r, why);
            return false;
        }
    }
    return true;
}

/* Places the operands, calls, reads. False when something was wrong. */
static bool run_on_device(const run *r, const ref_entry *entry, const ref_call *want, ref_tensor *values, results *got)
{
    static placed_operand in[KILN_MAX_INPUTS];
    kiln_tensor *outs[KILN_MAX_OUTPUTS] = {NULL};
    bool ok = true;
    memset(in, 0, sizeof in);
    for (int k = 0; ok && k < r->c->nin; k++)
        if (r->c->in[k].kind != '-')
            ok = operand_place(&values[k], layout_of(r->c, k, r->l), r->device, &in[k]);
    if (!ok || !call(r, in, outs)) {
        if (!may_refuse(r->c->op->name, r->l) || kiln_last_error()->code != KILN_E_SHAPE)
            blame(r, kiln_last_error()->message);
        ok = false;
    } else {
        ok = read_results(r, entry, want, outs, got);
        for (int k = 0; ok && k < r->c->nin; k++)
            if (in[k].base && !operand_intact(&in[k])) {
                blame(r, "it changed the buffer of an operand");
                ok = false;
            }
    }
    for (int k = 0; k < r->c->nin; k++)
        free(in[k].bits);
    kiln_error_clear();
    return ok;
}

/* ---- One case on all devices ---- */

static void run_case(const ref_entry *entry, run r)
{
    static ref_tensor values[KILN_MAX_INPUTS];
    static ref_call want;
    memset(&want, 0, sizeof want);
    want.op = r.c->op;
    want.nin = r.c->nin;
    want.attrs = r.attrs;
    for (int k = 0; k < r.c->nin; k++)
        if (r.c->in[k].kind != '-') {
            operand_values(r.c, k, r.dtype, r.l, &values[k]);
            want.in[k] = &values[k];
        }
    if (entry->run)
        ref_run(entry, &want);
    results first = {0};
    bool have_first = false;
    for (int d = 0; d < ndevices; d++) {
        results got = {0};
        bool ok = false;
        r.device = devices[d];
        kiln_scope {
            ok = run_on_device(&r, entry, entry->run ? &want : NULL, values, &got);
        }
        for (int j = 0; ok && d == 0 && j < got.n; j++)
            digest_add(r.c->op->name, r.dtype, got.bits[j], got.size[j]);
        for (int j = 0; ok && have_first && (has_cpu_bits(r.device) || !entry->run) && j < got.n; j++)
            if (memcmp(got.bits[j], first.bits[j], got.size[j]))
                blame(&r, "other bits than on the first device");
        cases_run++;
        if (!have_first && ok && has_cpu_bits(r.device)) {
            first = got;
            have_first = true;
        } else {
            results_free(&got);
        }
    }
    results_free(&first);
    ref_free(&want);
    for (int k = 0; k < r.c->nin; k++)
        operand_free(&values[k]);
}

/* True when a made tensor's numbers mean the same in the dtype: whole and not negative for integers. */
static bool fits(const test_case *c, kiln_dtype dtype)
{
    for (int k = 0; k < c->attrs.nfloats; k++)
        if (!kiln_dtype_is_float(dtype) && (c->attrs.f[k] < 0 || c->attrs.f[k] != floor(c->attrs.f[k]) ||
                                            c->attrs.f[k] > 50 || (dtype == KILN_BOOL && c->attrs.f[k] > 1)))
            return false;
    return true;
}

/* Operations without operands: their first integer is the dtype. */
static void run_creation(const ref_entry *entry, const test_case *c)
{
    for (int d = 0; d < KILN_DTYPES; d++) {
        run r = {.c = c, .dtype = (kiln_dtype)d, .attrs = c->attrs};
        bool listed = d == c->attrs.i[0];
        if (!(c->op->dtypes >> d & 1) || (!listed && !fits(c, (kiln_dtype)d)))
            continue;
        if (!listed && !strcmp(c->op->name, "linspace") && !kiln_dtype_is_float((kiln_dtype)d))
            continue; /* steps between whole numbers are not whole */
        r.attrs.i[0] = d;
        run_case(entry, r);
    }
}

/* A cast's target is an integer attribute; the case names one, and every other is tried too. */
static void run_casts(const ref_entry *entry, run r)
{
    for (int to = 0; to < KILN_DTYPES; to++) {
        r.attrs.i[0] = to;
        if (r.attrs.nints < 1)
            r.attrs.nints = 1;
        run_case(entry, r);
    }
}

static bool depends_on_dtype(const test_case *c)
{
    for (int k = 0; k < c->nin; k++)
        if (case_dtype(c, k, KILN_F32) != case_dtype(c, k, KILN_I32))
            return true;
    return false;
}

static bool differs_from_dense(const test_case *c, layout l)
{
    for (int k = 0; k < c->nin && !(l == LAYOUT_MIXED && c->nin < 2); k++)
        if (layout_of(c, k, l) != LAYOUT_DENSE)
            return true;
    return false;
}

/* Whether this dtype of the case runs in this layout: in all of them that differ, or in one of them. Cases about paths
 * run with operands that have to be gathered, too, if that does not take much memory. */
static bool wants_layout(const test_case *c, int dtype, layout l)
{
    enum { MUCH = 200000 };
    int64_t elements = 0;
    for (int k = 0; k < c->nin; k++)
        elements += case_count(&c->in[k]);
    if (c->path)
        return l == LAYOUT_DENSE || (l == LAYOUT_SLICED && elements < MUCH);
    if (!suite_small())
        return l == LAYOUT_DENSE || differs_from_dense(c, l);
    int turn = c->number + dtype;
    layout one = c->big || turn % 2 == 0 ? LAYOUT_DENSE : (layout)(LAYOUT_TRANSPOSED + turn / 2 % 3);
    return l == (differs_from_dense(c, one) ? one : LAYOUT_DENSE);
}

static void run_layouts(const test_case *c, void *context)
{
    const ref_entry *entry = context;
    if (c->op->max_in == 0) {
        run_creation(entry, c);
        return;
    }
    bool done = false;
    for (int d = 0; d < KILN_DTYPES; d++) {
        if (!(c->op->dtypes >> d & 1) || (done && !depends_on_dtype(c)))
            continue;
        done = true;
        for (int l = 0; l < (c->big && !c->path ? LAYOUT_TRANSPOSED : LAYOUTS); l++) {
            run r = {.c = c, .dtype = (kiln_dtype)d, .l = (layout)l, .attrs = c->attrs};
            if (!wants_layout(c, d, (layout)l))
                continue;
            if (!strcmp(c->op->name, "cast"))
                run_casts(entry, r);
            else
                run_case(entry, r);
        }
    }
}

static void test_forward(void **state)
{
    (void)state;
    int64_t before = complaints();
    for (int i = 0; i < kiln_op_count(); i++) {
        const kiln_op *op = kiln_op_at(i);
        const ref_entry *entry = ref_find(op->name);
        if (!suite_wants(op))
            continue;
        if (!entry)
            complain(op->name, "it has no reference");
        else if (entry->run && (!op->cases || !op->cases[0]))
            complain(op->name, "it has no cases");
        else
            suite_cases(op, run_layouts, (void *)entry);
        for (int d = 0; d < ndevices; d++)
            kiln_memory_trim(devices[d]);
    }
    assert_int_equal(complaints() - before, 0);
}

/* ---- What operations refuse ---- */

/* Calls with the operands as they are; returns the code, and complains if there is a result all the same. */
static kiln_code refusal(const test_case *c, kiln_tensor **in, const char *what)
{
    kiln_tensor *outs[KILN_MAX_OUTPUTS] = {NULL};
    bool done = kiln_op_call(c->op, in, c->nin, &c->attrs, outs);
    kiln_code code = kiln_last_error()->code;
    for (int j = 0; j < KILN_MAX_OUTPUTS; j++)
        if (done || outs[j]) {
            complain(c->op->name, "it takes %s ('%s')", what, c->text);
            break;
        }
    kiln_error_clear();
    return code;
}

/* Makes the operands, dense. With `bad` not 0, the first element of each index operand is that; returns whether there
 * was one. */
static bool place_all(const test_case *c, kiln_dtype dtype, kiln_device device, double bad, kiln_tensor **in)
{
    bool spoilt = false;
    for (int k = 0; k < c->nin; k++) {
        placed_operand placed = {0};
        ref_tensor values;
        in[k] = NULL;
        if (c->in[k].kind == '-')
            continue;
        operand_values(c, k, dtype, LAYOUT_DENSE, &values);
        if (bad != 0 && c->in[k].kind == 'i' && values.count) {
            values.data[0] = bad;
            spoilt = true;
        }
        operand_place(&values, LAYOUT_DENSE, device, &placed);
        in[k] = placed.tensor;
        free(placed.bits);
        operand_free(&values);
    }
    return spoilt;
}

static kiln_dtype some_dtype(const kiln_op *op)
{
    int d = KILN_DTYPES - 1;
    while (!(op->dtypes >> d & 1))
        d--;
    return (kiln_dtype)d;
}

static void refuse_dtypes(const test_case *c, kiln_tensor **in)
{
    for (int d = 0; d < KILN_DTYPES; d++) {
        char what[64];
        if (c->op->dtypes >> d & 1 || !strchr("xdp", c->in[0].kind))
            continue;
        place_all(c, (kiln_dtype)d, KILN_CPU, 0, in);
        snprintf(what, sizeof what, "%s, which it does not declare", kiln_dtype_name((kiln_dtype)d));
        kiln_code code = refusal(c, in, what);
        if (code != KILN_E_DTYPE)
            complain(c->op->name, "refusing %s gives \"%s\"", kiln_dtype_name((kiln_dtype)d), kiln_code_name(code));
        cases_run++;
    }
}

static void refuse_null_and_devices(const test_case *c, kiln_tensor **in)
{
    place_all(c, some_dtype(c->op), KILN_CPU, 0, in);
    for (int k = 0; k < c->op->min_in && k < c->nin; k++) {
        kiln_tensor *saved = in[k];
        in[k] = NULL;
        if (refusal(c, in, "no operand") != KILN_E_ARGUMENT) /* nothing before explains the NULL */
            complain(c->op->name, "operand %d is absent, and that is no error", k);
        kiln_fail(KILN_E_MEMORY, "test", "what made the operand NULL");
        if (refusal(c, in, "no operand") != KILN_E_MEMORY)
            complain(c->op->name, "operand %d is absent, and that hides the first error", k);
        in[k] = saved;
        cases_run += 2;
    }
    for (int k = 1; k < c->nin && ndevices > 1; k++) {
        if (!in[k])
            continue;
        kiln_tensor *saved = in[k];
        in[k] = kiln_to(in[k], devices[ndevices - 1]);
        if (kiln_device_of(in[k]) != KILN_CPU && refusal(c, in, "operands of two devices") != KILN_E_DEVICE)
            complain(c->op->name, "operand %d is on another device: that is not the error it gives", k);
        in[k] = saved;
        cases_run++;
    }
}

static void refuse(const test_case *c, void *context)
{
    (void)context;
    if (c->number != 0 || c->op->max_in == 0)
        return;
    kiln_scope {
        kiln_tensor *in[KILN_MAX_INPUTS];
        refuse_dtypes(c, in);
        refuse_null_and_devices(c, in);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    int64_t before = complaints();
    for (int i = 0; i < kiln_op_count(); i++)
        if (suite_wants(kiln_op_at(i)))
            suite_cases(kiln_op_at(i), refuse, NULL);
    assert_int_equal(complaints() - before, 0);
}

/* An index outside its range is an error when the step runs, and what comes after it runs as if nothing had been. */
static void refuse_index(const test_case *c, void *context)
{
    (void)context;
    if (c->number != 0 || c->op->max_in == 0)
        return;
    for (int k = 0; k < 2 * ndevices; k++)
        kiln_scope {
            kiln_tensor *in[KILN_MAX_INPUTS], *outs[KILN_MAX_OUTPUTS] = {NULL};
            double sound[2] = {0}, bad = k % 2 ? -1000000 : 1000000;
            if (!place_all(c, some_dtype(c->op), devices[k / 2], bad, in))
                continue; /* ends the scope */
            char *bits = NULL;
            if (kiln_op_call(c->op, in, c->nin, &c->attrs, outs)) {
                size_t size = (size_t)kiln_numel(outs[0]) * kiln_dtype_size(kiln_dtype_of(outs[0]));
                bits = calloc(size + 1, 1);
                kiln_read(outs[0], bits, size);
            }
            if (kiln_last_error()->code != KILN_E_INDEX)
                complain(c->op->name, "index %g on %s gives \"%s\"", bad, kiln_device_name(devices[k / 2]),
                         kiln_code_name(kiln_last_error()->code));
            free(bits);
            kiln_error_clear();
            kiln_tensor *after = kiln_tensor_new((double[]){1, 2}, KILN_F64, 1, (int64_t[]){2}, devices[k / 2]);
            if (!kiln_read(kiln_mul_scalar(after, 3), sound, sizeof sound) || sound[1] != 6)
                complain(c->op->name, "after a bad index nothing runs: %s", kiln_last_error()->message);
            kiln_error_clear();
            cases_run++;
        }
}

static void test_bad_indices(void **state)
{
    (void)state;
    int64_t before = complaints();
    for (int i = 0; i < kiln_op_count(); i++)
        if (suite_wants(kiln_op_at(i)))
            suite_cases(kiln_op_at(i), refuse_index, NULL);
    assert_int_equal(complaints() - before, 0);
}

static void test_random(void **state)
{
    (void)state;
    int64_t before = complaints();
    if (!suite_first_shard())
        skip_because("another shard's");
    random_check(devices, ndevices);
    assert_int_equal(complaints() - before, 0);
}

/* ---- Gradients ---- */

static void test_gradients(void **state)
{
    (void)state;
    int64_t before = complaints();
    gradients = gradients_check();
    assert_int_equal(complaints() - before, 0);
}

static void test_gradients_on_devices(void **state)
{
    (void)state;
    int64_t before = complaints();
    compared = backward_check(devices, ndevices);
    assert_int_equal(complaints() - before, 0);
}

static int run_wanted(void)
{
#define UNIT(name) cmocka_unit_test_setup_teardown(name, memory_before, memory_after)
    const struct CMUnitTest everything[] = {UNIT(test_forward), UNIT(test_refusals),  UNIT(test_bad_indices),
                                            UNIT(test_random),  UNIT(test_gradients), UNIT(test_gradients_on_devices)};
    const struct CMUnitTest on_devices[] = {UNIT(test_forward), UNIT(test_bad_indices), UNIT(test_random),
                                            UNIT(test_gradients_on_devices)};
    const struct CMUnitTest results_only[] = {UNIT(test_forward)};
    if (getenv("KILN_TEST_DIGEST"))
        return cmocka_run_group_tests(results_only, NULL, NULL);
    return suite_small() ? cmocka_run_group_tests(on_devices, NULL, NULL)
                         : cmocka_run_group_tests(everything, NULL, NULL);
}

int main(void)
{
    ndevices = devices_under_test(devices);
    if (!ndevices)
        return test_exit(0);
    int failed = run_wanted();
    if (!digest_write()) {
        fprintf(stderr, "the digest could not be written\n");
        failed++;
    }
    printf("operations: %d, cases: %lld, gradient checks: %lld, second-order checks: %lld, on other devices: %lld\n",
           kiln_op_count(), (long long)cases_run, (long long)gradients.first, (long long)gradients.second,
           (long long)compared);
    if (gradients.first)
        printf("differentiable: %lld operations; constant, or with results that are no floats: %lld:%s\n",
               (long long)gradients.operations, (long long)gradients.none, gradients.names);
    return test_exit(failed || complaints());
}
