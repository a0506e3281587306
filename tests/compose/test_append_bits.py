"""`qd.append` holds the same bits in every run: places are those of a serial loop, whatever the threads do."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

INNER = 6
"""Trips of the loop inside."""


def pushed(x: Any) -> Any:
    """Two pushes a trip into one output and one into another, under conditions and jumps that data decide."""
    out, rare = qd.append(x.shape[0] * 2 * INNER, like=(0, 0.0)), qd.append(x.shape[0], like=0)
    for i in qd.range(x.shape[0]):
        qd.continue_if(x[i] < -1.5)
        scale = qd.local(x[i])
        for j in qd.range(INNER):
            qd.break_if(scale.value > 1.75)
            with qd.when(scale.value * x[(i + 7 * j) % x.shape[0]] > 0.25):
                out.push((i, scale.value))
                out.push((-1 - j, 0.5 * scale.value))
            scale.value = scale.value * 1.5
        with qd.when(scale.value > 8):
            rare.push(i)
    return out, rare


def by_python(x: np.ndarray[Any, np.dtype[np.float32]]) -> tuple[list[tuple[int, np.float32]], list[int]]:
    out: list[tuple[int, np.float32]] = []
    rare: list[int] = []
    for i, scale in enumerate(x):
        if scale < -1.5:
            continue
        for j in range(INNER):
            if scale > 1.75:
                break
            if scale * x[(i + 7 * j) % len(x)] > 0.25:
                out += [(i, scale), (-1 - j, np.float32(0.5) * scale)]
            scale = scale * np.float32(1.5)
        if scale > 8:
            rare.append(i)
    return out, rare


def bits(outs: Any) -> list[bytes]:
    """Returns counts and contents, with what is behind the last element."""
    return [np.asarray(a).tobytes() for a in jax.tree.leaves(outs)]


def numbers(n: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Eighths, whose products are rounded nowhere near the limits."""
    return np.random.default_rng(n).integers(-16, 17, n).astype(np.float32) / 8


@pytest.mark.parametrize("threads", [1, 2, None])
def test_runs_and_threads_push_the_same_bits(threads: int | None) -> None:
    x = numbers(20_000)
    wanted, wanted_rare = by_python(x)
    assert len(wanted) > 20_000
    f = qd.jit(pushed, options={"num_threads": threads})
    out, rare = f(x)
    count = int(out.count)
    places, values = zip(*wanted, strict=True)
    assert (count, int(rare.count)) == (len(wanted), len(wanted_rare))
    np.testing.assert_array_equal(out.values[0][:count], np.array(places))
    np.testing.assert_array_equal(out.values[1][:count], np.array(values))
    np.testing.assert_array_equal(rare.values[: len(wanted_rare)], np.array(wanted_rare))
    assert not jnp.any(out.values[0][count:])
    assert not jnp.any(rare.values[len(wanted_rare) :])
    first = bits((out, rare))
    assert all(bits(f(x)) == first for _ in range(20))


@pytest.mark.parametrize("n", [1, 200])
def test_the_interpreter_pushes_the_same_bits(n: int) -> None:
    x = numbers(n)
    first, *others = [bits(qd.jit(pushed, options=o)(x)) for o in ({"debug": True}, {}, {"num_threads": 1})]
    assert others == [first, first]


def test_gradients_and_lanes_have_the_same_bits_in_each_run() -> None:
    def total(x: Any, **options: Any) -> Any:
        return (qd.jit(pushed, options=options)(x)[0].values[1] ** 2).sum()

    x = numbers(20_000)
    slopes = [jax.jit(jax.grad(lambda x, t=t: total(x, deterministic=True, num_threads=t))) for t in (1, 2)]
    if jax.default_backend() == "gpu":  # which adds up what one element is pushed for by atomic updates
        with pytest.raises(qd.QdError, match="deterministic=True needs sums that do not depend on the order"):
            slopes[0](x)
    else:
        assert len({np.asarray(slope(x)).tobytes() for slope in slopes for _ in range(5)}) == 1
    rows = jax.jit(jax.vmap(qd.jit(pushed)))
    lanes = x[:600].reshape(3, 200)
    found = rows(lanes)
    for k, lane in enumerate(lanes):
        assert bits(jax.tree.map(lambda a, k=k: a[k], found)) == bits(qd.jit(pushed)(lane))
