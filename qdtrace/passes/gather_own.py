"""Joins a store to an element with what the iteration then accumulates into it.

Before:  store x 0.0:f32 i             After:  accum[op=add] x a j
         accum[op=add] x a j                   c: f32 = add 0.0:f32 b
         accum[op=add] x b i                   store x c i

The adjoint of a step in place that keeps a part of the old value (`x[i] = 0.2 * x[i] + f(x[i - 1])`) is such a task.
It gathers if all other accumulations are into elements of other colours (`analysis/scattered`): no other iteration then
adds to the element between the store and the accumulation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.scattered import scattering
from qdtrace.ir.combining import combining
from qdtrace.ir.memory import indices_of, reference, touched, values_of
from qdtrace.ir.primitives import ACCUM, STORE
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import walk_inside

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from qdtrace.analysis.scattered import ScatteringTask
    from qdtrace.ir.program import Eqn, Var


def with_own_joined(found: ScatteringTask) -> ScatteringTask:
    """Returns a task with such stores and accumulations joined, if what is left is at fixed offsets; else the same."""
    if not any(found.scatters(ref) is None for ref in found.sites):
        return found
    joiner = _Joiner()
    made = joiner.rebuild_task(found.task)
    again = scattering(made) if joiner.joined else None
    if again is None or any(ref not in again.sites or again.scatters(ref) is None for ref in joiner.joined):
        return found
    return again


class _Joiner(Rebuilder):
    def __init__(self) -> None:
        super().__init__()
        self.joined: set[Var] = set()
        """References some of whose accumulations are parts of stores."""

    def rebuild_eqns(self, eqns: Sequence[Eqn]) -> tuple[Eqn, ...]:
        """Rebuilds the equations of a block, in which stores are where their last part is."""
        ends: dict[Eqn, list[Eqn]] = {}
        """All parts of an element's value, a store first, by the last one."""
        for parts in _parts(eqns):
            ends[parts[-1]] = parts
        inside = {eqn for parts in ends.values() for eqn in parts}
        with self.block() as made:
            for eqn in eqns:
                if eqn in ends:
                    self._join(ends[eqn])
                elif eqn not in inside:
                    self.visit(eqn)
        return tuple(made.eqns)

    def _join(self, parts: Sequence[Eqn]) -> None:
        ref = reference(parts[0])
        self.joined.add(ref)
        self.loc = parts[0].loc
        (value,) = values_of(parts[0])
        for part in parts[1:]:
            value = self(combining(part.params["op"], ref.dtype), value, *values_of(part))
        self.store(ref, value, *indices_of(parts[0]))


def _parts(eqns: Sequence[Eqn]) -> Iterator[list[Eqn]]:
    """Yields each store with the accumulations into its element behind it, if there are any; nothing loads between."""
    open_: dict[Var, list[Eqn]] = {}
    for eqn in eqns:
        ref = reference(eqn) if eqn.primitive.is_access else None
        if eqn.primitive is ACCUM and ref in open_:
            if indices_of(open_[ref][0]) == indices_of(eqn):
                open_[ref].append(eqn)
            continue
        for one in [ref] if ref is not None else touched(walk_inside(eqn)):
            if len(parts := open_.pop(one, ())) > 1:
                yield parts
        if eqn.primitive is STORE and ref is not None:
            open_[ref] = [eqn]
    yield from (parts for parts in open_.values() if len(parts) > 1)
