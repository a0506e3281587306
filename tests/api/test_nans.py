"""`debug="nans"`: operations that make NaN of numbers are errors that name the line."""

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


def plus(b, x):
    b[0] += x


def minus(b, x):
    b[0] -= x


ACCUMULATIONS = [
    (plus, [np.inf, 1, -np.inf], "`add` makes NaN of inf, -inf"),
    (minus, [np.inf, 1, -np.inf], "`add` makes NaN of -inf, inf"),
    (lambda b, x: b.at[0].mul(x), [2, np.inf, 0], "`mul` makes NaN of inf, 0.0"),
    (lambda b, x: qd.atomic_add(b, 0, x), [-np.inf, 1, np.inf], "`add` makes NaN of -inf, inf"),
]


@pytest.mark.parametrize(("accumulate", "x", "operands"), ACCUMULATIONS)
def test_accumulations(accumulate, x: list[float], operands: str) -> None:
    @qd.jit(options=NANS)
    def of(x):
        total = qd.ones(1, x.dtype)
        for i in qd.range(x.shape[0]):
            accumulate(total, x[i])
        return total

    assert not np.isnan(of(np.float32(x[:2]))).any()
    of(np.float32([np.nan, *x]))  # it was given
    with pytest.raises(qd.InterpreterError) as raised:
        jax.block_until_ready(of(np.float32(x)))
    first, place, *_ = str(raised.value).splitlines()
    assert first == operands
    assert "test_nans.py:" in place


@pytest.mark.parametrize(
    "around",
    [
        lambda f: f,
        lambda f: lambda x: jax.vmap(f)(jnp.stack([x, x + 1])),
        lambda f: jax.grad(lambda x: f(x).sum()),
        lambda f: jax.vmap(jax.grad(lambda x: f(x[None]).sum())),
    ],
    ids=["call", "vmap", "grad", "vmap of grad"],
)
def test_in_loops_of_loops(around) -> None:
    """The operation is in a branch of a `while` in a loop; in a branch that is not taken nothing is made."""

    @qd.jit(options=NANS)
    def sunk(x):
        out = qd.empty_like(x)
        for i in qd.range(x.shape[0]):
            c = qd.local(x[i])
            for _ in qd.range(3):
                k = qd.local(0)
                for _ in qd.while_(lambda k=k: k.value < 2):
                    with qd.when(c.value < 0):
                        c.value = jnp.sqrt(c.value)
                    with qd.otherwise():
                        c.value = c.value - 1
                    k += 1
            out[i] = c
        return out

    assert not np.isnan(jax.block_until_ready(around(sunk)(jnp.array([9.0, 8.0])))).any()
    with pytest.raises(qd.InterpreterError) as raised:
        jax.block_until_ready(around(sunk)(jnp.array([9.0, 2.5])))
    first, place, line, *_ = str(raised.value).splitlines()
    assert first == "`sqrt` makes NaN of -0.5"
    assert place.endswith(".sunk")
    assert line.strip() == "c.value = jnp.sqrt(c.value)"


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
