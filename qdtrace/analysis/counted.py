"""A `while` that counts: its condition compares counters with bounds, and nothing else ends it.

    while carry a = 0:i32, b = s, c = x
      p: bool = lt b 7:i32
      q: bool = lt a 7:i32
      r: bool = and p q
      test r
      ...
      b_1: i32 = add b 1:i32
      a_1: i32 = add a 1:i32
      yield a_1, b_1, c_1

Two counters. Where `s` is known to be 0 or 1, `b` ends the loop: it runs 6 or 7 times, and `a` would let it run 7
times. Loops of libraries have such second counters (`max_steps`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qdtrace.ir.program import Literal, Var

if TYPE_CHECKING:
    from qdtrace.analysis.ranges import Range, Ranges
    from qdtrace.ir.program import Atom, Eqn


@dataclass(frozen=True, slots=True)
class Counter:
    """A carried integer that each iteration raises by one, and that runs the loop while it is below a constant."""

    position: int
    """Among the carries."""
    start: Atom
    stop: int
    first: Range
    """What `start` can be."""

    @property
    def trips(self) -> Range:
        """Least and most iterations that it allows."""
        low, high = self.first
        return max(0, self.stop - high), max(0, self.stop - low)


def counter_of(loop: Eqn, ranges: Ranges) -> Counter | None:
    """The counter that alone ends a `while`; None where there is no such one."""
    test, body = loop.blocks
    made = {var: eqn for eqn in test.eqns for var in eqn.outvars}
    found: list[Counter] = []
    waiting = [test.results[0]]
    while waiting:
        atom = waiting.pop()
        eqn = made.get(atom) if isinstance(atom, Var) else None
        if eqn is None:
            return None
        if eqn.primitive.name == "and":
            waiting += eqn.invars
            continue
        counter = _counter(eqn, loop, ranges)
        if counter is None or not _is_raised(body.params[counter.position], body.results[counter.position], loop):
            return None
        found.append(counter)
    least = min(found, key=lambda c: c.trips[::-1])
    return least if all(c is least or least.trips[1] <= c.trips[0] for c in found) else None


def _counter(eqn: Eqn, loop: Eqn, ranges: Ranges) -> Counter | None:
    """The counter of a comparison with a constant."""
    if eqn.primitive.name not in ("lt", "gt"):
        return None
    value, bound = eqn.invars if eqn.primitive.name == "lt" else eqn.invars[::-1]
    params = loop.blocks[0].params
    if not isinstance(bound, Literal) or not bound.dtype.is_integer or value not in params:
        return None
    position = params.index(value)
    start = loop.invars[position]
    return Counter(position, start, int(bound.value), ranges.of(start))


def _is_raised(param: Var, result: Atom, loop: Eqn) -> bool:
    """True for `param + 1`."""
    for eqn in loop.blocks[1].eqns:
        if result in eqn.outvars:
            a, b = eqn.invars[:2] if len(eqn.invars) > 1 else (None, None)
            if eqn.primitive.name != "add":
                return False
            return any(x is param and isinstance(y, Literal) and y.value == 1 for x, y in ((a, b), (b, a)))
    return False
