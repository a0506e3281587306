"""jax.nn and jax.random."""

import jax
import jax.numpy as jnp
import numpy as np

from .numpy_calls import HOST
from .table import KEY, SPD, F, I, Module, P, T

E = Module("jax.nn")
E.elementwise(
    "celu elu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log_sigmoid mish relu relu6 "
    "selu sigmoid silu  "
    "soft_sign softplus sparse_plus sparse_sigmoid squareplus swish tanh"
)
E.elementwise("log1mexp", values=np.array([0.0, 1e-3, 0.25, 0.5, 1, 2, 10, 88.5, np.inf, np.nan]))
E.elementwise("gelu", absolute=8, why="one plus a number near minus one")
E.elementwise("gelu", approximate=False, absolute=8, why="one plus a number near minus one")
E("softmax log_softmax logsumexp logmeanexp standardize", F(5), ulps=256, absolute=8, why="a difference from the mean")
E("softmax log_softmax logsumexp logmeanexp standardize", F(2, 3), axis=1, ulps=256, absolute=8)
E(
    "softmax log_softmax",
    F(4),
    where=np.array([True, False, True, True]),
    via=lambda f, x, where: f(jnp.where(where, x, -9.0)),
)
E("glu", F(6))
E("one_hot", I(3, low=-1, high=5), 4)
E("dot_product_attention", T(3, 2, 4), T(5, 2, 4), T(5, 2, 4), narrow=True)
E("dot_product_attention", T(3, 2, 4), T(3, 2, 4), T(3, 2, 4), is_causal=True, narrow=True)
E.without("get_scaled_dot_general_config", HOST)
E.without("scaled_dot_general scaled_matmul", "products of matrices of eight-bit floats in blocks, for large arrays")


def KEYED(function, data, *args, **static):  # noqa: N802 - a word of the table
    """Calls with a key made of its data."""
    return function(jax.random.wrap_key_data(data), *args, **static)


R = Module("jax.random", "functions of another library's erf_inv, lgamma and log, at the same bits")
FROM_NORMAL = "the inverse error function of another library, at the same bits"
R(
    "normal uniform gumbel exponential cauchy laplace logistic maxwell rademacher double_sided_maxwell",
    KEY(),
    via=lambda f, key: f(jax.random.wrap_key_data(key), *((1.0, 2.0) if f is jax.random.double_sided_maxwell else ())),
    ulps=512,
    why=FROM_NORMAL,
)
R("normal uniform gumbel exponential cauchy laplace logistic maxwell rademacher bits", KEY(), (3,), via=KEYED, ulps=512)
R("normal uniform", KEY(), (20,), via=KEYED, ulps=512)
R("double_sided_maxwell", KEY(), 1.0, 2.0, (3,), via=KEYED, ulps=512)
R("bernoulli", KEY(), T(low=0, high=1), (3,), via=KEYED)
R("beta", KEY(), P(), P(), (2,), via=KEYED, ulps=4096)
R("binomial", KEY(), 7, T(low=0, high=1), (2,), via=KEYED)
R("categorical", KEY(), T(4), via=KEYED)
R("categorical", KEY(), T(4), shape=(3,), via=KEYED)
R("chisquare t", KEY(), P(), (2,), via=KEYED, ulps=4096)
R("choice", KEY(), 5, (3,), via=KEYED)
R("choice", KEY(), T(5), (3,), via=lambda f, k, x, s: f(jax.random.wrap_key_data(k), x, s, replace=False))
R(
    "choice",
    KEY(),
    T(4),
    (3,),
    via=lambda f, k, x, s: f(jax.random.wrap_key_data(k), x, s, p=jnp.array([0.1, 0.2, 0.3, 0.4])),
)
R("permutation", KEY(), 5, via=KEYED)
R("permutation", KEY(), T(3, 2), independent=True, via=KEYED)
R("dirichlet", KEY(), P(3), via=KEYED, ulps=4096)
R("f", KEY(), P(), P(), via=KEYED, ulps=4096)
R("gamma loggamma", KEY(), P(), (2,), via=KEYED, ulps=512)
R("generalized_normal", KEY(), P(), (2,), via=KEYED, ulps=4096)
R("geometric", KEY(), T(low=0.125, high=0.875), (3,), via=KEYED)
R(
    "lognormal rayleigh weibull_min wald pareto",
    KEY(),
    P(),
    shape=(3,),
    ulps=4096,
    via=lambda f, k, x, shape: f(
        jax.random.wrap_key_data(k), *((x, x) if f is jax.random.weibull_min else (x,)), shape=shape
    ),
)
R("multinomial", KEY(), 5, P(3), via=lambda f, k, n, p: f(jax.random.wrap_key_data(k), n, p / jnp.sum(p)))
R("multivariate_normal", KEY(), T(3), SPD(3), via=KEYED, ulps=4096)
R("orthogonal", KEY(), 3, via=KEYED, ulps=4096)
R("ball", KEY(), 3, via=KEYED, ulps=4096)
R("poisson", KEY(), P(), (3,), via=KEYED)
R("poisson", KEY(), P(low=12, high=40), (2,), via=KEYED)
R("randint", KEY(), (3,), 0, 7, via=KEYED)
R("randint", KEY(), (3,), I(low=-9, high=0), I(low=1, high=99), via=KEYED)
R("triangular", KEY(), 0.0, 0.5, 2.0, (3,), via=KEYED, ulps=512)
R("truncated_normal", KEY(), -1.0, 2.0, (3,), via=KEYED, ulps=4096, why=FROM_NORMAL)
R("fold_in", KEY(), I(low=0, high=99), via=KEYED)
R("split", KEY(), 3, via=KEYED)
R("clone key_data", KEY(), via=KEYED)
R("key PRNGKey", I(low=0, high=99))
R("wrap_key_data", KEY())
R.without("key_dtype key_impl Key", HOST)
