"""Loops of which the trace knows that they have no iterations: as with Python's `range`, nothing of their body runs."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd


def first_of_each(x: Any) -> Any:
    out = qd.zeros(x.shape[0])
    for i in qd.range(x.shape[0]):
        out[i] = x[0] + x[-1]
    return out


def stored(x: Any) -> Any:
    for _ in qd.range(x.shape[0]):
        x[0] = 1.0
    return x


def inside_of_a_loop(x: Any) -> Any:
    out = qd.ones(4)
    for i in qd.range(4):
        for j in qd.range(x.shape[0]):
            out[i] += x[j] + x[0]
    return out


def values(x: Any) -> Any:
    """Elements of a value of JAX, which JAX does not index where there are none."""
    y, out = jnp.asarray(x) * 2, qd.ones(4)
    for i in qd.range(4):
        for j in qd.range(x.shape[0]):
            out[i] += y[j]
    return out


def columns(x: Any) -> Any:
    out = qd.ones(2)
    for _, j in qd.ndrange(2, x.shape[0]):
        out[0] += x[j]
    return out


def backwards(x: Any) -> Any:
    for i in qd.range(x.shape[0] - 1, -1, -1):
        x[i] = 2.0 * x[i]
    return x


FUNCTIONS: dict[Callable[[Any], Any], list[float]] = {
    first_of_each: [],
    stored: [],
    inside_of_a_loop: [1.0] * 4,
    values: [1.0] * 4,
    columns: [1.0] * 2,
    backwards: [],
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_the_body_of_an_empty_loop_is_not_run(function: Callable[[Any], Any]) -> None:
    compiled, empty = qd.jit(function), jnp.zeros(0)
    assert np.asarray(compiled(empty)).tolist() == FUNCTIONS[function]
    assert jax.grad(lambda x: compiled(x).sum())(empty).shape == (0,)
    assert jax.vmap(compiled)(jnp.zeros((3, 0))).tolist() == [FUNCTIONS[function]] * 3
    assert np.isfinite(compiled(jnp.ones(2))).all()


def test_an_element_that_is_not_there_is_an_error_of_the_iteration_that_reads_it() -> None:
    @qd.jit
    def read(x: Any, n: Any) -> Any:
        out = qd.zeros(3)
        for i in qd.range(n):
            out[i] = x[i]
        return out

    assert read(jnp.zeros(0), 0).tolist() == [0, 0, 0]
    with pytest.raises(qd.BoundsError, match="index 0 is out of bounds for axis 0 of `x`"):
        jax.block_until_ready(read(jnp.zeros(0), 1))
