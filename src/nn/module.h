/* What a module is inside: a node of a tree with tensors of its own, a record that says what kind of layer it is, and
 * the lists it has handed out. A layer's struct begins with a kiln_module and goes on with its tensors and options. */
#ifndef KILN_NN_MODULE_H
#define KILN_NN_MODULE_H

#include <stdatomic.h>
#include "core/fail.h"
#include "kiln/nn.h"
#include "tensor/scope.h"

/* What a layer's forward function makes beside its result. */
typedef enum kiln_layer_way {
    KILN_DIRECT, /* nothing */
    KILN_SCOPED, /* tensors on the way that nobody is to see */
    KILN_GUEST   /* whatever a program's function makes */
} kiln_layer_way;

typedef struct kiln_module_class { /* a kind of layer; static, shared by all modules of that kind */
    const char *kind;              /* "Linear" */
    size_t size;                   /* of its struct */
    kiln_tensor *(*forward)(kiln_module *m, kiln_tensor *x);
    void (*free)(kiln_module *m); /* what the struct holds besides tensors and children; may be NULL */
    int way;                      /* kiln_layer_way */
} kiln_module_class;

typedef struct kiln_member {
    char *name;
    kiln_tensor *tensor; /* a reference */
    bool buffer;
} kiln_member;

struct kiln_list;

struct kiln_module {
    const kiln_module_class *layer;
    const char *kind; /* the layer's, or the name of a module of one's own */
    bool training;
    bool recompute;      /* what it computes is computed again for the backward pass */
    kiln_module *parent; /* NULL: a root */
    char *name;          /* what the parent calls it */
    atomic_uint path;    /* from the root, interned when it is first asked for; 0: not yet */
    kiln_module **children;
    int64_t nchildren, children_capacity;
    kiln_member *members;
    int64_t nmembers, members_capacity;
    int64_t changes;         /* counts what was added to the tree below: older lists are not handed out any more */
    struct kiln_list *lists; /* all that were handed out */
};

/* ---- Making layers ---- */

/* A module of that kind, all zero behind its head. NULL with an error. */
kiln_module *kiln_module_make(const kiln_module_class *layer);

/* Adds a parameter (or buffer) of zeros on the default device; *slot receives it. False with an error. */
bool kiln_module_parameter(kiln_module *m, const char *name, int ndim, const int64_t *shape, kiln_tensor **slot);
bool kiln_module_buffer(kiln_module *m, const char *name, int ndim, const int64_t *shape, kiln_dtype dtype,
                        kiln_tensor **slot);

/* The end of a constructor: computes the initial values, so that no step that fails takes them along. With ok false, or
 * when that fails, the module is freed and NULL returned. */
kiln_module *kiln_module_built(kiln_module *m, bool ok);

/* False with an error in the layer's name unless the number is at least `least`, and small enough to compute with. */
bool kiln_module_at_least(const char *layer, const char *what, int64_t value, int64_t least);

/* A number that changes when parts are added to the tree or change their mode. False if a forward function in it is not
 * one of Kiln's own: what that does, nobody knows. */
bool kiln_module_outline(const kiln_module *m, uint64_t *outline);

/* "layer1.0.conv1" from the root; "" for a root. Cut where it is longer than the buffer. */
void kiln_module_path(const kiln_module *m, char *buffer, size_t size);

/* The same, interned (core/intern.h); 0 when there is no memory for it, which is no error. */
uint32_t kiln_module_label(kiln_module *m);

/* ---- Forward passes ---- */

/* While a module is only looked at (kiln_summary) each visit is reported here, and nothing trains. */
typedef struct kiln_watch {
    int64_t (*begin)(struct kiln_watch *w, kiln_module *m, kiln_tensor *x); /* a number for `end` */
    void (*end)(struct kiln_watch *w, int64_t number, kiln_tensor *y);
} kiln_watch;

typedef struct kiln_nn_state { /* of a thread */
    kiln_watch *watch;
    uint64_t explained; /* errors that were given the path of a module */
} kiln_nn_state;
extern _Thread_local kiln_nn_state kiln_nn __attribute__((tls_model("initial-exec")));

static inline bool kiln_module_trains(const kiln_module *m)
{
    return m->training && !kiln_nn.watch;
}

/* Around what a module does, for the entry points that are not kiln_forward: begin, then end with the result, which is
 * returned. An error in between gets the module's path. */
typedef struct kiln_visit {
    uint64_t explained;
    int64_t number;
    uint32_t outer; /* the module that was being written before */
    kiln_recompute_scope again;
    bool was_ok;
} kiln_visit;
kiln_visit kiln_visit_begin(kiln_module *m, kiln_tensor *x);
kiln_tensor *kiln_visit_end(kiln_module *m, kiln_visit *v, kiln_tensor *y);

#endif
