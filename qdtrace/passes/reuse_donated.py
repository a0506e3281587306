"""Donated arguments: a result that may have the memory of a parameter becomes that parameter if no value changes.

Before:  program p(x: ref[f32,8])              After:  program p(x: ref[f32,8])
           buffer y: ref[f32,8] in x                     range_for i in 0:i32 : 8:i32
           range_for i in 0:i32 : 8:i32                    a: f32 = load x i
             a: f32 = load x i                             b: f32 = mul a a
             b: f32 = mul a a                              store x b i
             store y b i                                 return x
           return y

XLA gives a donated argument and the result of its type one piece of memory. What is computed elsewhere it has to copy
there; a parameter that is written is updated in place. The marks (`in x`) are set where a function is staged.

`x` must be dead when `y` is written: no task writes `x`, it is no result, and all tasks that use it come before
those that use `y`. One task may use both if it reads `x` and only loads and stores `y` there; different iterations
never meet, and in each iteration loads that may be of the element come before its store, see
`analysis/in_place`. A head that reads `x` may run at any time, so such a task may not use both. A buffer with an
initial value has it before the first task, where `x` has its content; it stays.

One of the last passes, because fusion and the memory pass take `x` and `y` as different memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.in_place import reads_come_first
from qdtrace.frozen import frozen
from qdtrace.ir.memory import written
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.passes.base import Pass

if TYPE_CHECKING:
    from qdtrace.ir.program import Atom, Program, Var


@frozen
class ReuseDonated(Pass):
    """Puts results into the memory of donated arguments."""

    name: ClassVar[str] = "reuse_donated"

    def __call__(self, program: Program) -> Program:
        """Returns the program with parameters in place of marked buffers, or the same object if there are none."""
        donated = program.donated_from.items()
        marked = {b: p for b, p in donated if p not in program.results and b not in program.initial}
        if not marked:
            return program
        uses = _Uses(program, {*marked, *marked.values()})
        env: dict[Var, Atom] = {b: p for b, p in marked.items() if uses.may_share(b, p)}
        if not env:
            return program
        return replace(
            program,
            buffers=tuple([b for b in program.buffers if b not in env]),
            tasks=tuple(map(Rebuilder(env).rebuild_task, program.tasks)),
            results=tuple([marked[r] if r in env else r for r in program.results]),
            donated_from={b: p for b, p in program.donated_from.items() if b not in env},
        )


class _Uses:
    """The first and the last task that use each of some references, and all written references."""

    def __init__(self, program: Program, refs: set[Var]) -> None:
        self.tasks = program.tasks
        self.first: dict[Var, int] = {}
        self.last: dict[Var, int] = {}
        self.written: set[Var] = set()
        for number, task in enumerate(program.tasks):
            for ref in task.refs:
                if ref in refs:
                    self.first.setdefault(ref, number)
                    self.last[ref] = number
            self.written.update(written(task.all_eqns))

    def may_share(self, buffer: Var, param: Var) -> bool:
        """Returns whether the content of the parameter is dead before the first store to the buffer."""
        if param in self.written:
            return False
        last, first = self.last.get(param, -1), self.first.get(buffer, len(self.tasks))
        return last < first or (last == first and reads_come_first(self.tasks[last], param, buffer))
