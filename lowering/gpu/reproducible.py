"""Sums on a GPU that have the same bits in every run, and tasks that are refused as theirs have not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.facts import TaskFacts
from lowering.plan.sums import Where, find_sums, unordered_updates
from qdtrace.errors import BackendError
from qdtrace.ir.memory import reference

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qdtrace.analysis.machine import AccumulationLimits
    from qdtrace.ir.program import Task


def refuse_unordered(tasks: Iterable[Task], limits: AccumulationLimits) -> None:
    """Raises BackendError at the first update of floats that threads of a GPU make in the order in which they come.

    Sums of an element that all iterations share are kept by threads and combined in the order of blocks, so they pass.
    """
    for task in tasks:
        facts = TaskFacts(task)
        unordered = unordered_updates(facts, find_sums(facts, limits), Where.COPY, Where.SHARED, Where.ATOMIC)
        for eqn in unordered[:1]:
            raise BackendError(
                f"deterministic=True needs sums that do not depend on the order of threads, got atomic updates of "
                f"`{reference(eqn).hint or 'memory'}` on a GPU",
                loc=eqn.loc,
                help="run it on a CPU (`jax.default_device`), in order (`qd.range(n, serial=True)`), or sum integers",
            )
