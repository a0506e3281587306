"""Task fusion: neighbouring tasks over the same range become one, so that values pass in registers.

Before:  range_for i in 0:i32 : 8:i32         After:  range_for i in 0:i32 : 8:i32
           a: f32 = load x i                            a: f32 = load x i
           store y a i                                  store y a i
         range_for j in 0:i32 : 8:i32                   b: f32 = load y i
           b: f32 = load y j                            c: f32 = mul b b
           c: f32 = mul b b                             store z c i
           store z c j

Tasks join when their bounds are equal (as constants, or as the same value in the graph) and no iteration touches what
another iteration of the other task writes; see `fusion_groups` for the rules and `fusion_cost` for what pays. A task
may move in front of tasks that it does not depend on, and a group behind tasks that do not depend on it.

Moves no value into registers: `contract` and `memory` do that. Work per task is its number of accesses.
"""

from __future__ import annotations

from dataclasses import field, replace
from itertools import count
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.machine import CPU
from qdtrace.analysis.value_numbering import ValueNumbering
from qdtrace.frozen import frozen, mutable
from qdtrace.ir.memory import mode_of
from qdtrace.ir.primitives import ATOMIC, LOAD, STORE
from qdtrace.ir.program import Atom, Block, Literal, Program, Task, Var
from qdtrace.ir.rebuild import Copier, Rebuilder
from qdtrace.passes.base import Pass
from qdtrace.passes.fusion_cost import judge
from qdtrace.passes.fusion_decisions import Decision
from qdtrace.passes.fusion_groups import Bounds, Group, Prepared, head_conflict, may_join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from qdtrace.analysis.machine import Machine
    from qdtrace.errors import Loc

ROUNDS = 3
"""Largest number of rounds; a group of one round may be fused with another in the next."""
SINK_LIMIT = 32
"""Largest number of references of a group that may move behind others, which bounds the work of moving it."""


@frozen
class FuseTasks(Pass):
    """Fuses tasks over equal ranges."""

    name: ClassVar[str] = "fuse_tasks"
    mode: str = "auto"
    """`off`, `auto` (fuse if it pays) or `aggressive` (fuse wherever it is legal)."""
    read_after_write: bool = True
    """True if tasks are fused even if an iteration then reads what it wrote itself."""
    on_decision: Callable[[Decision], None] | None = None
    machine: Machine = CPU

    def __call__(self, program: Program) -> Program:
        """Returns the program with tasks fused, or the same object if none were."""
        if self.mode == "off" or len(program.tasks) < 2:
            return program
        for _ in range(ROUNDS):
            before, program = program, _Scheduler(self, program).run()
            if program is before or len(program.tasks) == len(before.tasks):
                break
        return program


@mutable(slots=True)
class _RefState:
    """The groups that access a reference: the last ones in running order, and those without dependents yet."""

    last: dict[str, Group] = field(default_factory=dict[str, Group])
    """The group with the largest order, by mode of access."""
    free: dict[str, list[Group]] = field(default_factory=dict[str, list[Group]])


def _depends(first: str, second: str) -> bool:
    """Returns whether an access of the second mode must stay behind one of the first mode."""
    return first != second or first in (STORE.name, ATOMIC.name)


class _Scheduler:
    """One walk over the tasks of a program that assigns them to groups."""

    def __init__(self, options: FuseTasks, program: Program) -> None:
        self.options = options
        self.program = program
        self.heads = ValueNumbering(program.tasks)
        self.groups: list[Group] = []
        self.refs: dict[Var, _RefState] = {}
        self.newest: dict[Bounds, Group] = {}
        self.indices: dict[Bounds, Var] = {}
        self.orders: Iterator[int] = count()
        self.last_use: dict[Var, int] = {}
        for number, task in enumerate(program.tasks):
            for ref in task.refs:
                self.last_use[ref] = number
        self.local = set(program.buffers) - set(program.results)
        self.number = 0

    def run(self) -> Program:
        """Returns the program with the tasks of each group fused."""
        for number, task in enumerate(self.program.tasks):
            self.number = number
            self.add(task)
        self.groups.sort(key=lambda g: g.order)
        used: set[Var] = set()
        return self.program.rebuilt([_joined(g, used) for g in self.groups])

    # ------------------------------------------------------------------ tasks
    def add(self, task: Task) -> None:
        """Adds the next task of the program to a group."""
        prepared = self.prepare(task)
        self.heads.written(prepared.memory.written)
        self.place(prepared)

    def prepare(self, task: Task) -> Prepared:
        """Returns the task with the index of its range and shared head equations, and its accesses."""
        head, env = self.heads.shared(task)
        renamed = Rebuilder(env)
        start, stop = renamed.atoms((task.start, task.stop))
        bounds: Bounds | None = None
        index = task.index
        if task.kind == "serial":
            bounds = None if task.hints.get("fuse") is False else ("serial",)
        elif task.hints.get("fuse") is not False and task.index is not None:
            hints = tuple(sorted((k, repr(v)) for k, v in task.hints.items() if k != "fuse"))
            bounds = ("range", task.index.dtype, _bound_key(start), _bound_key(stop), hints)
            index = env[task.index] = self.indices.setdefault(bounds, task.index)
        shared = task.rebuilt(renamed.rebuild_block(task.body), head, start, stop, index)
        return Prepared(task, shared, bounds)

    # ------------------------------------------------------------------ groups
    def place(self, task: Prepared) -> None:
        """Adds a task to the group it joins, or to a new one."""
        after = self.predecessor(task)
        group = None if task.bounds is None else self.choose(task, after)
        if group is None:
            group = Group(next(self.orders), task.bounds)
            self.groups.append(group)
            if task.bounds is not None:
                self.newest[task.bounds] = group
            group.add(task)
        for ref, modes in self.uses(task):
            state = self.refs.setdefault(ref, _RefState())
            for mode in modes:
                for other, waiting in state.free.items():
                    if _depends(other, mode) and waiting:
                        kept = [g for g in waiting if g is group]
                        for g in waiting:
                            g.has_dependents = g.has_dependents or g is not group
                        state.free[other] = kept
                last = state.last.get(mode)
                if last is None or last.order < group.order:
                    state.last[mode] = group
                if group not in (free := state.free.setdefault(mode, [])):
                    free.append(group)

    def uses(self, task: Prepared) -> Iterable[tuple[Var, set[str]]]:
        """Returns the references that a task accesses, each with the modes of access."""
        modes = {ref: set(map(mode_of, accesses)) for ref, accesses in task.memory.shared.items()}
        for ref in task.memory.head_reads:
            modes.setdefault(ref, set()).add(LOAD.name)
        return modes.items()

    def predecessor(self, task: Prepared) -> Group | None:
        """Returns the last group that the task depends on, or None."""
        found: Group | None = None
        for ref, modes in self.uses(task):
            state = self.refs.get(ref)
            for other, group in state.last.items() if state is not None else ():
                if (found is None or group.order > found.order) and any(_depends(other, m) for m in modes):
                    found = group
        return found

    def choose(self, task: Prepared, after: Group | None) -> Group | None:
        """Returns the group that the task is fused with, or None."""
        assert task.bounds is not None
        newest = self.newest.get(task.bounds)
        candidates: list[Group] = []
        if after is not None and after.bounds == task.bounds and after.bounds is not None:
            candidates.append(after)
        if newest is not None and newest not in candidates and (after is None or newest.order > after.order):
            candidates.append(newest)
        for group in candidates:
            if self.joins(group, task):
                return group
        if newest is None or after is None or newest in candidates or newest.order > after.order:
            if not candidates and self.groups and after is not None:
                self.note(after.name, task.name, False, "the ranges differ", (_loc(after), task.original.loc))
            return None
        if newest.has_dependents or len(newest.by_ref) > SINK_LIMIT:
            why = f"{after.name} has another range, stands between them and needs the one and is needed by the other"
            self.note(newest.name, task.name, False, why, (_loc(newest), task.original.loc))
            return None
        if not self.joins(newest, task):
            return None
        newest.order = next(self.orders)
        for member in newest.members:
            for ref, modes in self.uses(member):
                self.refs.setdefault(ref, _RefState()).last.update(dict.fromkeys(modes, newest))
        return newest

    def joins(self, group: Group, task: Prepared) -> bool:
        """Adds the task to the group if that is legal and pays, and returns whether it did."""
        locs, name = (_loc(group), task.original.loc), group.name
        if task.bounds == ("serial",):
            conflict = head_conflict(group, task)
            if conflict is not None:
                self.note(group.name, task.name, False, conflict.reason, locs)
                return False
            group.add(task)
            self.note(name, task.name, True, "both run once, in one thread", locs)
            return True
        verdict = may_join(group, task, read_after_write=self.options.read_after_write)
        if not verdict.legal:
            self.note(name, task.name, False, verdict.reason, (*locs, *verdict.locs))
            return False
        gain = judge(group, task, self.is_dead_after, self.options.machine)
        pays = gain.pays or self.options.mode == "aggressive"
        self.note(name, task.name, pays, f"{verdict.reason}; {gain.reason}", locs)
        if pays:
            group.add(task, gain.places)
        return pays

    def is_dead_after(self, ref: Var) -> bool:
        """Returns whether the content of a buffer is dead after the current task."""
        return ref in self.local and self.last_use.get(ref, -1) <= self.number

    def note(self, first: str, second: str, fused: bool, reason: str, locs: tuple[Loc | None, ...]) -> None:
        """Reports a decision."""
        if self.options.on_decision is not None:
            self.options.on_decision(Decision(first, second, fused, reason, locs))


def _loc(group: Group) -> Loc | None:
    return group.members[0].original.loc


def _bound_key(atom: Atom) -> object:
    return atom.key if isinstance(atom, Literal) else atom


def _joined(group: Group, used: set[Var]) -> Task:
    """Returns the fused task of a group; if another group has bound its variables (`used`), a copy with fresh ones."""
    first = group.members[0]
    task = first.original
    if len(group.members) > 1:
        eqns = tuple([eqn for member in group.members for eqn in member.task.body.eqns])
        task = replace(first.task, head=tuple(group.head), body=Block((), eqns), name=group.name)
    mine = {v for v in (task.index, *(v for e in task.head for v in e.outvars)) if v is not None}
    if not used.isdisjoint(mine):
        return Copier().rebuild_task(task)
    used |= mine
    return task
