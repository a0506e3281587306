"""Scalar replacement in loops: an element that a loop keeps using is loaded once, kept in a register, and stored once.

Before:  for k in 0:i32 : 8:i32 : 1:i32          After:  s: f32 = load b i
           a: f32 = load r i k                           t: f32 = for k in 0:i32 : 8:i32 : 1:i32 carry c = s
           accum[op=add] b a i                             a: f32 = load r i k
                                                           d: f32 = add c a
                                                           yield d
                                                         store b t i

An element is replaced if its index is the same in all iterations of the loop and all other accesses of the loop to
the reference are surely to other elements (`analysis/memory`). The rules:

- `carry`: loaded before the loop, carried, stored after it. The order of operations stays. If the task accumulates
  into the reference, it applies only to elements that no other iteration of the task touches.
- `sum`: if the loop only accumulates, by one operation, but other iterations of the task may do so too: a sum that
  starts at the identity is carried and accumulated after the loop. For floats that changes the order of additions,
  so it needs `fast_math` (but for minima and maxima).

The load before and the accumulation or store after must be allowed: the loop surely runs and surely executes the same
access (with no check in it, which may have proved the index), or the iteration has accessed the element before, or the
index is in range, the element is set and no other iteration touches it. If only the bounds of a `for` are in doubt,
both are under `if start < stop`.

The outermost loop is tried first. Elements that the condition of a `while` writes stay in memory, and atomics stay.
Relies on `mem2reg`, which turns the cell that replaces the element into a carried value.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.index.definite_stores import FullBefore
from qdtrace.analysis.index.ranges import TaskRanges
from qdtrace.analysis.index.trips import CountedLoop
from qdtrace.analysis.memory import MemoryLocation, TaskMemory, is_comparable
from qdtrace.analysis.region_summary import Summaries, surely_runs
from qdtrace.frozen import frozen, mutable
from qdtrace.ir.combining import identity
from qdtrace.ir.dataflow import Flow
from qdtrace.ir.memory import mode_of, values_of
from qdtrace.ir.primitives import ACCUM, CELL, FOR, IF, STORE, WHILE, Effect
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Program, Task, Var, is_local
from qdtrace.ir.types import DType, RefType, Space
from qdtrace.ir.walk import walk_eqns, walk_inside, walk_nested
from qdtrace.passes.base import TaskPass
from qdtrace.passes.mem2reg import Mem2Reg

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qdtrace.analysis.region_summary import Key

PLACES = 32
"""Largest number of elements of one reference that are examined in one loop, and of elements that it carries."""


@frozen
class ScalarReplacement(TaskPass):
    """Turns elements that loops keep loading and storing into carried values."""

    name: ClassVar[str] = "scalar_replacement"
    fast_math: bool = False

    def on_task(self, task: Task, program: Program) -> Task:
        if not _has_writing_loop(task.body):
            return task
        body = _Replacer(task, program, fast_math=self.fast_math).rebuild_block(task.body)
        return task if body is task.body else Mem2Reg().on_task(task.rebuilt(body), program)


def _has_writing_loop(block: Block) -> bool:
    writes = [around for eqn, around in walk_nested(block) if eqn.primitive in (STORE, ACCUM)]
    return any(outer.primitive.loops for around in writes for outer in around)


@mutable(slots=True)
class _Uses:
    """The accesses of a loop to one location."""

    locations: list[MemoryLocation] = field(default_factory=lambda: [])
    """Locations of the accesses: one element, perhaps by different operands."""
    modes: set[str] = field(default_factory=lambda: set())
    """Modes of the accesses (`ir/memory.mode_of`)."""
    in_test: bool = False
    """True if it is written in the condition of a `while`."""


@mutable(slots=True)
class _Carried:
    """A location that a loop carries."""

    location: MemoryLocation
    cell: Var
    op: str
    """The operation of the accumulations for the rule `sum`; empty for `carry`."""
    guarded: bool
    """True if its loads and stores around the loop are executed only if the loop runs."""
    loads: bool
    """True if the cell starts with the value before the loop."""


class _Replacer(Flow["Key", bool]):
    """Rebuilds a task. Facts: locations that the iteration has surely accessed before, True if it has written them."""

    def __init__(self, task: Task, program: Program, *, fast_math: bool) -> None:
        super().__init__()
        self.memory = TaskMemory(task)
        self.ranges = TaskRanges(task)
        self.full = FullBefore(program, task)
        """References whose every element holds a value before the task."""
        self.fast_math = fast_math
        self.active: dict[Key, Var] = {}
        """The cell of each location that a loop around the current place carries."""
        self.summaries = Summaries(lambda eqn: self.memory.of(eqn).key)

    def region(self, eqn: Eqn, number: int) -> Block:
        """Rebuilds a block; its accesses are not sure ones after it."""
        facts, self.facts = self.facts, dict(self.facts)
        rebuilt = super().region(eqn, number)
        self.facts = facts
        return rebuilt

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation; around a loop also the loads and stores of its carried locations."""
        if eqn.blocks:
            if eqn.primitive is IF:
                super().visit(eqn)
            else:
                self._loop(eqn)
            summary = self.summaries.of_eqn(eqn)
            for key in summary.accessed:
                self._note(key, written=key in summary.written)
        elif eqn.primitive.is_access:
            key = self.memory.of(eqn).key
            self._note(key, written=eqn.primitive.writes)
            cell = self.active.get(key)
            self.append(eqn if cell is None else eqn.rebuilt((cell, *values_of(eqn))))
        else:
            self.append(eqn)

    def _note(self, key: Key, *, written: bool) -> None:
        self.facts[key] = written or self.facts.get(key, False)

    # Loops.

    def _loop(self, eqn: Eqn) -> None:
        self.ranges.enter(eqn)
        carried = self._candidates(eqn)
        self.active.update({c.location.key: c.cell for c in carried})
        loop = self.rebuild_eqn(eqn)
        for c in carried:
            del self.active[c.location.key]
        self._put(loop, carried)

    def _candidates(self, eqn: Eqn) -> list[_Carried]:
        found: list[_Carried] = []
        level = self.level
        for ref, uses in self._uses(eqn).items():
            if len(uses) > PLACES or not is_comparable(ref) or self.memory.levels.get(ref, 0) > level:
                continue
            for key, use in uses.items():
                if key in self.active or use.in_test or "atomic" in use.modes or use.modes == {"load"}:
                    continue
                if any(self.memory.levels.get(var, 0) > level for var in use.locations[0].variables()):
                    continue
                location = next((p for p in use.locations if self._is_outside(p.indices)), None)
                if location is None or len(found) >= PLACES:
                    continue
                carried = self._judged(eqn, location, uses)
                if carried is not None:
                    found.append(carried)
        return found

    def _uses(self, eqn: Eqn) -> dict[Var, dict[Key, _Uses]]:
        found: dict[Var, dict[Key, _Uses]] = {}
        whiles = [e for e in (eqn, *walk_inside(eqn)) if e.primitive is WHILE]
        tested = {e for loop in whiles for e in walk_eqns(loop.blocks[0])}
        for inner in walk_inside(eqn):
            if inner.primitive.is_access:
                location = self.memory.of(inner)
                use = found.setdefault(location.ref, {}).setdefault(location.key, _Uses())
                use.locations.append(location)
                use.modes.add(mode_of(inner))
                use.in_test = use.in_test or (inner.primitive.writes and inner in tested)
        return found

    def _is_outside(self, atoms: Iterable[Atom]) -> bool:
        return all(isinstance(a, Literal) or self.memory.levels.get(a, 0) <= self.level for a in atoms)

    def _judged(self, eqn: Eqn, location: MemoryLocation, uses: dict[Key, _Uses]) -> _Carried | None:
        """Returns how the loop may carry the location, or None if it must not."""
        ref, key = location.ref, location.key
        once = self.summaries.of_body(eqn)
        runs = surely_runs(eqn)
        can_guard = eqn.primitive is FOR and isinstance(eqn.step, Literal) and bool(eqn.step.value)
        in_range = not is_local(ref) and self.ranges.are_inside(ref, location.indices)
        before = self.facts.get(key)
        if ref in self.memory.tracked:
            if any(self.memory.may_meet(location, u.locations[0]) for k, u in uses.items() if k != key):
                return None
            free = in_range and self.memory.is_private(ref)
            op, loads = "", key in once.exposed or key not in once.written
            may_load = before is not None or (free and ref in self.full)
            may_store = bool(before) or free
            if may_load and may_store:
                guarded, loads = False, loads or not runs
            elif (not loads or may_load or (key in once.first_read and (in_range or not _has_check(eqn)))) and (
                may_store or key in once.written
            ):
                guarded = not runs
            else:
                return None
        else:
            modes = frozenset[str]().union(*(u.modes for u in uses.values()))
            if len(modes) != 1 or not self._may_sum(ref.dtype, *modes):
                return None
            (op,), loads = modes, False
            # An addition of nothing where there was none costs an atomic, but for locations that are summed anyway.
            surely = key in once.accessed
            if not surely and not all(isinstance(a, Literal) for a in location.indices):
                return None
            if bool(before) or (in_range and ref in self.full and self.memory.modes(ref) == modes):
                guarded = False
            elif surely:
                guarded = not runs
            else:
                return None
        if guarded and not can_guard:
            return None
        return _Carried(location, Var(RefType(ref.dtype, (), Space.LOCAL), ref.hint), op, guarded, loads)

    def _may_sum(self, dtype: DType, op: str) -> bool:
        if op not in ("add", "mul", "min", "max"):
            return False
        return self.fast_math or not dtype.is_float or op in ("min", "max")

    # Code around a loop.

    def _put(self, loop: Eqn, carried: list[_Carried]) -> None:
        """Appends the loop with the loads before it and the stores after it, under a guard if the loop may not run."""
        self.loc = loop.loc
        for c in carried:
            self.append(Eqn(CELL, (), (c.cell,), {"dtype": c.cell.dtype, "shape": ()}, (), loop.loc))
        guarded = [c for c in carried if c.guarded]
        self._before([c for c in carried if c.op or not c.guarded])
        runs: Atom | None = None
        if guarded:
            runs = CountedLoop.of_for(loop).emit_before(self, loop.bounds[0], hint="runs")
            with self.block() as then:
                self._before([c for c in guarded if not c.op])
            if then.eqns:
                self.emit("if", runs, blocks=(then.close(), Block()))
        self.append(loop)
        self._after([c for c in carried if not c.guarded])
        if runs is not None:
            with self.block() as then:
                self._after(guarded)
            self.emit("if", runs, blocks=(then.close(), Block()))

    def _before(self, carried: list[_Carried]) -> None:
        for c in carried:
            if c.op:
                self.store(c.cell, identity(c.op, c.cell.dtype))
            elif c.loads:
                self.store(c.cell, self.load(c.location.ref, *c.location.indices, hint=c.cell.hint))

    def _after(self, carried: list[_Carried]) -> None:
        for c in carried:
            value = self.load(c.cell, hint=c.cell.hint)
            if c.op:
                self.accum(c.location.ref, value, *c.location.indices, op=c.op)
            else:
                self.store(c.location.ref, value, *c.location.indices)


def _has_check(loop: Eqn) -> bool:
    return any(Effect.CHECK in e.primitive.effects for e in walk_inside(loop))
