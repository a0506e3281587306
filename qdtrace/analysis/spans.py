"""Loops over spans: each iteration of a task walks over positions of its own, `lo .. hi-1`, from either end.

    range_for i
      lo = load ptr i
      hi = load ptr i+1
      for k in lo : hi : 1                    a walk: `k` is the position
        a = load col k                        depends on the position alone: the same for every iteration that meets it
        b = bound a
        c = load x b                          so does this, and where all positions of a walk are met, so is its check
        ...
      n = select (lt lo hi) (sub hi lo) 0     then to the unsigned dtype and back
      for t in 0 : n : 1                      a walk: `lo + t` is the position
      for t in n - 1 : -1 : -1                a walk: `lo + t` is the position

The analysis finds the walks of a body, and their values that depend on the position alone: on it, on values that are
the same in the whole task, and on memory that the task does not write. Values with equal keys are equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.expressions import params_key
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of
from qdtrace.ir.primitives import ADD, BOUND, CONVERT, FOR, IF, LANE_MAX, LOAD, LT, SELECT, SUB
from qdtrace.ir.program import Literal, Var, is_global, ref_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qdtrace.ir.program import Atom, Block, Eqn, Task

    Key = int

_POSITION = 0


@frozen(eq=False)
class Walk:
    """A block that runs once for each position of an iteration's span."""

    block: Block
    positions: tuple[Var, ...]
    """Variables of the block that hold the position."""
    counter: Var | None = None
    """The position less the first one of the span; None if no variable of the block has it."""


@frozen(eq=False)
class Walks:
    """The ends of a task's spans and all walks over them."""

    first: Var
    last: Var
    """The positions of an iteration are those from `first` to below `last`."""
    found: tuple[Walk, ...]


def find_walks(task: Task) -> Walks | None:
    """Returns the walks of a task over the span of its first walk, or None if there is none."""
    made: dict[Atom, Eqn] = {v: e for e in task.body.eqns for v in e.outvars}
    span: tuple[Atom, ...] | None = None
    found: list[Walk] = []
    for loop in task.body.eqns:
        if loop.primitive is not FOR:
            continue
        of, walk = _forward(loop) or _counted(loop, made) or _backward(loop, made) or (None, None)
        if of is not None and walk is not None and (span is None or span == of):
            span = of
            found.append(walk)
    if span is None:
        return None
    first, last = span
    return Walks(first, last, tuple(found)) if isinstance(first, Var) and isinstance(last, Var) else None


def _forward(loop: Eqn) -> tuple[tuple[Atom, ...], Walk] | None:
    start, stop, step = loop.bounds
    if not _is(step, 1) or not (isinstance(start, Var) and isinstance(stop, Var)):
        return None
    return (start, stop), Walk(loop.blocks[0], loop.blocks[0].params[:1])


def _counted(loop: Eqn, made: Mapping[Atom, Eqn]) -> tuple[tuple[Atom, ...], Walk] | None:
    """Matches a loop from 0 to below the length."""
    start, stop, step = loop.bounds
    span = _of_length(stop, made) if _is(start, 0) and _is(step, 1) else None
    return None if span is None else _from_first(span, loop.blocks[0], loop.index)


def _from_first(span: tuple[Atom, ...], block: Block, counter: Var) -> tuple[tuple[Atom, ...], Walk] | None:
    sums = (e for e in block.eqns if e.primitive is ADD and set(e.invars) == {span[0], counter})
    positions = tuple(e.outvar for e in sums)
    return (span, Walk(block, positions, counter)) if positions else None


def _backward(loop: Eqn, made: Mapping[Atom, Eqn]) -> tuple[tuple[Atom, ...], Walk] | None:
    """Matches a loop from `length - 1` down to 0, or from the largest length of all lanes under a test of the lane."""
    start, stop, step = loop.bounds
    before = made.get(start)
    if not (_is(step, -1) and _is(stop, -1)) or before is None or not _is_sum(before, -1):
        return None
    (length,) = (a for a in before.invars if isinstance(a, Var))
    most = made.get(length)
    together = most is not None and most.primitive is LANE_MAX
    if together and most is not None:
        length = most.invars[0]
    span = _of_length(length, made)
    if span is None:
        return None
    block, counter = loop.blocks[0], loop.index
    if together:
        inside = _where_below(block, counter, length)
        if inside is None:
            return None
        block = inside
    return _from_first(span, block, counter)


def _is(atom: Atom, value: int) -> bool:
    return isinstance(atom, Literal) and atom.dtype.is_integer and int(atom.value) == value


def _is_sum(eqn: Eqn, value: int) -> bool:
    """Returns whether an equation adds the constant `value` to a variable."""
    a, b = eqn.invars if eqn.primitive is ADD else (None, None)
    return a is not None and b is not None and _is(b, value) and isinstance(a, Var)


def _of_length(length: Atom, made: Mapping[Atom, Eqn]) -> tuple[Atom, ...] | None:
    """Returns the ends `lo, hi` if a value is the trip count of `lo : hi : 1`, as `CountedLoop.emit_count` writes it;
    else None."""
    choice = made.get(length)
    while choice is not None and choice.primitive is CONVERT and choice.invars[0].dtype.bits == length.dtype.bits:
        choice = made.get(choice.invars[0])
    if choice is None or choice.primitive is not SELECT or not _is(choice.invars[2], 0):
        return None
    less, distance = (made.get(a) for a in choice.invars[:2])
    if less is None or distance is None or less.primitive is not LT or distance.primitive is not SUB:
        return None
    return less.invars if less.invars == distance.invars[::-1] else None


def _where_below(block: Block, counter: Var, length: Atom) -> Block | None:
    """Returns the block that runs if the counter is below the length, or None if no `if` tests that."""
    made: dict[Atom, Eqn] = {v: e for e in block.eqns for v in e.outvars}
    for eqn in block.eqns:
        test = made.get(eqn.invars[0]) if eqn.primitive is IF else None
        if test is not None and test.primitive is LT and test.invars == (counter, length):
            return eqn.blocks[0]
    return None


class PositionValues:
    """The values of walks that depend on the position alone, for a task that writes these references.

    An access is *direct* when its indices are the position and constants inside of the array. A value is *sure* when
    all loads that make it are direct, or at indices with a check of their own.
    """

    def __init__(self, task: Task, walks: Walks, written: frozenset[Var]) -> None:
        self.keys: dict[Var, Key] = {}
        """Values of equal keys are equal at equal positions. A `bound` is its operand."""
        self.made: dict[Var, Eqn] = {}
        self.gathers: set[Key] = set()
        """Values computed from a load that is not direct, or from several loads."""
        self._loads: set[Key] = set()
        self._sure: dict[Key, Var] = {}
        self._sure_vars: set[Var] = set()
        self._numbers: dict[object, Key] = {}
        self._everywhere = frozenset(v for e in task.head for v in e.outvars)
        self._written = written
        self._positions = frozenset(p for walk in walks.found for p in walk.positions)
        self.limit = 2 ** (walks.first.dtype.bits - 1) - 1
        """Positions from 0 to below this are in range for all arrays that are loaded from directly."""
        for walk in walks.found:
            for eqn in walk.block.eqns:
                self._look_at(eqn)

    def is_position(self, atom: Atom) -> bool:
        """Returns whether a value is the position of a walk."""
        return atom in self._positions

    def is_everywhere(self, atom: Atom) -> bool:
        """Returns whether a value is the same in the whole task."""
        return isinstance(atom, Literal) or atom in self._everywhere

    def key(self, atom: Atom) -> Key | None:
        """Returns the key of a value that depends on the position alone, or is the position; None for others."""
        if not isinstance(atom, Var):
            return None
        return _POSITION if atom in self._positions else self.keys.get(atom)

    def sure(self, atom: Atom) -> Var | None:
        """Returns a sure value that is equal to this one, or None."""
        return self._sure.get(self.keys[atom]) if isinstance(atom, Var) and atom in self.keys else None

    def is_sure(self, atom: Atom) -> bool:
        """Returns whether the value itself is sure."""
        return atom not in self.made or atom in self._sure_vars

    def is_direct(self, load: Eqn) -> bool:
        """Returns whether a load is direct: its indices are the position and constants in range."""
        return all(self.key(a) == _POSITION or _inside(load, axis, a) for axis, a in enumerate(indices_of(load)))

    def _look_at(self, eqn: Eqn) -> None:
        """Gives the result of an equation a key if it depends on the position alone."""
        if len(eqn.outvars) != 1 or eqn.blocks:
            return
        prim, operands = eqn.primitive, eqn.invars
        if prim is LOAD:
            operands = indices_of(eqn)
            if not is_global(eqn.invars[0]) or eqn.invars[0] in self._written:
                return
        elif prim.effects and prim is not BOUND:
            return
        keys = [self.key(a) for a in operands]
        known = all(k is not None or self.is_everywhere(a) for k, a in zip(keys, operands, strict=True))
        if not known or all(k is None for k in keys):
            return
        if prim is BOUND:
            (key,) = keys
            assert key is not None
        else:
            memory = eqn.invars[:1] if prim is LOAD else ()
            of = tuple(a if k is None else k for k, a in zip(keys, operands, strict=True))
            key = self._numbers.setdefault((prim.name, params_key(eqn), memory, of), len(self._numbers) + 1)
        self.keys[eqn.outvar], self.made[eqn.outvar] = key, eqn
        self._weigh(eqn, key, keys)

    def _weigh(self, eqn: Eqn, key: Key, operands: list[Key | None]) -> None:
        """Records the loads that a value is computed from: if it is a gather, and if it is sure."""
        load = eqn.primitive is LOAD
        if load and self.is_direct(eqn):
            shape = ref_type(eqn.invars[0]).shape
            lengths = [shape[axis] for axis, a in enumerate(indices_of(eqn)) if self.key(a) == _POSITION]
            self.limit = min(self.limit, *lengths)
        loaded = [k for k in operands if k in self._loads]
        if load or loaded:
            self._loads.add(key)
        if not self.gathers.isdisjoint(operands) or len(loaded) > 1 or (load and not self.is_direct(eqn)):
            self.gathers.add(key)
        if load:
            sure = all(self._is_inside(eqn, axis, a) for axis, a in enumerate(indices_of(eqn)))
        else:
            sure = all(map(self.is_sure, eqn.invars))
        if sure:
            self._sure_vars.add(eqn.outvar)
            self._sure.setdefault(key, eqn.outvar)

    def _is_inside(self, load: Eqn, axis: int, index: Atom) -> bool:
        if self.is_position(index) or _inside(load, axis, index):
            return True
        check = self.made.get(index) if isinstance(index, Var) else None
        if check is not None and check.primitive is CONVERT:  # what was checked as an unsigned number
            check = self.made.get(check.invars[0])  # type: ignore[arg-type]
        if check is None or check.primitive is not BOUND or not self.is_sure(check.outvar):
            return False
        return int(check.params["size"]) <= ref_type(load.invars[0]).shape[axis]


def _inside(load: Eqn, axis: int, index: Atom) -> bool:
    """Returns whether an index is a constant in range for that axis."""
    return isinstance(index, Literal) and 0 <= int(index.value) < ref_type(load.invars[0]).shape[axis]
