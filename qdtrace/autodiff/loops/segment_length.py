"""Length of segments: as many iterations of a loop as fit into registers run again as one piece of straight-line code.

All of them run again before the walk back over them, so the values that the walk needs are live in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.cost import code_size
from qdtrace.ir.walk import is_innermost

if TYPE_CHECKING:
    from qdtrace.analysis.machine import ReverseLimits
    from qdtrace.autodiff.loops.needed import Needed
    from qdtrace.ir.program import Eqn


def most_steps(loop: Eqn, needed: Needed, limits: ReverseLimits) -> int:
    """Returns the most iterations of a segment: 1 if a loop is inside, as its storage holds states of one iteration."""
    if limits.steps == 1 or not is_innermost(loop):
        return 1
    body = loop.blocks[-1]
    held = len(needed.held(body))
    return max(1, min(limits.steps, limits.held_values // max(held, 1), limits.code // max(code_size(body), 1)))
