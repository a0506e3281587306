"""Equations of a function and its regions that nobody needs: they go, and of a load its checks stay.

A load fails the call where its index is outside of the buffer, whether its value is used or not. So a load of a value
that nobody uses becomes a `reach`, which has its checks and touches no memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.trace import markers
from qdtrace.trace.compat import QD, JaxprEqn, Literal, Var
from qdtrace.trace.structure import with_bodies
from qdtrace.trace.tree import body_of, bounds_of, inner_equations

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from qdtrace.trace.jaxprs import Atom


def prune(items: Sequence[JaxprEqn], results: Iterable[object], checked: Container[Var]) -> list[JaxprEqn]:
    """Returns the equations without those without effect whose results are not used.

    `checked`: results of loads of an element that an accumulation of the same statement checks.
    """
    return _Pruner(results, checked).prune(items)


class _Pruner:
    def __init__(self, results: Iterable[object], checked: Container[Var]) -> None:
        self.used = {a for a in results if not isinstance(a, Literal)}
        self.checked = checked
        self.counters: dict[Var, range] = {}
        """Loop indices with the ranges of those whose bounds are known."""

    def prune(self, items: Sequence[JaxprEqn]) -> list[JaxprEqn]:
        used, kept = self.used, list[JaxprEqn]()
        for eqn in reversed(items):
            if eqn.primitive in markers.REGIONS:
                eqn = self._region(eqn)
                if eqn.primitive is not markers.while_p and not inner_equations(eqn):
                    continue
            elif not any(v in used for v in eqn.outvars):
                reads = eqn.primitive in markers.READS
                if reads and eqn.outvars[0] not in self.checked and self._may_fail(eqn):
                    eqn = eqn.replace(primitive=markers.reach_p, outvars=[], effects={QD})
                elif reads or not eqn.effects:
                    continue
            used.update(a for a in eqn.invars if not isinstance(a, Literal))
            kept.append(eqn)
        return kept[::-1]

    def _region(self, region: JaxprEqn) -> JaxprEqn:
        ends = [v.val for v in bounds_of(region)[:3] if isinstance(v, Literal)]
        if len(ends) == 3 and ends[2]:
            self.counters[body_of(region).invars[0]] = range(*map(int, ends))
        self.used.update(v for j in region.params["jaxprs"] for v in j.outvars if not isinstance(v, Literal))
        return with_bodies(region, self.prune)

    def _may_fail(self, read: JaxprEqn) -> bool:
        """Returns False if each index is seen to be in range; the importer and passes prove more."""
        handle, *indices = read.invars
        shape: tuple[int, ...] = handle.aval.shape
        sizes = [n for n, entry in zip(shape, read.params.get("slices", ()), strict=False) if entry is None]
        return not all(map(self._is_inside, indices, sizes))

    def _is_inside(self, index: Atom, size: int) -> bool:
        if isinstance(index, Literal):
            return 0 <= int(index.val) < size
        values = self.counters.get(index)
        if values is None:
            return False
        return not values or (min(values[0], values[-1]) >= 0 and max(values[0], values[-1]) < size)
