/* kiln generate: text from a network that was trained on text. The network always gets a window of the same length, so
 * that its plan is made once; since it sees only what stands before a place, what stands after the last byte does not
 * matter. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cli/work.h"

static const option options[] = {
    {"prompt", 0, OPTION_TEXT, "TEXT", "what the text begins with (a line end)", 0, 0, NULL},
    {"length", 0, OPTION_COUNT, "N", "bytes to write (500)", 0, 1e12, NULL},
    {"temperature", 0, OPTION_NUMBER, "T", "0: always the likeliest byte; 1: as learned (0.8)", 0, 100, NULL},
    {"top-k", 0, OPTION_COUNT, "K", "choose among the K likeliest bytes (all)", 1, 256, NULL},
    {"seed", 0, OPTION_COUNT, "N", "another seed gives another text (0)", 0, 9e15, NULL},
    {"context", 0, OPTION_COUNT, "N", "bytes the model looks back on (as it was trained)", 1, 1 << 20, NULL},
    {"model", 0, OPTION_TEXT, "MODEL", "where the weights do not say it", 0, 0, "<models>"},
    OPTION_DEVICE,
    OPTION_THREADS,
    OPTION_TF32,
    OPTION_AMP,
    {0}};

enum { BYTES = 256 };

/* Bytes that wait for the rest of their character, where a terminal reads along: bytes that would move its cursor about
 * are written as \\x1b. Elsewhere bytes go out as they are. */
typedef struct pending {
    bool terminal;
    char bytes[8];
    int used;
} pending;

static int character_length(unsigned char first)
{
    return first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 1;
}

static void put_pending(pending *p)
{
    p->bytes[p->used] = '\0';
    if (p->used == 1 && p->bytes[0] == '\0')
        fputs("\\x00", stdout);
    put_lines(stdout, p->bytes);
    p->used = 0;
}

static void put_byte(pending *p, int byte)
{
    if (!p->terminal) {
        putchar(byte);
        return;
    }
    bool continues = p->used > 0 && (byte & 0xc0) == 0x80;
    if (p->used > 0 && !continues)
        put_pending(p); /* what was begun has no end */
    p->bytes[p->used++] = (char)byte;
    if (p->used >= character_length((unsigned char)p->bytes[0]))
        put_pending(p);
}

typedef struct writer {
    kiln_module *module;
    int64_t window; /* bytes the network gets */
    int64_t *bytes; /* the last ones, oldest first */
    int64_t used;
    kiln_tensor *x, *row; /* [1, window]; [1]: which row of the output counts */
    double temperature;
    int64_t top;
    uint64_t random;
    pending out;
} writer;

/* A number in [0, 1) that the seed alone decides (splitmix64). */
static double next_random(writer *w)
{
    uint64_t z = w->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static void take_byte(writer *w, int byte)
{
    if (w->used == w->window) {
        memmove(w->bytes, w->bytes + 1, (size_t)(w->window - 1) * sizeof *w->bytes);
        w->used--;
    }
    w->bytes[w->used++] = byte;
}

static bool next_logits(writer *w, float *logits)
{
    int64_t last = w->used - 1;
    bool ok =
        kiln_write(w->x, w->bytes, (size_t)w->window * sizeof *w->bytes) && kiln_write(w->row, &last, sizeof last);
    kiln_no_grad
        kiln_scope {
            kiln_tensor *out = kiln_index_select(kiln_forward(w->module, w->x), 1, w->row);
            ok = ok && kiln_read(kiln_cast(out, KILN_F32), logits, BYTES * sizeof *logits);
        }
    return ok;
}

static int largest(const double *p)
{
    int best = 0;
    for (int i = 1; i < BYTES; i++)
        if (p[i] > p[best])
            best = i;
    return best;
}

/* Leaves the `top` largest and makes the others impossible. */
static void keep_top(double *p, int64_t top)
{
    double kept[BYTES] = {0};
    for (int64_t i = 0; i < top; i++) {
        int best = largest(p);
        kept[best] = p[best];
        p[best] = 0;
    }
    memcpy(p, kept, sizeof kept);
}

static int choose_byte(writer *w, const float *logits)
{
    double p[BYTES], sum = 0;
    for (int i = 0; i < BYTES; i++)
        p[i] = logits[i];
    int best = largest(p);
    if (w->temperature <= 0)
        return best;
    double highest = p[best];
    for (int i = 0; i < BYTES; i++)
        p[i] = exp((p[i] - highest) / w->temperature);
    if (w->top < BYTES)
        keep_top(p, w->top);
    for (int i = 0; i < BYTES; i++)
        sum += p[i];
    double at = next_random(w) * sum;
    for (int i = 0; i < BYTES; i++)
        if ((at -= p[i]) < 0)
            return i;
    return best;
}

static int write_text(writer *w, const char *prompt, int64_t length)
{
    float logits[BYTES];
    for (const char *at = prompt; *at; at++) {
        put_byte(&w->out, (unsigned char)*at);
        take_byte(w, (unsigned char)*at);
    }
    if (!*prompt)
        take_byte(w, '\n');
    for (int64_t i = 0; i < length; i++) {
        if (!next_logits(w, logits))
            return fail_kiln();
        int byte = choose_byte(w, logits);
        take_byte(w, byte);
        put_byte(&w->out, byte);
        if (fflush(stdout) != 0)
            return fail_output(errno);
    }
    put_pending(&w->out);
    putchar('\n');
    return 0;
}

static int generate_with(const arguments *a, network *n, kiln_device device)
{
    int64_t context = network_context(n), window = count_of(a, "context", n->shape[0]);
    if (!n->tokens || n->outputs != BYTES) {
        fail(EX_USAGE, "%s is no model of text in bytes", n->name);
        hint("kiln train --data FILE.txt makes one");
        return EX_USAGE;
    }
    if (context && window > context)
        return fail(EX_USAGE, "--context %lld: the model %s sees at most %lld bytes", (long long)window, n->name,
                    (long long)context);
    writer w = {.module = n->module,
                .window = window,
                .bytes = must_alloc((size_t)window, sizeof *w.bytes),
                .x = kiln_tensor_new(NULL, KILN_I64, KILN_SHAPE(1, window), device),
                .row = kiln_tensor_new(NULL, KILN_I64, KILN_SHAPE(1), device),
                .temperature = number_of(a, "temperature", 0.8),
                .top = count_of(a, "top-k", BYTES),
                .random = (uint64_t)count_of(a, "seed", 0),
                .out.terminal = isatty(STDOUT_FILENO)};
    int code = w.x && w.row ? write_text(&w, text_of(a, "prompt", ""), count_of(a, "length", 500)) : fail_kiln();
    kiln_release(w.x);
    kiln_release(w.row);
    free(w.bytes);
    return code;
}

static int generate(const arguments *a)
{
    network n;
    kiln_device device;
    int code = open_run(a, &n, NULL, &device);
    if (!code)
        code = generate_with(a, &n, device);
    network_free(&n);
    return code;
}

const command command_generate = {.name = "generate",
                                  .about = "Writes text with a model that was trained on text",
                                  .operands = "[RUN]",
                                  .options = options,
                                  .max_operands = 1,
                                  .notes =
                                      "\nRUN is a folder that kiln train has made (kiln-run), or a safetensors file.\n"
                                      "Example: kiln generate run --prompt 'To be' --length 200 --temperature 0.7\n",
                                  .run = generate};
