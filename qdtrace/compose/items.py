"""Questions about the items of a traced function: equations, regions among them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from qdtrace.compose.jaxprs import has_marker, is_literal
from qdtrace.trace.indexing import WHOLE_LIMIT
from qdtrace.trace.markers import ACCESSES, REGIONS, for_p, when_p
from qdtrace.trace.tree import bounds_of, inner_equations

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.jaxprs import Var


def reads_of(item: JaxprEqn) -> Iterable[Var]:
    """Returns jaxpr variables that staging needs for an item. The items of a `qd.when` are staged one by one, so those
    may include variables that earlier items in it bind."""
    inner = inner_equations(item) if item.primitive is when_p else ()
    atoms = bounds_of(item) if inner else item.invars
    return [*(v for v in atoms if not is_literal(v)), *(v for one in inner for v in reads_of(one))]


@functools.lru_cache(maxsize=64)
def has_tasks(region: JaxprEqn) -> bool:
    """Returns whether a region cannot run in one thread, as a `qd.range`, a call or a large array is inside."""
    return any(
        i.primitive is for_p or has_tasks(i) if i.primitive in REGIONS else has_marker(i, "qd_call") or is_large(i)
        for i in inner_equations(region)
    )


def is_large(eqn: JaxprEqn) -> bool:
    """Returns whether an equation works on a whole array that is too large for registers."""
    handle = 1 if eqn.primitive in ACCESSES else 0
    return any(int(np.prod(v.aval.shape)) > WHOLE_LIMIT for v in (*eqn.invars[handle:], *eqn.outvars))


def has_jump(region: JaxprEqn, *names: str) -> bool:
    """Returns whether one of these jumps is in the region, outside of its inner loops."""
    return any(
        has_jump(i, *names) if i.primitive is when_p else i.primitive.name in names for i in inner_equations(region)
    )
