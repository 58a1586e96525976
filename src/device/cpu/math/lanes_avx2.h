/* Vectors of AVX2: see lanes.h. MM(add) stands for the intrinsic of the precision, _mm256_add_ps or _pd. Masks are
 * vectors of integers that are 0 or all ones. */

KILN_LANE V v_set(E e)
{
    return MM(set1)(e);
}

/* Ones, then zeros: reading from the middle less `count` elements gives a mask of the first `count`. */
KILN_LANE const void *F(lane_first)(int64_t count, int64_t size)
{
    static const int32_t ones[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return (const char *)(ones + 8) - count * size;
}

KILN_LANE V v_load_some(const E *p, int64_t count)
{
    if (count >= LANES)
        return MM(loadu)(p);
    __m256i first = _mm256_loadu_si256(F(lane_first)(count, sizeof(E)));
    return MM(blendv)(MM(set1)(1), MM(maskload)(p, first), (V)first);
}

KILN_LANE void v_store_some(E *p, V x, int64_t count)
{
    if (count >= LANES)
        MM(storeu)(p, x);
    else
        MM(maskstore)(p, _mm256_loadu_si256(F(lane_first)(count, sizeof(E))), x);
}

#if BITS == 64

KILN_LANE V v_widen_some(const float *p, int64_t count)
{
    if (count >= LANES)
        return _mm256_cvtps_pd(_mm_loadu_ps(p));
    __m128i first = _mm_loadu_si128(F(lane_first)(count, sizeof(float)));
    return _mm256_cvtps_pd(_mm_blendv_ps(_mm_set1_ps(1), _mm_maskload_ps(p, first), (__m128)first));
}

KILN_LANE void v_narrow_some(float *p, V x, int64_t count)
{
    if (count >= LANES)
        _mm_storeu_ps(p, _mm256_cvtpd_ps(x));
    else
        _mm_maskstore_ps(p, _mm_loadu_si128(F(lane_first)(count, sizeof(float))), _mm256_cvtpd_ps(x));
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
    return MM(andnot)(MM(set1)((E)-0.0), x);
}

KILN_LANE V v_sqrt(V x)
{
    return MM(sqrt)(x);
}

KILN_LANE V v_trunc(V x)
{
    return MM(round)(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
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
    return (M)MM(cmp)(a, b, _CMP_LT_OQ);
}

KILN_LANE M v_equal(V a, V b)
{
    return (M)MM(cmp)(a, b, _CMP_EQ_OQ);
}

KILN_LANE M v_ordered(V a, V b)
{
    return (M)MM(cmp)(a, b, _CMP_ORD_Q);
}

KILN_LANE V v_select(M m, V a, V b)
{
    return MM(blendv)(b, a, (V)m);
}

KILN_LANE int v_any(M m)
{
    return MM(movemask)((V)m) != 0;
}

KILN_LANE M v_not(M m)
{
    return ~m;
}
