"""Derivative rules of users and libraries: lanes against `jax.vmap`, in reverse, forward and forward over reverse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.errors import GradientError

V = np.random.default_rng(0).normal(size=(3, 3)) * 0.3
X = np.array([0.0, 1.0, 4.0, 0.3])


@jax.custom_jvp
def safe_sqrt(x):
    return jnp.sqrt(x)


safe_sqrt.defjvp(lambda p, t: (jnp.sqrt(p[0]), jnp.where(p[0] > 0, t[0] / (2 * jnp.sqrt(p[0])), 0.0)))


@jax.custom_vjp
def clipped(x):
    """Twice its operand, with adjoints that are clipped: no derivative of anything."""
    return 2 * x


clipped.defvjp(lambda x: (2 * x, x), lambda x, g: (jnp.clip(g, -0.1, 0.1) * x,))


def matrix(v):
    """Symmetric and positive definite."""
    m = jnp.outer(v, v) * 0.1 + jnp.diag(jnp.arange(1.0, 4.0) + v)
    return (m + m.T) / 2


def root(x):
    solve = lambda f, z: jax.lax.fori_loop(0, 30, lambda _, z: z - f(z) / (3 * z**2), z)  # noqa: E731
    return jax.lax.custom_root(lambda z: z**3 - x - 2, 1.0, solve, lambda g, y: y / g(1.0))


OF_SCALARS = {
    "custom_jvp and stop_gradient": lambda x: safe_sqrt(x) * jnp.cos(x) + jax.lax.stop_gradient(x) * x,
    "relu": lambda x: jax.nn.relu(x - 0.3),
    "activations": lambda x: jax.nn.softplus(x) * jax.nn.gelu(x) * jax.nn.silu(x),
    "custom_root": root,
    "gammas": lambda x: jax.scipy.special.gammaln(x + 1.5) * jax.scipy.special.gammainc(1.5, x + 1.0),
}
OF_VECTORS = {
    "logsumexp": jax.nn.logsumexp,
    "softmax": lambda v: jax.nn.softmax(v)[0],
    "cholesky": lambda v: jnp.linalg.cholesky(matrix(v))[2, 1],
    "eigenvalues": lambda v: jnp.linalg.eigh(matrix(v))[0][0] + jnp.linalg.eigvalsh(matrix(v))[1],
    "eigenvectors": lambda v: jnp.linalg.eigh(matrix(v))[1][0, 0] ** 2,
    "inv": lambda v: jnp.linalg.inv(matrix(v))[0, 1],
    "solve": lambda v: jnp.linalg.solve(matrix(v), v)[0],
    "svd": lambda v: jnp.linalg.svd(matrix(v))[1][0],
    "qr": lambda v: jnp.linalg.qr(matrix(v))[1][0, 0],
    "det": lambda v: jnp.linalg.det(matrix(v)),
    "slogdet": lambda v: jnp.linalg.slogdet(matrix(v))[1],
    "expm": lambda v: jax.scipy.linalg.expm(matrix(v))[0, 0],
    "norm": jnp.linalg.norm,
    "sort": lambda v: jnp.sort(v)[0] * v[1],
    "reductions": lambda v: jnp.prod(v) * jnp.max(v) + jnp.var(v),
    "scans": lambda v: jnp.cumsum(v)[1] * jnp.cumprod(v)[2],
}


def close(got, want, limit):
    np.testing.assert_allclose(got, want, rtol=limit, atol=limit)


LONG = ("expm", "eigenvectors", "svd", "solve", "slogdet")


@pytest.mark.sample(2, full=4)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in (*OF_SCALARS, *OF_VECTORS)]
)
@pytest.mark.full
def test_like_vmap(name):
    f, a = (OF_SCALARS[name], X) if name in OF_SCALARS else (OF_VECTORS[name], V)
    ones = np.ones_like(a)

    def derivatives(vmap, a):
        def gradient(a):
            value, pull = jax.vjp(vmap(f), a)
            return pull(jnp.ones_like(value))[0]

        return (*jax.jvp(vmap(f), (a,), (ones,)), *jax.jvp(gradient, (a,), (ones,)))

    compiled = jax.jit(derivatives, static_argnums=0)
    # XLA compiles JAX's derivatives of `jnp.cumprod` here into others than those of single operations
    theirs = (derivatives if name == "scans" else compiled)(jax.vmap, a)
    for got, want, limit in zip(compiled(qd.vmap, a), theirs, (1e-8, 1e-8, 1e-8, 1e-6), strict=True):
        close(got, want, limit)


@pytest.mark.full
def test_a_rule_for_reverse_mode_alone():
    x = np.linspace(0.1, 1, 5)
    total = lambda x: qd.vmap(lambda x: clipped(x) * x)(x).sum()  # noqa: E731
    close(jax.grad(total)(x), jax.vmap(jax.grad(lambda x: clipped(x) * x))(x), 1e-12)
    with pytest.raises(GradientError, match=r"(?s)`clipped` has a rule for reverse mode alone .*got forward.*help:"):
        jax.jvp(qd.vmap(clipped), (x,), (x,))


def test_reverse_over_reverse_of_what_need_not_be_a_derivative():
    x = np.linspace(0.1, 1, 5)
    total = lambda x: qd.vmap(lambda x: clipped(x) * x)(x).sum()  # noqa: E731
    with pytest.raises(GradientError, match=r"(?s)needs derivatives that are symmetric.*`clipped`.*jax.hessian"):
        jax.grad(lambda x: jax.grad(total)(x).sum())(x)


def test_rules_of_arrays_in_memory_are_refused_that_are_not_linear():
    x = np.linspace(0.1, 1, 5)
    large = lambda x: clipped(jnp.full(2000, x)).sum()  # noqa: E731
    with pytest.raises(GradientError, match=r"(?s)`clipped` has a .* too large for registers.*linear.*256"):
        jax.grad(lambda x: qd.vmap(large)(x).sum())(x)
