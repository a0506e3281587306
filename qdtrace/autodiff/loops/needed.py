"""Values that a walk back needs: operands of partial derivatives, indices, conditions, and all that those come from.

Values that are only summed are not among them: a carried value that the body of a loop adds to and does not read
otherwise is not part of the loop's state.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING

from qdtrace.autodiff.custom import residuals_of
from qdtrace.ir.carries import carries_of
from qdtrace.ir.dataflow import flows, reached
from qdtrace.ir.memory import indices_of, values_of
from qdtrace.ir.primitives import BOUND, CUSTOM, FMA, SELECT, WHILE
from qdtrace.ir.program import Var, is_local
from qdtrace.ir.walk import bound_in_block, walk_eqns

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from qdtrace.ir.program import Atom, Block, Eqn, Task


class Needed:
    """Values that the reverse of one task needs."""

    def __init__(
        self, task: Task, volatile: Collection[Var], active: Collection[Var], zero: Collection[Var] = ()
    ) -> None:
        """`volatile` are global references whose content the reverse task makes again; `active` are variables that
        have adjoints; `zero` are variables that are zero."""
        self.task = task
        self.active = active
        self.volatile = volatile
        self.zero = zero
        self._sources: defaultdict[Var, list[Var]] = defaultdict(list)
        for eqn in walk_eqns(task.body):
            if eqn.blocks:
                for source, target in flows(eqn):
                    self._sources[target].append(source)
                for carry in carries_of(eqn):
                    self._sources[carry.outvar] += carry.params
            for out in () if eqn.blocks else eqn.outvars:
                self._sources[out] += [a for a in eqn.invars if isinstance(a, Var)]

    @cached_property
    def everywhere(self) -> set[Var]:
        """Values that the walk back over the whole task needs."""
        return self.among(walk_eqns(self.task.body))

    def among(self, eqns: Iterable[Eqn]) -> set[Var]:
        """Returns the values that the walk back over equations needs. `eqns` must include those inside of blocks."""
        used = (a for eqn in eqns for a in self._used(eqn) if isinstance(a, Var))
        return reached(used, lambda var: self._sources.get(var, ()), without=self.zero)

    def held(self, body: Block) -> set[Var]:
        """Returns the values of an iteration that the walk back through it uses."""
        made = set(bound_in_block(body))
        return {a for eqn in walk_eqns(body) for a in self._used(eqn) if isinstance(a, Var) and a in made}

    def _used(self, eqn: Eqn) -> Iterable[Atom]:
        """Returns the operands of an equation whose values the walk back uses."""
        prim = eqn.primitive
        if eqn.blocks:
            return (*eqn.control, *(eqn.blocks[0].results if prim is WHILE else ()))
        if prim.is_access:
            ref = eqn.invars[0]
            kept = ref not in self.zero and (is_local(ref) or ref in self.volatile)
            return (*indices_of(eqn), *(values_of(eqn) if kept else ()))
        if eqn.outvars and not eqn.outvar.dtype.is_float and prim not in (BOUND, CUSTOM):
            return ()
        if prim is CUSTOM:
            count = residuals_of(eqn)
            return [a for a in eqn.invars[1:] if a not in self.active] if count is None else eqn.invars[1 : 1 + count]
        if not prim.effects and (prim.locally_constant or not any(a in self.active for a in eqn.invars)):
            return ()  # what is computed from it asks for its operands
        if prim.slope_reads is None or prim is FMA:
            return eqn.invars
        # A choice asks for its condition whether or not a side has a tangent, as `fma` does for all of its operands:
        # without these other values are kept, and segments of loops have other lengths than those that were measured.
        reads = [r for r, a in zip(prim.slope_reads, eqn.invars, strict=True) if a in self.active or prim is SELECT]
        return eqn.invars if None in reads else [eqn.invars[k] for read in reads if read for k in read]
