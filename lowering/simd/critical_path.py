"""The critical path of a loop, as a number of vectors side by side that would hide its latency.

An iteration cannot begin before the values that it carries are there. The longest chain of operations from a carried
value to its next value takes `LATENCY` cycles per operation; all operations together keep the ports busy for
`1 / PORTS` cycles each. While one vector waits, others compute.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from qdtrace.ir.primitives import ADD, CELL, DIV, FOR, LOAD, MUL, SQRT, SUB
from qdtrace.ir.program import Literal, Var
from qdtrace.ir.walk import used_in_block, walk_inside

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qdtrace.ir.program import Atom, Block, Eqn

LATENCY = 4
"""Cycles of latency of an addition or multiplication."""
PORTS = 2
"""Operations that can begin in one cycle."""
GATHER, SLOW_GATHER = 20, 80
"""The cost of a gather in operations, also where it takes as much as loads one by one."""
DIVISION = 20
"""Further operations that could begin while a division or square root of 512 bits of floats keeps its port busy."""
_FUNCTION_SIZE = 20
"""Number of operations of a maths function."""


def vectors_to_fill(loops: Iterable[Eqn], varying: frozenset[Var]) -> float:
    """Returns the vectors side by side that the loop with the longest wait could use; 0 if nothing waits."""
    paths = [_Paths(varying, loop) for loop in loops]
    return max([0.0, *(LATENCY * PORTS * p.length / p.operations for p in paths if p.operations)])


def cycles(varying: frozenset[Var], loop: Eqn, vectors: int, division: int = DIVISION, gather: int = GATHER) -> float:
    """Returns the cycles of a loop's iteration per vector, with so many side by side, by latency or by work."""
    paths = _Paths(varying, loop)
    made = [e for e in walk_inside(loop) if e.outvars and e.outvars[0] in varying]
    gathers = sum(e.primitive is LOAD for e in made)
    divisions = sum(e.primitive in (DIV, SQRT) and e.outvars[0].dtype.is_float for e in made)
    operations = paths.operations + gather * gathers + division * divisions
    return max(operations / PORTS, LATENCY * paths.length / vectors, 1.0)


class _Paths:
    """Counts the operations of one loop and the longest chain of them between carried values.

    A product that only one sum uses is part of that sum (a fused operation).
    """

    def __init__(self, varying: frozenset[Var], loop: Eqn) -> None:
        self.operations = 0
        self._varying = varying
        self._uses = Counter(v for block in loop.blocks for v in used_in_block(block))
        self._length: dict[Var, int] = {}
        """Length of the chain from a carried value to each variable that depends on one."""
        self._fused: dict[Var, int] = {}
        for block in loop.blocks:
            # the number of a trip is known: what follows from it alone waits for nothing
            self._length.update(dict.fromkeys(block.params[loop.primitive is FOR :], 0))
            self._visit(block)
        self.length = max([self._of(a) for a in loop.blocks[-1].results], default=-1)

    def _of(self, atom: Atom) -> int:
        return -1 if isinstance(atom, Literal) else self._length.get(atom, -1)

    def _visit(self, block: Block) -> None:
        for eqn in block.eqns:
            if eqn.blocks:
                for inner in eqn.blocks:
                    self._visit(inner)
                condition = self._of(eqn.invars[0])
                self.operations += len(eqn.outvars)
                giving = eqn.blocks[-1:] if eqn.primitive.loops else eqn.blocks  # the test of a `while` has none
                for out, *results in zip(eqn.outvars, *[b.results for b in giving], strict=True):
                    self._note(out, max(condition, *map(self._of, results)), 1)
            elif eqn.outvars and eqn.outvars[0] in self._varying and eqn.primitive is not CELL:
                self._operation(eqn)

    def _operation(self, eqn: Eqn) -> None:
        out, prim = eqn.outvars[0], eqn.primitive
        longest = max(map(self._of, eqn.invars), default=-1)
        if prim in (ADD, SUB):
            # one of the products is fused with the sum
            for factor in eqn.invars:
                if isinstance(factor, Var) and factor in self._fused:
                    others = [self._of(a) for a in eqn.invars if a is not factor]
                    longest = max([self._fused[factor], *others])
                    self.operations -= 1
                    break
        elif prim is MUL and out.dtype.is_float and self._uses[out] == 1:
            self._fused[out] = longest
        self.operations += _FUNCTION_SIZE if prim.is_function else prim.latency
        self._note(out, longest, prim.latency)

    def _note(self, var: Var, longest: int, length: int) -> None:
        if longest >= 0:
            self._length[var] = longest + length
