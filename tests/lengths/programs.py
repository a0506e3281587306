"""Random functions of arrays whose lengths are not fixed: loops over all of them, over parts, and by index arrays."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import qdtrace as qd

Task = Callable[[Any, Any, Any, Any], None]


def function_of(seed: int) -> Callable[..., Any]:
    """Returns a function of x (n x 2), k (n) that indexes it, w (m) and a number, made of two to four random tasks."""
    rng = np.random.default_rng(seed)
    tasks = [TASKS[name] for name in rng.choice(sorted(TASKS), rng.integers(2, 5))]
    scale = float(rng.integers(1, 9)) / 4

    def f(x: Any, k: Any, w: Any, c: Any) -> Any:
        y, z, total = qd.zeros(x.shape, x.dtype), qd.empty(w.shape, w.dtype), qd.zeros((), jnp.int32)
        for i in qd.range(w.shape[0]):
            z[i] = w[i] * scale + c
        for task in (_pointwise, *tasks):
            task(x, y, (k, z), total)
        return x, y, z, total

    return f


def _pointwise(x: Any, y: Any, rest: Any, total: Any) -> None:
    for i in qd.range(x.shape[0]):
        y[i, 0] += x[i, 1] * x[i, 0] - y[i, 1]


def _neighbours(x: Any, y: Any, rest: Any, total: Any) -> None:
    for i in qd.range(x.shape[0] - 1):
        y[i, 1] += x[i + 1, 0] - x[i, 0]


def _backward(x: Any, y: Any, rest: Any, total: Any) -> None:
    n = x.shape[0]
    for i in qd.range(n):
        y[i, 0] = y[i, 0] + x[n - 1 - i, 1] / n


def _half(x: Any, y: Any, rest: Any, total: Any) -> None:
    for i in qd.range(x.shape[0] // 2, x.shape[0]):
        x[i, 0] = x[i, 0] * 0.5 + i


def _inside(x: Any, y: Any, rest: Any, total: Any) -> None:
    for i in qd.range(x.shape[0]):
        with qd.when(i > 0) as _:
            y[i, 1] -= x[i - 1, 1]


def _gathered(x: Any, y: Any, rest: Any, total: Any) -> None:
    for i in qd.range(x.shape[0]):
        y[i, 0] += x[rest[0][i], 1]


def _scattered(x: Any, y: Any, rest: Any, total: Any) -> None:
    for i in qd.range(x.shape[0]):
        y[rest[0][i], 0] += 2.0
        total[()] += rest[0][i]


def _of_all(x: Any, y: Any, rest: Any, total: Any) -> None:
    for i in qd.range(x.shape[0]):
        s = qd.local(x[i, 0])
        for j in qd.range(rest[1].shape[0]):
            s.value = jnp.maximum(s.value * 0.5, rest[1][j])
        y[i, 1] = s.value


def _until(x: Any, y: Any, rest: Any, total: Any) -> None:
    for i in qd.range(x.shape[0]):
        v, steps = qd.local(jnp.abs(x[i, 0]) + 1), qd.local(jnp.int32(0))
        for _ in qd.while_(lambda v=v, steps=steps: (v.value > 0.1) & (steps.value < 40)):
            v.value = v.value * 0.75
            steps.value = steps.value + 1
        total[()] += steps.value


def _last(x: Any, y: Any, rest: Any, total: Any) -> None:
    for c in qd.range(2):
        y[x.shape[0] - 1, c] += x[0, c]


TASKS: dict[str, Task] = {
    "pointwise": _pointwise,
    "neighbours": _neighbours,
    "backward": _backward,
    "half": _half,
    "inside": _inside,
    "gathered": _gathered,
    "scattered": _scattered,
    "of_all": _of_all,
    "until": _until,
    "last": _last,
}


def arguments(n: int, m: int) -> tuple[Any, ...]:
    """Returns arguments of these lengths; sums of what is scattered are exact."""
    rng = np.random.default_rng(1000 * n + m)
    x = rng.integers(-64, 65, (n, 2)).astype(np.float32) / 8
    k = rng.integers(0, n, n).astype(np.int32)
    return jnp.asarray(x), jnp.asarray(k), jnp.asarray(rng.integers(-9, 9, m).astype(np.float32)), 0.5
