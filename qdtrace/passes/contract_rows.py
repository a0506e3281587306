"""Contraction in loops: a private array is a row of the trips if each trip of a loop uses a row of its own.

Before:  a: cell[f32,8x3] = cell[...]          After:  for k in 0:i32 : 8:i32 : 1:i32
         for k in 0:i32 : 8:i32 : 1:i32                  a: cell[f32,3] = cell[...]
           ... accesses of a at k and m                  ... accesses of a at m

Applies to arrays that one loop alone touches, of the block that they are made in, with the index of the loop in one
place of their indices. Trips then touch different rows, which are undefined until they are stored to: in the loop as
before. Loops inside are next, so that an array of a nest may become a single element, which is a value
(`mem2reg`). Loops that `fuse_loops` has put together hand their arrays on in this way; on a CPU, whose loops over rows
are vectors, it has no nests to put together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.machine import CPU
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import CELL, FOR
from qdtrace.ir.program import Eqn, Var, ref_type
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import RefType, Space
from qdtrace.ir.walk import used_vars, walk_inside
from qdtrace.passes.base import TaskPass
from qdtrace.passes.contract import Cell, WithCells

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.analysis.machine import Machine
    from qdtrace.ir.program import Program, Task


@frozen
class ContractRows(TaskPass):
    """Moves private arrays into the loops whose trips use a row each."""

    name: ClassVar[str] = "contract_rows"
    machine: Machine = CPU

    def on_task(self, task: Task, program: Program) -> Task:
        if self.machine.keeps_rows or not any(e.primitive is CELL for e in task.body.eqns):
            return task
        return task.rebuilt(_Mover().rebuild_block(task.body))


class _Mover(Rebuilder):
    def rebuild_eqns(self, eqns: Sequence[Eqn]) -> tuple[Eqn, ...]:
        """Returns the equations with arrays moved into loops, from outside to inside."""
        made = {e.outvars[0]: e for e in eqns if e.primitive is CELL and ref_type(e.outvars[0]).shape}
        users: dict[Var, list[Eqn]] = {ref: [] for ref in made}
        for eqn in eqns if made else ():
            for ref in made.keys() & set(used_vars(eqn)):
                users[ref].append(eqn)
        rows: dict[Eqn, dict[Var, Cell]] = {}
        for ref, found in users.items():
            axis = _own_axis(found[0], ref) if len(found) == 1 else None
            if axis is not None:
                kind = ref_type(ref)
                kept = tuple([d for d in range(kind.ndim) if d != axis])
                cell = Var(RefType(kind.dtype, tuple([kind.shape[d] for d in kept]), Space.LOCAL), ref.hint)
                rows.setdefault(found[0], {})[ref] = Cell(cell, kept)
        moved = {ref for cells in rows.values() for ref in cells}
        left = [_with_rows(e, rows[e]) if e in rows else e for e in eqns if moved.isdisjoint(e.outvars)]
        return super().rebuild_eqns(left)


def _own_axis(eqn: Eqn, ref: Var) -> int | None:
    """Returns the axis of an array along which each trip of an equation, a loop, has an element; None if none is."""
    if eqn.primitive is not FOR:
        return None
    users = [e for e in walk_inside(eqn) if ref in e.invars]
    if not all(e.primitive.is_access and reference(e) is ref for e in users):
        return None
    axes = (d for d in range(ref_type(ref).ndim) if all(indices_of(e)[d] is eqn.index for e in users))
    return next(axes, None)


def _with_rows(loop: Eqn, rows: dict[Var, Cell]) -> Eqn:
    """Returns a loop whose trips begin with arrays of their own."""
    (body,) = WithCells(rows).rebuild_eqn(loop).blocks
    made = [cell.allocation(loop.loc) for cell in rows.values()]
    return loop.rebuilt(loop.invars, (body.rebuilt((*made, *body.eqns)),), loop.outvars)
