"""Incomplete gamma and beta functions, gamma samples, polygamma and zeta; against JAX, and mpmath where JAX is poor."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax import lax

from tests.importer.harness import check, imported

AS = [0.0, 1e-3, 0.3, 1.0, 2.5, 10.0, 40.0, 1e4, np.inf, -1.0, np.nan]
XS = [0.0, 1e-4, 0.2, 1.0, 3.0, 12.0, 39.0, 9.9e3, np.inf, -1.0, np.nan]


@pytest.fixture(params=[np.float32, np.float64], ids=["f32", "f64"])
def dtype(request):
    with jax.enable_x64(request.param is np.float64):
        yield request.param


def grid(dtype, *axes):
    return [np.ravel(m).astype(dtype) for m in np.meshgrid(*axes)]


@pytest.mark.full
@pytest.mark.parametrize("name", ["igamma", "igammac"])
def test_incomplete_gamma(name, dtype):
    # the same steps as XLA's on other lgamma and exp: their argument, up to 1e4 log(1e4), is rounded before
    finite = [a for a in AS if a < 1e3]
    check(getattr(lax, name), *grid(dtype, finite, XS), rtol=1e3 * np.finfo(dtype).eps)
    check(getattr(lax, name), *grid(dtype, AS, XS), rtol=3e5 * np.finfo(dtype).eps)


@pytest.mark.full
@pytest.mark.parametrize("name", ["igamma_grad_a", "random_gamma_grad"])
def test_derivatives_of_incomplete_gamma(name, dtype):
    check(getattr(lax, name), *grid(dtype, AS[:7], XS[:8]), rtol=1e4 * np.finfo(dtype).eps)


@pytest.mark.full
def test_incomplete_beta(dtype):
    x = [0.0, 1e-3, 0.3, 0.5, 0.97, 1.0, 1.5, -0.1, np.nan]
    eps = np.finfo(dtype).eps  # one minus a sum of up to a hundred terms
    check(lax.betainc, *grid(dtype, AS[:7], AS[:7], x), rtol=1e4 * eps, atol=256 * eps)
    check(jax.grad(lambda x: jax.scipy.special.betainc(2.0, 3.0, x)), np.array([0.1, 0.5, 0.9], dtype))


@pytest.mark.full
def test_half_precision():
    check(lax.igamma, *grid(np.float16, [0.5, 2.0], [0.5, 3.0]))


@pytest.mark.full
def test_gradients_of_incomplete_gamma():
    a, x = grid(np.float32, [0.5, 2.0, 7.0], [0.5, 3.0])
    check(jax.grad(jax.scipy.special.gammainc, (0, 1)), a, x, rtol=1e-4)
    check(jax.grad(jax.scipy.special.gammaincc, (0, 1)), a, x, rtol=1e-4)


@pytest.mark.parametrize("name", ["gamma", "loggamma"])
@pytest.mark.full
def test_samples(name):
    seeds, a = np.arange(6, dtype=np.uint32), np.array([1e-3, 0.2, 1, 3, 50, 1e4], np.float32)
    draw = getattr(jax.random, name)
    check(lambda s, a: draw(jax.random.key(s), a), seeds, a)
    check(lambda s, a: jax.grad(lambda a: draw(jax.random.key(s), a))(a), seeds, a, rtol=1e-3)


@pytest.mark.full
def test_samples_of_distributions_with_gamma_inside():
    seeds = np.arange(4, dtype=np.uint32)
    check(
        lambda s: (
            jax.random.beta(jax.random.key(s), 2.0, 3.0, (3,)),
            jax.random.dirichlet(jax.random.key(s), jnp.array([1.0, 2.0, 3.0])),
            jax.random.chisquare(jax.random.key(s), 3.0),
        ),
        seeds,
    )


ZETA_X = [1.01, 1.5, 2.0, 3.0, 4.0, 10.0, 30.0, 100.0]
ZETA_Q = [0.1, 0.5, 1.0, 2.0, 5.0, 9.5, 10.0, 50.0, 1e3]


def hurwitz(x, q):
    """mpmath works to an absolute precision: 350 digits, as values go down to 1e-300."""
    with mpmath.workdps(350):
        return np.array([float(mpmath.re(mpmath.zeta(float(a), float(b)))) for a, b in zip(x, q, strict=True)])


@pytest.mark.full
def test_zeta(dtype):
    x, q = grid(dtype, ZETA_X, ZETA_Q)
    got = imported(lax.zeta, x, q)(x, q)[0]
    want = hurwitz(x, q)
    # a power of up to 100 multiplies the rounding of its base; below the normal numbers digits get lost
    tiny, eps = np.finfo(dtype).tiny, np.finfo(dtype).eps
    finite = want < np.finfo(dtype).max
    np.testing.assert_allclose(got[finite], want[finite], rtol=128 * eps, atol=8 * tiny)
    np.testing.assert_array_equal(got[~finite], np.inf)


def test_zeta_at_special_arguments():
    x, q = grid(np.float32, [0.5, 1.0, 1.5, 2.0, 3.0, np.nan], [0.0, -1.0, -3.0, -0.5, np.nan])
    check(lax.zeta, x, q)
    inf = np.float32(np.inf)
    x = np.array([2, 3, inf, inf, inf, inf, 2, 3], np.float32)
    q = np.array([inf, inf, 0.5, 1, 2, inf, -inf, -5000.5], np.float32)
    got = imported(lax.zeta, x, q)(x, q)[0]
    np.testing.assert_array_equal(got, np.array([0, 0, inf, 1, 0, 0, np.nan, np.nan], np.float32))


def test_zeta_left_of_where_the_expansion_of_jax_holds():
    x, q = grid(np.float64, [2.0, 4.0, 5.0], [-10.5, -20.25, -100.75])
    with jax.enable_x64(True):
        got = imported(lax.zeta, x, q)(x, q)[0]
    # the sum has terms of both signs for odd x, the largest below 1024
    np.testing.assert_allclose(got, hurwitz(x, q), rtol=1e-12, atol=1e-12)


def test_polygamma(dtype):
    m, x = grid(dtype, [0, 1, 2, 3, 6], [0.1, 0.5, 1.0, 2.0, 9.5, 50.0, 1e3, -0.5, np.inf])
    got = imported(lax.polygamma, m, x)(m, x)[0]
    with mpmath.workdps(40):
        want = np.array([float(mpmath.psi(int(a), float(b))) for a, b in zip(m, x, strict=True)])
    np.testing.assert_allclose(got, want, rtol=512 * np.finfo(dtype).eps)


@pytest.mark.full
def test_polygamma_at_special_arguments():
    m, x = grid(np.float32, [-1, 1, 2, 1.5, np.nan], [0.0, -1.0, np.nan, 2.0])
    check(lax.polygamma, m, x)
    check(jax.grad(jax.scipy.special.digamma), np.array([0.3, 1, 20], np.float32))


@pytest.mark.full
def test_elements_of_an_array_need_their_own_number_of_steps():
    a, x = np.array([[0.5, 30, 2]] * 2, np.float32), np.array([[0.1, 29, 9]] * 2, np.float32)
    check(lambda a, x: (lax.igamma(a, x), lax.zeta(a + 1, x), lax.betainc(a, x, x / 40)), a, x, rtol=1e-4)
