/* What a tensor handle holds. A handle is a window (shape, strides, offset) onto a storage; the storage has memory once
 * its value was computed, and belongs to a value of the thread's trace before that. */
#ifndef KILN_TENSOR_TENSOR_H
#define KILN_TENSOR_TENSOR_H

#include <stdatomic.h>
#include "kiln/grad.h"
#include "core/export.h"

/* An address on a device. The host may dereference it on the CPU device only. */
typedef uint64_t kiln_address;

typedef struct kiln_block { /* a piece of a device's memory */
    kiln_address address;
    size_t bytes; /* what counts as in use: the size asked for, rounded up */
    size_t size;  /* what the device gave; at least bytes */
} kiln_block;

/* What plans list memory under. */
typedef enum kiln_role {
    KILN_ROLE_DATA,    /* batches and other tensors */
    KILN_ROLE_DATASET, /* what batches are taken from */
    KILN_ROLE_PARAMETER,
    KILN_ROLE_GRADIENT,
    KILN_ROLE_OPTIMIZER,
    KILN_ROLE_ACTIVATION,
    KILN_ROLE_WORKSPACE,
    KILN_ROLES
} kiln_role;

/* A run on a device that works on while the host goes on. Results remember the run that makes them: if it fails, they
 * have memory, but no value. */
typedef struct kiln_run {
    atomic_int refs;
    atomic_bool failed; /* set by the device when the run was stopped or skipped */
    struct kiln_run *next;
} kiln_run;

/* The operation that makes a tensor wherever it is needed: see trace/thunk.h. */
typedef struct kiln_thunk kiln_thunk;
void kiln_thunk_free(kiln_thunk *r);

/* Gives a reference up; true if it was the last. Who holds the only one need not tell others that it is gone: nobody
 * can take another meanwhile. */
static inline bool kiln_unref(atomic_int *refs)
{
    return atomic_load_explicit(refs, memory_order_acquire) == 1 ||
           atomic_fetch_sub_explicit(refs, 1, memory_order_acq_rel) == 1;
}

typedef struct kiln_storage {
    atomic_int refs;
    int32_t trace_refs; /* how many of refs the trace holds while the value is pending */
    kiln_device device;
    atomic_uint version;        /* counts assignments recorded into it, so that other windows notice */
    atomic_uint memory_version; /* the version that its memory holds. Other threads may look at both */
    bool has_memory;            /* false while the value is pending */
    bool shape_only;            /* it counts as having memory, but has none: see trace/shapes.h */
    atomic_bool shared;         /* threads other than its maker use it: see tensor/share.h */
    int8_t role;                /* kiln_role */
    uint32_t maker;             /* the number of the thread that made it */
    atomic_uint writer;         /* of the one that has assigned to its memory, until that has run; 0: none */
    size_t bytes;
    kiln_address address; /* of the memory, where has_memory; the next one in a list of recycled storages */
    kiln_block block;
    kiln_run *run;     /* what computes it, on devices that run on; a reference. NULL: its value is there */
    kiln_thunk *thunk; /* not NULL: it never gets memory, but is made anew by whoever reads it. Owned */
} kiln_storage;

typedef struct kiln_tensor_extra { /* what few tensors have: parameters, named and hooked ones */
    kiln_tensor *grad;
    kiln_hook hook;
    void *hook_context;
    char name[96];
} kiln_tensor_extra;

extern atomic_int kiln_hooks; /* tensors that have one */

/* What has become of a gradient, so that one that should have been zeroed is noticed. */
typedef enum kiln_spent { KILN_UNSPENT, KILN_SPENT /* an optimizer has used it */, KILN_SPENT_AND_ADDED_TO } kiln_spent;

/* What becomes of a handle at the end of a scope of the library's own. */
typedef enum kiln_goes_up {
    KILN_STAYS_BEHIND,   /* it is released: nobody else has seen it */
    KILN_GOES_UP,        /* a result: to the enclosing scope */
    KILN_GOES_TO_PROGRAM /* the program has seen it: to the innermost scope of the program's */
} kiln_goes_up;

/* The fields that every operation looks at are one line of the cache, shapes and strides of few dims two more. */
struct kiln_tensor {
    atomic_int refs;
    uint8_t dtype, ndim;
    bool alive;         /* its owner has it: a scope, a module, the program. Others may hold references beyond that */
    bool requires_grad; /* wants a gradient, or was computed from one that does */
    bool leaf;          /* no operation made it: a gradient ends here */
    bool detached;      /* what is assigned to its memory through other handles brings it no gradient */
    uint8_t spent;      /* kiln_spent: of gradients */
    bool bare;          /* it was made outside any scope */
    uint8_t goes_up;    /* kiln_goes_up: what becomes of it when its scope, an inner one, ends */
    kiln_device device;
    int32_t scope;               /* its place in the list of the scope that owns it, counted from 1; 0: none */
    int32_t value;               /* its value in the trace of `epoch` */
    uint32_t version;            /* the storage's version that value stands for */
    atomic_uint_least64_t epoch; /* which trace of which thread; epochs are never reused. Other threads may look */
    kiln_storage *storage;
    kiln_tensor_extra *extra;
    int64_t offset; /* in elements */
    int64_t shape[KILN_MAX_DIMS];
    int64_t stride[KILN_MAX_DIMS]; /* in elements */
};

/* A handle that its owner has released is not used for another tensor before that many others were made (the next one
 * in a list of such handles is in `extra`): until then its use is recognised. */
enum { KILN_HANDLES_APART = 1024 };

/* False with an error if the handle was released: every public call that is given one looks. */
bool kiln_tensor_fail_released(const char *who);
static inline bool kiln_tensor_usable(const kiln_tensor *t, const char *who)
{
    return t->alive || kiln_tensor_fail_released(who);
}

/* The same for a call that NULL is an error for, too; 1 is its first operand. */
bool kiln_tensor_given(const kiln_tensor *t, const char *who, int operand);

/* Gives up what the caller owns, a handle that no user has seen: it can be used again at once. */
void kiln_tensor_drop(kiln_tensor *t);

/* A new handle with one reference, in the current scope. Takes over the caller's reference to the storage (also when it
 * fails). */
kiln_tensor *kiln_tensor_make(kiln_storage *storage, kiln_dtype dtype, int ndim, const int64_t *shape,
                              const int64_t *stride, int64_t offset);
kiln_tensor *kiln_tensor_ref(kiln_tensor *t);
kiln_tensor_extra *kiln_tensor_extras(kiln_tensor *t); /* made on first use; NULL with an error */

/* Nobody's order depends on these: that one thread sees another's is seen to elsewhere. */
static inline void kiln_set_version(atomic_uint *version, uint32_t to)
{
    atomic_store_explicit(version, to, memory_order_relaxed);
}
static inline void kiln_set_epoch(kiln_tensor *t, uint64_t epoch)
{
    atomic_store_explicit(&t->epoch, epoch, memory_order_relaxed);
}

kiln_storage *kiln_storage_new(kiln_device device, size_t bytes); /* pending; one reference */
static inline void kiln_storage_ref(kiln_storage *s)
{
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
}
void kiln_storage_unref(kiln_storage *s);

kiln_run *kiln_run_new(void); /* one reference; NULL with an error */
KILN_PLUGIN_API void kiln_run_ref(kiln_run *run);
KILN_PLUGIN_API void kiln_run_unref(kiln_run *run); /* NULL is fine */

/* False if the storage's memory holds no value because the run that was to compute it failed. */
static inline bool kiln_storage_computed(const kiln_storage *s)
{
    return !s->run || !atomic_load_explicit(&s->run->failed, memory_order_acquire);
}

/* The accumulated gradient, also of a handle that its owner has released; NULL: none. On a device that runs on, a step
 * can turn out to have failed after it was left: its gradients count as never made. */
static inline kiln_tensor *kiln_tensor_grad(const kiln_tensor *t)
{
    kiln_tensor *grad = t->extra ? t->extra->grad : NULL;
    return grad && kiln_storage_computed(grad->storage) ? grad : NULL;
}

/* Geometry helpers. */
void kiln_dense_strides(int ndim, const int64_t *shape, int64_t *stride);
bool kiln_is_dense(int ndim, const int64_t *shape, const int64_t *stride);

/* True if t is the dense whole of its storage. */
bool kiln_tensor_is_whole(const kiln_tensor *t);

/* "net.0.weight" or "operand 2 of matmul": how messages call a tensor. Rotating per-thread buffers. */
const char *kiln_tensor_label(const kiln_tensor *t, const char *fallback);

#endif
