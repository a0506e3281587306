"""Code that a branch or an empty loop guards has no part in the gradient, whatever the passes make of the branch.

A zero adjoint times an infinite slope is NaN, so no such product may be computed where the program computes none.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.analysis.slopes import has_finite_slopes
from qdtrace.ir.builder import Builder, scalar_var
from qdtrace.ir.program import literal
from qdtrace.ir.types import DType
from tests.autodiff.lanes import each

X, W = np.array([-1.0, -1.0, 2.0]), np.array([np.inf, np.nan, 3.0])


@each
def masked(i, x, w):
    """Data that are missing are NaN; a branch of one multiplication is cheap enough to be computed always."""
    v = qd.local(x[i])
    with qd.when(jnp.isfinite(w[i])):
        v.value = x[i] * w[i]
    return v.value


def test_a_product_in_a_branch():
    dx, dw = jax.grad(lambda x, w: masked(x, w).sum(), (0, 1))(X, W)
    np.testing.assert_array_equal(dx, [1, 1, 3])
    np.testing.assert_array_equal(dw, [0, 0, 2])
    choose = lambda x, w: jax.lax.cond(jnp.isfinite(w), lambda: x * w, lambda: x)  # noqa: E731
    np.testing.assert_array_equal(jax.grad(lambda x: qd.vmap(choose)(x, W).sum())(X), [1, 1, 3])


def test_a_root_in_a_loop_that_does_not_run():
    @each
    def f(i, x, n):
        s = qd.local(x[i])
        for k in qd.range(n[i]):
            s.value = s.value + jnp.sqrt(x[i]) * k
        return s.value

    x, n = np.array([0.0, 4]), np.array([0, 3])
    np.testing.assert_allclose(jax.grad(lambda x: f(x, n).sum())(x), [1, 1.75])


def test_a_root_in_a_branch_in_a_loop():
    @each
    def f(i, x):
        s = qd.local(x[i])
        for k in qd.range(4):
            with qd.when(x[i] > k):
                s.value = s.value + jnp.sqrt(x[i]) * k
        return s.value

    np.testing.assert_allclose(jax.grad(lambda x: f(x).sum())(np.array([0.0, 4])), [1, 2.5])


def test_a_root_that_all_iterations_share():
    """It is in a branch of the body, and would be moved to the head of the task."""

    @qd.jit
    def f(x, c):
        out = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            out[i] = x[i]
            with qd.when(c > 0):
                out[i] = x[i] * jnp.sqrt(c)
        return out

    for c, want in ((0.0, [0, 1]), (4.0, [0.75, 2])):
        dc, dx = jax.grad(lambda c, x: f(x, c).sum(), (0, 1))(c, np.array([1.0, 2]))
        np.testing.assert_allclose([dc, dx[1]], want)


def test_a_logarithm_in_a_while_that_does_not_run():
    @each
    def f(i, x):
        s = qd.local(x[i])
        for _ in qd.while_(lambda: (s.value > 0) & (s.value < 3)):
            s.value = s.value + jnp.log(x[i])
        return s.value

    np.testing.assert_allclose(jax.grad(lambda x: f(x).sum())(np.array([0.0, 2])), [1, 2])


@pytest.mark.parametrize(
    ("name", "operands", "expected"),
    [
        ("add", 2, True), ("select", 3, True), ("max", 2, True), ("mul", 2, False), ("div", 2, False),
        ("sqrt", 1, False), ("sin", 1, False), ("lt", 2, True),
    ],
)  # fmt: skip
def test_operations_with_finite_slopes(name, operands, expected):
    b = Builder()
    ins = [scalar_var(DType.f64) for _ in range(operands)]
    b(name, *([scalar_var(DType.bool), *ins[1:]] if name == "select" else ins))
    assert has_finite_slopes(b.current.eqns[-1]) is expected


@pytest.mark.parametrize(
    ("name", "number", "at", "expected"),
    [
        ("mul", 2.0, 1, True),
        ("mul", np.inf, 1, False),
        ("div", 2.0, 1, True),
        ("div", 0.0, 1, False),
        ("div", 2.0, 0, False),
    ],
)
def test_slopes_of_constants(name, number, at, expected):
    b = Builder()
    operands = [scalar_var(DType.f64)]
    operands.insert(at, literal(number, DType.f64))
    b(name, *operands)
    assert has_finite_slopes(b.current.eqns[-1]) is expected
