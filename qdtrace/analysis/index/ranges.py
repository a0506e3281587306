"""Ranges of integers: the interval of every value, computed on demand from a few levels of definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.index.intervals import inside, range_of_dtype, range_of_loop, range_of_result
from qdtrace.ir.primitives import BOUND, FOR, SELECT
from qdtrace.ir.program import Literal, Var, literal, ref_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from qdtrace.analysis.index.intervals import Interval
    from qdtrace.ir.program import Atom, Eqn, Task

DEPTH = 8
"""Largest depth of definitions that a range looks through."""


class Ranges:
    """Ranges of values, computed on demand and cached. Values are keyed by `id`: the caller keeps them alive."""

    def __init__(self, definition: Callable[[Atom], Eqn | None]) -> None:
        self._definition = definition
        self._fixed: dict[int, Interval] = {}
        """Ranges set from outside: those of indices and facts."""
        self._known: dict[int, Interval] = {}
        """Ranges computed so far."""
        self._indices: list[Atom] = []
        """Loop indices, kept alive so that no other object gets their `id` after the loop is discarded."""

    def definition(self, atom: Atom) -> Eqn | None:
        """Returns the equation that a value is a result of, or None for other values."""
        return self._definition(atom)

    def of(self, atom: Atom, depth: int = DEPTH) -> Interval:
        """Returns the smallest and the largest value of an integer or bool."""
        if isinstance(atom, Literal):
            value = int(atom.value)
            return value, value
        found = self._fixed.get(id(atom)) or self._known.get(id(atom))
        if found is None:
            eqn = self._definition(atom)
            if eqn is None or depth <= 0:
                return range_of_dtype(atom.dtype)
            found = self._special(eqn, atom, depth)
            if found is not None:
                self._known[id(atom)] = found
                return found
            operands = [self.of(a, depth - 1) if not a.dtype.is_float else (0, 0) for a in eqn.invars]
            found = range_of_result(eqn.primitive.name, operands, atom.dtype, eqn.invars[0].dtype)
            self._known[id(atom)] = found
        return found

    def _special(self, eqn: Eqn, atom: Atom, depth: int) -> Interval | None:
        """Returns the range of an equation that is no function of its operands' ranges; None for one that is."""
        prim = eqn.primitive
        if eqn.blocks:
            return self.of_results(eqn, atom, depth)
        if prim is BOUND:
            return inside(*self.of(eqn.invars[0], depth - 1), int(eqn.params["size"]))
        if prim is SELECT:
            return self.of_select(eqn, depth)
        return range_of_dtype(atom.dtype) if eqn.primitive.effects else None

    def of_results(self, eqn: Eqn, atom: Atom, depth: int) -> Interval:
        """Returns the range of a result of an `if` or a loop: here that of its dtype."""
        return range_of_dtype(atom.dtype)

    def of_select(self, eqn: Eqn, depth: int) -> Interval | None:
        """Returns the range of a `select`; here None, so that it is computed as for any equation."""
        return None

    def set_index(self, index: Atom, start: Atom, stop: Atom, step: Atom) -> None:
        """Sets the range of an index; to be called before any range that depends on it is asked for."""
        if isinstance(step, Literal) and step.value:
            found = range_of_loop(self.of(start), self.of(stop), int(step.value))
            if found is not None:
                self._fixed[id(index)] = found
                self._indices.append(index)

    def are_inside(self, ref: Atom, indices: Iterable[Atom]) -> bool:
        """Returns whether indices are surely in range for a reference."""
        ends = zip(map(self.of, indices), ref_type(ref).shape, strict=True)
        return all(low >= 0 and high < size for (low, high), size in ends)

    def enter(self, eqn: Eqn) -> None:
        """Sets the range of the index if `eqn` is a `for`; to be called before its body is visited."""
        if eqn.primitive is FOR:
            self.set_index(eqn.index, *eqn.bounds)


class TaskRanges(Ranges):
    """Ranges of the values of one task. Indices of loops are added on the way (`enter`)."""

    def __init__(self, task: Task) -> None:
        defined = task.definitions
        super().__init__(lambda atom: defined.get(atom) if isinstance(atom, Var) else None)
        if task.index is not None:
            self.set_index(task.index, task.start, task.stop, literal(1, task.index.dtype))
