/* LSTM cells for one element type and instruction set; rows_isa.h includes it beside rows_kernels.h. */

static inline REAL NAME(gate)(REAL x)
{
    REAL e = NAME(exp)(-NAME(abs)(x));
    return (x < 0 ? e : (REAL)1) / ((REAL)1 + e);
}

static void NAME(lstm)(const kiln_lstm_rows *p)
{
    int64_t n = p->row;
    for (int64_t r = 0; r < p->rows; r++) {
        const REAL *s = (const REAL *)p->product + r * 4 * p->block, *x = (const REAL *)p->x + r * 4 * n;
        const REAL *before = (const REAL *)p->c_before + r * n;
        REAL *c = (REAL *)p->c_out + r * n, *h = (REAL *)p->h_out + r * n, *g = (REAL *)p->gates_out + r * 4 * n;
        IVDEP
        for (int64_t j = 0; j < p->units; j++) {
            REAL gi = NAME(gate)(x[j] + s[j]), gf = NAME(gate)(x[n + j] + s[p->block + j]);
            REAL gg = NAME(tanh)(x[2 * n + j] + s[2 * p->block + j]);
            REAL go = NAME(gate)(x[3 * n + j] + s[3 * p->block + j]), cell = gf * before[j] + gi * gg;
            g[j] = gi;
            g[n + j] = gf;
            g[2 * n + j] = gg;
            g[3 * n + j] = go;
            c[j] = cell;
            h[j] = go * NAME(tanh)(cell);
        }
    }
}

/* to = a + b, where either may be absent. */
static inline void NAME(either)(REAL *to, const REAL *a, const REAL *b, int64_t n)
{
    if (a && b) {
        IVDEP
        for (int64_t j = 0; j < n; j++)
            to[j] = a[j] + b[j];
    } else if (a || b)
        memcpy(to, a ? a : b, (size_t)n * sizeof *to);
    else
        memset(to, 0, (size_t)n * sizeof *to);
}

static inline const REAL *NAME(from)(const void *p, int64_t offset)
{
    return p ? (const REAL *)p + offset : NULL;
}

static void NAME(lstm_grad)(const kiln_lstm_rows *p)
{
    int64_t n = p->row;
    for (int64_t r = 0; r < p->rows; r++) {
        const REAL *before = (const REAL *)p->c_before + r * n, *c = (const REAL *)p->c + r * n;
        const REAL *g = (const REAL *)p->gates + r * 4 * n, *gg = NAME(from)(p->ggates, r * 4 * n);
        REAL *x = (REAL *)p->gx_out + r * 4 * n, *carry = (REAL *)p->carry + r * n, gh[64], gc[64], zero[64] = {0};
        NAME(either)(gh, NAME(from)(p->product, r * p->block), NAME(from)(p->gh, r * n), p->units);
        NAME(either)(gc, p->first ? NULL : carry, NAME(from)(p->gc, r * n), p->units);
        const REAL *gg_i = gg ? gg : zero, *gg_f = gg ? gg + n : zero;
        const REAL *gg_g = gg ? gg + 2 * n : zero, *gg_o = gg ? gg + 3 * n : zero;
        IVDEP
        for (int64_t j = 0; j < p->units; j++) {
            REAL gi = g[j], gf = g[n + j], ga = g[2 * n + j], go = g[3 * n + j], t = NAME(tanh)(c[j]);
            REAL d = gc[j] + gh[j] * go * (1 - t * t);
            x[j] = (d * ga + gg_i[j]) * (gi * (1 - gi));
            x[n + j] = (d * before[j] + gg_f[j]) * (gf * (1 - gf));
            x[2 * n + j] = (d * gi + gg_g[j]) * (1 - ga * ga);
            x[3 * n + j] = (gh[j] * t + gg_o[j]) * (go * (1 - go));
            carry[j] = d * gf;
        }
    }
}
