"""sort and top_k: networks over few scalars, insertion sort in private memory above that. The order is stable."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.ir.program import Var
from qdtrace.ir.types import DType
from qdtrace.trace.importer.elementwise import total_less
from qdtrace.trace.importer.memory import UNROLL
from qdtrace.trace.importer.registry import decomposition, rule
from qdtrace.trace.importer.scalars import FALSE, integer
from qdtrace.trace.importer.structural import move_last, permute
from qdtrace.trace.importer.values import MemoryArray, PrivateArray, Value, parts_of
from qdtrace.trace.physical import is_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from qdtrace.ir.program import Atom
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import Element
    from qdtrace.trace.jaxprs import Shaped

STABLE = "equal elements keep their order in any case"
NETWORK_KEYS = 32
"""Most elements sorted by a network when only keys are sorted."""
NEIGHBOURS = 6
"""Most floats of which exchanges of neighbours alone cost no more than a look for -0.0 and a merge."""


def _comparators(n: int) -> Iterator[tuple[int, int]]:
    """Yields comparators of Batcher's odd-even merge sort, without those beyond n."""
    size = 1
    while size < n:
        step = size
        while step >= 1:
            for start in range(step % size, n - step, 2 * step):
                for k in range(min(step, n - start - step)):
                    if (start + k) // (2 * size) == (start + k + step) // (2 * size):
                        yield start + k, start + k + step
            step //= 2
        size *= 2


def _neighbours(n: int) -> Iterator[tuple[int, int]]:
    """Yields comparators of odd-even transposition: only swaps neighbours, so equal keys keep their order."""
    for round_ in range(n):
        for k in range(round_ % 2, n - 1, 2):
            yield k, k + 1


@rule("sort", ignores={"is_stable": STABLE})
def sort(imp: Importer, eqn: JaxprEqn, *arrays: Value, dimension: int, num_keys: int) -> list[Value]:
    """Sorts along an axis by the first operands; the others follow."""
    axis, keys = dimension, num_keys
    avals = [v.aval for v in eqn.outvars]
    n = avals[0].shape[axis]
    dtypes = [imp.dtype_of(a) for a in avals]
    only_keys = keys == len(arrays) == 1 and not is_pair(avals[0])
    limit = NETWORK_KEYS if only_keys else UNROLL
    if n <= limit and all(int(np.prod(a.shape)) <= imp.scalar_budget for a in avals):
        lines = [np.moveaxis(imp.scalars(x), axis, -1).copy() for x in arrays]
        for at in np.ndindex(*lines[0].shape[:-1]):
            rows = [line[at] for line in lines]
            if only_keys:
                rows = [_sorted_keys(imp, rows[0], dtypes[0])]
            else:
                _exchange_all(imp, rows, dtypes, keys, _neighbours(n))
            for line, row in zip(lines, rows, strict=True):
                line[at] = row
        return [np.moveaxis(line, -1, axis) for line in lines]
    return _insertion(imp, arrays, avals, dtypes, axis, keys)


def _sorted_keys(imp: Importer, row: np.ndarray, dtype: DType) -> np.ndarray:
    """Returns sorted keys. A merge exchanges elements that are apart, past equal ones: it is not for two zeros."""
    n = len(row)

    def by(pairs: Iterator[tuple[int, int]]) -> np.ndarray:
        keys = row.copy()
        _exchange_all(imp, [keys], [dtype], 1, pairs)
        return keys

    if not dtype.is_float:
        return by(_comparators(n))
    if n <= NEIGHBOURS:
        return by(_neighbours(n))
    kind = DType(f"i{dtype.bits}")  # of its numbers -0.0 has the bits of the least one
    least = functools.reduce(lambda a, b: imp.op("min", a, b), [imp.op("bitcast", x, dtype=kind) for x in row])
    has_negative_zero = imp.op("eq", least, integer(-(1 << (dtype.bits - 1)), kind))

    def two_rounds(_: Atom, keys: list[Atom]) -> list[Atom]:  # written out, they would take as long to compile again
        row = np.array(keys, object)
        _exchange_all(imp, [row], [dtype], 1, itertools.islice(_neighbours(n), n - 1))
        return [*row]

    with imp.block() as yes:
        stable = imp.carry_loop((n + 1) // 2, [*row], two_rounds)
    with imp.block() as no:
        fast = by(_comparators(n))
    row = row.copy()
    row[:] = imp.emit("if", has_negative_zero, blocks=(yes.close([*stable]), no.close([*fast])))
    return row


def _before(imp: Importer, dtypes: Sequence[DType], a: Sequence[Element], b: Sequence[Element]) -> Atom:
    """Returns a < b, key by key; a complex key is its real part, then its imaginary part."""
    less: Atom | None = None
    keys: list[tuple[DType, Atom, Atom]] = []
    for dtype, x, y in zip(dtypes, a, b, strict=False):
        # of complex numbers the real part goes first
        pairs = zip(parts_of(x), parts_of(y), strict=True)
        keys += ((dtype, *parts) for parts in pairs)
    for dtype, x, y in reversed(keys):
        here = total_less(imp, dtype, x, y)
        if less is not None:
            after = total_less(imp, dtype, y, x)
            here = imp.op("or", here, imp.op("and", imp.op("not", after), less))
        less = here
    return FALSE if less is None else less


def _exchange_all(
    imp: Importer, rows: Sequence[np.ndarray], dtypes: Sequence[DType], keys: int, pairs: Iterator[tuple[int, int]]
) -> None:
    for a, b in pairs:
        swap = _before(imp, dtypes[:keys], [r[b] for r in rows[:keys]], [r[a] for r in rows[:keys]])
        for row in rows:
            row[a], row[b] = imp.choose(swap, row[b], row[a]), imp.choose(swap, row[a], row[b])


def _insertion(
    imp: Importer, arrays: Sequence[Value], avals: Sequence[Shaped], dtypes: Sequence[DType], axis: int, keys: int
) -> list[Value]:
    """Sorts by insertion: each element moves down past larger ones."""
    n = avals[0].shape[axis]
    last = len(avals[0].shape) - 1
    targets: list[PrivateArray] = []
    for x, aval, dtype in zip(arrays, avals, dtypes, strict=True):
        line = move_last(imp, x, axis)
        if isinstance(line, MemoryArray):
            targets.append(imp.materialise(line.shape, dtype, lambda i, v=line: imp.element(v, i), is_pair(aval)))
        else:
            targets.append(imp.own(line, dtype, is_pair(aval)))
    one = imp.index(1)

    def sort_line(at: list[Atom]) -> None:
        def read(k: Atom, count: int | None = None) -> list[Element]:
            return [imp.load_at(t.var, [*at, k], t.pair) for t in targets[:count]]

        def insert(k: Atom, _: list[Atom]) -> list[Atom]:
            current = imp.op("add", k, one)
            moving = read(current)
            place = _slide(imp, targets, at, current, lambda j: _before(imp, dtypes[:keys], moving, read(j, keys)))
            for t, element in zip(targets, moving, strict=True):
                imp.store_at(t.var, element, [*at, place])
            return []

        if n > 1:
            imp.carry_loop(n - 1, [], insert)

    imp.loop_nest(targets[0].shape[:-1], sort_line)
    order = list(range(last))
    order.insert(axis, last)
    return [permute(imp, t, order) for t in targets]


def _slide(
    imp: Importer, targets: Sequence[PrivateArray], at: list[Atom], start: Atom, moves: Callable[[Atom], Atom]
) -> Atom:
    """Moves elements before `start` up while `moves(position)`; returns the free position."""
    one = imp.index(1)
    place = Var(start.type, "j")
    with imp.block((place,)) as test:
        positive = imp.op("gt", place, imp.index(0))
        with imp.block() as yes:
            result = moves(imp.op("sub", place, one))
        with imp.block() as no:
            pass
        (going,) = imp.emit("if", positive, blocks=(yes.close([result]), no.close([FALSE])))
    at_place = Var(start.type, "j")
    with imp.block((at_place,)) as body:
        below = imp.op("sub", at_place, one)
        for t in targets:
            imp.store_at(t.var, imp.load_at(t.var, [*at, below], t.pair), [*at, at_place])
    (out,) = imp.emit("while", start, blocks=(test.close([going]), body.close([below])))
    return out


@decomposition("top_k", ignores={"is_stable": STABLE})
def top_k(x: jax.Array, *, k: int, axis: int) -> tuple[jax.Array, jax.Array]:
    """Returns the largest first; of equal ones the first. Sorts the reversed array upwards and reads it backwards.

    Floats are in their total order, as in XLA: NaN is beyond infinity on the side of its sign, -0.0 below 0.0.
    """
    positions = jax.lax.broadcasted_iota(jnp.int32, x.shape, axis)
    # the values themselves go along with their bits, as these have no derivative
    keys = (_ordered_bits(x), x) if jnp.issubdtype(x.dtype, jnp.floating) else (x,)
    reversed_ = [jnp.flip(a, axis) for a in (*keys, positions)]
    *_, values, indices = jax.lax.sort(reversed_, dimension=axis, num_keys=1)
    take = lambda a: jax.lax.slice_in_dim(jnp.flip(a, axis), 0, k, axis=axis)  # noqa: E731
    return take(values), take(indices)


def _ordered_bits(x: jax.Array) -> jax.Array:
    """Returns floats as integers in the same order: negative numbers have their other bits inverted."""
    integer = jnp.dtype(f"int{jnp.finfo(x.dtype).bits}")
    word = jax.lax.bitcast_convert_type(x, integer)
    return jnp.where(word < 0, word ^ jnp.iinfo(integer).max, word)


@decomposition(
    "approx_top_k",
    assumes={"aggregate_to_topk": True},
    ignores=dict.fromkeys(("recall_target", "reduction_input_size_override"), "the result is exact"),
)
def approx_top_k(x: jax.Array, *, k: int, reduction_dimension: int, is_max_k: bool) -> Sequence[jax.Array]:
    """Returns the exact largest or smallest elements: of equal ones the first."""
    axis = reduction_dimension % x.ndim
    if is_max_k:
        return top_k(x, k=k, axis=axis)
    positions = jax.lax.broadcasted_iota(jnp.int32, x.shape, axis)
    found = jax.lax.sort((x, positions), dimension=axis, num_keys=1)
    return [jax.lax.slice_in_dim(a, 0, k, axis=axis) for a in found]
