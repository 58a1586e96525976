/* An operation is one record: what it is called, what it accepts, what comes out, how its gradient is composed of other
 * operations, which kernel class runs it, and which cases test it. Adding an operation means adding a record to the
 * file of its family (and a kernel, where it wants one of its own). */
#ifndef KILN_OPS_OP_H
#define KILN_OPS_OP_H

#include "kiln.h"
#include "core/fail.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

typedef enum kiln_class {
    KILN_CLASS_VIEW,      /* other geometry on the same storage: never a kernel */
    KILN_CLASS_POINTWISE, /* one expression of pointwise.def */
    KILN_CLASS_REDUCE,
    KILN_CLASS_SCAN,
    KILN_CLASS_MATMUL,
    KILN_CLASS_CONV,
    KILN_CLASS_POOL,
    KILN_CLASS_INDEX, /* gather, scatter, cat, pad: elements move, none is computed */
    KILN_CLASS_SORT,
    KILN_CLASS_RANDOM,
    KILN_CLASS_ROWS,      /* softmax and norms: a whole row decides each of its elements */
    KILN_CLASS_ATTENTION, /* attention, its gradient, rotary: operands as they lie in memory */
    KILN_CLASS_ASSIGN,    /* writes into storage that exists already */
    KILN_CLASS_TRANSFER,  /* from one device to another */
    KILN_CLASS_COMPOSITE, /* never a node: `compose` writes it with other operations */
    KILN_CLASS_FORMULA    /* several pointwise rows and assignments: planning writes them out (trace/formula.h) */
} kiln_class;

/* Whether operands of the class are dense: others are windows with any strides. */
static inline bool kiln_needs_dense(kiln_class cls)
{
    const unsigned strided = 1u << KILN_CLASS_VIEW | 1u << KILN_CLASS_POINTWISE | 1u << KILN_CLASS_REDUCE |
                             1u << KILN_CLASS_MATMUL | 1u << KILN_CLASS_ATTENTION | 1u << KILN_CLASS_TRANSFER;
    return !(strided >> cls & 1);
}

/* What autocast does with an operation's operands. */
typedef enum kiln_autocast_class {
    KILN_CAST_NONE,   /* runs in the type it is given */
    KILN_CAST_LOWER,  /* fast in half precision: matmul, conv, attention */
    KILN_CAST_FLOAT,  /* needs f32: exp, log, sums, losses, norms */
    KILN_CAST_PROMOTE /* several operands: the widest type among them */
} kiln_autocast_class;

/* Attributes. Integers shape the plan: another integer is another plan. Floats are run-time scalars: a plan is replayed
 * with new ones (a learning rate, a dropout offset), so no rule below may depend on their value. */
enum { KILN_MAX_INTS = 40, KILN_MAX_FLOATS = 24, KILN_MAX_INPUTS = 64, KILN_MAX_OUTPUTS = 4, KILN_MAX_LED = 2 };
typedef struct kiln_attrs {
    int nints, nfloats;
    int64_t i[KILN_MAX_INTS];
    double f[KILN_MAX_FLOATS];
} kiln_attrs;

/* Copies what is there, not the room for more. */
static inline void kiln_attrs_copy(kiln_attrs *to, const kiln_attrs *from)
{
    to->nints = from->nints;
    to->nfloats = from->nfloats;
    for (int i = 0; i < from->nints; i++)
        to->i[i] = from->i[i];
    for (int i = 0; i < from->nfloats; i++)
        to->f[i] = from->f[i];
}

/* What an output will be. Strides and offset (in elements) matter for views only; other outputs are dense. */
typedef struct kiln_desc {
    kiln_dtype dtype;
    int ndim;
    int64_t shape[KILN_MAX_DIMS];
    int64_t stride[KILN_MAX_DIMS], offset;
} kiln_desc;

typedef struct kiln_op kiln_op;

/* An operation being written: operands and attributes in, descriptions of the outputs out. */
typedef struct kiln_call {
    const kiln_op *op;
    int nin, nout;
    kiln_tensor **in;                /* NULL where an optional operand is absent */
    kiln_attrs attrs;                /* a copy: the shape rule may normalise it (negative dims, defaults) */
    kiln_desc out[KILN_MAX_OUTPUTS]; /* filled by the shape rule */
} kiln_call;

/* A gradient being written: the rule composes gin[i] (NULL: zero) for each i with need[i] out of the rest. A gradient
 * whose shape is a broadcast of its operand's is summed back to it by the caller. */
typedef struct kiln_grad_call {
    const kiln_op *op;
    const kiln_attrs *attrs;
    int nin, nout;
    kiln_tensor **in;   /* operands, NULL where absent or skipped */
    kiln_tensor **out;  /* results, NULL where skipped */
    kiln_tensor **gout; /* d loss / d out[j]; NULL where nothing flows back */
    const bool *need;   /* need[i]: gin[i] is wanted */
    kiln_tensor **gin;
    int part_dim;       /* not -1: gin[0] is of that part of in[0] only which begins at part_start along this dim … */
    int64_t part_start; /* … the rest is zero, which need not be written (placed.h) */
} kiln_grad_call;

/* Element types an operation declares, for its checks and its tests. */
enum {
    KILN_T_BOOL = 1 << KILN_BOOL,
    KILN_T_INTS = 1 << KILN_U8 | 1 << KILN_I32 | 1 << KILN_I64,
    KILN_T_FLOATS = 1 << KILN_F16 | 1 << KILN_BF16 | 1 << KILN_F32 | 1 << KILN_F64,
    KILN_T_NUMBERS = KILN_T_INTS | KILN_T_FLOATS,
    KILN_T_ALL = KILN_T_NUMBERS | KILN_T_BOOL
};

/* What a gradient does not look at: it is NULL in the call. Handles that nobody wants cost as much as a node. */
enum { KILN_SKIPS_OPERANDS = 1, KILN_SKIPS_RESULTS = 2, KILN_SKIPS_BOTH = 3 };

/* Whose elements the gradient of an operand reads; of the others it may ask shapes and types. What is read is kept
 * until the gradient was computed (trace/needs.c, tests/test_needs.c). */
enum {
    KILN_READS_X = 1, /* the first operand */
    KILN_READS_Y = 2, /* the second one */
    KILN_READS_Z = 4, /* the third one */
    KILN_READS_W = 8, /* the fourth one */
    KILN_READS_OPERANDS = 0xff,
    KILN_READS_RESULT = 0x100, /* any result */
    KILN_READS_NOTHING = 0x200
};

/* Which integers say where a window begins. They are constants of a plan until they are seen to change (plan/vary.c).
 */
enum {
    KILN_START_NONE,
    KILN_START_SLICE,  /* the second says where it begins, the third where it ends */
    KILN_START_SECOND, /* the second */
    KILN_START_LAST    /* the last */
};

/* How a reduction folds elements together. */
typedef enum kiln_fold {
    KILN_FOLD_SUM,
    KILN_FOLD_PROD,
    KILN_FOLD_MAX,
    KILN_FOLD_MIN,
    KILN_FOLD_ANY,
    KILN_FOLD_ALL,
    KILN_FOLDS
} kiln_fold;

/* What an operation wants of the elements of operand 1, so that one that finds others fails while it runs: indices are
 * to be below a limit, or to be `except`. Operations that want the same of the same operand need it looked at once. */
typedef struct kiln_demand {
    int64_t limit, except;
} kiln_demand;

/* A kernel's operands as counting its FLOP needs them. */
typedef struct kiln_work_shape {
    int ndim;
    const int64_t *shape;
} kiln_work_shape;

typedef struct kiln_work {
    int nin, nout;
    kiln_work_shape in[KILN_MAX_INPUTS], out[KILN_MAX_OUTPUTS];
    const int64_t *ints;
    int64_t results; /* elements of the first output, also where a group finishes them */
} kiln_work;

struct kiln_op {
    const char *name; /* PyTorch's */
    const char
        *attrs; /* names of the integers, a bar, names of the floats: "dim keepdim | eps"; "dims..." for the rest */
    kiln_class cls;
    kiln_autocast_class autocast;
    uint32_t dtypes;    /* KILN_T_*: of the first operand (for all "x" operands in the cases below) */
    int8_t min_in;      /* operands that must be there */
    int8_t max_in;      /* operands there can be; those from min_in on may be NULL */
    int8_t nout;        /* 0 stands for 1 */
    int16_t pointwise;  /* for KILN_CLASS_POINTWISE: its row in pointwise.def */
    uint8_t fold;       /* for KILN_CLASS_REDUCE: kiln_fold */
    uint8_t picks;      /* a bit for each operand of which it reads no more elements than the result has */
    uint8_t led;        /* a bit for each operand that can be made on the way, row by row: of the first result's shape,
                           and of its rows each is read as a whole before any of that row is written */
    uint8_t grad_skips; /* KILN_SKIPS_*: what its gradient does not look at */
    bool keeps_half; /* a composition that is right in 16 bits as it stands: it moves elements, or is one node. Others
                        get f16 and bf16 operands as f32, and their results are rounded once */
    const struct kiln_op *heart; /* of a composition that keeps_half: the node whose result it finishes, or NULL. Where
                                    the device has that in f32 only, or operations run one by one, all of it is f32 */
    uint16_t grad_reads[3]; /* KILN_READS_*: what the gradients of the first operands read; what is not said is as for
                               the operand before, and for the first all operands that are not skipped */
    uint8_t start;          /* KILN_START_* */
    uint8_t along; /* which integer, and 1, names the only dim along which elements meet: slices along any other dim of
                      all operands give slices of the results. 0: it does not say so, or its class does */
    bool pitched;  /* rows of its first operand, of two dims, may be further apart than they are long, which the class
                      does not say; the other operands are dense */
    uint8_t draws; /* which integer says that it draws random numbers, by a seed and an offset among its floats, and 1;
                      0: it draws none, or is KILN_CLASS_RANDOM */
    double lo, hi; /* where the test operands are drawn from; both 0 stand for -2 … 2 */

    /* The shape and dtype rule: checks c->in, normalises c->attrs, fills c->out. False with an error otherwise. */
    bool (*infer)(kiln_call *c);

    /* Writes the operation with others; c->out is already filled when `infer` exists. out[j] are handles the scope
     * owns. For KILN_CLASS_COMPOSITE the only way it runs; for others used on devices without a kernel of their own. */
    bool (*compose)(kiln_call *c, kiln_tensor **out);

    /* The gradient; NULL for operations that have none (their outputs then never need one). */
    bool (*grad)(kiln_grad_call *g);

    /* NULL: it cannot fail while it runs. Where one can, its kernels come before anything that a step writes. */
    kiln_demand (*demand)(int ndim, const int64_t *shape, const int64_t *ints); /* the shape is operand 0's */

    /* Floating-point operations; NULL: one an element of its results. */
    int64_t (*flops)(const kiln_work *w);

    /* Fills the error for what a kernel reported in place of a bad index, `at` the place it gave; NULL: it was an index
     * outside its range. */
    void (*explain)(kiln_error *e, const int64_t *ints, int64_t at);

    /* Test cases, NULL-terminated, each "operands | integers | floats". Operands:
     *   x[2,3]  a tensor of the dtype under test, drawn from lo … hi
     *   d[2,3]  the same with all elements distinct
     *   p[2,3]  the same, positive: 0.5 … 2
     *   i5[2,3] i64 indices below 5
     *   n3,1,2[3]  i64 numbers as listed
     *   b[2,3]  booleans
     *   f[2,3]  of the float dtype, whatever is tested
     *   s[2,3]  as x, but f32 where that is of 16 bits
     *   q[2,3]  of the float dtype, positive, the last dim sums to 1
     *   -       an absent operand
     * The test driver multiplies them by dtypes and memory layouts, and checks forward, gradients, errors. */
    const char *const *cases;
};

/* A family's records, NULL-terminated; all families are listed in table.c. */
extern const kiln_op *const kiln_ops_pointwise[],
    *const kiln_ops_view[], *const kiln_ops_shape[],
                                *const kiln_ops_create[],
                                    *const kiln_ops_random[],
                                        *const kiln_ops_reduce[],
                                            *const kiln_ops_scan[],
                                                *const kiln_ops_sort[],
                                                    *const kiln_ops_index[],
                                                        *const kiln_ops_matmul[],
                                                            *const kiln_ops_conv[],
                                                                *const kiln_ops_pool[],
                                                                    *const kiln_ops_resize[],
                                                                        *const kiln_ops_norm[],
                                                                            *const kiln_ops_nn[],
                                                                                *const kiln_ops_attention[],
                                                                                    *const kiln_ops_lstm[],
                                                                                        *const kiln_ops_loss[],
                                                                                            *const kiln_ops_ctc[],
                                                                                                *const kiln_ops_move[];
extern const kiln_op *const kiln_ops_samples[], *const kiln_ops_require[], *const kiln_ops_rotary[];

/* KILN_READS_*: what the gradient of operand k reads, as the record says it. */
unsigned kiln_op_reads(const kiln_op *op, int k);

int kiln_op_count(void);
const kiln_op *kiln_op_at(int i);
const kiln_op *kiln_op_find(const char *name); /* NULL when there is none */

/* Writes an operation: checks it, picks kernel or composition for the operands' device, records it. outs[j] receives
 * handles that the current scope owns. Implemented by the trace. NULL among the first min_in operands gives false. */
bool kiln_op_call(const kiln_op *op, kiln_tensor *const *in, int nin, const kiln_attrs *attrs, kiln_tensor **outs);

/* The same for operations with one output: the handle, or NULL. */
kiln_tensor *kiln_op_one(const kiln_op *op, kiln_tensor *const *in, int nin, const kiln_attrs *attrs);

/* Functions that write several operations begin with KILN_TIDY and return KILN_KEPT(result): outside any scope nobody
 * else would release what they make on their way. */
typedef struct kiln_tidy {
    kiln_scope_mark scope; /* depth 0: there was one already */
} kiln_tidy;
static inline kiln_tidy kiln_tidy_begin(void)
{
    kiln_thread *th = kiln_thread_state();
    return (kiln_tidy){th && !th->nframes ? kiln_scope_enter(false) : (kiln_scope_mark){0}};
}
static inline void kiln_tidy_end(kiln_tidy *t)
{
    if (t->scope.depth)
        kiln_scope_leave(&t->scope);
}
#define KILN_TIDY         kiln_tidy tidy __attribute__((cleanup(kiln_tidy_end))) = kiln_tidy_begin()
#define KILN_KEPT(result) (tidy.scope.depth ? kiln_keep(result) : (result))

/* Creation operations have no operand to take the device from. */
kiln_tensor *kiln_op_create(const kiln_op *op, const kiln_attrs *attrs, kiln_device device);

/* Shorthands: KILN_OP(softmax, KILN_IN(x), KILN_I(dim)) and attribute literals. */
#define KILN_IN(...)                                                                                                   \
    (kiln_tensor *const[]){__VA_ARGS__}, (int)(sizeof((kiln_tensor *const[]){__VA_ARGS__}) / sizeof(kiln_tensor *))
extern const kiln_attrs kiln_no_attrs;
#define KILN_NO_ATTRS (&kiln_no_attrs)
#define KILN_I(...)                                                                                                    \
    (&(const kiln_attrs){.nints = (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), .i = {__VA_ARGS__}})
#define KILN_F(...)                                                                                                    \
    (&(const kiln_attrs){.nfloats = (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), .f = {__VA_ARGS__}})
#define KILN_OP(name, in_and_count, attrs) kiln_op_one(&kiln_op_##name, in_and_count, attrs)
#define KILN_CASES                         (const char *const[])

/* ---- Checks that rules share. Each raises an error in c->op's name and returns false when it does not hold. ---- */

/* Wraps a negative dim (of a tensor with ndim dims; a 0-dim tensor accepts 0 and -1) in place. */
bool kiln_check_dim(const kiln_call *c, int64_t *dim, int ndim);
bool kiln_check_ndim(const kiln_call *c, int operand, int ndim_min, int ndim_max);
bool kiln_check_dtype(const kiln_call *c, int operand, uint32_t allowed);
bool kiln_check_same_dtype(const kiln_call *c, int a, int b);
bool kiln_check_size(const kiln_call *c, int operand, int dim, int64_t size);      /* in[operand].shape[dim] == size */
#define kiln_check_attr(c, holds, ...) ((holds) || kiln_fail_attr(c, __VA_ARGS__)) /* texts are made when needed */
bool kiln_fail_attr(const kiln_call *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A list as users give it, "count, array": 0 … most elements that are there; false with an error otherwise. */
bool kiln_check_list(const char *operation, int n, const int64_t *list, int most);

/* Whether a tensor of `dtype` can hold the number; false with an error otherwise. Fractions are cut off, unsigned types
 * take negative numbers modulo their range, NaN and infinity are numbers of float types. */
bool kiln_check_number(const char *operation, double value, kiln_dtype dtype);

/* The broadcast of two shapes into `out`; false without an error when they do not fit. */
bool kiln_broadcast(int an, const int64_t *a, int bn, const int64_t *b, int *outn, int64_t *out);

/* Product of sizes, -1 when it overflows or a size is negative. */
int64_t kiln_count(int ndim, const int64_t *shape);

/* out[j] = description of a dense result. */
void kiln_desc_set(kiln_desc *d, kiln_dtype dtype, int ndim, const int64_t *shape);
void kiln_desc_like(kiln_desc *d, const kiln_tensor *t); /* same dtype and shape as t, dense */

/* "[2, 3]" in a kiln_text buffer, for messages. */
const char *kiln_shape_text(int ndim, const int64_t *shape);

#endif
