"""Plans undo logs (`undo_log`): in which loops they are possible, and what they must keep.

A plan is for one array and one block that is not in a swept loop: either the walk back undoes all stores to the array
in the block's loops, or none. Where it undoes none, the body of a loop inside may have a plan of its own: the walk back
then begins each iteration of that loop from a copy of the array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.autodiff.loops.trip_counts import is_counted
from qdtrace.autodiff.undo_log import Site, UndoLog, positions_of
from qdtrace.ir.memory import loaded, reference, written
from qdtrace.ir.primitives import ATOMIC, BOUND, FOR, LOAD, WHILE
from qdtrace.ir.program import Literal, Var, is_global
from qdtrace.ir.types import DType
from qdtrace.ir.walk import bound_in_block, walk_all, walk_eqns, walk_inside, walk_nested

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.analysis.index.most_trips import MostTrips
    from qdtrace.analysis.machine import ReverseLimits
    from qdtrace.ir.program import Atom, Block, Eqn, Task


class Planner:
    """Plans the undo logs of one task."""

    def __init__(self, task: Task, most: MostTrips, limits: ReverseLimits, room: Callable[[], int]) -> None:
        """`room` returns the most bytes of all logs in place of copies, which thin."""
        self.most = most
        self.limits = limits
        self._room = room
        self._used = 0
        self._changed = set(written(walk_eqns(task.body)))
        self.log = UndoLog(defined={v: e for v, e in task.definitions.items() if not e.blocks})

    def plan(self, array: Var, block: Block, pays: Callable[[int], bool], room: int = 0) -> bool:
        """Plans the logs of an array for the loops of a block, if they are possible and `pays` agrees.

        All logs may have `room` bytes at least: those of a tape in place of this one, which does not thin either.
        """
        level = level_of(block)
        used = [e for e in level if e.primitive.loops and any(array in i.invars for i in walk_inside(e))]
        reading = [e for e in used if array in loaded(walk_inside(e))]
        if not reading:
            return False
        # Nothing needs the array as it was in front of the first loop that reads it.
        behind = level[level.index(reading[0]) :]
        sites: list[Site] = []
        for loop in (e for e in behind if e.primitive.loops and array in written(walk_inside(e))):
            found = self._sites(array, loop)
            if found is None:
                return False
            sites += found
        total = sum(site.nbytes for site in sites)
        known = self.log.sites
        if any(s.eqn in known and known[s.eqn].loops[0] is not s.loops[0] for s in sites):
            return False  # of another array, whose log is for another loop
        if not sites or not pays(total) or self._used + total > max(self._room(), room):
            return False
        self._used += total
        for site in sites:
            known.setdefault(site.eqn, site)
        stores = (e for e in (*behind, *(s.eqn for s in sites)) if e.primitive.writes and reference(e) is array)
        self.log.stores.update(stores)
        for loop in used:
            for inner in (e for e in walk_all([loop]) if e.primitive.loops):
                self.log.covered.setdefault(inner, set()).add(array)
        return True

    def _sites(self, array: Var, outer: Eqn) -> list[Site] | None:
        """Returns what is kept of the stores to an array in a loop; None if they cannot be undone."""
        *tests, body = outer.blocks
        if not self._is_numbered(outer) or any(array in written(walk_eqns(b)) for b in tests):
            return None
        made = {v for b in outer.blocks for v in bound_in_block(b)}
        again: dict[Var, bool] = {e.index: True for e in walk_all([outer]) if e.primitive is FOR}

        def is_again(atom: Atom) -> bool:
            """Returns whether the walk back can compute a value from the numbers of iterations."""
            if isinstance(atom, Literal) or atom not in made:
                return True
            if atom not in again:
                eqn = self.log.defined.get(atom)
                again[atom] = eqn is not None and self._is_pure(eqn) and all(is_again(a) for a in eqn.invars)
            return again[atom]

        found: list[Site] = []
        for eqn, around in walk_nested(body):
            if array not in written(walk_all([eqn])):
                continue
            if eqn.primitive in (WHILE, ATOMIC) or (eqn.primitive is FOR and not self._is_numbered(eqn)):
                return None
            loops = (outer, *(e for e in around if e.primitive.loops))
            shape = tuple(max(1, self.most.of(loop) or 0) for loop in loops)
            kept = tuple(k for k in positions_of(eqn) if not is_again(eqn.invars[k]))
            found.append(Site(eqn, loops, shape, kept))
        return found

    def _is_numbered(self, loop: Eqn) -> bool:
        """Returns whether an iteration of a loop has a number that both the sweep and the walk back know."""
        if self.most.of(loop) is None or (self.limits.steps > 1 and not is_counted(loop)):
            return False
        if loop.primitive is WHILE:
            return True
        step = loop.step
        return isinstance(step, Literal) and int(step.value) != 0 and step.dtype in (DType.i32, DType.i64)

    def _is_pure(self, eqn: Eqn) -> bool:
        """Returns whether an equation gives the same values again from the same operands."""
        if eqn.primitive is LOAD:
            return is_global(eqn.invars[0]) and eqn.invars[0] not in self._changed
        return eqn.primitive is BOUND or not eqn.primitive.effects


def level_of(block: Block) -> list[Eqn]:
    """Returns the equations of a block and of its branches, without those inside of loops, in program order."""
    return [e for e, around in walk_nested(block) if not any(o.primitive.loops for o in around)]
