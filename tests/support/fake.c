/* The CUDA plugin that computes nothing. */
#include "support/fake.h"
#include <dlfcn.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char plugin[PATH_MAX];

bool fake_cuda_wanted(void)
{
    static const char folder[] = "/fake/lowering", name[] = "/libkiln-cuda.so";
    ssize_t n = readlink("/proc/self/exe", plugin, sizeof plugin - sizeof folder - sizeof name);
    if (n < 0)
        return false;
    plugin[n] = '\0';
    strcpy(strrchr(plugin, '/'), folder);
    if (setenv("KILN_PLUGIN_PATH", plugin, 1) != 0)
        return false;
    strcat(plugin, name);
    return access(plugin, R_OK) == 0;
}

void (*fake_cuda_function(const char *name))(void)
{
    void *opened = dlopen(plugin, RTLD_NOW | RTLD_NOLOAD);
    void (*f)(void) = opened ? (void (*)(void))(uintptr_t)dlsym(opened, name) : NULL;
    if (opened)
        dlclose(opened);
    return f;
}
