"""Recognises a `while` that counts: its condition compares counters with bounds, and nothing else ends it.

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

from qdtrace.analysis.index.trips import CountedLoop
from qdtrace.ir.carries import carried_params
from qdtrace.ir.primitives import ADD, AND, GT, LT
from qdtrace.ir.program import Literal, Var, literal
from qdtrace.ir.walk import bound_in_block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from qdtrace.analysis.index.intervals import Interval
    from qdtrace.analysis.index.ranges import Ranges
    from qdtrace.ir.program import Atom, Block, Eqn


@dataclass(frozen=True, slots=True)
class InductionVariable:
    """A carried integer that each iteration raises by one, and that runs the loop while it is below a constant."""

    position: int
    """Position of the counter among the carries."""
    loop: CountedLoop
    stop: int
    first: Interval
    """Range of the start."""

    @property
    def trips(self) -> Interval:
        """The least and the most iterations that the counter allows."""
        return self.loop.trips(self.first, (self.stop, self.stop))


def controlling_induction(loop: Eqn, ranges: Ranges) -> InductionVariable | None:
    """Returns the counter that alone ends a `while`, or None if there is none."""
    found: list[InductionVariable] = []
    for eqn in _tests(loop):
        counted = None if eqn is None else counted_by(eqn, loop)
        if counted is None:
            return None
        position, steps = counted
        if not isinstance(steps.stop, Literal):
            return None
        found.append(InductionVariable(position, steps, int(steps.stop.value), ranges.of(steps.start)))
    least = min(found, key=lambda c: c.trips[::-1])
    return least if all(c is least or least.trips[1] <= c.trips[0] for c in found) else None


def most_iterations(loop: Eqn, range_of: Callable[[Atom], Interval]) -> int | None:
    """Returns the most iterations of a `while` that a counter allows, whatever else may end it; None if none does.

    `range_of` returns the range of a value that is defined in front of the loop.
    """
    counted = (None if eqn is None else counted_by(eqn, loop) for eqn in _tests(loop))
    trips = (c[1].trips(range_of(c[1].start), range_of(c[1].stop))[1] for c in counted if c is not None)
    return min(trips, default=None)


def raised_by(loop: Eqn) -> dict[Var, Literal]:
    """Returns the constants that each iteration adds to carried integers, by the body's parameter of the carry."""
    body = loop.blocks[-1]
    sums = {e.outvar: e.invars for e in body.eqns if e.primitive is ADD}
    found: dict[Var, Literal] = {}
    for param, result in zip(carried_params(loop, body), body.results, strict=True):
        if param.dtype.is_integer and isinstance(result, Var) and result in sums:
            others = [a for a in sums[result] if a is not param]
            if len(others) == 1 and isinstance(others[0], Literal):
                found[param] = others[0]
    return found


def conjuncts(test: Block) -> Iterator[Atom]:
    """Yields the conjuncts of a condition: the atoms that it joins by `and`."""
    made = {eqn.outvar: eqn for eqn in test.eqns if eqn.primitive is AND}
    waiting = [test.results[0]]
    while waiting:
        atom = waiting.pop()
        if isinstance(atom, Var) and atom in made:
            waiting += made[atom].invars
        else:
            yield atom


def _tests(loop: Eqn) -> Iterator[Eqn | None]:
    """Yields the equation of each conjunct of a loop's condition; None for one that the condition does not compute."""
    test = loop.blocks[0]
    made: dict[Atom, Eqn] = {var: eqn for eqn in test.eqns for var in eqn.outvars}
    return (made.get(atom) for atom in conjuncts(test))


def counted_by(eqn: Eqn, loop: Eqn) -> tuple[int, CountedLoop] | None:
    """Returns the counter that a comparison holds below a bound from outside, as a position and its loop; or None."""
    if eqn.primitive not in (LT, GT):
        return None
    value, bound = eqn.invars if eqn.primitive is LT else eqn.invars[::-1]
    params = loop.blocks[0].params
    if not bound.dtype.is_integer or value not in params or bound in [*bound_in_block(loop.blocks[0])]:
        return None
    position = params.index(value)
    by = raised_by(loop).get(loop.blocks[1].params[position])
    if by is None or by.value != 1:
        return None
    start = loop.invars[position]
    return position, CountedLoop(start, bound, literal(1, start.dtype))
