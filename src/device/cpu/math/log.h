/* Logarithms and the inverse hyperbolic functions. */

/* The bits of a positive normal x = 2^e·(1 + f), 1 + f in 2/3 … 4/3, such that e + log_bias stands above the mantissa.
 */
KILN_LANE U F(log_bits)(V x)
{
    return v_bits(x) + ((C(log_bias) << C(mantissa)) - C(log_from));
}

/* e: its bits are put below those of 2^mantissa, which makes them a number. */
KILN_LANE V F(log_exponent)(U bits)
{
    return v_real((bits >> C(mantissa)) | C(log_one_bits)) - (C(log_one) + (E)C(log_bias));
}

KILN_LANE V F(log_fraction)(U bits)
{
    return v_real((bits & C(mantissa_mask)) + C(log_from)) - 1;
}

/* Splits a positive x into e and f; returns f. */
KILN_LANE V F(log_split)(V x, V *e)
{
    M tiny = v_less(x, K(least_normal));
    U bits = F(log_bits)(v_select(tiny, x * C(log_one), x));
    *e = F(log_exponent)(bits) - v_select(tiny, v_set((E)C(mantissa)), v_set(0));
    return F(log_fraction)(bits);
}

/* log(1 + f) - f */
KILN_LANE V F(log_core)(V f)
{
    return (f * f) * v_fma(POLYNOMIAL(f, log), f, v_set((E)-0.5));
}

/* e·ln(2) + log(1 + f) */
KILN_LANE V F(log_sum)(V e, V f)
{
    return v_fma(e, K(ln2), f + v_fma(e, K(ln2_rest), F(log_core)(f)));
}

KILN_LANE V F(log)(V x)
{
    V e, f = F(log_split)(x, &e);
    return v_log_ends(x, F(log_sum)(e, f));
}

KILN_LANE V F(log2)(V x)
{
    V e, f = F(log_split)(x, &e);
    return v_log_ends(x, v_fma(f + F(log_core)(f), K(log2e), e));
}

KILN_LANE V F(log10)(V x)
{
    V e, f = F(log_split)(x, &e);
    V rest = v_fma(e, K(log10_2_rest), (f + F(log_core)(f)) * C(log10e));
    return v_log_ends(x, v_fma(e, K(log10_2), rest));
}

/* 1 + x = 2^e·(1 + f), where f comes from x itself: 1 + x would have lost x's last bits. */
KILN_LANE V F(log1p)(V x)
{
    V sum = x + 1;
    U bits = F(log_bits)(sum);
    V down = v_real((C(bias) + C(log_bias) - (bits >> C(mantissa))) << C(mantissa)); /* 2^-e */
    V near = v_fma(x, down, down - 1), far = F(log_fraction)(bits);
    V f = v_select(v_less(x, K(log1p_huge)), near, far);
    return v_signed(v_log_ends(sum, F(log_sum)(F(log_exponent)(bits), f)), x);
}

KILN_LANE V F(asinh)(V x)
{
    V a = v_abs(x), square = a * a;
    M huge = v_less(K(inverse_huge), a); /* log(2a) */
    V near = a + square / (v_sqrt(square + 1) + 1);
    return v_signed(F(log1p)(v_select(huge, a, near)) + v_select(huge, K(ln2), v_set(0)), x);
}

KILN_LANE V F(acosh)(V x)
{
    V t = x - 1;
    M huge = v_less(K(inverse_huge), x);
    V near = t + v_sqrt(v_fma(t, t, t * 2));
    V y = F(log1p)(v_select(huge, x, near)) + v_select(huge, K(ln2), v_set(0));
    return v_select(v_less(x, v_set(1)), v_set(-NOT_A_NUMBER), y);
}

KILN_LANE V F(atanh)(V x)
{
    V a = v_abs(x);
    return v_signed(F(log1p)((a * 2) / (-a + 1)) * (E)0.5, x);
}
