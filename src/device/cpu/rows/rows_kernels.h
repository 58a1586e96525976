/* Row kernels for one element type and instruction set. rows_plain.c, rows_avx2.c and rows_avx512.c include it once a
 * type, with REAL (float), BITS (int32_t), NAME(x) (x of this type) and VEC(x) (a function on vectors) defined.
 *
 * Sums run in lanes of 64 bytes (PARTS vectors of WIDTH bytes) over blocks, whose sums are added in double: one order,
 * whatever the machine. Where the loops are simple they are left to the compiler. */
typedef REAL NAME(vec) __attribute__((vector_size(WIDTH), aligned(sizeof(REAL)), may_alias)); /* wherever x lies */
typedef BITS NAME(mask) __attribute__((vector_size(WIDTH), aligned(sizeof(REAL)), may_alias));
enum { NAME(LANES) = 64 / sizeof(REAL), NAME(PART) = WIDTH / sizeof(REAL) };

static inline NAME(vec) * NAME(part)(const REAL *x, int p)
{
    return (NAME(vec) *)(x + p * NAME(PART));
}

/* A NaN may be passed over: the sum that follows has it all the same. */
static REAL NAME(max)(const REAL *x, int64_t n)
{
    REAL max = -(REAL)INFINITY;
    NAME(vec) best[PARTS];
    for (int p = 0; p < PARTS; p++)
        best[p] = (NAME(vec)){0} + max;
    int64_t i = 0;
    for (; i + NAME(LANES) <= n; i += NAME(LANES))
        for (int p = 0; p < PARTS; p++) {
            NAME(vec) v = *NAME(part)(x + i, p);
            NAME(mask) more = v > best[p];
            best[p] = (NAME(vec))(((NAME(mask))v & more) | ((NAME(mask))best[p] & ~more));
        }
    for (int l = 0; l < NAME(LANES); l++)
        max = best[l / NAME(PART)][l % NAME(PART)] > max ? best[l / NAME(PART)][l % NAME(PART)] : max;
    for (; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

typedef REAL NAME(quad) __attribute__((vector_size(16)));
typedef BITS NAME(quad_mask) __attribute__((vector_size(16)));

static inline NAME(quad) NAME(larger)(NAME(quad) a, NAME(quad) b)
{
    NAME(quad_mask) more = a > b;
    return (NAME(quad))(((NAME(quad_mask))a & more) | ((NAME(quad_mask))b & ~more));
}

/* Halves of the lanes are put together until one is left: the same tree for vectors of any width. */
#define FOLD_LANES(name, fold_quads, fold)                                                                             \
    static inline REAL NAME(name)(const NAME(vec) * lanes)                                                             \
    {                                                                                                                  \
        NAME(quad) q[4];                                                                                               \
        memcpy(q, lanes, sizeof q);                                                                                    \
        q[0] = fold_quads(fold_quads(q[0], q[2]), fold_quads(q[1], q[3]));                                             \
        if (sizeof(REAL) == 8)                                                                                         \
            return fold(q[0][0], q[0][1]);                                                                             \
        return fold(fold(q[0][0], q[0][2 % (16 / sizeof(REAL))]), fold(q[0][1], q[0][3 % (16 / sizeof(REAL))]));       \
    }
#define SUM_OF(a, b)    ((a) + (b))
#define LARGER_OF(a, b) ((a) > (b) ? (a) : (b))
FOLD_LANES(lanes_sum, SUM_OF, SUM_OF)
FOLD_LANES(lanes_max, NAME(larger), LARGER_OF)
#undef FOLD_LANES
#undef SUM_OF
#undef LARGER_OF

/* Σ x over at most BLOCK elements. */
static double NAME(sum)(const REAL *x, int64_t n)
{
    NAME(vec) sum[PARTS] = {0};
    REAL tail[NAME(LANES)] = {0};
    int64_t i = 0;
    for (; i + NAME(LANES) <= n; i += NAME(LANES))
        for (int p = 0; p < PARTS; p++)
            sum[p] += *NAME(part)(x + i, p);
    memcpy(tail, x + i, (size_t)(n - i) * sizeof *x);
    for (int p = 0; p < PARTS; p++)
        sum[p] += *NAME(part)(tail, p);
    return (double)NAME(lanes_sum)(sum);
}

static inline void NAME(add_squares)(NAME(vec) * sum, const REAL *x, REAL mean)
{
    for (int p = 0; p < PARTS; p++) {
        NAME(vec) d = *NAME(part)(x, p) - mean;
        sum[p] += d * d;
    }
}

/* Σ (x - mean)² over at most BLOCK elements. */
static double NAME(sum_squares)(const REAL *x, int64_t n, REAL mean)
{
    NAME(vec) sum[PARTS] = {0};
    REAL tail[NAME(LANES)];
    int64_t i = 0;
    for (; i + NAME(LANES) <= n; i += NAME(LANES))
        NAME(add_squares)(sum, x + i, mean);
    for (int l = 0; l < NAME(LANES); l++)
        tail[l] = mean;
    memcpy(tail, x + i, (size_t)(n - i) * sizeof *x);
    NAME(add_squares)(sum, tail, mean);
    return (double)NAME(lanes_sum)(sum);
}

/* y = exp(x - shift) */
static void NAME(exp_less)(const REAL *x, REAL *y, int64_t n, REAL shift)
{
    for (int64_t i = 0; i < n; i += VEC(lanes))
        VEC(lane_store_some)(y + i, VEC(exp)(VEC(lane_load_some)(x + i, n - i) - shift), n - i);
}

/* y = (x - shift)·scale */
static void NAME(less_times)(const REAL *x, REAL *y, int64_t n, REAL shift, REAL scale)
{
    IVDEP
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - shift) * scale;
}

/* y = x - shift - less: in two steps, since their sum may have lost what x - shift has not */
static void NAME(less_less)(const REAL *x, REAL *y, int64_t n, REAL shift, REAL less)
{
    IVDEP
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] - shift - less;
}

static void NAME(softmax_row)(const REAL *x, REAL *y, int64_t n, bool log)
{
    REAL scratch[BLOCK], max = NAME(max)(x, n);
    double sum = 0;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t count = n - i < BLOCK ? n - i : BLOCK;
        REAL *e = log ? scratch : y + i;
        NAME(exp_less)(x + i, e, count, max);
        sum += NAME(sum)(e, count);
    }
    if (log)
        NAME(less_less)(x, y, n, max, (REAL)kiln_f64_log(sum));
    else
        NAME(less_times)(y, y, n, 0, (REAL)(1 / sum));
}

static void NAME(softmax)(const void *x, void *y, int64_t rows, int64_t n, bool log)
{
    for (int64_t row = 0; row < rows; row++)
        NAME(softmax_row)((const REAL *)x + row * n, (REAL *)y + row * n, n, log);
}

typedef struct NAME(figures) {
    REAL max[KILN_ROWS_COLUMNS], sum[KILN_ROWS_COLUMNS];
} NAME(figures);

/* The largest element of each column, and Σ exp(x - max); the terms go to y unless it is NULL. */
static void NAME(measure_columns)(NAME(figures) * f, const REAL *x, REAL *y, int64_t columns, int64_t n, int64_t inner)
{
    REAL e[KILN_ROWS_COLUMNS];
    for (int64_t c = 0; c < columns; c++) {
        f->max[c] = -(REAL)INFINITY;
        f->sum[c] = 0;
    }
    for (int64_t k = 0; k < n; k++)
        for (int64_t c = 0; c < columns; c++)
            f->max[c] = x[k * inner + c] > f->max[c] ? x[k * inner + c] : f->max[c];
    for (int64_t k = 0; k < n; k++) {
        for (int64_t c = 0; c < columns; c += VEC(lanes)) {
            int64_t count = columns - c;
            const VEC(vector) less =
                VEC(lane_load_some)(x + k * inner + c, count) - VEC(lane_load_some)(f->max + c, count);
            VEC(lane_store_some)(e + c, VEC(exp)(less), count);
        }
        for (int64_t c = 0; c < columns; c++)
            f->sum[c] += e[c];
        if (y)
            memcpy(y + k * inner, e, (size_t)columns * sizeof *e);
    }
}

static void NAME(softmax_columns)(const void *from, void *to, int64_t columns, int64_t n, int64_t inner, bool log)
{
    const REAL *x = from;
    REAL *y = to;
    NAME(figures) f;
    NAME(measure_columns)(&f, x, log ? NULL : y, columns, n, inner);
    for (int64_t c = 0; c < columns; c++)
        f.sum[c] = log ? NAME(log)(f.sum[c]) : 1 / f.sum[c];
    for (int64_t k = 0; k < n * inner; k += inner) {
        IVDEP
        for (int64_t c = 0; c < columns; c++)
            y[k + c] = log ? x[k + c] - f.max[c] - f.sum[c] : y[k + c] * f.sum[c];
    }
}

/* The mean of a row, and 1/√(variance + eps); `plain`: the mean counts as 0. */
static inline REAL NAME(moments)(const REAL *x, int64_t n, double eps, bool plain, REAL *rstd)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n && !plain; i += BLOCK)
        sum += NAME(sum)(x + i, n - i < BLOCK ? n - i : BLOCK);
    REAL mean = (REAL)(sum / (double)n);
    for (int64_t i = 0; i < n; i += BLOCK)
        squares += NAME(sum_squares)(x + i, n - i < BLOCK ? n - i : BLOCK, mean);
    *rstd = (REAL)(1 / kiln_f64_sqrt(squares / (double)n + eps));
    return mean;
}

static void NAME(normalize)(const void *from, void *to, void *means, void *rstds, int64_t rows, int64_t n, double eps)
{
    for (int64_t row = 0; row < rows; row++) {
        const REAL *x = (const REAL *)from + row * n;
        REAL rstd, mean = NAME(moments)(x, n, eps, false, &rstd);
        NAME(less_times)(x, (REAL *)to + row * n, n, mean, rstd);
        ((REAL *)means)[row] = mean;
        ((REAL *)rstds)[row] = rstd;
    }
}

/* ---- layer_norm ---- */

static void NAME(scale_shift)(const REAL *x, const REAL *w, const REAL *b, REAL *y, int64_t n, REAL mean, REAL rstd)
{
    if (w && b) {
        IVDEP
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] - mean) * rstd * w[i] + b[i];
        return;
    }
    IVDEP
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) * rstd * (w ? w[i] : 1) + (b ? b[i] : 0);
}

static void NAME(layer_norm)(const kiln_layer_norm_rows *r, double eps)
{
    int64_t n = r->n;
    for (int64_t row = 0; row < r->rows; row++) {
        const REAL *x = (const REAL *)r->x + row * n;
        REAL rstd, mean = NAME(moments)(x, n, eps, r->plain, &rstd);
        NAME(scale_shift)(x, r->weight, r->bias, (REAL *)r->y + row * n, n, mean, rstd);
        ((REAL *)r->mean)[row] = mean;
        ((REAL *)r->rstd)[row] = rstd;
    }
}

/* With z = (x - mean)·rstd and u = gy·weight: adds gy·z and gy to the sums over rows; Σ u and Σ u·z of up to BLOCK. */
static inline void NAME(layer_norm_sums)(const REAL *x, const REAL *gy, const REAL *w, REAL *gw, REAL *gb, int64_t n,
                                         REAL mean, REAL rstd, double *sum, double *along)
{
    NAME(vec) us[PARTS] = {0}, uzs[PARTS] = {0};
    int64_t i = 0;
    for (; i + NAME(LANES) <= n; i += NAME(LANES))
        for (int p = 0; p < PARTS; p++) {
            NAME(vec) g = *NAME(part)(gy + i, p), z = (*NAME(part)(x + i, p) - mean) * rstd;
            NAME(vec) u = g;
            if (w)
                u = g * *NAME(part)(w + i, p);
            us[p] += u;
            uzs[p] += u * z;
            *NAME(part)(gw + i, p) += g * z;
            *NAME(part)(gb + i, p) += g;
        }
    *sum += (double)NAME(lanes_sum)(us);
    *along += (double)NAME(lanes_sum)(uzs);
    for (; i < n; i++) {
        REAL z = (x[i] - mean) * rstd, u = w ? gy[i] * w[i] : gy[i];
        *sum += (double)u;
        *along += (double)(u * z);
        gw[i] += gy[i] * z;
        gb[i] += gy[i];
    }
}

static void NAME(layer_norm_grad)(const kiln_layer_norm_rows *r)
{
    int64_t n = r->n;
    if (!r->goes_on) {
        memset(r->gweight, 0, (size_t)n * sizeof(REAL));
        memset(r->gbias, 0, (size_t)n * sizeof(REAL));
    }
    for (int64_t row = 0; row < r->rows; row++) {
        const REAL *x = (const REAL *)r->x + row * n, *gy = (const REAL *)r->gy + row * n, *w = r->weight;
        REAL *gx = (REAL *)r->gx + row * n, mean = ((REAL *)r->mean)[row], rstd = ((REAL *)r->rstd)[row];
        double sum = 0, along = 0;
        for (int64_t i = 0; i < n; i += BLOCK)
            NAME(layer_norm_sums)
        (x + i, gy + i, w ? w + i : NULL, (REAL *)r->gweight + i, (REAL *)r->gbias + i, n - i < BLOCK ? n - i : BLOCK,
         mean, rstd, &sum, &along);
        REAL a = r->plain ? 0 : (REAL)(sum / (double)n), b = (REAL)(along / (double)n);
        if (w) {
            IVDEP
            for (int64_t i = 0; i < n; i++)
                gx[i] = rstd * (gy[i] * w[i] - a - (x[i] - mean) * rstd * b);
        } else {
            IVDEP
            for (int64_t i = 0; i < n; i++)
                gx[i] = rstd * (gy[i] - a - (x[i] - mean) * rstd * b);
        }
    }
}

/* ---- Attention: rows are short, so everything runs over whole vectors, the last of them padded ---- */

static inline int64_t NAME(seen)(const kiln_attend_rows *r, int64_t row)
{
    int64_t n = r->seen + row * r->grows;
    return n < r->end ? n : r->end;
}

static const BITS NAME(count)[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* x = scale·x, with minus infinity from n up to whole vectors; the largest. A NaN may be passed over, as in max. */
static inline REAL NAME(scale_max)(REAL *x, int64_t n, REAL scale)
{
    NAME(vec) best[PARTS];
    for (int p = 0; p < PARTS; p++)
        best[p] = (NAME(vec)){0} - (REAL)INFINITY;
    for (int64_t i = 0; i < n; i += NAME(LANES)) {
        BITS left = (BITS)(n - i);
        for (int p = 0; p < PARTS; p++) {
            NAME(vec) v = *NAME(part)(x + i, p) * scale, none = (NAME(vec)){0} - (REAL)INFINITY;
            if (left < NAME(LANES)) {
                NAME(mask) there = *(const NAME(mask) *)(NAME(count) + p * NAME(PART)) < left;
                v = (NAME(vec))(((NAME(mask))v & there) | ((NAME(mask))none & ~there));
            }
            *NAME(part)(x + i, p) = v;
            NAME(mask) more = v > best[p];
            best[p] = (NAME(vec))(((NAME(mask))v & more) | ((NAME(mask))best[p] & ~more));
        }
    }
    return NAME(lanes_max)(best);
}

static inline void NAME(hide)(REAL *x, int64_t n, int64_t end)
{
    if (n < end)
        memset(x + n, 0, (size_t)(end - n) * sizeof *x);
}

static inline int64_t NAME(whole)(int64_t n)
{
    return (n + NAME(LANES) - 1) / NAME(LANES) * NAME(LANES);
}

static void NAME(attend)(const kiln_attend_rows *r, void *shares, void *lses)
{
    REAL *share = shares, *lse = lses, largest[64];
    for (int64_t row = 0; row < r->rows; row++) {
        int64_t n = NAME(seen)(r, row), whole = NAME(whole)(n);
        REAL *x = (REAL *)r->x + row * r->line, max = NAME(scale_max)(x, n, (REAL)r->scale);
        NAME(exp_less)(x, x, whole, max);
        NAME(vec) sum[PARTS] = {0};
        for (int64_t i = 0; i < whole; i += NAME(LANES))
            for (int p = 0; p < PARTS; p++)
                sum[p] += *NAME(part)(x + i, p);
        NAME(hide)(x, whole, r->end);
        largest[row] = max;
        lse[row] = NAME(lanes_sum)(sum);
    }
    IVDEP
    for (int64_t row = 0; row < r->rows; row++) {
        share[row] = 1 / lse[row];
        lse[row] = largest[row] + NAME(log)(lse[row]);
    }
}

static void NAME(attend_grad)(const kiln_attend_rows *r, void *grads, const void *lses, const void *alongs)
{
    REAL scale = (REAL)r->scale;
    for (int64_t row = 0; row < r->rows; row++) {
        int64_t n = NAME(seen)(r, row), whole = NAME(whole)(n);
        REAL *x = (REAL *)r->x + row * r->line, *g = (REAL *)grads + row * r->line;
        REAL lse = ((const REAL *)lses)[row], along = ((const REAL *)alongs)[row];
        for (int64_t i = 0; i < whole; i += VEC(lanes)) {
            const VEC(vector) w = VEC(exp)(VEC(lane_load_some)(x + i, whole - i) * scale - lse);
            VEC(lane_store_some)(x + i, w, whole - i);
            VEC(lane_store_some)(g + i, w * (VEC(lane_load_some)(g + i, whole - i) - along) * scale, whole - i);
        }
        NAME(hide)(x, n, r->end);
        NAME(hide)(g, n, r->end);
    }
}

static void NAME(row_dots)(const void *as, int64_t a_row, const void *bs, int64_t b_row, int64_t rows, int64_t n,
                           void *to)
{
    for (int64_t row = 0; row < rows; row++) {
        const REAL *a = (const REAL *)as + row * a_row, *b = (const REAL *)bs + row * b_row;
        NAME(vec) sum[PARTS] = {0};
        REAL tail[2][NAME(LANES)] = {{0}};
        int64_t i = 0;
        for (; i + NAME(LANES) <= n; i += NAME(LANES))
            for (int p = 0; p < PARTS; p++)
                sum[p] += *NAME(part)(a + i, p) * *NAME(part)(b + i, p);
        if (i < n) {
            memcpy(tail[0], a + i, (size_t)(n - i) * sizeof *a);
            memcpy(tail[1], b + i, (size_t)(n - i) * sizeof *b);
            for (int p = 0; p < PARTS; p++)
                sum[p] += *NAME(part)(tail[0], p) * *NAME(part)(tail[1], p);
        }
        ((REAL *)to)[row] = NAME(lanes_sum)(sum);
    }
}
