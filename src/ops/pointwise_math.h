/* Functions that pointwise.def's expressions share, written with T and the basic k_ functions of a dialect: like the
 * expressions they are plain C that CUDA C and OpenCL C accept. Included once for each floating T, with KILN_PW_INLINE
 * standing for what the dialect puts before a function. There is no include guard on purpose. */

/* A bound that is no number makes the result none, as it does in PyTorch. */
KILN_PW_INLINE T k_clamp(T x, T low, T high)
{
    T at_least = ((x < low) | k_isnan(low)) ? low : x;
    return ((at_least > high) | k_isnan(high)) ? high : at_least;
}

/* a // b as Python rounds it: towards minus infinity, from the exact remainder and not from the rounded quotient. */
KILN_PW_INLINE T k_floor_divide(T a, T b)
{
    T rest = k_fmod(a, b);
    T quotient = (a - rest) / b - (((rest != 0) & ((b < 0) != (rest < 0))) ? (T)1 : (T)0);
    T whole = k_floor(quotient);
    whole = quotient - whole > (T)0.5 ? whole + (T)1 : whole;
    whole = quotient == 0 ? (T)0 * (a / b) : whole; /* a zero with the quotient's sign */
    return b == 0 ? a / b : whole;
}

/* a % b with the sign of b, as Python's. */
KILN_PW_INLINE T k_remainder(T a, T b)
{
    T rest = k_fmod(a, b);
    return ((rest != 0) & ((b < 0) != (rest < 0))) ? rest + b : rest;
}

/* exp of a number that is never positive: neither end overflows, and small results keep their precision. */
KILN_PW_INLINE T k_sigmoid(T x)
{
    T e = k_exp(-k_abs(x));
    return (x < 0 ? e : (T)1) / ((T)1 + e);
}

/* log(1 + exp(x)) */
KILN_PW_INLINE T k_softplus(T x)
{
    return (x <= 0 ? (T)0 : x) + k_log1p(k_exp(-k_abs(x)));
}

/* s + w·s·(1 - s) for s = sigmoid(v), with a 1 - s that keeps its precision: the slope of x·sigmoid(v) for w = x·dv/dx.
 */
KILN_PW_INLINE T k_gate_slope(T v, T w)
{
    T e = k_exp(-k_abs(v)), large = (T)1 / ((T)1 + e), small = e * large;
    T s = v < 0 ? small : large;
    return s + w * (large * small);
}

/* d/dx x·sigmoid(x) */
KILN_PW_INLINE T k_silu_slope(T x)
{
    return k_gate_slope(x, x);
}

KILN_PW_INLINE T k_normal_cdf(T x)
{
    return (T)0.5 * k_erfc(x * (T)-0.70710678118654752); /* 1 + erf(x) would lose what is left below -3 */
}

KILN_PW_INLINE T k_normal_pdf(T x)
{
    return (T)0.39894228040143268 * k_exp((T)-0.5 * x * x);
}

/* x/2·(1 + tanh(u)) = x·sigmoid(2u), u = sqrt(2/pi)·(x + 0.044715 x³) */
KILN_PW_INLINE T k_gelu_tanh(T x)
{
    return x * k_sigmoid((T)1.5957691216057308 * x * ((T)1 + (T)0.044715 * x * x));
}

KILN_PW_INLINE T k_gelu_tanh_slope(T x)
{
    T v = (T)1.5957691216057308 * x * ((T)1 + (T)0.044715 * x * x);
    return k_gate_slope(v, (T)1.5957691216057308 * x * ((T)1 + (T)0.134145 * x * x));
}

/* x·tanh(log(1 + exp(x))), whose tanh is (E² + 2E) / (E² + 2E + 2) for E = exp(x). */
KILN_PW_INLINE T k_mish(T x)
{
    T e = k_exp(-k_abs(x));
    T above = x < 0 ? e * (e + (T)2) : (T)1 + (T)2 * e;
    T below = x < 0 ? above + (T)2 : above + (T)2 * e * e;
    return x * (above / below);
}
