/* A program that is not linked with Kiln: it opens the library, uses it in a thread, and closes it before the thread
 * ends. For test_exit.c; the argument is the library's path. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct library {
    void *handle;
    void *(*tensor_new)(const void *data, int dtype, int ndim, const int64_t *shape, int32_t device);
    void *(*relu)(void *t);
    bool (*read)(void *t, void *out, size_t bytes);
    void (*release)(void *t);
    int32_t (*parse)(const char *name);
    const char *(*dtype_name)(int dtype);
} library;

enum { DTYPES = 16 };

static bool open_library(library *l, const char *path)
{
    l->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!l->handle) {
        fprintf(stderr, "%s\n", dlerror());
        return false;
    }
    *(void **)&l->tensor_new = dlsym(l->handle, "kiln_tensor_new");
    *(void **)&l->relu = dlsym(l->handle, "kiln_relu");
    *(void **)&l->read = dlsym(l->handle, "kiln_read");
    *(void **)&l->release = dlsym(l->handle, "kiln_release");
    *(void **)&l->parse = dlsym(l->handle, "kiln_device_parse");
    *(void **)&l->dtype_name = dlsym(l->handle, "kiln_dtype_name");
    return l->tensor_new && l->relu && l->read && l->release && l->parse && l->dtype_name;
}

static bool use(const library *l)
{
    float x[4] = {-1, 2, -3, 4}, y[4] = {0};
    int64_t shape[1] = {4};
    int f32 = 0;
    while (f32 < DTYPES && strcmp(l->dtype_name(f32), "f32") != 0)
        f32++;
    void *t = l->tensor_new(x, f32, 1, shape, 0), *r = l->relu(t);
    bool ok = l->read(r, y, sizeof y) && y[0] == 0 && y[3] == 4;
    l->parse("nonsense"); /* an error, which the thread keeps */
    l->release(t);
    l->release(r);
    return ok;
}

typedef struct meeting {
    library l;
    pthread_barrier_t used, closed;
    bool ok;
} meeting;

static void *use_and_wait(void *p)
{
    meeting *m = p;
    m->ok = use(&m->l);
    pthread_barrier_wait(&m->used);
    pthread_barrier_wait(&m->closed);
    return NULL; /* what the library keeps for the thread goes here */
}

int main(int argc, char **argv)
{
    for (int i = 0; i < 3; i++) {
        meeting m = {.ok = false};
        pthread_t thread;
        pthread_barrier_init(&m.used, NULL, 2);
        pthread_barrier_init(&m.closed, NULL, 2);
        if (argc != 2 || !open_library(&m.l, argv[1]) || pthread_create(&thread, NULL, use_and_wait, &m) != 0)
            return 1;
        pthread_barrier_wait(&m.used);
        dlclose(m.l.handle);
        pthread_barrier_wait(&m.closed);
        pthread_join(thread, NULL);
        if (!m.ok)
            return 2;
    }
    return 0;
}
