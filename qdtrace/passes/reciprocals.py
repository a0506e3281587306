"""Reciprocals: many divisions by one value become one division and multiplications.

Before:  for k in 0:i32 : n : 1:i32          After:  for k in 0:i32 : n : 1:i32
           r: f32 = load w k                           r: f32 = load w k
           q: f32 = div x r                            c: f32 = div 1.0:f32 r
           accum[op=add] y q i                         q: f32 = quotient x r c
                                                       accum[op=add] y q i

If all lanes share `r` (`analysis/uniformity`), the remaining division is one of scalars; if the loop does not change
`r`, `motion` moves it in front of the loop; if a block divides by `r` twice, there is one less. A
`quotient` has the value of the division, but may be rounded once more; for a divisor whose reciprocal is no normal
number it divides (`lowering/llvm/quotients`). So it needs `fast_math`. Quotients that are rounded to whole numbers
stay, as their last bit decides, and so do floats of 16 bits, which are divided as f32.

Measured on the CPU with AVX-512, `acc + max(1 - x / r, 0)` in a loop: 0.25 of the time with the division, 1.04 of
that with a reciprocal in the program. Corrected by two fused operations, so that nearly all quotients have the bits
of the division, it takes 1.7 times as long; so it is not. The components of a vector by its length: 0.6 of the time
for two, 0.4 for eight.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.uniformity import analyse_uniformity
from qdtrace.frozen import frozen
from qdtrace.ir.primitives import CONVERT, DIV, QUOTIENT
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Program, Task, Var, literal
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import DType
from qdtrace.ir.walk import bound_in_block, walk_eqns
from qdtrace.passes.base import TaskPass
from qdtrace.rules.floats import is_whole

if TYPE_CHECKING:
    from qdtrace.analysis.uniformity import Uniformity

_DTYPES = (DType.f32, DType.f64)
OFTEN = 2
"""Number of divisions by one value in a block from which on its reciprocal pays."""


@frozen
class Reciprocals(TaskPass):
    """Turns divisions by values that lanes or iterations of a loop share into quotients."""

    name: ClassVar[str] = "reciprocals"

    fast_math: bool = True

    def on_task(self, task: Task, program: Program) -> Task:
        if not self.fast_math or not any(_may_change(e) for e in walk_eqns(task.body)):
            return task
        return task.rebuilt(_Divider(task).rebuild_block(task.body))


def _decides(eqn: Eqn) -> bool:
    return eqn.primitive.gives_whole or (eqn.primitive is CONVERT and not eqn.outvars[0].dtype.is_float)


def _may_change(eqn: Eqn) -> bool:
    if eqn.primitive is not DIV or eqn.outvars[0].dtype not in _DTYPES:
        return False
    return isinstance(eqn.invars[0], Var) and isinstance(eqn.invars[1], Var)


def _is_reciprocal(eqn: Eqn) -> bool:
    return eqn.primitive is DIV and isinstance(eqn.invars[0], Literal) and eqn.invars[0].value == 1


class _Divider(Rebuilder):
    def __init__(self, task: Task) -> None:
        super().__init__()
        self._uniformity: Uniformity = analyse_uniformity(task)
        loops = (e for e in walk_eqns(task.body) if e.primitive.loops)
        self._depth = Counter(v for loop in loops for inner in loop.blocks for v in bound_in_block(inner))
        """Number of loops around the place where a value is bound."""
        self._often: Counter[Atom] = Counter()
        """Number of divisions by each value in the current block."""
        self._decided = {e.invars[0] for e in walk_eqns(task.body) if _decides(e)}
        self._whole = {v for e in task.all_eqns if is_whole(e) for v in e.outvars}

    def rebuild_block(self, block: Block) -> Block:
        """Counts the divisions of a block by each value, then rebuilds it."""
        divisions = [e.invars[1] for e in block.eqns if self._is_free(e) or _is_reciprocal(e)]
        often, self._often = self._often, Counter(divisions)
        rebuilt = super().rebuild_block(block)
        self._often = often
        return rebuilt

    def visit(self, eqn: Eqn) -> None:
        """Appends the equation, or a quotient in place of a division."""
        if not self._is_free(eqn) or not (self._often[eqn.invars[1]] >= OFTEN or self._is_shared(eqn)):
            super().visit(eqn)
            return
        self.loc = eqn.loc
        x, r = eqn.invars
        inverse = self("div", literal(1.0, r.dtype), r)
        self.append(Eqn(QUOTIENT, (x, r, inverse), self.bind(eqn.outvars), {}, (), eqn.loc))

    def _is_free(self, eqn: Eqn) -> bool:
        """Returns whether an equation is a division whose result may be rounded once more."""
        return _may_change(eqn) and eqn.outvars[0] not in self._decided and eqn.invars[0] not in self._whole

    def _is_shared(self, eqn: Eqn) -> bool:
        """Returns whether all lanes, or all iterations of a loop, divide by the same value."""
        x, r = eqn.invars
        assert isinstance(x, Var)
        assert isinstance(r, Var)
        if self._uniformity.is_uniform(r) and not self._uniformity.is_uniform(x):
            return True
        return self._depth[r] < min(self._depth[eqn.outvars[0]], self._depth[x])
