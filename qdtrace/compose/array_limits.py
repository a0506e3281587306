"""Limits of arrays of integers, found once for each array: `ir.program.Limits`, rounded to powers of two.

A JAX array never changes, so its limits are kept as long as it lives, by a weak reference: another array may get the
address of one that is gone. Arrays of NumPy may change, so nothing is kept of these.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.core import Tracer

from qdtrace.analysis.index.intervals import range_of_dtype
from qdtrace.counters import count
from qdtrace.ir.dataflow import flows, reached
from qdtrace.ir.memory import reference, values_of
from qdtrace.ir.primitives import FOR, LOAD, WHILE
from qdtrace.ir.program import Limits, Literal, Var, is_local
from qdtrace.ir.types import DType
from qdtrace.ir.walk import walk_program

if TYPE_CHECKING:
    from qdtrace.ir.program import Program

_known: dict[int, tuple[weakref.ref[Any], Limits]] = {}
"""Limits of JAX arrays by their `id`, with the array that they are of."""


def limits_of(value: Any) -> Limits | None:
    """Returns the limits of an array of integers or of an integer; None for tracers and all others."""
    if isinstance(value, Tracer | bool | np.bool_):
        return None
    if isinstance(value, jax.Array):
        return _limits_of_array(value)
    is_number = isinstance(value, int | np.ndarray | np.integer)
    array = np.asarray(value) if is_number else None
    return None if array is None or array.dtype.kind not in "iu" else _found(array)


def _limits_of_array(array: jax.Array) -> Limits | None:
    kept = _known.get(id(array))
    if kept is not None and kept[0]() is array:
        return kept[1]
    is_readable = not array.is_deleted() and array.is_fully_addressable
    if not is_readable or not jax.numpy.issubdtype(array.dtype, np.integer):
        return None
    key, limits = id(array), _found(np.asarray(array))

    def forget(gone: weakref.ref[Any]) -> None:
        if (kept := _known.get(key)) is not None and kept[0] is gone:
            del _known[key]

    _known[key] = weakref.ref(array, forget), limits
    return limits


def _found(array: np.ndarray) -> Limits:
    count(size_reductions=1)
    if not array.size:
        return Limits(0, 0, (0,) * array.ndim)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    low, high = int(array.min()), int(array.max())
    steps = tuple(_largest_step(array, axis, high - low) for axis in range(array.ndim))
    least, most = range_of_dtype(DType.of(array.dtype))
    # an end of the dtype would say nothing (`analysis/index/most_trips`)
    return Limits(
        low if low == least else max(-_rounded(-low), least + 1 if least else 0),
        high if high == most else min(_rounded(high), most - 1),
        steps,
    )


def _largest_step(array: np.ndarray, axis: int, span: int) -> int:
    bits = 8 * array.dtype.itemsize
    if span >= 1 << (bits - 1):  # differences may not be numbers of the dtype
        if bits == 64:
            return _rounded(span)
        return _largest_step(array.astype(np.int64), axis, span)
    signed = array.view(f"i{array.dtype.itemsize}")
    return _rounded(int(np.diff(signed, axis=axis, prepend=np.take(signed, [-1], axis)).max()))


def _rounded(value: int) -> int:
    """Returns the least power of two that is not less than a positive number, and 0 for all others."""
    return 1 << (value - 1).bit_length() if value > 0 else 0


def bounding(program: Program) -> set[Var]:
    """Returns the references whose elements may get to bounds of loops, or to conditions of a `while`."""
    roots: list[Var] = []
    sources: dict[Var, list[Var]] = {}

    def comes_from(target: Var, *values: object) -> None:
        sources.setdefault(target, []).extend(v for v in values if isinstance(v, Var))

    for eqn in walk_program(program):
        if eqn.primitive in (FOR, WHILE):
            bounds = eqn.bounds[:2] if eqn.primitive is FOR else eqn.blocks[0].results
            roots += [v for v in bounds if not isinstance(v, Literal)]
        if eqn.primitive is LOAD:
            comes_from(eqn.outvar, reference(eqn))
        elif eqn.primitive.is_access and is_local(reference(eqn)):
            comes_from(reference(eqn), *values_of(eqn))
        for source, target in flows(eqn) if eqn.blocks else ():
            comes_from(target, source)
        for var in eqn.outvars if not eqn.blocks and eqn.primitive is not LOAD else ():
            comes_from(var, *eqn.invars)
    return reached(roots, lambda var: sources.get(var, ()))
