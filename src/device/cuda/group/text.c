/* The text of a group's kernel: its program written out as CUDA C. Registers become variables, rows of pointwise.def
 * their expressions, geometry constants; which elements a thread takes and how results are folded comes from fold.cuh,
 * as for the interpreter, so both give the same bits. Addresses and numbers of elements are parameters. */
#include <limits.h>
#include <string.h>
#include "core/alloc.h"
#include "device/cuda/group/text.h"

typedef struct writer {
    kiln_cuda_writer *to;
    const kiln_cuda_program *p;
    kiln_cuda_parts is;
    kiln_cuda_naming name;
} writer;

#define say(w, ...) kiln_cuda_say((w)->to, __VA_ARGS__)

static const char *const types[] = {"float", "double", "int64_t", "uint8_t"}; /* by kiln_pw_class */

/* ---- Operations ---- */

/* Leaves the place of element `of` in `at`. */
static void say_place(const writer *w, const kiln_cuda_load *l, const char *of)
{
    const kiln_cuda_dim *d = w->is.dims + l->dims;
    const char *type = w->p->below_2_31 ? "uint32_t" : "int64_t", *suffix = w->p->below_2_31 ? "u" : "L";
    say(w, "%s j = (%s)(%s); int64_t at = 0; ", type, type, of);
    for (int i = 0; i < l->ndim - 1; i++, d++)
        say(w, "at += (int64_t)(j %% %lld%s) * %lldL; j /= %lld%s; ", (long long)d->size, suffix, (long long)d->stride,
            (long long)d->size, suffix);
    say(w, "at += (int64_t)j * %lldL; ", (long long)d->stride);
}

/* The product before the group, not memory. */
static bool is_head(const writer *w, const kiln_cuda_op *op)
{
    return w->name.product && op->src[0] == w->p->nloads - 1;
}

/* Which of k.data a load is, or a store. */
static int place_of(const writer *w, int number)
{
    return w->name.places ? w->name.places[number] : number;
}

static void say_load(const writer *w, const kiln_cuda_op *op)
{
    const kiln_cuda_load *l = &w->is.loads[op->src[0]];
    int number = op->src[0], from = place_of(w, number);
    say(w, "        ");
    if (l->kind == KILN_CUDA_SPLAT)
        say(w, "f.l%d = load_splat<wide>(%d, k.data[%d]);\n", number, l->dtype, from);
    else if (l->kind == KILN_CUDA_LINE) {
        say(w, "{ ");
        if (l->ndim)
            say_place(w, l, "i");
        else
            say(w, "int64_t at = i * %lldL; ", (long long)l->step);
        say(w, "f.l%d = load_line<wide>(%d, k.data[%d], at, %lldL, %d, n); }\n", number, l->dtype, from,
            (long long)l->step, l->vector);
    } else {
        say(w, "_Pragma(\"unroll\") for (int v = 0; v < N; v++) if (v < n) { ");
        say_place(w, l, "i + v");
        say(w, "f.l%d.w[v] = widen<word>(%d, k.data[%d], at); }\n", number, l->dtype, from);
    }
}

static void say_row(const writer *w, const kiln_cuda_op *op, int number)
{
    const kiln_pw_row *row = &kiln_pw_rows[op->row];
    int cls = op->code - KILN_CUDA_ROW;
    bool index = op->row == KILN_PW_iota;
    const char *type = types[cls];
    const char *in = row->kind == KILN_PW_IS_RING && cls == KILN_PW_I64 ? "uint64_t" : type; /* computed in */
    if (index)
        in = cls == KILN_PW_I64 ? "uint64_t" : "double";
    say(w, "{ typedef %s T; ", type);
    for (int s = 0; s < op->nscalars; s++)
        say(w, "const %s %c = (%s)as<%s>(s%d_%d); ", in, "st"[s], in, index ? in : type, number, s);
    say(w, "_Pragma(\"unroll\") for (int v = 0; v < N; v++) { ");
    for (int s = 0; s < op->arity; s++) {
        bool condition = row->kind == KILN_PW_IS_PICK && s == 0;
        say(w, "const %s %c = (%s)as<%s>(r%d.w[v]); ", condition ? "uint8_t" : in, "abc"[s], condition ? "uint8_t" : in,
            condition ? "uint8_t" : type, op->src[s]);
    }
    if (index)
        say(w, "const %s index = (%s)(i + v); ", in, in);
    say(w, "r%d.w[v] = bits((%s)(%s)); } }\n", op->dst, row->kind == KILN_PW_IS_TEST ? "uint8_t" : "T", row->text);
}

/* A product of halves is one of halves here too, as where it is a kernel of its own. */
static void say_head(const writer *w, const kiln_cuda_op *op)
{
    uint8_t dtype = w->is.loads[op->src[0]].dtype;
    say(w, "_Pragma(\"unroll\") for (int v = 0; v < N; v++) r%d.w[v] = v < n ? bits(head[v]) : 0;\n", op->dst);
    if (dtype == KILN_F16 || dtype == KILN_BF16)
        say(w, "        settle<wide>(%d, r%d);\n", dtype == KILN_F16 ? KILN_CUDA_ROUND_F16 : KILN_CUDA_ROUND_BF16,
            op->dst);
}

static void say_op(const writer *w, int number)
{
    const kiln_cuda_op *op = &w->is.ops[number];
    say(w, "        ");
    if (op->code == KILN_CUDA_LOAD && is_head(w, op))
        say_head(w, op);
    else if (op->code == KILN_CUDA_LOAD)
        say(w, "r%d = f.l%d;\n", op->dst, op->src[0]);
    else if (op->code == KILN_CUDA_STORE)
        say(w, "store_line<wide>(%d, k.data[%d], i, %d, r%d, n);\n", w->is.stores[op->src[1]].dtype,
            place_of(w, w->p->nloads + op->src[1]), w->is.stores[op->src[1]].vector, op->src[0]);
    else if (op->code == KILN_CUDA_CAST)
        say(w,
            "_Pragma(\"unroll\") for (int v = 0; v < N; v++) r%d.w[v] = bits(kiln_cast_to<%s, "
            "%s>::from(as<%s>(r%d.w[v])));\n",
            op->dst, types[op->row % 4], types[op->row / 4], types[op->row / 4], op->src[0]);
    else
        say_row(w, op, number);
    if (op->code >= KILN_CUDA_CAST && op->after != KILN_CUDA_AS_IS)
        say(w, "        settle<wide>(%d, r%d);\n", op->after, op->dst);
}

/* ---- A program ---- */

/* Scalars are members, converted once a thread, or words of the parameters. */
static void say_scalars(const writer *w)
{
    int word = w->name.words;
    for (int i = 0; i < w->p->nops; i++)
        for (int s = 0; s < w->is.ops[i].nscalars; s++)
            if (w->name.words < 0)
                say(w, "    uint64_t s%d_%d;\n", i, s);
            else
                say(w, "#define s%d_%d k.words[%d]\n", i, s, word++);
}

static void forget_scalars(const writer *w)
{
    for (int i = 0; w->name.words >= 0 && i < w->p->nops; i++)
        for (int s = 0; s < w->is.ops[i].nscalars; s++)
            say(w, "#undef s%d_%d\n", i, s);
}

/* Loads have a function of their own: one behind a store would have to wait for it, since they might meet, so callers
 * load what several cells need before they store any. */
static void say_fetching(const writer *w)
{
    say(w, "    struct fetched {");
    for (int i = 0; i < w->p->nops; i++)
        if (w->is.ops[i].code == KILN_CUDA_LOAD && !is_head(w, &w->is.ops[i]))
            say(w, " cell<wide> l%d;", w->is.ops[i].src[0]);
    say(w, " };\n    __device__ __forceinline__ fetched load(int64_t i, const int n) const\n    {\n"
           "        fetched f = {};\n");
    for (int i = 0; i < w->p->nops; i++)
        if (w->is.ops[i].code == KILN_CUDA_LOAD && !is_head(w, &w->is.ops[i]))
            say_load(w, &w->is.ops[i]);
    say(w, "        return f;\n    }\n");
}

static void say_computing(const writer *w, const char *parameters)
{
    say(w, "    __device__ __forceinline__ void compute(int64_t i, const int n, %s, const fetched &f) const\n    {\n",
        parameters);
    for (int r = 0; r < w->p->nregisters; r++)
        say(w, "        cell<wide> r%d = {};\n", r);
    for (int i = 0; i < w->p->nops; i++)
        say_op(w, i);
    if (w->p->shape != KILN_CUDA_MAP)
        say(w, "        _Pragma(\"unroll\") for (int v = 0; v < N; v++) x[v] = r%d.w[v];\n", w->p->r.src);
    for (int i = 0; i < w->p->ngifts; i++)
        say(w, "        _Pragma(\"unroll\") for (int v = 0; v < N; v++) x[%d * N + v] = r%d.w[v];\n", i,
            w->p->gifts[i]);
    say(w, "    }\n");
}

void kiln_cuda_say_program(kiln_cuda_writer *to, const kiln_cuda_lowered *g, kiln_cuda_naming name)
{
    writer w = {to, &g->k.p, kiln_cuda_parts_of(g), name};
    /* a number of elements that is known leaves no code for others */
    say(&w, "struct program%d {\n    static const bool wide = %s, whole = %s;\n", name.number,
        g->wide ? "true" : "false", name.whole ? "true" : "false");
    say(&w, "    enum { N = cell<wide>::N, AHEAD = %d };\n", w.p->nstores ? 1 : 8);
    say(&w, "    typedef cell<wide>::word word;\n    ");
    if (name.view)
        say(&w, "const view%d &k;\n    uint64_t *scratch;\n", name.number);
    else
        say(&w, "const parameters &k;\n    uint64_t *scratch;\n");
    say_scalars(&w);
    say_fetching(&w);
    say_computing(&w, name.product ? "const float *head, uint64_t *x" : "uint64_t *x");
    if (name.product) /* a product's cells may be of none */
        say(&w, "    __device__ __forceinline__ fetched fetch(int64_t i, int n) const\n    {\n"
                "        if (n >= N)\n            return load(i, N);\n"
                "        return !whole && n > 0 ? load(i, n) : fetched{};\n    }\n"
                "    __device__ __forceinline__ void elements(int64_t i, int n, const float *head, uint64_t *x, "
                "const fetched &f) const\n    {\n        if (n >= N)\n            compute(i, N, head, x, f);\n"
                "        else if (!whole && n > 0)\n            compute(i, n, head, x, f);\n    }\n};\n");
    else
        say(&w, "    __device__ __forceinline__ void elements(int64_t i, int n, uint64_t *x) const\n    {\n"
                "        if (whole || n == N)\n            compute(i, N, x, load(i, N));\n        else\n"
                "            compute(i, n, x, load(i, n));\n    }\n};\n");
    forget_scalars(&w);
}

static void say_member(kiln_cuda_writer *to, const kiln_cuda_op *op, int scalar, kiln_cuda_naming name)
{
    kiln_cuda_say(to, ", scalar(%d, %s, k.scalars[", op->code - KILN_CUDA_ROW,
                  op->row == KILN_PW_iota ? "true" : "false");
    if (name.first_at >= 0)
        kiln_cuda_say(to, "k.first[%d] + ", name.first_at);
    kiln_cuda_say(to, "%d])", scalar);
}

void kiln_cuda_say_members(kiln_cuda_writer *to, const kiln_cuda_lowered *g, kiln_cuda_naming name)
{
    kiln_cuda_parts is = kiln_cuda_parts_of(g);
    kiln_cuda_say(to, "{k, scratch");
    for (int i = 0; name.words < 0 && i < g->k.p.nops; i++)
        for (int s = 0; s < is.ops[i].nscalars; s++)
            say_member(to, &is.ops[i], is.ops[i].scalars + s - name.first_scalar, name);
    kiln_cuda_say(to, "}");
}

/* ---- A kernel of one group ---- */

static void say_kernel(kiln_cuda_writer *w, const kiln_cuda_lowered *g, kiln_cuda_naming name)
{
    const kiln_cuda_program *p = &g->k.p;
    const kiln_cuda_reduction *r = &p->r;
    kiln_cuda_say(
        w,
        "extern \"C\" __global__ void __launch_bounds__(%d) kiln_generated(const __grid_constant__ parameters "
        "k)\n{\n    extern __shared__ uint64_t scratch[];\n    if (k.stop && *k.stop)\n        return;\n"
        "    const program0 m = ",
        p->shape == KILN_CUDA_MAP ? KILN_CUDA_MAP_THREADS : r->threads);
    kiln_cuda_say_members(w, g, name);
    kiln_cuda_say(w, ";\n");
    if (p->shape == KILN_CUDA_MAP)
        kiln_cuda_say(w, "    map(k.count, m, whole_grid());\n}\n");
    else
        kiln_cuda_say(w,
                      "    kiln_cuda_reduction r = k.r;\n    r.cls = %d, r.fold = %d, r.dtype = %d, r.lanes = %d, "
                      "r.threads = %d, r.chunks = %lldL, r.inner = %lldL;\n    %s(r, m, whole_grid());\n}\n",
                      r->cls, r->fold, r->dtype, r->lanes, r->threads, (long long)r->chunks, (long long)r->inner,
                      p->shape == KILN_CUDA_ROWS ? "rows" : "columns");
}

int kiln_cuda_first_of_scalars(const kiln_cuda_lowered *g)
{
    kiln_cuda_parts is = kiln_cuda_parts_of(g);
    int first = INT_MAX;
    for (int i = 0; i < g->k.p.nops; i++)
        if (is.ops[i].nscalars && is.ops[i].scalars < first)
            first = is.ops[i].scalars;
    return first < INT_MAX ? first : 0;
}

char *kiln_cuda_group_text(const kiln_cuda_lowered *g)
{
    const kiln_cuda_program *p = &g->k.p;
    kiln_cuda_writer w = {0};
    kiln_cuda_naming name = {.words = -1, .first_scalar = kiln_cuda_first_of_scalars(g), .first_at = -1};
    kiln_cuda_say_dtypes(&w);
    kiln_cuda_say(
        &w,
        "#include \"device/cuda/group/fold.cuh\"\n\nstruct parameters { kiln_cuda_reduction r; int64_t count; "
        "const double *scalars; const int32_t *stop; void *data[%d]; };\n",
        p->nloads + p->nstores ? p->nloads + p->nstores : 1);
    kiln_cuda_say_program(&w, g, name);
    say_kernel(&w, g, name);
    return kiln_cuda_written(&w);
}

void kiln_cuda_group_parameters(kiln_cuda_generated *to, const kiln_cuda_lowered *g)
{
    const kiln_cuda_program *p = &g->k.p;
    kiln_cuda_parts is = kiln_cuda_parts_of(g);
    to->r = p->r;
    to->count = p->count;
    to->scalars = p->scalars ? p->scalars + kiln_cuda_first_of_scalars(g) : NULL;
    to->stop = p->stop;
    for (int i = 0; i < p->nloads; i++)
        to->data[i] = (void *)(uintptr_t)is.loads[i].data;
    for (int i = 0; i < p->nstores; i++)
        to->data[p->nloads + i] = is.stores[i].data;
}
