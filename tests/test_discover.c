/* Looking for devices: what is there, and each reason for which one is not, as `kiln devices` and `kiln train --device`
 * tell it. Fake drivers, first in the library path of a child process, stand for machines that are not here; they are
 * built where the CUDA plugin is, and what needs them is skipped where it is not. */
#include "support/command.h"
#include "kiln.h"
#ifdef KILN_TEST_CUDA
#include <cuda.h>
#include "device/cuda/discover/reason.h"
#endif

static char fakes[PATH_MAX]; /* the folder of fake libraries */

static int before(void **state)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return -1;
    self[n] = '\0';
    if (setenv("SELF", self, 1))
        return -1;
    *strrchr(self, '/') = '\0';
    if ((size_t)snprintf(fakes, sizeof fakes, "%s/fake", self) >= sizeof fakes)
        return -1;
    return setenv("FAKES", fakes, 1) || command_before(state) || unsetenv("CUDA_VISIBLE_DEVICES");
}

#define CUDA_ALONE "LD_LIBRARY_PATH=$FAKES/cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "
#define WITH_NVML  "LD_LIBRARY_PATH=$FAKES/cuda:$FAKES/nvml${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "

/* All of the words, in what the line said; lines it has broken are taken as one. */
static void says(int code, const char *line, const char *const *words)
{
    expect(code, NULL, line);
    static char said[1 << 16];
    size_t n = 0;
    for (const char *text = out, *next = err; text; text = next, next = NULL)
        for (; *text && n + 1 < sizeof said; text++)
            if (!((*text == '\n' || *text == ' ') && n && said[n - 1] == ' '))
                said[n++] = *text == '\n' ? ' ' : *text;
    said[n] = '\0';
    for (; *words; words++)
        if (!strstr(said, *words))
            fail_msg("%s\ndid not say \"%s\" but:\n%s%s", line, *words, out, err);
}
#define SAYS(code, line, ...) says(code, line, (const char *const[]){__VA_ARGS__, NULL})

/* ---- Plugins ---- */

static void test_no_plugin(void **state)
{
    (void)state;
    expect(0, NULL, "mkdir -p empty broken && echo 'no library' >broken/libkiln-opencl.so");
    SAYS(0, "KILN_PLUGIN_PATH=$FAKES/plugin $K devices", "opencl none: libkiln-opencl.so was made for another version");
    SAYS(69, "KILN_PLUGIN_PATH=$FAKES/plugin $K train --device opencl", "another version", "hint: kiln devices lists");
    if (shell("$K devices") == 0 && !strstr(out, "libkiln-opencl.so"))
        skip_because("there is an OpenCL plugin beside the library");
    SAYS(0, "KILN_PLUGIN_PATH=$PWD/empty $K devices", "opencl none: its plugin libkiln-opencl.so is not installed",
         "/empty and /");
    SAYS(0, "KILN_PLUGIN_PATH=$PWD/broken $K devices", "opencl none: ", "broken/libkiln-opencl.so");
}

/* ---- This machine ---- */

/* Whatever there is: the command says so and ends well; a device it does not list is refused. */
static void test_here(void **state)
{
    (void)state;
    SAYS(0, "$K devices", "cpu ", "threads", "memory", "cuda", "opencl", "kiln train uses ");
    bool none = strstr(out, "cuda      none: ") != NULL, chosen = strstr(out, "kiln train uses cpu,") != NULL;
    assert_true(!none || chosen);
    if (none)
        print_message("no real GPU to look at\n");
    SAYS(69, "$K train --device cuda:15", "there is no cuda", "hint: kiln devices lists");
}

/* ---- Fake drivers ---- */

#ifdef KILN_TEST_CUDA
#define skip_without_cuda()
#else
#define skip_without_cuda() skip_because("the CUDA plugin was not built")
#endif

static void test_listed(void **state)
{
    (void)state;
    skip_without_cuda();
    SAYS(0, WITH_NVML "$K devices", "cuda:0 Fake GPU 0 memory 8.0 GiB, 3.0 GiB free",
         "12 multiprocessors; compute capability 9.0; bus 0000:17:00.0", "NVIDIA driver 580.12.34 for CUDA 13.",
         ", CUDA 13.", "cuBLASLt", "cuDNN", "NVRTC", "NCCL", "kiln train uses cuda:0");
    SAYS(0, CUDA_ALONE "FAKE_CUDA_COUNT=2 FAKE_CUDA_CAPABILITY=80 $K devices", "cuda:1 Fake GPU 1",
         "compute capability 8.0; bus 0000:18:00.0");
    SAYS(69, CUDA_ALONE "$K train --device cuda:1", "there is no cuda:1: 1 cuda device is present (cuda:0)");
    SAYS(69, CUDA_ALONE "CUDA_VISIBLE_DEVICES=0 $K train --device cuda:1", "CUDA_VISIBLE_DEVICES is \"0\"");
    SAYS(0, CUDA_ALONE "FAKE_CUDA_MODE=3 $K devices", "9.0, for one process at a time", "kiln train uses cuda:0");
    SAYS(0, CUDA_ALONE "FAKE_CUDA_MPS=1 $K devices", "9.0, shared through MPS", "kiln train uses cuda:0");
}

/* Devices that are there but must not be used. */
static void test_refused(void **state)
{
    (void)state;
    skip_without_cuda();
    SAYS(0, CUDA_ALONE "FAKE_CUDA_CAPABILITY=75 $K devices",
         "cuda:0 Fake GPU 0 cannot be used: it has compute capability 7.5, Kiln's kernels need 8.0 or more",
         "kiln train uses cpu,");
    SAYS(69, CUDA_ALONE "FAKE_CUDA_CAPABILITY=75 $K train --device cuda",
         "cuda:0 cannot be used: it has compute capability 7.5", "hint: kiln devices lists");
    SAYS(0, CUDA_ALONE "FAKE_CUDA_COUNT=2 FAKE_CUDA_CAPABILITY=75,90 $K devices", "kiln train uses cuda:1,");
    SAYS(0, CUDA_ALONE "FAKE_CUDA_MODE=2 $K devices", "cannot be used: it is set to compute nothing (prohibited mode)");
    SAYS(69, CUDA_ALONE "FAKE_CUDA_MODE=2 $K train --device cuda:0", "prohibited mode");
}

/* In another process of this program, so that it sees the fake driver: CUDA that was asked for devices cannot be used
 * in a child. */
static int fork_and_look(void)
{
    if (kiln_device_count("cuda", NULL, 0) != 1)
        return 1;
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        kiln_device_parse("cuda:0");
        kiln_report(stdout);
        kiln_error_clear();
        printf("auto is %s\n", kiln_device_name(kiln_device_auto()));
        exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    return status;
}

static void test_fork(void **state)
{
    (void)state;
    skip_without_cuda();
    SAYS(0, CUDA_ALONE "$SELF --fork",
         "cuda:0 cannot be used: CUDA was asked for devices by the process that this one was forked from",
         "hint: fork before", "auto is cpu");
    SAYS(0, CUDA_ALONE "FAKE_CUDA_FORKS=1 timeout 60 $K devices", "cuda:0 Fake GPU 0"); /* the driver itself forks */
}

static void test_no_device(void **state)
{
    (void)state;
    skip_without_cuda();
    expect(0, NULL, "mkdir -p torn && echo 'no library' >torn/libcuda.so.1");
    SAYS(0, "LD_LIBRARY_PATH=$PWD/torn${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} $K devices",
         "cuda none: the NVIDIA driver's library cannot be opened: ", "libcuda.so.1", "kiln train uses cpu,");
    SAYS(0, CUDA_ALONE "FAKE_CUDA_VERSION=12080 $K devices",
         "cuda none: the NVIDIA driver is too old: it knows CUDA 12.8, Kiln needs 13.0");
    SAYS(0, CUDA_ALONE "FAKE_CUDA_COUNT=0 $K devices", "cuda none: the NVIDIA driver (CUDA 13.", "finds no device");
    SAYS(0, CUDA_ALONE "FAKE_CUDA_COUNT=0 CUDA_VISIBLE_DEVICES= $K devices",
         "CUDA_VISIBLE_DEVICES is \"\", which hides them all");
    SAYS(0, CUDA_ALONE "FAKE_CUDA_COUNT=0 CUDA_VISIBLE_DEVICES=7 $K devices",
         "CUDA_VISIBLE_DEVICES is \"7\", which begins with a device that is not there");
    SAYS(0, CUDA_ALONE "FAKE_CUDA_INIT=803 $K devices", "library and its kernel module are of different versions");
    SAYS(0, CUDA_ALONE "FAKE_CUDA_INIT=802 $K devices", "fabric manager");
    SAYS(0, CUDA_ALONE "FAKE_CUDA_INIT=804 $K devices", "compatibility package");
    SAYS(0, CUDA_ALONE "FAKE_CUDA_INIT=34 $K devices", "is the CUDA toolkit's stub");
    SAYS(0, CUDA_ALONE "FAKE_CUDA_INIT=999 $K devices",
         "cuda none: ", "kiln train uses cpu,"); /* why depends on here */
    SAYS(69, CUDA_ALONE "FAKE_CUDA_INIT=803 $K train --device cuda", "there is no cuda device: ", "different versions");
}

/* ---- Words for machines that cannot be faked from outside ---- */

#ifdef KILN_TEST_CUDA
static void reason(kiln_cuda_signs signs, const char *want)
{
    char why[480] = "", shortened[8];
    kiln_cuda_reason(&signs, why, sizeof why);
    if (!strstr(why, want))
        fail_msg("\"%s\" is not in: %s", want, why);
    kiln_cuda_reason(&signs, shortened, sizeof shortened); /* a short buffer is fine */
    assert_memory_equal(shortened, why, sizeof shortened - 1);
}
#define REASON(want, ...) reason((kiln_cuda_signs){.version = 13000, .needed = 13000, __VA_ARGS__}, want)
#endif

static void test_reasons(void **state)
{
    (void)state;
    skip_without_cuda();
#ifdef KILN_TEST_CUDA
    const char *absent = "libcuda.so.1: cannot open shared object file: No such file or directory";
    REASON("libcuda.so.1 is not where the system looks for libraries", .loader = absent);
    REASON("a container gets it from its host", .loader = absent, .container = true);
    REASON("cannot be opened: libcuda.so.1: wrong ELF class", .loader = "libcuda.so.1: wrong ELF class");
    REASON("it has no function cuDeviceGetPCIBusId", .lacks = "cuDeviceGetPCIBusId");
    REASON("kernel module is not loaded: /dev/nvidiactl is not there", .code = CUDA_ERROR_NO_DEVICE,
           .missing = "/dev/nvidiactl");
    REASON("kernel module is not loaded", .code = CUDA_ERROR_UNKNOWN, .code_text = "unknown error",
           .missing = "/dev/nvidiactl");
    REASON("this container was given no GPU: /dev/nvidiactl", .code = CUDA_ERROR_NO_DEVICE, .missing = "/dev/nvidiactl",
           .container = true, .module = true);
    REASON("is loaded, but /dev/nvidia-uvm is not there", .code = CUDA_ERROR_UNKNOWN, .code_text = "unknown error",
           .missing = "/dev/nvidia-uvm", .module = true);
    REASON("no permission to open /dev/nvidia0", .code = CUDA_ERROR_NO_DEVICE, .module = true,
           .forbidden = "/dev/nvidia0");
    REASON("is \"-1\", which hides them all", .code = CUDA_ERROR_NO_DEVICE, .module = true, .visible = "-1");
    REASON("is \"GPU-4a\", which begins with", .code = CUDA_ERROR_NO_DEVICE, .module = true, .visible = "GPU-4a");
    REASON("(CUDA 13.0) finds no device", .code = CUDA_ERROR_NO_DEVICE, .module = true);
    REASON("does not start: unknown error (error 999)", .code = CUDA_ERROR_UNKNOWN, .code_text = "unknown error",
           .module = true);
    REASON("MPS server", .code = CUDA_ERROR_MPS_SERVER_NOT_READY, .module = true);
    REASON("in use by others", .code = CUDA_ERROR_DEVICE_UNAVAILABLE, .module = true);
#endif
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--fork") == 0)
        return fork_and_look();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_here),    cmocka_unit_test(test_no_plugin), cmocka_unit_test(test_listed),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_fork),      cmocka_unit_test(test_no_device),
        cmocka_unit_test(test_reasons),
    };
    return cmocka_run_group_tests(tests, before, command_after);
}
