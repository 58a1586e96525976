/* The rows of pointwise.def as an enum and a table, and the rules that their records share. */
#ifndef KILN_OPS_POINTWISE_H
#define KILN_OPS_POINTWISE_H

#include "ops/widen.h"

/* Register classes: what a pointwise expression is computed in. */
typedef enum kiln_pw_class {
    KILN_PW_F32,  /* float: f16, bf16, f32 */
    KILN_PW_F64,  /* double: f64 */
    KILN_PW_I64,  /* int64_t: u8, i32, i64 */
    KILN_PW_BOOL, /* uint8_t, 0 or 1: bool */
    KILN_PW_CLASSES
} kiln_pw_class;

static inline kiln_pw_class kiln_pw_class_of(kiln_dtype dtype)
{
    return dtype == KILN_BOOL  ? KILN_PW_BOOL
           : dtype <= KILN_I64 ? KILN_PW_I64
           : dtype == KILN_F64 ? KILN_PW_F64
                               : KILN_PW_F32;
}

static inline size_t kiln_pw_class_size(kiln_pw_class cls)
{
    return cls == KILN_PW_BOOL ? 1 : cls == KILN_PW_F32 ? 4 : 8;
}

/* KILN_PW_add, KILN_PW_sub, …, KILN_PW_ROWS */
#define KILN_PW(name, ...)      KILN_PW_##name,
#define KILN_PW_RING(name, ...) KILN_PW_##name,
#define KILN_PW_TEST(name, ...) KILN_PW_##name,
#define KILN_PW_PICK(name, ...) KILN_PW_##name,
#define KILN_PW_MAKE(name, ...) KILN_PW_##name,
#define KILN_PW_CAST(name)      KILN_PW_##name,
#define KILN_PW_COPY(name, ...) KILN_PW_##name,
typedef enum kiln_pw_id {
#include "ops/pointwise.def"
    KILN_PW_ROWS
} kiln_pw_id;
#undef KILN_PW
#undef KILN_PW_RING
#undef KILN_PW_TEST
#undef KILN_PW_PICK
#undef KILN_PW_MAKE
#undef KILN_PW_CAST
#undef KILN_PW_COPY

typedef enum kiln_pw_kind {
    KILN_PW_IS_SAME, /* operands and result of one class */
    KILN_PW_IS_RING, /* the same; integers are computed unsigned */
    KILN_PW_IS_TEST, /* operands of one class, the result bool */
    KILN_PW_IS_PICK, /* operand 0 bool, the others and the result of one class */
    KILN_PW_IS_MAKE, /* no operands */
    KILN_PW_IS_CAST  /* the operand of one class, the result of another */
} kiln_pw_kind;

typedef struct kiln_pw_row {
    const char *name;
    const char *text; /* the expression; NULL for a cast */
    int8_t kind;      /* kiln_pw_kind */
    int8_t arity;     /* operands */
    int8_t scalars;   /* run-time scalars: s, t */
    int8_t classes;   /* bit 1 << kiln_pw_class: where the row exists */
} kiln_pw_row;
KILN_PLUGIN_API extern const kiln_pw_row kiln_pw_rows[KILN_PW_ROWS];

/* A record for every row that has operands. */
#define KILN_PW(name, ...)      extern const kiln_op kiln_op_##name;
#define KILN_PW_RING(name, ...) extern const kiln_op kiln_op_##name;
#define KILN_PW_TEST(name, ...) extern const kiln_op kiln_op_##name;
#define KILN_PW_PICK(name, ...) extern const kiln_op kiln_op_##name;
#define KILN_PW_MAKE(name, ...)
#define KILN_PW_COPY(name, ...)
#define KILN_PW_CAST(name) extern const kiln_op kiln_op_##name;
#include "ops/pointwise.def"
#undef KILN_PW
#undef KILN_PW_RING
#undef KILN_PW_TEST
#undef KILN_PW_PICK
#undef KILN_PW_MAKE
#undef KILN_PW_CAST
#undef KILN_PW_COPY

/* The record of a row that has operands. */
const kiln_op *kiln_pw_op(kiln_pw_id row);

/* The shape and dtype rule of all of them. */
bool kiln_pw_infer(kiln_call *c);

/* The type tensors give together by PyTorch's rules: a tensor without dims counts only where its category (bool <
 * integer < float) is above that of those with dims. Operands must not be NULL. */
kiln_dtype kiln_pw_promote(int n, kiln_tensor *const *in);

/* The type a tensor and a number give: a float tensor keeps its type, an integer one becomes f32 with a number that is
 * not whole, a bool one takes the number's category. */
kiln_dtype kiln_pw_promote_scalar(const kiln_tensor *x, double s);

/* What the public functions do: cast the operands to the type they promote to (f32 where the operation takes floats
 * only and they are none), then write the operation. */
kiln_tensor *kiln_pw_call(const kiln_op *op, kiln_tensor *const *in, int n, const kiln_attrs *attrs);
kiln_tensor *kiln_pw_call_scalar(const kiln_op *op, kiln_tensor *x, double s); /* s is the only attribute */
kiln_tensor *kiln_pw_call_as(const kiln_op *op, kiln_dtype dtype, kiln_tensor *const *in, int n,
                             const kiln_attrs *attrs); /* to `dtype` */

/* The result that a gradient is told from: as it is, or, where it was rounded to 16 bits, computed anew in f32. */
kiln_tensor *kiln_pw_result(const kiln_grad_call *g);

/* An operand in f32 where it is half, if the gradients that are wanted read it: others may have been given up. */
kiln_tensor *kiln_pw_wide(const kiln_grad_call *g, int operand);

/* A gradient rule that says the operation is constant almost everywhere. */
bool kiln_pw_zero_grad(kiln_grad_call *g);

/* The rule of op(x, g) that is linear in g and, in x, constant almost everywhere: relu_grad and its like. */
bool kiln_pw_gate_grad(kiln_grad_call *g);

/* ---- How the records are written ---- */

/* The public function of an operation of one or two operands without attributes. */
#define KILN_PW_FUNCTION1(name)                                                                                        \
    kiln_tensor *kiln_##name(kiln_tensor *x)                                                                           \
    {                                                                                                                  \
        return kiln_pw_call(&kiln_op_##name, KILN_IN(x), KILN_NO_ATTRS);                                               \
    }
#define KILN_PW_FUNCTION2(name)                                                                                        \
    kiln_tensor *kiln_##name(kiln_tensor *a, kiln_tensor *b)                                                           \
    {                                                                                                                  \
        return kiln_pw_call(&kiln_op_##name, KILN_IN(a, b), KILN_NO_ATTRS);                                            \
    }

/* gin[i] = expression where it is wanted; leaves the rule when the expression could not be written. */
#define KILN_GIN(i, ...)                                                                                               \
    do {                                                                                                               \
        if (g->need[i] && !(g->gin[i] = (__VA_ARGS__)))                                                                \
            return false;                                                                                              \
    } while (0)

/* Rules are computed in f32 where operands are half, so that there is one rounding. Those of one row, which rounds once
 * by itself, take the operands as they are: KILN_PW_ROW1, KILN_PW_ROW2. */

/* A rule for one operand: its gradient from x (the operand) and gy (the result's gradient); KILN_PW_GRAD1Y: and from y,
 * the result. */
#define KILN_PW_GRAD1(name, ...)  KILN_PW_RULE1_(name, kiln_pw_wide, kiln_widen, NULL, __VA_ARGS__)
#define KILN_PW_GRAD1Y(name, ...) KILN_PW_RULE1_(name, kiln_pw_wide, kiln_widen, kiln_pw_result(g), __VA_ARGS__)
#define KILN_PW_ROW1(name, ...)   KILN_PW_RULE1_(name, KILN_PW_OPERAND_, KILN_PW_AS_IT_IS_, g->out[0], __VA_ARGS__)
#define KILN_PW_RULE1_(name, operand, wide, result, ...)                                                               \
    static bool name##_rule(kiln_grad_call *g)                                                                         \
    {                                                                                                                  \
        kiln_tensor *x = operand(g, 0), *y = result, *gy = wide(g->gout[0]);                                           \
        const double *f = g->attrs->f;                                                                                 \
        (void)x, (void)y, (void)f;                                                                                     \
        KILN_GIN(0, __VA_ARGS__);                                                                                      \
        return true;                                                                                                   \
    }

/* A rule for two operands a and b. */
#define KILN_PW_GRAD2(name, ga, gb)  KILN_PW_RULE2_(name, kiln_pw_wide, kiln_widen, NULL, ga, gb)
#define KILN_PW_GRAD2Y(name, ga, gb) KILN_PW_RULE2_(name, kiln_pw_wide, kiln_widen, kiln_pw_result(g), ga, gb)
#define KILN_PW_ROW2(name, ga, gb)   KILN_PW_RULE2_(name, KILN_PW_OPERAND_, KILN_PW_AS_IT_IS_, g->out[0], ga, gb)
#define KILN_PW_RULE2_(name, operand, wide, result, ga, gb)                                                            \
    static bool name##_rule(kiln_grad_call *g)                                                                         \
    {                                                                                                                  \
        kiln_tensor *a = operand(g, 0), *b = operand(g, 1), *y = result, *gy = wide(g->gout[0]);                       \
        (void)a, (void)b, (void)y;                                                                                     \
        KILN_GIN(0, ga);                                                                                               \
        KILN_GIN(1, gb);                                                                                               \
        return true;                                                                                                   \
    }

/* A rule for op(a, b) that is `second` derivative in a and linear in b: the gradients that have rows of their own. */
#define KILN_PW_GRAD_OF_GRAD(name, second)                                                                             \
    KILN_PW_GRAD2(name, kiln_mul(kiln_mul(gy, b), second), kiln_op_one(g->op, KILN_IN(a, gy), g->attrs))

#define KILN_PW_AS_IT_IS_(t)   (t)
#define KILN_PW_OPERAND_(g, i) ((g)->in[i])

/* gy in f32 where it is half and what is made of it will be summed back to the shape of t. */
static inline kiln_tensor *kiln_pw_spread(kiln_tensor *gy, const kiln_tensor *t)
{
    return gy->ndim == t->ndim && kiln_count(gy->ndim, gy->shape) == kiln_count(t->ndim, t->shape) ? gy
                                                                                                   : kiln_widen(gy);
}

/* The fields that are the same in all records of n operands. */
#define KILN_PW_OP(row, n)                                                                                             \
    .name = #row, .cls = KILN_CLASS_POINTWISE, .min_in = n, .max_in = n, .pointwise = KILN_PW_##row,                   \
    .infer = kiln_pw_infer

/* The shapes operations are tried with: u and v are the letters that tell what operands are drawn from, `scalars` the
 * run-time scalars. */
#define KILN_PW_CASES1                                                                                                 \
    KILN_CASES                                                                                                         \
    {                                                                                                                  \
        "x[2,3]", "x[]", "x[0,3]", "x[7,33]", "x[1]", NULL                                                             \
    }
#define KILN_PW_CASES1S(scalars)                                                                                       \
    KILN_CASES                                                                                                         \
    {                                                                                                                  \
        "x[2,3] | | " scalars, "x[] | | " scalars, "x[0,3] | | " scalars, "x[7,33] | | " scalars, NULL                 \
    }
#define KILN_PW_CASES2(u, v) KILN_PW_CASES2S(u, v, "")
#define KILN_PW_CASES2S(u, v, scalars)                                                                                 \
    KILN_CASES                                                                                                         \
    {                                                                                                                  \
        u "[2,3] " v "[2,3]" scalars, u "[2,3] " v "[3]" scalars, u "[2,1] " v "[1,3]" scalars,                        \
            u "[] " v "[4]" scalars, u "[4] " v "[]" scalars, u "[] " v "[]" scalars, u "[0,3] " v "[3]" scalars,      \
            u "[7,33] " v "[7,33]" scalars, NULL                                                                       \
    }

#endif
