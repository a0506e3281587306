"""`debug="nans"`: operations that make NaN of numbers are errors that name the line."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

NANS = {"debug": "nans"}


def roots(x):
    out = qd.empty_like(x)
    for i in qd.range(x.shape[0]):
        out[i] = jnp.sqrt(x[i]) + 1
    return out


def test_the_line_that_makes_nan_is_named() -> None:
    with pytest.raises(qd.InterpreterError) as raised:
        jax.block_until_ready(qd.jit(roots, options=NANS)(jnp.array([4.0, -2.0])))
    first, place, line, *rest = str(raised.value).splitlines()
    assert first == "`sqrt` makes NaN of -2.0"
    assert place.endswith(" in roots")
    assert "test_nans.py:" in place
    assert line.strip() == "out[i] = jnp.sqrt(x[i]) + 1"
    assert rest[-1] == (
        "help: keep the operands where the result is a number; where NaN is meant, debug=True does not look"
    )


@pytest.mark.parametrize("debug", [True, False])
def test_only_where_it_is_asked_for(debug: bool) -> None:
    out = qd.jit(roots, options={"debug": debug})(jnp.array([4.0, -2.0]))
    np.testing.assert_array_equal(out, [3.0, np.nan])


def test_nan_that_was_given_goes_through() -> None:
    out = qd.jit(roots, options=NANS)(jnp.array([4.0, jnp.nan]))
    np.testing.assert_array_equal(out, [3.0, np.nan])

    @qd.jit(options=NANS)
    def unknown(x):
        out = qd.empty_like(x)
        for i in qd.range(x.shape[0]):
            out[i] = jnp.where(x[i] > 0, x[i], jnp.nan) * 2
        return out

    np.testing.assert_array_equal(unknown(jnp.array([4.0, -2.0])), [8.0, np.nan])


def test_a_branch_that_is_not_taken_makes_it_too() -> None:
    @qd.jit(options=NANS)
    def masked(x):
        out = qd.empty_like(x)
        for i in qd.range(x.shape[0]):
            out[i] = jnp.where(x[i] > 0, jnp.log(x[i]), 0.0)
        return out

    np.testing.assert_allclose(masked(jnp.array([1.0, 2.0])), np.log([1.0, 2.0]), rtol=1e-6)
    with pytest.raises(qd.InterpreterError, match=r"^`log` makes NaN of -1\.0"):
        jax.block_until_ready(masked(jnp.array([1.0, -1.0])))


@pytest.mark.parametrize(
    ("made", "operands"),
    [
        (lambda x: x - x, "`sub` makes NaN of inf, inf"),
        (lambda x: x * 0.0, "`mul` makes NaN of inf, 0.0"),
        (jnp.sin, "`sin` makes NaN of inf"),
    ],
)
def test_infinities(made, operands: str) -> None:
    @qd.jit(options=NANS)
    def of(x):
        out = qd.empty_like(x)
        for i in qd.range(x.shape[0]):
            for _ in qd.range(2):
                out[i] = made(x[i])
        return out

    with pytest.raises(qd.InterpreterError) as raised:
        jax.block_until_ready(of(jnp.array([1.0, jnp.inf])))
    assert str(raised.value).splitlines()[0] == operands


def test_in_derivatives() -> None:
    """The root has no finite derivative at 0, which is multiplied by 0."""

    @qd.jit(options=NANS)
    def norm(x):
        out = qd.empty_like(x)
        for i in qd.range(x.shape[0]):
            out[i] = jnp.sqrt(x[i] * x[i])
        return out

    np.testing.assert_array_equal(jax.grad(lambda x: norm(x).sum())(jnp.array([2.0])), [1.0])
    with pytest.raises(jax.errors.JaxRuntimeError, match="makes NaN of"):  # JAX calls what it is, not `norm`
        jax.block_until_ready(jax.grad(lambda x: norm(x).sum())(jnp.array([2.0, 0.0])))


def test_integers_and_truths_are_not_looked_at() -> None:
    @qd.jit(options=NANS)
    def counted(n):
        out = qd.empty_like(n)
        for i in qd.range(n.shape[0]):
            out[i] = jnp.where(n[i] // 2 * 2 == n[i], n[i], 0)
        return out

    np.testing.assert_array_equal(counted(jnp.arange(4)), [0, 0, 2, 0])
