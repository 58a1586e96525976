/* kiln generate: text from a network that was trained on text. What is written goes to its device and back as one token
 * at a time; what the network knows of the tokens before stays there, in a decoder (models.h).
 *
 * A network of 256 tokens was trained on bytes, and its text is what they stand for. Tokens of others are numbers that
 * stand for nothing here, and are read and written as such. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cli/work.h"

static const option options[] = {
    {"prompt", 0, OPTION_TEXT, "TEXT", "what the text begins with (a line end)", 0, 0, NULL},
    {"length", 0, OPTION_COUNT, "N", "bytes to write (500)", 0, 1e12, NULL},
    {"temperature", 0, OPTION_NUMBER, "T", "0: always the likeliest byte; 1: as learned (0.8)", 0, 100, NULL},
    {"top-k", 0, OPTION_COUNT, "K", "choose among the K likeliest bytes (all)", 1, 1e9, NULL},
    {"top-p", 0, OPTION_NUMBER, "P", "among the likeliest that have P of all probability (1)", 0, 1, NULL},
    {"seed", 0, OPTION_COUNT, "N", "another seed gives another text (0)", 0, 9e15, NULL},
    {"context", 0, OPTION_COUNT, "N", "bytes the model looks back on (as many as it can)", 1, 1 << 20, NULL},
    {"stats", 0, OPTION_FLAG, NULL, "say at the end how fast it was", 0, 0, NULL},
    {"model", 0, OPTION_TEXT, "MODEL", "where the weights do not say it", 0, 0, "<models>"},
    OPTION_DEVICE,
    OPTION_THREADS,
    OPTION_TF32,
    OPTION_AMP,
    {0}};

enum { BYTES = 256 };

/* ---- What is written ---- */

/* Bytes that wait for the rest of their character, where a terminal reads along: bytes that would move its cursor about
 * are written as \\x1b. Elsewhere bytes go out as they are. */
typedef struct pending {
    bool terminal, numbers; /* numbers: tokens are no bytes */
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

static void put_token(pending *p, int64_t token)
{
    if (p->numbers)
        printf("%lld ", (long long)token);
    else
        put_byte(p, (int)token);
}

/* ---- What it begins with ---- */

typedef struct prompt {
    int64_t *tokens, count;
} prompt;

static void take_token(prompt *p, int64_t token)
{
    p->tokens[p->count++] = token;
}

/* Numbers with blanks between them. */
static int read_numbers(prompt *p, const char *text, int64_t vocabulary)
{
    for (const char *at = text + strspn(text, " \t\n"); *at; at += strspn(at, " \t\n")) {
        char *end;
        errno = 0;
        int64_t token = strtoll(at, &end, 10);
        if (end == at || errno || !strchr(" \t\n", *end) || token < 0 || token >= vocabulary)
            return fail(EX_USAGE, "--prompt: '%.*s' is no token: the model's are the numbers 0 … %lld",
                        (int)strcspn(at, " \t\n"), at, (long long)vocabulary - 1);
        take_token(p, token);
        at = end;
    }
    if (p->count)
        return 0;
    fail(EX_USAGE, "the model has %lld tokens: what they stand for is not known", (long long)vocabulary);
    hint("give some to begin with, by their numbers, as in --prompt '15496 11'; such numbers are written");
    return EX_USAGE;
}

static int read_prompt(prompt *p, const char *text, int64_t vocabulary)
{
    *p = (prompt){.tokens = must_alloc(strlen(text) + 1, sizeof *p->tokens)};
    if (vocabulary != BYTES)
        return read_numbers(p, text, vocabulary);
    for (const char *at = text; *at; at++)
        take_token(p, (unsigned char)*at);
    if (!p->count)
        take_token(p, '\n');
    return 0;
}

/* ---- Writing ---- */

typedef struct writer {
    model_decoder *decoder;
    kiln_tensor *token; /* [1, 1]: the one that was chosen last */
    model_sampling how;
    pending out;
    int64_t written;
    double prompt_seconds, seconds; /* for the prompt, with the first token, and for the others */
} writer;

static volatile sig_atomic_t asked_to_stop;

static void on_signal(int signal_number)
{
    (void)signal_number; /* SA_RESETHAND: the second one ends the program at once */
    asked_to_stop = 1;
}

/* Appends tokens and chooses the next one; one small read is all that the device is waited for. */
static int next_token(writer *w, kiln_tensor *tokens, int64_t *token)
{
    bool ok = false;
    kiln_no_grad
        kiln_scope {
            kiln_tensor *chosen = model_sample(model_decode(w->decoder, tokens), w->how);
            ok = kiln_assign(w->token, chosen) && kiln_read(w->token, token, sizeof *token);
        }
    if (!ok)
        return fail_kiln();
    if (*token < 0)
        return fail(EX_DATAERR, "the model's outputs are not finite: there is nothing to choose by");
    return 0;
}

static int write_tokens(writer *w, kiln_tensor *start, int64_t length)
{
    double before = seconds_now();
    int code = 0;
    for (int64_t token; w->written < length && !asked_to_stop; w->written++) {
        code = next_token(w, w->written ? w->token : start, &token);
        if (code)
            return code;
        put_token(&w->out, token);
        if (fflush(stdout) != 0)
            return fail_output(errno);
        double now = seconds_now();
        *(w->written ? &w->seconds : &w->prompt_seconds) += now - before;
        before = now;
    }
    return 0;
}

static void say_speed(const writer *w, int64_t begun)
{
    const char *unit = w->out.numbers ? "tokens" : "bytes";
    if (w->written > 0)
        fprintf(stderr, "%-12s%s %s in %s (%.0f %s/s)\n", "prompt", show_count(begun), unit,
                show_seconds(w->prompt_seconds), (double)begun / w->prompt_seconds, unit);
    if (w->written > 1)
        fprintf(stderr, "%-12s%s %s in %s (%.0f %s/s)\n", "written", show_count(w->written - 1), unit,
                show_seconds(w->seconds), (double)(w->written - 1) / w->seconds, unit);
}

static int write_text(writer *w, const prompt *p, bool shown, int64_t length, kiln_device device)
{
    kiln_tensor *start = kiln_tensor_new(p->tokens, KILN_I64, KILN_SHAPE(1, p->count), device);
    w->token = kiln_tensor_new(NULL, KILN_I64, KILN_SHAPE(1, 1), device);
    for (int64_t i = 0; shown && i < p->count; i++)
        put_token(&w->out, p->tokens[i]);
    int code = start && w->token ? write_tokens(w, start, length) : fail_kiln();
    put_pending(&w->out);
    putchar('\n');
    kiln_release(start);
    kiln_release(w->token);
    return code ? code : asked_to_stop ? EXIT_INTERRUPTED : 0;
}

/* ---- The command ---- */

/* Tokens the decoder has room for. Attention goes over all of it: a short text takes no more than it needs. A model
 * file's network gets windows of the length it was made for. */
static int choose_context(const arguments *a, const network *n, int64_t all, int64_t *context)
{
    int64_t most = network_context(n);
    *context = count_of(a, "context", most);
    if (most && *context > most)
        return fail(EX_USAGE, "--context %lld: the model %s sees at most %lld bytes", (long long)*context, n->name,
                    (long long)most);
    if (n->entry && *context > all)
        *context = all;
    return 0;
}

static int generate_with(const arguments *a, const network *n, const prompt *p, kiln_device device)
{
    int64_t length = count_of(a, "length", 500), context;
    int code = choose_context(a, n, p->count + length, &context);
    if (code)
        return code;
    kiln_manual_seed((uint64_t)count_of(a, "seed", 0));
    writer w = {.decoder = model_decoder_new(n->module, 1, context),
                .how = {.temperature = number_of(a, "temperature", 0.8),
                        .top_k = count_of(a, "top-k", 0),
                        .top_p = number_of(a, "top-p", 1)},
                .out = {.terminal = isatty(STDOUT_FILENO), .numbers = n->outputs != BYTES}};
    if (given(a, "top-p") && w.how.top_p == 0)
        w.how.top_k = 1; /* no share of it: the likeliest */
    sigaction(SIGINT, &(struct sigaction){.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND | SA_RESTART}, NULL);
    code = w.decoder ? write_text(&w, p, *text_of(a, "prompt", ""), length, device) : fail_kiln();
    if (given(a, "stats"))
        say_speed(&w, p->count);
    model_decoder_free(w.decoder);
    return code;
}

/* Autocast would cast every weight anew for each token, which takes longer than the products. */
static int cast_weights(const arguments *a, const network *n)
{
    return given(a, "amp") && !kiln_module_cast(n->module, amp_of(a)) ? fail_kiln() : 0;
}

static int generate(const arguments *a)
{
    network n;
    kiln_device device;
    prompt p = {0};
    int code = open_run(a, &n, NULL, &device);
    if (!code && !n.tokens) {
        code = fail(EX_USAGE, "%s is no model of text", n.name);
        hint("kiln train --data FILE.txt makes one");
    }
    if (!code)
        code = cast_weights(a, &n);
    if (!code)
        code = read_prompt(&p, text_of(a, "prompt", ""), n.outputs);
    if (!code)
        code = generate_with(a, &n, &p, device);
    free(p.tokens);
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
