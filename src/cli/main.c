/* The kiln command: finds the subcommand and runs it. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cli/cli.h"

const command *const commands[] = {&command_train,
                                   &command_eval,
                                   &command_predict,
                                   &command_generate,
                                   &command_inspect,
                                   &command_plot,
                                   &command_plan,
                                   &command_bench,
                                   &command_devices,
                                   &command_completion,
                                   NULL};

static void help_all(FILE *out)
{
    fputs("Kiln trains and runs neural networks.\n\nusage: kiln COMMAND [options]\n\n", out);
    for (const command *const *c = commands; *c; c++)
        if ((*c)->about)
            fprintf(out, "  %-10s%s\n", (*c)->name, (*c)->about);
    fputs("  help      this list, or the help of one command\n"
          "\nkiln train alone trains a small network on drawn digits, in less than a minute.\n"
          "kiln COMMAND --help shows a command's options; man kiln has everything.\n",
          out);
}

static const command *find_command(const char *name)
{
    for (const command *const *c = commands; *c; c++)
        if (!strcmp((*c)->name, name))
            return *c;
    return NULL;
}

static int unknown_command(const char *name)
{
    char words[256] = "help";
    for (const command *const *c = commands; *c; c++)
        if ((*c)->about)
            snprintf(words + strlen(words), sizeof words - strlen(words), " %s", (*c)->name);
    fail(EX_USAGE, "there is no command \"%s\"", name);
    const char *near = nearest_word(words, name);
    if (near)
        hint("did you mean kiln %s?", near);
    else
        hint("the commands are: %s", words);
    return EX_USAGE;
}

static int help(int argc, char **argv)
{
    const command *c = argc > 0 && strcmp(argv[0], "help") != 0 ? find_command(argv[0]) : NULL;
    if (argc > 0 && !c && strcmp(argv[0], "help") != 0)
        return unknown_command(argv[0]);
    if (c)
        command_help(c, stdout);
    else
        help_all(stdout);
    return EX_OK;
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        help_all(stderr);
        return EX_USAGE;
    }
    const char *name = argv[1];
    if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h"))
        return help(argc - 2, argv + 2);
    if (!strcmp(name, "--version") || !strcmp(name, "-V") || !strcmp(name, "version")) {
        puts("kiln " KILN_VERSION);
        return EX_OK;
    }
    const command *c = find_command(name);
    if (!c && name[0] == '-') {
        fail(EX_USAGE, "the command comes first: kiln COMMAND [options]");
        hint("kiln help lists the commands");
        return EX_USAGE;
    }
    if (!c)
        return unknown_command(name);
    arguments a;
    current_command = c->name;
    int code = arguments_parse(&a, c, argc - 2, argv + 2);
    if (code == 0) {
        say_notices(); /* what is wrong with the environment */
        code = c->run(&a);
    }
    free(a.rest);
    return code < 0 ? EX_OK : code;
}

/* A standard stream that is closed would be given to the next file that is opened: words for people would end up in
 * weights or logs. What takes its place cannot be written to (stdin: read), as if it were still closed. */
static void hold_streams(void)
{
    for (int fd = open("/dev/null", O_RDONLY); fd >= 0; fd = open("/dev/null", O_RDONLY))
        if (fd > STDERR_FILENO) {
            close(fd);
            break;
        }
}

int main(int argc, char **argv)
{
    hold_streams();
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow any more (ulimit -f) is an error that can be told */
    return finish_output(run(argc, argv));
}
