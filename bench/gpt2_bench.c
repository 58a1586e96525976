/* Sequence models written with plain operations, trained with cross-entropy and Adam: microseconds a step and tokens a
 * second. One JSON object a line, so that bench/run.sh can set it beside PyTorch.
 *
 * usage: kiln_bench_gpt2 [gpt2 | lstm | plan]      plan: prints the plan of a GPT-2 step instead of running it */
#include <kiln.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* ---- Parameters and Adam ---- */

enum { MOST = 64 };

typedef struct parameters {
    kiln_tensor *p[MOST], *m[MOST], *v[MOST];
    int count;
    int64_t steps;
} parameters;

static kiln_tensor *add_parameter(parameters *all, kiln_tensor *t)
{
    kiln_eval();
    int i = all->count++;
    all->p[i] = kiln_requires_grad(kiln_keep(t), true);
    all->m[i] = kiln_keep(kiln_zeros_like(t));
    all->v[i] = kiln_keep(kiln_zeros_like(t));
    kiln_eval();
    return all->p[i];
}

static kiln_tensor *normal(parameters *all, int64_t rows, int64_t cols, double scale)
{
    return add_parameter(all, kiln_mul_scalar(kiln_randn(KILN_SHAPE(rows, cols), KILN_F32), scale));
}

static kiln_tensor *constant(parameters *all, int64_t n, double value)
{
    return add_parameter(all, kiln_full(KILN_SHAPE(n), value, KILN_F32));
}

static void adam(parameters *all)
{
    double t = (double)++all->steps, c1 = 1 - pow(0.9, t), c2 = 1 - pow(0.999, t);
    for (int i = 0; i < all->count; i++) {
        kiln_tensor *p = all->p[i], *m = all->m[i], *v = all->v[i], *g = kiln_grad_of(p);
        kiln_tensor *m1 = kiln_add(kiln_mul_scalar(m, 0.9), kiln_mul_scalar(g, 0.1));
        kiln_tensor *v1 = kiln_add(kiln_mul_scalar(v, 0.999), kiln_mul_scalar(kiln_mul(g, g), 0.001));
        kiln_tensor *root = kiln_add_scalar(kiln_sqrt(kiln_mul_scalar(v1, 1 / c2)), 1e-8);
        kiln_assign(m, m1);
        kiln_assign(v, v1);
        kiln_assign(p, kiln_sub(p, kiln_div(kiln_mul_scalar(m1, 1e-3 / c1), root)));
    }
}

/* A step: `loss` records the forward pass. */
static void record_step(parameters *all, kiln_tensor *(*loss)(kiln_tensor *x), kiln_tensor *x)
{
    for (int i = 0; i < all->count; i++)
        kiln_zero_grad_of(all->p[i]);
    kiln_backward(loss(x));
    kiln_no_grad
        adam(all);
}

/* ---- GPT-2: learned positions, pre-norm blocks, the head tied to the token embedding ---- */

enum { VOCABULARY = 256, BATCH = 16, LENGTH = 128, WIDTH = 128, LAYERS = 4, HEADS = 4 };

typedef struct block {
    kiln_tensor *norm1, *shift1, *norm2, *shift2, *qkv, *qkv_bias, *proj, *proj_bias;
    kiln_tensor *up, *up_bias, *down, *down_bias;
} block;

static parameters gpt;
static struct {
    kiln_tensor *tokens, *positions, *norm, *shift;
    block blocks[LAYERS];
} net;

static void gpt_make(void)
{
    parameters *all = &gpt;
    double scale = 0.02;
    net.tokens = normal(all, VOCABULARY, WIDTH, scale);
    net.positions = normal(all, LENGTH, WIDTH, scale);
    for (int i = 0; i < LAYERS; i++)
        net.blocks[i] = (block){
            .norm1 = constant(all, WIDTH, 1),
            .shift1 = constant(all, WIDTH, 0),
            .norm2 = constant(all, WIDTH, 1),
            .shift2 = constant(all, WIDTH, 0),
            .qkv = normal(all, 3 * WIDTH, WIDTH, scale),
            .qkv_bias = constant(all, 3 * WIDTH, 0),
            .proj = normal(all, WIDTH, WIDTH, scale),
            .proj_bias = constant(all, WIDTH, 0),
            .up = normal(all, 4 * WIDTH, WIDTH, scale),
            .up_bias = constant(all, 4 * WIDTH, 0),
            .down = normal(all, WIDTH, 4 * WIDTH, scale),
            .down_bias = constant(all, WIDTH, 0),
        };
    net.norm = constant(all, WIDTH, 1);
    net.shift = constant(all, WIDTH, 0);
}

/* [B, T, width] as [B, heads, T, width/heads]. */
static kiln_tensor *heads(kiln_tensor *x)
{
    return kiln_transpose(kiln_reshape(x, KILN_SHAPE(BATCH, LENGTH, HEADS, WIDTH / HEADS)), 1, 2);
}

static kiln_tensor *attend(const block *b, kiln_tensor *x)
{
    kiln_tensor *qkv[3];
    kiln_chunk(kiln_linear(x, b->qkv, b->qkv_bias), 3, -1, qkv, 3);
    kiln_tensor *y = kiln_scaled_dot_product_attention(heads(qkv[0]), heads(qkv[1]), heads(qkv[2]), NULL, 0, true, 0);
    y = kiln_reshape(kiln_transpose(y, 1, 2), KILN_SHAPE(BATCH, LENGTH, WIDTH));
    return kiln_linear(y, b->proj, b->proj_bias);
}

static kiln_tensor *gpt_loss(kiln_tensor *tokens)
{
    kiln_tensor *x = kiln_add(kiln_embedding(net.tokens, tokens, -1), net.positions);
    for (int i = 0; i < LAYERS; i++) {
        const block *b = &net.blocks[i];
        x = kiln_add(x, attend(b, kiln_layer_norm(x, KILN_SHAPE(WIDTH), b->norm1, b->shift1, 1e-5)));
        kiln_tensor *h = kiln_layer_norm(x, KILN_SHAPE(WIDTH), b->norm2, b->shift2, 1e-5);
        h = kiln_gelu_tanh(kiln_linear(h, b->up, b->up_bias));
        x = kiln_add(x, kiln_linear(h, b->down, b->down_bias));
    }
    x = kiln_layer_norm(x, KILN_SHAPE(WIDTH), net.norm, net.shift, 1e-5);
    kiln_tensor *logits = kiln_linear(x, net.tokens, NULL);
    return kiln_cross_entropy(kiln_reshape(logits, KILN_SHAPE(BATCH * LENGTH, VOCABULARY)),
                              kiln_reshape(tokens, KILN_SHAPE(BATCH * LENGTH)));
}

/* ---- LSTM: bytes, embedded, one layer, a linear head ---- */

enum { STEPS = 64, SEQUENCES = 32, EMBEDDING = 64, HIDDEN = 256 };

static parameters lstm;
static struct {
    kiln_tensor *tokens, *w_ih, *w_hh, *b_ih, *b_hh, *head, *head_bias, *start;
} cells;

static void lstm_make(void)
{
    parameters *all = &lstm;
    double scale = 1 / sqrt((double)HIDDEN);
    cells.tokens = normal(all, VOCABULARY, EMBEDDING, 1);
    cells.w_ih = normal(all, 4 * HIDDEN, EMBEDDING, scale);
    cells.w_hh = normal(all, 4 * HIDDEN, HIDDEN, scale);
    cells.b_ih = constant(all, 4 * HIDDEN, 0);
    cells.b_hh = constant(all, 4 * HIDDEN, 0);
    cells.head = normal(all, VOCABULARY, HIDDEN, scale);
    cells.head_bias = constant(all, VOCABULARY, 0);
    cells.start = kiln_keep(kiln_zeros(KILN_SHAPE(SEQUENCES, HIDDEN), KILN_F32));
    kiln_eval();
}

/* tokens [steps, sequences] */
static kiln_tensor *lstm_loss(kiln_tensor *tokens)
{
    kiln_tensor *x = kiln_embedding(cells.tokens, tokens, -1);
    x = kiln_lstm(x, cells.start, cells.start, cells.w_ih, cells.w_hh, cells.b_ih, cells.b_hh, NULL, NULL);
    kiln_tensor *logits = kiln_linear(x, cells.head, cells.head_bias);
    return kiln_cross_entropy(kiln_reshape(logits, KILN_SHAPE(STEPS * SEQUENCES, VOCABULARY)),
                              kiln_reshape(tokens, KILN_SHAPE(STEPS * SEQUENCES)));
}

/* ---- Timing ---- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void bench(const char *work, const char *batch, parameters *all, kiln_tensor *(*loss)(kiln_tensor *x),
                  kiln_tensor *x)
{
    enum { ROUNDS = 5 };
    double rounds[ROUNDS], record = 0;
    for (int i = 0; i < 5; i++)
        kiln_step
            record_step(all, loss, x);
    for (int r = 0; r < ROUNDS; r++) {
        double start = now_us(), spent = 0;
        int n = 0;
        while (now_us() - start < 0.8e6) {
            double t0 = now_us();
            kiln_step {
                record_step(all, loss, x);
                spent += now_us() - t0;
            }
            n++;
        }
        rounds[r] = (now_us() - start) / n;
        record += spent / n / ROUNDS;
    }
    qsort(rounds, ROUNDS, sizeof *rounds, compare);
    kiln_plan_info info;
    kiln_plan_last(&info);
    printf("{\"work\": \"%s\", \"batch\": \"%s\", \"peer\": \"kiln\", \"us\": %.1f, \"tok_s\": %.0f, \"record_us\": "
           "%.1f, \"nodes\": %lld, \"kernels\": %lld}\n",
           work, batch, rounds[ROUNDS / 2], (double)kiln_numel(x) / rounds[ROUNDS / 2] * 1e6, record,
           (long long)info.nodes, (long long)info.kernels);
    fflush(stdout);
}

static kiln_tensor *tokens(int64_t rows, int64_t cols)
{
    kiln_tensor *x = kiln_keep(kiln_randint(0, VOCABULARY, KILN_SHAPE(rows, cols), KILN_I64));
    kiln_eval();
    return x;
}

int main(int argc, char **argv)
{
    const char *part = argc > 1 ? argv[1] : "";
    if (strcmp(part, "lstm") != 0) {
        gpt_make();
        kiln_tensor *x = tokens(BATCH, LENGTH);
        if (strcmp(part, "plan") == 0)
            kiln_step {
                record_step(&gpt, gpt_loss, x);
                char *text = kiln_plan_describe();
                puts(text ? text : "no plan");
                kiln_string_free(text);
            }
        else
            bench("gpt2", "16x128", &gpt, gpt_loss, x);
    }
    if (*part == 0 || strcmp(part, "lstm") == 0) {
        lstm_make();
        bench("lstm", "32x64", &lstm, lstm_loss, tokens(STEPS, SEQUENCES));
    }
    return kiln_report(stderr);
}
