"""Lanes whose small arrays a thread holds by itself: their values are a loop over lanes, their derivatives groups.

A thread a lane is faster where a lane computes much of what it reads and stores; in reverse mode, its memory is what
residuals take (docs/design/0050).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qdtrace.api import jit
from qdtrace.groups.work import lanes_of, work_of
from qdtrace.lanes.limits import FEW_LANES
from qdtrace.lanes.loop import looped
from qdtrace.trace import compat
from qdtrace.trace.products import matrix_work

if TYPE_CHECKING:
    from collections.abc import Sequence

SIDE = 11
"""The longest side of an array. At 12, 20 predictions of a filter take twice as long as by a warp, at 11 a third."""
FEW = 8
"""The longest side of arrays that a thread holds in registers whatever the work, if lanes fill the GPU."""
WORK = 8
"""Multiplications for each element that a lane reads or stores: fewer, and a warp is faster, as it reads rows at once.
A product of two matrices has 3 at 9 x 9, a Cholesky factor 5, with a solve 22 (a factor counts as n^3)."""


def is_for_threads(jaxpr: Any, mapped: Sequence[bool], lanes: int) -> bool:
    """Returns whether values of the jaxpr of one lane are for a thread a lane."""
    opened = compat.open_jaxpr(jaxpr)
    avals = [v.aval for e in compat.all_eqns(opened.eqns) for v in (*e.invars, *e.outvars)]
    longest = max((n for a in avals for n in a.shape[-2:]), default=0)
    if longest > SIDE:
        return False
    if longest <= FEW and lanes >= FEW_LANES and work_of(jaxpr).factors:
        return True
    own = [v for v, is_mapped in zip(opened.invars, mapped, strict=True) if is_mapped]
    return matrix_work(opened.eqns, 0) >= WORK * sum(v.aval.size for v in (*own, *opened.outvars))


def run_threads(jaxpr: Any, mapped: Sequence[bool], operands: Sequence[Any]) -> list[Any]:
    """Runs the jaxpr of one lane for each lane. Raises UnsupportedError for what a loop has no rule for."""
    return list(_loop(*operands, jaxpr=jaxpr, mapped=tuple(mapped)))


def _run(*operands: Any, jaxpr: Any, mapped: Sequence[bool]) -> list[Any]:
    lanes = lanes_of(operands, mapped)
    given = [(x, 0 if is_mapped else None) for x, is_mapped in zip(operands, mapped, strict=True)]
    return [x for x, _ in looped(jaxpr, given, lanes, compat.function_of(jaxpr))]


_loop: Any = jit(_run, static_argnames=("jaxpr", "mapped"))
