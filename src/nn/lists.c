/* Lists of parameters and of the whole state. A module keeps every list it has handed out until it is freed; as long as
 * nothing was added to the tree the same list is handed out again. */
#include "nn/lists.h"
#include <fnmatch.h>
#include <string.h>
#include "core/alloc.h"
#include "core/arena.h"
#include "nn/module.h"

typedef struct filter {
    bool buffers;        /* parameters and buffers */
    const char *pattern; /* NULL: all */
    bool exclude;
} filter;

typedef struct kiln_list {
    struct kiln_list *next;
    filter filter;
    int64_t changes; /* of the module, when the list was made */
    kiln_params params;
    kiln_arena arena; /* all that the list points to */
} kiln_list;

void kiln_lists_free(kiln_module *m)
{
    for (kiln_list *l = m->lists, *next; l; l = next) {
        next = l->next;
        kiln_arena_free(&l->arena);
        kiln_free(l);
    }
}

typedef struct builder {
    kiln_list *list;
    kiln_tensor **tensors;
    const char **names;
    int64_t count;
    const kiln_module *top;
} builder;

static size_t path_length(const kiln_module *top, const kiln_module *m)
{
    return m == top ? 0 : path_length(top, m->parent) + strlen(m->name) + 1;
}

static char *write_path(const kiln_module *top, const kiln_module *m, char *at)
{
    if (m == top)
        return at;
    at = write_path(top, m->parent, at);
    size_t n = strlen(m->name);
    memcpy(at, m->name, n);
    at[n] = '.';
    return at + n + 1;
}

static bool add(builder *b, const kiln_module *m, const kiln_member *member)
{
    const filter *f = &b->list->filter;
    size_t name = strlen(member->name) + 1;
    char *path = KILN_ARENA_NEW(&b->list->arena, char, path_length(b->top, m) + name);
    if (!path)
        return false;
    memcpy(write_path(b->top, m, path), member->name, name);
    if (f->pattern && (fnmatch(f->pattern, path, 0) == 0) == f->exclude)
        return true;
    b->tensors[b->count] = member->tensor;
    b->names[b->count++] = path;
    return true;
}

/* PyTorch's order: a module's own parameters, its buffers, then its children. */
static bool collect(builder *b, const kiln_module *m)
{
    for (int buffers = 0; buffers <= (int)b->list->filter.buffers; buffers++)
        for (int64_t i = 0; i < m->nmembers; i++)
            if (m->members[i].buffer == (bool)buffers && !add(b, m, &m->members[i]))
                return false;
    for (int64_t i = 0; i < m->nchildren; i++)
        if (!collect(b, m->children[i]))
            return false;
    return true;
}

static int64_t count_members(const kiln_module *m)
{
    int64_t n = m->nmembers;
    for (int64_t i = 0; i < m->nchildren; i++)
        n += count_members(m->children[i]);
    return n;
}

static bool fill(kiln_list *list, const kiln_module *m, filter f)
{
    int64_t n = count_members(m);
    builder b = {.list = list, .top = m};
    list->changes = m->changes;
    list->filter = f;
    b.tensors = KILN_ARENA_NEW(&list->arena, kiln_tensor *, n);
    b.names = KILN_ARENA_NEW(&list->arena, const char *, n);
    if (f.pattern) {
        size_t bytes = strlen(f.pattern) + 1;
        char *pattern = KILN_ARENA_NEW(&list->arena, char, bytes);
        list->filter.pattern = pattern ? memcpy(pattern, f.pattern, bytes) : NULL;
    }
    if (!b.tensors || !b.names || (f.pattern && !list->filter.pattern) || !collect(&b, m))
        return false;
    list->params = (kiln_params){b.count, b.tensors, b.names};
    return true;
}

static bool same(const filter *a, const filter *b)
{
    return a->buffers == b->buffers && a->exclude == b->exclude && !a->pattern == !b->pattern &&
           (!a->pattern || !strcmp(a->pattern, b->pattern));
}

static kiln_params list_of(kiln_module *m, filter f, const char *who)
{
    if (!m) {
        if (kiln_ok())
            kiln_fail(KILN_E_ARGUMENT, who, "the module is NULL");
        return (kiln_params){0};
    }
    for (const kiln_list *l = m->lists; l; l = l->next)
        if (l->changes == m->changes && same(&l->filter, &f))
            return l->params;
    kiln_list *list = kiln_alloc_zero(1, sizeof *list);
    if (list && fill(list, m, f)) {
        list->next = m->lists;
        m->lists = list;
        return list->params;
    }
    if (list)
        kiln_arena_free(&list->arena);
    kiln_free(list);
    return (kiln_params){0};
}

kiln_params kiln_parameters(kiln_module *m)
{
    return list_of(m, (filter){0}, "parameters");
}

kiln_params kiln_parameters_matching(kiln_module *m, const char *pattern, bool exclude)
{
    if (pattern)
        return list_of(m, (filter){.pattern = pattern, .exclude = exclude}, "parameters_matching");
    if (kiln_ok())
        kiln_fail(KILN_E_ARGUMENT, "parameters_matching", "the pattern is NULL");
    return (kiln_params){0};
}

kiln_params kiln_state(kiln_module *m)
{
    return list_of(m, (filter){.buffers = true}, "state");
}

int64_t kiln_parameter_count(kiln_module *m)
{
    int64_t n = 0;
    if (!kiln_given(m, "parameter_count"))
        return 0;
    for (int64_t i = 0; i < m->nmembers; i++)
        n += m->members[i].buffer ? 0 : kiln_numel(m->members[i].tensor);
    for (int64_t i = 0; i < m->nchildren; i++)
        n += kiln_parameter_count(m->children[i]);
    return n;
}
