/* Activations made of an exponential that is never large, as pointwise_math.h explains them. */

/* exp(-|x|) */
KILN_LANE V F(exp_of_minus)(V x)
{
    V n, r = F(exp_split)(v_max(K(exp_least), -v_abs(x)), &n);
    return v_scale(F(exp_core)(r), n);
}

KILN_LANE V F(sigmoid_lanes)(V x)
{
    V e = F(exp_of_minus)(x);
    return v_select(v_less(x, v_set(0)), e, v_set(1)) / (e + 1);
}

/* log(1 + exp(x)) */
KILN_LANE V F(softplus_lanes)(V x)
{
    return v_max(v_set(0), x) + F(log1p)(F(exp_of_minus)(x));
}

KILN_LANE V F(softplus_of)(V x, V beta, V threshold)
{
    V scaled = x * beta;
    return v_select(v_less(threshold, scaled), x, F(softplus_lanes)(scaled) / beta);
}
