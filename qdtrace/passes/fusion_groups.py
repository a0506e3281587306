"""Groups of tasks to be fused: the accesses of a group, and the test if another task may join it.

All tasks of one class of bounds are written over one index variable, and equal values of their heads are one variable,
so accesses of different tasks compare as they stand. A group keeps, per reference, its different accesses.
"""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING

from qdtrace.analysis.cost import code_size, has_open_loop, operations, peak_live
from qdtrace.analysis.index.affine import Flipped, Quotient
from qdtrace.analysis.memory import TaskMemory
from qdtrace.frozen import frozen, mutable
from qdtrace.ir.memory import mode_of, reference
from qdtrace.ir.primitives import ACCUM, ATOMIC, LOAD
from qdtrace.ir.program import Eqn, Var

if TYPE_CHECKING:

    from qdtrace.analysis.index.affine import Form
    from qdtrace.analysis.index.dependence import Dependence
    from qdtrace.errors import Loc
    from qdtrace.ir.program import Task

ACCESS_LIMIT = 32
"""Largest number of accesses kept per reference of a group, which bounds the pairs that are compared."""

Bounds = tuple[object, ...]
"""A key that is equal for tasks with the same range and hints."""


@frozen(slots=True)
class Weight:
    """Figures of a body, or of bodies one after another."""

    operations: int = 0
    size: int = 0
    """Operations in its code."""
    live: int = 0
    open_loop: bool = False

    def before(self, other: Weight, places: int) -> Weight:
        """Returns the figures with those of a body behind, to which `places` values pass in registers."""
        live = max(self.live, other.live + places)
        open_loop = self.open_loop or other.open_loop
        return Weight(self.operations + other.operations, self.size + other.size, live, open_loop)


@mutable(eq=False)
class Prepared:
    """A task rewritten over the index and head variables that tasks of the same range share."""

    original: Task
    task: Task
    """The task over the shared variables, which is compared and fused."""
    bounds: Bounds | None
    """Key of the range; None if the task must not be fused."""

    @cached_property
    def memory(self) -> TaskMemory:
        """Its accesses."""
        return TaskMemory(self.task)

    @cached_property
    def weight(self) -> Weight:
        """The figures that decide whether fusion pays."""
        body = self.task.body
        return Weight(operations(body), code_size(body), peak_live(body), has_open_loop(self.task))

    @property
    def name(self) -> str:
        """The task's name."""
        return self.original.name


@mutable(slots=True, eq=False)
class Member:
    """An access and its task."""

    eqn: Eqn
    of: Prepared

    @property
    def index(self) -> tuple[Form, ...]:
        """The forms of its indices."""
        return self.of.memory.index(self.eqn)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for accesses of one mode to the same element."""
        return mode_of(self.eqn), *[f.key for f in self.index]


@mutable(slots=True, eq=False)
class Group:
    """Tasks to be fused, in order."""

    order: int
    """Position of the group in running order."""
    bounds: Bounds | None
    members: list[Prepared] = field(default_factory=list[Prepared])
    by_ref: dict[Var, list[Member]] = field(default_factory=dict[Var, list[Member]])
    crowded: set[Var] = field(default_factory=set[Var])
    """References with more than `ACCESS_LIMIT` accesses, which are not all in `by_ref`."""
    head: dict[Eqn, None] = field(default_factory=dict[Eqn, None])
    head_reads: set[Var] = field(default_factory=set[Var])
    written: set[Var] = field(default_factory=set[Var])
    has_dependents: bool = False
    """True if another group must run after this one."""
    _weighed: Weight = field(default_factory=Weight)
    _unweighed: list[tuple[Prepared, int]] = field(default_factory=list["tuple[Prepared, int]"])

    @property
    def weight(self) -> Weight:
        """The figures of all members, computed when they are asked for: most groups are never judged."""
        for task, places in self._unweighed:
            self._weighed = self._weighed.before(task.weight, places)
        self._unweighed.clear()
        return self._weighed

    def add(self, task: Prepared, shared_places: int = 0) -> None:
        """Appends a task to the group."""
        self._unweighed.append((task, shared_places))
        self.members.append(task)
        self.head.update(dict.fromkeys(task.task.head))
        self.head_reads |= task.memory.head_reads
        self.written |= task.memory.written
        for ref, accesses in task.memory.shared.items():
            mine = self.by_ref.setdefault(ref, [])
            known = {m.key for m in mine}
            for member in (Member(eqn, task) for eqn in accesses):
                if member.key not in known:
                    if len(mine) < ACCESS_LIMIT:
                        mine.append(member)
                    else:
                        self.crowded.add(ref)

    @property
    def name(self) -> str:
        """Names of the tasks with `+` between; of many, the first and the last."""
        if len(self.members) > 3:
            return f"{self.members[0].name}+...+{self.members[-1].name}"
        return "+".join(m.name for m in self.members)


@frozen(slots=True)
class Verdict:
    """The answer if a task may be fused with a group, with the reason and source lines."""

    legal: bool
    reason: str
    locs: tuple[Loc | None, ...] = ()


def head_conflict(group: Group, task: Prepared) -> Verdict | None:
    """Returns why the heads cannot be evaluated together before both bodies, or None if they can."""
    for eqn_reads, written, who in (
        (task.memory.head_reads, group.written, "the first"),
        (group.head_reads, task.memory.written, "the second"),
    ):
        for ref in eqn_reads & written:
            return Verdict(False, f"`{ref.hint}` decides on the range or a uniform value, and {who} writes it")
    return None


def may_join(group: Group, task: Prepared, *, read_after_write: bool = True) -> Verdict:
    """Returns whether running each iteration of the task right after those of the group preserves the results."""
    conflict = head_conflict(group, task)
    if conflict is not None:
        return conflict
    shared: list[str] = []
    for ref, accesses in task.memory.shared.items():
        others = group.by_ref.get(ref)
        if others is None:
            continue
        if ref not in task.memory.written and ref not in group.written:
            continue
        if ref in group.crowded:
            return Verdict(False, f"`{ref.hint}` is touched in too many ways to compare")
        for member in others:
            for eqn in accesses:
                found = _judge_pair(member, Member(eqn, task), read_after_write)
                if found is not None:
                    return found
        shared.append(ref.hint)
    names = ", ".join(f"`{n}`" for n in shared[:3]) + (", ..." if len(shared) > 3 else "")
    why = f"each iteration meets only its own elements of {names}" if shared else "nothing shared is written"
    return Verdict(True, why)


def _judge_pair(first: Member, second: Member, read_after_write: bool) -> Verdict | None:
    """Returns why the dependence of two accesses prevents fusion, or None if it does not."""
    one, two = first.eqn, second.eqn
    if not (one.primitive.writes or two.primitive.writes):
        return None
    if one.primitive is ACCUM and mode_of(one) == mode_of(two):
        return None  # sums commute
    found = first.of.memory.dependence(one, two, second.of.memory)
    if found.never:
        return None
    if not found.same:
        return Verdict(False, _conflict(first, second, found), (one.loc, two.loc))
    if not read_after_write and one.primitive.writes and two.primitive in (LOAD, ATOMIC):
        why = f"`{reference(one).hint}` is read where the iteration itself wrote it, and fuse_tasks_raw is off"
        return Verdict(False, why, (one.loc, two.loc))
    return None


_VERBS = {"load": "reads", "store": "writes", "atomic": "updates"}


def _conflict(first: Member, second: Member, found: Dependence) -> str:
    name = reference(first.eqn).hint
    did, does = (_VERBS.get(mode_of(m.eqn), "adds to") for m in (first, second))
    one, two = (f"`{name}[{show_indices(m)}]`" for m in (first, second))
    if found.distance is not None:
        vector = ", ".join(f"{d:+}" for d in found.distance)
        plural = f"({vector})" if len(found.distance) > 1 else vector
        return f"the second {does} {two}, what another iteration of the first {did} ({one}, distance {plural})"
    return f"the second {does} {two}, the first {did} {one}, perhaps in another iteration"


def show_indices(member: Member) -> str:
    """Returns the index expressions in the notation of the source: `i - 1, 0`."""
    return ", ".join(_show(form, member.of.task.index) for form in member.index)


def _show(form: Form, index: Var | None) -> str:
    parts: list[str] = []
    for term, factor in form.terms.items():
        if term is index:
            name = "i"
        elif isinstance(term, Quotient):
            name = f"(... // {term.divisor})"
        elif isinstance(term, Flipped):
            name = f"(... ^ {term.bits})"
        else:
            name = term.hint or "?"
        sign = "-" if factor < 0 else "+" if parts else ""
        parts.append(sign + (name if abs(factor) == 1 else f"{abs(factor)}*{name}"))
    if form.constant or not parts:
        parts.append(f"{form.constant:+}" if parts else str(form.constant))
    return " ".join(parts)
