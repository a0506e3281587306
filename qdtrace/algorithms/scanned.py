"""`qd_scanned`, the primitive behind `qd.scan`: running combinations of the elements of rows by a traced function.

On a CPU long rows are tasks: parts combine their elements, a short loop combines the parts, and each part runs again
behind what comes before it. All else is JAX's associative scan. What is differentiated is loops over parts side
by side, and a lane is a loop. Operands are the constants of the function, then arrays (rows, n, ...).
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import eval_jaxpr
from jax.interpreters import ad

from qdtrace.algorithms.arguments import compiled
from qdtrace.algorithms.rows import with_lanes_first
from qdtrace.api import jit
from qdtrace.trace import compat
from qdtrace.trace.allocation import empty, empty_like
from qdtrace.trace.importer import def_import_rule
from qdtrace.trace.indexing import as_value
from qdtrace.trace.local import local
from qdtrace.trace.loops import ndrange
from qdtrace.trace.loops import range as qd_range

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

scanned_p = compat.Primitive("qd_scanned")
scanned_p.multiple_results = True
LEAST = 1 << 12
"""Elements of a row from which on tasks are faster than JAX's scan."""
LEAST_IN_ROWS = 64
"""Elements of a row from which on its derivative is that of loops."""
PART = 1 << 13
"""Fewest elements of a part."""
MOST_PARTS = 64
Elements = Any
"""A list with an element, or arrays of elements, of each array."""


_known: dict[Hashable, _Combine] = {}
"""Jaxprs of functions that are the same in each call, which so are compiled once outside of `jax.jit`."""
MOST_KNOWN = 256


def scanned(
    combine: Callable[[Elements, Elements], Elements], xs: Sequence[jax.Array], key: Hashable | None = None
) -> list[jax.Array]:
    """Returns running combinations of the elements of arrays (n, ...) along their first axes.

    Args:
        combine: takes two lists with an element of each array, and returns another.
        xs: the arrays.
        key: what tells the function from all others, if it is the same in each call.
    """
    element = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in xs]
    key = key and (key, *((x.shape, x.dtype) for x in element))
    function, constants = _known.get(key), ()
    if function is None:
        closed = jax.make_jaxpr(combine)(element, element)
        constants = compat.constants_of(closed)
        function = _Combine(compat.open_jaxpr(closed), len(constants))
        if key and not constants and len(_known) < MOST_KNOWN:
            _known[key] = function
    outs = _scanned(*constants, *(x[None] for x in xs), combine=function)
    return [as_value(out)[0] for out in outs]


class _Combine:
    """A function of two elements as a jaxpr, whose constants are operands. Equal to itself alone."""

    def __init__(self, jaxpr: Any, constants: int) -> None:
        self.jaxpr = jaxpr
        self.constants = constants

    def split(self, operands: Sequence[Any]) -> tuple[Callable[[Elements, Elements], Elements], list[Any]]:
        """Returns the function with its constants, and the arrays, of the operands of the primitive."""
        constants, xs = operands[: self.constants], list(operands[self.constants :])
        return functools.partial(self.run, constants), xs

    def run(self, constants: Sequence[Any], a: Elements, b: Elements) -> Elements:
        """Returns the combination of two elements."""
        return eval_jaxpr(self.jaxpr, list(constants), *a, *b)


def _by_jax(*operands: Any, combine: _Combine) -> list[Any]:
    function, xs = combine.split(operands)
    if xs[0].shape[1] == 0:
        return xs
    return lax.associative_scan(jax.vmap(jax.vmap(function)), xs, axis=1)


def _in_rows(*operands: Any, combine: _Combine) -> list[Any]:
    """Scans parts side by side, then their last elements: loops of the root of the length, with JAX's derivatives.

    The associative scan unrolls two functions for each factor of 2 of the length, and its transpose takes tens of
    seconds to compile.
    """
    function, xs = combine.split(operands)
    n = xs[0].shape[1]
    parts = math.isqrt(n)
    if n < LEAST_IN_ROWS:
        return _by_jax(*operands, combine=combine)
    length = -(-n // parts)

    def row(*xs: Any) -> list[Any]:
        missing = parts * length - n
        padded = [jnp.concatenate([x, jnp.broadcast_to(x[-1:], (missing, *x.shape[1:]))]) for x in xs]
        cut = [x.reshape(parts, length, *x.shape[1:]) for x in padded]
        own = jax.vmap(lambda *xs: _serial(function, xs))(*cut)
        before = [x[:-1] for x in _serial(function, [x[:, -1] for x in own])]
        behind = jax.vmap(lambda a, b: jax.vmap(lambda b: function(a, b))(b))(before, [x[1:] for x in own])
        outs = (jnp.concatenate([x[:1], y]) for x, y in zip(own, behind, strict=True))
        return [out.reshape(parts * length, *out.shape[2:])[:n] for out in outs]

    return jax.vmap(row)(*xs)


def _serial(function: Callable[[Elements, Elements], Elements], xs: Sequence[Any]) -> list[Any]:
    """Scans arrays along their first axes by a loop."""

    def step(total: Elements, own: Elements) -> tuple[Elements, Elements]:
        made = function(total, own)
        return made, made

    _, rest = lax.scan(step, [x[0] for x in xs], [x[1:] for x in xs])
    return [jnp.concatenate([x[:1], out]) for x, out in zip(xs, rest, strict=True)]


def _in_lane(*operands: Any, combine: _Combine) -> list[Any]:
    function, xs = combine.split(operands)
    return xs if xs[0].shape[1] == 0 else jax.vmap(lambda *xs: _serial(function, xs))(*xs)


def _by_tasks(*operands: Any, combine: _Combine) -> list[Any]:
    if operands[-1].shape[1] < LEAST or any(x.size == 0 for x in operands):
        return _by_jax(*operands, combine=combine)
    return scan_rows(*operands, combine=combine)


def _scan(*operands: Any, combine: _Combine) -> list[Any]:
    constants = [as_value(x) for x in operands[: combine.constants]]
    xs = operands[combine.constants :]
    rows, n = xs[0].shape[:2]
    parts = min(max(n // PART, 1), MOST_PARTS)
    length = -(-n // parts)
    sums, before = ([empty((rows, parts, *x.shape[2:]), x.dtype) for x in xs] for _ in range(2))
    outs = [empty_like(x) for x in xs]

    def combined(totals: Sequence[Any], own: Elements) -> Elements:
        return combine.run(constants, [total.value for total in totals], own)

    for r, p in ndrange(rows, parts, name="scan_parts"):
        totals = [local(x[r, p * length]) for x in xs]
        for j in qd_range(p * length + 1, jnp.minimum((p + 1) * length, n)):
            _set(totals, combined(totals, [x[r, j] for x in xs]))
        _store(sums, (r, p), [total.value for total in totals])
    for r in qd_range(rows, name="scan_carries"):
        totals = [local(x[r, 0]) for x in sums]
        _store(before, (r, 0), [total.value for total in totals])
        for p in qd_range(1, parts):
            _store(before, (r, p), [total.value for total in totals])
            _set(totals, combined(totals, [x[r, p] for x in sums]))
    for r, p in ndrange(rows, parts, name="scan_elements"):
        own = [x[r, p * length] for x in xs]
        first = combine.run(constants, [x[r, p] for x in before], own)
        totals = [local(jnp.where(p > 0, new, x)) for new, x in zip(first, own, strict=True)]
        _store(outs, (r, p * length), [total.value for total in totals])
        for j in qd_range(p * length + 1, jnp.minimum((p + 1) * length, n)):
            _set(totals, combined(totals, [x[r, j] for x in xs]))
            _store(outs, (r, j), [total.value for total in totals])
    return outs


def _set(cells: Sequence[Any], values: Sequence[Any]) -> None:
    for cell, value in zip(cells, values, strict=True):
        cell.value = value


def _store(arrays: Sequence[Any], place: tuple[Any, Any], values: Sequence[Any]) -> None:
    for array, value in zip(arrays, values, strict=True):
        array[place] = value


scan_rows: Any = jit(_scan, static_argnames="combine", options={"bounds": "unchecked", "vectorize": False})


def _types(*operands: Any, combine: _Combine) -> list[Any]:
    return [compat.array_type(x.shape, x.dtype, operands) for x in operands[combine.constants :]]


def _tangents(primals: Sequence[Any], tangents: Sequence[Any], *, combine: _Combine) -> tuple[Any, Any]:
    """Differentiates a scan by loops of JAX."""
    moving = [k for k, t in enumerate(tangents) if type(t) is not ad.Zero]

    def of_moving(*xs: Any) -> list[Any]:
        operands = list(primals)
        for k, x in zip(moving, xs, strict=True):
            operands[k] = x
        return _in_rows(*operands, combine=combine)

    found, made = jax.jvp(of_moving, [primals[k] for k in moving], [tangents[k] for k in moving])
    zero = jax.dtypes.float0
    return found, [ad.Zero(compat.tangent_type(x)) if t.dtype == zero else t for x, t in zip(found, made, strict=True)]


def _mapped(operands: Sequence[Any], axes: Sequence[Any], *, combine: _Combine) -> tuple[Any, Any]:
    """Makes one axis of the mapped axis and the rows; functions whose constants are mapped go to JAX's scan."""
    if any(a is not None for a in axes[: combine.constants]):
        made = jax.vmap(functools.partial(_by_jax, combine=combine), axes)(*operands)
        return made, [0] * len(made)
    constants, arrays = operands[: combine.constants], operands[combine.constants :]
    moved = with_lanes_first(arrays, axes[combine.constants :])
    outs = scanned_p.bind(*constants, *(lax.collapse(x, 0, 2) for x in moved), combine=combine)
    return [out.reshape(x.shape) for out, x in zip(outs, moved, strict=True)], [0] * len(outs)


_scanned: Any = compiled(scanned_p, "combine")
compat.define(scanned_p, _types, _mapped, _by_jax, cpu=_by_tasks)
ad.primitive_jvps[scanned_p] = _tangents
def_import_rule(scanned_p, _in_lane)
