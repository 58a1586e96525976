/* Operations with groups around them, by one kernel that is generated from both groups' programs and the operation's
 * own text (kiln_cuda_body). Until that is compiled, or where rows are too long for it, one after the other with the
 * operation's kernel between them: what would be in registers then lies in the workspace, with the same bits. */
#include "device/cuda/group/around.h"
#include <string.h>
#include "core/alloc.h"
#include "device/cuda/compile/codegen.h"
#include "device/cuda/group/text.h"

enum { ALIGNMENT = 256, LEAD = 0, END = 1, SIDES = 2 };

bool kiln_cuda_is_around(const kiln_cuda_call *c)
{
    const kiln_kernel *k = c->kernel;
    return k->lead || (k->group && k->group->head >= 0 && k->op->cls != KILN_CLASS_MATMUL);
}

/* ---- What lies in the workspace ---- */

static size_t room_for(const kiln_cuda_operand *o)
{
    size_t bytes = (size_t)kiln_cuda_count_of(o) * kiln_dtype_size(o->dtype);
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Addresses are numbers here: there is no memory yet while room is made. */
static uintptr_t take(uintptr_t from, kiln_cuda_operand *o)
{
    o->data = (void *)from;
    return from + room_for(o);
}

/* The call of the operation alone: operands that are made, its result, and its own scratch memory. */
static kiln_cuda_call inner_call(const kiln_cuda_call *c)
{
    kiln_cuda_call inner = *c;
    const kiln_kernel *k = c->kernel;
    uintptr_t at = (uintptr_t)c->workspace;
    for (int i = 0; k->lead && i < k->lead->ngifts; i++)
        at = take(at, &inner.in[k->lead->gifts[i].operand]);
    if (k->group)
        at = take(at, &inner.out[0]);
    inner.workspace = (void *)at;
    return inner;
}

size_t kiln_cuda_around_workspace(const kiln_cuda_call *c, const kiln_cuda_kernel *kernel)
{
    kiln_cuda_call from = *c;
    from.workspace = NULL;
    kiln_cuda_call inner = inner_call(&from);
    return (size_t)(uintptr_t)inner.workspace + (kernel->workspace ? kernel->workspace(&inner) : 0);
}

/* ---- One after the other ---- */

/* What leads, with the operands it makes among its stores. */
static bool launch_lead(const kiln_cuda_call *c, const kiln_cuda_call *inner)
{
    kiln_group g = *c->kernel->lead;
    kiln_store *stores = kiln_alloc((size_t)(g.nstores + g.ngifts), sizeof *stores);
    if (!stores)
        return false;
    memcpy(stores, g.stores, (size_t)g.nstores * sizeof *stores);
    for (int i = 0; i < g.ngifts; i++) {
        const kiln_cuda_operand *x = &inner->in[g.gifts[i].operand];
        int64_t bytes = (char *)x->data - (char *)c->workspace;
        stores[g.nstores++] = (kiln_store){.src = g.gifts[i].src,
                                           .to = {.buffer = c->kernel->workspace,
                                                  .dtype = (uint8_t)x->dtype,
                                                  .ndim = 1,
                                                  .dense = true,
                                                  .offset = bytes / (int64_t)kiln_dtype_size(x->dtype),
                                                  .shape = {g.count},
                                                  .stride = {1}}};
    }
    g.stores = stores;
    g.ngifts = 0;
    bool ok = kiln_cuda_group_launch(c, &g, NULL);
    kiln_free(stores);
    return ok;
}

static bool launch_in_turn(const kiln_cuda_call *c, const kiln_cuda_call *inner, const kiln_cuda_kernel *kernel)
{
    const kiln_kernel *k = c->kernel;
    return (!k->lead || launch_lead(c, inner)) && kernel->launch(inner) &&
           (!k->group || kiln_cuda_group_launch(c, k->group, inner->out[0].data));
}

/* ---- All in one ---- */

typedef struct sides {
    kiln_cuda_lowered *of[SIDES]; /* NULL: nothing stands there */
    int pointers[SIDES + 1];      /* where those of each begin in k.data, and their end */
} sides;

static void free_sides(sides *s)
{
    for (int i = 0; i < SIDES; i++)
        kiln_free(s->of[i]);
}

static bool lower_sides(sides *s, const kiln_cuda_call *c, const void *head)
{
    const kiln_group *groups[SIDES] = {c->kernel->lead, c->kernel->group};
    for (int i = 0; i < SIDES; i++) {
        s->pointers[i + 1] = s->pointers[i];
        if (!groups[i])
            continue;
        s->of[i] = kiln_alloc_zero(1, sizeof *s->of[i]);
        if (!s->of[i] || !kiln_cuda_lower_group(s->of[i], c, groups[i], i == END ? head : NULL))
            return false;
        s->pointers[i + 1] += s->of[i]->k.p.nloads + s->of[i]->k.p.nstores;
    }
    return true;
}

static kiln_cuda_naming naming_of(const sides *s, int side, int *places)
{
    for (int i = 0; i < s->pointers[side + 1] - s->pointers[side]; i++)
        places[i] = s->pointers[side] + i;
    return (kiln_cuda_naming){.number = side,
                              .places = places,
                              .words = -1,
                              .first_scalar = kiln_cuda_first_of_scalars(s->of[side]),
                              .first_at = side,
                              .product = side == END};
}

/* The bits of the operands that are made, in the order of those that can be. */
static unsigned given(const kiln_kernel *k)
{
    unsigned bits = 0;
    for (int i = 0, n = 0; k->lead && i < k->nin; i++)
        if (k->op->led >> i & 1) {
            for (int g = 0; g < k->lead->ngifts; g++)
                bits |= (unsigned)(k->lead->gifts[g].operand == i) << n;
            n++;
        }
    return bits;
}

/* They have no more than KILN_CUDA_POINTERS. */
static char *text_of(const kiln_cuda_call *c, const sides *s, const kiln_cuda_body *b)
{
    static const char *const names[] = {"lead", "end"};
    kiln_cuda_writer w = {0};
    int places[KILN_CUDA_POINTERS];
    kiln_cuda_say_dtypes(&w);
    kiln_cuda_say(&w,
                  "#include \"device/cuda/group/fold.cuh\"\n#include \"%s\"\n\nstruct parameters { %s p; const double "
                  "*scalars; const int32_t *stop; uint64_t first[%d]; void *data[%d]; };\n",
                  b->header, b->type, SIDES, s->pointers[SIDES] ? s->pointers[SIDES] : 1);
    for (int i = 0; i < SIDES; i++)
        if (s->of[i])
            kiln_cuda_say_program(&w, s->of[i], naming_of(s, i, places));
    kiln_cuda_say(&w,
                  "extern \"C\" __global__ void __launch_bounds__(%u, %d) kiln_generated(const __grid_constant__ "
                  "parameters k)\n{\n    extern __shared__ uint64_t scratch[];\n    if (k.stop && *k.stop)\n"
                  "        return;\n",
                  b->threads, b->blocks);
    for (int i = 0; i < SIDES; i++)
        if (s->of[i]) {
            kiln_cuda_say(&w, "    const program%d %s = ", i, names[i]);
            kiln_cuda_say_members(&w, s->of[i], naming_of(s, i, places));
            kiln_cuda_say(&w, ";\n");
        } else
            kiln_cuda_say(&w, "    const kiln_nothing %s = {};\n", names[i]);
    kiln_cuda_say(&w,
                  "    const kiln_around<decltype(lead), decltype(end), %u, %s> around = {lead, end};\n    %s;\n}\n",
                  given(c->kernel), s->of[END] ? "true" : "false", b->call);
    return kiln_cuda_written(&w);
}

/* As the text declares them. */
typedef struct parameters {
    uint64_t words[sizeof((kiln_cuda_body *)0)->parameters / sizeof(uint64_t) + 2 + SIDES + KILN_CUDA_POINTERS];
    int n;
} parameters;

static void add_word(parameters *p, uint64_t word)
{
    p->words[p->n++] = word;
}

static void add_address(parameters *p, const void *address)
{
    add_word(p, (uint64_t)(uintptr_t)address);
}

static void set_parameters(parameters *p, const kiln_cuda_call *c, const sides *s, const kiln_cuda_body *b)
{
    p->n = (int)(b->bytes / sizeof *p->words);
    memcpy(p->words, b->parameters, b->bytes);
    add_address(p, c->scalars);
    add_address(p, c->stop);
    for (int i = 0; i < SIDES; i++)
        add_word(p, s->of[i] ? (uint64_t)kiln_cuda_first_of_scalars(s->of[i]) : 0);
    for (int i = 0; i < SIDES; i++) {
        if (!s->of[i])
            continue;
        kiln_cuda_parts is = kiln_cuda_parts_of(s->of[i]);
        for (int l = 0; l < s->of[i]->k.p.nloads; l++)
            add_address(p, is.loads[l].data);
        for (int t = 0; t < s->of[i]->k.p.nstores; t++)
            add_address(p, is.stores[t].data);
    }
}

/* *kernel: NULL where it is not there yet. */
static bool find_kernel(const kiln_cuda_call *c, const sides *s, const kiln_cuda_body *b, const void **kernel)
{
    char *text = text_of(c, s, b);
    bool ok = text &&
              kiln_cuda_codegen_find(c->device, text, false, (double)c->kernel->bytes + KILN_CUDA_LAUNCH_WORK, kernel);
    kiln_free(text);
    return ok;
}

static bool launch(const kiln_cuda_call *c, const kiln_cuda_call *inner, const sides *s, const kiln_cuda_body *b,
                   const void *kernel)
{
    parameters p;
    set_parameters(&p, c, s, b);
    dim3 grid = {b->grid, 1, 1}, block = {b->threads, 1, 1};
    void *arguments[] = {p.words};
    cudaLaunchKernel(kernel, grid, block, arguments, b->shared, c->stream);
    return kiln_cuda_launched(c) && (!b->rest || b->rest(inner));
}

/* Whether there can be a kernel for all of it; sides that were lowered are to be freed in any case. */
static bool prepare(const kiln_cuda_call *c, const kiln_cuda_call *inner, const kiln_cuda_kernel *kernel,
                    kiln_cuda_body *b, sides *s, bool *can)
{
    *s = (sides){0};
    *b = (kiln_cuda_body){0};
    *can = kernel->body(inner, b);
    if (*can && !lower_sides(s, c, inner->out[0].data))
        return false;
    *can = *can && s->pointers[SIDES] <= KILN_CUDA_POINTERS;
    return true;
}

char *kiln_cuda_around_text(const kiln_cuda_call *c, const kiln_cuda_kernel *kernel)
{
    const kiln_cuda_call inner = inner_call(c);
    kiln_cuda_body b;
    sides s;
    bool can;
    char *text = prepare(c, &inner, kernel, &b, &s, &can) && can ? text_of(c, &s, &b) : NULL;
    free_sides(&s);
    return text;
}

/* *done: there is a kernel for it, which was launched. */
static bool launch_whole(const kiln_cuda_call *c, const kiln_cuda_call *inner, const kiln_cuda_kernel *kernel,
                         bool *done)
{
    kiln_cuda_body b;
    sides s;
    const void *generated = NULL;
    *done = false;
    if (kiln_cuda_compiles() == 0 || c->chained)
        return true;
    bool can, ok = prepare(c, inner, kernel, &b, &s, &can) && (!can || find_kernel(c, &s, &b, &generated));
    *done = ok && generated;
    if (*done)
        ok = launch(c, inner, &s, &b, generated);
    free_sides(&s);
    return ok;
}

bool kiln_cuda_around_launch(const kiln_cuda_call *c, const kiln_cuda_kernel *kernel)
{
    const kiln_cuda_call inner = inner_call(c);
    bool done;
    return launch_whole(c, &inner, kernel, &done) && (done || launch_in_turn(c, &inner, kernel));
}
