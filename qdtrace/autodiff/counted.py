"""A `while` that does nothing but count becomes a `for`, whose number of iterations is known in front of it.

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

from qdtrace.analysis.index.induction import raised_by
from qdtrace.ir.carries import carries_of, with_carries
from qdtrace.ir.primitives import FOR, GT, LT, WHILE
from qdtrace.ir.program import Var, literal
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import DType
from qdtrace.ir.walk import bound_in_block

if TYPE_CHECKING:
    from qdtrace.ir.program import Atom, Eqn, Program


def with_counted_loops(program: Program) -> Program:
    """The program, with every such loop a `for`."""
    return replace(program, tasks=tuple(_Counted().rebuild_task(task) for task in program.tasks))


class _Counted(Rebuilder):
    def visit(self, eqn: Eqn) -> None:
        """Appends what an equation becomes."""
        found = _counter(eqn) if eqn.primitive is WHILE else None
        if found is None:
            super().visit(eqn)
            return
        number, bound = found
        counter = carries_of(eqn)[number]
        made = self.rebuild_eqn(with_carries(eqn, [c for k, c in enumerate(carries_of(eqn)) if k != number]))
        assert counter.initial is not None
        start, stop = self.atoms((counter.initial, bound))
        body = made.blocks[1]
        block = replace(body, params=(counter.params[1], *body.params))
        invars = (start, stop, literal(1, stop.dtype), *made.invars)
        self.append(replace(made, primitive=FOR, invars=invars, blocks=(block,)))
        self.loc = eqn.loc
        self.env[counter.outvar] = self("max", start, stop)


def _counter(loop: Eqn) -> tuple[int, Atom] | None:
    """The number of the carry that alone is tested, as it is below a bound and each iteration adds 1; and the bound."""
    test, body = loop.blocks
    if len(test.eqns) != 1 or test.eqns[0].outvars != test.results:
        return None
    prim, operands = test.eqns[0].primitive, test.eqns[0].invars
    if prim not in (LT, GT):
        return None
    value, bound = operands if prim is LT else operands[::-1]
    if value not in test.params or (isinstance(bound, Var) and bound in set(bound_in_block(test))):
        return None
    number = test.params.index(value)
    by = raised_by(loop).get(body.params[number])
    if by is None or by.value != 1 or bound.dtype not in (DType.i32, DType.i64):
        return None
    return number, bound
