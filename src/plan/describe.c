/* A plan in words: kernels with their groups, memory by role, totals. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/alloc.h"
#include "core/intern.h"
#include "plan/plan.h"
#include "trace/trace.h"

/* ---- A kernel ---- */

const char *kiln_plan_module(const kiln_trace *tr, const kiln_kernel *k)
{
    return kiln_interned(tr->nodes[tr->first_node + k->number].module);
}

/* Appends a name and what stands before it, or, where there is no room, that more was to come; false then. */
static bool add_name(char *text, size_t size, const char *before, const char *name)
{
    static const char more[] = "…";
    size_t used = strlen(text), room = size - used;
    int n = snprintf(text + used, room, "%s%s", before, name);
    if (n >= 0 && (size_t)n + sizeof more <= room)
        return true;
    snprintf(text + used, room, "%s", room >= sizeof more ? more : "");
    return false;
}

/* Appends the operations of a group, a word before the first of them. */
static bool add_rows(char *text, size_t size, const char *before, const kiln_group *g)
{
    bool fits = true;
    for (int i = 0; fits && i < g->ninstrs; i++)
        fits = add_name(text, size, i ? "·" : before, kiln_pw_rows[g->instrs[i].row].name);
    return fits;
}

void kiln_kernel_title(const kiln_kernel *k, char *text, size_t size)
{
    const kiln_group *g = k->group, *lead = k->lead && k->lead->ninstrs ? k->lead : NULL;
    bool fits = true;
    text[0] = '\0';
    if (lead)
        fits = add_rows(text, size, "", lead);
    if (k->op && fits)
        fits = add_name(text, size, lead ? " into " : "", k->op->name);
    if (!k->op && !g->ninstrs)
        fits = add_name(text, size, "", "copy");
    if (g && fits)
        add_rows(text, size, !k->op ? "" : g->reduces && g->head < 0 ? " of " : " then ", g);
}

/* ---- A plan ---- */

typedef struct text {
    char *at;
    int64_t used, capacity;
    bool failed;
} text;

__attribute__((format(printf, 2, 3))) static void say(text *t, const char *format, ...)
{
    char piece[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(piece, sizeof piece, format, args);
    va_end(args);
    n = n < (int)sizeof piece ? n : (int)sizeof piece - 1;
    if (t->failed || !KILN_GROW(t->at, t->capacity, t->used + n + 1)) {
        t->failed = true;
        return;
    }
    memcpy(t->at + t->used, piece, (size_t)n + 1);
    t->used += n;
}

static void say_size(text *t, int64_t bytes)
{
    if (bytes < 10240)
        say(t, "%lld B", (long long)bytes);
    else if (bytes < 10 << 20)
        say(t, "%.1f KiB", (double)bytes / 1024);
    else
        say(t, "%.1f MiB", (double)bytes / (1 << 20));
}

static void say_operand(text *t, const kiln_plan *p, const kiln_operand *o)
{
    static const char *const places[] = {"slot", "output", "arena"};
    if (o->buffer < 0 && o->ndim) {
        say(t, "%s%s, made on the way", kiln_dtype_name((kiln_dtype)o->dtype), kiln_shape_text(o->ndim, o->shape));
        return;
    }
    if (o->buffer < 0) {
        say(t, "-");
        return;
    }
    const kiln_buffer *b = &p->buffers[o->buffer];
    say(t, "%s", kiln_dtype_name((kiln_dtype)o->dtype));
    say(t, "%s", kiln_shape_text(o->ndim, o->shape));
    long long begin = (long long)(o->offset * (int64_t)kiln_dtype_size((kiln_dtype)o->dtype));
    if (b->place == KILN_IN_ARENA)
        say(t, "@arena+%lld", (long long)b->offset + begin);
    else
        say(t, "@%s %d", places[b->place], b->index);
    if (b->place != KILN_IN_ARENA && begin)
        say(t, "+%lld", begin);
}

static void say_group(text *t, const kiln_plan *p, const kiln_group *g)
{
    for (int i = 0; i < g->nloads; i++) {
        say(t, "        r%d = load ", i);
        say_operand(t, p, &g->loads[i]);
        say(t, "\n");
    }
    if (g->head >= 0)
        say(t, "        r%d = its result\n", g->head);
    for (int i = 0; i < g->ninstrs; i++) {
        const kiln_instr *in = &g->instrs[i];
        say(t, "        r%d = %s", in->dst, kiln_pw_rows[in->row].name);
        for (int s = 0; s < 3 && in->src[s] >= 0; s++)
            say(t, "%s r%d", s ? "," : "", in->src[s]);
        say(t, "  (%s)\n", kiln_dtype_name((kiln_dtype)in->dtype));
    }
    for (int i = 0; i < g->nstores; i++) {
        say(t, "        store r%d to ", g->stores[i].src);
        say_operand(t, p, &g->stores[i].to);
        say(t, "\n");
    }
    for (int i = 0; i < g->ngifts; i++)
        say(t, "        in %d = r%d\n", g->gifts[i].operand, g->gifts[i].src);
    if (g->reduces) {
        say(t, "        reduce r%d to ", g->reduce_src);
        say_operand(t, p, &g->reduce_to);
        say(t, "\n");
    }
}

/* What the user wrote that it comes from, and in which module. */
static void say_source(text *t, const kiln_kernel *k, const char *module)
{
    say(t, "   of %s", k->origin->name);
    if (module)
        say(t, " in %s", *module ? module : "the root");
    say(t, "%s\n", k->back ? ", backward" : "");
}

static void say_kernel(text *t, const kiln_trace *tr, const kiln_plan *p, int64_t number)
{
    const kiln_kernel *k = &p->kernels[number];
    const kiln_group *g = k->group;
    char title[512];
    kiln_kernel_title(k, title, sizeof title);
    say(t, "%5lld  ", (long long)number);
    say(t, "%s", title);
    for (int i = g ? 1 : 0, n = 0; i < k->nout; i++) {
        say(t, "%s", n++ ? ", " : " -> ");
        say_operand(t, p, &k->out[i]);
    }
    if (g && !k->op)
        say(t, " over %lld elements", (long long)g->count);
    say(t, "   %lld FLOP, ", (long long)k->flops);
    say_size(t, k->bytes);
    say_source(t, k, kiln_plan_module(tr, k));
    if (k->lead)
        say_group(t, p, k->lead);
    for (int i = 0; i < k->nin; i++) {
        say(t, "        in %d: ", i);
        say_operand(t, p, &k->in[i]);
        say(t, "\n");
    }
    if (g)
        say_group(t, p, g);
}

char *kiln_plan_text(const kiln_trace *tr, const kiln_plan *p)
{
    static const char *const roles[KILN_ROLES] = {"data",      "data set",    "parameters", "gradients",
                                                  "optimizer", "activations", "workspace"};
    text t = {0};
    int64_t fused = 0;
    for (int64_t i = 0; i < p->nkernels; i++)
        fused += p->kernels[i].group && p->kernels[i].group->ninstrs > 1;
    say(&t, "plan for %s: %lld operations in %lld kernels (%lld fused groups)\n", kiln_device_name(p->device),
        (long long)p->nnodes, (long long)p->nkernels, (long long)fused);
    for (int64_t i = 0; i < p->nkernels; i++)
        say_kernel(&t, tr, p, i);
    say(&t, "memory by role:");
    for (int r = 0; r < KILN_ROLES; r++) {
        say(&t, "%s %s ", r ? "," : "", roles[r]);
        say_size(&t, p->role_bytes[r]);
    }
    say(&t, "\npeak: ");
    say_size(&t, p->arena_bytes + p->all_output_bytes);
    say(&t, " beside what is in use: ");
    say_size(&t, p->arena_bytes);
    say(&t, " of scratch, ");
    say_size(&t, p->all_output_bytes);
    say(&t, " of results\nwork: %.6g MFLOP, ", (double)p->flops / 1e6);
    say_size(&t, p->bytes);
    say(&t, " moved\n");
    if (t.failed) {
        kiln_free(t.at);
        return NULL;
    }
    return t.at;
}
