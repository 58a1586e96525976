/* The two texts made from the tables of options: a command's --help and the bash completion. */
#include <string.h>
#include <models.h>
#include "cli/cli.h"

/* ---- --help ---- */

/* Words in lines of 80 behind the options' names. */
static void help_words(const char *words, FILE *out)
{
    enum { LEFT = 24, WIDTH = 80 };
    size_t at = LEFT;
    for (const char *w = words; *w; w += strspn(w, " ")) {
        size_t n = strcspn(w, " ");
        if (at + n > WIDTH) {
            fprintf(out, "\n%*s", LEFT, "");
            at = LEFT;
        }
        fprintf(out, "%s%.*s", at > LEFT ? " " : "", (int)n, w);
        at += n + 1;
        w += n;
    }
}

/* "[=bf16|f16]" */
static int help_choices(const char *words, char *to, size_t size)
{
    int n = snprintf(to, size, "[=%s]", words);
    for (char *at = to; (at = strchr(at, ' '));)
        *at = '|';
    return n;
}

/* "--schedule NAME", "-q, --quiet", "--fit-memory[=local]". Returns its length. */
static int help_name(const option *o, char *left, size_t size)
{
    int n = o->letter ? snprintf(left, size, "-%c, --%s", o->letter, o->name) : snprintf(left, size, "--%s", o->name);
    if (o->kind == OPTION_FLAG && o->words)
        n += help_choices(o->words, left + n, size - (size_t)n);
    else if (o->value)
        n += snprintf(left + n, size - (size_t)n, " %s", o->value);
    return n;
}

/* One line, also for several that share it. */
static const option *help_option(const option *o, FILE *out)
{
    char left[80];
    int n = help_name(o, left, sizeof left / 2);
    for (; !o->about; o++) {
        n += snprintf(left + n, sizeof left - (size_t)n, ", ");
        n += help_name(o + 1, left + n, sizeof left - (size_t)n);
    }
    fprintf(out, "  %-21s ", left);
    if (option_words(o) != o->words) /* a list that is made, and what the table says of it */
        help_words(option_words(o), out);
    fprintf(out, "%s%s\n", option_words(o) != o->words ? " " : "", o->about);
    return o + 1;
}

static bool has_models(const command *c)
{
    for (const option *o = c->options; o->name; o++)
        if (o->words && !strcmp(o->words, "<models>"))
            return true;
    return false;
}

static void help_models(FILE *out)
{
    size_t at = strlen("Models:");
    fputs("Models:", out);
    for (const model_entry *m = model_table; m->name; m++) {
        bool fits = at + 1 + strlen(m->name) <= 80;
        fprintf(out, "%s %s", fits ? "" : "\n       ", m->name);
        at = (fits ? at : strlen("Models:")) + 1 + strlen(m->name);
    }
    fputc('\n', out);
}

void command_help(const command *c, FILE *out)
{
    const char *about = c->about ? c->about : "";
    int n =
        fprintf(out, "usage: kiln %s [options]%s%s", c->name, c->operands ? " " : "", c->operands ? c->operands : "");
    bool fits = n >= 0 && (size_t)n + strlen(about) + 3 <= 80;
    fprintf(out, "%s%s.\n", fits ? "  " : "\n", about);
    for (const option *o = c->options; o->name;)
        o = help_option(o, out);
    if (!c->options->name) /* where there are others it is not worth a line */
        fputs("  --help                this text\n", out);
    if (has_models(c))
        help_models(out);
    if (c->notes)
        fputs(c->notes, out);
}

/* ---- Completion ---- */

static void case_of(const option *o)
{
    if (o->letter)
        printf("        --%s | -%c) ", o->name, o->letter);
    else
        printf("        --%s) ", o->name);
    if (!o->words)
        printf("COMPREPLY=() ;;\n");
    else if (option_words(o) != o->words)
        printf("_kiln_words \"%s\" ;;\n", option_words(o));
    else if (!strcmp(o->words, "<folders>"))
        printf("_kiln_paths -d ;;\n");
    else if (strchr(o->words, '<') && strcmp(o->words, "<models>") != 0)
        printf("_kiln_paths -f%s ;;\n", !strcmp(o->words, "<data>") ? " digits" : "");
    else if (!strcmp(o->words, "<models>"))
        printf("_kiln_paths -f \"$models\" ;;\n");
    else
        printf("_kiln_words \"%s\" ;;\n", o->words);
}

static void complete_command(const command *c)
{
    printf("    %s)\n        case $previous in\n", c->name);
    for (const option *o = c->options; o->name; o++)
        if (o->kind != OPTION_FLAG)
            case_of(o);
    printf("        *) if [[ $current == -* ]]; then\n               _kiln_words \"");
    for (const option *o = c->options; o->name; o++) {
        printf("--%s ", o->name);
        for (const char *w = o->kind == OPTION_FLAG ? o->words : NULL; w && *w; w += strspn(w, " ")) {
            int length = (int)strcspn(w, " ");
            printf("--%s=%.*s ", o->name, length, w);
            w += length;
        }
    }
    printf("--help\"\n           else\n               %s\n           fi ;;\n        esac ;;\n",
           c->max_operands ? "_kiln_paths -f" : "COMPREPLY=()");
}

static int completion(const arguments *a)
{
    (void)a;
    puts("# Completion of the kiln command in bash. Made by `kiln completion` from the command's own tables.\n"
         "_kiln_words() {\n"
         "    mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$current\")\n"
         "}\n"
         "# Paths (-f files, -d folders) and, with a second argument, words.\n"
         "_kiln_paths() {\n"
         "    compopt -o filenames\n"
         "    mapfile -t COMPREPLY < <(compgen -W \"${2-}\" -- \"$current\"; compgen \"$1\" -- \"$current\")\n"
         "}\n"
         "_kiln() {\n"
         "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}");
    printf("    local models=\"");
    for (const model_entry *m = model_table; m->name; m++)
        printf("%s%s", m == model_table ? "" : " ", m->name);
    printf("\"\n    if ((COMP_CWORD == 1)); then\n        _kiln_words \"");
    for (const command *const *c = commands; *c; c++)
        if ((*c)->about)
            printf("%s ", (*c)->name);
    puts("help --version\"\n        return\n    fi\n"
         "    # --option=value arrives as three words\n"
         "    if [[ $current == = ]]; then\n"
         "        current=\n"
         "    elif [[ $previous == = ]]; then\n"
         "        previous=${COMP_WORDS[COMP_CWORD - 2]}\n"
         "    fi\n"
         "    case ${COMP_WORDS[1]} in");
    for (const command *const *c = commands; *c; c++)
        if ((*c)->about)
            complete_command(*c);
    printf("    help) _kiln_words \"");
    for (const command *const *c = commands; *c; c++)
        if ((*c)->about)
            printf("%s%s", c == commands ? "" : " ", (*c)->name);
    puts("\" ;;\n    esac\n}\ncomplete -F _kiln kiln");
    return EX_OK;
}

static const option no_options[] = {{0}};
const command command_completion = {.name = "completion", .options = no_options, .run = completion};
