"""Functions of elements applied to whole arrays, with JAX's broadcasting of axes of length one."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from qdtrace.trace import compat
from qdtrace.trace.importer.memory import SCARCE
from qdtrace.trace.importer.values import Element, Formula, Value, array_of, made_from, rank0
from qdtrace.trace.physical import is_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.ir.program import Atom
    from qdtrace.trace.importer.memory import MemoryOps
    from qdtrace.trace.jaxprs import AnyJaxpr, Shaped


CHEAP = frozenset(
    ("add", "sub", "mul", "square", "integer_pow", "neg", "abs", "sign", "max", "min",
     "eq", "ne", "lt", "le", "gt", "ge")
)
"""Elementwise primitives of one operation."""
DEAR = 8
"""Operations that another one takes, about."""
MOST = 32
"""Most operations that are computed again in place of a load: private arrays of all threads do not fit in caches."""
SHORTER = 4
"""Least ratio of the elements of an array to those of an array that it is made from, for that."""
WRITTEN_OUT = 2048
"""Most equations that a function is written out in, for more elements than are without a loop anyway."""


def length_of(closed: AnyJaxpr) -> int:
    """Returns the number of equations of a jaxpr, inner ones included."""
    eqns = compat.open_jaxpr(closed).eqns
    return len(eqns) + sum(length_of(inner) for eqn in eqns for inner in compat.inner_jaxprs(eqn))


def per_element(
    imp: MemoryOps, fn: Callable[..., Element], aval: Shaped, *values: Value, length: int = 1, pair: bool = False
) -> Value:
    """Applies a function of elements; an operand has the shape, or rank 0, or length one along some axes.

    The result is of type `aval`, or has pairs of its elements. One of `length` equations is not written out for each of
    many elements: they go through memory and a loop. What may be in scalars is so again where memory gets scarce.
    """
    shape, dtype, pair = tuple(aval.shape), imp.dtype_of(aval), pair or is_pair(aval)
    importing, imp.importing = imp.importing, None
    is_small = prod(shape) <= min(imp.scalar_budget, max(imp.few, WRITTEN_OUT // length))
    if is_small and imp.private_bytes > SCARCE:
        values = tuple([imp.scalars(v) for v in values])
    if is_small and prod(shape) > imp.few and all(isinstance(v, np.ndarray) or _is_of_rows(v) for v in values):
        values = tuple([imp.scalars(v) for v in values])
    arrays = [v for v in values if isinstance(v, np.ndarray)] if is_small else []
    if is_small and len(arrays) == len(values):
        if not shape:
            return rank0(fn(*[v[()] for v in arrays]))
        columns = [(v if v.shape == shape else np.broadcast_to(v, shape)).ravel().tolist() for v in arrays]
        out = array_of(map(fn, *columns), shape)
        again = lambda: Formula(shape, dtype, _at(imp, fn, shape, [imp.rolled(v) for v in values]), pair)  # noqa: E731
        imp.note_formula(out, values, again, length)
        return out

    operands = [imp.rolled(v) for v in values]
    at = _at(imp, fn, shape, operands)
    if any(_is_of_rows(v) and v.size == prod(shape) for v in operands):
        return Formula(shape, dtype, at, pair, operands, of_rows=True)
    if prod(shape) > imp.few:
        if importing is not None:  # may be computed where it is read
            uses, eqn = importing
            work = 1 if eqn.primitive.name in CHEAP else DEAR
            if uses.may_wait(eqn) or (imp.makes_again and is_cheap(work, prod(shape), operands)):
                return Formula(shape, dtype, at, pair, operands, work=work)
        reuse = imp.free_memory(operands, shape, dtype, pair)
        if reuse is not None:
            return imp.materialise(shape, dtype, at, pair, into=reuse)
    return imp.build(shape, dtype, at, pair)


def _is_of_rows(value: Value) -> bool:
    return isinstance(value, Formula) and value.of_rows


def _at(
    imp: MemoryOps, fn: Callable[..., Element], shape: Sequence[int], operands: Sequence[Value]
) -> Callable[[Sequence[Atom]], Element]:
    return lambda index: fn(*(imp.element(v, _broadcast(imp, v, shape, index)) for v in operands))


def _broadcast(imp: MemoryOps, value: Value, shape: Sequence[int], index: Sequence[Atom]) -> Sequence[Atom]:
    """Returns the operand's index: axes of length one stay at 0, a scalar has none."""
    if not value.ndim or value.shape == shape:
        return index if value.ndim else ()
    return [imp.index(0) if n == 1 else k for n, k in zip(value.shape, index, strict=True)]


def is_cheap(work: int, size: int, operands: Sequence[Value]) -> bool:
    """Returns whether elements are as well computed again, from arrays so much shorter that these are read instead."""
    if work > MOST:
        return False
    found = list(map(made_from, operands))
    leaves = [v for _, some in found for v in some]
    return work + sum(w for w, _ in found) <= MOST and all(v.size * SHORTER <= size for v in leaves)
