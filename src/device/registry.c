/* Devices by name: the CPU, which is built in, and plugins, which are looked for beside the library when asked about.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/fail.h"
#include "core/fork.h"
#include "core/parallel.h"
#include "core/sized.h"
#include "device/device.h"
#include "tensor/scope.h"

enum {
    KIND_CPU,
    KIND_CUDA,
    KIND_OPENCL,
    KIND_SIM,
    KINDS,
    MAX_INDEX = KILN_DEVICES_OF_A_KIND,
    WHY = 480,
    MOST_LIBRARIES = 16
};
_Static_assert((int)KINDS == (int)KILN_DEVICE_KINDS, "pools are made for so many");

typedef struct kind {
    const char *name;
    const kiln_device_table *table; /* NULL until found */
    bool looked;
    char why[WHY];                   /* there is no plugin */
    _Atomic(void *) open[MAX_INDEX]; /* once set, neither it nor `table` changes: read without the lock */
    bool forked[MAX_INDEX];          /* the process that this one was forked from has it open */
} kind;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kind kinds[KINDS] = {
    [KIND_CPU] = {.name = "cpu", .table = &kiln_cpu_table, .looked = true},
    [KIND_CUDA] = {.name = "cuda"},
    [KIND_OPENCL] = {.name = "opencl"},
    [KIND_SIM] = {.name = "sim"},
};

/* ---- Finding plugins ---- */

/* The folder this library was loaded from. */
static void own_folder(char *path, size_t size)
{
    Dl_info info;
    *path = '\0';
    if (dladdr((void *)(uintptr_t)&kiln_device_parse, &info) && info.dli_fname) {
        snprintf(path, size, "%s", info.dli_fname);
        char *slash = strrchr(path, '/');
        *(slash ? slash : path) = '\0';
        char *plain = realpath(path, NULL); /* without "..", for people */
        if (plain)
            snprintf(path, size, "%s", plain);
        free(plain);
    }
}

static void *open_plugin(kind *k, const char *folder)
{
    char path[512];
    snprintf(path, sizeof path, "%s%slibkiln-%s.so", folder, *folder ? "/" : "", k->name);
    if (access(path, F_OK) != 0)
        return NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        size_t said = strlen(k->why);
        snprintf(k->why + said, sizeof k->why - said, "%s%.220s", said ? "; " : "", dlerror());
    }
    return library;
}

/* KILN_PLUGIN_PATH first, then beside this library. */
static void look_for(kind *k)
{
    char folder[400];
    const char *path = getenv("KILN_PLUGIN_PATH");
    k->looked = true;
    own_folder(folder, sizeof folder);
    bool elsewhere = path && *path && strcmp(path, folder) != 0;
    void *library = elsewhere ? open_plugin(k, path) : NULL;
    if (!library)
        library = open_plugin(k, folder);
    if (!library) {
        if (!*k->why)
            snprintf(k->why, sizeof k->why, "its plugin libkiln-%s.so is not installed (looked in %.180s%s%.180s)",
                     k->name, elsewhere ? path : "", elsewhere ? " and " : "", folder);
        return;
    }
    kiln_device_plugin_fn plugin = (kiln_device_plugin_fn)(uintptr_t)dlsym(library, "kiln_device_plugin");
    const kiln_device_table *table = plugin ? plugin() : NULL;
    if (table && table->version == KILN_DEVICE_VERSION)
        k->table = table;
    else {
        snprintf(k->why, sizeof k->why, "libkiln-%s.so %s", k->name,
                 table ? "was made for another version of Kiln" : "is not a Kiln plugin");
        dlclose(library);
    }
}

static kind *kind_at(int i)
{
    if (i < 0 || i >= KINDS)
        return NULL;
    if (!kinds[i].looked)
        look_for(&kinds[i]);
    return &kinds[i];
}

static int kind_named(const char *name, size_t length)
{
    for (int i = 0; i < KINDS; i++)
        if (strlen(kinds[i].name) == length && strncmp(kinds[i].name, name, length) == 0)
            return i;
    return -1;
}

static int count_devices(kind *k, char *why, size_t size)
{
    if (size)
        *why = '\0';
    if (!k->table) {
        snprintf(why, size, "%s", k->why);
        return 0;
    }
    int n = k->table->count(why, size);
    return n > MAX_INDEX ? MAX_INDEX : n;
}

/* ---- Public ---- */

int kiln_device_count(const char *name, char *why, size_t size)
{
    char reason[WHY];
    int i = name ? kind_named(name, strlen(name)) : -1;
    if (i < 0) {
        if (why)
            snprintf(why, size, "there is no kind of device called \"%s\"", name ? name : "");
        return 0;
    }
    pthread_mutex_lock(&lock);
    int n = count_devices(kind_at(i), why ? why : reason, why ? size : sizeof reason);
    pthread_mutex_unlock(&lock);
    return n;
}

/* With the lock held. */
static bool usable(kind *k, int index, char *why, size_t size)
{
    if (!k->forked[index])
        return !k->table->usable || k->table->usable(index, why, size);
    snprintf(why, size, "it was opened by the process that this one was forked from, and a child cannot use it");
    return false;
}

/* The first device of a kind that can be used; KILN_NO_DEVICE: none. */
static kiln_device first_usable(int i)
{
    char why[WHY];
    kiln_device found = KILN_NO_DEVICE;
    pthread_mutex_lock(&lock);
    kind *k = kind_at(i);
    int n = count_devices(k, why, sizeof why);
    for (int d = 0; d < n && found == KILN_NO_DEVICE; d++)
        if (usable(k, d, why, sizeof why))
            found = i << 8 | d;
    pthread_mutex_unlock(&lock);
    return found;
}

kiln_device kiln_device_auto(void)
{
    static const int best_first[] = {KIND_CUDA, KIND_OPENCL};
    for (size_t i = 0; i < sizeof best_first / sizeof *best_first; i++) {
        kiln_device device = first_usable(best_first[i]);
        if (device != KILN_NO_DEVICE)
            return device;
    }
    return KILN_CPU;
}

static kiln_device fail_absent(const char *what, const char *text, int present, const char *why)
{
    if (present == 0)
        kiln_fail(KILN_E_DEVICE, "device", "there is no %s device: %s", what, why);
    else
        kiln_fail(KILN_E_DEVICE, "device", "there is no %s: %d %s device%s present (%s:0%s)%s%s", text, present, what,
                  present == 1 ? " is" : "s are", what, present == 1 ? "" : " and on", *why ? "; " : "", why);
    kiln_hint("ask for \"auto\" to take the best device present");
    return KILN_NO_DEVICE;
}

kiln_device kiln_device_at(const char *name, int index)
{
    char why[WHY] = "", text[64];
    int i = name ? kind_named(name, strlen(name)) : -1, n = kiln_device_count(name, why, sizeof why);
    snprintf(text, sizeof text, "%.40s:%d", name ? name : "", index);
    if (i < 0 || index < 0 || index >= n)
        return fail_absent(name ? name : "such", text, n, why);
    return (kiln_device)(i << 8 | index);
}

int kiln_device_libraries_(const char *name, kiln_device_library *list, int room, size_t size)
{
    kiln_device_library own[MOST_LIBRARIES];
    pthread_mutex_lock(&lock);
    kind *k = kind_at(name ? kind_named(name, strlen(name)) : -1);
    const kiln_device_table *table = k ? k->table : NULL;
    pthread_mutex_unlock(&lock);
    room = room < MOST_LIBRARIES ? room : MOST_LIBRARIES;
    int n = table && table->libraries && list && room > 0 ? table->libraries(own, room) : 0;
    for (int i = 0; i < n; i++)
        KILN_GIVE_SIZED((char *)list + (size_t)i * size, size, own[i]);
    return n;
}

/* Never a silent replacement: a device that must not be used is an error that says why. */
static bool may_be_used(kind *k, kiln_device device)
{
    char why[WHY] = "";
    if (usable(k, device & 255, why, sizeof why))
        return true;
    kiln_fail(KILN_E_DEVICE, "device", "%s cannot be used: %s", kiln_device_name(device), why);
    if (strstr(why, "forked from"))
        return kiln_hint("fork before the device is first used, or start another program (posix_spawn, exec)");
    return kiln_hint("ask for \"auto\" to take the best device present");
}

kiln_device kiln_device_parse(const char *text)
{
    char why[WHY] = "";
    if (!text || !*text) {
        kiln_fail(KILN_E_ARGUMENT, "device", "no device was named");
        return KILN_NO_DEVICE;
    }
    if (strcmp(text, "auto") == 0)
        return kiln_device_auto();
    size_t length = strcspn(text, ":");
    char *end = NULL;
    long index = text[length] ? strtol(text + length + 1, &end, 10) : 0;
    int i = kind_named(text, length);
    if (i < 0 || (text[length] && (end == text + length + 1 || *end || index < 0))) {
        kiln_fail(KILN_E_ARGUMENT, "device", "\"%s\" does not name a device", text);
        kiln_hint("devices are called cpu, cuda, cuda:1, opencl:0 or auto");
        return KILN_NO_DEVICE;
    }
    int n = kiln_device_count(kinds[i].name, why, sizeof why);
    if (index >= n)
        return fail_absent(kinds[i].name, text, n, why);
    kiln_device device = (kiln_device)(i << 8 | (int)index);
    pthread_mutex_lock(&lock);
    bool ok = may_be_used(&kinds[i], device);
    pthread_mutex_unlock(&lock);
    return ok ? device : KILN_NO_DEVICE;
}

const char *kiln_device_name(kiln_device device)
{
    if (device == KILN_CPU)
        return "cpu";
    if (device < 0 || device >> 8 >= KINDS)
        return "none";
    char *name = kiln_text();
    snprintf(name, KILN_TEXT, "%s:%d", kinds[device >> 8].name, device & 255);
    return name;
}

static bool exists(kiln_device device, kind **k)
{
    char why[WHY];
    *k = device >= 0 ? kind_at(device >> 8) : NULL;
    if (*k && (device & 255) < count_devices(*k, why, sizeof why))
        return true;
    return kiln_fail(KILN_E_DEVICE, "device", "device %d (%s) is not there", (int)device, kiln_device_name(device));
}

bool kiln_device_describe_(kiln_device device, kiln_device_info *info, size_t size)
{
    kind *k;
    kiln_device_info own = {0};
    pthread_mutex_lock(&lock);
    bool ok = exists(device, &k);
    if (ok && info) {
        ok = k->table->describe(device & 255, &own);
        if (ok && usable(k, device & 255, own.refused, sizeof own.refused))
            own.refused[0] = '\0';
        KILN_GIVE_SIZED(info, size, own);
    }
    pthread_mutex_unlock(&lock);
    return ok;
}

const kiln_device_table *kiln_device_opened(kiln_device device, void **dev)
{
    *dev = NULL;
    if (device == KILN_CPU)
        return &kiln_cpu_table;
    kind *k = device >= 0 && device >> 8 < KINDS && (device & 255) < MAX_INDEX ? &kinds[device >> 8] : NULL;
    *dev = k ? atomic_load_explicit(&k->open[device & 255], memory_order_acquire) : NULL;
    return *dev ? k->table : NULL;
}

const kiln_device_table *kiln_device_open(kiln_device device, void **dev)
{
    const kiln_device_table *table = kiln_device_opened(device, dev); /* the usual case takes no lock */
    if (table)
        return table;
    kind *k;
    pthread_mutex_lock(&lock);
    bool ok = exists(device, &k) && may_be_used(k, device);
    if (ok && !k->open[device & 255])
        k->open[device & 255] = k->table->open(device & 255);
    *dev = ok ? k->open[device & 255] : NULL;
    pthread_mutex_unlock(&lock);
    return *dev ? k->table : NULL;
}

bool kiln_device_wait(kiln_device device)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(device, &dev);
    return table && table->wait(dev);
}

int kiln_get_num_threads(void)
{
    return kiln_threads();
}

/* Simulated devices compute with these threads, and scratch memory of what they have under way is sized for them. */
static void wait_for_simulated(void)
{
    const kind *k = &kinds[KIND_SIM];
    for (int i = 0; i < MAX_INDEX; i++) {
        void *dev = atomic_load_explicit(&k->open[i], memory_order_acquire);
        if (dev)
            k->table->wait(dev);
    }
}

void kiln_set_num_threads(int threads)
{
    wait_for_simulated();
    kiln_threads_set(threads);
}

/* ---- The default device ---- */

kiln_device kiln_default_device(void)
{
    kiln_thread *th = kiln_thread_state();
    return th ? th->default_device : KILN_CPU;
}

bool kiln_set_default_device(kiln_device device)
{
    kiln_thread *th = kiln_thread_state();
    kind *k;
    pthread_mutex_lock(&lock);
    bool ok = th && exists(device, &k) && may_be_used(k, device);
    pthread_mutex_unlock(&lock);
    if (ok)
        th->default_device = device;
    return ok;
}

kiln_device_scope kiln_device_scope_enter(kiln_device device)
{
    kiln_device_scope scope = {.saved = kiln_default_device(), .active = true};
    kiln_thread *th = kiln_thread_state();
    if (!kiln_set_default_device(device) && th)
        th->default_device = KILN_NO_DEVICE; /* a device that was asked for is never replaced by another */
    return scope;
}

void kiln_device_scope_leave(kiln_device_scope *scope)
{
    kiln_thread *th = kiln_thread_state();
    if (scope->active && th)
        th->default_device = scope->saved;
    scope->active = false;
}

void kiln_device_scope_end(kiln_device_scope *scope)
{
    kiln_thread *th = kiln_thread_state();
    if (scope->inside && th && !th->told_broken_block) {
        th->told_broken_block = true;
        kiln_scope_broken("kiln_on_device", "the loop goes on");
    }
    kiln_device_scope_leave(scope);
}

/* ---- Beginning and ending ---- */

/* What is open stays the parent's: its threads, and what a driver keeps of it, are not here. */
static void leave_to_parent(void)
{
    for (int i = 0; i < KINDS; i++)
        for (int d = 0; d < MAX_INDEX; d++)
            if (kinds[i].open[d]) {
                kinds[i].open[d] = NULL;
                kinds[i].forked[d] = true;
            }
}

__attribute__((constructor)) static void load(void)
{
    kiln_fork_hold(KILN_FORK_DEVICES, &lock, leave_to_parent);
}

/* Everything that holds device memory is gone by now (destructors of a lower priority number run later). While other
 * threads are at work devices stay open: they go with the process. */
__attribute__((destructor(101))) static void unload(void)
{
    if (!kiln_thread_alone())
        return;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < KINDS; i++)
        for (int d = 0; d < MAX_INDEX; d++)
            if (kinds[i].open[d]) {
                kinds[i].table->close(kinds[i].open[d]);
                kinds[i].open[d] = NULL;
            }
    pthread_mutex_unlock(&lock);
}
