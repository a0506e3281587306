"""Questions about the items of a traced function: equations and regions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qdtrace.compose.jaxprs import has_marker, is_literal
from qdtrace.trace import markers
from qdtrace.trace.indexing import WHOLE_LIMIT
from qdtrace.trace.regions import Region

if TYPE_CHECKING:
    from collections.abc import Iterator


def region_inputs(item: Any, bound: set[Any] | None = None) -> Iterator[Any]:
    """Jaxpr variables an item reads and does not bind."""
    bound = set() if bound is None else bound
    eqn = item.eqn if isinstance(item, Region) else item
    if eqn is not None:
        for v in eqn.invars:
            if not is_literal(v) and v not in bound:
                yield v
        bound.update(eqn.outvars)
    if isinstance(item, Region):
        for inner in item.items:
            yield from region_inputs(inner, bound)
        if item.test is not None and not is_literal(item.test[1]) and item.test[1] not in bound:
            yield item.test[1]


def all_reads(item: Any) -> Iterator[Any]:
    """Jaxpr variables an item reads, those that it binds itself included."""
    if not isinstance(item, Region):
        yield from (v for v in item.invars if not is_literal(v))
        return
    yield from region_inputs(item)
    for inner in item.items:
        yield from all_reads(inner)


def begin_marker(region: Region) -> Any:
    """The equation that opens a loop or a condition."""
    assert region.eqn is not None
    return region.eqn


def has_tasks(region: Region) -> bool:
    """True when the region cannot run in one thread: a `qd.range`, a call of a program or a large array is inside."""
    return any(
        i.kind == "for" or has_tasks(i) if isinstance(i, Region) else has_marker(i, "qd_call") or is_large(i)
        for i in region.items
    )


def is_large(eqn: Any) -> bool:
    """True for an operation on a whole array that is too large for registers."""
    handle = 1 if eqn.primitive in markers.ACCESSES else 0
    return any(int(np.prod(v.aval.shape)) > WHOLE_LIMIT for v in (*eqn.invars[handle:], *eqn.outvars))


def body_of(region: Region) -> Region:
    """The items of a loop without its begin marker."""
    return Region(kind="root", eqn=None, items=region.items)


def alone(region: Region) -> Region:
    """A root region that holds just this one."""
    return Region(kind="root", eqn=None, items=[region])


def has_jump(region: Region, *names: str) -> bool:
    """True when one of these jumps stands in the region, outside of loops in it."""
    return any(
        i.kind == "when" and has_jump(i, *names) if isinstance(i, Region) else i.primitive.name in names
        for i in region.items
    )
