"""States of a walk, replaced by what the walk back computes of them alone.

    for t in 0 : n    carry s                for t in 0 : n    carry s
      r = sin s                                r = sin s
      store c s t                              d = cos s
                                      ->       store e d t
    for t in n - 1 : -1 : -1  carry b        for t in n - 1 : -1 : -1  carry b
      s = load c t                             d = load e t
      d = cos s
      yield mul b d                            yield mul b d

The two functions share most of their work, so the walk back becomes a few operations for each iteration. It is done
where that needs no more memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.memory import reference
from qdtrace.ir.primitives import CELL, LOAD
from qdtrace.ir.program import Literal, Var, ref_type
from qdtrace.ir.rebuild import Copier, Rebuilder
from qdtrace.ir.walk import used_vars

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from qdtrace.analysis.spans import Walk
    from qdtrace.ir.program import Block, Eqn, Task


def with_partials(task: Task, states: Mapping[Var, Eqn], walks: tuple[Walk, ...]) -> Task:
    """Returns the task with what one walk computes of the states alone in their place, or the task itself."""
    holds = {eqn: walk for walk in walks for eqn in walk.block.eqns}
    filling = {holds[store] for store in states.values()}
    reading = {w for w in walks for e in w.block.eqns if e.primitive is LOAD and e.invars[0] in states}
    if len(filling) != 1 or len(reading) != 1:
        return task
    (forward,), (back,) = filling, reading
    early, wanted = _of_states(back.block, states)
    size = sum(v.dtype.itemsize for v in wanted)
    if not any(e.primitive is not LOAD for e in early) or size > sum(v.dtype.itemsize for v in states):
        return task
    return _Partials(states, forward, back, early, wanted).rebuild_task(task)


def _of_states(block: Block, states: Collection[Var]) -> tuple[list[Eqn], list[Var]]:
    """Returns the equations of a block that load states or need nothing else, and which of their results others use."""
    early: list[Eqn] = []
    known: set[Var] = set()
    for eqn in block.eqns:
        of_states = [a for a in eqn.invars if not isinstance(a, Literal)]
        pure = not eqn.primitive.effects and not eqn.blocks and len(eqn.outvars) == 1
        is_load = eqn.primitive is LOAD and eqn.invars[0] in states
        if is_load or (pure and of_states and known.issuperset(of_states)):
            early.append(eqn)
            known.update(eqn.outvars)
    rest = (e for e in block.eqns if e not in set(early))
    used = [*(v for e in rest for v in used_vars(e)), *(v for v in block.results if isinstance(v, Var))]
    return early, [v for v in dict.fromkeys(used) if v in known]


class _Partials(Rebuilder):
    """Rebuilds a task with `wanted` stored in the walk `forward` and loaded in the walk `back`."""

    def __init__(
        self, states: Mapping[Var, Eqn], forward: Walk, back: Walk, early: list[Eqn], wanted: list[Var]
    ) -> None:
        super().__init__()
        self.states = states
        self.forward = forward
        self.back = back
        self.early = early
        self.wanted = wanted
        self.memory: list[Var] = []

    def visit(self, eqn: Eqn) -> None:
        """Rebuilds an equation other than those of states; the first of these becomes the new private arrays."""
        if eqn.primitive is CELL and eqn.outvar in self.states:
            if not self.memory:
                self.memory = [self.cell(v.dtype, ref_type(eqn.outvar).shape) for v in self.wanted]
        elif eqn not in self.early and eqn not in self.states.values():
            super().visit(eqn)
        elif eqn is self.early[0]:
            for var, memory in zip(self.wanted, self.memory, strict=True):
                self.env[var] = self.load(memory, self._counter(self.back))
        elif eqn is list(self.states.values())[-1]:
            self._fill()

    def _fill(self) -> None:
        """Emits what the walk back needs of the states, where the last of them is stored."""
        stored = {array: self.atom(store.invars[1]) for array, store in self.states.items()}
        values = {e.outvar: stored[reference(e)] for e in self.early if e.primitive is LOAD}
        copier = Copier(values)
        for eqn in copier.rebuild_eqns([e for e in self.early if e.primitive is not LOAD]):
            self.append(eqn)
        for var, memory in zip(self.wanted, self.memory, strict=True):
            self.store(memory, copier.atom(var), self._counter(self.forward))

    @staticmethod
    def _counter(walk: Walk) -> Var:
        assert walk.counter is not None
        return walk.counter
