/* Optimizers, clipping and schedules against PyTorch: golden/make_optim.py made the numbers and says what they are. */
#include "support/optim_with.h"
#include "support/core.h"
#include "support/where.h"

/* ctest: name=eager env=KILN_EAGER=1 */

enum { STEPS = 10, PARAMS = 3, MOST = 64, LINE = 256 };

/* A matrix, a vector, and kernels. */
static const struct {
    int ndim;
    int64_t shape[3];
} shapes[PARAMS] = {{2, {2, 3}}, {1, {4}}, {3, {5, 2, 2}}};
static const int64_t sizes[PARAMS] = {6, 4, 20};
static double start[PARAMS][MOST], grads[STEPS + 1][PARAMS][MOST];
static bool has_grad[STEPS + 1][PARAMS];

/* Numbers from `text` to the end of the line. */
static int numbers(const char *text, double *out, int most)
{
    int n = 0;
    for (char *end; *text && n < most; text = end, n++) {
        out[n] = strtod(text, &end);
        if (end == text)
            break;
    }
    return n;
}

static const char *after_colon(const char *line)
{
    const char *colon = strstr(line, " : ");
    if (!colon)
        fail_msg("no numbers in: %s", line);
    return colon ? colon + 3 : line;
}

static void copy_line(char out[LINE], const char *line)
{
    size_t n = strcspn(line, "\n");
    assert_true(n < LINE);
    memcpy(out, line, n);
    out[n] = '\0';
}

static FILE *open_golden(const char *name)
{
    char file[64];
    snprintf(file, sizeof file, "golden/%s", name);
    FILE *f = fopen(test_file(file), "r");
    if (!f)
        fail_msg("%s cannot be read", test_file(file));
    return f;
}

/* ---- Optimizers ---- */

static void set_option(kiln_optim_options *o, const char *name, double value)
{
    const struct {
        const char *name;
        double *number;
        bool *flag;
    } all[] = {{"lr", &o->lr, NULL},
               {"weight_decay", &o->weight_decay, NULL},
               {"momentum", &o->momentum, NULL},
               {"dampening", &o->dampening, NULL},
               {"nesterov", NULL, &o->nesterov},
               {"beta1", &o->beta1, NULL},
               {"beta2", &o->beta2, NULL},
               {"eps", &o->eps, NULL},
               {"amsgrad", NULL, &o->amsgrad},
               {"alpha", &o->alpha, NULL},
               {"centered", NULL, &o->centered},
               {"lr_decay", &o->lr_decay, NULL},
               {"initial_accumulator", &o->initial_accumulator, NULL},
               {"rho", &o->rho, NULL},
               {"momentum_decay", &o->momentum_decay, NULL},
               {"decoupled", NULL, &o->decoupled},
               {"beta2_decay", &o->beta2_decay, NULL},
               {"eps2", &o->eps2, NULL},
               {"max_rms", &o->max_rms, NULL},
               {"iterations", &o->iterations, NULL},
               {"match_rms", NULL, &o->match_rms},
               {"adamw", NULL, &o->adamw}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(name, all[i].name)) {
            if (all[i].flag)
                *all[i].flag = value != 0;
            else
                *all[i].number = value;
            return;
        }
    fail_msg("the golden file names an option %s", name);
}

typedef struct golden {
    char kind[16], line[LINE];
    kiln_optim_options options, second;
    bool own_group;                        /* all but parameter 0 have options of their own */
    bool there[2][STEPS + 1];              /* by dtype: f32, f64 */
    double at[2][STEPS + 1][PARAMS][MOST]; /* parameters after that step */
} golden;

static void read_options(golden *g, char *line)
{
    kiln_optim_options *into = &g->options;
    copy_line(g->line, line);
    char *rest = line, *word = strtok_r(rest, " \n", &rest); /* "case" */
    snprintf(g->kind, sizeof g->kind, "%s", strtok_r(rest, " \n", &rest));
    while ((word = strtok_r(rest, " \n", &rest))) {
        if (!strcmp(word, "|")) {
            into = &g->second;
            g->own_group = true;
            continue;
        }
        const char *value = strtok_r(rest, " \n", &rest);
        assert_non_null(value);
        set_option(into, word, strtod(value, NULL));
    }
}

static kiln_tensor *parameter(int i, kiln_dtype dtype)
{
    float f[MOST];
    for (int64_t k = 0; k < sizes[i]; k++)
        f[k] = (float)start[i][k];
    kiln_tensor *t = kiln_tensor_new(dtype == KILN_F64 ? (void *)start[i] : f, dtype, shapes[i].ndim, shapes[i].shape,
                                     kiln_default_device());
    return kiln_requires_grad(kiln_keep(t), true);
}

static kiln_tensor *gradient(int step, int i, kiln_dtype dtype)
{
    return kiln_cast(kiln_tensor_new(grads[step][i], KILN_F64, shapes[i].ndim, shapes[i].shape, kiln_default_device()),
                     dtype);
}

/* d sum(p·g) / d p = g, for those that have one in this step. */
static bool make_gradients(kiln_tensor **p, int step, kiln_dtype dtype)
{
    bool ok = true;
    for (int i = 0; i < PARAMS; i++)
        if (has_grad[step][i])
            ok = ok && kiln_backward(kiln_sum_all(kiln_mul(p[i], gradient(step, i, dtype))));
    return ok;
}

static void compare(const golden *g, kiln_tensor *p, int step, int i, kiln_dtype dtype)
{
    double got[MOST], tolerance = dtype == KILN_F64 ? 1e-12 : 1e-6;
    kiln_scope
        assert_true(kiln_read(kiln_cast(p, KILN_F64), got, (size_t)sizes[i] * sizeof *got));
    const double *want = g->at[dtype == KILN_F64][step][i];
    double largest = 0; /* a parameter's own size: single elements may come close to zero */
    for (int64_t k = 0; k < sizes[i]; k++)
        largest = fmax(largest, fabs(want[k]));
    for (int64_t k = 0; k < sizes[i]; k++)
        if (!(fabs(got[k] - want[k]) <= tolerance * largest))
            fail_msg("%s: step %d: parameter %d[%d] is %.17g instead of %.17g (%s)", g->line, step, i, (int)k, got[k],
                     want[k], kiln_dtype_name(dtype));
}

static void check_case(const golden *g, kiln_dtype dtype)
{
    kiln_tensor *p[PARAMS] = {parameter(0, dtype), parameter(1, dtype), parameter(2, dtype)};
    kiln_optim *o = optim_with(g->kind, (kiln_params){g->own_group ? 1 : PARAMS, p, NULL}, g->options);
    assert_non_null(o);
    if (g->own_group) {
        kiln_optim_options second = g->second;
        second.size = sizeof second;
        assert_true(kiln_optim_add_group(o, (kiln_params){PARAMS - 1, p + 1, NULL}, &second));
    }
    for (int step = 1; step <= STEPS; step++) {
        kiln_step {
            kiln_zero_grad(o);
            assert_true(make_gradients(p, step, dtype));
            assert_true(kiln_optim_step(o));
        }
        if (g->there[dtype == KILN_F64][step])
            for (int i = 0; i < PARAMS; i++)
                compare(g, p[i], step, i, dtype);
    }
    assert_int_equal(kiln_optim_steps(o), STEPS);
    assert_null(kiln_next_notice());
    kiln_optim_free(o);
    for (int i = 0; i < PARAMS; i++)
        kiln_release(p[i]);
}

static void check_clip(const char *line)
{
    double limit, norm, want[MOST], got[MOST], total = 0;
    int which;
    assert_int_equal(sscanf(line, "clip %lf %lf %d", &limit, &norm, &which), 3);
    assert_int_equal(numbers(after_colon(line), want, MOST), sizes[which]);
    kiln_tensor *p[PARAMS] = {parameter(0, KILN_F64), parameter(1, KILN_F64), parameter(2, KILN_F64)};
    kiln_scope {
        assert_true(make_gradients(p, 2, KILN_F64));
        total = kiln_item(kiln_clip_grad_norm((kiln_params){PARAMS, p, NULL}, limit));
        assert_true(kiln_read(kiln_grad_of(p[which]), got, (size_t)sizes[which] * sizeof *got));
    }
    assert_near(total, norm, 1e-14);
    for (int64_t k = 0; k < sizes[which]; k++)
        assert_near(got[k], want[k], 1e-14);
    for (int i = 0; i < PARAMS; i++)
        kiln_release(p[i]);
}

static void read_line(golden *g, char *line, int *cases)
{
    int step, which;
    char dtype[8];
    if (sscanf(line, "start %d", &which) == 1)
        assert_int_equal(numbers(after_colon(line), start[which], MOST), sizes[which]);
    else if (sscanf(line, "grad %d %d", &step, &which) == 2) {
        assert_int_equal(numbers(after_colon(line), grads[step][which], MOST), sizes[which]);
        has_grad[step][which] = true;
    } else if (!strncmp(line, "case ", 5)) {
        memset(g, 0, sizeof *g);
        read_options(g, line);
    } else if (sscanf(line, "at %d %d %7s", &step, &which, dtype) == 3) {
        bool wide = !strcmp(dtype, "f64");
        g->there[wide][step] = true;
        assert_int_equal(numbers(after_colon(line), g->at[wide][step][which], MOST), sizes[which]);
    } else if (!strncmp(line, "end", 3)) {
        check_case(g, KILN_F64);
        check_case(g, KILN_F32);
        ++*cases;
    } else if (!strncmp(line, "clip ", 5))
        check_clip(line);
    else
        fail_msg("not understood: %s", line);
}

static void test_optimizers(void **state)
{
    (void)state;
    static golden g;
    FILE *f = open_golden("optim.txt");
    char line[2048];
    int cases = 0;
    while (fgets(line, sizeof line, f))
        read_line(&g, line, &cases);
    fclose(f);
    assert_int_equal(cases, 128);
}

/* ---- Schedules ---- */

static double next(char **rest)
{
    const char *word = strtok_r(*rest, " \n", rest);
    assert_non_null(word);
    return strtod(word, NULL);
}

static kiln_schedule *make_schedule(kiln_optim *o, char **rest)
{
    const char *kind = strtok_r(*rest, " \n", rest);
    assert_non_null(kind);
    if (!strcmp(kind, "constant"))
        return kiln_schedule_constant(o);
    double a = next(rest);
    if (!strcmp(kind, "exponential"))
        return kiln_schedule_exponential(o, a);
    if (!strcmp(kind, "multistep")) {
        int64_t milestones[8];
        for (int i = 0; i < (int)a; i++)
            milestones[i] = (int64_t)next(rest);
        return kiln_schedule_multistep(o, (int)a, milestones, next(rest));
    }
    double b = next(rest);
    if (!strcmp(kind, "step"))
        return kiln_schedule_step(o, (int64_t)a, b);
    if (!strcmp(kind, "cosine"))
        return kiln_schedule_cosine(o, (int64_t)a, b);
    if (!strcmp(kind, "warmup"))
        return kiln_schedule_warmup(o, (int64_t)a, b, make_schedule(o, rest));
    double c = next(rest);
    if (!strcmp(kind, "linear"))
        return kiln_schedule_linear(o, a, b, (int64_t)c);
    if (!strcmp(kind, "one_cycle"))
        return kiln_schedule_one_cycle(o, a, (int64_t)b, c);
    if (!strcmp(kind, "plateau"))
        return kiln_schedule_plateau(o, a, (int64_t)b, c != 0);
    fail_msg("the golden file has a schedule %s", kind);
    return NULL;
}

typedef struct course {
    char line[LINE];
    double rates[2][MOST], observed[MOST];
    int units, nobserved;
} course;

static kiln_optim *two_groups(kiln_tensor **p)
{
    kiln_optim *o = kiln_optim_sgd(((kiln_params){1, p, NULL}), .lr = 0.1);
    assert_non_null(o);
    assert_true(kiln_optim_group(o, ((kiln_params){1, p + 1, NULL}), .lr = 0.02));
    return o;
}

/* With `restart`, everything is thrown away in each unit and restored from what was saved. */
static void check_course(const course *c, bool restart)
{
    char words[256], *rest;
    kiln_tensor *p[2] = {parameter(0, KILN_F32), parameter(1, KILN_F32)};
    kiln_optim *o = two_groups(p);
    snprintf(words, sizeof words, "%s", c->line);
    rest = words + 5;
    kiln_schedule *s = make_schedule(o, &rest);
    assert_non_null(s);
    for (int unit = 0; unit < c->units; unit++) {
        for (int g = 0; g < 2; g++)
            if (!(fabs(kiln_optim_lr(o, g) - c->rates[g][unit]) <= 1e-12 * c->rates[g][0]))
                fail_msg("%s: group %d has %.17g instead of %.17g in unit %d", c->line, g, kiln_optim_lr(o, g),
                         c->rates[g][unit], unit);
        assert_true(kiln_schedule_observe(s, unit < c->nobserved ? c->observed[unit] : 0));
        assert_true(kiln_schedule_advance(s));
        if (!restart)
            continue;
        double rates[2] = {kiln_optim_lr(o, 0), kiln_optim_lr(o, 1)};
        kiln_schedule_state state = kiln_schedule_get(s);
        assert_int_equal(state.unit, unit + 1);
        kiln_schedule_free(s);
        kiln_optim_free(o);
        o = two_groups(p);
        snprintf(words, sizeof words, "%s", c->line);
        rest = words + 5;
        s = make_schedule(o, &rest);
        assert_true(kiln_schedule_set(s, state));
        assert_true(kiln_optim_lr(o, 0) == rates[0] && kiln_optim_lr(o, 1) == rates[1]);
    }
    kiln_schedule_free(s);
    kiln_optim_free(o);
    kiln_release(p[0]);
    kiln_release(p[1]);
}

static void test_schedules(void **state)
{
    (void)state;
    course c = {0};
    FILE *f = open_golden("optim_schedules.txt");
    char line[2048];
    int cases = 0, group;
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, "case ", 5)) {
            memset(&c, 0, sizeof c);
            copy_line(c.line, line);
        } else if (!strncmp(line, "observed ", 9))
            c.nobserved = numbers(after_colon(line), c.observed, MOST);
        else if (sscanf(line, "rates %d", &group) == 1)
            c.units = numbers(after_colon(line), c.rates[group], MOST);
        else {
            check_course(&c, false);
            check_course(&c, true);
            cases++;
        }
    fclose(f);
    assert_int_equal(cases, 17);
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_optimizers), core_test(test_schedules)};
    return CORE_MAIN(tests);
}
