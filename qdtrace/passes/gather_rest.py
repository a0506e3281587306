"""Rewrites a task whose accumulations are gathered, stored, or kept in arrays that another task gathers from."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from qdtrace.analysis.scattered import ScatteringTask
from qdtrace.ir.builder import ref_var
from qdtrace.ir.combining import combining
from qdtrace.ir.memory import indices_of, reference, values_of
from qdtrace.ir.primitives import ACCUM
from qdtrace.ir.program import Literal, literal
from qdtrace.ir.rebuild import Rebuilder

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from qdtrace.analysis.scattered import Scatter, Site
    from qdtrace.ir.program import Atom, Eqn, Var


class Kept:
    """Values that a task accumulates, in an array each with an element for each iteration."""

    def __init__(self, found: ScatteringTask, scatters: Sequence[Scatter]) -> None:
        self.found = found
        self.buffers: dict[Eqn, Var | None] = {}
        """The array of each accumulation; None for a constant value."""
        self.first: set[Eqn] = set()
        """The first accumulation of each value."""
        size = prod(map(len, found.box.values()))
        known: dict[object, Var] = {}
        for site in (s for scatter in scatters for s in found.sites[scatter.ref]):
            (value,) = values_of(site.eqn)
            if isinstance(value, Literal):
                self.buffers[site.eqn] = None
                continue
            key = value, _place(site)
            if key not in known:
                known[key] = ref_var(value.dtype, (size,), "kept")
                self.first.add(site.eqn)
            self.buffers[site.eqn] = known[key]

    @property
    def arrays(self) -> tuple[Var, ...]:
        """The arrays."""
        return tuple(dict.fromkeys(v for v in self.buffers.values() if v is not None))

    def element(self, builder: Rebuilder) -> Atom:
        """Emits the iteration's number and returns it."""
        task = self.found.task
        assert task.index is not None
        start = int(task.start.value) if isinstance(task.start, Literal) else 0
        return builder("sub", task.index, literal(start, task.index.dtype)) if start else task.index

    def loading(self) -> ScatteringTask:
        """Returns the task with loads of the kept values in front of their accumulations."""
        return ScatteringTask(_Loading(self).rebuild_task(self.found.task), self.found.index, self.found.box)


def _place(site: Site) -> tuple[tuple[int, int], ...]:
    return tuple((id(eqn), number) for eqn, number in site.around)


class _Loading(Rebuilder):
    def __init__(self, kept: Kept) -> None:
        super().__init__()
        self._kept = kept

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation; an accumulation takes a value that is kept."""
        if (array := self._kept.buffers.get(eqn)) is None:
            super().visit(eqn)
            return
        self.loc = eqn.loc
        value = self.load(array, self._kept.element(self))
        self.accum(reference(eqn), value, *self.atoms(indices_of(eqn)), op=eqn.params["op"])


class Rest(Rebuilder):
    """Rebuilds a task without what is gathered before it."""

    def __init__(self, gathered: Collection[Var], apart: Mapping[Var, Literal | None], kept: Kept) -> None:
        """Accumulations into `gathered` references go. Those into `apart` ones, each of whose elements one iteration
        reaches, become stores; these map to what they have in them. What is `kept` is stored there."""
        super().__init__()
        self._gathered, self._apart, self._kept = gathered, apart, kept

    def visit(self, eqn: Eqn) -> None:
        """Appends what becomes of an equation."""
        self.loc = eqn.loc
        if eqn in self._kept.buffers:
            if (array := self._kept.buffers[eqn]) is not None and eqn in self._kept.first:
                self.store(array, self.atom(values_of(eqn)[0]), self._kept.element(self))
        elif eqn.primitive is not ACCUM or eqn.invars[0] not in {*self._gathered, *self._apart}:
            super().visit(eqn)
        elif eqn.invars[0] in self._apart:
            ref, (value,), at = reference(eqn), self.atoms(values_of(eqn)), self.atoms(indices_of(eqn))
            before = self._apart[ref] or self.load(ref, *at)
            self.store(ref, self(combining(eqn.params["op"], ref.dtype), before, value), *at)
