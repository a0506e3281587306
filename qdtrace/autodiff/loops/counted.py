"""A `while` that only tests a counter becomes a `for`, whose trip count is known before it runs.

    k: i32, v: f32 = while carry a = 0:i32, c = x              v: f32 = for a in 0:i32 : n : 1:i32 carry c = x
      p: bool = lt a n                                           b: f32 = mul c c
      test p                                         becomes     yield b
      b: f32 = mul c c                                         k: i32 = max 0:i32 n
      d: i32 = add a 1:i32
      yield d, b

It then runs in segments without a test at each iteration.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.analysis.index.induction import counted_by
from qdtrace.ir.carries import carries_of, with_carries
from qdtrace.ir.primitives import FOR, WHILE
from qdtrace.ir.program import literal
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from qdtrace.analysis.index.trips import CountedLoop
    from qdtrace.ir.program import Eqn, Program


def with_counted_loops(program: Program) -> Program:
    """Returns the program with every such `while` replaced by a `for`."""
    return replace(program, tasks=tuple(_Counted().rebuild_task(task) for task in program.tasks))


class _Counted(Rebuilder):
    def visit(self, eqn: Eqn) -> None:
        """Appends an equation; a `while` that only tests a counter becomes a `for`."""
        found = _counter(eqn) if eqn.primitive is WHILE else None
        if found is None:
            super().visit(eqn)
            return
        number, counts = found
        counter = carries_of(eqn)[number]
        made = self.rebuild_eqn(with_carries(eqn, [c for k, c in enumerate(carries_of(eqn)) if k != number]))
        start, stop = self.atoms((counts.start, counts.stop))
        body = made.blocks[1]
        block = replace(body, params=(counter.params[1], *body.params))
        invars = (start, stop, literal(1, stop.dtype), *made.invars)
        self.append(replace(made, primitive=FOR, invars=invars, blocks=(block,)))
        self.loc = eqn.loc
        self.env[counter.outvar] = self("max", start, stop)


def _counter(loop: Eqn) -> tuple[int, CountedLoop] | None:
    """Returns the number of the carry that counts, and the loop that it counts; None if other carries are tested.

    Each iteration adds 1 to the carry, and the condition is that it is below the bound.
    """
    test = loop.blocks[0]
    found = counted_by(test.eqns[0], loop) if len(test.eqns) == 1 and test.eqns[0].outvars == test.results else None
    return found if found is not None and found[1].stop.dtype in (DType.i32, DType.i64) else None
