/* Exponentials and hyperbolic functions. */

/* Splits x, which is no more than a few thousand, into n·ln(2) + r. */
KILN_LANE V F(exp_split)(V x, V *n)
{
    *n = v_fma(x, K(log2e), K(magic)) - C(magic);
    return v_fma(*n, v_set(-C(ln2_short_rest)), v_fma(*n, v_set(-C(ln2_short)), x));
}

/* exp(r) for |r| ≤ ln(2)/2 */
KILN_LANE V F(exp_core)(V r)
{
    return v_fma(v_fma(POLYNOMIAL(r, exp), r, v_set(1)), r, v_set(1));
}

/* exp(r) - 1 */
KILN_LANE V F(expm1_core)(V r)
{
    return v_fma(POLYNOMIAL(r, exp), r * r, r);
}

KILN_LANE V F(exp)(V x)
{
    V n, r = F(exp_split)(v_max(K(exp_least), v_min(K(exp_most), x)), &n);
    return v_scale(F(exp_core)(r), n);
}

KILN_LANE V F(exp2)(V x)
{
    x = v_max(K(exp2_least), v_min(K(exp2_most), x));
    V n = (x + C(magic)) - C(magic);
    return v_scale(F(exp_core)((x - n) * C(ln2)), n);
}

/* 2^n for a whole n for which that is a normal number */
KILN_LANE V F(power_of_two)(V n)
{
    return v_real((v_bits(n + C(magic)) + C(bias)) << C(mantissa));
}

/* 2^n·exp(r) - 1, computed with 2^(n-1), since 2^n may be too large. */
KILN_LANE V F(expm1)(V x)
{
    V n, r = F(exp_split)(v_max(K(expm1_least), v_min(K(exp_most), x)), &n);
    V half = F(power_of_two)(n - 1);
    return v_signed(v_fma(F(expm1_core)(r), half, half - (E)0.5) * 2, x);
}

/* (1 - exp(-2x)) / (1 + exp(-2x)) without the cancellation. */
KILN_LANE V F(tanh)(V x)
{
    V n, r = F(exp_split)(v_max(K(expm1_least), v_abs(x) * -2), &n);
    V scale = F(power_of_two)(n), fall = v_fma(F(expm1_core)(r), scale, scale - 1); /* exp(-2|x|) - 1 */
    return v_signed(fall / (fall + 2), x);
}

#if BITS == 64

/* exp(|x|)/2, which is finite where the exponential itself is not */
KILN_LANE V F(half_exp)(V x)
{
    V n, r = F(exp_split)(v_min(K(sinh_most), v_abs(x)), &n);
    return v_scale(F(exp_core)(r), n - 1);
}

KILN_LANE V F(cosh)(V x)
{
    V h = F(half_exp)(x);
    return h + (E)0.25 / h;
}

KILN_LANE V F(sinh)(V x)
{
    V h = F(half_exp)(x), z = x * x;
    V below = v_fma(x * z, POLYNOMIAL(z, sinh), x), above = h - (E)0.25 / h;
    return v_signed(v_select(v_less(v_abs(x), v_set(1)), below, above), x);
}

#endif
