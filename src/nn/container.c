/* Modules made of modules: Sequential, Residual, and those of one's own. */
#include <stdio.h>
#include <string.h>
#include "core/alloc.h"
#include "nn/module.h"

/* ---- Sequential ---- */

static kiln_tensor *sequence_forward(kiln_module *m, kiln_tensor *x)
{
    for (int64_t i = 0; x && i < m->nchildren; i++)
        x = kiln_forward(m->children[i], x);
    return x;
}

static const kiln_module_class sequence_layer = {"Sequential", sizeof(kiln_module), sequence_forward, NULL,
                                                 KILN_SCOPED};

kiln_module *kiln_nn_sequence(int n, kiln_module *const *children)
{
    bool ok = n >= 0 && (n == 0 || children);
    if (!ok)
        kiln_fail(KILN_E_ARGUMENT, "Sequential", "%d children, and no list of them", n);
    for (int i = 0; ok && i < n; i++) {
        ok = children[i] != NULL;
        if (!ok && kiln_ok())
            kiln_fail(KILN_E_ARGUMENT, "Sequential", "child %d is NULL", i);
    }
    kiln_module *m = ok ? kiln_module_make(&sequence_layer) : NULL;
    int added = 0;
    for (; m && ok && added < n; added++) {
        char name[16];
        snprintf(name, sizeof name, "%d", added);
        ok = kiln_module_add(m, name, children[added]) != NULL;
    }
    if (m && ok)
        return m;
    kiln_module_free(m);
    for (; children && added < n; added++)
        kiln_module_free(children[added]);
    return NULL;
}

/* ---- Residual ---- */

static kiln_tensor *residual_forward(kiln_module *m, kiln_tensor *x)
{
    kiln_tensor *y = kiln_forward(m->children[0], x);
    kiln_tensor *beside = y && m->nchildren > 1 ? kiln_forward(m->children[1], x) : x;
    return y && beside ? kiln_add(y, beside) : NULL;
}

static const kiln_module_class residual_layer = {"Residual", sizeof(kiln_module), residual_forward, NULL, KILN_SCOPED};

kiln_module *kiln_nn_residual(kiln_module *body, kiln_module *shortcut)
{
    kiln_module *m = NULL;
    if (!body && kiln_ok())
        kiln_fail(KILN_E_ARGUMENT, "Residual", "the body is NULL");
    /* With an error pending, a missing shortcut is one that could not be made, not one that was left out. */
    if (body && (shortcut || kiln_ok()))
        m = kiln_module_make(&residual_layer);
    if (!m) {
        kiln_module_free(body);
        kiln_module_free(shortcut);
        return NULL;
    }
    bool ok = kiln_module_add(m, "body", body) != NULL;
    if (!ok)
        kiln_module_free(shortcut);
    else if (shortcut)
        ok = kiln_module_add(m, "shortcut", shortcut) != NULL;
    if (ok)
        return m;
    kiln_module_free(m);
    return NULL;
}

/* ---- Modules of one's own ---- */

typedef struct own {
    kiln_module base;
    kiln_forward_fn forward; /* NULL: it only groups others */
    void *context;
    void (*free_context)(void *context);
    char kind[];
} own;

static kiln_tensor *own_forward(kiln_module *m, kiln_tensor *x)
{
    own *o = (own *)m;
    if (!o->forward)
        return kiln_fail(KILN_E_STATE, "forward", "it was made without a forward function: it only groups others");
    return o->forward(m, x, o->context);
}

static void own_free(kiln_module *m)
{
    own *o = (own *)m;
    if (o->free_context)
        o->free_context(o->context);
}

static const kiln_module_class own_layer = {"Module", sizeof(own), own_forward, own_free, KILN_GUEST};

kiln_module *kiln_module_new(const char *kind, kiln_forward_fn forward, void *context,
                             void (*free_context)(void *context))
{
    const char *name = kind && *kind ? kind : own_layer.kind;
    size_t bytes = strlen(name) + 1;
    own *o = kiln_alloc_zero(1, sizeof *o + bytes);
    if (!o) {
        if (free_context)
            free_context(context);
        return NULL;
    }
    memcpy(o->kind, name, bytes);
    o->base.layer = &own_layer;
    o->base.kind = o->kind;
    o->base.training = true;
    o->forward = forward;
    o->context = context;
    o->free_context = free_context;
    return &o->base;
}

static bool add_outline(const kiln_module *m, uint64_t *outline)
{
    const uint64_t parts[] = {(uint64_t)(uintptr_t)m, (uint64_t)m->training + 2 * (uint64_t)m->recompute,
                              (uint64_t)m->nchildren, (uint64_t)m->nmembers};
    for (int i = 0; i < 4; i++)
        *outline = (*outline ^ parts[i]) * 0x9e3779b97f4a7c15u;
    bool known = m->layer != &own_layer;
    for (int64_t i = 0; known && i < m->nchildren; i++)
        known = add_outline(m->children[i], outline);
    return known;
}

bool kiln_module_outline(const kiln_module *m, uint64_t *outline)
{
    *outline = 0;
    return add_outline(m, outline);
}

void *kiln_module_context(const kiln_module *m)
{
    return kiln_given(m, "module_context") && m->layer == &own_layer ? ((const own *)m)->context : NULL;
}
