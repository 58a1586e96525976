/* What a machine shows of an NVIDIA driver from outside: the files through which its kernel module is reached. */
#include <stdio.h>
#include <unistd.h>
#include "device/cuda/discover/driver.h"

/* Those every process opens; beside them there is one for each GPU. */
static const char *const ways_in[] = {"/dev/nvidiactl", "/dev/nvidia-uvm"};
static const char *const of_containers[] = {"/.dockerenv", "/run/.containerenv", "/.singularity.d"};

static bool may_open(const char *path)
{
    return access(path, R_OK | W_OK) == 0;
}

/* A GPU's file that may not be opened; where there is none at all, the one that should be first. */
static void look_at_gpus(kiln_cuda_signs *s)
{
    enum { MOST = 64 };
    static char path[32];
    int n = 0;
    for (int i = 0; i < MOST && !s->forbidden; i++) {
        snprintf(path, sizeof path, "/dev/nvidia%d", i);
        if (access(path, F_OK) != 0)
            continue;
        n++;
        if (!may_open(path))
            s->forbidden = path;
    }
    if (!n && !s->missing && !s->forbidden)
        s->missing = "/dev/nvidia0";
}

void kiln_cuda_look_around(kiln_cuda_signs *s)
{
    for (size_t i = 0; i < sizeof of_containers / sizeof *of_containers; i++)
        s->container |= access(of_containers[i], F_OK) == 0;
    s->module = access("/proc/driver/nvidia/version", F_OK) == 0;
    for (size_t i = 0; i < sizeof ways_in / sizeof *ways_in; i++) {
        if (access(ways_in[i], F_OK) != 0)
            s->missing = s->missing ? s->missing : ways_in[i];
        else if (!may_open(ways_in[i]))
            s->forbidden = s->forbidden ? s->forbidden : ways_in[i];
    }
    look_at_gpus(s);
    if (access("/dev/dxg", F_OK) == 0) /* Linux inside Windows: the one way in there */
        s->missing = NULL;
}
