"""Loops that the walk back passes by: they have no adjoints, and nobody reads again what they leave in memory.

    for k in 0:i32 : 16:i32 : 1:i32        a factorisation: its derivative is a rule, which reads the factor
      ...
      store a v i k                        the walk back undoes these stores if code in front of the loop reads `a`

Such a loop runs once, in the sweep, and keeps nothing.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from qdtrace.ir.memory import read, written
from qdtrace.ir.primitives import CELL
from qdtrace.ir.program import is_local
from qdtrace.ir.walk import walk_all, walk_eqns

if TYPE_CHECKING:
    from collections.abc import Collection

    from qdtrace.autodiff.tape import Tape
    from qdtrace.ir.program import Block, Eqn, Task, Var


class Passed:
    """Says of each loop of a task whether the walk back passes it by."""

    def __init__(self, task: Task, active: Collection[Var], tape: Tape) -> None:
        self._task = task
        self._active = active
        self._tape = tape
        self._known: dict[Eqn, bool] = {}
        self._read: dict[Eqn, set[Var]] = {}

    def __contains__(self, eqn: Eqn) -> bool:
        if eqn not in self._known:
            self._known[eqn] = not self._has_adjoints(eqn) and not self._restores(eqn)
        return self._known[eqn]

    def _has_adjoints(self, eqn: Eqn) -> bool:
        return any(v in self._active for e in walk_all([eqn]) for v in (*e.outvars, *e.invars))

    def _restores(self, eqn: Eqn) -> bool:
        """Returns whether the walk back over what is in front of a loop needs private memory as it was there."""
        if self._tape.is_used_in(eqn):
            return True
        return any(is_local(ref) and self._is_read_before(ref, eqn) for ref in set(written(walk_all([eqn]))))

    def _is_read_before(self, ref: Var, eqn: Eqn) -> bool:
        """Returns whether the walk back may read an array again that a loop writes, in front of the loop.

        What is in an iteration of a loop around it is in front of the iteration before, too.
        """
        (block, at), (home, made) = self._places[eqn], self._cells.get(ref, (None, 0))
        if home is not block:
            return True
        between = (e for e in block.eqns[made:at] if ref in self._reads(e))
        return any(not e.primitive.loops or e not in self for e in between)

    def _reads(self, eqn: Eqn) -> set[Var]:
        """Returns the references that an equation reads, also inside."""
        if eqn not in self._read:
            self._read[eqn] = set(read(walk_all([eqn])))
        return self._read[eqn]

    @cached_property
    def _places(self) -> dict[Eqn, tuple[Block, int]]:
        """The block of each equation, and its position there."""
        blocks = [self._task.body, *(block for e in walk_eqns(self._task.body) for block in e.blocks)]
        return {e: (block, k) for block in blocks for k, e in enumerate(block.eqns)}

    @cached_property
    def _cells(self) -> dict[Var, tuple[Block, int]]:
        """The same of each private array's allocation."""
        return {e.outvar: place for e, place in self._places.items() if e.primitive is CELL}
