/* YAML to a tree, event by event: libyaml knows the syntax; what a small file never needs is refused on the way, so
 * that no text can ask for more memory or time than its own size warrants. */
#include "io/yaml.h"

#include <string.h>
#include <yaml.h>

#include "core/fail.h"

enum { DEPTH = 32, KEYS = 64 }; /* nested lists and mappings; entries of one mapping */

typedef struct reader {
    yaml_parser_t parser;
    kiln_arena *arena;
    const char *name, *who;
    kiln_yaml *root;
    kiln_yaml *open[DEPTH]; /* lists and mappings that have not ended */
    const char *key[DEPTH]; /* of a mapping: the key whose value comes next */
    int key_line[DEPTH];
    int depth;
    bool done;
} reader;

static bool bad(const reader *r, size_t line, const char *what)
{
    return kiln_fail(KILN_E_FORMAT, r->who, "%s:%zu: %s", r->name, line + 1, what);
}

/* Puts a node where it belongs: the root, a list's next item, a mapping's next key or value. */
static bool place(reader *r, kiln_yaml *node)
{
    size_t line = (size_t)node->line - 1;
    if (r->depth == 0) {
        if (r->root)
            return bad(r, line, "only one document is expected");
        r->root = node;
        return true;
    }
    int top = r->depth - 1;
    kiln_yaml *parent = r->open[top];
    if (parent->kind == KILN_YAML_MAP && !r->key[top]) {
        if (node->kind != KILN_YAML_SCALAR)
            return bad(r, line, "a key must be a word");
        for (kiln_yaml *other = parent->first; other; other = other->next)
            if (!strcmp(other->key, node->text))
                return kiln_fail(KILN_E_FORMAT, r->who, "%s:%d: '%.60s' is there twice; the first is in line %d",
                                 r->name, node->line, node->text, other->line);
        r->key[top] = node->text;
        r->key_line[top] = node->line;
        return true;
    }
    if (parent->kind == KILN_YAML_MAP) {
        node->key = r->key[top];
        node->line = r->key_line[top]; /* an error is easier to find at the key */
        r->key[top] = NULL;
        if (parent->count == KEYS)
            return bad(r, line, "too many entries in one mapping");
    }
    if (parent->last)
        parent->last->next = node;
    else
        parent->first = node;
    parent->last = node;
    parent->count++;
    return true;
}

static kiln_yaml *new_node(reader *r, kiln_yaml_kind kind, const yaml_event_t *event)
{
    kiln_yaml *node = KILN_ARENA_NEW(r->arena, kiln_yaml, 1);
    if (node) {
        node->kind = kind;
        node->line = (int)event->start_mark.line + 1;
        node->text = "";
    }
    return node;
}

static bool scalar(reader *r, const yaml_event_t *event)
{
    const char *value = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    if (memchr(value, '\0', length))
        return bad(r, event->start_mark.line, "a text holds a zero byte");
    kiln_yaml *node = new_node(r, KILN_YAML_SCALAR, event);
    char *copy = node ? kiln_arena_take(r->arena, length + 1, 1) : NULL;
    if (!copy)
        return false;
    memcpy(copy, value, length);
    node->text = copy;
    return place(r, node);
}

static bool begin(reader *r, kiln_yaml_kind kind, const yaml_event_t *event)
{
    if (r->depth == DEPTH)
        return bad(r, event->start_mark.line, "lists and mappings are nested too deeply");
    kiln_yaml *node = new_node(r, kind, event);
    if (!node || !place(r, node))
        return false;
    r->key[r->depth] = NULL;
    r->open[r->depth++] = node;
    return true;
}

static bool take(reader *r, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_STREAM_END_EVENT: r->done = true; return true;
    case YAML_ALIAS_EVENT: return bad(r, event->start_mark.line, "aliases (*name) are not supported here");
    case YAML_SCALAR_EVENT: return scalar(r, event);
    case YAML_SEQUENCE_START_EVENT: return begin(r, KILN_YAML_LIST, event);
    case YAML_MAPPING_START_EVENT: return begin(r, KILN_YAML_MAP, event);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT: r->depth--; return true;
    default: return true;
    }
}

static bool syntax_error(const reader *r)
{
    const yaml_parser_t *p = &r->parser;
    if (p->error == YAML_MEMORY_ERROR)
        return kiln_fail(KILN_E_MEMORY, r->who, "%s: memory does not suffice to read it", r->name);
    if (p->error == YAML_READER_ERROR)
        return kiln_fail(KILN_E_FORMAT, r->who, "%s: byte %zu: %s", r->name, p->problem_offset,
                         p->problem ? p->problem : "this is not a text");
    kiln_fail(KILN_E_FORMAT, r->who, "%s:%zu: %s%s%s", r->name, p->problem_mark.line + 1,
              p->problem ? p->problem : "this is not YAML", p->context ? ", " : "", p->context ? p->context : "");
    if (p->problem && strstr(p->problem, "cannot start any token"))
        kiln_hint("YAML is indented with blanks: a tab cannot stand there, nor can @ and `");
    return false;
}

kiln_yaml *kiln_yaml_parse(kiln_arena *arena, const char *text, size_t bytes, const char *name, const char *who)
{
    reader r = {.arena = arena, .name = name, .who = who};
    if (!yaml_parser_initialize(&r.parser))
        return kiln_fail(KILN_E_MEMORY, who, "%s: memory does not suffice to read it", name);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, bytes);
    bool ok = true;
    while (ok && !r.done) {
        yaml_event_t event;
        ok = yaml_parser_parse(&r.parser, &event) || syntax_error(&r);
        if (ok) {
            ok = take(&r, &event);
            yaml_event_delete(&event);
        }
    }
    yaml_parser_delete(&r.parser);
    if (ok && !r.root)
        return kiln_fail(KILN_E_FORMAT, who, "%s: the file is empty", name);
    return ok ? r.root : NULL;
}

kiln_yaml *kiln_yaml_get(const kiln_yaml *map, const char *key)
{
    kiln_yaml *value = map && map->kind == KILN_YAML_MAP ? map->first : NULL;
    while (value && strcmp(value->key, key) != 0)
        value = value->next;
    return value;
}
