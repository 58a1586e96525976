/* A single number as a vector: see lanes.h. */

KILN_LANE V v_set(E e)
{
    return e;
}

KILN_LANE V v_load_some(const E *p, int64_t count)
{
    (void)count;
    return *p;
}

KILN_LANE void v_store_some(E *p, V x, int64_t count)
{
    (void)count;
    *p = x;
}

#if BITS == 64

KILN_LANE V v_widen_some(const float *p, int64_t count)
{
    (void)count;
    return *p;
}

KILN_LANE void v_narrow_some(float *p, V x, int64_t count)
{
    (void)count;
    *p = (float)x;
}

#endif

KILN_LANE V v_fma(V a, V b, V c)
{
    return LIBM(fma)(a, b, c);
}

KILN_LANE V v_min(V a, V b)
{
    return a < b ? a : b;
}

KILN_LANE V v_max(V a, V b)
{
    return a > b ? a : b;
}

KILN_LANE V v_abs(V x)
{
    return LIBM(fabs)(x);
}

KILN_LANE V v_sqrt(V x)
{
    return LIBM(sqrt)(x);
}

KILN_LANE V v_trunc(V x)
{
    return LIBM(trunc)(x);
}

KILN_LANE U v_bits(V x)
{
    U bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

KILN_LANE V v_real(U bits)
{
    V x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

KILN_LANE M v_less(V a, V b)
{
    return a < b;
}

KILN_LANE M v_equal(V a, V b)
{
    return a == b;
}

KILN_LANE M v_ordered(V a, V b)
{
    return (a == a) & (b == b);
}

KILN_LANE V v_select(M m, V a, V b)
{
    return m ? a : b;
}

KILN_LANE int v_any(M m)
{
    return m;
}

KILN_LANE M v_not(M m)
{
    return !m;
}
