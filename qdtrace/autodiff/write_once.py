"""Memory whose loads find what memory holds before or behind the task, so that a derivative needs no tape of them.

    for r in 0 : n                       stores element r in iteration r only
      for k in lo : hi
        j = load col k
        w = load y j                     found what memory holds behind the task if j < r, before it if j > r
      u = load y r                       in front of the store: found what memory holds before the task
      store y v r

All writes to a reference have, on some axis, a loop's counter plus a constant as index, or a constant minus the
counter. Then an element is written in one iteration of that loop. A load whose index there is smaller comes behind all
writes of its element if the index rises, one whose index is larger in front of them. Where it is the same, the next
loop inside decides in the same way, and in the innermost one the order of equations. Where data decide, the derivative
compares them. An element that is not written holds the same before and behind. Other iterations of the task write none
of these elements, as that would be a race.

Forms are exact modulo 2**32 or 2**64, the order of numbers is not: an axis has at most 2**30 elements and a constant is
smaller than that, so the counter of the iteration that writes an element, and a counter that a load has as index, are
exact if all values of the counter are numbers of so many bits. A bound of an inner loop that is compared with the
counter must be one that cannot wrap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.index.affine import AffineForms
from qdtrace.analysis.index.intervals import range_of_dtype
from qdtrace.analysis.index.most_trips import MostTrips
from qdtrace.autodiff.tape import long_tapes, tape_lengths
from qdtrace.autodiff.volatile import Compared, FoundLoad, accesses
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of
from qdtrace.ir.primitives import ATOMIC, FOR, IF, LOAD
from qdtrace.ir.program import Literal, ref_type
from qdtrace.ir.types import DType
from qdtrace.ir.walk import walk_all, walk_nested

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from qdtrace.autodiff.volatile import Accesses
    from qdtrace.ir.program import Atom, Block, Eqn, Task, Var

_FAR = 1 << 30
_SIGNED = (DType.i32, DType.i64)
SAME = (
    "a derivative needs `{}` to be loaded in front of all stores of an iteration or behind them, got an element that "
    "the same iteration writes in between"
)


def settled(task: Task, zero: frozenset[Var] = frozenset(), *, by_data: bool = True) -> Accesses:
    """Returns the accesses of a task without loads on the tape that `settle` takes off it."""
    found = accesses(task, zero)
    settle(task, found, by_data=by_data)
    return found


def settle(task: Task, found: Accesses, *, by_data: bool) -> None:
    """Takes references off the tape whose tape would be long, and whose loads find what memory holds before or behind
    the task. With `by_data` a comparison at run time may decide."""
    if not found.taped:
        return
    most = MostTrips(task)
    long = long_tapes(task, found.taped, most)
    if not long:
        return
    forms = {bits: AffineForms(task, bits=bits) for bits in (32, 64)}
    lengths = tape_lengths(task, found.taped, most)
    unknown = {e for e, count in lengths.items() if count is None}
    for ref in long:
        loads = _Order(task, ref, forms).loads(by_data=by_data)
        known = {e: load for e, load in loads.items() if load is not None}
        if len(known) < len(loads):
            if not unknown.isdisjoint(loads.keys() - known):
                continue
            # The others stay on the tape, as do those for which it saves a check.
            known = {e: load for e, load in known.items() if e in unknown or load.is_behind is not None}
        elif known:
            del found.volatile[ref]
        found.found.update(known)
        found.taped.difference_update(known)


def found_behind(found: Accesses) -> list[Var]:
    """Returns the references with loads that find what memory holds behind the task, in order."""
    return list(dict.fromkeys(e.invars[0] for e, load in found.found.items() if load.may_be_behind))  # type: ignore[misc]


@frozen(slots=True)
class _Level:
    """A loop in each of whose iterations other elements are written."""

    loop: Eqn
    sign: int
    """1 if indices are the counter plus a constant, -1 if they are a constant minus the counter."""
    axes: tuple[tuple[int, int], ...]
    """Axes on which writes have such an index, with the constant."""

    @property
    def counts_up(self) -> bool:
        assert isinstance(self.loop.step, Literal)
        return int(self.loop.step.value) > 0

    @property
    def rises(self) -> bool:
        """True if later iterations write elements at larger indices."""
        return self.counts_up == (self.sign > 0)


class _Order:
    """The order of loads and writes of one reference."""

    def __init__(self, task: Task, ref: Var, forms: Mapping[int, AffineForms]) -> None:
        """`forms` has the forms that are exact modulo 2 to the power of the key."""
        self.task, self.ref, self.forms = task, ref, forms
        self.used = [
            (*around, e) for e, around in walk_nested(task.body) if e.primitive.is_access and e.invars[0] is ref
        ]
        self.writes = [chain for chain in self.used if chain[-1].primitive.writes]
        self.levels = tuple(self._levels())

    def loads(self, *, by_data: bool) -> dict[Eqn, FoundLoad | None]:
        """Returns what each load finds, None where that is not known; nothing if it is known of none."""
        if any(self.ref in e.invars for e in walk_all(self.task.head)):
            return {}
        if any(chain[-1].primitive is ATOMIC for chain in self.used) or max(ref_type(self.ref).shape, default=0) > _FAR:
            return {}
        return {chain[-1]: self._found(chain, by_data=by_data) for chain in self.used if chain[-1].primitive is LOAD}

    def _levels(self) -> Iterator[_Level]:
        for loops in zip(*([e for e in chain if e.primitive.loops] for chain in self.writes), strict=False):
            loop = loops[0]
            if any(e is not loop for e in loops) or not _counts(loop):
                return
            sign, axes = next(((s, axes) for s in (1, -1) if (axes := tuple(self._axes(loop, s)))), (0, ()))
            if not axes:
                return
            yield _Level(loop, sign, axes)

    def _axes(self, loop: Eqn, sign: int) -> Iterator[tuple[int, int]]:
        for axis, column in enumerate(zip(*(indices_of(chain[-1]) for chain in self.writes), strict=True)):
            first, *others = {self._beside(loop, a, sign) for a in column}
            if first is not None and not others:
                yield axis, first

    def _found(self, chain: tuple[Eqn, ...], *, by_data: bool) -> FoundLoad | None:
        around: Eqn | None = None
        compared: Compared | None = None
        for level in self.levels:
            if not any(e is level.loop for e in chain):
                break
            signs = {self._sign(chain, level, *axis) for axis in level.axes}
            if 1 in signs or -1 in signs:
                return FoundLoad((-1 in signs) == level.rises, compared)
            if 0 not in signs:
                order = self._compared(chain[-1], level) if by_data and compared is None else None
                if order is None:
                    return None
                compared = order
            around = level.loop
        is_behind = self._by_position(chain, around)
        return None if compared is None and is_behind is None else FoundLoad(is_behind, compared)

    def _compared(self, load: Eqn, level: _Level) -> Compared | None:
        for axis, distance in level.axes:
            index = indices_of(load)[axis]
            if index.dtype in _SIGNED:
                return Compared(index, distance, level.sign, level.loop.index, level.counts_up)
        return None

    def _by_position(self, chain: tuple[Eqn, ...], around: Eqn | None) -> bool | None:
        """Returns whether a load comes behind all writes of an iteration of `around`; None if it comes in between."""
        inside = 0 if around is None else chain.index(around) + 1
        orders = {_is_behind(self.task.body, chain, write, inside) for write in self.writes} - {"apart"}
        return False if orders <= {False} else True if orders == {True} else None

    def _sign(self, chain: tuple[Eqn, ...], level: _Level, axis: int, constant: int) -> int | None:
        """Returns the sign of the index of a load minus that of the writes of the same iteration, if it is known."""
        index = indices_of(chain[-1])[axis]
        near = self._beside(level.loop, index, level.sign)
        if near is not None:
            return (near > constant) - (near < constant)
        for inner in chain:
            near = self._beside(inner, index) if _counts(inner) else None
            if near is None:
                continue
            start, stop, step = inner.bounds
            rises = int(step.value) > 0  # type: ignore[union-attr]
            least, most = (start, stop) if rises else (stop, start)
            high = self._distance(most, level)
            if high is not None and high - rises + near < constant:
                return -1
            low = self._distance(least, level)
            if low is not None and low + (not rises) + near > constant:
                return 1
        return None

    def _beside(self, loop: Eqn, index: Atom, sign: int = 1) -> int | None:
        """Returns an index minus `sign` times the counter of a loop if that is a constant below 2**30, else None."""
        low, high = self._values(loop)
        least, most = range_of_dtype(DType.i32)
        bits = 32 if least <= low and high <= most else 64
        if index.dtype not in _SIGNED:
            return None
        form = self.forms[bits].of(index)  # one of fewer bits has no form of the counter
        near = _signed(form.constant, bits)
        return near if dict(form.terms) == {loop.index: sign} and abs(near) < _FAR else None

    def _distance(self, bound: Atom, level: _Level) -> int | None:
        """Returns a bound of a loop inside minus the index of the element that the iteration writes but for its
        constant, if that is known and the bound does not wrap."""
        bits = bound.dtype.bits
        form = self.forms[bits].of(bound)
        if dict(form.terms) != {level.loop.index: level.sign}:
            return None
        distance = _signed(form.constant, bits)
        low, high = sorted(level.sign * value for value in self._values(level.loop))
        least, most = range_of_dtype(bound.dtype)
        return distance if least <= low + distance and high + distance <= most else None

    def _values(self, loop: Eqn) -> tuple[int, int]:
        """Returns the least and the largest number that the counter of a loop may be."""
        begin, end, step = loop.bounds
        if int(step.value) > 0:  # type: ignore[union-attr]
            return self._range(begin)[0], self._range(end)[1] - 1
        return self._range(end)[0] + 1, self._range(begin)[1]

    def _range(self, value: Atom) -> tuple[int, int]:
        """Returns the least and the largest number that a value may be."""
        least, most = range_of_dtype(value.dtype)
        forms = self.forms[value.dtype.bits]
        known = forms.bounds(forms.of(value))
        return known if known is not None and least <= known[0] and known[1] <= most else (least, most)


def _is_behind(body: Block, load: tuple[Eqn, ...], write: tuple[Eqn, ...], inside: int) -> bool | str | None:
    """Returns whether a load comes behind a write, given both with the loops and branches around them.

    Both have the first `inside` of these in common, of which the last is a loop: the answer is of one iteration of it.
    Returns None if a loop further inside has both, "apart" if only one of the two runs.
    """
    blocks = load[inside - 1].blocks if inside else (body,)
    for one, other in zip(load[inside:], write[inside:], strict=False):
        block, *others = (b for b in blocks if any(e is one or e is other for e in b.eqns))
        if others:
            return "apart"
        if one is not other:
            return next(e is other for e in block.eqns if e is one or e is other)
        if one.primitive is not IF:
            return None
        blocks = one.blocks
    raise AssertionError("a load is no write")


def _counts(loop: Eqn) -> bool:
    """Returns whether a loop is a `for` over signed numbers with a constant step that is not 0."""
    if loop.primitive is not FOR or loop.index.dtype not in _SIGNED:
        return False
    return isinstance(loop.step, Literal) and bool(int(loop.step.value))


def _signed(value: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half
