/* Vectors of AVX-512: see lanes.h. MM(add) stands for the intrinsic of the precision, _mm512_add_ps or _pd. */

KILN_LANE V v_set(E e)
{
    return MM(set1)(e);
}

KILN_LANE V v_load_some(const E *p, int64_t count)
{
    return count >= LANES ? MM(loadu)(p) : MM(mask_loadu)(MM(set1)(1), (M)((1u << count) - 1), p);
}

KILN_LANE void v_store_some(E *p, V x, int64_t count)
{
    if (count >= LANES)
        MM(storeu)(p, x);
    else
        MM(mask_storeu)(p, (M)((1u << count) - 1), x);
}

#if BITS == 64

KILN_LANE V v_widen_some(const float *p, int64_t count)
{
    const __m256 ones = _mm256_set1_ps(1);
    return _mm512_cvtps_pd(count >= LANES ? _mm256_loadu_ps(p) : _mm256_mask_loadu_ps(ones, (M)((1u << count) - 1), p));
}

KILN_LANE void v_narrow_some(float *p, V x, int64_t count)
{
    if (count >= LANES)
        _mm256_storeu_ps(p, _mm512_cvtpd_ps(x));
    else
        _mm256_mask_storeu_ps(p, (M)((1u << count) - 1), _mm512_cvtpd_ps(x));
}

#endif

KILN_LANE V v_fma(V a, V b, V c)
{
    return MM(fmadd)(a, b, c);
}

KILN_LANE V v_min(V a, V b)
{
    return MM(min)(a, b);
}

KILN_LANE V v_max(V a, V b)
{
    return MM(max)(a, b);
}

KILN_LANE V v_abs(V x)
{
    return MM(abs)(x);
}

#if BITS == 32

KILN_LANE V v_sqrt(V x)
{
    return MM(sqrt)(x);
}

#else

/* The instruction takes 24 cycles for eight doubles. Newton's iteration takes a third of that and ends with the same
 * bits: g and h approach the root and half its reciprocal to a unit in the last place, x - g² is exact, and what it
 * adds to g is then known to 2^-51 of a unit. Numbers whose root is nearer to the middle between two doubles than that
 * are so few that test_math tries them all. Near the ends of the range x - g² is not exact, and 0 has no reciprocal. */
KILN_LANE V v_sqrt(V x)
{
    const U least = (U)_mm512_set1_pd(0x1p-900), most = (U)_mm512_set1_pd(0x1p1000);
    if (_mm512_cmplt_epu64_mask((__m512i)((U)x - least), (__m512i)(most - least)) != 0xff)
        return MM(sqrt)(x);
    V y = _mm512_rsqrt14_pd(x), g = x * y, h = y * 0.5;
    for (int i = 0; i < 2; i++) {
        V r = MM(fnmadd)(g, h, MM(set1)(0.5));
        g = v_fma(g, r, g);
        h = v_fma(h, r, h);
    }
    return v_fma(MM(fnmadd)(g, g, x), h, g);
}

#endif

KILN_LANE V v_trunc(V x)
{
    return MM(roundscale)(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}

KILN_LANE U v_bits(V x)
{
    return (U)x;
}

KILN_LANE V v_real(U bits)
{
    return (V)bits;
}

KILN_LANE M v_less(V a, V b)
{
    return MASKED(cmp)(a, b, _CMP_LT_OQ);
}

KILN_LANE M v_equal(V a, V b)
{
    return MASKED(cmp)(a, b, _CMP_EQ_OQ);
}

KILN_LANE M v_ordered(V a, V b)
{
    return MASKED(cmp)(a, b, _CMP_ORD_Q);
}

KILN_LANE V v_select(M m, V a, V b)
{
    return MM(mask_blend)(m, b, a);
}

KILN_LANE int v_any(M m)
{
    return m != 0;
}

KILN_LANE M v_not(M m)
{
    return (M)~m;
}

KILN_LANE V v_scale(V x, V n)
{
    return MM(scalef)(x, n);
}

/* One instruction looks at what kind of number x is; four bits of the table for each kind say what becomes of y. From
 * the lowest: NaNs stay x (1, 1), zero gives minus infinity (4), one leaves y (0), minus infinity gives NaN (3),
 * infinity itself (5), negative numbers NaN (3), positive ones leave y (0). */
KILN_LANE V v_log_ends(V x, V y)
{
    return MM(fixupimm)(y, x, INTEGERS(set1)(0x03530411), 0);
}
