"""dynamic_slice, dynamic_update_slice and gather: reads and writes at traced indices with JAX's bounds rules.

An index is normalised to the index dtype, clamped (or tested, for `fill`) and then read: by a chain of selects
from few scalars, else from memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qdtrace.errors import UnsupportedError
from qdtrace.frozen import frozen
from qdtrace.ir.combining import identity
from qdtrace.ir.program import Literal, Var
from qdtrace.ir.types import DType
from qdtrace.trace.importer.memory import CHAIN, UNROLL
from qdtrace.trace.importer.registry import PROMISE, rule
from qdtrace.trace.importer.scalars import FALSE, TRUE, constant, integer
from qdtrace.trace.importer.structural import view
from qdtrace.trace.importer.values import parts_of
from qdtrace.trace.physical import is_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from jax.lax import GatherDimensionNumbers, GatherScatterMode
    from jax.typing import ArrayLike

    from qdtrace.ir.program import Atom
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import Element, Value
    from qdtrace.trace.jaxprs import Shaped

    Join = Callable[[Callable[[], Element], Element], Element]
    """Function that returns the value to store, given how to load the element and the update."""


def as_index(imp: Importer, k: Atom, size: int) -> Atom:
    """Returns an integer as i32 or i64: the same value if it is below `size`, else one that is not below it either."""
    dtype = k.type.dtype
    if dtype in (DType.i32, DType.i64):
        return k
    signed = index_dtype(dtype, size)
    if not dtype.is_signed and dtype.bits >= signed.bits:
        k = imp.op("min", k, integer(_last_of(signed), dtype))
    return imp.convert(k, signed)


def index_dtype(dtype: DType, size: int) -> DType:
    """Returns the signed dtype for positions of an axis of this length, for an index of this unsigned dtype."""
    return DType.i64 if dtype is DType.u64 or size >= 2**31 else DType.i32


def _last_of(dtype: DType) -> int:
    return int(np.iinfo(dtype.numpy).max)


def clamped(imp: Importer, k: Atom, last: int) -> Atom:
    """Returns the index limited to 0..last; itself where it is known to be there."""
    k = as_index(imp, k, last + 1)
    dtype = k.type.dtype
    if last <= 0:
        return integer(0, dtype)
    low, high = imp.ranges.of(k)
    if low >= 0 and high <= last:
        return k
    return imp.op("min", imp.op("max", k, integer(0, dtype)), integer(min(last, _last_of(dtype)), dtype))


def inside(imp: Importer, k: Atom, last: int) -> Atom:
    """Emits the test 0 <= index <= last."""
    k = as_index(imp, k, last + 1)
    dtype = k.type.dtype
    low = imp.op("ge", k, integer(0, dtype))
    return imp.op("and", low, imp.op("le", k, integer(min(last, _last_of(dtype)), dtype)))


def shifted(imp: Importer, start: Atom, k: Atom) -> Atom:
    """Returns start + k, in the wider of their dtypes."""
    dtype = DType.i64 if DType.i64 in (start.type.dtype, k.type.dtype) else DType.i32
    return imp.op("add", imp.convert(start, dtype), imp.convert(k, dtype))


@rule("dynamic_slice")
def dynamic_slice(imp: Importer, eqn: JaxprEqn, x: Value, *starts: Value, slice_sizes: Sequence[int]) -> Value:
    """Returns a slice of constant size at clamped traced starts."""
    sizes = slice_sizes
    at = [clamped(imp, imp.element(s, ()), n - m) for s, n, m in zip(starts, x.shape, sizes, strict=True)]
    known = [int(k.value) for k in at if isinstance(k, Literal)]
    if len(known) == len(at) and isinstance(x, np.ndarray):
        return x[..., *(slice(k, k + m) for k, m in zip(known, sizes, strict=True))]
    if isinstance(x, np.ndarray):
        candidates = [n if type(k) is not Literal else 1 for n, k in zip(x.shape, at, strict=True)]
        if int(np.prod(candidates)) > CHAIN:
            base = imp.spill(x)
        else:
            pair = is_pair(eqn.outvars[0].aval)
            read = lambda i: imp.element(x, [shifted(imp, s, k) for s, k in zip(at, i, strict=True)])  # noqa: E731
            if any(type(k) is not Literal and m > 1 for k, m in zip(at, sizes, strict=True)):
                return _sliding(imp, x, at, sizes)
            return imp.build(sizes, imp.dtype_of(eqn.outvars[0].aval), read, pair, unroll=True)
    else:
        base = x
    return view(imp, base, sizes, lambda i: [shifted(imp, s, k) for s, k in zip(at, i, strict=True)])


def _sliding(imp: Importer, x: np.ndarray, at: Sequence[Atom], sizes: Sequence[int]) -> np.ndarray:
    """Slices windows wider than one element: chooses among the few possible starts, axis by axis."""
    for axis, (start, size) in enumerate(zip(at, sizes, strict=True)):
        count = x.shape[axis] - size + 1
        windows = [np.take(x, range(k, k + size), axis) for k in range(count)]
        if type(start) is Literal:
            x = windows[int(start.value)]
            continue
        tests = [imp.op("le", start, integer(k, start.type.dtype)) for k in range(count - 1)]
        out = windows[-1].copy()
        for position in np.ndindex(*out.shape):
            for k in range(count - 2, -1, -1):
                out[position] = imp.choose(tests[k], windows[k][position], out[position])
        x = out
    return x


@rule("dynamic_update_slice")
def dynamic_update_slice(imp: Importer, eqn: JaxprEqn, x: Value, update: Value, *starts: Value) -> Value:
    """Returns the array with a block replaced at clamped traced starts."""
    at = [clamped(imp, imp.element(s, ()), n - m) for s, n, m in zip(starts, x.shape, update.shape, strict=True)]
    candidates = int(np.prod([n for n, k in zip(x.shape, at, strict=True) if type(k) is not Literal]))

    def place(i: Sequence[Atom]) -> tuple[list[Atom], Atom]:
        return [shifted(imp, s, k) for s, k in zip(at, i, strict=True)], TRUE

    return updated(imp, eqn, x, update, place, candidates, lambda old, new: new)


def updated(
    imp: Importer, eqn: JaxprEqn, x: Value, updates: Value, place: Callable[[Sequence[Atom]], tuple[list[Atom], Atom]],
    candidates: int, join: Join,
) -> Value:  # fmt: skip
    """Returns the array with each update joined with the element at its place, where that is inside.

    `candidates` positions may be the place of an update: where they are few they are written out, with selects.
    """
    few = candidates == 1 or (candidates <= CHAIN and candidates * updates.size <= 4 * CHAIN)
    if few and isinstance(x, np.ndarray):
        out, updates = x.copy(), imp.scalars(updates)
        for i in np.ndindex(*updates.shape):
            where, valid = place([imp.index(k) for k in i])
            if valid is not FALSE:
                put(imp, out, where, lambda old, new=updates[i]: join(lambda: old, new), valid)  # type: ignore[arg-type]
        return out
    aval = eqn.outvars[0].aval
    target = imp.own(x, imp.dtype_of(aval), is_pair(aval))
    source = imp.in_memory(updates)

    def write(i: Sequence[Atom]) -> None:
        where, valid = place(i)

        def store() -> None:
            new = imp.element(source, i)
            imp.store_at(target.var, join(lambda: imp.load_at(target.var, where, target.pair), new), where)

        imp.if_(valid, store)

    each(imp, updates.shape, write)
    return target


def each(imp: Importer, shape: Sequence[int], body: Callable[[list[Atom]], None]) -> None:
    """Runs `body` for each index: written out when few, else in loops."""
    if int(np.prod(shape, dtype=np.int64)) <= UNROLL:
        for i in np.ndindex(*shape):
            body([imp.index(k) for k in i])
    else:
        imp.loop_nest(shape, body)


def put(
    imp: Importer, out: np.ndarray, where: Sequence[Atom], combine: Callable[[Element], Element], guard: Atom = TRUE
) -> None:
    """Replaces `out[where]` by `combine(old)` where the guard holds, by selects over the possible positions."""
    ranges = [[int(k.value)] if type(k) is Literal else range(n) for k, n in zip(where, out.shape, strict=True)]
    for position in np.ndindex(*map(len, ranges)):
        place = tuple(r[k] for r, k in zip(ranges, position, strict=True))
        if not all(0 <= p < n for p, n in zip(place, out.shape, strict=True)):
            continue
        hit = guard
        for k, p in zip(where, place, strict=True):
            if type(k) is not Literal:
                hit = imp.op("and", hit, imp.op("eq", k, integer(p, k.type.dtype)))
        out[place] = imp.choose(hit, combine(out.item(place)), out.item(place))


def is_mode(imp: Importer, eqn: JaxprEqn, mode: GatherScatterMode, name: str, others: Sequence[str]) -> bool:
    """Returns True for this mode of indices out of bounds, False for the others that are known."""
    if mode.name != name and mode.name not in others:
        raise UnsupportedError(
            f"`{eqn.primitive.name}` in a loop body cannot have mode={mode.name.lower()!r}",
            loc=imp.here(),
            help='use mode="clip", "fill", "drop" or "promise_in_bounds"',
        )
    return mode.name == name


def fill_element(imp: Importer, aval: Shaped, fill: Any) -> Element:
    """Returns the element that `mode="fill"` reads out of bounds."""
    dtype = imp.dtype_of(aval)
    if fill is None:
        fill = np.nan if dtype.is_float else identity("max" if dtype.is_signed else "min", dtype).value
    if not is_pair(aval):
        return constant(np.asarray(fill).astype(dtype.numpy)[()])
    parts = (np.real(fill), np.imag(fill)) if dtype.is_float else (fill, fill)
    return tuple(constant(np.asarray(part).astype(dtype.numpy)[()]) for part in parts)


@frozen(slots=True)
class Blocks:
    """Positions of the blocks of an array that indices name, for `gather` and `scatter`."""

    shape: Sequence[int]
    extent: Mapping[int, int]
    """Lengths of a block along axes of the array; one along others."""
    batch_axes: Sequence[int]
    """Axes of an index that say which block it is."""
    window: Mapping[int, int]
    """Axis of the array -> axis of an index that says where in the block."""
    starts: Sequence[int]
    """Axes of the array along which indices say where a block begins."""
    batching: Mapping[int, int]
    """Axis of the array -> the batch axis that is the position there."""

    @staticmethod
    def of(
        shape: Sequence[int], rank: int, sizes: Callable[[int, int], int], dropped: Sequence[int],
        window_dims: Sequence[int], starts: Sequence[int], batching: tuple[Sequence[int], Sequence[int]],
    ) -> Blocks:  # fmt: skip
        """Returns the blocks by JAX's dimension numbers; `sizes(axis, axis of the index)` is a block's length."""
        axes = [d for d in range(len(shape)) if d not in dropped and d not in batching[0]]
        window = dict(zip(axes, window_dims, strict=True))
        extent = {d: sizes(d, k) for d, k in window.items()}
        batch_axes = [d for d in range(rank) if d not in window_dims]
        return Blocks(shape, extent, batch_axes, window, starts, dict(zip(*batching, strict=True)))

    def place(
        self, imp: Importer, indices: Value, i: Sequence[Atom], *, clips: bool, checks: bool
    ) -> tuple[list[Atom], Atom]:
        """Returns the array's index for an index, and (when `checks`) whether its block is inside."""
        batch = [i[d] for d in self.batch_axes]
        where: list[Atom] = [i[self.window[d]] if d in self.window else imp.index(0) for d in range(len(self.shape))]
        valid: Atom = TRUE
        for k, d in enumerate(self.starts):
            last = self.shape[d] - self.extent.get(d, 1)
            start = as_index(imp, imp.element(indices, [*batch, imp.index(k)]), last + 1)
            if checks:
                valid = imp.op("and", valid, inside(imp, start, last))
            where[d] = shifted(imp, clamped(imp, start, last) if clips else start, where[d])
        for d, b in self.batching.items():
            where[d] = batch[b]
        return where, valid


@rule("gather", ignores={"unique_indices": PROMISE, "indices_are_sorted": PROMISE})
def gather(
    imp: Importer, eqn: JaxprEqn, x: Value, indices: Value, *,
    dimension_numbers: GatherDimensionNumbers, slice_sizes: Sequence[int], mode: GatherScatterMode,
    fill_value: ArrayLike | None,
) -> Value:  # fmt: skip
    """Imports `gather`: blocks of constant size at traced positions."""
    dims, aval = dimension_numbers, eqn.outvars[0].aval
    fills = is_mode(imp, eqn, mode, "FILL_OR_DROP", ("CLIP", "PROMISE_IN_BOUNDS"))
    promised = mode.name == "PROMISE_IN_BOUNDS" and imp.dtype_of(aval).is_float
    filler = fill_element(imp, aval, fill_value) if fills else None
    blocks = Blocks.of(
        x.shape, len(aval.shape), lambda d, _: slice_sizes[d], dims.collapsed_slice_dims, dims.offset_dims,
        dims.start_index_map, (dims.operand_batching_dims, dims.start_indices_batching_dims),
    )  # fmt: skip
    if isinstance(x, np.ndarray):
        moving = [x.shape[d] for d in dims.start_index_map if x.shape[d] > 1]
        if int(np.prod(moving)) > CHAIN and not isinstance(indices, np.ndarray):
            x = imp.spill(x)
    elif not isinstance(indices, np.ndarray):
        indices = imp.in_memory(indices)

    def at(i: Sequence[Atom]) -> Element:
        where, valid = blocks.place(imp, indices, i, clips=True, checks=fills or promised)
        if x.size == 0:
            return filler  # type: ignore[return-value]
        element = imp.element(x, where)
        if promised and valid is not TRUE:
            return _dropping_adjoints(imp, valid, element)
        return imp.choose(valid, element, filler) if fills else element

    small = isinstance(x, np.ndarray) and isinstance(indices, np.ndarray)
    return imp.build(aval.shape, imp.dtype_of(aval), at, is_pair(aval), unroll=small)


def _dropping_adjoints(imp: Importer, valid: Atom, element: Element) -> Element:
    """Returns the element; if the index is not valid, nothing is passed back to it.

    XLA reads the nearest element where the promise is broken, and JAX's transpose, a scatter, adds nothing there: rules
    of JAX gather at indices of the user, with the promise.
    """
    held = tuple(imp("custom", p, rule="stop_gradient", result=0) if type(p) is Var else p for p in parts_of(element))
    return imp.choose(valid, element, held if type(element) is tuple else held[0])
