"""Where variables are bound and how often they are used."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from qdtrace.ir.walk import blocks_of, used_in_block, walk_task

if TYPE_CHECKING:
    from qdtrace.ir.program import Eqn, Task, Var


def count_uses(task: Task) -> Counter[Var]:
    """How often each variable is read in the task, bounds and results of blocks included."""
    uses: Counter[Var] = Counter()
    for block in blocks_of(task):
        uses.update(used_in_block(block))
    return uses


def definitions(task: Task) -> dict[Var, Eqn]:
    """The equation that binds each variable (those bound by a block or the task are absent)."""
    return {var: eqn for eqn in walk_task(task) for var in eqn.outvars}
