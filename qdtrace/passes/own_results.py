"""Own results: a parameter that one task overwrites whole is a buffer from there on, and its argument is not copied.

Before:  program p(x: ref[f32,8])              After:  program p(x: ref[f32,8])
           range_for i in 0:i32 : 8:i32                  buffer y: ref[f32,8]
             a: f32 = load x i                             range_for i in 0:i32 : 8:i32
             b: f32 = mul a a                                a: f32 = load x i
             store x b i                                     b: f32 = mul a a
           return x                                          store y b i
                                                           return y

XLA copies an argument that somebody still needs before a program may write it, and the caller of a function needs
those that it does not donate. `reuse_donated` is the opposite, for arguments that nobody needs.

The first task that writes `x` must store every element (`analysis/index/definite_stores`) and load none that it has
stored before (`analysis/in_place`). Where the call is lowered decides which parameters nobody gives away
(`compose/needed_operands`), so this is no part of the pipeline.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.in_place import reads_come_first
from qdtrace.analysis.index.definite_stores import filled_by
from qdtrace.frozen import frozen
from qdtrace.ir.memory import reference, written
from qdtrace.ir.primitives import STORE
from qdtrace.ir.program import Var
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import walk_task
from qdtrace.passes.base import Pass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qdtrace.ir.program import Atom, Eqn, Program, Task


@frozen
class OwnResults(Pass):
    """Gives results memory of their own where that saves a copy."""

    params: tuple[Var, ...]
    """The parameters whose arguments are needed after the call."""
    name: ClassVar[str] = "own_results"

    def __call__(self, program: Program) -> Program:
        """Returns the program with buffers in place of overwritten parameters, or the same object if there are none."""
        waiting, own = {*self.params}, dict[Var, Var]()
        tasks: list[Task] = []
        for task in program.tasks:
            found = waiting.intersection(written(walk_task(task)))
            waiting -= found
            if found:
                whole = [v for v in filled_by(task) if v in found and reads_come_first(task, v, v)]
                new = {v: Var(v.type, v.hint) for v in program.params if v in whole}
                tasks.append(_Storing(own, new).rebuild_task(task))
                own.update(new)
            else:
                tasks.append(Rebuilder({**own}).rebuild_task(task) if own else task)
        if not own:
            return program
        buffers, results = (*program.buffers, *own.values()), tuple([own.get(v, v) for v in program.results])
        return replace(program, buffers=buffers, tasks=tuple(tasks), results=results)


class _Storing(Rebuilder):
    """Rebuilds the task that overwrites parameters: its loads are of the argument, its stores of the buffer."""

    def __init__(self, own: Mapping[Var, Atom], new: Mapping[Var, Var]) -> None:
        super().__init__({**own})
        self.new = new

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation, and a store to the buffer instead of the parameter."""
        if eqn.primitive is STORE and (ref := self.new.get(reference(eqn))) is not None:
            self.append(eqn.rebuilt((ref, *self.atoms(eqn.invars[1:])), ()))
        else:
            super().visit(eqn)
