/* kiln devices: what there is to compute on, and why the rest is not there. */
#include <stdlib.h>
#include <string.h>
#include "cli/cli.h"

static const option options[] = {{0}};

static void say_device(const char *name, kiln_device device)
{
    kiln_device_info info;
    if (!kiln_device_describe(device, &info)) {
        printf("%-10s%s\n", name, kiln_last_error()->message);
        kiln_error_clear();
        return;
    }
    printf("%-10s%s\n", name, info.name);
    if (info.memory_total)
        printf("%-10smemory %s, %s free\n", "", show_size(info.memory_total), show_size(info.memory_free));
    if (device == KILN_CPU)
        printf("%-10s%d threads", "", kiln_get_num_threads());
    else
        printf("%-10s%d multiprocessors", "", info.threads);
    printf("%s%s\n", info.features[0] ? "; " : "", info.features);
}

static int devices(const arguments *a)
{
    static const char *const kinds[] = {"cpu", "cuda", "opencl"};
    (void)a;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char why[256] = "", name[32];
        int count = kiln_device_count(kinds[i], why, sizeof why);
        kiln_error_clear();
        if (count <= 0)
            printf("%-10snone: %s\n", kinds[i], why);
        for (int n = 0; n < count; n++) {
            snprintf(name, sizeof name, i == 0 ? "%s" : "%s:%d", kinds[i], n);
            say_device(name, kiln_device_parse(name));
        }
    }
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
