"""The task of lanes that are refilled, over all lanes that run together: they take the elements of a chunk in turn.

    range_for i in 0 : n                range_for lane in 0 : 64
      a = load x i                        low, high = load chunk 0, load chunk 1
      r = while carry c = a               while carry next = low, busy = 0, live = false, i, a, c = 0
        test t(c)                           test next < high or busy > 0
        yield f(c)                          idle = not live
      store y r i                           held, live, i, a, c = if idle and lane_rank idle < high - next
                                              i = next + lane_rank idle
                                              a = load x i
                                              yield true, t(a), i, a, a
                                            else
                                              yield live, live, i, a, c
                                            next = next + 64 - busy
                                            live, r = while carry live, c
                                              test live and lane_count live >= (57 if next < high else 1)
                                              yield t(f(c)), f(c)
                                            if held and not live
                                              store y r i
                                            yield next, lane_count live, live, i, a, r

`chunk` holds the first element and the end. One lane alone, as the interpreter runs it, takes all elements. Equations
of the loop and after it are in the task as they are, so what is known of them stays true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.simd.divergence.block_plan import OnceFacts, PartPlan
from qdtrace.ir.builder import ref_var
from qdtrace.ir.primitives import FOR, IF, WHILE
from qdtrace.ir.program import Block, Eqn, Var, literal
from qdtrace.ir.rebuild import Copier
from qdtrace.ir.types import DType
from qdtrace.ir.walk import free_vars, used_vars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.facts import TaskFacts
    from lowering.simd.divergence.refill import Refill
    from lowering.simd.shape import Shape
    from qdtrace.ir.program import Atom, Task

IDLE_PART = 8
"""Lanes take elements if at least one in this many is idle."""
_TRUE, _FALSE = (literal(b, DType.bool) for b in (True, False))


def plan_refill(facts: TaskFacts, refill: Refill, shape: Shape) -> PartPlan:
    """Returns the plan of the task whose lanes are refilled."""
    chunk = ref_var(DType.i64, (2,), "chunk")
    task, origins = refilled_task(facts.task, refill, chunk, shape.width * shape.vectors)
    made = OnceFacts(task, facts, origins, (chunk,))
    return PartPlan(made, shape, made.uniformity)


def refilled_task(task: Task, refill: Refill, chunk: Var, lanes: int) -> tuple[Task, dict[Eqn, Eqn]]:
    """Returns the task over so many lanes, and the originals of equations that are copies."""
    assert task.index is not None
    made = _Refilling(task.index, refill, lanes)
    ends = literal(0, task.index.dtype), literal(lanes, task.index.dtype)
    return task.rebuilt(made.body(chunk), None, *ends, Var(task.index.type, "lane")), made.origins


def state_of(loop: Eqn) -> tuple[Atom, ...]:
    """Returns the initial state of a loop: the index of a `for`, and the carries."""
    return (loop.invars[0], *loop.initials) if loop.primitive is FOR else loop.initials


def values_read(loop: Eqn) -> dict[Var, None]:
    """Returns the values from outside of a loop that its iterations read."""
    read: dict[Var, None] = {}
    for block in loop.blocks:
        read |= free_vars(block)
    return read | {a: None for a in loop.control[1:2] if isinstance(a, Var)}


class LoopCopier(Copier):
    """Makes a loop of parts of loops, and notes the original of each copy."""

    def __init__(self) -> None:
        super().__init__()
        self.origins: dict[Eqn, Eqn] = {}

    def visit(self, eqn: Eqn) -> None:
        """Appends a copy of an equation, and notes its origin."""
        super().visit(eqn)
        self.origins[self.current.eqns[-1]] = eqn

    def goes_on(self, loop: Eqn, state: Sequence[Atom]) -> Atom:
        """Emits whether a loop runs another iteration."""
        if loop.primitive is FOR:
            return self("lt", state[0], self.atom(loop.bounds[1]))
        test = loop.blocks[0]
        self.env.update(zip(test.params, state, strict=True))
        for eqn in test.eqns:
            self.visit(eqn)
        return self.atom(test.results[0])

    def next_state(self, loop: Eqn, state: Sequence[Atom], results: tuple[Atom, ...]) -> tuple[Atom, ...]:
        """Emits the number of the next iteration of a `for`; returns it with the results of the last one."""
        if loop.primitive is not FOR:
            return results
        return self("add", state[0], literal(1, state[0].dtype)), *results


class _Refilling(LoopCopier):
    def __init__(self, index: Var, refill: Refill, lanes: int) -> None:
        super().__init__()
        self.index = index
        self.refill = refill
        self.loop = refill.loop
        self.lanes = lanes
        self.params = refill.loop.blocks[-1].params
        self.kept = self._kept()

    def _kept(self) -> list[Var]:
        """Returns values of an element from before the loop that the loop or later equations read."""
        read = values_read(self.loop)
        for eqn in self.refill.after:
            read |= dict.fromkeys(used_vars(eqn))
        made = {v for e in self.refill.before for v in e.outvars}
        return [v for v in read if v in made]

    def body(self, chunk: Var) -> Block:
        """Returns the body of the task: nothing for an empty chunk, as what is shared may need an element."""
        with self.block() as opened:
            low, high = (self.load(chunk, literal(k, DType.i32)) for k in range(2))
            with self.block() as then:
                for eqn in self.refill.shared:
                    self.append(eqn)
                self._rounds(low, high)
            self.emit("if", self("lt", low, high), blocks=(then.close(), Block((), (), ())))
        return opened.close()

    def _rounds(self, low: Var, high: Var) -> None:
        """Emits the loop in which lanes take elements, run until some are idle, and finish what has left the loop."""
        none = literal(0, DType.i32)
        zeros = [literal(0, v.dtype) for v in (self.index, *self.kept, *self.params)]
        first = [low, none, _FALSE, *zeros]
        following, busy, *_ = params = [Var(a.type, "") for a in first]
        with self.block(params) as test:
            goes_on = self("or", self("lt", following, high), self("gt", busy, none))
        following, busy, live, *state = params = [Var(a.type, "") for a in first]
        with self.block(params) as body:
            begun = [Var(v.type, v.hint) for v in self.params]
            held, live = self._take(following, high, live, state, begun)
            idle = self("sub", literal(self.lanes, DType.i32), busy)
            following = self("add", following, self.convert(idle, DType.i64))
            live, reached = self._run(self("lt", following, high), live, begun)
            busy = self("lane_count", live)
            if self.refill.after:
                sides = Block((), self.refill.after, ()), Block((), (), ())
                self.emit("if", self("and", held, self("not", live)), blocks=sides)
        results = following, busy, live, self.index, *self.kept, *reached
        self.emit("while", *first, blocks=(test.close((goes_on,)), body.close(results)))

    def _take(
        self, following: Var, high: Var, live: Var, state: Sequence[Var], begun: Sequence[Var]
    ) -> tuple[Var, Var]:
        """Emits what idle lanes do to begin with elements; returns which lanes have one, and which run its loop."""
        idle = self("not", live)
        rank, left = self("lane_rank", idle), self("min", self("sub", high, following), literal(self.lanes, DType.i64))
        takes = self("and", idle, self("lt", rank, self.convert(left, DType.i32)))
        with self.block() as then:
            dtype = self.index.dtype
            self.env = {self.index: self("add", self.convert(following, dtype), self.convert(rank, dtype))}
            for eqn in self.refill.before:
                self.visit(eqn)
            begin = self.atoms(state_of(self.loop))
            taken = then.close((_TRUE, self.goes_on(self.loop, begin), *self.atoms((self.index, *self.kept)), *begin))
        self.env = {}
        sides = taken, Block((), (), (live, live, *state))
        held, live = Var(live.type, "held"), Var(live.type, "live")
        self.append(Eqn(IF, (takes,), (held, live, self.index, *self.kept, *begun), {}, sides, self.loop.loc))
        return held, live

    def _run(self, more: Var, live: Var, begun: Sequence[Var]) -> tuple[Var, list[Var]]:
        """Emits the loop, which also ends if enough lanes are idle and there is more; returns its results."""
        loop, enough = self.loop, max(2, self.lanes // IDLE_PART)
        least = self("select", more, *(literal(n, DType.i32) for n in (1 + self.lanes - enough, 1)))
        with self.block([Var(live.type, "live"), *(Var(v.type, v.hint) for v in self.params)]) as test:
            lane = test.params[0]
            goes_on = self("and", lane, self("ge", self("lane_count", lane), least))
        with self.block([Var(live.type, "live"), *self.params]) as body:
            for eqn in loop.blocks[-1].eqns:
                self.append(eqn)
            state = self.next_state(loop, self.params, loop.blocks[-1].results)
            results = self.goes_on(loop, state), *state
        counter = [Var(v.type, v.hint) for v in self.params[: len(begun) - len(loop.outvars)]]
        reached, left = [*counter, *loop.outvars], Var(live.type, "live")
        blocks = test.close((goes_on,)), body.close(results)
        self.append(Eqn(WHILE, (live, *begun), (left, *reached), {}, blocks, loop.loc))
        return left, reached
