/* LSTM cells for one element type and instruction set; rows_isa.h includes it beside rows_kernels.h. */

#define LOAD(p)     VEC(lane_load_some)(p, count)
#define STORE(p, x) VEC(lane_store_some)(p, x, count)

static void NAME(lstm)(const kiln_lstm_rows *p)
{
    int64_t n = p->row;
    for (int64_t r = 0; r < p->rows; r++) {
        const REAL *s = (const REAL *)p->product + r * 4 * p->block, *x = (const REAL *)p->x + r * 4 * n;
        const REAL *before = (const REAL *)p->c_before + r * n;
        REAL *c = (REAL *)p->c_out + r * n, *h = (REAL *)p->h_out + r * n, *g = (REAL *)p->gates_out + r * 4 * n;
        for (int64_t j = 0; j < p->units; j += VEC(lanes)) {
            int64_t count = p->units - j;
            VEC(vector) sum[4];
            for (int kind = 0; kind < 4; kind++)
                sum[kind] = LOAD(x + kind * n + j) + LOAD(s + kind * p->block + j);
            const VEC(vector) gi = VEC(sigmoid_lanes)(sum[0]), gf = VEC(sigmoid_lanes)(sum[1]);
            const VEC(vector) gg = VEC(tanh)(sum[2]), go = VEC(sigmoid_lanes)(sum[3]);
            const VEC(vector) cell = gf * LOAD(before + j) + gi * gg;
            STORE(g + j, gi);
            STORE(g + n + j, gf);
            STORE(g + 2 * n + j, gg);
            STORE(g + 3 * n + j, go);
            STORE(c + j, cell);
            STORE(h + j, go * VEC(tanh)(cell));
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
        for (int64_t j = 0; j < p->units; j += VEC(lanes)) {
            int64_t count = p->units - j;
            const VEC(vector) gi = LOAD(g + j), gf = LOAD(g + n + j), ga = LOAD(g + 2 * n + j),
                              go = LOAD(g + 3 * n + j);
            const VEC(vector) t = VEC(tanh)(LOAD(c + j)), from_h = LOAD(gh + j);
            const VEC(vector) d = LOAD(gc + j) + from_h * go * (1 - t * t);
            STORE(x + j, (d * ga + LOAD(gg_i + j)) * (gi * (1 - gi)));
            STORE(x + n + j, (d * LOAD(before + j) + LOAD(gg_f + j)) * (gf * (1 - gf)));
            STORE(x + 2 * n + j, (d * gi + LOAD(gg_g + j)) * (1 - ga * ga));
            STORE(x + 3 * n + j, (from_h * t + LOAD(gg_o + j)) * (go * (1 - go)));
            STORE(carry + j, d * gf);
        }
    }
}

#undef LOAD
#undef STORE
