/* What the files of the kiln command share: the tables that describe its commands, their parsed arguments, and the one
 * way in which they report errors. The command uses the public headers alone, as any program would. */
#ifndef KILN_CLI_H
#define KILN_CLI_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sysexits.h>
#include <kiln.h>

/* The build says it; parts of the command that are built for fuzzing have none. */
#ifndef KILN_VERSION
#define KILN_VERSION "?"
#endif

enum { EXIT_INTERRUPTED = 130, MAX_OPTIONS = 40, MAX_COUNTS = 16 };

/* ---- Commands and options: one table a command drives parsing, --help and completion ---- */

typedef enum option_kind {
    OPTION_FLAG,   /* takes no value; with `words` one of them may follow a "=" */
    OPTION_COUNT,  /* a whole number, min … max, or one of the words */
    OPTION_NUMBER, /* a number, min … max */
    OPTION_COUNTS, /* whole numbers with commas between them, MAX_COUNTS at most */
    OPTION_SIZE,   /* bytes: 800000, 512M, 2G */
    OPTION_WORD,   /* one of `words`, or one of them and ":…" */
    OPTION_TEXT    /* any text */
} option_kind;

typedef struct option {
    const char *name; /* without the dashes */
    char letter;      /* 'o' for -o; 0: none */
    option_kind kind;
    const char *value; /* how the value is called in the help: "N", "FILE" */
    const char *about; /* with the default in parentheses; NULL: the next option's says it, on the same line */
    double min, max;   /* of a number; max 0: none */
    /* What a value can be, for checking and completion: words with blanks between them; "<models>", "<optimizers>",
     * "<files>", "<folders>" where those are completed. NULL: nothing is known. */
    const char *words;
} option;

/* The words themselves, also where the table has "<optimizers>". */
const char *option_words(const option *o);

typedef struct command command;

/* A command line, checked against the command's table. */
typedef struct arguments {
    const command *command;
    const char *values[MAX_OPTIONS]; /* by the option's place in the table; NULL: not given; "" for a flag */
    int count;                       /* arguments that are no options */
    char **rest;
    int argc; /* the whole line, to show it again */
    char **argv;
} arguments;

struct command {
    const char *name, *about;
    const char *operands; /* "[RUN] [IMAGE.png…]" in the help */
    const option *options;
    int max_operands;  /* -1: any number */
    const char *notes; /* last lines of the help: examples */
    int (*run)(const arguments *a);
};

/* Each command's file has one of these. */
extern const command command_train, command_eval, command_predict, command_generate, command_inspect, command_devices,
    command_plan, command_plot, command_bench, command_completion;
extern const command *const commands[]; /* ends with NULL; hidden ones (about NULL) last */

/* Parses argv after the command's name. 0, or the exit code after the error was reported; -1 after --help was shown. */
int arguments_parse(arguments *a, const command *c, int argc, char **argv);
void command_help(const command *c, FILE *out);

/* Options and their values by name; the name must be in the command's table. */
const option *option_named(const arguments *a, const char *name);
bool given(const arguments *a, const char *name);
const char *text_of(const arguments *a, const char *name, const char *otherwise);
int64_t count_of(const arguments *a, const char *name, int64_t otherwise);
double number_of(const arguments *a, const char *name, double otherwise);
uint64_t size_of(const arguments *a, const char *name, uint64_t otherwise);
int counts_of(const arguments *a, const char *name, int64_t out[MAX_COUNTS]); /* how many */
void arguments_set(arguments *a, const char *name, const char *value); /* as if it had been given; keeps the pointer */

/* Numbers, strictly: the whole text must be one. */
bool parse_count(const char *text, int64_t *out);
bool parse_number(const char *text, double *out);
bool parse_size(const char *text, uint64_t *out);

/* The word of a list (blanks between them) that is nearest to `text`, when it is near enough to be meant; else NULL. */
const char *nearest_word(const char *words, const char *text);

/* ---- Reporting ---- */

extern const char *current_command; /* "train"; NULL outside any */

/* "kiln train: message" on stderr; returns `code`. */
int fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
void hint(const char *format, ...) __attribute__((format(printf, 1, 2)));
void note(const char *format, ...) __attribute__((format(printf, 1, 2))); /* of what is no error */
int fail_kiln(void);          /* the library's error; returns the exit code that fits it */
void say_notices(void);       /* those of the library */
bool colour_on(FILE *stream); /* a terminal that wants colours */

/* After a write to stdout failed, with its errno: says so, and returns EX_IOERR; 0 where nobody wanted the output. */
int fail_output(int why);
/* Checks at the very end that all output was written; returns `code`, or EX_IOERR. */
int finish_output(int code);

/* ---- Small helpers ---- */

void *must_alloc(size_t count, size_t size); /* zeroed; ends the program when there is no memory */
void *must_resize(void *p, size_t count, size_t size);
char *must_format(const char *format, ...) __attribute__((format(printf, 1, 2)));
double seconds_now(void);

/* Texts for people, in one of a few rotating buffers. */
const char *show_size(uint64_t bytes);               /* "1.5 MiB" */
const char *show_count(int64_t n);                   /* "60,000" */
const char *show_seconds(double seconds);            /* "12.3 s", "4 min 10 s" */
const char *show_shape(int n, const int64_t *shape); /* "1x28x28" */

/* Bytes of the character of UTF-8 at `text`; 0 for what is none, and for control characters, which could move the
 * cursor of a terminal about: names in files are written by others. */
int shown_bytes(const char *text);
void put_shown(FILE *out, const char *text); /* such bytes as \x1b */
void put_lines(FILE *out, const char *text); /* the same, but lines may end in it, and tabs stand in it */
char *shown_text(const char *text);          /* what put_shown writes; freed by the caller */
/* printf to stdout through put_lines: for all that has names and texts of others in it. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- Files that the user names (files.c) ---- */

bool path_exists(const char *path);
bool path_is_folder(const char *path);
/* Whether `path` is the folder, or something below it. */
bool path_is_inside(const char *path, const char *folder);

/* A plain file to be read: pipes, devices and folders are refused. NULL after an error was reported, whose exit code is
 * then in *code. */
FILE *open_input(const char *path, int *code);
/* A whole file with a zero after it; NULL after an error was reported, whose exit code is then in *code. */
char *read_text(const char *path, size_t limit, int *code);

/* A file that is being written. It takes its name when all of it is there; one that is there already is replaced only
 * if it is of the same kind. "-" is the standard output; pipes and devices are written to as they are. */
typedef struct output {
    FILE *file;
    const char *path; /* as it was given */
    char *target, *temporary;
} output;
typedef bool (*output_kind)(const char *head); /* whether a file that begins so may be replaced */
int output_open(output *o, const char *path, const char *what, output_kind kind);
int output_close(output *o, int code); /* keeps it if `code` is 0; returns `code`, or what went wrong */

#endif
