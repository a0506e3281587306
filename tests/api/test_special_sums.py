"""Accumulations of zeros with signs, infinities and NaN: the result is of the class of one operation after another."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

INF, NAN = float("inf"), float("nan")
FIRST = (0.0, -0.0, 1.0, -INF, NAN)
GIVEN = ([-0.0], [0.0, -0.0], [INF, 1.0], [INF, -INF], [NAN, 1.0], [-0.0, 1e-30, -1e-30], [0.0, INF], [-1.0, -0.0])
OPERATIONS: dict[str, Any] = {
    "add": np.add,
    "mul": np.multiply,
    "min": lambda a, b: np.nan if a != a or b != b else min(a, b, key=_order),
    "max": lambda a, b: np.nan if a != a or b != b else max(a, b, key=_order),
}
PLACES = [(op, where) for op in OPERATIONS for where in ("one", "few", "loop", "cell", "large")]
PLACES = [(op, where) for op, where in PLACES if op != "mul" or where in ("loop", "cell")]  # `*=` is not atomic
COUNT, LARGE = 67, 70000


def _order(x: float) -> tuple[float, bool]:
    return float(x), not np.signbit(x)


def _update(op: str, b: Any, k: Any, v: Any) -> None:
    if op == "add":
        b[k] += v
    elif op == "mul":
        b[k] *= v
    elif op == "min":
        qd.atomic_min(b, k, v)
    else:
        qd.atomic_max(b, k, v)


@functools.cache
def program(op: str, where: str, fast_math: bool) -> Any:
    """Accumulates all of `v` into each of five places: by lanes together, by an inner loop, or into a large array."""

    @qd.jit(options={"fast_math": fast_math})
    def into_one(b, v):
        for i in qd.range(v.shape[0]):
            _update(op, b, 0, v[i])
        return b

    @qd.jit(options={"fast_math": fast_math})
    def into_few(b, v):
        for i, k in qd.ndrange(v.shape[0], 5):
            _update(op, b, k, v[i])
        return b

    @qd.jit(options={"fast_math": fast_math})
    def by_loop(b, v):
        for k in qd.range(b.shape[0]):
            for i in qd.range(v.shape[0]):
                _update(op, b, k, v[i])
        return b

    @qd.jit(options={"fast_math": fast_math})
    def in_cell(b, v):
        for k in qd.range(b.shape[0]):
            c = qd.local(b[k])
            for i in qd.range(v.shape[0]):
                x = v[i]
                joined = {"add": jnp.add, "mul": jnp.multiply, "min": jnp.minimum, "max": jnp.maximum}
                c.value = joined[op](c.value, x)
            b[k] = c.value
        return b

    return {"one": into_one, "few": into_few, "loop": by_loop, "cell": in_cell, "large": into_few}[where]


@pytest.mark.every_case
@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize(("op", "where"), PLACES)
def test_accumulated(op: str, where: str, fast_math: bool) -> None:
    run, combine = program(op, where, fast_math), OPERATIONS[op]
    for first in FIRST:
        for given in GIVEN:
            v = np.resize(np.array(given, np.float32), COUNT)
            size = {"one": 1, "large": LARGE}.get(where, 5)
            got = np.asarray(run(np.full(size, first, np.float32), v))
            with np.errstate(all="ignore"):
                want = functools.reduce(combine, v, np.float32(first))
            used = got[: 1 if where == "one" else 5]
            assert np.isnan(used).all() == np.isnan(want), (first, given, used, want)
            if not np.isnan(want):
                assert (np.signbit(used) == np.signbit(want)).all(), (first, given, used, want)
                np.testing.assert_allclose(used, want, rtol=1e-4, atol=1e-28)
                assert ((used == 0) == (want == 0)).all() or abs(want) < 1e-25, (first, given, used, want)
            rest = got[5:] if where == "large" else got[:0]
            np.testing.assert_array_equal(np.signbit(rest), np.signbit(first))
