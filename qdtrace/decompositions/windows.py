"""Reductions over sliding windows and their derivatives: a strided slice of the padded array for each place.

Sums, maxima and minima go axis by axis. A window of more than 32 places is a loop over them.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from qdtrace.ir.combining import start_of
from qdtrace.ir.types import DType
from qdtrace.trace import compat
from qdtrace.trace.dtypes import accumulated
from qdtrace.trace.importer.registry import decomposition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Pads = Sequence[tuple[int, int]]

WRITTEN_OUT = 32
"""Windows of at most this many places are written out."""


def over_places(shape: Sequence[int], body: Callable[[Sequence[Any], Any, Any], Any], state: Any) -> Any:
    """Runs `body(place, number, state)` for each place of a window in row-major order."""
    if prod(shape) <= WRITTEN_OUT:
        for number, place in enumerate(product(*map(range, shape))):
            state = body(place, number, state)
        return state

    def step(number: Any, state: Any) -> Any:
        return body(jnp.unravel_index(number, tuple(shape)), number, state)

    return lax.fori_loop(0, prod(shape), step, state)


def slice_at(padded: Any, start: Sequence[Any], strides: Sequence[int], counts: Sequence[int]) -> Any:
    """Returns every `strides`-th element from `start` on."""
    if 0 in counts:
        return jnp.zeros(counts, padded.dtype)
    spans = [(n - 1) * s + 1 for n, s in zip(counts, strides, strict=True)]
    if all(isinstance(k, int) for k in start):
        return lax.slice(padded, start, [k + n for k, n in zip(start, spans, strict=True)], strides)
    part = lax.dynamic_slice(padded, [jnp.asarray(k, jnp.int32) for k in start], spans)
    return lax.slice(part, [0] * part.ndim, part.shape, strides)


def padded_by(x: Any, fill: Any, padding: Pads, dilation: Sequence[int]) -> Any:
    """Pads at both ends, and by `dilation - 1` elements between neighbours."""
    config = [(low, high, d - 1) for (low, high), d in zip(padding, dilation, strict=True)]
    return lax.pad(x, jnp.asarray(fill, x.dtype), config)


def counts_of(
    shape: Sequence[int], window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """Windows along each axis of a padded array."""
    return [max((n - (w - 1) * d - 1) // s + 1, 0) for n, w, s, d in zip(shape, window, strides, dilation, strict=True)]


def _start(op: str, dtype: Any) -> Any:
    """Returns the initial value of a window."""
    real = np.finfo(dtype).dtype if jnp.issubdtype(dtype, jnp.complexfloating) else dtype
    return np.asarray(start_of(op, DType.of(real)).value, dtype)[()]


def _windowed(
    values: Sequence[Any], starts: Sequence[Any], combine: Callable[..., Sequence[Any]], shape: Sequence[int],
    strides: Sequence[int], padding: Pads, base_dilation: Sequence[int], dilation: Sequence[int], *,
    masked: bool = False, skips_start: bool = False,
) -> Sequence[Any]:  # fmt: skip
    """Reduces the windows of arrays together, `combine(*totals, *parts)`, from the starts on.

    Padding is of the starts; `masked` leaves its places out, `skips_start` takes the first place as it is.
    """
    padded = [padded_by(x, start, padding, base_dilation) for x, start in zip(values, starts, strict=True)]
    inside = padded_by(jnp.ones(values[0].shape, bool), False, padding, base_dilation) if masked else None
    counts = counts_of(padded[0].shape, shape, strides, dilation)

    def add(place: Any, number: Any, totals: Any) -> Any:
        start = [k * d for k, d in zip(place, dilation, strict=True)]
        parts = [slice_at(p, start, strides, counts) for p in padded]
        if skips_start and isinstance(number, int) and number == 0:
            return parts
        results = combine(*totals, *parts)
        if inside is None:
            return tuple(results)
        valid = slice_at(inside, start, strides, counts)
        return tuple(jnp.where(valid, r, t) for r, t in zip(results, totals, strict=True))

    return over_places(shape, add, tuple(jnp.full(counts, s, x.dtype) for x, s in zip(values, starts, strict=True)))


def _monoid(name: str, op: str, combine: Callable[[Any, Any], Any]) -> None:
    @decomposition(f"reduce_window_{name}")
    def run(
        x: Any, *, window_dimensions: Sequence[int], window_strides: Sequence[int], padding: Pads,
        base_dilation: Sequence[int], window_dilation: Sequence[int],
    ) -> Any:  # fmt: skip
        dtype = x.dtype
        x = x.astype(accumulated(x, op).dtype)
        start = _start(op, x.dtype)
        window = (window_dimensions, window_strides, padding, base_dilation, window_dilation)
        usual = (1, 1, (0, 0), 1, 1)
        for axis in range(x.ndim):
            if [given[axis] for given in window[:4]] == list(usual[:4]):
                continue
            along: list[Any] = [[u] * x.ndim for u in usual]
            for one, given in zip(along, window, strict=True):
                one[axis] = given[axis]
            (x,) = _windowed([x], [start], lambda a, b: [combine(a, b)], *along, skips_start=True)
        return x.astype(dtype)


_monoid("sum", "add", lax.add)
_monoid("max", "max", lax.max)
_monoid("min", "min", lax.min)


@decomposition("reduce_window", assumes={"consts": ()})
def reduce_window(
    *values: Any, jaxpr: Any, window_dimensions: Sequence[int], window_strides: Sequence[int],
    padding: Pads, base_dilation: Sequence[int], window_dilation: Sequence[int],
) -> Any:  # fmt: skip
    """Reduces windows by a user's function of scalars; places outside of the array are left out."""
    half = len(values) // 2
    masked = any(low or high for low, high in padding) or max(base_dilation, default=1) != 1
    return _windowed(
        values[:half], values[half:], _per_element(compat.function_of(jaxpr)), window_dimensions, window_strides,
        padding, base_dilation, window_dilation, masked=masked,
    )  # fmt: skip


@decomposition("reduce", ignores={"computation": "`jaxpr` is the same function"})
def reduce(*values: Any, jaxpr: Any, dimensions: Sequence[int]) -> Any:
    """Reduces axes by a user's function, as one window over all of them."""
    shape = values[0].shape
    ones = [1] * len(shape)
    window = [n if d in dimensions else 1 for d, n in enumerate(shape)]
    out = reduce_window(
        *values, jaxpr=jaxpr, window_dimensions=window, window_strides=ones, padding=[(0, 0)] * len(shape),
        base_dilation=ones, window_dilation=ones,
    )  # fmt: skip
    return [lax.squeeze(x, dimensions) for x in out]


def _per_element(fn: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    def mapped(*arrays: Any) -> Sequence[Any]:
        shape = arrays[0].shape
        results = jax.vmap(lambda *e: tuple(fn(*e)))(*(a.reshape(-1) for a in arrays))
        return [r.reshape(shape) for r in results]

    return mapped


@decomposition("select_and_scatter_add")
def select_and_scatter_add(
    source: Any, operand: Any, *, select_prim: Any, window_dimensions: Sequence[int], window_strides: Sequence[int],
    padding: Pads,
) -> Any:  # fmt: skip
    """Adds each element of `source` to the place that its window selects; the derivative of pooling."""
    ones = [1] * operand.ndim
    padded = padded_by(operand, np.zeros((), operand.dtype), padding, ones)
    inside = padded_by(jnp.ones(operand.shape, bool), False, padding, ones)
    counts = counts_of(padded.shape, window_dimensions, window_strides, ones)

    def look(place: Any, number: Any, state: Any) -> Any:
        best, which = state
        value, valid = (slice_at(p, place, window_strides, counts) for p in (padded, inside))
        wins = valid & ((which < 0) | ~select_prim.bind(best, value))
        return jnp.where(wins, value, best), jnp.where(wins, number, which).astype(which.dtype)

    start = (jnp.zeros(counts, operand.dtype), jnp.full(counts, -1, jnp.int32))
    _, which = over_places(window_dimensions, look, start)
    total = jnp.zeros(padded.shape, source.dtype)
    at = jnp.meshgrid(
        *(s * np.arange(n, dtype=np.int32) for s, n in zip(window_strides, counts, strict=True)), indexing="ij"
    )

    def add(place: Any, number: Any, total: Any) -> Any:
        chosen = jnp.where(which == number, source, jnp.zeros_like(source))
        if all(isinstance(k, int) for k in place):
            where = tuple(
                slice(k, k + (n - 1) * s + 1, s) for k, s, n in zip(place, window_strides, counts, strict=True)
            )
            return total.at[where].add(chosen)
        return total.at[tuple(a + k for a, k in zip(at, place, strict=True))].add(chosen)

    total = over_places(window_dimensions, add, total)
    return lax.pad(total, jnp.zeros((), source.dtype), [(-low, -high, 0) for low, high in padding])


@decomposition("select_and_gather_add")
def select_and_gather_add(
    tangents: Any, operand: Any, *, select_prim: Any, window_dimensions: Sequence[int], window_strides: Sequence[int],
    padding: Pads, base_dilation: Sequence[int], window_dilation: Sequence[int],
) -> Any:  # fmt: skip
    """Returns the tangent of the place that each window selects."""
    worst = _start("max" if select_prim is lax.ge_p else "min", operand.dtype)

    def select(best: Any, change: Any, value: Any, other: Any) -> Any:
        keep = select_prim.bind(best, value)
        return jnp.where(keep, best, value), jnp.where(keep, change, other)

    window = (window_dimensions, window_strides, padding, base_dilation, window_dilation)
    return _windowed((operand, tangents), (worst, 0), select, *window)[1]
