"""Equations of a region tree that nobody needs: they go, and of a load its checks stay.

A load fails the call where its index is outside of the buffer, whether its value is used or not. So a load of a value
that nobody uses becomes a `reach`, which has its checks and touches no memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
    _Pruner(used, checked).prune(root)


@dataclass
class _Pruner:
    used: set[Var]
    checked: Container[Var]
    counters: dict[Var, range] = field(default_factory=dict)
    """Loop indices with the ranges of those whose bounds are known."""

    def prune(self, region: Region) -> None:
        used, kept = self.used, list[JaxprEqn | Region]()
        tests = 0
        if region.test is not None and not isinstance(region.test[1], Literal):
            used.add(region.test[1])
        if region.kind == "for" and region.eqn is not None:
            ends = [v.val for v in region.eqn.invars[:3] if isinstance(v, Literal)]
            if len(ends) == 3 and ends[2]:
                self.counters[region.eqn.outvars[0]] = range(*map(int, ends))
        for position in range(len(region.items) - 1, -1, -1):
            item = region.items[position]
            if isinstance(item, Region):
                self.prune(item)
                if item.kind in ("when", "for") and not item.items:
                    continue
                eqn = item.eqn
            else:
                eqn = item
                reads = eqn.primitive in markers.READS
                if (reads or not eqn.effects) and not any(v in used for v in eqn.outvars):
                    if not reads or eqn.outvars[0] in self.checked or not self._may_fail(eqn):
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

    def _may_fail(self, read: JaxprEqn) -> bool:
        """Returns False if each index is seen to be in range; the importer and passes prove more."""
        handle, *indices = read.invars
        shape: tuple[int, ...] = handle.aval.shape  # type: ignore[attr-defined]
        sizes = [n for n, entry in zip(shape, read.params.get("slices", ()), strict=False) if entry is None]
        return not all(map(self._is_inside, indices, sizes))

    def _is_inside(self, index: Any, size: int) -> bool:
        if isinstance(index, Literal):
            return 0 <= int(index.val) < size
        values = self.counters.get(index)
        if values is None:
            return False
        return not values or (min(values[0], values[-1]) >= 0 and max(values[0], values[-1]) < size)
