"""A `while` that counts to a constant from a start that is nearly known becomes that many copies of its body.

Before:  s: i32 = select p 0:i32 1:i32                       After:  q: bool = le s 0:i32
         k: i32, y: f32 = while carry c = s, d = x                   z: f32 = if q
           t: bool = lt c 3:i32                                        a: f32 = mul x v
           test t                                                      yield a
           f: bool = eq c 0:i32                                      else
           w: f32 = select f v u                                       yield x
           a: f32 = mul d w                                          b: f32 = mul z u
           b: i32 = add c 1:i32                                      y: f32 = mul b u
           yield b, a

(after simplify.) Iterations that only some starts have are under a branch; where the counter is above every start the
copy is straight code. Such loops go over the stages of a Runge-Kutta step: the first stage of a step is the last of the
step before, but of the first. With the counter constant, rows of the tableau are constants and stages are values.

A loop is unrolled when it keeps no loop and no private array inside, its start has a range of at most `STARTS` values,
and

- it has at most `TRIPS` iterations and its copies cost at most `BUDGET` operations; or
- more than half of its body are choices by the counter, which go (`analysis/chosen`), with at most `CHOSEN_TRIPS`
  iterations and `CHOSEN_BUDGET` operations that are left of all copies.

Measured on the CPU with AVX-512, Tsit5 with step size control, the stages as copies against the loop: 0.5 of the time
for two components, 0.4 for three.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.chosen import with_known
from qdtrace.analysis.cost import code_size
from qdtrace.analysis.counted import counter_of
from qdtrace.ir.copies import copied_atoms, copy_eqns
from qdtrace.ir.primitives import PRIMITIVES
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Program, Task, Var, literal
from qdtrace.ir.types import DType, ScalarType
from qdtrace.ir.walk import walk_eqns
from qdtrace.passes.base import TaskPass
from qdtrace.passes.loop_invariant import ranges_of

if TYPE_CHECKING:
    from qdtrace.analysis.counted import Counter
    from qdtrace.analysis.ranges import Ranges

STARTS = 4
"""Values that a start may have."""
TRIPS = 8
BUDGET = 256
CHOSEN_TRIPS = 32
CHOSEN_BUDGET = 1024
TASK_LIMIT = 8192
"""Operations that no task is made larger than, choices included."""


@dataclass(frozen=True)
class UnrollWhiles(TaskPass):
    """Copies of the bodies of short loops that count."""

    name: ClassVar[str] = "unroll_whiles"

    def on_task(self, task: Task, program: Program) -> Task:
        if not any(e.primitive.name == "while" for e in walk_eqns(task.body)):
            return task
        unroller = _Unroller(task)
        body = unroller.block(task.body)
        return replace(task, body=body) if unroller.unrolled else task


class _Unroller:
    def __init__(self, task: Task) -> None:
        self.unrolled = 0
        self._ranges: Ranges = ranges_of(task)
        self._room = TASK_LIMIT - code_size(task.body)
        self._replaced: dict[Var, Atom] = {}

    def block(self, block: Block) -> Block:
        out: list[Eqn] = []
        for eqn in block.eqns:
            self._visit(eqn, out)
        return Block(block.params, tuple(out), copied_atoms(block.results, self._replaced))

    def _visit(self, eqn: Eqn, out: list[Eqn]) -> None:
        if eqn.primitive.name == "while":
            counter = counter_of(eqn, self._ranges)
            if counter is not None and self._pays(eqn, counter):
                self.unrolled += 1
                self._unroll(eqn, counter, out)
                return
        if eqn.primitive.name == "for":
            self._ranges.set_index(eqn.blocks[0].params[0], *eqn.invars[:3])
        blocks = tuple([self.block(block) for block in eqn.blocks])
        out.append(replace(eqn, invars=copied_atoms(eqn.invars, self._replaced), blocks=blocks))

    def _pays(self, loop: Eqn, counter: Counter) -> bool:
        body = loop.blocks[1]
        low, high = counter.first
        trips = counter.trips[1]
        if high - low >= STARTS or trips > CHOSEN_TRIPS:
            return False
        size = code_size(body)
        if trips * size > self._room or any(e.primitive.name in ("for", "while") for e in walk_eqns(body)):
            return False
        left = with_known(body, [body.params[counter.position]])
        if any(e.primitive.name == "cell" and e.outvars[0] in left.kept for e in walk_eqns(body)):
            return False
        chosen = 2 * left.size < size and trips * left.size <= CHOSEN_BUDGET
        if not chosen and (trips > TRIPS or trips * left.size > BUDGET):
            return False
        self._room -= trips * size
        return True

    def _unroll(self, loop: Eqn, counter: Counter, out: list[Eqn]) -> None:
        carries = copied_atoms(loop.invars, self._replaced)
        start = carries[counter.position]
        low, high = counter.first
        for value in range(low, counter.stop):
            at = literal(value, start.dtype)
            if value >= high:
                carries = self._copy(loop, counter, at, carries, out)
                continue
            runs = Var(ScalarType(DType.bool))
            out.append(Eqn(PRIMITIVES["le"], (start, at), (runs,), {}, (), loop.loc))
            taken: list[Eqn] = []
            made = self._copy(loop, counter, at, carries, taken)
            blocks = (Block((), tuple(taken), made), Block((), (), carries))
            results = tuple([Var(v.type, v.hint) for v in loop.outvars])
            out.append(Eqn(PRIMITIVES["if"], (runs,), results, {}, blocks, loop.loc))
            carries = results
        last = carries if counter.stop > low else copied_atoms(loop.invars, self._replaced)
        self._replaced.update(zip(loop.outvars, last, strict=True))

    def _copy(
        self, loop: Eqn, counter: Counter, at: Literal, carries: tuple[Atom, ...], out: list[Eqn]
    ) -> tuple[Atom, ...]:
        """Appends one iteration; gives what it carries on."""
        body = loop.blocks[1]
        given = [at if k == counter.position else c for k, c in enumerate(carries)]
        env: dict[Var, Atom] = {**self._replaced, **dict(zip(body.params, given, strict=True))}
        out += copy_eqns(body.eqns, env)
        return copied_atoms(body.results, env)
