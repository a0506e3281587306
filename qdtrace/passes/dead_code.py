"""Dead code: drops what no result of the program depends on.

Before:  a: f32 = load x i                                  After:  b: f32 = load y i
         b: f32 = load y i                                          accum[op=add] loss b
         p: f32, q: f32 = for k in 0:i32 : n : 1:i32 carry c = b, d = a
           e: f32 = mul c c
           yield e, d
         accum[op=add] loss b

Everything is dead until a result reference asks for it (mark and sweep over values, references, carries and control,
so cycles of carries that only feed themselves go too). What goes: equations nobody reads, carries of loops, results
of `if`, stores to cells and buffers that nobody reads, loops and branches without effect (a `while` without effect is
taken to end), tasks that write nothing anybody reads, unused buffers. An `atomic` whose old value nobody reads
becomes an `accum`. Linear in the size of the program. Never drops a parameter: the caller passes them by position.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

from qdtrace.ir.primitives import ACCUM_OPS, PRIMITIVES, WRITES, Effect
from qdtrace.ir.program import Atom, Block, Eqn, Program, Task, Var
from qdtrace.passes.base import Pass

if TYPE_CHECKING:
    from collections.abc import Iterable

_Item = TypeVar("_Item", Var, Atom)
_ACCUM = PRIMITIVES["accum"]


@dataclass(frozen=True)
class DeadCode(Pass):
    """Drops what no result depends on."""

    name: ClassVar[str] = "dead_code"

    def __call__(self, program: Program) -> Program:
        """The program without dead code."""
        marks = _Marks(program)
        changed = False
        tasks: list[Task] = []
        for task in program.tasks:
            swept = marks.sweep_task(task)
            changed = changed or swept is not task
            if swept is not None:
                tasks.append(swept)
        live = marks.live
        buffers = tuple([b for b in program.buffers if b in live])
        if not changed and len(buffers) == len(program.buffers):
            return program
        initial = {v: value for v, value in program.initial.items() if v in live}
        return replace(program, tasks=tuple(tasks), buffers=buffers, initial=initial)


class _Marks:
    """Which variables and equations some result of the program depends on."""

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
            for eqn in task.head:
                if Effect.CHECK in eqn.primitive.effects:
                    self.checks.append(eqn)
                    self.parent[eqn] = task
                for k, var in enumerate(eqn.outvars):
                    self.origin[var] = eqn, k
                for block in eqn.blocks:
                    self._enter(block, eqn)
            self._enter(task.body, task)
        self._mark(program.results)
        for eqn in self.checks:
            self._mark_eqn(eqn)
        while self.pending:
            self._spread(self.pending.pop())

    def _enter(self, block: Block, parent: Eqn | Task) -> None:
        origin, parents = self.origin, self.parent
        for eqn in block.eqns:
            parents[eqn] = parent
            for k, var in enumerate(eqn.outvars):
                origin[var] = eqn, k
            if eqn.blocks:
                first = 1 if eqn.primitive.name == "for" else 0
                for inner in eqn.blocks:
                    for k, var in enumerate(inner.params[first:]):
                        origin[var] = eqn, k
                    self._enter(inner, eqn)
            elif eqn.primitive.effects:
                if not WRITES.isdisjoint(eqn.primitive.effects):
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
            self._mark_eqn(eqn)
            if eqn.blocks:
                name = eqn.primitive.name
                self._mark((eqn.outvars[k],))
                if name == "if":
                    self._mark([b.results[k] for b in eqn.blocks])
                elif name == "for":
                    self._mark((eqn.blocks[0].results[k], eqn.invars[3 + k]))
                else:
                    self._mark((eqn.blocks[1].results[k], eqn.invars[k]))
        for eqn in self.writers.get(var, ()):
            self._mark_eqn(eqn)

    def _mark_eqn(self, eqn: Eqn) -> None:
        """Marks an equation, what decides whether it runs, and what it reads (carries only where they are read)."""
        node: Eqn | Task | None = eqn
        while node is not None and node not in self.live_eqns and node not in self.live_tasks:
            if isinstance(node, Task):
                self.live_tasks.add(node)
                self._mark((node.start, node.stop))
                return
            self.live_eqns.add(node)
            name = node.primitive.name
            if name == "for":
                self._mark(node.invars[:3])
            elif name == "while":
                self._mark(node.blocks[0].results)
            else:
                self._mark(node.invars)
            node = self.parent.get(node)

    def sweep_task(self, task: Task) -> Task | None:
        """The task without dead code; None when all of it is dead."""
        if task not in self.live_tasks:
            return None
        head = self._sweep_eqns(task.head)
        body = self._sweep_block(task.body)
        if head is task.head and body is task.body:
            return task
        return replace(task, head=head, body=body)

    def _sweep_block(
        self, block: Block, results: tuple[Atom, ...] | None = None, params: tuple[Var, ...] | None = None
    ) -> Block:
        results = block.results if results is None or len(results) == len(block.results) else results
        params = block.params if params is None or len(params) == len(block.params) else params
        eqns = self._sweep_eqns(block.eqns)
        if eqns is block.eqns and results is block.results and params is block.params:
            return block
        return Block(params, eqns, results)

    def _sweep_eqns(self, eqns: tuple[Eqn, ...]) -> tuple[Eqn, ...]:
        live = self.live_eqns
        changed = False
        kept: list[Eqn] = []
        for eqn in eqns:
            if eqn not in live:
                changed = True
                continue
            swept = eqn
            if eqn.blocks:
                swept = self._sweep_structured(eqn)
            elif eqn.primitive.name == "atomic" and eqn.outvars[0] not in self.live:
                swept = _without_old_value(eqn)
            changed = changed or swept is not eqn
            kept.append(swept)
        return tuple(kept) if changed else eqns

    def _sweep_structured(self, eqn: Eqn) -> Eqn:
        live = self.live
        keep = [v in live for v in eqn.outvars]
        name = eqn.primitive.name
        outvars = eqn.outvars if all(keep) else _where(keep, eqn.outvars)
        if name == "if":
            blocks = tuple([self._sweep_block(b, _where(keep, b.results)) for b in eqn.blocks])
            invars = eqn.invars
        elif name == "for":
            (body,) = eqn.blocks
            params = (body.params[0], *_where(keep, body.params[1:]))
            blocks = (self._sweep_block(body, _where(keep, body.results), params),)
            invars = (*eqn.invars[:3], *_where(keep, eqn.invars[3:]))
        else:
            test, body = eqn.blocks
            blocks = (
                self._sweep_block(test, None, _where(keep, test.params)),
                self._sweep_block(body, _where(keep, body.results), _where(keep, body.params)),
            )
            invars = _where(keep, eqn.invars)
        if outvars is eqn.outvars and all(a is b for a, b in zip(blocks, eqn.blocks, strict=True)):
            return eqn
        return Eqn(eqn.primitive, invars, outvars, eqn.params, blocks, eqn.loc)


def _where(keep: list[bool], items: tuple[_Item, ...]) -> tuple[_Item, ...]:
    return tuple([item for item, kept in zip(items, keep, strict=True) if kept])


def _without_old_value(eqn: Eqn) -> Eqn:
    if eqn.params["op"] not in ACCUM_OPS:
        return eqn
    return Eqn(_ACCUM, eqn.invars, (), {"op": eqn.params["op"]}, (), eqn.loc)
