/* Operations that move elements about or run along a dim, by themselves: microseconds of the best call. One JSON object
 * a line, beside index_peer.py's.
 *
 * usage: kiln_bench_index [name…] */
#include "bench.h"

enum { WARM_UP = 2, LEAST = 8 };
#define SECONDS 0.1

typedef struct work {
    const char *name, *shape;
    int64_t rows, columns;             /* of x */
    int64_t index_rows, index_columns; /* of the indices; 0: one dim less */
    int64_t below;                     /* indices are */
    bool grad;
    kiln_tensor *(*run)(kiln_tensor *x, kiln_tensor *index, kiln_tensor *src);
} work;

#define RUN(name, call)                                                                                                \
    static kiln_tensor *run_##name(kiln_tensor *x, kiln_tensor *index, kiln_tensor *src)                               \
    {                                                                                                                  \
        (void)index, (void)src;                                                                                        \
        return call;                                                                                                   \
    }
RUN(select_rows, kiln_index_select(x, 0, index))
RUN(select_columns, kiln_index_select(x, 1, index))
RUN(embedding, kiln_embedding(x, index, -1))
RUN(gather_rows, kiln_gather(x, 0, index))
RUN(gather_columns, kiln_gather(x, 1, index))
RUN(scatter_add_rows, kiln_scatter_add(x, 0, index, src))
RUN(scatter_add_columns, kiln_scatter_add(x, 1, index, src))
RUN(index_add_rows, kiln_index_add(x, 0, index, src))
RUN(cumsum_rows, kiln_cumsum(x, 1))
RUN(cumsum_columns, kiln_cumsum(x, 0))
RUN(cumprod_rows, kiln_cumprod(x, 1))
RUN(cumprod_columns, kiln_cumprod(x, 0))

static const work works[] = {
    {"index_select 0", "50000x256, 16384", 50000, 256, 16384, 0, 50000, false, run_select_rows},
    {"index_select 0", "1000000x1, 1000000", 1000000, 1, 1000000, 0, 1000000, false, run_select_rows},
    {"index_select 1", "4096x1024, 512", 4096, 1024, 512, 0, 1024, false, run_select_columns},
    {"embedding", "32000x512, 8x512", 32000, 512, 8, 512, 32000, false, run_embedding},
    {"embedding", "50257x768, 16x1024", 50257, 768, 16, 1024, 50257, false, run_embedding},
    {"embedding", "256x64, 32x64", 256, 64, 32, 64, 256, false, run_embedding},
    {"embedding'", "32000x512, 8x512", 32000, 512, 8, 512, 32000, true, run_embedding},
    {"gather 0", "4096x1024", 4096, 1024, 4096, 1024, 4096, false, run_gather_rows},
    {"gather 1", "4096x1024", 4096, 1024, 4096, 1024, 1024, false, run_gather_columns},
    {"gather 1", "4096x1024, 4096x1", 4096, 1024, 4096, 1, 1024, false, run_gather_columns},
    {"scatter_add 0", "4096x1024", 4096, 1024, 4096, 1024, 4096, false, run_scatter_add_rows},
    {"scatter_add 1", "4096x1024", 4096, 1024, 4096, 1024, 1024, false, run_scatter_add_columns},
    {"index_add 0", "32000x512, 4096", 32000, 512, 4096, 0, 32000, false, run_index_add_rows},
    {"index_add 0", "1000x64, 20000", 1000, 64, 20000, 0, 1000, false, run_index_add_rows},
    {"cumsum 1", "1024x1024", 1024, 1024, 1, 0, 1, false, run_cumsum_rows},
    {"cumsum 0", "1024x1024", 1024, 1024, 1, 0, 1, false, run_cumsum_columns},
    {"cumprod' 1", "1024x1024", 1024, 1024, 1, 0, 1, true, run_cumprod_rows},
    {"cumprod' 0", "1024x1024", 1024, 1024, 1, 0, 1, true, run_cumprod_columns},
};

typedef struct operands {
    kiln_tensor *x, *index, *src, *gy;
} operands;

static void once(const work *w, const operands *o)
{
    kiln_scope {
        kiln_tensor *gx, *y = w->run(o->x, o->index, o->src);
        if (w->grad)
            kiln_grad(y, o->gy, &o->x, 1, &gx);
        kiln_eval();
    }
}

static operands draw(const work *w)
{
    operands o = {0};
    kiln_scope {
        int dims = w->index_columns ? 2 : 1;
        const int64_t shape[] = {w->index_rows, w->index_columns};
        o.x = kiln_keep(
            kiln_add_scalar(kiln_mul_scalar(kiln_rand(KILN_SHAPE(w->rows, w->columns), KILN_F32), 0.02), 0.99));
        o.index = kiln_keep(kiln_randint(0, w->below, dims, shape, KILN_I64));
        o.src =
            kiln_keep(kiln_rand(KILN_SHAPE(w->index_rows, w->index_columns ? w->index_columns : w->columns), KILN_F32));
        kiln_eval();
        o.gy = kiln_keep(kiln_ones_like(w->run(o.x, o.index, o.src)));
        kiln_eval();
    }
    kiln_requires_grad(o.x, w->grad);
    return o;
}

static void measure(const work *w)
{
    operands o = draw(w);
    double begun = kiln_seconds(), best = 1e300, last = begun;
    for (int n = 0; (n < LEAST || last - begun < SECONDS) && kiln_ok(); n++) {
        once(w, &o);
        double now = kiln_seconds();
        best = n >= WARM_UP && now - last < best ? now - last : best;
        last = now;
    }
    if (kiln_ok())
        printf("{\"work\": \"%s\", \"batch\": \"%s\", \"peer\": \"kiln\", \"us\": %.1f}\n", w->name, w->shape,
               1e6 * best);
    fflush(stdout);
    kiln_release(o.x);
    kiln_release(o.index);
    kiln_release(o.src);
    kiln_release(o.gy);
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof works / sizeof *works && kiln_ok(); i++)
        if (bench_wanted(works[i].name, argc, argv))
            measure(&works[i]);
    return kiln_report(stderr);
}
