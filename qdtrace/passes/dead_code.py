"""Dead code elimination: removes code that no result of the program depends on.

Before:  a: f32 = load x i                                  After:  b: f32 = load y i
         b: f32 = load y i                                          accum[op=add] loss b
         p: f32, q: f32 = for k in 0:i32 : n : 1:i32 carry c = b, d = a
           e: f32 = mul c c
           yield e, d
         accum[op=add] loss b

Code is dead unless a result or a check depends on it (mark and sweep over values, references, carries and control, so
cycles of carries that only feed themselves are removed too). It removes unused equations, carries of loops, results
of `if`, stores to cells and buffers that nobody reads, loops and branches without effect (a `while` without effect is
assumed to end), tasks that write nothing anybody reads, and unused buffers. An `atomic` whose old value nobody reads
becomes an `accum`. Linear in the size of the program. Never drops a parameter: the caller passes them by position.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.frozen import frozen
from qdtrace.ir.carries import carried_params, carries_of, carry_of, with_carries
from qdtrace.ir.primitives import ACCUM, ATOMIC, WHILE, Effect
from qdtrace.ir.program import Atom, Eqn, Program, Task, Var
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.type_rules import ACCUM_OPS
from qdtrace.ir.walk import blocks_of
from qdtrace.passes.base import Pass

if TYPE_CHECKING:
    from collections.abc import Iterable


@frozen
class DeadCode(Pass):
    """Removes code that no result depends on."""

    name: ClassVar[str] = "dead_code"

    def __call__(self, program: Program) -> Program:
        """Returns the program without dead code."""
        marks = _Marks(program)
        swept = program.map_tasks(_Sweeper(marks).swept)
        buffers = tuple([b for b in program.buffers if b in marks.live])
        if len(buffers) == len(program.buffers):
            return swept
        initial = {v: value for v, value in program.initial.items() if v in marks.live}
        return replace(swept, buffers=buffers, initial=initial)


def live_variables(program: Program) -> set[Var]:
    """Returns the variables that a result or a check of the program depends on."""
    return _Marks(program).live


class _Marks:
    """The live variables, equations and tasks: those that a result or a check of the program depends on."""

    def __init__(self, program: Program) -> None:
        self.live: set[Var] = set()
        self.live_eqns: set[Eqn] = set()
        self.pending: list[Var] = []
        self.origin: dict[Var, tuple[Eqn, int]] = {}
        self.parent: dict[Eqn, Eqn | Task] = {}
        self.writers: dict[Atom, list[Eqn]] = {}
        self.live_tasks: set[Task] = set()
        self.checks: list[Eqn] = []
        for task in program.tasks:
            for block in blocks_of(task):
                self._enter(block.eqns, task)
        self._mark(program.results)
        for eqn in self.checks:
            self._mark_eqn(eqn)
        while self.pending:
            self._spread(self.pending.pop())

    def _enter(self, eqns: Iterable[Eqn], parent: Eqn | Task) -> None:
        parents, origin = self.parent, self.origin
        for eqn in eqns:
            parents[eqn] = parent
            for k, var in enumerate(eqn.outvars):
                origin[var] = eqn, k
            for inner in eqn.blocks:
                for k, var in enumerate(carried_params(eqn, inner) if eqn.primitive.loops else ()):
                    origin[var] = eqn, k
                self._enter(inner.eqns, eqn)
            if eqn.primitive.writes:
                self.writers.setdefault(eqn.invars[0], []).append(eqn)
            elif Effect.CHECK in eqn.primitive.effects:
                self.checks.append(eqn)

    def _mark(self, atoms: Iterable[Atom]) -> None:
        live = self.live
        for atom in atoms:
            if atom.__class__ is Var and atom not in live:
                live.add(atom)  # type: ignore[arg-type]
                self.pending.append(atom)  # type: ignore[arg-type]

    def _spread(self, var: Var) -> None:
        if (found := self.origin.get(var)) is not None:
            eqn, k = found
            if eqn not in self.live_eqns:
                self._mark_eqn(eqn)
            if eqn.blocks:
                carry = carry_of(eqn, k)
                self._mark((carry.outvar, *carry.results))
                if carry.initial is not None:
                    self._mark((carry.initial,))
        for eqn in self.writers.get(var, ()):
            self._mark_eqn(eqn)

    def _mark_eqn(self, eqn: Eqn) -> None:
        """Marks an equation, the control flow around it and its operands (initial carries only if they are read)."""
        node: Eqn | Task | None = eqn
        while node is not None and node not in self.live_eqns and node not in self.live_tasks:
            if isinstance(node, Task):
                self.live_tasks.add(node)
                self._mark((node.start, node.stop))
                return
            self.live_eqns.add(node)
            self._mark(node.control if node.blocks else node.invars)
            if node.primitive is WHILE:
                self._mark(node.blocks[0].results)
            node = self.parent.get(node)


class _Sweeper(Rebuilder):
    """Rebuilds tasks from their live equations."""

    def __init__(self, marks: _Marks) -> None:
        super().__init__()
        self._marks = marks

    def swept(self, task: Task) -> Task | None:
        """Returns the task without dead code, or None if all of it is dead."""
        return self.rebuild_task(task) if task in self._marks.live_tasks else None

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation if it is live, without its dead carries."""
        marks = self._marks
        if eqn not in marks.live_eqns:
            return
        if eqn.blocks:
            eqn = with_carries(self.rebuild_eqn(eqn), [c for c in carries_of(eqn) if c.outvar in marks.live])
        elif eqn.primitive is ATOMIC and eqn.outvars[0] not in marks.live:
            eqn = _without_old_value(eqn)
        self.append(eqn)


def _without_old_value(eqn: Eqn) -> Eqn:
    if eqn.params["op"] not in ACCUM_OPS:
        return eqn
    return Eqn(ACCUM, eqn.invars, (), {"op": eqn.params["op"]}, (), eqn.loc)
