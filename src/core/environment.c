/* Variables of the environment are read where they are needed, by those who need them; one that makes no sense there is
 * passed over without a word. This is the word: a table of all of them. */
#include "core/environment.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/nearest.h"

typedef struct variable {
    const char *name;
    const char *words; /* what it can be, with blanks between them; NULL: a whole number */
    long least, most;  /* of a number */
    const char *taken; /* what another value does; NULL: as if it were not set */
} variable;

static const variable variables[] = {
    {"KILN_NUM_THREADS", NULL, 1, 1 << 20, NULL},
    {"KILN_EAGER", "0 1", 0, 0, "1"},
    {"KILN_TF32", "0 1", 0, 0, "1"},
    {"KILN_RERUN", "0 1", 0, 0, "1"},
    {"KILN_RECOMPUTE", "0 1", 0, 0, "1"},
    {"KILN_CHUNK_MIB", NULL, 0, 1 << 20, NULL},
    {"KILN_ISA", "plain avx2 avx512 avx512bf16 amx", 0, 0, NULL},
    {"KILN_CUDA_JIT", "0 1 wait", 0, 0, "1"},
    {"KILN_CUDA_RUNS", NULL, 1, 50, NULL},
    {"KILN_CUDA_MEMCHECK", "0 1 exact", 0, 0, "0"},
    {"KILN_CUDA_LIBRARIES", "0 1", 0, 0, "1"},
    {"KILN_SIM_DEVICES", NULL, 0, 1 << 20, NULL},
    {"KILN_SIM_MEMORY", NULL, 0, __LONG_MAX__, NULL},
    {"KILN_SIM_APART", "0 1", 0, 0, NULL},
    {"KILN_PLUGIN_PATH", "", 0, 0, NULL}, /* any text */
};
enum { VARIABLES = sizeof variables / sizeof *variables };

static bool is_one_of(const char *words, const char *value)
{
    size_t length = strlen(value);
    for (const char *w = words; *w; w += strspn(w, " ")) {
        size_t n = strcspn(w, " ");
        if (n == length && !strncmp(w, value, n))
            return true;
        w += n;
    }
    return !*words;
}

static bool is_number(const variable *v, const char *value)
{
    char *end;
    errno = 0;
    long n = strtol(value, &end, 10);
    return !errno && *value >= '0' && *value <= '9' && !*end && n >= v->least && n <= v->most;
}

static bool complain(const variable *v, const char *value, char *why, unsigned size)
{
    if (v->words)
        snprintf(why, size, "%s=%.60s: expected one of: %s", v->name, value, v->words);
    else if (v->most >= 1 << 20)
        snprintf(why, size, "%s=%.60s: expected a whole number of at least %ld", v->name, value, v->least);
    else
        snprintf(why, size, "%s=%.60s: expected a whole number from %ld to %ld", v->name, value, v->least, v->most);
    size_t used = strlen(why);
    if (v->taken)
        snprintf(why + used, size - used, "; it is taken for %s", v->taken);
    return true;
}

/* One that nobody reads is told of where it is nearly the name of one that is read. */
static bool misspelt(const char *name, char *why, unsigned size)
{
    kiln_nearest best = {0};
    for (int i = 0; i < VARIABLES; i++)
        kiln_nearest_offer(&best, name, variables[i].name);
    if (!best.word || best.distance > 3)
        return false;
    snprintf(why, size, "%s is no variable that Kiln reads; did you mean %s?", name, best.word);
    return true;
}

bool kiln_environment_wrong(const char *entry, char *why, unsigned size)
{
    char name[64];
    size_t length = strcspn(entry, "=");
    if (strncmp(entry, "KILN_", 5) || !strncmp(entry, "KILN_TEST_", 10) || length >= sizeof name ||
        entry[length] != '=')
        return false;
    snprintf(name, sizeof name, "%.*s", (int)length, entry);
    const char *value = entry + length + 1;
    for (int i = 0; i < VARIABLES; i++)
        if (!strcmp(name, variables[i].name)) {
            const variable *v = &variables[i];
            bool good = !*value || (v->words ? is_one_of(v->words, value) : is_number(v, value));
            return !good && complain(v, value, why, size);
        }
    return misspelt(name, why, size);
}

extern char **environ;

bool kiln_environment_notice(void)
{
    static atomic_flag looked = ATOMIC_FLAG_INIT;
    char why[256];
    bool wrong = false;
    if (atomic_flag_test_and_set(&looked))
        return false;
    for (char **entry = environ; entry && *entry; entry++)
        if (kiln_environment_wrong(*entry, why, sizeof why)) {
            kiln_notice("%s", why);
            wrong = true;
        }
    return wrong;
}
