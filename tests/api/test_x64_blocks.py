"""What a block of `jax.enable_x64(True)` computes in 64 bits keeps them, as `jax.jit(jax.vmap(f))` has them."""

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd

from . import x64_blocks
from .x64_blocks import AROUND, BODIES, NARROW, STEPS, WIDE, in_64, lane

# derivatives by JAX alone narrow some values on their way to 32 bits as well, and say so
pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
X = jnp.array([0.25, 0.5, 1.5])
ULPS = {"float32": 4e-6, "float64": 1e-12, "complex128": 1e-12, "int64": 0.0}
"""Relative errors of a few roundings in each type: 32 bits on the way to a result of 64 are ten thousand times as
much."""
NO_REVERSE = {"while_loop"}
"""Steps that JAX does not reverse."""
NO_FORWARD = {"custom_vjp", "backward rule"}
"""Steps that have a rule for reverse mode alone."""


def same(got: Any, want: Any, tolerance: float | None = None) -> None:
    assert got.dtype == want.dtype
    tolerance = ULPS[str(want.dtype)] if tolerance is None else tolerance
    largest = max(1.0, float(np.max(np.abs(want))))  # terms of that size cancel in sums of 300
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * largest)


def ones(x: Any) -> Any:
    return lax.full_like(x, 1)  # `jnp.ones` of 64 bits needs the mode


def jvp(f: Any, x: Any) -> Any:
    return jax.jvp(f, (x,), (ones(x),))[1]


def vjp(f: Any, x: Any) -> Any:
    y, pull = jax.vjp(f, x)
    return pull(ones(y))[0]


def known(derivative: Any, f: Any) -> Any:
    """Returns JAX's derivative; None where JAX has none, as it makes constants of 32 bits outside of the block."""
    try:
        return derivative(f, X)
    except TypeError as error:
        assert "arguments to have the same dtypes" in str(error)  # noqa: PT017
        return None


def check(names: tuple[str, ...], *, exact: bool = True) -> None:
    f = lane(names)
    mapped, by_jax = qd.vmap(f), jax.jit(jax.vmap(f))
    tolerance = None if exact else ULPS["float32"]
    want = by_jax(X)
    same(mapped(X), want, tolerance)
    if NO_FORWARD.isdisjoint(names) and (slope := known(jvp, by_jax)) is not None:
        same(jvp(mapped, X), slope, tolerance)
    if NO_REVERSE.isdisjoint(names) and (slope := known(vjp, by_jax)) is not None:
        same(jax.jit(lambda x: vjp(mapped, x))(X), slope, tolerance)


@pytest.mark.sample(full=2)
@pytest.mark.full
@pytest.mark.parametrize("name", WIDE)
def test_each_step_of_a_lane_keeps_64_bits(name: str) -> None:
    check(("scale", name))


def random_names(seed: int) -> tuple[str, ...]:
    rng = random.Random(seed)
    return tuple(rng.choice(list(rng.choices([WIDE, AROUND, NARROW], [6, 3, 1])[0])) for _ in range(rng.randint(1, 4)))


@pytest.mark.full
@pytest.mark.sample(4, full=2)
@pytest.mark.parametrize("seed", range(32))
def test_lanes_of_random_steps(seed: int) -> None:
    names = random_names(seed)
    check(names, exact=names[0] in WIDE and NARROW.keys().isdisjoint(names) and "integers" not in names)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(32, 432))
def test_lanes_of_many_random_steps(seed: int) -> None:
    test_lanes_of_random_steps(seed)


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_bodies_keep_64_bits(body: Any) -> None:
    want = BODIES[body](np.asarray(X, np.float64))
    same(qd.jit(body)(X), np.asarray(want))
    same(jax.jit(qd.jit(body)).lower(X).compile()(X), np.asarray(want))


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_the_interpreter_keeps_64_bits(body: Any) -> None:
    same(qd.jit(body, options={"debug": True})(X), np.asarray(BODIES[body](np.asarray(X, np.float64))))


@pytest.mark.full
@pytest.mark.parametrize("body", [b for b in BODIES if b.__name__ not in ("integers", "complexes")])
def test_derivatives_of_bodies_keep_64_bits(body: Any) -> None:
    step = 1e-6
    x = np.asarray(X, np.float64)
    slope = (BODIES[body](x + step) - BODIES[body](x - step)) / (2 * step)
    f = qd.jit(body)
    found = jvp(f, X)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, slope, rtol=1e-8, atol=1e-8)  # of differences with this step
    reverse = vjp(f, X)
    assert reverse.dtype == np.float32
    np.testing.assert_allclose(reverse.sum(), slope.sum(), rtol=2e-6)  # a rounding of each sum to f32


@pytest.mark.parametrize("tail", [True, False])
def test_nested_maps_take_and_give_64_bits(tail: bool) -> None:
    def outer(by: Any) -> Any:
        def row(r: Any) -> Any:
            wide = in_64(lambda: r.astype("float64") * 0.1)()
            made = by(lambda v: jnp.sin(v) * v)(wide)
            return made if tail else made * wide

        return by(row)

    rows = X.reshape(1, 3)
    same(outer(qd.vmap)(rows), jax.jit(outer(jax.vmap))(rows))


@pytest.mark.full
def test_batches_of_maps_and_of_loops_around_tasks() -> None:
    rows = jnp.stack([X, 2 * X])
    same(jax.vmap(qd.vmap(STEPS["scale"]))(rows), jax.jit(jax.vmap(jax.vmap(STEPS["scale"])))(rows))
    f = qd.jit(x64_blocks.around_tasks)
    want = np.stack([BODIES[x64_blocks.around_tasks](np.asarray(r, np.float64)) for r in rows])
    same(jax.vmap(f)(rows), want)
    pulled = jax.vmap(lambda x: vjp(f, x))(rows)
    same(pulled, np.stack([vjp(f, r) for r in rows]))


def test_arguments_of_64_bits_are_refused_by_name_outside_of_the_mode() -> None:
    wide = in_64(lambda: jnp.arange(3.0))()
    with pytest.raises(qd.TraceTypeError, match="argument `arg0` needs to be of at most 32 bits"):
        qd.vmap(lambda x: x)(wide)


# Rules of users run in the mode in which the derivative was asked for, wherever its program is made.


@jax.custom_jvp
def told(x: Any) -> Any:
    return x * 2


@told.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return told(primals[0]), tangents[0] * (10 if jax.config.jax_enable_x64 else 20)


def ways(mapped: Any) -> dict[str, Any]:
    """Returns derivatives that are asked for and compiled in different modes."""

    def in_block(x: Any) -> Any:
        with jax.enable_x64(True):
            return jvp(mapped, x)

    def late(x: Any) -> Any:
        with jax.enable_x64(True):
            return jax.jit(lambda x: vjp(mapped, x)).trace(x)

    def soon(x: Any) -> Any:
        traced = jax.jit(lambda x: vjp(mapped, x)).trace(x)
        with jax.enable_x64(True):
            return traced.lower().compile()(x)

    return {
        "off": lambda x: jvp(mapped, x),
        "on": in_block,
        "both": jax.jit(lambda x: in_block(x) + jvp(mapped, x)),
        "traced on, lowered off": lambda x: late(x).lower().compile()(x),
        "traced off, lowered on": soon,
    }


@pytest.mark.every_case
@pytest.mark.parametrize("way", ways(None))
def test_rules_run_in_the_mode_of_the_derivative(way: str) -> None:
    def f(x: Any) -> Any:
        return told(jnp.sin(x))

    same(ways(qd.vmap(f))[way](X), ways(jax.vmap(f))[way](X))
