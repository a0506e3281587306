"""How many iterations of a loop may be run again as one piece of straight code: as many as registers hold.

The replay of all of them stands in front of the walk back over them, so what the walk needs is alive in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.cost import code_size
from qdtrace.ir.walk import is_innermost

if TYPE_CHECKING:
    from qdtrace.analysis.machine import ReverseLimits
    from qdtrace.autodiff.loops.needed import Needed
    from qdtrace.ir.program import Eqn


def most_steps(loop: Eqn, needed: Needed, limits: ReverseLimits) -> int:
    """The most iterations of a segment: 1 where there is a loop inside, as that keeps the states of one iteration."""
    if limits.steps == 1 or not is_innermost(loop):
        return 1
    body = loop.blocks[-1]
    held = len(needed.held(body))
    return max(1, min(limits.steps, limits.held_values // max(held, 1), limits.code // max(code_size(body), 1)))
