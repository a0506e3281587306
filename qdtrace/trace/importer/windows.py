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

from qdtrace.ir.combining import identity
from qdtrace.ir.types import DType
from qdtrace.trace import compat
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


def _identity(name: str, dtype: Any) -> Any:
    """Returns the initial value of a window: the identity of its reduction, but 0.0 for sums, as in JAX."""
    if name == "sum":
        return np.zeros((), dtype)[()]
    real = np.finfo(dtype).dtype if jnp.issubdtype(dtype, jnp.complexfloating) else dtype
    return np.asarray(identity(name, DType.of(real)).value, dtype)[()]


def _monoid(name: str, combine: Callable[[Any, Any], Any]) -> None:
    @decomposition(f"reduce_window_{name}")
    def run(
        x: Any, *, window_dimensions: Sequence[int], window_strides: Sequence[int], padding: Pads,
        base_dilation: Sequence[int], window_dilation: Sequence[int],
    ) -> Any:  # fmt: skip
        identity = _identity(name, x.dtype)
        ones = [1] * x.ndim
        for axis in range(x.ndim):
            window, strides, dilation = list(ones), list(ones), list(ones)
            window[axis], strides[axis] = window_dimensions[axis], window_strides[axis]
            dilation[axis] = window_dilation[axis]
            pads = [(0, 0)] * x.ndim
            pads[axis] = padding[axis]
            base = list(ones)
            base[axis] = base_dilation[axis]
            if (window, strides, pads[axis], base) == (ones, ones, (0, 0), ones):
                continue
            p = padded_by(x, identity, pads, base)
            counts = counts_of(p.shape, window, strides, dilation)

            def add(place: Any, number: Any, total: Any, p=p, strides=strides, dilation=dilation, counts=counts) -> Any:  # type: ignore[no-untyped-def]
                start = [k * d for k, d in zip(place, dilation, strict=True)]
                part = slice_at(p, start, strides, counts)
                return part if isinstance(number, int) and number == 0 else combine(total, part)

            x = over_places(window, add, jnp.full(counts, identity, x.dtype))
        return x


_monoid("sum", lax.add)
_monoid("max", lax.max)
_monoid("min", lax.min)


@decomposition("reduce_window", assumes={"consts": ()})
def reduce_window(
    *values: Any, jaxpr: Any, window_dimensions: Sequence[int], window_strides: Sequence[int],
    padding: Pads, base_dilation: Sequence[int], window_dilation: Sequence[int],
) -> Any:  # fmt: skip
    """Reduces windows by a user's function of scalars; places outside of the array are left out."""
    half = len(values) // 2
    combine = _per_element(compat.function_of(jaxpr))
    padded = [padded_by(x, 0, padding, base_dilation) for x in values[:half]]
    whole = not any(low or high for low, high in padding) and max(base_dilation, default=1) == 1
    inside = padded_by(jnp.ones(values[0].shape, bool), False, padding, base_dilation)
    counts = counts_of(padded[0].shape, window_dimensions, window_strides, window_dilation)

    def add(place: Any, number: Any, totals: Any) -> Any:
        start = [k * d for k, d in zip(place, window_dilation, strict=True)]
        results = combine(*totals, *(slice_at(p, start, window_strides, counts) for p in padded))
        if whole:
            return tuple(results)
        valid = slice_at(inside, start, window_strides, counts)
        return tuple(jnp.where(valid, r, t) for r, t in zip(results, totals, strict=True))

    totals = tuple(jnp.full(counts, start, x.dtype) for x, start in zip(values[:half], values[half:], strict=True))
    return over_places(window_dimensions, add, totals)


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
    worst = _identity("max" if select_prim.name == "ge" else "min", operand.dtype)
    values = padded_by(operand, worst, padding, base_dilation)
    changes = padded_by(tangents, 0, padding, base_dilation)
    counts = counts_of(values.shape, window_dimensions, window_strides, window_dilation)

    def look(place: Any, number: Any, state: Any) -> Any:
        best, change = state
        start = [k * d for k, d in zip(place, window_dilation, strict=True)]
        value, other = (slice_at(p, start, window_strides, counts) for p in (values, changes))
        keep = select_prim.bind(best, value)
        return jnp.where(keep, best, value), jnp.where(keep, change, other)

    start = (jnp.full(counts, worst, operand.dtype), jnp.zeros(counts, tangents.dtype))
    return over_places(window_dimensions, look, start)[1]
