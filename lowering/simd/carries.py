"""Values carried by a divergent loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.arithmetic import RULES
from lowering.llvm.carries import Carries, Phis, joined
from lowering.simd.live_lanes import LiveLanes
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

    def __init__(
        self, f: LaneFrame, eqn: Eqn, initial: Sequence[Atom], params: Sequence[Var], flag: int | None = None
    ) -> None:
        super().__init__(f, eqn, initial, params)
        self.lanes = f
        self.flag = flag
        """Position of the carry that says which lanes are in the loop, if there is one; its phis are `LiveLanes`."""
        if flag is not None:
            self.initial[flag] = [*LiveLanes.of(f, f.narrowed(f.mask, self.initial[flag])).registers]
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

    @property
    def live(self) -> LiveLanes:
        """Returns the lanes that are in the loop, as the flag says."""
        assert self.flag is not None
        return LiveLanes(self.lanes, tuple(self.values[self.flag]))

    def type_of(self, param: Var) -> str:
        """Returns the type of the phis of a parameter."""
        is_flag = self.flag is not None and param is self.params[self.flag]
        return LiveLanes(self.lanes, ()).type if is_flag else super().type_of(param)

    def bind(self, params: Sequence[Var]) -> None:
        """Binds parameters to the current values."""
        super().bind(params)
        if self.flag is not None:
            self.f.bind(params[self.flag], self.live.masks)

    def step_in(self, body: Block, live: Mask) -> None:
        """Makes the results of an iteration the current values, in the lanes that ran it."""
        before = self.values
        self.step(body)
        for n, (param, out) in enumerate(zip(self.params, self.eqn.outvars, strict=True)):
            if self.kept[n]:
                self.remembered[n] = self._remember(n, body, live)
            # a value that is dead after the loop needs no blending
            if n == self.flag:
                self.values[n] = [*LiveLanes(self.lanes, tuple(before[n])).narrowed(self.values[n]).registers]
            elif not self.uniform[n] and out in self.f.facts.used:
                self.values[n] = self.lanes.blended(live, param.dtype, self.values[n], before[n])

    def _remember(self, n: int, body: Block, live: Mask) -> list[str]:
        """Returns the next values of a scalar carry, in the lanes that ran the iteration.

        Where masks have registers, a broadcast of the scalar under one is an instruction. Elsewhere a counter is
        incremented as a vector, as that would be a move between register files and a blend.
        """
        f, param, result, old = self.lanes, self.params[n], body.results[n], self.remembered[n]
        made = next((e for e in body.eqns if result in e.outvars and e.primitive in (ADD, SUB)), None)
        if f.target.has_masks or made is None or made.invars[0] is not param or not isinstance(made.invars[1], Literal):
            return f.blended(live, param.dtype, f.vectors_of(result), old)
        by = made.invars[1]
        if live.numbers is not None and by.value == 1 and param.dtype.is_integer and param.dtype.bits == 32:
            name = "sub" if made.primitive is ADD else "add"  # of -1 in a lane that is on
            type_ = f.vector.type(param.dtype)
            return [f.vector.binary(name, type_, a, b) for a, b in zip(old, live.numbers, strict=True)]
        rule = RULES[made.primitive.name]
        new = [rule(f.vector, param.dtype, [a, f.vector_of(by, v)], {}, made.invars) for v, a in enumerate(old)]
        return f.blended(live, param.dtype, new, old)

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
        if self.flag is not None:
            main[self.flag] = LiveLanes(self.lanes, tuple(main[self.flag])).masks
        for out, uniform, values, remembered in zip(self.eqn.outvars, self.uniform, main, kept, strict=True):
            if remembered:
                self.f.bind(out, remembered)
            elif not uniform or self.f.is_uniform(out):
                self.f.bind(out, values)
