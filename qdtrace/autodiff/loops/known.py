"""Gives loops the most iterations that the limits of arrays prove, before a program is differentiated.

    program f(row: ref[i32,1001] in (0, 65536, 256))      program f(row: ref[i32,1001])
      ...                                                    ...
      for k in a : b : 1:i32                                 for[most=256] k in a : b : 1:i32

What is taken as a proof depends on indices inside of the array, of which a derivative makes no checks, so these loops
are cut like all that have the option `most` (`autodiff/loops/cut`). A `while` is cut here, at the bound of its counter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.analysis.index.most_trips import MostTrips
from qdtrace.autodiff.loops.cut import cut_end
from qdtrace.ir.primitives import FOR, WHILE
from qdtrace.ir.program import Literal
from qdtrace.ir.rebuild import Rebuilder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qdtrace.ir.program import Eqn, Program, Task, Var
    from qdtrace.limits import Limits


def with_known_trips(program: Program) -> Program:
    """Returns the program without limits, whose loops have the option `most` where limits prove one."""
    if not program.limits:
        return program
    tasks = tuple(_Known(task, program.limits).rebuild_task(task) for task in program.tasks)
    return replace(program, tasks=tasks, limits={})


class _Known(Rebuilder):
    def __init__(self, task: Task, limits: Mapping[Var, Limits]) -> None:
        super().__init__()
        self._without, self._trips = MostTrips(task), MostTrips(task, limits)

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation; a loop gets the option `most` if the limits of arrays say more than all else."""
        most = self._trips.of(eqn) if eqn.primitive in (FOR, WHILE) else None
        before = None if most is None else self._without.of(eqn)
        if most is None or (before is not None and before <= most):
            super().visit(eqn)
            return
        made = self.rebuild_eqn(eqn)
        if eqn.primitive is WHILE:
            counted = self._trips.ending[eqn]
            if isinstance(counted.stop, Literal):
                self.append(made)
                return
            self.loc = eqn.loc
            test, body = made.blocks
            other = Rebuilder({counted.stop: cut_end(self, counted, most)}).rebuild_block(test)
            made = replace(made, blocks=(other, body))
        self.append(replace(made, params={**made.params, "most": most}))
