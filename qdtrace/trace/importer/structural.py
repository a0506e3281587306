"""Structure of arrays: NumPy on small arrays, index functions on arrays in memory."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from qdtrace.trace.importer.registry import PLACED, RESULT_TYPE, rule
from qdtrace.trace.importer.scalars import constant
from qdtrace.trace.importer.values import Formula, MemoryArray, Value, array_of, rank0
from qdtrace.trace.physical import is_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from qdtrace.ir.program import Atom
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import Element
    from qdtrace.trace.jaxprs import Shaped

    Remap = Callable[[Sequence[Atom]], Sequence[Atom]]


def view(imp: Importer, base: MemoryArray, shape: Sequence[int], index: Remap) -> Value:
    """Returns elements of an array in memory at a mapped index; loaded at once when few."""
    at = lambda i: imp.element(base, index(i))  # noqa: E731
    of_rows = isinstance(base, Formula) and base.of_rows
    return loaded(imp, Formula(tuple(shape), base.dtype, at, base.pair, (base,), moves=True, of_rows=of_rows))


def loaded(imp: Importer, value: Formula) -> Value:
    """Returns an array whose elements are read from others; as scalars when few."""
    return value if value.size > imp.few or value.of_rows else imp.scalars(value)


def take(imp: Importer, x: Value, index: int, axis: int = 0) -> Value:
    """Returns the elements at one constant position along an axis, without that axis."""
    if isinstance(x, np.ndarray):
        out: Any = x[(slice(None),) * axis + (index,)]
        return out if isinstance(out, np.ndarray) else rank0(out)
    at = imp.index(index)
    return view(imp, x, x.shape[:axis] + x.shape[axis + 1 :], lambda i: [*i[:axis], at, *i[axis:]])


def move_last(imp: Importer, x: Value, axis: int) -> Value:
    """Returns the axis as the last one."""
    order = [d for d in range(x.ndim) if d != axis] + [axis]
    return permute(imp, x, order)


def permute(imp: Importer, x: Value, order: Sequence[int]) -> Value:
    """Permutes axes: axis d of the result is axis order[d] of the operand."""
    if list(order) == list(range(x.ndim)):
        return x  # the same object, which is in memory once (`spill`)
    if isinstance(x, np.ndarray):
        return x.transpose(order)
    back = np.argsort(order)
    return view(imp, x, [x.shape[d] for d in order], lambda i: [i[b] for b in back])


def reshaped(imp: Importer, x: Value, shape: Sequence[int]) -> Value:
    """Returns the same elements in row-major order."""
    shape = tuple(shape)
    if x.shape == shape:
        return x
    if isinstance(x, np.ndarray):
        return x.reshape(shape)

    def index(i: Sequence[Atom]) -> list[Atom]:
        kept = [(n, k) for n, k in zip(shape, i, strict=True) if n != 1]
        if [n for n, _ in kept] == [n for n in x.shape if n != 1]:
            rest = iter([k for _, k in kept])
            return [imp.index(0) if n == 1 else next(rest) for n in x.shape]
        return unravel(imp, ravel(imp, i, shape), x.shape)

    return view(imp, x, shape, index)


def ravel(imp: Importer, index: Sequence[Atom], shape: Sequence[int]) -> Atom:
    """Returns the row-major position of an index."""
    total: Atom = imp.index(0)
    for k, n in zip(index, shape, strict=True):
        total = imp.op("add", imp.op("mul", total, imp.index(n)), k)
    return total


def unravel(imp: Importer, position: Atom, shape: Sequence[int]) -> list[Atom]:
    """Returns the index of a row-major position."""
    out: list[Atom] = []
    for n in reversed(shape[1:]):
        out.append(imp.op("rem", position, imp.index(n)))
        position = imp.op("div", position, imp.index(n))
    return [position, *reversed(out)] if shape else []


def assemble(
    imp: Importer,
    eqn: JaxprEqn,
    pieces: Sequence[tuple[Value, Sequence[int], Sequence[int]]],
    fill: Element | None = None,
) -> Value:
    """Returns an array in memory made of pieces, each put at an offset with a stride an axis."""
    aval = eqn.outvars[0].aval
    out = imp.private(aval.shape, imp.dtype_of(aval), is_pair(aval))
    if fill is not None:
        imp.loop_nest(aval.shape, lambda i: imp.store_at(out.var, fill, i))
    for piece, offset, stride in pieces:
        source = imp.in_memory(piece)

        def copy(
            i: Sequence[Atom], source: Value = source, offset: Sequence[int] = offset, stride: Sequence[int] = stride
        ) -> None:
            target = [
                imp.op("add", imp.op("mul", k, imp.index(s)), imp.index(o))
                for k, o, s in zip(i, offset, stride, strict=True)
            ]
            imp.store_at(out.var, imp.element(source, i), target)

        imp.loop_nest(piece.shape, copy)
    return out


def _large(imp: Importer, eqn: JaxprEqn, values: Sequence[Value]) -> bool:
    size = int(np.prod(eqn.outvars[0].aval.shape))
    if size > imp.scalar_budget:
        return True
    return size > imp.few and any(isinstance(v, MemoryArray) for v in values)


@rule("broadcast_in_dim", ignores={"shape": RESULT_TYPE, "sharding": PLACED})
def broadcast_in_dim(imp: Importer, eqn: JaxprEqn, x: Value, *, broadcast_dimensions: Sequence[int]) -> Value:
    """Makes operand axis k result axis broadcast_dimensions[k]."""
    shape, dims = eqn.outvars[0].aval.shape, broadcast_dimensions
    if isinstance(x, np.ndarray) and int(np.prod(shape)) <= imp.scalar_budget:
        expanded = [1] * len(shape)
        for k, d in enumerate(dims):
            expanded[d] = x.shape[k]
        return np.broadcast_to(x.reshape(expanded), shape)
    if x.size == 1:
        element = imp.element(x, [imp.index(0)] * x.ndim)
        pair = type(element) is tuple
        return Formula(shape, imp.dtype_of(eqn.outvars[0].aval), lambda i: element, pair)
    base = imp.spill(x) if isinstance(x, np.ndarray) else x
    zero = imp.index(0)
    return view(imp, base, shape, lambda i: [zero if base.shape[k] == 1 else i[d] for k, d in enumerate(dims)])


@rule("reshape", ignores={"new_sizes": RESULT_TYPE, "sharding": PLACED})
def reshape(imp: Importer, eqn: JaxprEqn, x: Value, *, dimensions: Sequence[int] | None = None) -> Value:
    """Reshapes in row-major order the operand with its axes in the order `dimensions`."""
    return reshaped(imp, x if dimensions is None else permute(imp, x, dimensions), eqn.outvars[0].aval.shape)


@rule("squeeze", ignores={"dimensions": RESULT_TYPE})
def squeeze(imp: Importer, eqn: JaxprEqn, x: Value) -> Value:
    """Removes axes of length one."""
    return reshaped(imp, x, eqn.outvars[0].aval.shape)


@rule("transpose")
def transpose(imp: Importer, eqn: JaxprEqn, x: Value, *, permutation: Sequence[int]) -> Value:
    """Permutes axes."""
    return permute(imp, x, permutation)


@rule("slice")
def slice_(
    imp: Importer, eqn: JaxprEqn, x: Value, *,
    start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None,
) -> Value:  # fmt: skip
    """Returns a constant slice."""
    return sliced(imp, x, list(map(range, start_indices, limit_indices, strides or (1,) * len(start_indices))))


def sliced(imp: Importer, x: Value, places: Sequence[range]) -> Value:
    """Returns the elements at these places along each axis."""
    if isinstance(x, np.ndarray):
        return x[..., *(slice(r.start, r.stop, r.step) for r in places)]  # `...` gives an array, with no axes too
    return _strided(imp, x, list(map(len, places)), [r.start for r in places], [r.step for r in places])


def _strided(imp: Importer, x: MemoryArray, shape: Sequence[int], start: Sequence[int], step: Sequence[int]) -> Value:
    def index(i: Sequence[Atom]) -> list[Atom]:
        scaled = (imp.op("mul", k, imp.index(s)) for k, s in zip(i, step, strict=True))
        return [imp.op("add", k, imp.index(o)) for k, o in zip(scaled, start, strict=True)]

    return view(imp, x, shape, index)


@rule("tile")
def tile(imp: Importer, eqn: JaxprEqn, x: Value, *, reps: Sequence[int]) -> Value:
    """Returns the array repeated along each axis."""
    if isinstance(x, np.ndarray) and not _large(imp, eqn, [x]):
        return np.tile(x, tuple(reps))
    base = imp.in_memory(x)
    return imp.build(
        eqn.outvars[0].aval.shape,
        imp.dtype_of(eqn.outvars[0].aval),
        lambda i: imp.element(base, [imp.op("rem", k, imp.index(n)) for k, n in zip(i, x.shape, strict=True)]),
        is_pair(eqn.outvars[0].aval),
    )


@rule("rev")
def rev(imp: Importer, eqn: JaxprEqn, x: Value, *, dimensions: Sequence[int]) -> Value:
    """Reverses axes."""
    if isinstance(x, np.ndarray):
        return np.flip(x, tuple(dimensions)) if dimensions else x
    start = [n - 1 if d in dimensions else 0 for d, n in enumerate(x.shape)]
    return _strided(imp, x, x.shape, start, [-1 if d in dimensions else 1 for d in range(x.ndim)])


@rule("concatenate")
def concatenate(imp: Importer, eqn: JaxprEqn, *pieces: Value, dimension: int) -> Value:
    """Returns pieces one after the other along an axis."""
    axis = dimension
    if not _large(imp, eqn, pieces):
        return np.concatenate([imp.scalars(p, "concatenate") for p in pieces], axis)
    placed, offset = [], 0
    for piece in pieces:
        at = [offset if d == axis else 0 for d in range(piece.ndim)]
        placed.append((piece, at, [1] * piece.ndim))
        offset += piece.shape[axis]
    return assemble(imp, eqn, placed)


@rule("stack")
def stack(imp: Importer, eqn: JaxprEqn, *pieces: Value, axis: int) -> Value:
    """Returns pieces along a new axis."""
    shape = (*pieces[0].shape[:axis], 1, *pieces[0].shape[axis:])
    return concatenate(imp, eqn, *(reshaped(imp, p, shape) for p in pieces), dimension=axis)


@rule("unstack")
def unstack(imp: Importer, eqn: JaxprEqn, x: Value, *, axis: int) -> list[Value]:
    """Returns one value for each position of an axis."""
    return [take(imp, x, k, axis) for k in range(x.shape[axis])]


@rule("split")
def split(imp: Importer, eqn: JaxprEqn, x: Value, *, sizes: Sequence[int], axis: int) -> list[Value]:
    """Returns consecutive pieces along an axis."""
    whole, ends = list(map(range, x.shape)), list(accumulate(sizes))
    pieces = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return [sliced(imp, x, [*whole[:axis], piece, *whole[axis + 1 :]]) for piece in pieces]


@rule("pad")
def pad(imp: Importer, eqn: JaxprEqn, x: Value, fill: Value, *, padding_config: Sequence[Sequence[int]]) -> Value:
    """Pads before, after and between elements; negative amounts cut."""
    config = [tuple(map(int, c)) for c in padding_config]
    fill_element = imp.element(fill, ())
    aval = eqn.outvars[0].aval
    # Elements that stay, per axis: those whose padded position is inside the result.
    kept = []
    for n, extent, (low, _, interior) in zip(x.shape, aval.shape, config, strict=True):
        inside = [k for k in range(n) if 0 <= low + k * (interior + 1) < extent]
        kept.append(range(inside[0], inside[-1] + 1) if inside else range(0))
    offset = [low + places.start * (inner + 1) for (low, _, inner), places in zip(config, kept, strict=True)]
    stride = [inner + 1 for _, _, inner in config]
    core = sliced(imp, x, kept)
    if _large(imp, eqn, [x]):
        return assemble(imp, eqn, [(core, offset, stride)], fill_element)
    core = imp.scalars(core, "pad")
    out = array_of([fill_element] * int(np.prod(aval.shape)), aval.shape)
    for at in np.ndindex(*core.shape):
        out[tuple(o + k * s for o, k, s in zip(offset, at, stride, strict=True))] = core[at]
    return out


def filled(imp: Importer, aval: Shaped, element: Element) -> Value:
    """Returns an array with one element everywhere."""
    if np.prod(aval.shape) > imp.scalar_budget:
        return Formula(aval.shape, imp.dtype_of(aval), lambda i: element, type(element) is tuple)
    return np.broadcast_to(rank0(element), aval.shape)


@rule("empty", ignores={"shape": RESULT_TYPE, "dtype": RESULT_TYPE, "out_sharding": PLACED})
@rule("empty2", ignores={"dtype": RESULT_TYPE, "memory_space": PLACED})
def empty(imp: Importer, eqn: JaxprEqn) -> Value:
    """Returns an array that nobody reads before it is written: zeros, as by XLA for the CPU."""
    aval = eqn.outvars[0].aval
    zero = constant(np.zeros((), imp.dtype_of(aval).numpy)[()])
    return filled(imp, aval, (zero, zero) if is_pair(aval) else zero)


@rule("iota", ignores={"dtype": RESULT_TYPE, "shape": RESULT_TYPE, "sharding": PLACED})
def iota(imp: Importer, eqn: JaxprEqn, *, dimension: int) -> Value:
    """Returns 0, 1, 2, ... along an axis."""
    aval = eqn.outvars[0].aval
    shape, axis, dtype = aval.shape, dimension, imp.dtype_of(aval)
    pair, zero = is_pair(aval), constant(np.zeros((), dtype.numpy)[()])
    as_element = lambda k: (k, zero) if pair else k  # noqa: E731
    if int(np.prod(shape)) > imp.scalar_budget:
        return Formula(shape, dtype, lambda i: as_element(imp.convert(i[axis], dtype)), pair)
    line = np.arange(shape[axis]).astype(dtype.numpy)
    elements = (as_element(constant(k)) for k in line)
    column = array_of(elements, line.shape).reshape([-1 if d == axis else 1 for d in range(len(shape))])
    return np.broadcast_to(column, shape)
