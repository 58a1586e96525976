/* What all kinds of vectors do alike: see lanes.h. */

#ifndef MASKED /* AVX-512 has instructions for these two */

/* In two steps, so that results below the normal range are rounded once and 2^n need not be a number itself. */
KILN_LANE V v_scale(V x, V n)
{
    U both = v_bits(n + C(magic)) + (2 * C(bias) - C(magic_bits)), half = both >> 1;
    return x * v_real(half << C(mantissa)) * v_real((both - half) << C(mantissa));
}

KILN_LANE V v_log_ends(V x, V y)
{
    y = v_select(v_equal(x, v_set(0)), v_set(-C(infinity)), y);
    y = v_select(v_less(x, v_set(0)), v_set(-NOT_A_NUMBER), y); /* as instructions make it: with a sign */
    return v_select(v_less(x, K(infinity)), y, x);
}

#endif

/* |x| with the sign of s. */
KILN_LANE V v_signed(V x, V s)
{
    return v_real((v_bits(x) & ~C(sign_bit)) | (v_bits(s) & C(sign_bit)));
}

/* c[last] + c[last - step]·y + c[last - 2·step]·y² + … */
KILN_LANE V F(lane_horner)(V y, const E *c, int last, int step)
{
    V sum = v_set(c[last % step]);
    KILN_UNROLL for (int i = last % step + step; i <= last; i += step) sum = v_fma(sum, y, v_set(c[i]));
    return sum;
}

/* c[0]·x^(n-1) + … + c[n-1]. Each step of Horner's rule waits for the one before, and a processor looks only so far
 * ahead for other work: polynomials are computed as two shorter ones in x², long ones as four in x⁴. */
KILN_LANE V v_polynomial(V x, const E *c, int n)
{
    if (n < 12)
        return F(lane_horner)(x, c, n - 1, 1);
    V z = x * x, w = z * z;
    if (n < 16)
        return v_fma(F(lane_horner)(z, c, n - 2, 2), x, F(lane_horner)(z, c, n - 1, 2));
    V low = v_fma(F(lane_horner)(w, c, n - 2, 4), x, F(lane_horner)(w, c, n - 1, 4));
    V high = v_fma(F(lane_horner)(w, c, n - 4, 4), x, F(lane_horner)(w, c, n - 3, 4));
    return v_fma(high, z, low);
}
#define POLYNOMIAL(x, name) v_polynomial(x, C(name), (int)(sizeof C(name) / sizeof *C(name)))

/* y, with f(a, b) in the lanes of `rare`: what the formula does not hold for, one by one. */
static __attribute__((noinline, cold, unused)) V v_patch(V y, M rare, V a, V b, E (*f)(E, E))
{
    E results[LANES], as[LANES], bs[LANES], where[LANES];
    v_store_some(results, y, LANES);
    v_store_some(as, a, LANES);
    v_store_some(bs, b, LANES);
    v_store_some(where, v_select(rare, v_set(1), v_set(0)), LANES);
    for (int i = 0; i < LANES; i++)
        if (where[i] != 0)
            results[i] = f(as[i], bs[i]);
    return v_load_some(results, LANES);
}
