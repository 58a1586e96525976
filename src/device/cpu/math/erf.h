/* The error function and the normal distribution. */

/* exp(-h·a²) = 2^n·p for h·a² of no more than some hundred; returns p. The square is never rounded: n·ln(2) is taken
 * from it while it is being added. */
KILN_LANE V F(exp_of_square)(V a, E h, V *n)
{
    V scaled = a * -h;
    *n = v_fma(scaled * a, K(log2e), K(magic)) - C(magic);
    V r = v_fma(scaled, a, *n * -C(ln2_short));
    return F(exp_core)(v_fma(*n, v_set(-C(ln2_short_rest)), r));
}

/* exp(a²)·erfc(a) and its like are t = 2/(a + shift) times a polynomial in (a - shift)/(a + shift), which is computed
 * such that it is exact around 0, where it matters most. */
#define ERFC_FACTOR(a, shift, polynomial)                                                                              \
    __extension__({                                                                                                    \
        V t_ = (E)2 / ((a) + C(shift));                                                                                \
        t_ *POLYNOMIAL(v_fma(a, t_, v_set(-1)), polynomial);                                                           \
    })

KILN_LANE V F(erfc)(V x)
{
    V n, a = v_min(K(erfc_most), v_abs(x)), p = F(exp_of_square)(a, 1, &n);
    V y = v_scale(p * ERFC_FACTOR(a, erfc_shift, erfc), n);
    return v_select(v_less(x, v_set(0)), -y + 2, y);
}

/* A polynomial in x² below 1, and 1 - erfc(x) above, for which erfc is needed the less exactly the smaller it is: there
 * the square may be rounded, and n·ln(2) need not be exact. */
KILN_LANE V F(erf)(V x)
{
    V a = v_abs(x), b = v_min(K(erf_most), a), z = b * b, n = v_fma(z, v_set(-C(log2e)), K(magic)) - C(magic);
    V p = F(exp_core)(v_fma(n, v_set(-C(ln2)), -z));
    V above = -v_scale(p * ERFC_FACTOR(b, erf_shift, erf_tail), n) + 1;
    V below = v_fma(POLYNOMIAL(z, erf), b, b);
    return v_signed(v_select(v_less(a, v_set(1)), below, above), x);
}

/* x·cdf(x) of the normal distribution: with q = cdf(-|x|) that is x - |x|·q above 0 and -|x|·q below. q is 0 far out,
 * and minus infinity gives what infinity times 0 is. */
KILN_LANE V F(gelu)(V x)
{
    V b = v_abs(v_min(K(normal_most), x)), a = v_min(K(normal_most), b), n, p = F(exp_of_square)(a, (E)0.5, &n);
    V q = v_scale(p * ERFC_FACTOR(a, normal_shift, normal), n);
    return v_fma(-b, q, v_max(v_set((E)-0.0), x));
}

/* d/dx x·cdf(x) = cdf(x) + x·density(x) */
KILN_LANE V F(gelu_slope)(V x)
{
    V a = v_min(K(normal_most), v_abs(x)), n, p = F(exp_of_square)(a, (E)0.5, &n);
    V q = v_scale(p * ERFC_FACTOR(a, normal_shift, normal), n);
    return v_fma(x * C(density), v_scale(p, n), v_select(v_less(x, v_set(0)), q, -q + 1));
}
