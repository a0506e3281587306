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

from typing import TYPE_CHECKING

from qdtrace.analysis.index.trips import CountedLoop
from qdtrace.ir.carries import carried_params
from qdtrace.ir.primitives import ADD, AND, GT, LT
from qdtrace.ir.program import Literal, Var, literal
from qdtrace.ir.types import DType
from qdtrace.ir.walk import bound_in_block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from qdtrace.analysis.index.intervals import Interval
    from qdtrace.ir.program import Atom, Block, Eqn


def controlling_counter(loop: Eqn, range_of: Callable[[Atom], Interval]) -> tuple[int, CountedLoop] | None:
    """Returns the counter that alone ends a `while`, as its position and the `for` that it makes; None if none does.

    `range_of` returns the range of a value that is defined in front of the loop.
    """
    if any(e.primitive.effects or e.blocks for e in loop.blocks[0].eqns):
        return None
    trips: dict[tuple[int, CountedLoop], Interval] = {}
    for counter in _counters(loop):
        if counter is None or counter[1].start.dtype not in (DType.i32, DType.i64):
            return None
        trips[counter] = counter[1].trips(range_of(counter[1].start), range_of(counter[1].stop))
    least = min(trips, key=lambda c: trips[c][::-1])
    return least if all(c == least or trips[least][1] <= trips[c][0] for c in trips) else None


def counters(loop: Eqn) -> list[CountedLoop]:
    """Returns the counters of a `while` as loops: each ends it, whatever else may."""
    return [c[1] for c in _counters(loop) if c is not None]


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


def _counters(loop: Eqn) -> Iterator[tuple[int, CountedLoop] | None]:
    """Yields the counter that each conjunct of a loop's condition holds below a bound, None for another condition."""
    test = loop.blocks[0]
    made: dict[Atom, Eqn] = {var: eqn for eqn in test.eqns for var in eqn.outvars}
    return (_counter(made[atom], loop) if atom in made else None for atom in conjuncts(test))


def _counter(eqn: Eqn, loop: Eqn) -> tuple[int, CountedLoop] | None:
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
