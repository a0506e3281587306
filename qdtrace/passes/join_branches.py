"""Neighbouring branches on one condition become one: `when` and `otherwise` are two `if`s when they are traced.

Before:  if p                            After:  q: bool = not p
           store y a i                           if p
         q: bool = not p                           store y a i
         if q                                    else
           store y b i                             store y b i

The condition of the second may be that of the first or its negation. Pure equations between the two move in front,
unless they use a result of the first. Anything else between them, such as an access to memory, prevents the join.

Comes first, so that later passes see both sides of the branch at once (an element stored on both is surely stored).
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, ClassVar

from qdtrace.frozen import frozen, mutable
from qdtrace.ir.primitives import IF, NOT
from qdtrace.ir.program import Atom, Block, Eqn, Program, Task, Var
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import walk_eqns
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from collections.abc import Sequence


@frozen
class JoinBranches(TaskPass):
    """Joins neighbouring branches on one condition."""

    name: ClassVar[str] = "join_branches"

    def on_task(self, task: Task, program: Program) -> Task:
        if sum([e.primitive is IF for e in walk_eqns(task.body)]) < 2:
            return task
        return task.rebuilt(_Joiner().rebuild_block(task.body))


@mutable(slots=True)
class _Side:
    eqns: list[Eqn] = field(default_factory=list[Eqn])
    results: list[Atom] = field(default_factory=list[Atom])
    known: dict[Var, Atom] = field(default_factory=dict[Var, Atom])
    """Values on this side of the results of branches that were joined."""


class _Group:
    """Branches on one condition that can be joined."""

    def __init__(self, condition: Atom) -> None:
        self.condition = condition
        self.parts: list[Eqn] = []
        self.outvars: dict[Var, None] = {}
        self.sides = (_Side(), _Side())

    def add(self, eqn: Eqn, *, negated: bool) -> None:
        self.parts.append(eqn)
        blocks = eqn.blocks[::-1] if negated else eqn.blocks
        for side, block in zip(self.sides, blocks, strict=True):
            known = side.known
            inlined = Rebuilder(known).rebuild_block(block)
            side.eqns += inlined.eqns
            side.results += inlined.results
            known.update(zip(eqn.outvars, inlined.results, strict=True))
        self.outvars.update(dict.fromkeys(eqn.outvars))

    def holds_back(self, eqn: Eqn) -> bool:
        """Returns whether an equation may not move before the group."""
        outvars = self.outvars
        return bool(eqn.blocks or eqn.primitive.effects or any([a in outvars for a in eqn.invars]))  # noqa: C419


class _Joiner(Rebuilder):
    def __init__(self) -> None:
        super().__init__()
        self._negations: dict[Atom, Atom] = {}
        """The operand of each `not`, by its result."""

    def rebuild_eqns(self, eqns: Sequence[Eqn]) -> tuple[Eqn, ...]:
        """Returns the equations with their branches joined."""
        out: list[Eqn] = []
        group: _Group | None = None
        waiting: list[Eqn] = []
        """Equations after the group, which move before it when another branch joins."""
        for eqn in eqns:
            is_if = eqn.primitive is IF
            given = eqn.invars[0] if is_if else None
            condition = None if given is None else self._negations.get(given, given)
            if group is not None and condition is not None and condition == group.condition:
                out += waiting
                waiting = []
            elif group is not None and (is_if or group.holds_back(eqn)):
                out += (self._closed(group), *waiting)
                group, waiting = None, []
            if condition is not None:
                group = group or _Group(condition)
                group.add(eqn, negated=condition is not given)
                continue
            if eqn.primitive is NOT:
                self._negations[eqn.outvars[0]] = eqn.invars[0]
            (out if group is None else waiting).append(self.rebuild_eqn(eqn))
        if group is not None:
            out += (self._closed(group), *waiting)
        return tuple(out)

    def _closed(self, group: _Group) -> Eqn:
        """Returns the branch made of a group, with the branches inside joined."""
        first = group.parts[0]
        if len(group.parts) == 1:
            return self.rebuild_eqn(first)
        blocks = tuple([Block((), self.rebuild_eqns(s.eqns), tuple(s.results)) for s in group.sides])
        return Eqn(first.primitive, (group.condition,), tuple(group.outvars), first.params, blocks, first.loc)
