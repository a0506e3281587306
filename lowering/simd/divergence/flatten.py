"""Flattening: a divergent loop and the loop inside of it become one loop, and each lane is in one of both.

Lanes of nested loops wait twice: in the inner loop for the longest of them, and while some lanes are in the inner loop
all others wait outside. In one loop over the state of a lane each lane goes on where it is:

    while carry s = s0             inside, s, k, i, v = while carry inside = false, s = s0, k, i, v = 0, 0, 0
      test t(s)                      test inside or t(s)
      v = before(s)                  inside, k, i, v = if inside
      if p(v)                          i = step(k, i, v)
        i = for k in 0 : n(v)          yield k + 1 < n(v), k + 1, i, v
          i = step(k, i, v)          else
      s = after(s, v, i)               v = before(s)
                                       if p(v) ... yield 0 < n(v), 0, i, v
                                     s = if inside ... yield s else ... yield after(s, v, i)

Values from before the inner loop that are read in it or after it are carried (`v`). Each lane runs the same equations
in the same order as before, so nothing changes for the interpreter, which runs both forms. Lane refill applies to the
loop that is made.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from lowering.plan.derived_facts import DerivedFacts
from lowering.simd.divergence.refill import find_refill
from lowering.simd.divergence.refill_task import LoopCopier, state_of, values_read
from qdtrace.analysis.cost import code_size
from qdtrace.frozen import mutable
from qdtrace.ir.primitives import CELL, FOR, IF, TELL, WHILE
from qdtrace.ir.program import Block, Eqn, Literal, Var, literal
from qdtrace.ir.types import DType
from qdtrace.ir.walk import free_vars, is_rare, walk_inside

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lowering.llvm.facts import TaskFacts
    from lowering.llvm.target import Target
    from lowering.simd.lane_facts import LaneFacts
    from qdtrace.ir.program import Atom


STEPS = " or with lane refill and nested loops as one, as trip counts spread"
"""The reason of tasks that have both forms."""
STEPS_SIZE = 200
"""The most operations in the code of time steps that are flattened: it is emitted three times."""


@mutable(eq=False)
class FlatFacts(DerivedFacts):
    """Facts about a flattened task, made of the nested one."""

    reason: ClassVar[str] = ", nested loops as one"


class _State(NamedTuple):
    """Parameters of a block of the one loop: whether a lane is inside, the states of both loops, and what is kept."""

    inside: Var
    outer: list[Var]
    inner: list[Var]
    kept: list[Var]

    @property
    def all(self) -> list[Var]:
        return [self.inside, *self.outer, *self.inner, *self.kept]


class _Step(NamedTuple):
    """One step of the way from the outer loop to the inner: an equation of a block, and the side of it if an `if`."""

    block: Block
    at: int
    side: int

    @property
    def eqn(self) -> Eqn:
        return self.block.eqns[self.at]


def flattened(lanes: LaneFacts, target: Target) -> FlatFacts | None:
    """Returns facts about a task whose nested loops are one, or None if lanes are not refilled or no loop pays.

    A loop pays if few lanes at a time enter it, as it is in a branch, and if its trip costs as much as what is around
    it, which lanes outside run meanwhile. The one that costs most is taken.
    """
    refill = find_refill(lanes, target, reduces=True) if target.has_masks else None
    if refill is None or any(e.primitive in (CELL, TELL) for e in walk_inside(refill.loop)):
        return None
    ways = list(_ways(refill.loop.blocks[-1], ()))
    found = [way for way in ways if _is_entered_by_few(lanes, way) and _is_plain(way[-1].eqn)]
    if not found:
        return None
    way = max(found, key=_size)
    if not _is_heavy(refill.loop, way):
        return None
    return _made(lanes.facts, refill.loop, way)


def flattened_steps(lanes: LaneFacts) -> tuple[FlatFacts, Eqn, Eqn] | None:
    """Returns facts about a task whose time steps, and a light divergent loop in each, are one loop, and both loops.

    Whether it pays is measured (`spread`): if trips of the inner loop differ less than their mean, it does not.
    """
    task = lanes.facts.task
    loops = [e for e in task.body.eqns if e.primitive.loops]
    if len(loops) != 1 or loops[0] in lanes.divergent_loops or not _is_plain(loops[0]):
        return None
    if lanes.facts.accums or task.hints.get("refill") is False:
        return None
    if any(e.primitive in (CELL, TELL) for e in walk_inside(loops[0])):
        return None
    found = [way for way in _ways(loops[0].blocks[-1], ()) if way[-1].eqn in lanes.divergent_loops]
    if len(found) != 1 or len(found[0]) != 1 or not _is_plain(found[0][0].eqn):
        return None
    if sum(map(code_size, loops[0].blocks)) > STEPS_SIZE:
        return None
    return _made(lanes.facts, loops[0], found[0]), loops[0], found[0][0].eqn


def _is_heavy(outer: Eqn, way: tuple[_Step, ...]) -> bool:
    """Returns whether a trip of the inner loop costs at least as much as what is around it."""
    return 2 * _size(way) >= sum(map(code_size, outer.blocks))


def _size(way: tuple[_Step, ...]) -> int:
    return sum(map(code_size, way[-1].eqn.blocks))


def _made(facts: TaskFacts, outer: Eqn, way: tuple[_Step, ...]) -> FlatFacts:
    made, task = _Flattening(outer, way), facts.task
    loop = made.loop()
    body = Block((), tuple([loop if e is outer else e for e in task.body.eqns]), ())
    return FlatFacts(replace(task, body=body, hints={**task.hints, "refill": True}), facts, made.origins)


def _is_plain(loop: Eqn) -> bool:
    """Returns whether a loop is a `while`, or counts up by one."""
    return loop.primitive is WHILE or (isinstance(loop.step, Literal) and int(loop.step.value) == 1)


def _ways(block: Block, before: tuple[_Step, ...]) -> Iterator[tuple[_Step, ...]]:
    """Yields the ways to the loops of a block that are in branches at most."""
    for at, eqn in enumerate(block.eqns):
        if eqn.primitive.loops:
            yield (*before, _Step(block, at, 0))
        elif eqn.primitive is IF and not is_rare(eqn):
            for side, inner in enumerate(eqn.blocks):
                yield from _ways(inner, (*before, _Step(block, at, side)))


def _is_entered_by_few(lanes: LaneFacts, way: tuple[_Step, ...]) -> bool:
    return way[-1].eqn in lanes.divergent_loops and any(s.eqn in lanes.uniformity.divergent for s in way[:-1])


class _Flattening(LoopCopier):
    """Makes the loop. Each of its parts has an `env` of its own."""

    def __init__(self, outer: Eqn, way: tuple[_Step, ...]) -> None:
        super().__init__()
        self.outer = outer
        self.way = way
        self.inner = way[-1].eqn
        self.kept = self._kept()

    def _kept(self) -> list[Var]:
        """Returns the values from before the inner loop that are read in it or after it."""
        made = {v for step in self.way for e in step.block.eqns[: step.at] for v in e.outvars}
        read = values_read(self.inner)
        for step in self.way:
            rest = Block((), step.block.eqns[step.at + 1 :], step.block.results)
            read |= free_vars(rest)
            if step.eqn is not self.inner:
                read |= {a: None for a in step.eqn.control if isinstance(a, Var)}
                read |= free_vars(step.eqn.blocks[1 - step.side])
        return [v for v in read if v in made]

    def loop(self) -> Eqn:
        """Returns the one loop."""
        outer, inner = self.outer, self.inner
        types = [a.type for a in state_of(outer)], [a.type for a in state_of(inner)], [v.type for v in self.kept]
        hints = [v.hint for v in _params(outer)], [v.hint for v in _params(inner)], [v.hint for v in self.kept]
        inside = literal(False, DType.bool)
        initials = (inside, *state_of(outer), *(literal(0, t.dtype) for t in (*types[1], *types[2])))

        def params() -> _State:
            groups = [[Var(t, h) for t, h in zip(a, b, strict=True)] for a, b in zip(types, hints, strict=True)]
            return _State(Var(inside.type, "inside"), *groups)

        test, body = self._test(params()), self._body(params())
        made = [Var(a.type, "") for a in initials]
        first = len(made) - len(types[1]) - len(types[2]) - len(outer.outvars)
        made[first : first + len(outer.outvars)] = outer.outvars
        return Eqn(WHILE, initials, tuple(made), {}, (test, body), outer.loc)

    def _test(self, state: _State) -> Block:
        self.env = {}
        with self.block(state.all) as opened:
            simple = all(not e.primitive.effects and not e.blocks for e in self.outer.blocks[0].eqns)
            if self.outer.primitive is FOR or simple:
                result = self("or", state.inside, self.goes_on(self.outer, state.outer))
            else:
                with self.block() as then:
                    pass
                with self.block() as other:
                    again = self.goes_on(self.outer, state.outer)
                sides = then.close((state.inside,)), other.close((again,))
                (result,) = self.emit("if", state.inside, blocks=sides)
        return opened.close((result,))

    def _body(self, state: _State) -> Block:
        outer, kept = state.outer, state.kept
        around: dict[Var, Atom] = dict(zip(_params(self.outer), outer, strict=True))
        with self.block(state.all) as opened:
            self.env = around | dict(zip(self.kept, kept, strict=True))
            with self.block() as then:
                inner = self._step(state.inner)
                again = self.goes_on(self.inner, inner)
            self.env = dict(around)
            with self.block() as other:
                entered = self._enter(0)
            sides = then.close((again, *inner, *kept)), other.close(entered)
            inside, *found = self.emit("if", state.inside, blocks=sides)
            now, values = found[: len(inner)], found[len(inner) :]
            self.env = around | dict(zip(self.kept, values, strict=True))
            with self.block() as then:
                pass
            with self.block() as other:
                results = self.next_state(self.outer, outer, self._leave(0, now))
            following = self.emit("if", inside, blocks=(then.close(outer), other.close(results)))
        return opened.close((inside, *following, *found))

    def _step(self, state: Sequence[Var]) -> tuple[Atom, ...]:
        """Emits an iteration of the inner loop, and returns its next state."""
        body = self.inner.blocks[-1]
        self.env.update(zip(body.params, state, strict=True))
        for eqn in body.eqns:
            self.visit(eqn)
        return self.next_state(self.inner, state, self.atoms(body.results))

    def _enter(self, depth: int) -> list[Atom]:
        """Emits what comes before the inner loop, and returns whether it is entered, its state and what is kept.

        Values of a branch that is not taken are zeros, which nobody reads.
        """
        step = self.way[depth]
        for eqn in step.block.eqns[: step.at]:
            self.visit(eqn)
        if step.eqn is self.inner:
            state = list(self.atoms(state_of(self.inner)))
            return [self.goes_on(self.inner, state), *state, *self.atoms(tuple(self.kept))]
        condition = self.atom(step.eqn.invars[0])
        made = {v for s in self.way[depth + 1 :] for e in s.block.eqns[: s.at] for v in e.outvars}
        with self.block() as opened:
            found = self._enter(depth + 1)
        state = len(found) - len(self.kept)
        later = [*range(state), *(state + k for k, v in enumerate(self.kept) if v in made)]
        taken = opened.close([found[k] for k in later])
        passed = Block((), (), tuple([literal(0, found[k].dtype) for k in later]))
        sides = (taken, passed) if step.side == 0 else (passed, taken)
        for k, value in zip(later, self.emit("if", condition, blocks=sides), strict=True):
            found[k] = value
        return found

    def _leave(self, depth: int, state: Sequence[Atom]) -> tuple[Atom, ...]:
        """Emits what comes after the inner loop, and returns the results of the block."""
        step = self.way[depth]
        if step.eqn is self.inner:
            self.env.update(zip(self.inner.outvars, state[len(state) - len(self.inner.outvars) :], strict=True))
        else:
            condition = self.atom(step.eqn.invars[0])
            with self.block() as opened:
                results = self._leave(depth + 1, state)
            taken, passed = opened.close(results), self.rebuild_block(step.eqn.blocks[1 - step.side])
            sides = (taken, passed) if step.side == 0 else (passed, taken)
            self.env.update(zip(step.eqn.outvars, self.emit("if", condition, blocks=sides), strict=True))
        for eqn in step.block.eqns[step.at + 1 :]:
            self.visit(eqn)
        return self.atoms(step.block.results)


def _params(loop: Eqn) -> tuple[Var, ...]:
    """Returns the state of a loop in its body."""
    return loop.blocks[-1].params
