/* Circular functions and their inverses. */

/* Where an angle is too large for quarter_turns, infinite or NaN: the C library has those. */
KILN_LANE M F(circle_far)(V a)
{
    return v_not(v_less(a, K(circle_most)));
}

static inline E F(far_sin)(E x, E unused)
{
    (void)unused;
    return LIBM(sin)(x);
}

static inline E F(far_cos)(E x, E unused)
{
    (void)unused;
    return LIBM(cos)(x);
}

static inline E F(far_tan)(E x, E unused)
{
    (void)unused;
    return LIBM(tan)(x);
}

/* The sine and cosine of a ≥ 0 less n quarter turns. π/2 is in three parts: the first difference is exact, the second
 * is rounded once. Returns n as the lowest bits. */
KILN_LANE U F(quarter_turns)(V a, V *sine, V *cosine)
{
    V shifted = v_fma(a, K(two_over_pi), K(magic)), n = shifted - C(magic);
    V r = v_fma(n, v_set(-C(half_pi)), a);
    r = v_fma(n, v_set(-C(half_pi_2)), r);
    r = v_fma(n, v_set(-C(half_pi_3)), r);
    V z = r * r;
    *sine = v_fma(r * z, POLYNOMIAL(z, sin_quarter), r);
    *cosine = v_fma(z * z, POLYNOMIAL(z, cos_quarter), v_fma(z, v_set((E)-0.5), v_set(1)));
    return v_bits(shifted);
}

KILN_LANE M F(is_odd)(U n)
{
    return v_less(v_real((n << (BITS - 1)) | v_bits(v_set(1))), v_set(0)); /* ±1 */
}

/* y, negated where the second lowest bit of n is set. */
KILN_LANE V F(after_half_turns)(V y, U n)
{
    return v_real(v_bits(y) ^ ((n << (BITS - 2)) & C(sign_bit)));
}

KILN_LANE V F(sin)(V x)
{
    V a = v_abs(x), s, c;
    U n = F(quarter_turns)(a, &s, &c);
    V y = F(after_half_turns)(v_select(F(is_odd)(n), c, s), n);
    y = v_real(v_bits(y) ^ (v_bits(x) & C(sign_bit)));
    M far = F(circle_far)(a);
    return __builtin_expect(v_any(far), 0) ? v_patch(y, far, x, x, F(far_sin)) : y;
}

KILN_LANE V F(cos)(V x)
{
    V a = v_abs(x), s, c;
    U n = F(quarter_turns)(a, &s, &c);
    V y = F(after_half_turns)(v_select(F(is_odd)(n), s, c), n + 1);
    M far = F(circle_far)(a);
    return __builtin_expect(v_any(far), 0) ? v_patch(y, far, x, x, F(far_cos)) : y;
}

/* sine / cosine, or -cosine / sine after an odd number of quarter turns. */
KILN_LANE V F(tan)(V x)
{
    V a = v_abs(x), s, c;
    U n = F(quarter_turns)(a, &s, &c);
    M odd = F(is_odd)(n);
    V y = v_select(odd, c, s) / v_select(odd, s, c);
    y = v_real(v_bits(y) ^ ((n << (BITS - 1)) ^ (v_bits(x) & C(sign_bit))));
    M far = F(circle_far)(a);
    return __builtin_expect(v_any(far), 0) ? v_patch(y, far, x, x, F(far_tan)) : y;
}

/* For |x| ≤ 1/2, asin(x) = s + rest with s = x. Above it is π/2 - 2·(s + rest) with s = sqrt((1 - x)/2). */
KILN_LANE V F(asin_parts)(V a, M large, V *rest)
{
    V z = v_select(large, v_fma(a, v_set((E)-0.5), v_set((E)0.5)), a * a);
    V s = v_select(large, v_sqrt(z), a);
    *rest = (s * z) * POLYNOMIAL(z, asin);
    return s;
}

KILN_LANE V F(asin)(V x)
{
    V a = v_abs(x), rest;
    M large = v_less(v_set((E)0.5), a);
    V s = F(asin_parts)(a, large, &rest);
    V outside = (C(half_pi) - s * 2) - v_fma(rest, v_set(2), v_set(-C(half_pi_2)));
    return v_signed(v_select(large, outside, s + rest), x);
}

/* π/2 - asin(x), where twice the parts above are what is asked for or, for a negative x, what is missing from π. */
KILN_LANE V F(acos)(V x)
{
    V a = v_abs(x), rest;
    M large = v_less(v_set((E)0.5), a), left = v_less(x, v_set(0));
    V s = F(asin_parts)(a, large, &rest);
    V behind = (C(pi) - s * 2) - v_fma(rest, v_set(2), v_set(-C(pi_2)));
    V outside = v_select(left, behind, (s + rest) * 2);
    return v_select(large, outside, C(half_pi) - (x + (v_signed(rest, x) - C(half_pi_2))));
}

/* atan(t) for 0 ≤ t ≤ 1 or a small negative t */
KILN_LANE V F(atan_core)(V t)
{
    V z = t * t;
    return v_fma(t * z, POLYNOMIAL(z, atan), t);
}

KILN_LANE V F(atan)(V x)
{
    V a = v_abs(x);
    M large = v_less(v_set(1), a);
    V y = F(atan_core)(v_select(large, v_set(-1), a) / v_select(large, a, v_set(1)));
    return v_signed(v_select(large, C(half_pi) + (y + C(half_pi_2)), y), x);
}

/* The angle of the nearer axis and one of at most π/4 from it. Two zeros are on an axis, two infinities between. */
KILN_LANE V F(atan2)(V y, V x)
{
    V ay = v_abs(y), ax = v_abs(x), small = v_min(ay, ax), large = v_max(ay, ax);
    M steep = v_less(ax, ay), left = v_less(v_signed(v_set(1), x), v_set(0));
    V t = v_select(v_equal(small, large), v_set(1), small / large);
    t = F(atan_core)(v_select(v_equal(large, v_set(0)), v_set(0), t));
    t = v_select(steep, C(half_pi) - (t - C(half_pi_2)), t);
    t = v_select(left, C(pi) - (t - C(pi_2)), t);
    return v_select(v_ordered(x, y), v_signed(t, y), x + y);
}
