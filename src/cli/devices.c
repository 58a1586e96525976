/* kiln devices: what there is to compute on, and why the rest is not there. */
#include <stdlib.h>
#include <string.h>
#include "cli/cli.h"

enum { INDENT = 10, WIDTH = 80, LIBRARIES = 16 };
static const option options[] = {{0}};

/* A paragraph beside the column of names; what is wider than a screen goes on in the next line. */
static void say_row(const char *name, const char *said)
{
    char *shown = shown_text(said);
    const char *text = shown;
    int used = printf("%-*s", INDENT, name);
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (used > INDENT && used + 1 + n > WIDTH)
            used = printf("\n%-*s", INDENT, "") - 1;
        used += printf("%s%.*s", used > INDENT ? " " : "", n, text);
        text += n;
        text += strspn(text, " ");
    }
    putchar('\n');
    free(shown);
}

__attribute__((format(printf, 2, 3))) static void say_text(const char *name, const char *format, ...)
{
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    say_row(name, text);
}

static void say_device(const char *name, kiln_device device)
{
    kiln_device_info info;
    if (!kiln_device_describe(device, &info)) {
        say_row(name, kiln_last_error()->message);
        kiln_error_clear();
        return;
    }
    say_row(name, info.name);
    if (info.refused[0])
        say_text("", "cannot be used: %s", info.refused);
    if (info.memory_total)
        say_text("", "memory %s, %s free", show_size(info.memory_total), show_size(info.memory_free));
    bool cpu = device == KILN_CPU;
    say_text("", "%d %s%s%s%s%s", cpu ? kiln_get_num_threads() : info.threads, cpu ? "threads" : "multiprocessors",
             info.features[0] ? "; " : "", info.features, info.bus[0] ? "; bus " : "", info.bus);
}

/* Those that are there in one line, then each that is not. */
static void say_libraries(const char *kind)
{
    kiln_device_library all[LIBRARIES];
    int n = kiln_device_libraries(kind, all, LIBRARIES);
    char text[LIBRARIES * 70] = "";
    for (int i = 0; i < n; i++)
        if (all[i].version[0])
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%.31s %.31s", *text ? ", " : "", all[i].name,
                     all[i].version);
    if (*text)
        say_row(kind, text);
    for (int i = 0; i < n; i++)
        if (!all[i].version[0])
            say_text("", "no %s: %s", all[i].name, all[i].why);
}

static void say_kind(const char *kind)
{
    char why[512] = "", name[32];
    int count = kiln_device_count(kind, why, sizeof why);
    if (count <= 0)
        say_text(kind, "none: %s", why);
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, count > 1 || strcmp(kind, "cpu") ? "%s:%d" : "%s", kind, i);
        say_device(name, kiln_device_at(kind, i));
    }
    if (count > 0)
        say_libraries(kind);
    if (count > 0 && *why)
        say_row("", why);
}

static int devices(const arguments *a)
{
    static const char *const kinds[] = {"cpu", "cuda", "opencl"};
    (void)a;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        say_kind(kinds[i]);
    kiln_error_clear();
    printf("\nkiln train uses %s, the best of them, unless --device says otherwise.\n",
           kiln_device_name(kiln_device_auto()));
    return EX_OK;
}

const command command_devices = {.name = "devices",
                                 .about = "Lists what there is to compute on",
                                 .options = options,
                                 .notes = "\nExample: kiln devices\n",
                                 .run = devices};
