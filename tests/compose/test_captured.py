"""Arrays of numbers that a loop captures: literals up to 64 elements, memory above."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.trace.importer.core import LARGE_CONSTANT


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.full
def test_a_small_matrix_is_literals_and_what_is_made_of_it_scalars() -> None:
    matrix = numbers(6, 6)

    @qd.jit
    def remainders(x: jax.Array) -> jax.Array:
        out = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            column = x[i]
            out[i] = (jnp.array(matrix) - jnp.outer(column, column)) @ column
        return out

    given = numbers(5, 6)
    want = np.stack([(matrix - np.outer(c, c)) @ c for c in given.astype(np.float64)])
    np.testing.assert_allclose(remainders(given), want, rtol=1e-4, atol=1e-4)
    graph = remainders.lower(given).graph()
    assert "cell[" not in graph
    assert "6x6" not in graph
    qd.check_grads(remainders, (given[:2],), order=1, modes=("fwd", "rev"))


@pytest.mark.parametrize("size", [LARGE_CONSTANT, LARGE_CONSTANT + 1])
def test_a_table_that_is_looked_up_is_in_memory(size: int) -> None:
    table = numbers(size)

    @qd.jit
    def looked_up(at: jax.Array) -> jax.Array:
        out = qd.empty(at.shape, jnp.float32)
        for i in qd.range(at.shape[0]):
            out[i] = jnp.array(table)[at[i]] + jnp.array(table)[3]
        return out

    at = np.random.default_rng(1).integers(0, size, 40).astype(np.int32)
    np.testing.assert_allclose(looked_up(at), table[at] + table[3], rtol=1e-6)
    assert f"ref[f32,{size}]" in looked_up.lower(at).graph()
    assert "cell[" not in looked_up.lower(at).graph()
