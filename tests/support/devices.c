#include "support/devices.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int absent, nonsense; /* devices of KILN_TEST_DEVICES */

static bool is_set(const char *name)
{
    const char *text = getenv(name);
    return text && *text && strcmp(text, "0") != 0;
}

/* Devices of a kind that has tests of its own are left to those. */
static bool is_left_to_others(const char *device)
{
    const char *kind = getenv("KILN_TEST_ELSEWHERE");
    return kind && *kind && strncmp(device, kind, strlen(kind)) == 0;
}

static void say_absent(const char *name)
{
    printf("[  SKIPPED ] %s: %s\n", name, kiln_last_error()->message);
    fflush(stdout);
    kiln_error_clear();
}

static int default_devices(kiln_device devices[TEST_DEVICES])
{
    static const char *const others[] = {"sim:0", "cuda:0"};
    int n = 0;
    devices[n++] = KILN_CPU;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (is_left_to_others(others[i]))
            continue;
        kiln_device device = kiln_device_parse(others[i]);
        if (device == KILN_NO_DEVICE)
            say_absent(others[i]);
        else
            devices[n++] = device;
    }
    return n;
}

int devices_under_test(kiln_device devices[TEST_DEVICES])
{
    const char *wanted = getenv("KILN_TEST_DEVICES");
    char names[256];
    int n = 0;
    if (!wanted || !*wanted)
        return default_devices(devices);
    snprintf(names, sizeof names, "%s", wanted);
    for (char *rest = names, *name; (name = strtok_r(rest, ",", &rest)) && n < TEST_DEVICES;) {
        kiln_device device = kiln_device_parse(name);
        if (device != KILN_NO_DEVICE) {
            devices[n++] = device;
            continue;
        }
        *(kiln_last_error()->code == KILN_E_DEVICE ? &absent : &nonsense) += 1;
        say_absent(name);
    }
    return absent && is_set("KILN_TEST_WHOLE") ? 0 : n;
}

bool has_cpu_bits(kiln_device device)
{
    return device == KILN_CPU || !strncmp(kiln_device_name(device), "sim", 3);
}

int test_exit(int failed)
{
    return failed || nonsense ? 1 : absent ? TEST_SKIPPED : 0;
}

/* ---- Memory ---- */

enum { EACH = 4 }; /* devices of a kind that are looked at */
static const char *const kinds[] = {"cpu", "sim", "cuda"};
enum { KINDS = sizeof kinds / sizeof *kinds };

static uint64_t before[KINDS][EACH];

static kiln_memory_stats stats_of(int kind, int index)
{
    kiln_memory_stats stats = {0};
    kiln_memory_get_stats(kiln_device_at(kinds[kind], index), &stats);
    return stats;
}

static int count(int kind)
{
    int n = kiln_device_count(kinds[kind], NULL, 0);
    return n < EACH ? n : EACH;
}

int memory_before(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (int i = 0; i < count(k); i++)
            before[k][i] = stats_of(k, i).in_use;
    return 0;
}

static bool all_given_back(int kind, int index)
{
    kiln_memory_stats now = stats_of(kind, index);
    if (now.in_use != before[kind][index]) {
        fprintf(stderr, "%s:%d: %llu bytes were in use before the test, %llu are after it\n", kinds[kind], index,
                (unsigned long long)before[kind][index], (unsigned long long)now.in_use);
        return false;
    }
    if (!now.cached)
        return true;
    kiln_memory_trim(kiln_device_at(kinds[kind], index));
    now = stats_of(kind, index);
    if (now.cached)
        fprintf(stderr, "%s:%d: %llu bytes stay with the pool when it is trimmed\n", kinds[kind], index,
                (unsigned long long)now.cached);
    return !now.cached;
}

int memory_after(void **state)
{
    (void)state;
    bool good = true;
    kiln_step {
    } /* what a scope has left unread is run off */
    for (int k = 0; k < KINDS; k++)
        for (int i = 0; i < count(k); i++)
            good &= all_given_back(k, i);
    return !good;
}
