"""Questions about the items of a traced function: equations and regions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from qdtrace.compose.jaxprs import has_marker, is_literal
from qdtrace.trace import markers
from qdtrace.trace.indexing import WHOLE_LIMIT
from qdtrace.trace.regions import Region

if TYPE_CHECKING:
    from collections.abc import Iterable


def region_inputs(item: Any) -> Iterable[Any]:
    """Returns jaxpr variables that an item reads and does not bind, in order."""
    if not isinstance(item, Region):
        return [v for v in item.invars if not is_literal(v)]
    if item.eqn is None:
        return body_inputs(item)
    begin = dict.fromkeys(region_inputs(item.eqn))
    return begin | {v: None for v in body_inputs(item) if v not in item.eqn.outvars}


def body_inputs(region: Region) -> Iterable[Any]:
    """Returns variables that the items of a region read and do not bind, with those that its begin marker binds."""
    known = _inputs.get(region)
    if known is None:
        known = _inputs[region] = _free(region)
    return known


_inputs: WeakKeyDictionary[Region, dict[Any, None]] = WeakKeyDictionary()


def _free(region: Region) -> dict[Any, None]:
    bound: set[Any] = set()
    free: dict[Any, None] = {}
    for inner in region.items:
        if isinstance(inner, Region):
            free.update((v, None) for v in region_inputs(inner) if v not in bound)
            continue
        for v in inner.invars:
            if not is_literal(v) and v not in bound:
                free[v] = None
        bound.update(inner.outvars)
    if region.test is not None and not is_literal(region.test[1]) and region.test[1] not in bound:
        free[region.test[1]] = None
    return free


def reads_of(item: Any) -> Iterable[Any]:
    """Returns jaxpr variables that staging needs for an item. The items of a `qd.when` are staged one by one, so those
    may include variables that earlier items in it bind."""
    if not isinstance(item, Region) or item.kind != "when":
        return region_inputs(item)
    return [*region_inputs(begin_marker(item)), *(v for inner in item.items for v in reads_of(inner))]


def begin_marker(region: Region) -> Any:
    """Returns the equation that opens a loop or a condition."""
    assert region.eqn is not None
    return region.eqn


def has_tasks(region: Region) -> bool:
    """Returns whether a region cannot run in one thread, as a `qd.range`, a call or a large array is inside."""
    known = _with_tasks.get(region)
    if known is None:
        known = _with_tasks[region] = any(
            i.kind == "for" or has_tasks(i) if isinstance(i, Region) else has_marker(i, "qd_call") or is_large(i)
            for i in region.items
        )
    return known


_with_tasks: WeakKeyDictionary[Region, bool] = WeakKeyDictionary()


def is_large(eqn: Any) -> bool:
    """Returns whether an equation works on a whole array that is too large for registers."""
    handle = 1 if eqn.primitive in markers.ACCESSES else 0
    return any(int(np.prod(v.aval.shape)) > WHOLE_LIMIT for v in (*eqn.invars[handle:], *eqn.outvars))


def body_of(region: Region) -> Region:
    """Returns a root region with the items of a loop, without its begin marker."""
    return Region(kind="root", eqn=None, items=region.items)


def alone(region: Region) -> Region:
    """Returns a root region with just this region."""
    return Region(kind="root", eqn=None, items=[region])


def has_jump(region: Region, *names: str) -> bool:
    """Returns whether one of these jumps is in the region, outside of its inner loops."""
    return any(
        i.kind == "when" and has_jump(i, *names) if isinstance(i, Region) else i.primitive.name in names
        for i in region.items
    )
