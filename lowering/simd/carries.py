"""Values carried by a divergent loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.arithmetic import RULES
from lowering.llvm.carries import Carries, Phis, joined
from qdtrace.ir.primitives import ADD, SUB
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Var

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.simd.descriptions import Mask
    from lowering.simd.frame import LaneFrame


class LaneCarries(Carries):
    """Carried values as phis; a lane that has left the loop keeps its values.

    A carry that is uniform inside the loop (a counter) has a second phi, if its result is read, that remembers the
    value with which each lane left.
    """

    def __init__(self, f: LaneFrame, eqn: Eqn, initial: Sequence[Atom], params: Sequence[Var]) -> None:
        super().__init__(f, eqn, initial, params)
        self.lanes = f
        self.uniform = [f.is_uniform(p) for p in params]
        self.kept = [
            u and not f.is_uniform(out) and out in f.facts.used
            for u, out in zip(self.uniform, eqn.outvars, strict=True)
        ]
        self.initial_kept = [f.vectors_of(a) if k else [] for a, k in zip(initial, self.kept, strict=True)]
        self.remembered: list[list[str]] = []

    def open(self, phis: Phis) -> None:
        """Adds the phis at the start of the loop's block."""
        super().open(phis)
        for param, initial in zip(self.params, self.initial_kept, strict=True):
            self.remembered.append([phis.add(self.lanes.vector.type(param.dtype), i) for i in initial])

    def step_in(self, body: Block, live: Mask) -> None:
        """Makes the results of an iteration the current values, in the lanes that ran it."""
        before = self.values
        self.step(body)
        for n, (param, out) in enumerate(zip(self.params, self.eqn.outvars, strict=True)):
            if self.kept[n]:
                spread = self._remember(n, body)
                self.remembered[n] = self.lanes.blended(live, param.dtype, spread, self.remembered[n])
            # a value that is dead after the loop needs no blending
            if not self.uniform[n] and out in self.f.facts.used:
                self.values[n] = self.lanes.blended(live, param.dtype, self.values[n], before[n])

    def _remember(self, n: int, body: Block) -> list[str]:
        """Returns the next value of a scalar carry in all lanes. A counter is incremented as a vector: that is one
        masked addition, where a broadcast of the scalar would be a move between register files in every step."""
        f, param, result = self.lanes, self.params[n], body.results[n]
        made = next((e for e in body.eqns if result in e.outvars and e.primitive in (ADD, SUB)), None)
        if made is not None and made.invars[0] is param and isinstance(made.invars[1], Literal):
            by, rule = made.invars[1], RULES[made.primitive.name]
            held = enumerate(self.remembered[n])
            return [rule(f.vector, param.dtype, [old, f.vector_of(by, v)], {}, made.invars) for v, old in held]
        return f.vectors_of(result)

    def flat(self) -> list[str]:
        """Returns all current values in the order of the phis."""
        return [*super().flat(), *joined(self.remembered)]

    def flat_initial(self) -> list[str]:
        """Returns all values before the loop in the order of the phis."""
        return [*super().flat_initial(), *joined(self.initial_kept)]

    def flat_types(self) -> list[str]:
        """Returns the types in the order of the phis."""
        types = [self.lanes.vector.type(param.dtype) for param in self.params]
        kept = [[t] * len(group) for t, group in zip(types, self.initial_kept, strict=True)]
        return [*super().flat_types(), *joined(kept)]

    def finish(self, registers: Sequence[str]) -> None:
        """Binds the results of the loop to registers given in the order of the phis."""
        left = iter(registers)
        main = [[next(left) for _ in group] for group in self.initial]
        kept = [[next(left) for _ in group] for group in self.initial_kept]
        for out, uniform, values, remembered in zip(self.eqn.outvars, self.uniform, main, kept, strict=True):
            if remembered:
                self.f.bind(out, remembered)
            elif not uniform or self.f.is_uniform(out):
                self.f.bind(out, values)
