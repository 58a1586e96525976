/* The text of a group's kernel: its program written out as CUDA C. Registers become variables, rows of pointwise.def
 * their expressions, geometry constants; which elements a thread takes and how results are folded comes from fold.cuh,
 * as for the interpreter, so both give the same bits. Addresses and numbers of elements are parameters. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "core/alloc.h"
#include "device/cuda/codegen.h"

typedef struct writer {
    const kiln_cuda_program *p;
    const kiln_cuda_op *ops;
    const kiln_cuda_load *loads;
    const kiln_cuda_store *stores;
    const kiln_cuda_dim *dims;
    char *text;
    int64_t length, capacity;
    bool failed;
} writer;

static void say(writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(writer *w, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int n = w->failed ? -1 : vsnprintf(NULL, 0, format, list);
    va_end(list);
    w->failed = w->failed || n < 0 || !KILN_GROW(w->text, w->capacity, w->length + n + 1);
    if (w->failed)
        return;
    va_start(list, format);
    vsnprintf(w->text + w->length, (size_t)n + 1, format, list);
    va_end(list);
    w->length += n;
}

static const char *const types[] = {"float", "double", "int64_t", "uint8_t"}; /* by kiln_pw_class */

/* ---- Operations ---- */

/* Leaves the place of element `of` in `at`. */
static void say_place(writer *w, const kiln_cuda_load *l, const char *of)
{
    const kiln_cuda_dim *d = w->dims + l->dims;
    const char *type = w->p->below_2_31 ? "uint32_t" : "int64_t", *suffix = w->p->below_2_31 ? "u" : "L";
    say(w, "%s j = (%s)(%s); int64_t at = 0; ", type, type, of);
    for (int i = 0; i < l->ndim - 1; i++, d++)
        say(w, "at += (int64_t)(j %% %lld%s) * %lldL; j /= %lld%s; ", (long long)d->size, suffix, (long long)d->stride,
            (long long)d->size, suffix);
    say(w, "at += (int64_t)j * %lldL; ", (long long)d->stride);
}

static void say_load(writer *w, const kiln_cuda_op *op)
{
    const kiln_cuda_load *l = &w->loads[op->src[0]];
    int from = op->src[0];
    if (l->kind == KILN_CUDA_SPLAT)
        say(w, "r%d = load_splat<wide>(%d, k.data[%d]);\n", op->dst, l->dtype, from);
    else if (l->kind == KILN_CUDA_LINE) {
        say(w, "{ ");
        if (l->ndim)
            say_place(w, l, "i");
        else
            say(w, "int64_t at = i * %lldL; ", (long long)l->step);
        say(w, "r%d = load_line<wide>(%d, k.data[%d], at, %lldL, %d, n); }\n", op->dst, l->dtype, from,
            (long long)l->step, l->vector);
    } else {
        say(w, "for (int v = 0; v < N; v++) if (v < n) { ");
        say_place(w, l, "i + v");
        say(w, "r%d.w[v] = widen<word>(%d, k.data[%d], at); }\n", op->dst, l->dtype, from);
    }
}

static void say_row(writer *w, const kiln_cuda_op *op, int number)
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

static void say_op(writer *w, int number)
{
    const kiln_cuda_op *op = &w->ops[number];
    say(w, "        ");
    if (op->code == KILN_CUDA_LOAD)
        say_load(w, op);
    else if (op->code == KILN_CUDA_STORE)
        say(w, "store_line<wide>(%d, k.data[%d], i, %d, r%d, n);\n", w->stores[op->src[1]].dtype,
            w->p->nloads + op->src[1], w->stores[op->src[1]].vector, op->src[0]);
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

/* ---- The kernel ---- */

static void say_dtypes(writer *w)
{
    static const char *const names[KILN_DTYPES] = {
        [KILN_BOOL] = "BOOL", [KILN_U8] = "U8",     [KILN_I32] = "I32", [KILN_I64] = "I64",
        [KILN_F16] = "F16",   [KILN_BF16] = "BF16", [KILN_F32] = "F32", [KILN_F64] = "F64"};
    say(w, "enum {");
    for (int i = 0; i < KILN_DTYPES; i++)
        say(w, " KILN_%s = %d,", names[i], i);
    say(w, " KILN_DTYPES };\n#include \"device/cuda/fold.cuh\"\n\n");
}

static void say_program(writer *w, bool wide)
{
    const kiln_cuda_program *p = w->p;
    say(w, "static const bool wide = %s;\n", wide ? "true" : "false");
    say(w,
        "struct parameters { kiln_cuda_reduction r; int64_t count; const double *scalars; const int32_t *stop; "
        "void *data[%d]; };\n",
        p->nloads + p->nstores ? p->nloads + p->nstores : 1);
    say(w, "struct program {\n    enum { N = cell<wide>::N };\n    typedef cell<wide>::word word;\n"
           "    const parameters &k;\n    uint64_t *scratch;\n");
    for (int i = 0; i < p->nops; i++)
        for (int s = 0; s < w->ops[i].nscalars; s++)
            say(w, "    uint64_t s%d_%d;\n", i, s);
    say(w, "    __device__ __forceinline__ void some(int64_t i, const int n, uint64_t *x) const\n    {\n");
    for (int r = 0; r < p->nregisters; r++)
        say(w, "        cell<wide> r%d = {};\n", r);
    for (int i = 0; i < p->nops; i++)
        say_op(w, i);
    if (p->shape != KILN_CUDA_MAP)
        say(w, "        _Pragma(\"unroll\") for (int v = 0; v < N; v++) x[v] = r%d.w[v];\n", p->r.src);
    say(w, "    }\n    __device__ __forceinline__ void elements(int64_t i, int n, uint64_t *x) const\n    {\n"
           "        if (n == N)\n            some(i, N, x);\n        else\n            some(i, n, x);\n    }\n};\n\n");
}

static void say_kernel(writer *w)
{
    const kiln_cuda_program *p = w->p;
    const kiln_cuda_reduction *r = &p->r;
    say(w, "extern \"C\" __global__ void __launch_bounds__(%d) kiln_group(const __grid_constant__ parameters k)\n{\n",
        p->shape == KILN_CUDA_MAP ? KILN_CUDA_MAP_THREADS : r->threads);
    say(w, "    extern __shared__ uint64_t scratch[];\n    if (k.stop && *k.stop)\n        return;\n");
    say(w, "    const program m = {k, scratch");
    for (int i = 0; i < p->nops; i++)
        for (int s = 0; s < w->ops[i].nscalars; s++)
            say(w, ", scalar(%d, %s, k.scalars[%d])", w->ops[i].code - KILN_CUDA_ROW,
                w->ops[i].row == KILN_PW_iota ? "true" : "false", w->ops[i].scalars + s);
    say(w, "};\n");
    if (p->shape == KILN_CUDA_MAP)
        say(w, "    map(k.count, m);\n}\n");
    else
        say(w,
            "    kiln_cuda_reduction r = k.r;\n    r.cls = %d, r.fold = %d, r.dtype = %d, r.lanes = %d, r.chunks = "
            "%lldL, r.inner = %lldL;\n    %s(r, m);\n}\n",
            r->cls, r->fold, r->dtype, r->lanes, (long long)r->chunks, (long long)r->inner,
            p->shape == KILN_CUDA_ROWS ? "rows" : "columns");
}

char *kiln_cuda_group_text(const kiln_cuda_lowered *g)
{
    writer w = {.p = &g->k.p};
    w.ops = (const kiln_cuda_op *)(const void *)g->k.body;
    w.loads = (const kiln_cuda_load *)(const void *)(w.ops + w.p->nops);
    w.stores = (const kiln_cuda_store *)(const void *)(w.loads + w.p->nloads);
    w.dims = (const kiln_cuda_dim *)(const void *)(w.stores + w.p->nstores);
    say_dtypes(&w);
    say_program(&w, g->wide);
    say_kernel(&w);
    if (!w.failed)
        return w.text;
    kiln_free(w.text);
    return NULL;
}

void kiln_cuda_group_parameters(kiln_cuda_generated *to, const kiln_cuda_lowered *g)
{
    const kiln_cuda_program *p = &g->k.p;
    const kiln_cuda_op *ops = (const kiln_cuda_op *)(const void *)g->k.body;
    const kiln_cuda_load *loads = (const kiln_cuda_load *)(const void *)(ops + p->nops);
    const kiln_cuda_store *stores = (const kiln_cuda_store *)(const void *)(loads + p->nloads);
    to->r = p->r;
    to->count = p->count;
    to->scalars = p->scalars;
    to->stop = p->stop;
    for (int i = 0; i < p->nloads; i++)
        to->data[i] = (void *)(uintptr_t)loads[i].data;
    for (int i = 0; i < p->nstores; i++)
        to->data[p->nloads + i] = stores[i].data;
}
