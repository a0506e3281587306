"""Flow-sensitive ranges of integers: they use branches taken, tests passed, checks before and loops around.

An index is often in range only because of a condition around it (`i > 0`), of the test of a loop (`k < n`), or of a
value that a loop only ever raises. So ranges are computed in *scopes*: the side of a branch opens a scope with the
facts that its condition implies. Ranges of carries are found by iteration to a fixed point with widening and one
narrowing (Cousot and Cousot 1977).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from qdtrace.analysis.index.intervals import inside, range_of_dtype, range_of_loop
from qdtrace.analysis.index.ranges import DEPTH, TaskRanges
from qdtrace.ir.primitives import ADD, AND, BOUND, CONVERT, FOR, IF, NOT, OR, SUB, primitive
from qdtrace.ir.program import Literal, Var
from qdtrace.ir.types import ScalarType

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from qdtrace.analysis.index.intervals import Interval
    from qdtrace.ir.program import Atom, Eqn, Task

Facts = dict[int, "Interval"]
"""Ranges by the `id` of a variable."""

_ROUNDS = 4
"""Largest number of fixed-point rounds for the carries of a loop; then their ranges are those of the dtypes."""
_NESTED = 4
"""Limit on the nested scopes that one query opens. Each computes all ranges anew, so without a limit choices that
depend on each other take exponential time."""


class FlowRanges(TaskRanges):
    """Ranges of the values of one task; see the module docstring."""

    def __init__(self, task: Task) -> None:
        self._loops: dict[int, list[Interval | None]] = {}
        """Ranges of the carries of loops that were visited, by the `id` of the loop."""
        self._opened = 0
        """Number of scopes that the current query has opened."""
        super().__init__(task)  # last, because it asks for the bounds

    # ------------------------------------------------------------------ scopes
    @contextmanager
    def scope(self, facts: Facts) -> Generator[None]:
        """Opens a scope: queries inside use these facts and those noted inside; ranges are computed anew with them."""
        before = self._fixed, self._known, self._loops
        self._fixed, self._known, self._loops = {**self._fixed, **facts}, {}, {}
        try:
            yield
        finally:
            self._fixed, self._known, self._loops = before

    def note(self, facts: Facts) -> None:
        """Adds facts that hold from here to the end of the scope."""
        if facts:
            self._fixed.update(facts)
            self._known, self._loops = {}, {}

    @contextmanager
    def _supposed(self, facts: Facts) -> Generator[None]:
        """Opens a scope for the current query, which counts against the limit."""
        self._opened += 1
        try:
            with self.scope(facts):
                yield
        finally:
            self._opened -= 1

    # ------------------------------------------------------------------ values
    def of_results(self, eqn: Eqn, atom: Atom, depth: int) -> Interval:
        """Returns the range of a result of an `if` or a loop."""
        whole = range_of_dtype(atom.dtype)
        if depth <= 0:
            return whole
        k = eqn.outvars.index(atom)
        if eqn.primitive is not IF:
            return self.carried(eqn)[k] or whole
        if self._opened >= _NESTED:
            return hull(*(self.of(block.results[k], depth - 1) for block in eqn.blocks))
        low, high = self.of(eqn.invars[0], depth - 1)
        sides: list[Interval] = []
        for block, holds in zip(eqn.blocks, (True, False), strict=True):
            if not low <= holds <= high:
                continue
            with self._supposed(self.facts_of(eqn.invars[0], holds)):
                sides.append(self.of(block.results[k], depth - 1))
        return hull(*sides)

    def of_select(self, eqn: Eqn, depth: int) -> Interval:
        """Returns the range of a `select`, each side taken under its condition."""
        condition, a, b = eqn.invars
        low, high = self.of(condition, depth - 1)
        if low == high:
            return self.of(a if low else b, depth - 1)
        if self._opened >= _NESTED:
            return hull(self.of(a, depth - 1), self.of(b, depth - 1))
        with self._supposed(self.facts_of(condition, True)):
            left = self.of(a, depth - 1)
        with self._supposed(self.facts_of(condition, False)):
            right = self.of(b, depth - 1)
        return hull(left, right)

    # ------------------------------------------------------------------ loops
    def carried(self, loop: Eqn) -> list[Interval | None]:
        """Returns the ranges of the carries where an iteration begins or the loop ends; None for floats."""
        found = self._loops.get(id(loop))
        if found is not None:
            return found
        inits = loop.initials
        wholes = [range_of_dtype(a.dtype) if _is_integer(a) else None for a in inits]
        if self._opened >= _NESTED:
            return wholes
        first = [None if w is None else self.of(a) for a, w in zip(inits, wholes, strict=True)]
        state = self._loops[id(loop)] = self._fixed_point(loop, first, wholes) if any(first) else wholes
        return state

    def _fixed_point(
        self, loop: Eqn, first: list[Interval | None], wholes: list[Interval | None]
    ) -> list[Interval | None]:
        state = list(first)
        for number in range(_ROUNDS):
            after = self._joined(first, self._after(loop, state))
            if _within(after, state):
                # one narrowing step: the test of the loop may restore bounds that widening lost
                return after if _within(self._joined(first, self._after(loop, after)), after) else state
            state = [
                None if s is None or a is None or w is None else _widened(s, a, w, number)
                for s, a, w in zip(state, after, wholes, strict=True)
            ]
        return wholes

    def _after(self, loop: Eqn, state: list[Interval | None]) -> list[Interval | None]:
        """Returns the ranges of the carries after an iteration that begins with those of `state`."""
        with self._supposed(self.entry(loop, state)):
            return [None if s is None else self.of(a) for a, s in zip(loop.blocks[-1].results, state, strict=True)]

    def entry(self, loop: Eqn, state: Sequence[Interval | None]) -> Facts:
        """Returns the ranges of the parameters of a loop's body, and what its test implies, as an iteration begins."""
        if loop.primitive is FOR:
            (body,) = loop.blocks
            index, *params = body.params
            facts = _facts(params, state)
            start, stop, step = loop.bounds
            if isinstance(step, Literal) and step.value:
                found = range_of_loop(self.of(start), self.of(stop), int(step.value))
                if found is not None:
                    facts[id(index)] = found
            return facts
        test, body = loop.blocks
        with self._supposed(_facts(test.params, state)):
            passed = self.facts_of(test.results[0], True)
            entered = [
                None if s is None else passed.get(id(p), self.of(p)) for p, s in zip(test.params, state, strict=True)
            ]
        outer = {k: v for k, v in passed.items() if k not in set(map(id, test.params))}
        return {**outer, **_facts(body.params, entered)}

    def tested(self, loop: Eqn) -> Facts:
        """Returns the ranges of the parameters of the test of a `while`."""
        return _facts(loop.blocks[0].params, self.carried(loop))

    @staticmethod
    def _joined(first: list[Interval | None], after: list[Interval | None]) -> list[Interval | None]:
        return [None if a is None or b is None else hull(a, b) for a, b in zip(first, after, strict=True)]

    # ------------------------------------------------------------------ conditions
    def facts_of(self, condition: Atom, holds: bool, depth: int = DEPTH) -> Facts:
        """Returns the ranges of integers that are implied by a condition that holds, or does not."""
        if isinstance(condition, Literal) or depth <= 0:
            return {}
        facts: Facts = {id(condition): (int(holds), int(holds))}
        eqn = self._definition(condition)
        if eqn is None:
            return facts
        prim = eqn.primitive
        if prim is NOT:
            return _both(facts, self.facts_of(eqn.invars[0], not holds, depth - 1))
        if prim in (AND, OR):
            a, b = (self.facts_of(x, holds, depth - 1) for x in eqn.invars)
            return _both(facts, _both(a, b) if holds == (prim is AND) else _either(a, b))
        if prim.negation and all(map(_is_integer, eqn.invars)):
            a, b = eqn.invars
            relation = prim if holds else primitive(prim.negation)
            self._limit(facts, a, relation.name, self.of(b))
            self._limit(facts, b, relation.mirror, self.of(a))
        return facts

    def facts_inside(self, atom: Atom, size: int) -> Facts:
        """Returns the ranges implied by the check that an index is inside of an axis of that size."""
        facts: Facts = {}
        if isinstance(atom, Var):
            self._note(facts, atom, *inside(*self.of(atom), size))
        return facts

    def _limit(self, facts: Facts, atom: Atom, relation: str, other: Interval) -> None:
        """Narrows the range of an integer that is in this relation to one in the range `other`."""
        if isinstance(atom, Literal):
            return
        low, high = self.of(atom)
        match relation:
            case "lt":
                high = min(high, other[1] - 1)
            case "le":
                high = min(high, other[1])
            case "gt":
                low = max(low, other[0] + 1)
            case "ge":
                low = max(low, other[0])
            case "eq":
                low, high = max(low, other[0]), min(high, other[1])
            case _:
                if other == (low, low):
                    low += 1
                elif other == (high, high):
                    high -= 1
        self._note(facts, atom, low, high)

    def _note(self, facts: Facts, atom: Var, low: int, high: int, depth: int = 4) -> None:
        """Adds a range to the facts, and those of the values that it differs from by a constant."""
        if (before := facts.get(id(atom))) is not None:
            low, high = max(low, before[0]), min(high, before[1])
        if low > high:  # the place is never reached
            return
        facts[id(atom)] = low, high
        eqn = self._definition(atom)
        if eqn is None or depth <= 0 or eqn.primitive not in (ADD, SUB, CONVERT, BOUND):
            return
        source, *more = eqn.invars
        shift = 0
        if more:
            if isinstance(source, Literal) and eqn.primitive is ADD:
                source, more = more[0], [source]
            if not isinstance(more[0], Literal):
                return
            shift = int(more[0].value) * (-1 if eqn.primitive is SUB else 1)
        if not isinstance(source, Var) or not _is_integer(source):
            return
        first, last = self.of(source)
        whole = range_of_dtype(atom.dtype)
        if whole[0] <= first + shift and last + shift <= whole[1]:  # it did not wrap
            self._note(facts, source, max(first, low - shift), min(last, high - shift), depth - 1)


def hull(*ranges: Interval) -> Interval:
    """Returns the smallest range that contains all of these."""
    return min(r[0] for r in ranges), max(r[1] for r in ranges)


def _is_integer(atom: Atom) -> bool:
    return isinstance(atom.type, ScalarType) and not atom.dtype.is_float


def _facts(params: Sequence[Var], state: Sequence[Interval | None]) -> Facts:
    return {id(p): s for p, s in zip(params, state, strict=True) if s is not None}


def _both(a: Facts, b: Facts) -> Facts:
    out = dict(a)
    for key, (low, high) in b.items():
        if key in out:
            low, high = max(low, out[key][0]), min(high, out[key][1])
        if low <= high:
            out[key] = low, high
    return out


def _either(a: Facts, b: Facts) -> Facts:
    return {key: hull(a[key], b[key]) for key in a.keys() & b.keys()}


def _within(inner: Sequence[Interval | None], outer: Sequence[Interval | None]) -> bool:
    pairs = [(a, b) for a, b in zip(inner, outer, strict=True) if a is not None and b is not None]
    return all(b[0] <= a[0] and a[1] <= b[1] for a, b in pairs)


def _widened(before: Interval, after: Interval, whole: Interval, number: int) -> Interval:
    """Returns the hull in round 0; later an end that still moves becomes the end of the dtype (widening)."""
    if not number:
        return hull(before, after)
    return (before[0] if after[0] >= before[0] else whole[0]), (before[1] if after[1] <= before[1] else whole[1])


