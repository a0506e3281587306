"""Lanes whose arguments, temporaries and results are arrays of any size."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd

RNG = np.random.default_rng(4)
LONG = jnp.asarray(RNG.normal(size=(3, 20_000)))


def series(xs: Any) -> Any:
    return lax.scan(lambda c, x: (0.9 * c + jnp.sin(x), None), jnp.zeros((), xs.dtype), xs)[0]


def temporaries(y: Any) -> Any:
    for _ in range(3):
        y = jnp.sin(y) + jnp.cumsum(y) * 1e-3
    return y.sum()


def rows(y: Any) -> Any:
    return lax.scan(lambda c, x: (0.9 * c + x, c * x), jnp.zeros((), y.dtype), y)[1]


def both(y: Any) -> Any:
    return y[::-1] - y.mean(), y.reshape(100, -1).max(0)


def table(y: Any) -> Any:
    k = (jnp.abs(y[:500]) * 40).astype(int) % y.size
    return jnp.sort(y[k])[-5:] @ y[:5] + y[k].sum()


LANES = [series, temporaries, rows, both, table]


def scalar(f: Any) -> Any:
    return lambda y: sum((leaf**2).sum() for leaf in jax.tree.leaves(f(y)))


@pytest.mark.sample(full=2)
@pytest.mark.parametrize("lane", LANES, ids=lambda f: f.__name__)
@pytest.mark.full
def test_rows_of_any_length(lane: Any) -> None:
    with jax.enable_x64(True):
        y = jnp.asarray(LONG, float)
        for got, want in zip(*(jax.tree.leaves(v(lane)(y)) for v in (qd.vmap, jax.vmap)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)
        got, want = (jax.grad(lambda y, v=v: v(scalar(lane))(y).sum())(y) for v in (qd.vmap, jax.vmap))
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
        inside = qd.vmap(jax.grad(scalar(lane)))(y)
        np.testing.assert_allclose(inside, want, rtol=1e-9, atol=1e-9)


def test_a_row_is_read_where_it_lies() -> None:
    low = qd.jit(qd.vmap(series)).lower(LONG)
    assert "cell" not in low.graph("trace")
    assert low.memory_analysis()["stack_per_lane"] == 0
    assert "min" not in low.graph()  # the batch index needs no clamp
    grad = qd.jit(jax.grad(lambda y: qd.vmap(series)(y).sum())).lower(LONG)
    assert "atomic" not in grad.graph()


def test_storage_says_where_large_arrays_are() -> None:
    low = qd.jit(qd.vmap(temporaries)).lower(LONG, target="cpu")
    (note,) = low.storage
    assert note.nbytes == low.memory_analysis()["stack_per_lane"] == 2 * 80_000
    assert str(note).endswith("temporaries.0: an iteration has 156.2 KiB of private arrays, in memory of the thread")
    small = qd.jit(qd.vmap(temporaries)).lower(LONG[:, :300], target="cpu")
    assert small.tasks[0].private_bytes == 2 * 1200
    assert small.storage == []


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_graphics_processors_have_them_in_scratch(target: str) -> None:
    rows = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1_000_000, 1250), (100_000, 20_000))]
    low = qd.jit(qd.vmap(temporaries)).lower(rows[0], target=target)
    assert low.tasks[0].private_bytes == 2 * 5000
    large = qd.jit(qd.vmap(temporaries)).lower(rows[1], target=target)
    (task,) = large.tasks
    assert "bytes of scratch" in task.reason
    assert task.kernel_scratch <= (1 << 33) + (1 << 20)
    assert "in scratch of the threads that run" in str(large.storage[0])


@pytest.mark.full
def test_bodies_load_and_store_large_rows() -> None:
    @qd.jit
    def ranked(x: Any) -> Any:
        out = qd.zeros(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            out[i] = jnp.sort(x[i])
        return out

    np.testing.assert_array_equal(ranked(LONG), jnp.sort(LONG, -1))
