"""The choice of residuals: contents of memory between tasks that the reverse of a program reads.

A tangent and its transpose have the same coefficients. So what the tangents of a task are computed from, if the task
finds the contents in memory of its own, is what its reverse reads. It is the same for every machine: where a loop keeps
its states decides how often memory is read, not whether.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from qdtrace.analysis.cost import has_open_loop, work
from qdtrace.analysis.machine import CPU
from qdtrace.autodiff.activity import active_variables
from qdtrace.autodiff.loops.cut import with_cut_loops
from qdtrace.autodiff.residuals import Given, Unchecked, moments_found
from qdtrace.autodiff.rows import with_private_rows
from qdtrace.autodiff.transpose import primal_keeping
from qdtrace.autodiff.write_once import settled
from qdtrace.autodiff.zeros import zeros_of
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import LOAD
from qdtrace.ir.program import literal, ref_type
from qdtrace.ir.types import DType
from qdtrace.passes.dead_code import live_variables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qdtrace.autodiff.residuals import Moment
    from qdtrace.autodiff.volatile import Accesses
    from qdtrace.ir.program import Eqn, Program, Task, Var

LIGHT = 16
"""Most operations an element of a content that is made again: about the time of writing it to memory and reading it."""


def moments_read(program: Program, linear: Sequence[Var]) -> tuple[Moment, ...]:
    """Returns the moments whose contents the transpose of a program in the `linear` parameters reads."""
    active = active_variables(program, linear, program.results)
    moments = moments_found(program, active)
    if not moments:
        return ()
    given, zero = Given(program, moments), zeros_of(program, linear, active)
    program = with_private_rows(with_cut_loops(program), lambda: zero, CPU.reverse.open_stack_bytes)
    tasks: list[Task] = []
    for k, task in enumerate(program.tasks):
        used = task.refs
        if active.isdisjoint(used):
            continue  # all that other tasks find of what it writes is given
        primal = [ref for ref in used if ref not in active]
        before, behind = ({ref: given.content(n, ref) or ref for ref in primal} for n in (k, k + 1))
        tasks.append(_Reads(settled(task, zero), before, behind).rebuild_task(task))
    read = live_variables(replace(program, tasks=tuple(tasks)))
    return tuple(moment for moment, v in given.params.items() if v in read)


def is_made_again(program: Program, linear: Sequence[Var], moment: Moment) -> bool:
    """Returns whether light tasks make a content of the parameters, such as a copy with few changes: they run again.

    A `lax.scan` around the call keeps a content that the call returns at each step, though a large argument that it is
    made of may be the same at all steps.
    """
    tasks = tuple(Unchecked().rebuild_task(task) for task in program.tasks)
    made = primal_keeping(replace(program, tasks=tasks, results=()), linear, (moment,))
    if any(map(has_open_loop, made.tasks)):
        return False
    (content,) = made.results
    return sum(work(task) for task in made.tasks) <= LIGHT * prod(ref_type(content).shape)


class _Reads(Unchecked):
    """Makes a task read the contents that its reverse reads, and write what it reads again."""

    def __init__(self, found: Accesses, before: Mapping[Var, Var], behind: Mapping[Var, Var]) -> None:
        super().__init__()
        self._found, self._before, self._behind = found, before, behind

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation, with given contents in place of memory if it is an access."""
        ref = reference(eqn) if eqn.primitive.is_access else None
        if ref is None or ref not in self._before:
            super().visit(eqn)
        elif eqn.primitive is not LOAD:
            if ref in self._found.volatile:
                self._access(eqn, self._before[ref])
        elif (load := self._found.found.get(eqn)) is None or not load.may_be_behind:
            self._access(eqn, self._before[ref])
        elif load.compared is None:
            self._access(eqn, self._behind[ref])
        else:
            at = self.atoms(indices_of(eqn))
            either = [self.load(memory[ref], *at) for memory in (self._before, self._behind)]
            self.env[eqn.outvar] = self("select", literal(True, DType.bool), *either)

    def _access(self, eqn: Eqn, memory: Var) -> None:
        made = self.rebuild_eqn(eqn)
        self.append(replace(made, invars=(memory, *made.invars[1:])))
