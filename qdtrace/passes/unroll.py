"""Unrolling: a `for` over few constant indices becomes that many copies of its body.

Before:  s: f32 = for k in 0:i32 : 2:i32 : 1:i32 carry c = 0.0:f32    After:  a: f32 = load v 0:i32
           a: f32 = load v k                                                   b: f32 = add 0.0:f32 a
           b: f32 = add c a                                                    a_1: f32 = load v 1:i32
           yield b                                                             s: f32 = add b a_1

The index is then a constant, so private arrays can be promoted (`mem2reg`) and elements of memory told apart.
Innermost loops are unrolled first. A loop is unrolled if

- it has at most `Machine.unrolled` iterations and operations of all copies; or
- it indexes a private array all of whose indices become constants, within `Machine.unrolled_away`, and is no sum of
  products that `jam` takes side by side with others:
  values in registers pay for the longer code (a filter over private arrays of 12 and 20 numbers on the CPU: 0.79 and
  0.93 of the time, though LLVM unrolls such loops itself, as the number of live values is then known), but for an array
  that loops alone meet, over more elements than rows of scalars have, once in an iteration: a board of 11 x 11; or
- the user asked for it (`unroll=True`, or a factor that is not below the number of iterations), within
  `Machine.unrolled_asked`.

A loop stays if its bounds are not constant, if its body keeps a loop (which takes the time), if its body allocates a
private array that is not promoted (each copy would have its own), for `unroll=False` or 1 or a factor below the trip
count, and if copies would make the task larger than `Machine.task_cost`: so nested loops cannot explode, and the time
is linear in the size of the result.

Unrolling by a factor with a rest is left to LLVM, which is told the factor. It does not pay on the CPU, here or there:
sums, distances, a recurrence with a product and one with a division take 0.96 to 1.03 of the time by 2, 4 and 8; a
Runge-Kutta step 1.03 by 2 and 4, and 2 to 3 times as long by 8. Longer bodies are long enough by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.cost import code_size, eqn_size
from qdtrace.analysis.index.trips import loop_values, trip_count
from qdtrace.analysis.machine import CPU
from qdtrace.frozen import frozen
from qdtrace.ir.primitives import CELL, FOR, WHILE
from qdtrace.ir.program import Literal, is_local, literal
from qdtrace.ir.rebuild import Copier, Rebuilder
from qdtrace.ir.walk import walk_eqns
from qdtrace.passes.base import TaskPass
from qdtrace.passes.taken_apart import Apart

if TYPE_CHECKING:
    from qdtrace.analysis.machine import Machine
    from qdtrace.ir.program import Eqn, Program, Task


@frozen
class Unroll(TaskPass):
    """Replaces short loops by copies of their bodies."""

    name: ClassVar[str] = "unroll"
    machine: Machine = CPU

    def on_task(self, task: Task, program: Program) -> Task:
        if not any(e.primitive is FOR for e in walk_eqns(task.body)):
            return task
        return task.rebuilt(_Unroller(task, self.machine).rebuild_block(task.body))


class _Unroller(Rebuilder):
    """Rebuilds a task with short loops unrolled."""

    def __init__(self, task: Task, machine: Machine) -> None:
        super().__init__()
        self._size = 0
        """Operations appended so far."""
        self._machine = machine
        self._apart = Apart(task.body, machine)
        self._room = machine.task_cost - code_size(task.body)

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation, or the copies of a loop's body."""
        before = self._size
        made = self.rebuild_eqn(eqn)
        trips = trip_count(*made.bounds) if eqn.primitive is FOR else None
        size = self._size - before
        if trips and self._pays(made, trips, size):
            self._room -= (trips - 1) * size
            self._size = before
            self._unroll(made)
        else:
            self._size += 1 if eqn.blocks else eqn_size(eqn)
            self.append(made)

    def _pays(self, loop: Eqn, trips: int, size: int) -> bool:
        total = trips * size
        if total - size > self._room:
            return False
        (body,) = loop.blocks
        asked = loop.params.get("unroll")
        if asked is True or (asked is not None and asked is not False and trips <= asked):
            return total <= self._machine.unrolled_asked
        if asked is not None:
            return False
        takes_apart = False
        for eqn in walk_eqns(body):
            prim = eqn.primitive
            if prim is CELL and eqn.outvars[0] not in self._apart.arrays:
                return False
            if prim is WHILE or (prim is FOR and not self._ends_up_constant(eqn)):
                return False
            if eqn.primitive.values is not None and is_local(eqn.invars[0]):
                takes_apart |= eqn.invars[0] in self._apart.arrays
        if takes_apart and self._machine.unrolled_away.allows(trips, total):
            return not self._apart.is_joined(loop)
        return self._machine.unrolled.allows(trips, total)

    def _ends_up_constant(self, loop: Eqn) -> bool:
        """Returns whether bounds become constants once loops around are unrolled, and are not constants yet."""
        bounds = loop.bounds
        return trip_count(*bounds) is None and all(isinstance(a, Literal) or a in self._apart.known for a in bounds)

    def _unroll(self, loop: Eqn) -> None:
        (body,) = loop.blocks
        start, stop, step = loop.bounds
        carries = loop.initials
        for k in loop_values(start, stop, step) or ():
            copier = Copier(dict(zip(body.params, (literal(k, start.dtype), *carries), strict=True)))
            eqns = copier.rebuild_eqns(body.eqns)
            self._apart.copied(copier.env)
            for eqn in eqns:  # visited again, because bounds of loops inside may be constants now
                self.visit(eqn)
            carries = self.atoms(copier.atoms(body.results))
        self.env.update(zip(loop.outvars, carries, strict=True))
