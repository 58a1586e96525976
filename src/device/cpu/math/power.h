/* Powers, lengths and remainders. */

static inline E F(far_fmod)(E a, E b)
{
    return LIBM(fmod)(a, b);
}

/* A quotient of less than 2^mantissa is at most one too large when it was rounded up to a whole number, and what is
 * left of a is exact. */
KILN_LANE V F(fmod)(V a, V b)
{
    V x = v_abs(a), y = v_abs(b), quotient = x / y;
    V rest = v_fma(-v_trunc(quotient), y, x);
    rest = v_signed(v_select(v_less(rest, v_set(0)), rest + y, rest), a);
    M far = v_not(v_less(quotient, K(quotient_most)) & v_less(y, K(infinity)));
    return __builtin_expect(v_any(far), 0) ? v_patch(rest, far, a, b, F(far_fmod)) : rest;
}

/* Where a remainder is not of b's sign. */
KILN_LANE M F(wrong_side)(V rest, V b)
{
    return (v_less(rest, v_set(0)) & v_not(v_less(b, v_set(0)))) | (v_less(v_set(0), rest) & v_less(b, v_set(0)));
}

/* a % b with the sign of b, as Python's. */
KILN_LANE V F(floored_remainder)(V a, V b)
{
    V rest = F(fmod)(a, b);
    return v_select(F(wrong_side)(rest, b), rest + b, rest);
}

KILN_LANE V F(floored)(V x)
{
    V whole = v_trunc(x);
    return v_select(v_less(x, whole), whole - 1, whole);
}

/* a // b as Python rounds it: towards minus infinity, from the exact remainder and not from the rounded quotient. */
KILN_LANE V F(floored_quotient)(V a, V b)
{
    V rest = F(fmod)(a, b), exact = a / b;
    V quotient = (a - rest) / b - v_select(F(wrong_side)(rest, b), v_set(1), v_set(0));
    V whole = F(floored)(quotient);
    whole = v_select(v_less(v_set((E)0.5), quotient - whole), whole + 1, whole);
    whole = v_select(v_equal(quotient, v_set(0)), exact * 0, whole); /* a zero with the quotient's sign */
    return v_select(v_equal(b, v_set(0)), exact, whole);
}

#if BITS == 64

/* Both are scaled where a square would leave the range. */
KILN_LANE V F(hypot)(V a, V b)
{
    V x = v_abs(a), y = v_abs(b), most = v_max(x, y);
    M large = v_less(v_set(0x1p500), most), small = v_less(most, v_set(0x1p-500));
    V down = v_select(large, v_set(0x1p-600), v_select(small, v_set(0x1p600), v_set(1)));
    V up = v_select(large, v_set(0x1p600), v_select(small, v_set(0x1p-600), v_set(1)));
    x = x * down;
    y = y * down;
    V length = v_sqrt(v_fma(x, x, y * y)) * up;
    M infinite = v_equal(v_abs(a), K(infinity)) | v_equal(v_abs(b), K(infinity));
    return v_select(infinite, K(infinity), length);
}

/* A float's squares cannot leave the range of doubles. */
KILN_LANE V F(hypot_f32)(V a, V b)
{
    M infinite = v_equal(v_abs(a), K(infinity)) | v_equal(v_abs(b), K(infinity));
    return v_select(infinite, K(infinity), v_sqrt(v_fma(a, a, b * b)));
}

/* log2(x) of a positive finite x as a sum of two numbers, good for some 2^-64 of it: with s = f/(2 + f),
 * log(1 + f) = 2s + 2/3·s³ + …, of which the first two terms are computed in two numbers each. */
KILN_LANE V F(log2_twofold)(V x, V *rest)
{
    V e, f = F(log_split)(x, &e);
    V sum = f + 2, sum_rest = f - (sum - 2), inverse = (E)1 / sum;
    V s = f * inverse, s_rest = v_fma(-s, sum_rest, v_fma(-s, sum, f)) * inverse;
    V z = s * s, z_rest = v_fma(s, s, -z) + (s * s_rest) * 2;

    V term = z * C(two_thirds);
    V term_rest = v_fma(z, K(two_thirds), -term) + v_fma(z, K(two_thirds_rest), z_rest * C(two_thirds));
    term_rest = v_fma(z * z, POLYNOMIAL(z, atanh), term_rest);
    V w = term + term_rest, w_rest = (term - w) + term_rest;

    V t = s * w, t_rest = v_fma(s, w, -t) + v_fma(s, w_rest, s_rest * w);
    V twice = s * 2, log = twice + t, log_rest = (twice - log) + t + v_fma(s_rest, v_set(2), t_rest);

    V g = log * C(log2e);
    V g_rest = v_fma(log, K(log2e), -g) + v_fma(log, K(log2e_rest), log_rest * C(log2e));
    V y = e + g;
    *rest = ((e - y) + g) + g_rest;
    return y;
}

/* The same for a float, of which single numbers are good enough. */
KILN_LANE V F(log2_short)(V x)
{
    U bits = F(log_bits)(x);
    V e = F(log_exponent)(bits), f = F(log_fraction)(bits);
    V log = v_fma(f * f, v_fma(POLYNOMIAL(f, log_short), f, v_set((E)-0.5)), f);
    return v_fma(log, K(log2e), e);
}

/* What pow is where its formula, y for the power of |x|, does not hold: negative bases, 1, and powers of 0. */
KILN_LANE V F(pow_ends)(V x, V power, V y)
{
    V half = power * (E)0.5;
    M whole = v_equal(v_trunc(power), power), even = v_equal(v_trunc(half), half), negative = v_less(x, v_set(0));
    M finite = v_less(v_abs(x), K(infinity));
    M minus = v_less(v_signed(v_set(1), x), v_set(0)) & whole & v_not(even); /* -0, too */
    y = v_select(minus, -y, y);
    y = v_select(negative & v_not(whole) & finite, v_set(-NOT_A_NUMBER), y);
    M one = v_equal(x, v_set(1)) | v_equal(power, v_set(0));
    one = one | (v_equal(x, v_set(-1)) & v_equal(v_abs(power), K(infinity)));
    return v_select(one, v_set(1), y);
}

/* The logarithm where there is none: 0 and infinity. */
KILN_LANE V F(log2_ends)(V a, V log)
{
    log = v_select(v_equal(a, v_set(0)), v_set(-C(infinity)), log);
    return v_select(v_less(a, K(infinity)), log, a);
}

KILN_LANE V F(pow)(V x, V power)
{
    V a = v_abs(x), log_rest, log = F(log2_ends)(a, F(log2_twofold)(a, &log_rest));
    V product = power * log, product_rest = v_fma(power, log, -product) + power * log_rest;
    product_rest = v_select(v_less(v_abs(product), v_set(2000)), product_rest, v_set(0));
    product = v_max(v_set(-2000), v_min(v_set(2000), product));
    V n = (product + C(magic)) - C(magic), r = (product - n) + product_rest;
    return F(pow_ends)(x, power, v_scale(F(exp_core)(r * C(ln2)), n));
}

/* t times a power, 0 for t = 0 whatever the power is: gradients of powers. */
KILN_LANE V F(scaled)(V t, V power)
{
    return v_select(v_equal(t, v_set(0)), v_set(0), t * power);
}

/* For floats: the result is rounded to one afterwards. */
KILN_LANE V F(pow_f32)(V x, V power)
{
    V a = v_abs(x), log = F(log2_ends)(a, F(log2_short)(a));
    V product = v_max(v_set(-200), v_min(v_set(200), power * log));
    V n = (product + C(magic)) - C(magic), r = (product - n) * C(ln2);
    V p = v_fma(v_fma(POLYNOMIAL(r, exp_short), r, v_set(1)), r, v_set(1));
    return F(pow_ends)(x, power, v_scale(p, n));
}

#endif
