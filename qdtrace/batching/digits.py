"""The index of a task as a number of several digits: batches, lanes and elements of a lane, the innermost last.

range_for f in 0:24
  i = div f 4           `f` has the digits 2, 3 and 4: the batch, the lane and the element
  k = rem f 4
  lane = rem i 3
  batch = div i 3
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.frozen import frozen
from qdtrace.ir.faults import ITERATION
from qdtrace.ir.memory import first_index
from qdtrace.ir.primitives import ADD, CHECK, DIV, REM
from qdtrace.ir.program import Literal, Var, is_global
from qdtrace.ir.walk import walk_eqns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qdtrace.ir.program import Atom, Eqn, Task


@frozen
class Digit:
    """Some digits of an index next to each other: `index / stride % extent`."""

    stride: int
    extent: int

    def holds(self, other: Digit) -> bool:
        """Returns whether these digits hold another one."""
        return other.stride % self.stride == 0 and self.end % other.end == 0

    @property
    def end(self) -> int:
        """The stride of the next digit."""
        return self.stride * self.extent

    def is_apart(self, other: Digit) -> bool:
        """Returns whether these digits are all below or all above another one."""
        return other.stride % self.end == 0 or self.stride % other.end == 0

    def shared(self, lane: Digit, parts: int) -> Digit:
        """Returns the digits if `lane` has so many times fewer values."""
        above, holds = self.stride % lane.end == 0, self.holds(lane)
        return Digit(self.stride // parts if above else self.stride, self.extent // parts if holds else self.extent)


@frozen(eq=False)
class Lanes:
    """The lanes of a task."""

    lane: Digit
    digits: Mapping[Var, Digit]
    """The variables that are digits of the index."""

    def is_lane(self, atom: Atom) -> bool:
        """Returns whether an atom is the number of the lane."""
        return isinstance(atom, Var) and self.digits.get(atom) == self.lane

    def is_tied(self, atom: Atom) -> bool:
        """Returns whether an atom is made of digits of the lane."""
        digit = self.digits.get(atom) if isinstance(atom, Var) else None
        return digit is not None and not digit.is_apart(self.lane)

    def are_shared_by(self, task: Task) -> bool:
        """Returns whether a task asks for the number of its lane for an index of shared memory alone."""
        ties = {v for v in self.digits if self.is_tied(v)}
        for eqn in walk_eqns(task.body):
            if any(v in ties for block in eqn.blocks for v in block.results):
                return False
            if eqn.outvars and eqn.outvars[0] in self.digits:
                if not _is_clean(eqn, self.digits, self.lane):
                    return False
                continue
            is_shared = eqn.primitive.is_access and is_global(eqn.invars[0])
            allowed = eqn.invars[first_index(eqn) :] if is_shared else ()
            others = eqn.invars[: len(eqn.invars) - len(allowed)]
            others = others[2:] if tells_iteration(eqn) and others[0] not in ties else others
            if any(v in ties for v in others) or any(v in ties and not self.is_lane(v) for v in allowed):
                return False
        return True


def _is_clean(eqn: Eqn, digits: Mapping[Var, Digit], lane: Digit) -> bool:
    """Returns whether an equation of digits does not cut the lane in two."""
    out = digits[eqn.outvar]
    return out.holds(lane) or out.is_apart(lane)


def tells_iteration(eqn: Eqn) -> bool:
    """Returns whether an equation is a check that tells its iteration, the second of its operands."""
    return eqn.primitive is CHECK and str(eqn.params.get("told", "")).startswith(ITERATION)


def digits_of(task: Task) -> dict[Var, Digit]:
    """Returns the variables of a task that are digits of its index; none if its range is not known."""
    if task.index is None or not isinstance(task.start, Literal) or not isinstance(task.stop, Literal):
        return {}
    extent = int(task.stop.value)
    if int(task.start.value) != 0 or extent < 1:
        return {}
    found = {task.index: Digit(1, extent)}
    for eqn in walk_eqns(task.body):
        made = _digit(eqn, found)
        if made is not None:
            found[eqn.outvar] = made
    return found


def _digit(eqn: Eqn, known: Mapping[Var, Digit]) -> Digit | None:
    """Returns the digits that an equation takes of others, or None."""
    if eqn.primitive is ADD:
        pair = eqn.invars
        digits = [known[v] for v in pair if isinstance(v, Var) and v in known]
        is_same = any(isinstance(v, Literal) and v.value == 0 for v in pair)
        return digits[0] if is_same and digits else None
    if eqn.primitive not in (DIV, REM):
        return None
    whole, by = eqn.invars
    digit = known.get(whole) if isinstance(whole, Var) else None
    if digit is None or not isinstance(by, Literal):
        return None
    count = int(by.value)
    if count < 1 or digit.extent % count:
        return None
    return Digit(digit.stride * count, digit.extent // count) if eqn.primitive is DIV else Digit(digit.stride, count)
