/* Connectionist temporal classification: the negative log probability that a sequence of frames spells the targets,
 * summed over all alignments. The recursion over the frames is written out with other operations, so that its gradients
 * come from them. "Impossible" is a large negative number rather than -inf, whose differences would be NaN. */
#include <math.h>
#include "ops/helpers.h"

#define IMPOSSIBLE (-1e30)

enum { BLANK, REDUCTION, ZERO_INFINITY };

static bool ctc_infer(kiln_call *c)
{
    const kiln_tensor *log_p = c->in[0], *targets = c->in[1];
    if (!kiln_check_ndim(c, 0, 3, 3) || !kiln_check_ndim(c, 1, 2, 2))
        return false;
    int64_t batch = log_p->shape[1], blank = c->attrs.i[BLANK], reduction = c->attrs.i[REDUCTION];
    for (int k = 1; k < 4; k++)
        if (!kiln_check_dtype(c, k, KILN_T_INTS))
            return false;
    if (targets->shape[0] != batch)
        return kiln_fail(KILN_E_SHAPE, c->op->name,
                         "log_p %s (time, batch, classes) and targets %s (batch, length) differ in batch size",
                         kiln_shape_text(3, log_p->shape), kiln_shape_text(2, targets->shape));
    for (int k = 2; k < 4; k++)
        if (!kiln_check_ndim(c, k, 1, 1) || !kiln_check_size(c, k, 0, batch))
            return false;
    if (!kiln_check_attr(c, blank >= 0 && blank < log_p->shape[2], "blank %lld is not one of the %lld classes",
                         (long long)blank, (long long)log_p->shape[2]) ||
        !kiln_check_attr(c, reduction >= KILN_MEAN && reduction <= KILN_NONE,
                         "reduction %lld is none of mean, sum, none", (long long)reduction))
        return false;
    kiln_desc_set(&c->out[0], (kiln_dtype)log_p->dtype, reduction == KILN_NONE, &batch);
    return true;
}

/* One row a sequence, one column a state: blank, first label, blank, second label, …, blank. */
typedef struct states {
    int64_t n;           /* 2·S + 1 */
    kiln_tensor *labels; /* [N, n] i64; blank past a sequence's own end */
    kiln_tensor *skips;  /* [N, n] bool: may be entered from two states before, over the blank */
} states;

/* x moved `by` columns to the right; what comes in from the left is `fill`. */
static kiln_tensor *moved(kiln_tensor *x, int64_t by, double fill)
{
    return kiln_pad(x, 2, (int64_t[]){by, -by}, KILN_PAD_CONSTANT, fill);
}

static bool make_states(kiln_tensor *targets, kiln_tensor *lengths, int64_t blank, states *s)
{
    int64_t batch = targets->shape[0], length = targets->shape[1];
    s->n = 2 * length + 1;
    kiln_tensor *places = NULL;
    kiln_on_device (targets->device)
        places = kiln_arange(0, (double)length, 1, KILN_I64);
    kiln_tensor *past = kiln_ge(places, kiln_unsqueeze(lengths, 1)); /* padding may hold anything */
    kiln_tensor *labels = kiln_masked_fill(targets, past, (double)blank);
    kiln_tensor *blanks = kiln_full_like(labels, (double)blank);
    kiln_tensor *pairs = kiln_stack(2, (kiln_tensor *[]){blanks, labels}, 2); /* [N, S, 2] */
    pairs = kiln_reshape(pairs, 2, (int64_t[]){batch, 2 * length});
    s->labels = kiln_pad(pairs, 2, (int64_t[]){0, 1}, KILN_PAD_CONSTANT, (double)blank);
    if (s->n < 3)
        return s->labels != NULL;
    kiln_tensor *differs = kiln_ne(s->labels, moved(s->labels, 2, (double)blank));
    s->skips = kiln_logical_and(kiln_ne_scalar(s->labels, (double)blank), differs);
    return s->skips != NULL;
}

/* log(exp a + exp b + exp c); c may be absent. */
static kiln_tensor *log_add(kiln_tensor *a, kiln_tensor *b, kiln_tensor *c)
{
    kiln_tensor *m = NULL;
    kiln_no_grad
        m = c ? kiln_maximum(kiln_maximum(a, b), c) : kiln_maximum(a, b);
    kiln_tensor *sum = kiln_add(kiln_exp(kiln_sub(a, m)), kiln_exp(kiln_sub(b, m)));
    if (c)
        sum = kiln_add(sum, kiln_exp(kiln_sub(c, m)));
    return kiln_add(m, kiln_log(sum));
}

/* log probability of being in each state after one more frame, [N, n]. */
static kiln_tensor *advance(const states *s, kiln_tensor *alpha, kiln_tensor *frame)
{
    kiln_tensor *skipped = NULL;
    if (s->skips) {
        skipped = kiln_masked_fill(moved(alpha, 2, IMPOSSIBLE), kiln_logical_not(s->skips), IMPOSSIBLE);
        if (!skipped)
            return NULL;
    }
    return kiln_add(log_add(alpha, moved(alpha, 1, IMPOSSIBLE), skipped), frame);
}

/* Runs over all frames; a sequence keeps its state from its own end on. */
static kiln_tensor *run_frames(const states *s, kiln_tensor *log_p, kiln_tensor *lengths)
{
    int64_t frames = log_p->shape[0], batch = log_p->shape[1];
    int64_t shape[] = {frames, batch, s->n};
    kiln_tensor *index = kiln_contiguous(kiln_expand(kiln_unsqueeze(s->labels, 0), 3, shape));
    kiln_tensor *each = kiln_clamp(kiln_gather(log_p, 2, index), IMPOSSIBLE, INFINITY);
    kiln_tensor *alpha =
        kiln_fill_like(log_p, 2, (int64_t[]){batch, 1}, 0); /* before the first frame: the first state */
    alpha = kiln_pad(alpha, 2, (int64_t[]){0, s->n - 1}, KILN_PAD_CONSTANT, IMPOSSIBLE);
    for (int64_t t = 0; alpha && t < frames; t++) {
        kiln_tensor *next = advance(s, alpha, kiln_select(each, 0, t));
        alpha = kiln_where(kiln_unsqueeze(kiln_gt_scalar(lengths, (double)t), 1), next, alpha);
    }
    return alpha;
}

/* An alignment ends in the last label or the blank after it: states 2·length - 1 and 2·length. */
static kiln_tensor *log_likelihood(kiln_tensor *alpha, kiln_tensor *lengths)
{
    kiln_tensor *last = kiln_unsqueeze(kiln_mul_scalar(lengths, 2), 1);
    kiln_tensor *none = kiln_eq_scalar(last, 0);
    kiln_tensor *before = kiln_masked_fill(kiln_add_scalar(last, -1), none, 0);
    kiln_tensor *label = kiln_masked_fill(kiln_gather(alpha, 1, before), none, IMPOSSIBLE);
    return kiln_squeeze(log_add(kiln_gather(alpha, 1, last), label, NULL), 1);
}

static bool ctc_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *log_p = c->in[0], *targets = kiln_cast(c->in[1], KILN_I64);
    kiln_tensor *frames = kiln_cast(c->in[2], KILN_I64), *lengths = kiln_cast(c->in[3], KILN_I64);
    states s = {0};
    if (!log_p || !targets || !frames || !lengths || !make_states(targets, lengths, c->attrs.i[BLANK], &s))
        return false;
    kiln_tensor *likelihood = log_likelihood(run_frames(&s, log_p, frames), lengths);
    kiln_tensor *impossible = kiln_lt_scalar(likelihood, IMPOSSIBLE / 2);
    kiln_tensor *loss = kiln_masked_fill(kiln_neg(likelihood), impossible, c->attrs.i[ZERO_INFINITY] ? 0 : INFINITY);
    if (c->attrs.i[REDUCTION] == KILN_SUM)
        loss = kiln_sum_all(loss);
    if (c->attrs.i[REDUCTION] == KILN_MEAN) {
        kiln_tensor *labels = kiln_clamp(kiln_cast(lengths, (kiln_dtype)log_p->dtype), 1, INFINITY);
        loss = kiln_mean_all(kiln_div(loss, labels));
    }
    out[0] = kiln_cast(loss, c->out[0].dtype);
    return out[0] != NULL;
}

/* Operands: log_p [T, N, C], targets [N, S], input_lengths [N], target_lengths [N]. */
const kiln_op kiln_op_ctc_loss = {
    .name = "ctc_loss",
    .attrs = "blank reduction zero_infinity",
    .cls = KILN_CLASS_COMPOSITE,
    .autocast = KILN_CAST_FLOAT,
    .dtypes = KILN_T_FLOATS,
    .min_in = 4,
    .max_in = 4,
    .infer = ctc_infer,
    .compose = ctc_compose,
    .cases =
        KILN_CASES{"x[6,2,4] n1,2,3,3[2,2] n6,5[2] n2,2[2] | 0 0 0", "x[5,2,3] n0,1,0,-1[2,2] n5,3[2] n2,1[2] | 2 2 0",
                   "x[4,1,3] n1,1[1,2] n4[1] n2[1] | 0 1 0", "x[3,2,3] n1,1,2,1[2,2] n2,3[2] n2,0[2] | 0 2 1", NULL},
};

kiln_tensor *kiln_ctc_loss(kiln_tensor *log_p, kiln_tensor *targets, kiln_tensor *input_lengths,
                           kiln_tensor *target_lengths, int64_t blank, kiln_reduction reduction, bool zero_infinity)
{
    return KILN_OP(ctc_loss, KILN_IN(log_p, targets, input_lengths, target_lengths),
                   KILN_I(blank, reduction, zero_infinity));
}

const kiln_op *const kiln_ops_ctc[] = {&kiln_op_ctc_loss, NULL};
