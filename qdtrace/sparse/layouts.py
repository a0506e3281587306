"""Elements of an array that one access names: a row, or elements at fixed distances from the first one."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from qdtrace.frozen import frozen
from qdtrace.sparse.reading import MOST, refusal, type_of
from qdtrace.trace import markers
from qdtrace.trace.compat import Literal
from qdtrace.trace.structure import static_bounds
from qdtrace.trace.tree import body_of, bounds_of, loc_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.sparse.reading import Reading
    from qdtrace.trace.compat import JaxprEqn


@frozen
class Layout:
    """Elements that an access names beside the first one."""

    strides: tuple[int, ...]
    """Each index operand times its stride is added to the number of the first element, or of the row."""
    row: int
    """Length of the row that the access names as a whole; 0 if it names something else."""
    offsets: tuple[int, ...]
    """Distances of the elements from the first one."""
    shape: tuple[int, ...]
    """Shape of the value."""

    def first(self, indices: Sequence[Any]) -> Any:
        """Returns the number of the first element, or of the row."""
        terms = [jnp.asarray(i).astype(jnp.int32) * n for i, n in zip(indices, self.strides, strict=True)]
        return functools.reduce(lambda a, b: a + b, terms, jnp.int32(0))

    def blocks(self, first: Any, length: int) -> list[Any]:
        """Returns the numbers of the blocks of a length that the elements make up; -1 for a first of -1."""
        if length > 1:
            per_row = self.row // length
            found = [first * per_row + k for k in range(per_row)]
        else:
            found = [first * max(self.row, 1) + k for k in self.offsets]
        return [jnp.where(first < 0, -1, k) for k in found]

    @property
    def size(self) -> int:
        """Number of elements."""
        return len(self.offsets)


def layout_of(eqn: JaxprEqn) -> Layout:
    """Returns the layout of a load, a store or an accumulation."""
    slices, shape = eqn.params["slices"], type_of(eqn.invars[0]).shape
    dynamic = [axis for axis, s in enumerate(slices) if s is None]
    lead = dynamic[-1] + 1 if dynamic else 0
    whole = all(s == (0, n, 1) for s, n in zip(slices[lead:], shape[lead:], strict=True))
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    value = tuple(len(range(*s)) for s in slices if s is not None)
    row = math.prod(shape[lead:])
    if len(dynamic) == lead and whole and row:
        return Layout(tuple(strides[axis] // row for axis in dynamic), row, tuple(range(row)), value)
    steps = [np.zeros(1, int) if s is None else np.arange(*s) * n for s, n in zip(slices, strides, strict=True)]
    offsets = functools.reduce(lambda a, b: (a[:, None] + b).ravel(), steps, np.zeros(1, int))
    return Layout(tuple(strides[axis] for axis in dynamic), 0, tuple(map(int, offsets)), value)


@frozen(eq=False)
class Touched:
    """The loads and writes of an iteration of a loop, in order, short loops written out."""

    region: JaxprEqn
    trips: range
    loads: tuple[Layout, ...]
    writes: tuple[Layout, ...]
    write_eqns: tuple[JaxprEqn, ...]
    branches: tuple[frozenset[Any], ...]
    """Conditions around each write: the iteration of loops that are written out, the condition, and its side."""

    def exclude(self) -> Any:
        """Returns bools of shape [writes, writes]: whether an iteration makes one of the two alone."""
        others = [frozenset((*place, not side) for *place, side in branch) for branch in self.branches]
        return np.array([[bool(a & b) for b in others] for a in self.branches])

    def kept(self, written: Sequence[Any], is_second: bool) -> list[Any]:
        """Returns those of the places of writes that have to stay: rows of first derivatives, and what is stored."""
        pairs = zip(written, self.write_eqns, strict=True)
        return [w for w, eqn in pairs if not is_second or eqn.primitive is markers.store_p]

    def sizes(self, height: int, width: int, is_second: bool, is_used: bool) -> tuple[int, ...]:
        """Returns the sizes of the loop's table, of blocks of a size."""
        rows, columns = (sum(x.size for x in own) for own in (self.writes, self.loads))
        pairs = ((columns if is_second else rows) // height, columns // width) if is_used else ()
        return (len(self.trips), len(self.loads), len(self.kept(self.writes, is_second)), *pairs)


def touched_by(reading: Reading, region: JaxprEqn) -> Touched:
    """Returns what an outermost loop touches.

    Raises:
        GradientError: its bounds are computed, or an iteration loads too much.
    """
    loads: list[JaxprEqn] = []
    writes: list[JaxprEqn] = []
    branches: list[frozenset[Any]] = []

    def through(items: Sequence[JaxprEqn], path: tuple[int, ...], branch: frozenset[Any]) -> None:
        negated: dict[Any, Any] = {e.outvars[0]: e.invars[0] for e in items if e.primitive is lax.not_p}
        for eqn in items:
            if eqn.primitive is markers.for_p:
                for k in static_bounds(eqn) or ():
                    through(body_of(eqn).eqns, (*path, k), branch)
            elif eqn.primitive in markers.REGIONS:
                (condition,) = bounds_of(eqn)
                of = negated.get(condition, condition)
                side = () if isinstance(of, Literal) else ((path, of, of is condition),)
                through(body_of(eqn).eqns, path, branch.union(side))
            elif eqn.primitive is markers.load_p and eqn.invars[0] is reading.handle:
                loads.append(eqn)
            elif eqn.primitive in (markers.store_p, markers.accum_p):
                writes.append(eqn)
                branches.append(branch)

    trips = static_bounds(region)
    if trips is None:
        raise refusal("a loop whose bounds are computed", loc_of(region), "take them from shapes: `x.shape[0]`")
    through(body_of(region).eqns, (), frozenset())
    read, written = (tuple(map(layout_of, eqns)) for eqns in (loads, writes))
    if (count := sum(layout.size for layout in read)) > MOST:
        help = "make several iterations of it"
        raise refusal(f"an iteration that loads {count} entries, more than {MOST}", loc_of(region), help)
    return Touched(region, trips, read, written, tuple(writes), tuple(branches))


def block_of(layouts: Sequence[Layout]) -> int:
    """Returns the length of the blocks that all accesses are made of."""
    rows = {layout.row for layout in layouts}
    return rows.pop() if len(rows) == 1 and 0 not in rows else 1
