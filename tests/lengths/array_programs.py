"""Functions with array code of JAX between loops: what a user writes before, between and behind loops."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import qdtrace as qd


def halved(x: Any) -> Any:
    """Returns each number halved until it is at most 1, from a loop."""
    out = qd.empty(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        v = qd.local(x[i])
        for _ in qd.while_(lambda: v.value > 1):  # noqa: B023
            v.value = v.value / 2
        out[i] = v.value
    return out


def _twice(x: Any) -> Any:
    out = qd.copy(x * 2)
    for i in qd.range(x.shape[0]):
        out[i] += 1
    return out, x[-1] + out[0]


def _filled(x: Any) -> Any:
    out = qd.full(x.shape, jnp.max(x))
    for i in qd.range(x.shape[0] - 1):
        out[i] += x[i + 1]
    return out


def _overwritten(x: Any) -> Any:
    """A whole array is read, and the buffer changes behind it."""
    y = halved(x)
    before = y * 3
    for i in qd.range(x.shape[0]):
        x[i] = before[i] - x[i]
    total = qd.zeros((), x.dtype)
    for i in qd.range(x.shape[0]):
        total[()] += x[i] * x[i]
    return x, before, jnp.sum(y) + total * 2


def _scaled_rows(x: Any) -> Any:
    m = jnp.stack([x, 2 * x, x + 1], 1)
    total, top = m.sum(0), m.max(1)
    return halved(top * 2) + m @ jnp.array([1.0, 2.0, 4.0], x.dtype), total, m[:, ::-1] * total, x @ m


def _taken(x: Any) -> Any:
    k = jnp.arange(x.shape[0]) // 2
    return halved(x[k]), x[-1 - k], jnp.take(x, 3 * k, mode="fill", fill_value=7)


def _with_bools(x: Any) -> Any:
    large = halved(x) > 0.75
    return large.any(), large.all(), large.sum(), ~large, jnp.where(large, 1, jnp.arange(x.shape[0]))


def _placed(x: Any) -> Any:
    """Places that an array does not have, at both of its ends: without them, and put at the ends."""
    places, zeros = x.astype(jnp.int32) * 2 - 6, jnp.zeros(x.shape[0], x.dtype)
    return halved(zeros.at[places].add(x, mode="drop")), zeros.at[places].max(x, mode="clip")


def _updated_rows(x: Any) -> Any:
    m = jnp.stack([x, 2 * x], 1)
    k = x.astype(jnp.int32) % 5
    return halved(x), m.at[k].add(m), m.at[k].set(2 * m), m.at[1:].set(m[:-1]), m.at[0].set(7)


EXACT: dict[str, Callable[[Any], Any]] = {
    "sum in front": lambda x: halved(x + jnp.sum(x)),
    "sum behind": lambda x: jnp.sum(4 * jnp.floor(halved(x) * 8)),
    "extremes": lambda x: (halved(x - jnp.min(x)), jnp.max(x), jnp.argmax(x), jnp.argmin(halved(x))),
    "running totals": lambda x: (halved(jnp.cumsum(x)), lax.cumsum(x, reverse=True)),
    "running extremes": lambda x: (halved(x), lax.cummax(x)),
    "choice": lambda x: halved(jnp.where(x > 4, x, -x)),
    "iota": lambda x: halved(x) * jnp.arange(x.shape[0]) + jnp.arange(0.0, x.shape[0]),
    "zeros": lambda x: (halved(x + jnp.zeros_like(x)), jnp.ones(x.shape[0]), jnp.full(x.shape, x[0])),
    "steps": lambda x: halved(x[1:] - x[:-1]),
    "parts": lambda x: (halved(x[2:]), x[1:-1] * 2, jnp.diff(x)),
    "dot": lambda x: jnp.dot(jnp.floor(4 * halved(x)), x),
    "turned": lambda x: halved(x[::-1]) + jnp.roll(x, 1),
    "joined": lambda x: halved(jnp.concatenate([x, x * 2, x[:1]])),
    "padded": lambda x: halved(jnp.pad(jnp.clip(x, 2, 5), (1, 2), constant_values=3)),
    "scaled": lambda x: halved(x) * 2 + 1,
    "integers": lambda x: halved(x) + jnp.sum(x.astype(jnp.int32) % 3) + jnp.prod(jnp.sign(x)),
    "columns": lambda x: halved((x[:, None] + jnp.arange(3.0)).reshape(x.shape[0], 3).sum(1)),
    "activations": lambda x: jax.nn.relu(halved(x) - 0.75),
    "a part set": lambda x: halved(halved(x).at[1:-1].set(3) * 2),
    "a part added": lambda x: halved(jnp.asarray(x).at[1:].add(x[:-1])),
    "elements set": lambda x: halved(halved(x).at[x.astype(jnp.int32) % 4].set(x)),
    "elements added": lambda x: jnp.zeros_like(x).at[jnp.arange(x.shape[0]) // 2].add(halved(x)),
    "one element": lambda x: halved(x).at[-1].add(x[0]),
    "segments": lambda x: halved(jax.ops.segment_sum(x, jnp.arange(x.shape[0]) // 2, num_segments=4)),
    "histogram": lambda x: (halved(x), jnp.bincount(x.astype(jnp.int32), length=10)),
    "placed": _placed,
    "updated rows": _updated_rows,
    "copied": _twice,
    "filled": _filled,
    "overwritten": _overwritten,
    "rows": _scaled_rows,
    "taken": _taken,
    "bools": _with_bools,
}
"""Functions whose results have no other bits in another order of sums, for whole numbers up to 9."""
ROUNDED: dict[str, Callable[[Any], Any]] = {
    "normalised": lambda x: halved(x / jnp.sum(x) * x.shape[0]),
    "mean": lambda x: halved(x - jnp.mean(x)),
    "standardised": lambda x: halved((x - x.mean()) / (x.std() + 1e-3)),
    "largest": lambda x: halved(x) / jnp.max(halved(x)),
    "grid": lambda x: halved(x) * jnp.linspace(0.0, 1.0, x.shape[0]),
    "root of squares": lambda x: jnp.sqrt(jnp.mean((halved(x) - x) ** 2)),
    "softmax": lambda x: jax.nn.softmax(halved(x)),
    "norm": lambda x: halved(x) / jnp.linalg.norm(x),
}
"""Functions with sums of numbers that are rounded."""
