/* What a machine shows of an NVIDIA driver from outside: the files through which its kernel module is reached. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "device/cuda/driver.h"

/* Those every process opens; beside them there is one for each GPU. */
static const char *const ways_in[] = {"/dev/nvidiactl", "/dev/nvidia-uvm"};
static const char *const of_containers[] = {"/.dockerenv", "/run/.containerenv", "/.singularity.d"};

static bool may_open(const char *path)
{
    return access(path, R_OK | W_OK) == 0;
}

/* A GPU's file that may not be opened; where there are GPUs but none of their files, the one that should be first. */
static void look_at_gpus(kiln_cuda_signs *s)
{
    static char path[32];
    DIR *folder = opendir("/dev");
    int n = 0, number;
    char rest;
    for (const struct dirent *e; folder && (e = readdir(folder));) {
        if (sscanf(e->d_name, "nvidia%d%c", &number, &rest) != 1 || s->forbidden)
            continue;
        n++;
        snprintf(path, sizeof path, "/dev/nvidia%d", number);
        if (!may_open(path))
            s->forbidden = path;
    }
    if (folder)
        closedir(folder);
    if (!n && !s->missing)
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
