"""Answers of libraries that surprise, in lanes: the numbers are written down (Diffrax 0.7.2, Optimistix 0.1.0).

Distributions of NumPyro, TensorFlow Probability and Distrax are not asked: they are in no extra of this package.
"""

from typing import Any

import diffrax as dfx
import equinox as eqx
import interpax
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optimistix as optx
import pytest

import qdtrace as qd

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of the libraries
FALLS = dfx.ODETerm(lambda t, y, args: -y)
Y = jnp.array([1.0, 2.0])


def steps(field: Any, y: Any, t1: Any = 1.0, **more: Any) -> Any:
    """A solution of fixed steps of 0.1."""
    term = dfx.ODETerm(lambda t, y, args: field(y))
    more = {"stepsize_controller": dfx.ConstantStepSize(), "throw": False, **more}
    return dfx.diffeqsolve(term, dfx.Euler(), 0.0, t1, 0.1, y, max_steps=16, **more)


def both(f: Any, *points: Any) -> list[Any]:
    """Results of lanes and of `jax.vmap`."""
    return [jax.tree.map(np.asarray, batched(f)(*points)) for batched in (qd.vmap, jax.vmap)]


@pytest.mark.full
def test_saved_steps_are_followed_by_infinite_times() -> None:
    for ts in both(lambda y: steps(lambda y: -y, y, saveat=dfx.SaveAt(steps=True)).ts, Y):
        assert ts.shape == (2, 16)
        assert np.isfinite(ts[:, :10]).all()
        assert np.isinf(ts[:, 10:]).all()


@pytest.mark.full
def test_times_and_states_have_one_dtype() -> None:
    """Python times are of f64 under x64, and states are promoted; f32 times of `SaveAt` make both f32."""
    with jax.enable_x64(True):
        y = Y.astype(jnp.float32)
        for ys in both(lambda y: steps(lambda y: -y, y).ys, y):
            assert ys.dtype == np.float64
        saved = dfx.SaveAt(ts=jnp.array([0.5], jnp.float32))
        for ts, ys in both(lambda y: (lambda s: (s.ts, s.ys))(steps(lambda y: -y, y, saveat=saved)), y):
            assert ts.dtype == ys.dtype == np.float32


@pytest.mark.full
def test_an_event_that_is_true_at_the_start() -> None:
    event = dfx.Event(lambda t, y, args, **_: y > 1.5)
    for ts, count in both(
        lambda y: (lambda s: (s.ts[-1], s.stats["num_steps"]))(steps(lambda y: -y, y, event=event)), Y
    ):
        np.testing.assert_allclose(ts, [1, 0], rtol=1e-6)
        assert count.tolist() == [10, 0]


@pytest.mark.full
def test_a_gradient_by_the_end_of_no_time() -> None:
    """Alone it is 0; in a batch JAX gives NaN beside lanes that take steps."""
    slope = jax.grad(lambda t1: steps(lambda y: -y, 1.0, t1, adjoint=dfx.DirectAdjoint()).ys[-1])
    ours, theirs = both(slope, jnp.array([0.0, 1.0]))
    assert ours[0] == 0
    assert np.isnan(theirs[0])
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5)


@pytest.mark.full
def test_a_field_of_nan_is_a_success() -> None:
    for ys, ok in both(
        lambda y: (lambda s: (s.ys[-1], s.result == dfx.RESULTS.successful))(steps(lambda y: y * jnp.nan, y)), Y
    ):
        assert np.isnan(ys).all()
        assert ok.all()


@pytest.mark.full
def test_outside_of_a_dense_solution() -> None:
    for y in both(lambda y: steps(lambda y: -y, y, saveat=dfx.SaveAt(dense=True)).evaluate(2.0), Y):
        assert np.isnan(y).all()


def test_newton_without_a_root() -> None:
    """It stays where the derivative is 0, and the gradient of that answer is 0, silently."""

    def root(c: Any) -> Any:
        return optx.root_find(lambda x, c: x**2 + c, optx.Newton(1e-6, 1e-6), 0.0, c, throw=False).value

    for value in both(root, Y):
        assert np.isfinite(value).all()


def test_a_root_at_the_end_of_a_bracket() -> None:
    bracket = {"lower": 0.0, "upper": 1.0}

    def root(c: Any) -> Any:
        find = optx.Bisection(1e-6, 1e-6)
        return optx.root_find(lambda x, c: x - c, find, 0.5, c, options=bracket, throw=False).value

    for batched in (qd.vmap, jax.vmap):
        with pytest.raises(Exception, match="root is not contained"):
            jax.block_until_ready(batched(root)(jnp.array([0.0, 1.0])))


@pytest.mark.full
def test_the_gradient_of_a_fit_without_full_rank() -> None:
    """The fit is right; its adjoint solves with a singular operator and raises, also with `throw=False`."""

    def fit(c: Any) -> Any:
        residuals = lambda x, c: jnp.stack([x[0] + x[1] - c, 2 * (x[0] + x[1] - c)])  # noqa: E731
        find = optx.LevenbergMarquardt(1e-5, 1e-5)
        return optx.least_squares(residuals, find, jnp.zeros(2), c, throw=False).value.sum()

    for batched in (qd.vmap, jax.vmap):
        np.testing.assert_allclose(batched(fit)(Y), Y, rtol=1e-4)
        with pytest.raises(Exception, match="linear solver returned non-finite"):
            jax.block_until_ready(batched(jax.grad(fit))(Y))


def test_a_singular_system_that_has_a_solution() -> None:
    """Least squares find it; the usual solver gives no numbers."""
    operator = lx.MatrixLinearOperator(jnp.ones((2, 2)))
    for value in both(lambda b: lx.linear_solve(operator, jnp.stack([b, b]), lx.SVD()).value, Y):
        np.testing.assert_allclose(value, [[0.5, 0.5], [1, 1]], rtol=1e-5)


def test_a_checked_value_in_a_branch_not_taken() -> None:
    """Each lane runs alone: JAX raises for the whole batch."""

    def f(x: Any) -> Any:
        return jax.lax.cond(x > 0, lambda x: x, lambda x: eqx.error_if(x, x > 0, "positive"), x)

    np.testing.assert_array_equal(qd.vmap(f)(Y), Y)
    with pytest.raises(Exception, match="positive"):
        jax.block_until_ready(jax.vmap(f)(Y))


@pytest.mark.full
def test_extrapolation() -> None:
    knots, values = jnp.array([0.0, 1.0, 2.0]), jnp.array([0.0, 1.0, 4.0])
    for value, nearest in both(
        lambda x: (
            interpax.interp1d(x, knots, values, method="linear"),
            interpax.interp1d(x, knots, values, method="nearest", extrap=True),
        ),
        jnp.array([-1.0, 0.5, 3.0]),
    ):
        np.testing.assert_array_equal(np.isnan(value), [True, False, True])
        np.testing.assert_array_equal(nearest, [0, 0, 4])
