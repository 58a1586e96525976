/* What each thread has of its own: open scopes, recycled handles, the default device. Freed when the thread ends. */
#ifndef KILN_TENSOR_THREAD_H
#define KILN_TENSOR_THREAD_H

#include "tensor/tensor.h"

typedef struct kiln_scope_frame {
    int64_t first;     /* where its tensors start in `owned` */
    uint64_t failures; /* errors this thread had raised when it began */
    uint8_t kind;      /* kiln_scope_kind */
    bool open;         /* begun by kiln_step_begin: no braces end it */
} kiln_scope_frame;

struct kiln_trace;

typedef struct kiln_thread {
    uint32_t number;     /* of this thread, never given to another */
    kiln_tensor **owned; /* tensors of all open scopes, innermost last; NULL where one was kept or released */
    int64_t nowned, owned_capacity;
    kiln_scope_frame *frames;
    int64_t nframes, frames_capacity;
    int steps; /* open frames that are steps */
    kiln_device default_device;
    bool grad_enabled;
    uint8_t autocast;        /* kiln_dtype; KILN_F32: it is off */
    bool shapes_only;        /* inside kiln_shapes_only */
    int32_t region, regions; /* of kiln_recomputed: inside which, 0: none; how many there were */
    bool told_broken_step, told_broken_scope, told_broken_block, told_bare; /* notices that were given */
    const struct kiln_op *composing; /* the outermost composite operation being written: what the user called */
    uint32_t module;                 /* whose part is being written, interned (core/intern.h); 0: nobody's */
    kiln_tensor *free_tensors;       /* recycled handles that nobody has seen, linked through `extra` */
    kiln_tensor *oldest, *newest;    /* released handles, likewise, in the order they were released */
    int64_t nreleased;
    int64_t nbare;               /* live handles that were made outside any scope */
    kiln_storage *free_storages; /* recycled storages, linked through `address` */
    struct kiln_trace *trace;
    void (*trace_free)(struct kiln_trace *trace); /* set with `trace`, so that this layer need not know it */
} kiln_thread;

/* Recycled handles: one to be used for a new tensor, NULL if none may be yet; one that was released. */
kiln_tensor *kiln_thread_reuse(kiln_thread *th);
void kiln_thread_recycle(kiln_thread *th, kiln_tensor *t, bool seen);

/* Whether no other thread has a state: then nobody is at work, and what all threads share can be taken apart. */
bool kiln_thread_alone(void);

/* The calling thread's state, made on first use; NULL with an error when memory runs out. Asked for by every recorded
 * operation: the pointer is reached without a call. */
extern _Thread_local kiln_thread *kiln_thread_current __attribute__((tls_model("initial-exec")));
kiln_thread *kiln_thread_make(void);
static inline kiln_thread *kiln_thread_state(void)
{
    return kiln_thread_current ? kiln_thread_current : kiln_thread_make();
}

#endif
