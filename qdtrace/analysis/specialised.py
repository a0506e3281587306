"""Estimates a body with an index made constant: choices by it disappear, and private arrays become scalars.

    p: bool = le k 0:i32           k = 0:   a: f32 = mul 0.2:f32 c
    t: f32 = select p 0.2:f32 0.3:f32
    a: f32 = mul t c

The row of a table that a traced index takes is a chain of selects (`trace/importer`); so is the place that it writes.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from qdtrace.frozen import mutable
from qdtrace.ir.memory import first_index
from qdtrace.ir.primitives import AND, ATOMIC, OR, SELECT
from qdtrace.ir.program import Atom, Block, Literal, Var, is_local
from qdtrace.ir.walk import walk_eqns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qdtrace.ir.program import Eqn


@mutable(slots=True)
class Specialised:
    """A body when some of its variables are constants."""

    constants: set[Atom]
    size: int = 0
    """Operations that remain in its code."""
    kept: set[Atom] = field(default_factory=set[Atom])
    """Private arrays with an access at an index that is no constant."""

    def visit(self, block: Block) -> None:
        """Counts the operations that remain in a block."""
        self.size = sum([eqn.primitive.cost for eqn in walk_eqns(block) if eqn.blocks or not self._goes(eqn)])

    def _goes(self, eqn: Eqn) -> bool:
        """Returns whether an equation needs no code; records its results if they are constants."""
        prim = eqn.primitive
        known = [isinstance(a, Literal) or a in self.constants for a in eqn.invars]
        if eqn.primitive.values is not None:
            local = is_local(eqn.invars[0])
            goes = local and prim is not ATOMIC and all(known[first_index(eqn) :])
            if local and not goes:
                self.kept.add(eqn.invars[0])
            return goes
        if eqn.primitive.effects:
            return False
        if all(known):
            self.constants.update(eqn.outvars)
            return True
        if prim is SELECT and known[0]:
            return True
        return prim in (AND, OR) and eqn.outvars[0].dtype.bits == 1 and any(known)


def specialised(block: Block, known: Iterable[Var]) -> Specialised:
    """Returns the size of a block, and the private arrays it keeps, if these variables are constants."""
    found = Specialised(set(known))
    found.visit(block)
    return found
