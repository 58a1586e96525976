/* The tree: making modules, adding to them, finding things by path, modes, freeing. */
#include "nn/module.h"
#include <string.h>
#include "core/alloc.h"
#include "core/intern.h"
#include "nn/lists.h"

enum { PATH = 512 }; /* bytes of a path in messages and names; longer ones are cut */

static char *copy_text(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = kiln_alloc(bytes, 1);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

/* ---- Making and freeing ---- */

kiln_module *kiln_module_make(const kiln_module_class *layer)
{
    kiln_module *m = kiln_alloc_zero(1, layer->size);
    if (!m)
        return NULL;
    m->layer = layer;
    m->kind = layer->kind;
    m->training = true;
    return m;
}

static void free_tree(kiln_module *m)
{
    for (int64_t i = m->nchildren; i-- > 0;)
        free_tree(m->children[i]);
    if (m->layer->free)
        m->layer->free(m);
    for (int64_t i = 0; i < m->nmembers; i++) {
        kiln_free(m->members[i].name);
        kiln_release(m->members[i].tensor);
    }
    kiln_lists_free(m);
    kiln_free(m->members);
    kiln_free(m->children);
    kiln_free(m->name);
    kiln_free(m);
}

void kiln_module_free(kiln_module *m)
{
    if (m && !m->parent) /* a child goes with its parent */
        free_tree(m);
}

kiln_module *kiln_module_built(kiln_module *m, bool ok)
{
    if (m && ok && kiln_eval())
        return m;
    kiln_module_free(m);
    return NULL;
}

bool kiln_module_at_least(const char *layer, const char *what, int64_t value, int64_t least)
{
    if (value >= least && value <= INT32_MAX)
        return true;
    return kiln_fail(KILN_E_ARGUMENT, layer, "%s is %lld; it must be at least %lld%s", what, (long long)value,
                     (long long)least, value > 0 ? " and below 2^31" : "");
}

/* ---- Names ---- */

/* Appends the path of m, with a dot behind it where it is not empty; returns where it ends. */
static size_t write_path(const kiln_module *m, char *buffer, size_t size)
{
    if (!m->parent) {
        buffer[0] = 0;
        return 0;
    }
    size_t at = write_path(m->parent, buffer, size);
    int n = snprintf(buffer + at, size - at, "%s.", m->name);
    return n < 0 || (size_t)n >= size - at ? size - 1 : at + (size_t)n;
}

void kiln_module_path(const kiln_module *m, char *buffer, size_t size)
{
    size_t n = write_path(m, buffer, size);
    if (n && buffer[n - 1] == '.')
        buffer[n - 1] = 0;
}

/* Messages call a tensor by its path from the root. False with an error when there is no room for a first name. */
static bool name_member(const kiln_module *m, const kiln_member *member)
{
    char path[PATH];
    size_t n = write_path(m, path, sizeof path);
    snprintf(path + n, sizeof path - n, "%s", member->name);
    return kiln_set_name(member->tensor, path) != NULL;
}

uint32_t kiln_module_label(kiln_module *m)
{
    uint32_t label = atomic_load_explicit(&m->path, memory_order_relaxed);
    if (label)
        return label;
    char path[PATH];
    kiln_module_path(m, path, sizeof path);
    label = kiln_intern(path);
    atomic_store_explicit(&m->path, label, memory_order_relaxed); /* another thread may do the same */
    return label;
}

static void name_tree(kiln_module *m)
{
    atomic_store_explicit(&m->path, 0, memory_order_relaxed); /* it has another one now */
    for (int64_t i = 0; i < m->nmembers; i++)
        name_member(m, &m->members[i]); /* it has a name already, so there is room */
    for (int64_t i = 0; i < m->nchildren; i++)
        name_tree(m->children[i]);
}

static kiln_module *find_child(const kiln_module *m, const char *name, size_t length)
{
    for (int64_t i = 0; i < m->nchildren; i++)
        if (strlen(m->children[i]->name) == length && !memcmp(m->children[i]->name, name, length))
            return m->children[i];
    return NULL;
}

static kiln_tensor *find_member(const kiln_module *m, const char *name)
{
    for (int64_t i = 0; i < m->nmembers; i++)
        if (!strcmp(m->members[i].name, name))
            return m->members[i].tensor;
    return NULL;
}

static bool check_name(const kiln_module *m, const char *name)
{
    if (!name || !*name || strchr(name, '.')) {
        kiln_fail(KILN_E_ARGUMENT, "module_add", "\"%s\" is no name for a part of a %s", name ? name : "", m->kind);
        return kiln_hint("a name has at least one character and no dots: dots separate names in a path");
    }
    if (find_child(m, name, strlen(name)) || find_member(m, name))
        return kiln_fail(KILN_E_ARGUMENT, "module_add", "the %s has a \"%s\" already", m->kind, name);
    return true;
}

/* ---- Adding ---- */

static void note_change(kiln_module *m)
{
    for (; m; m = m->parent)
        m->changes++;
}

static const kiln_module *root_of(const kiln_module *m)
{
    while (m->parent)
        m = m->parent;
    return m;
}

static bool adopt(kiln_module *parent, const char *name, kiln_module *child)
{
    if (!check_name(parent, name) || !KILN_GROW(parent->children, parent->children_capacity, parent->nchildren + 1) ||
        !(child->name = copy_text(name)))
        return false;
    child->parent = parent;
    parent->children[parent->nchildren++] = child;
    name_tree(child);
    note_change(parent);
    return true;
}

kiln_module *kiln_module_add(kiln_module *parent, const char *name, kiln_module *child)
{
    if (!parent || !child) {
        if (kiln_ok())
            kiln_fail(KILN_E_ARGUMENT, "module_add", "the %s is NULL", parent ? "child" : "parent");
        kiln_module_free(child);
        return NULL;
    }
    if (child->parent || root_of(parent) == child)
        return kiln_fail(KILN_E_ARGUMENT, "module_add", "the %s to be added as \"%s\" %s", child->kind,
                         name ? name : "", child->parent ? "has a parent already" : "contains its own parent");
    if (adopt(parent, name, child))
        return child;
    kiln_module_free(child);
    return NULL;
}

static bool holds_tensor(const kiln_module *m, const kiln_tensor *t)
{
    for (int64_t i = 0; i < m->nmembers; i++)
        if (m->members[i].tensor == t)
            return true;
    for (int64_t i = 0; i < m->nchildren; i++)
        if (holds_tensor(m->children[i], t))
            return true;
    return false;
}

static bool add_member(kiln_module *m, const char *name, kiln_tensor *t, bool buffer)
{
    if (!check_name(m, name) || !KILN_GROW(m->members, m->members_capacity, m->nmembers + 1))
        return false;
    kiln_member member = {.name = copy_text(name), .tensor = t, .buffer = buffer};
    bool pending = !t->storage->has_memory || t->storage->version != t->storage->memory_version;
    /* Its value is computed, so that it does not depend on any step that may fail. */
    if (!member.name || !name_member(m, &member) || (pending && !kiln_eval()) || !kiln_requires_grad(t, !buffer)) {
        kiln_free(member.name);
        return false;
    }
    m->members[m->nmembers++] = member;
    note_change(m);
    return true;
}

static kiln_tensor *take_tensor(kiln_module *m, const char *name, kiln_tensor *t, bool buffer)
{
    if (!m || !t) {
        if (kiln_ok())
            kiln_fail(KILN_E_ARGUMENT, "module_add", "the %s is NULL", m ? "tensor" : "module");
        kiln_release(t);
        return NULL;
    }
    if (holds_tensor(root_of(m), t))
        return kiln_fail(KILN_E_ARGUMENT, "module_add", "the tensor to be added as \"%s\" is part of it already: %s",
                         name ? name : "", kiln_get_name(t));
    if (add_member(m, name, kiln_keep(t), buffer))
        return t;
    kiln_release(t);
    return NULL;
}

kiln_tensor *kiln_module_add_parameter(kiln_module *m, const char *name, kiln_tensor *t)
{
    return take_tensor(m, name, t, false);
}

kiln_tensor *kiln_module_add_buffer(kiln_module *m, const char *name, kiln_tensor *t)
{
    return take_tensor(m, name, t, true);
}

bool kiln_module_parameter(kiln_module *m, const char *name, int ndim, const int64_t *shape, kiln_tensor **slot)
{
    kiln_tensor *t = kiln_tensor_new(NULL, KILN_F32, ndim, shape, kiln_default_device());
    return t && (*slot = kiln_module_add_parameter(m, name, t));
}

bool kiln_module_buffer(kiln_module *m, const char *name, int ndim, const int64_t *shape, kiln_dtype dtype,
                        kiln_tensor **slot)
{
    kiln_tensor *t = kiln_tensor_new(NULL, dtype, ndim, shape, kiln_default_device());
    return t && (*slot = kiln_module_add_buffer(m, name, t));
}

/* ---- Finding ---- */

/* The module that the first `length` bytes of a path lead to. */
static kiln_module *walk_path(const kiln_module *m, const char *path, size_t length)
{
    while (m && length) {
        const char *dot = memchr(path, '.', length);
        size_t part = dot ? (size_t)(dot - path) : length, step = dot ? part + 1 : part;
        m = find_child(m, path, part);
        path += step;
        length -= step;
    }
    return (kiln_module *)m;
}

kiln_module *kiln_module_child(const kiln_module *m, const char *path)
{
    return kiln_given(m, "module_child") && path ? walk_path(m, path, strlen(path)) : NULL;
}

kiln_tensor *kiln_module_tensor(const kiln_module *m, const char *path)
{
    if (!kiln_given(m, "module_tensor") || !path)
        return NULL;
    const char *dot = strrchr(path, '.'), *name = dot ? dot + 1 : path;
    const kiln_module *owner = dot ? walk_path(m, path, (size_t)(dot - path)) : m;
    return owner ? find_member(owner, name) : NULL;
}

const char *kiln_module_kind(const kiln_module *m)
{
    return kiln_given(m, "module_kind") ? m->kind : "";
}

int kiln_module_children(const kiln_module *m)
{
    return kiln_given(m, "module_children") ? (int)m->nchildren : 0;
}

kiln_module *kiln_module_child_at(const kiln_module *m, int i, const char **name)
{
    bool there = kiln_given(m, "module_child_at") && i >= 0 && i < m->nchildren;
    if (name)
        *name = there ? m->children[i]->name : NULL;
    return there ? m->children[i] : NULL;
}

/* ---- Modes ---- */

void kiln_module_train(kiln_module *m, bool training)
{
    if (!kiln_given(m, "module_train"))
        return;
    m->training = training;
    for (int64_t i = 0; i < m->nchildren; i++)
        kiln_module_train(m->children[i], training);
}

bool kiln_module_training(const kiln_module *m)
{
    return kiln_given(m, "module_training") && kiln_module_trains(m);
}

bool kiln_module_set_recompute(kiln_module *m, bool recompute)
{
    if (!m)
        return kiln_fail_null("module_set_recompute", 1);
    m->recompute = recompute;
    return true;
}

bool kiln_module_recomputes(const kiln_module *m)
{
    return kiln_given(m, "module_recomputes") && m->recompute;
}

bool kiln_module_freeze(kiln_module *m, bool frozen)
{
    if (!m)
        return kiln_fail_null("module_freeze", 1);
    for (int64_t i = 0; i < m->nmembers; i++) {
        kiln_tensor *t = m->members[i].tensor;
        if (m->members[i].buffer)
            continue;
        if (frozen) /* so that no optimizer steps along an old one */
            kiln_zero_grad_of(t);
        if (!kiln_requires_grad(t, !frozen))
            return false;
    }
    for (int64_t i = 0; i < m->nchildren; i++)
        if (!kiln_module_freeze(m->children[i], frozen))
            return false;
    return true;
}
