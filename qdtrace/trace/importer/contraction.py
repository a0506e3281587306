"""dot_general: sums of products, unrolled when small, loops over private arrays when large.

Every product counts, also one with a constant zero: 0 * inf is NaN. Inside of our own decompositions, where zeros stand
for what a step leaves alone, such products are left out (`Importer.zeros_vanish`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from qdtrace.ir.program import Literal
from qdtrace.trace.dtypes import accumulated
from qdtrace.trace.importer import complexes
from qdtrace.trace.importer.elementwise import converted
from qdtrace.trace.importer.folds import folded
from qdtrace.trace.importer.memory import UNROLL
from qdtrace.trace.importer.reductions import combiner, total, zero_of
from qdtrace.trace.importer.registry import PLACED, PRECISION, RESULT_TYPE, rule
from qdtrace.trace.importer.structural import permute
from qdtrace.trace.importer.values import MemoryArray, Value, array_of, elements_of, is_static
from qdtrace.trace.physical import is_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jax.lax import DotDimensionNumbers

    from qdtrace.ir.program import Atom
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import Element
    from qdtrace.trace.jaxprs import Shaped

    Sizes = tuple[list[int], list[int], list[int], list[int]]
    """Lengths of batch axes, rows, columns and summed axes."""

UNROLLED_PRODUCTS = 1024
"""Most products written out when both operands are scalars."""
UNROLLED_FROM_MEMORY = 256
"""Most products written out when an operand is in memory."""


@rule("dot_general", ignores={"precision": PRECISION, "preferred_element_type": RESULT_TYPE, "out_sharding": PLACED})
def dot_general(imp: Importer, eqn: JaxprEqn, x: Value, y: Value, *, dimension_numbers: DotDimensionNumbers) -> Value:
    """Imports `dot_general`: batch axes first, then the free axes of x, then those of y."""
    (cx, cy), (bx, by) = dimension_numbers
    fx = [d for d in range(x.ndim) if d not in cx and d not in bx]
    fy = [d for d in range(y.ndim) if d not in cy and d not in by]
    batch, inner = [x.shape[d] for d in bx], [x.shape[d] for d in cx]
    rows, columns = [x.shape[d] for d in fx], [y.shape[d] for d in fy]
    left, right = permute(imp, x, [*bx, *fx, *cx]), permute(imp, y, [*by, *fy, *cy])
    aval = eqn.outvars[0].aval
    whole = accumulated(aval)
    if not is_pair(aval) and any(is_pair(v.aval) for v in eqn.invars):  # the real part of the product
        whole = jax.ShapeDtypeStruct(aval.shape, np.result_type(aval.dtype, np.complex64))
    return converted(imp, whole, _product(imp, whole, left, right, (batch, rows, columns, inner)), aval)


def _product(imp: Importer, aval: Shaped, left: Value, right: Value, sizes: Sizes) -> Value:
    batch, rows, columns, inner = sizes
    count = int(np.prod(inner, dtype=np.int64))
    work = int(np.prod(aval.shape, dtype=np.int64)) * count
    in_memory = any(isinstance(v, MemoryArray) and v.size > UNROLL for v in (left, right))
    most = UNROLLED_FROM_MEMORY if in_memory else UNROLLED_PRODUCTS
    if work <= most and max(left.size, right.size) <= imp.scalar_budget:
        return _unrolled(imp, aval, imp.scalars(left), imp.scalars(right), (batch, rows, columns, count))
    return _looped(imp, aval, left, right, sizes)


def _unrolled(
    imp: Importer, aval: Shaped, left: np.ndarray, right: np.ndarray, sizes: tuple[list[int], list[int], list[int], int]
) -> np.ndarray:
    batch, rows, columns, count = sizes
    lefts = left.reshape(int(np.prod(batch)), int(np.prod(rows)), count)
    rights = right.reshape(int(np.prod(batch)), int(np.prod(columns)), count)
    add, mul = combiner(imp, "add", aval), _multiplier(imp, aval)
    out = []
    for b in range(lefts.shape[0]):
        for row in lefts[b].tolist():
            for column in rights[b].tolist():
                products = [
                    mul(p, q)
                    for p, q in zip(row, column, strict=True)
                    if not (imp.zeros_vanish and (_is_zero(p) or _is_zero(q)))
                ]
                out.append(total(add, products, zero_of(aval, imp)))
    return array_of(out, aval.shape)


def _looped(imp: Importer, aval: Shaped, left: Value, right: Value, sizes: Sizes) -> Value:
    """Sums in loops; scalars go to memory, because an index that a loop counts would choose among all of them."""
    batch, rows, _, inner = sizes
    left, right = _readable(imp, left), _readable(imp, right)
    add, mul = combiner(imp, "add", aval), _multiplier(imp, aval)
    nb, nr = len(batch), len(rows)

    def join(index: Sequence[Atom], k: Sequence[Atom], acc: Element) -> Element:
        row, column = [*index[: nb + nr], *k], [*index[:nb], *index[nb + nr :], *k]
        return add(acc, mul(imp.element(left, row), imp.element(right, column)))

    return folded(imp, aval.shape, imp.dtype_of(aval), inner, zero_of(aval, imp), join)


def _readable(imp: Importer, value: Value) -> Value:
    if isinstance(value, np.ndarray) and not all(map(is_static, elements_of(value))):
        return imp.copied(value) or imp.spill(value)
    return imp.in_memory(value)


def _multiplier(imp: Importer, aval: Shaped) -> Callable[[Any, Any], Any]:
    """Returns the function that multiplies elements in the result's dtype; operands may differ in theirs."""
    dtype, pair, mul = imp.dtype_of(aval), is_pair(aval), combiner(imp, "mul", aval)
    return lambda p, q: mul(*(complexes.converted(imp, e, dtype, pair=pair) for e in (p, q)))


def _is_zero(element: Element) -> bool:
    if isinstance(element, tuple):
        return all(_is_zero(part) for part in element)
    return isinstance(element, Literal) and bool(element.value == 0)
