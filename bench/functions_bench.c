/* Every pointwise function by itself on a million elements, in f32 and f64, and the gradients of those that networks
 * use: microseconds of the best call. One JSON object a line, beside functions_peer.py's.
 *
 * usage: kiln_bench_functions [f32] [f64] [name…] */
#include "bench.h"

enum { COUNT = 1 << 20, WARM_UP = 2, LEAST = 8 };
#define SECONDS 0.02

/* What operands are drawn from. */
typedef enum range { NORMAL, POSITIVE, INSIDE, ABOVE, WIDE, RANGES } range;

typedef struct function {
    const char *name;
    range a, b;
    bool grad; /* also timed with its gradient, as "name'" */
    kiln_tensor *(*run)(kiln_tensor *a, kiln_tensor *b);
} function;

#define FUNCTION(name, call)                                                                                           \
    static kiln_tensor *run_##name(kiln_tensor *a, kiln_tensor *b)                                                     \
    {                                                                                                                  \
        (void)b;                                                                                                       \
        return call;                                                                                                   \
    }
#define ROW(name, ra, rb, with_grad, call) FUNCTION(name, call)
#include "functions.def"
#undef ROW

static const function functions[] = {
#define ROW(name, ra, rb, with_grad, call) {#name, ra, rb, with_grad, run_##name},
#include "functions.def"
#undef ROW
};

static kiln_tensor *drawn(range r, kiln_dtype dtype)
{
    kiln_tensor *u = kiln_rand(KILN_SHAPE(COUNT), dtype);
    switch (r) {
    case POSITIVE: return kiln_add_scalar(kiln_mul_scalar(u, 2.9), 0.1);
    case INSIDE: return kiln_add_scalar(kiln_mul_scalar(u, 1.8), -0.9);
    case ABOVE: return kiln_add_scalar(kiln_mul_scalar(u, 2.9), 1.1);
    case WIDE: return kiln_mul_scalar(kiln_randn(KILN_SHAPE(COUNT), dtype), 10);
    default: return kiln_randn(KILN_SHAPE(COUNT), dtype);
    }
}

typedef struct work {
    const function *f;
    kiln_tensor *a, *b, *gy;
    bool grad;
} work;

static void once(const work *w)
{
    kiln_scope {
        kiln_tensor *y = w->f->run(w->a, w->b), *gx = NULL;
        if (w->grad)
            kiln_grad(y, w->gy, &w->a, 1, &gx);
        kiln_eval();
    }
}

/* The best single call within some time: on a machine that others use, too, what the work itself takes. */
static double best_of(const work *w)
{
    double begun = kiln_seconds(), best = 1e300, last = begun;
    for (int n = 0; (n < LEAST || last - begun < SECONDS) && kiln_ok(); n++) {
        once(w);
        double now = kiln_seconds();
        best = n >= WARM_UP && now - last < best ? now - last : best;
        last = now;
    }
    return best;
}

static void measure(const function *f, kiln_dtype dtype, bool grad)
{
    work w = {.f = f, .grad = grad};
    kiln_scope {
        w.a = kiln_keep(drawn(f->a, dtype));
        w.b = kiln_keep(drawn(f->b, dtype));
        w.gy = kiln_keep(kiln_ones_like(w.a));
        kiln_eval();
    }
    kiln_requires_grad(w.a, grad);
    double seconds = best_of(&w);
    if (kiln_ok())
        printf("{\"work\": \"%s%s\", \"batch\": \"%s\", \"peer\": \"kiln\", \"us\": %.1f}\n", f->name, grad ? "'" : "",
               kiln_dtype_name(dtype), 1e6 * seconds);
    fflush(stdout);
    kiln_release(w.a);
    kiln_release(w.b);
    kiln_release(w.gy);
}

/* Takes "f32" and "f64" out of the arguments; both are meant where neither is there. */
static unsigned dtypes_wanted(int *argc, char **argv)
{
    unsigned wanted = 0;
    int kept = 1;
    for (int i = 1; i < *argc; i++)
        if (strcmp(argv[i], "f32") == 0)
            wanted |= 1u << KILN_F32;
        else if (strcmp(argv[i], "f64") == 0)
            wanted |= 1u << KILN_F64;
        else
            argv[kept++] = argv[i];
    *argc = kept;
    return wanted ? wanted : 1u << KILN_F32 | 1u << KILN_F64;
}

int main(int argc, char **argv)
{
    unsigned dtypes = dtypes_wanted(&argc, argv);
    for (kiln_dtype dtype = KILN_F32; dtype <= KILN_F64; dtype++)
        for (size_t i = 0; i < sizeof functions / sizeof *functions && (dtypes >> dtype & 1); i++) {
            if (!bench_wanted(functions[i].name, argc, argv))
                continue;
            measure(&functions[i], dtype, false);
            if (functions[i].grad)
                measure(&functions[i], dtype, true);
        }
    return kiln_report(stderr);
}
