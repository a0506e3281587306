"""Equations of a region tree that nobody needs: they go, and of a load its checks stay.

A load fails the call where its index is outside of the buffer, whether its value is used or not. So a load of a value
that nobody uses becomes a `reach`, which has its checks and touches no memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.trace import markers
from qdtrace.trace.compat import QD, JaxprEqn, Literal, Var
from qdtrace.trace.tree import Region

if TYPE_CHECKING:
    from collections.abc import Container


def prune(root: Region, checked: Container[Var]) -> None:
    """Removes equations without effect whose results are not used.

    `checked`: results of loads of an element that an accumulation of the same statement checks.
    """
    used = {a for a in root.results if not isinstance(a, Literal)}
    _prune(root, used, checked)


def _prune(region: Region, used: set[Var], checked: Container[Var]) -> None:
    kept: list[JaxprEqn | Region] = []
    tests = 0
    if region.test is not None and not isinstance(region.test[1], Literal):
        used.add(region.test[1])
    for position in range(len(region.items) - 1, -1, -1):
        item = region.items[position]
        if isinstance(item, Region):
            _prune(item, used, checked)
            if item.kind in ("when", "for") and not item.items:
                continue
            eqn = item.eqn
        else:
            eqn = item
            reads = eqn.primitive in markers.READS
            if (reads or not eqn.effects) and not any(v in used for v in eqn.outvars):
                if not reads or eqn.outvars[0] in checked or not _may_fail(eqn):
                    continue
                item = eqn = eqn.replace(primitive=markers.reach_p, outvars=[], effects={QD})
        if eqn is not None:
            used.update(a for a in eqn.invars if not isinstance(a, Literal))
        kept.append(item)
        if region.test is not None and position < region.test[0]:
            tests += 1
    region.items = kept[::-1]
    if region.test is not None:
        region.test = (tests, region.test[1])


def _may_fail(read: JaxprEqn) -> bool:
    """False where each index is known to be in range."""
    handle, *indices = read.invars
    shape: tuple[int, ...] = handle.aval.shape  # type: ignore[attr-defined]
    sizes = [n for n, entry in zip(shape, read.params.get("slices", ()), strict=False) if entry is None]
    return not all(isinstance(k, Literal) and 0 <= int(k.val) < n for k, n in zip(indices, sizes, strict=True))
