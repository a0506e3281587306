"""Facts about tasks that are made of another task, so that their code can stand in or beside the code of that one."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from lowering.llvm.facts import TaskFacts
from qdtrace.frozen import mutable
from qdtrace.ir.faults import checks_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qdtrace.ir.program import Eqn, Var


@mutable(eq=False)
class DerivedFacts(TaskFacts):
    """Facts about a task made of the `whole`: it takes the references of that one and reports checks by its numbers."""

    whole: TaskFacts
    origins: Mapping[Eqn, Eqn]
    """Maps checks that are copies to those of the whole; others are equations of the whole."""

    @cached_property
    def refs(self) -> tuple[Var, ...]:
        """The references of the whole task, in its order."""
        return self.whole.refs

    @property
    def ref_count(self) -> int:
        """The number of references in the table of the whole task."""
        return self.whole.ref_count

    @cached_property
    def check_numbers(self) -> dict[Eqn, int]:
        """The numbers of the checks in the whole task."""
        return {e: self.whole.check_numbers[self.origins.get(e, e)] for e in checks_of(self.task.all_eqns)}


@mutable(eq=False)
class PartFacts(DerivedFacts):
    """Facts about a part of a task: it takes the references of the whole, then those that parts share."""

    shared: tuple[Var, ...]

    @cached_property
    def refs(self) -> tuple[Var, ...]:
        """The references of the whole task and of the parts."""
        return (*self.whole.refs, *self.shared)

    @cached_property
    def written(self) -> frozenset[Var]:
        """The references that some part writes."""
        return self.whole.written.union(self.shared)
