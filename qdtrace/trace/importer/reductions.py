"""Reductions, cumulative operations, argmax and argmin: trees over scalars, loops over arrays in memory."""

from __future__ import annotations

import functools
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.errors import UnsupportedError
from qdtrace.ir.combining import FROM_ZERO, ON_BOOL, start_of
from qdtrace.ir.types import DType
from qdtrace.trace.dtypes import accumulated
from qdtrace.trace.importer import complexes
from qdtrace.trace.importer.elements import is_cheap
from qdtrace.trace.importer.elementwise import converted
from qdtrace.trace.importer.folds import fold_loop, folded
from qdtrace.trace.importer.memory import UNROLL
from qdtrace.trace.importer.registry import PLACED, rule
from qdtrace.trace.importer.scalars import integer
from qdtrace.trace.importer.structural import move_last, permute
from qdtrace.trace.importer.values import Formula, MemoryArray, PrivateArray, Value, array_of, made_from
from qdtrace.trace.physical import is_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.ir.program import Atom
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import Element
    from qdtrace.trace.jaxprs import Shaped

    Combine = Callable[[Any, Any], Any]

LOOP_ABOVE = 64
"""An array in memory of more elements is reduced in a loop."""
_REDUCTIONS = {
    "reduce_sum": "add", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "mul", "reduce_and": "and",
    "reduce_or": "or", "reduce_xor": "xor",
}  # fmt: skip
_CUMULATIVE = {"cumsum": "add", "cumprod": "mul", "cummax": "max", "cummin": "min"}


def combiner(imp: Importer, name: str, aval: Shaped) -> Combine:
    """Returns the function that joins two elements."""
    if aval.dtype == np.bool_:
        name = ON_BOOL.get(name, name)
    return lambda a, b: complexes.element(imp, name, a, b)


def zero_of(aval: Shaped, imp: Importer) -> Element:
    """Returns the initial value of a sum, a pair for values that are pairs."""
    zero = start_of("add", imp.dtype_of(aval))
    return (zero, zero) if is_pair(aval) else zero


def tree(combine: Combine, elements: Sequence[Element]) -> Any:
    """Joins elements pairwise: short chains and small rounding errors."""
    items = list(elements)
    while len(items) > 1:
        paired = [combine(a, b) for a, b in zip(items[::2], items[1::2], strict=False)]
        items = paired + items[len(items) & ~1 :]
    return items[0]


def total(add: Combine, elements: Sequence[Element], zero: Element) -> Element:
    """Returns the sum of elements. As JAX's, it begins at 0.0 where there are several: -0.0 and -0.0 give 0.0."""
    if len(elements) < 2:
        return elements[0] if elements else zero
    return tree(add, [add(elements[0], zero), *elements[1:]])


def reduced(
    imp: Importer, x: Value, axes: Sequence[int], name: str, start: Element, aval: Shaped, *, spread: bool = False
) -> Value:
    """Returns the array with these axes joined. What is `spread` over rows again is made where a row is computed."""
    combine, dtype, pair = combiner(imp, name, aval), imp.dtype_of(aval), is_pair(aval)
    axes = [d % max(x.ndim, 1) for d in axes]
    if not axes:
        return x
    kept = [d for d in range(x.ndim) if d not in axes]
    shape = [x.shape[d] for d in kept]
    count = int(np.prod([x.shape[d] for d in axes]))
    if count == 0:
        return imp.build(shape, dtype, lambda i: start, pair, unroll=True)
    join = total if name in FROM_ZERO else lambda combine, elements, _: tree(combine, elements)
    inner = [x.shape[d] for d in axes]
    if spread and isinstance(x, PrivateArray) and 1 < prod(shape) <= imp.few and count <= UNROLL:
        back = np.argsort([*kept, *axes])
        places = [[imp.index(i) for i in place] for place in np.ndindex(*inner)]

        def row(index: Sequence[Atom]) -> Element:
            return join(combine, [imp.element(x, [[*index, *k][b] for b in back]) for k in places], start)

        return Formula(tuple(shape), dtype, row, pair, [x], moves=True, of_rows=True)
    if isinstance(x, np.ndarray) or x.size <= min(LOOP_ABOVE, imp.scalar_budget):
        x = imp.scalars(x)
        rows = x.transpose([*kept, *axes]).reshape(-1, count)
        return array_of((join(combine, row.tolist(), start) for row in rows), shape)
    lines = permute(imp, x, [*kept, *axes])

    def joined(index: Sequence[Atom], k: Sequence[Atom], so_far: Element) -> Element:
        return combine(so_far, imp.element(lines, [*index, *k]))

    of_line, _ = made_from(lines)
    work = count * (of_line + 1) - of_line
    if imp.makes_again and prod(shape) > imp.few and count <= UNROLL and is_cheap(work, prod(shape), [lines]):
        places = [[imp.index(i) for i in place] for place in np.ndindex(*inner)]

        def at(index: Sequence[Atom]) -> Element:
            return functools.reduce(lambda so_far, k: joined(index, k, so_far), places, start)

        return Formula(tuple(shape), dtype, at, pair, [lines], work=work)
    return folded(imp, shape, dtype, inner, start, joined, adjoining=kept[-1:] == [x.ndim - 1])


def _reduction(name: str) -> Callable[..., Value]:
    def run(imp: Importer, eqn: JaxprEqn, x: Value, *, axes: Sequence[int]) -> Value:
        aval = eqn.outvars[0].aval
        wide = accumulated(aval, name)
        dtype = imp.dtype_of(wide)
        first = start_of(name, dtype)
        start = (first, start_of("add", dtype)) if is_pair(aval) else first
        uses = imp.importing[0] if imp.importing is not None and not imp.makes_again else None
        spread = uses is not None and uses.is_spread(eqn.outvars[0], imp.few)
        x = converted(imp, aval, x, jax.ShapeDtypeStruct(x.shape, wide.dtype))
        return converted(imp, wide, reduced(imp, x, axes, name, start, wide, spread=spread), aval)

    return run


for _name, _op in _REDUCTIONS.items():
    rule(_name, ignores={"out_sharding": PLACED})(_reduction(_op))


def _cumulative(name: str) -> Callable[..., Value]:
    def run(imp: Importer, eqn: JaxprEqn, x: Value, *, axis: int, reverse: bool) -> Value:
        aval = eqn.outvars[0].aval
        wide = accumulated(aval, name)
        combine = combiner(imp, name, wide)
        begin = (lambda element: combine(element, zero_of(wide, imp))) if name in FROM_ZERO else None
        return scanned(imp, x, axis, reverse, combine, aval, wide, begin)

    return run


def scanned(
    imp: Importer,
    x: Value,
    axis: int,
    reverse: bool,
    combine: Combine,
    narrow: Shaped,
    aval: Shaped,
    begin: Callable[[Any], Any] | None,
) -> Value:
    """Returns running totals along an axis, which are of type `aval` until all are known, and then of type `narrow`.

    `begin(element)` is the first, where there are several.
    """
    x = converted(imp, narrow, x, aval)
    n = aval.shape[axis]
    if begin is None or n < 2:
        begin = lambda element: element  # noqa: E731
    if isinstance(x, np.ndarray) or x.size <= UNROLL:
        lines = np.moveaxis(imp.scalars(x), axis, -1)
        out = np.empty(lines.shape, object)
        for at in np.ndindex(*lines.shape[:-1]):
            so_far: Element | None = None
            for k in range(n - 1, -1, -1) if reverse else range(n):
                element = lines[(*at, k)]
                so_far = begin(element) if so_far is None else combine(so_far, element)
                out[(*at, k)] = so_far
        return converted(imp, aval, np.moveaxis(out, -1, axis), narrow)
    lines = move_last(imp, x, axis)
    dtype = imp.dtype_of(aval)
    pair = is_pair(aval)
    shape = (*lines.shape[:-1], n)
    result = imp.free_memory([lines], shape, dtype, pair) or imp.private(shape, dtype, pair)

    def line(at: list[Atom]) -> None:
        def where(k: Atom) -> list[Atom]:
            return [*at, imp.op("sub", imp.index(n - 1), k) if reverse else k]

        first = begin(imp.element(lines, where(imp.index(0))))
        imp.store_at(result.var, first, where(imp.index(0)))

        def step(index: list[Atom], carried: Sequence[Atom]) -> list[Atom]:
            k = where(imp.op("add", index[0], imp.index(1)))
            so_far = combine(carried[0], imp.element(lines, k))
            imp.store_at(result.var, so_far, k)
            return [so_far]

        if n > 1:
            fold_loop(imp, [n - 1], [first], step)

    imp.loop_nest(shape[:-1], line)
    back = list(range(len(shape) - 1))
    back.insert(axis, len(shape) - 1)
    return converted(imp, aval, permute(imp, result, back), narrow)


for _name, _op in _CUMULATIVE.items():
    rule(_name)(_cumulative(_op))


@rule("cumlogsumexp")
def cumlogsumexp(imp: Importer, eqn: JaxprEqn, x: Value, *, axis: int, reverse: bool) -> Value:
    """Returns the running log(sum(exp)), stable."""
    aval = eqn.outvars[0].aval
    if is_pair(aval):
        return complexes.unsupported(imp, "cumlogsumexp")

    if not jnp.issubdtype(aval.dtype, jnp.floating):  # JAX traces it, and fails to lower it
        raise UnsupportedError(
            f"`cumlogsumexp` needs floats, got {aval.dtype}",
            loc=imp.here(),
            help="convert its operand: x.astype(float)",
        )

    def combine(a: Atom, b: Atom) -> Atom:
        high, low = imp.op("max", a, b), imp.op("min", a, b)
        safe = imp.choose(imp.op("eq", low, high), start_of("add", high.dtype), imp.op("sub", low, high))
        return imp.op("add", high, imp.op("log1p", imp.op("exp", safe)))

    begin = lambda element: imp.op("add", element, start_of("add", element.dtype))  # noqa: E731
    return scanned(imp, x, axis, reverse, combine, aval, accumulated(aval), begin)


def _arg_extreme(compare: str) -> Callable[..., Value]:
    def run(imp: Importer, eqn: JaxprEqn, x: Value, *, axes: Sequence[int], index_dtype: np.dtype) -> Value:
        (axis,) = axes
        if is_pair(eqn.invars[0].aval):  # JAX traces it, and compiles it for no device
            return complexes.unsupported(imp, eqn.primitive.name)
        kind = DType.of(index_dtype)
        source = imp.dtype_of(eqn.invars[0].aval)
        lines = move_last(imp, x, axis)
        n = lines.shape[-1]

        def best_of(index: Sequence[Atom]) -> Element:
            def step(at: Atom, carries: Sequence[Atom]) -> list[Atom]:
                value, (best, place) = imp.element(lines, [*index, at]), carries
                wins = imp.op(compare, value, best)
                if source.is_float:  # the first NaN wins and stays
                    wins = imp.op("and", imp.op("or", wins, imp.op("ne", value, value)), imp.op("eq", best, best))
                return [imp.choose(wins, value, best), imp.choose(wins, imp.convert(at, kind), place)]

            carries = [imp.element(lines, [*index, imp.index(0)]), integer(0, kind)]
            if isinstance(lines, MemoryArray) and n > UNROLL:
                return imp.carry_loop(n - 1, carries, lambda k, c: step(imp.op("add", k, imp.index(1)), c))[1]
            for k in range(1, n):
                carries = step(imp.index(k), carries)
            return carries[1]

        return imp.build(lines.shape[:-1], kind, best_of, unroll=True)

    return run


rule("argmax")(_arg_extreme("gt"))
rule("argmin")(_arg_extreme("lt"))
