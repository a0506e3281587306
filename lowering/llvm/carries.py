"""Values carried round a loop: the phis of its block, in scalars and vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.arithmetic import RULES
from lowering.llvm.vectors import Mask, Value
from qdtrace.ir.program import Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.frame import Frame
    from qdtrace.ir.program import Atom, Block, Eqn, Var
    from qdtrace.ir.types import DType


class Phis:
    """Phis of one loop header: reserved when the loop is entered, filled when its end is known."""

    def __init__(self, f: Frame, before: str) -> None:
        self.f = f
        self.before = before
        self._open: list[tuple[int, str, str, str]] = []

    def add(self, type_: str, initial: str) -> str:
        """A phi with its value on entry; the value on the way back comes with `close`, in order."""
        register = self.f.text.name()
        self._open.append((self.f.text.hole(), register, type_, initial))
        return register

    def close(self, values: Sequence[str], *latches: str) -> None:
        """Fills in the values of the next iteration, which starts from each of the latches."""
        for (hole, register, type_, initial), value in zip(self._open, values, strict=True):
            sources = [f"[ {value}, %{latch} ]" for latch in latches]
            self.f.text.fill(hole, f"{register} = phi {type_} [ {initial}, %{self.before} ], {', '.join(sources)}")


class Carries:
    """Carried values of a loop as phis.

    In a divergent loop a carry that is uniform inside (a counter) has a second phi that remembers, lane by lane, the
    value with which a lane left, if anybody reads the result.
    """

    def __init__(self, f: Frame, eqn: Eqn, initial: Sequence[Atom], params: Sequence[Var]) -> None:
        self.f = f
        self.eqn = eqn
        self.params = list(params)
        self.uniform = [f.is_uniform(p) for p in params]
        self.kept = [
            u and not f.is_uniform(out) and out in f.facts.used
            for u, out in zip(self.uniform, eqn.outvars, strict=True)
        ]
        # what is spread over the lanes must be computed before the loop's block begins
        self.initial = [self._operands(a, u) for a, u in zip(initial, self.uniform, strict=True)]
        self.initial_kept = [self._operands(a, False) if k else [] for a, k in zip(initial, self.kept, strict=True)]
        self.values: list[list[str]] = []
        self.remembered: list[list[str]] = []

    def _operands(self, atom: Atom, uniform: bool) -> list[str]:
        f = self.f
        return [f.scalar_of(atom)] if uniform else [f.vector_of(atom, v) for v in range(f.vectors)]

    def _type(self, dtype: DType, uniform: bool) -> str:
        return (self.f.scalar if uniform else self.f.vector).type(dtype)

    def open(self, phis: Phis) -> None:
        """Adds the phis at the start of the loop's block."""
        for param, uniform, initial in zip(self.params, self.uniform, self.initial, strict=True):
            self.values.append([phis.add(self._type(param.dtype, uniform), i) for i in initial])
        for param, initial in zip(self.params, self.initial_kept, strict=True):
            self.remembered.append([phis.add(self._type(param.dtype, False), i) for i in initial])

    def bind(self, params: Sequence[Var]) -> None:
        """Makes the current values known under parameters."""
        for param, uniform, values in zip(params, self.uniform, self.values, strict=True):
            self.f.env[param] = Value(param.dtype, scalar=values[0]) if uniform else Value(param.dtype, vectors=values)

    def step(self, body: Block, live: Mask) -> None:
        """Takes the results of an iteration for the lanes that made it."""
        after = [self._operands(a, u) for a, u in zip(body.results, self.uniform, strict=True)]
        for n, (param, new) in enumerate(zip(self.params, after, strict=True)):
            if self.kept[n]:
                spread = self._remember(n, body)
                self.remembered[n] = self._blended(param.dtype, live, spread, self.remembered[n])
            # a lane that has left may go on computing what nobody reads after the loop
            if not self.uniform[n] and self.eqn.outvars[n] in self.f.facts.used:
                new = self._blended(param.dtype, live, new, self.values[n])
            self.values[n] = new

    def _remember(self, n: int, body: Block) -> list[str]:
        """The next value of a scalar carry in all lanes. A counter counts in the lanes too: that is one masked
        addition, where spreading the scalar would be a move between register files for every step."""
        param, result = self.params[n], body.results[n]
        made = next((e for e in body.eqns if result in e.outvars and e.primitive.name in ("add", "sub")), None)
        if made is not None and made.invars[0] is param and isinstance(made.invars[1], Literal):
            by, rule, d = made.invars[1], RULES[made.primitive.name], param.dtype
            held = enumerate(self.remembered[n])
            return [rule(self.f.vector, d, [old, self.f.vector_of(by, v)], {}, made.invars) for v, old in held]
        return self._operands(result, False)

    def _blended(self, dtype: DType, live: Mask, new: list[str], old: list[str]) -> list[str]:
        pairs = enumerate(zip(new, old, strict=True))
        return [self.f.blend(live, dtype, a, b, v) for v, (a, b) in pairs]

    def flat(self) -> list[str]:
        """All current values in the order of the phis."""
        return [r for group in (*self.values, *self.remembered) for r in group]

    def flat_initial(self) -> list[str]:
        """All values before the loop in the order of the phis."""
        return [r for group in (*self.initial, *self.initial_kept) for r in group]

    def flat_types(self) -> list[str]:
        """Types in the order of the phis."""
        found: list[str] = []
        for param, uniform, group in zip(self.params, self.uniform, self.initial, strict=True):
            found += [self._type(param.dtype, uniform)] * len(group)
        for param, group in zip(self.params, self.initial_kept, strict=True):
            found += [self._type(param.dtype, False)] * len(group)
        return found

    def finish(self, registers: Sequence[str]) -> None:
        """Binds the results of the loop to registers given in the order of the phis."""
        left = iter(registers)
        main = [[next(left) for _ in group] for group in self.initial]
        kept = [[next(left) for _ in group] for group in self.initial_kept]
        for out, uniform, values, remembered in zip(self.eqn.outvars, self.uniform, main, kept, strict=True):
            if remembered:
                self.f.env[out] = Value(out.dtype, vectors=remembered)
            elif uniform and self.f.is_uniform(out):
                self.f.env[out] = Value(out.dtype, scalar=values[0])
            elif not uniform:
                self.f.env[out] = Value(out.dtype, vectors=values)


def merge(f: Frame, carries: Carries, before: str, latch: str, last: Sequence[str]) -> None:
    """Results of a loop that may be skipped: phis of the initial and the last values."""
    found: list[str] = []
    for type_, first, value in zip(carries.flat_types(), carries.flat_initial(), last, strict=True):
        found.append(f.text.op(f"phi {type_} [ {first}, %{before} ], [ {value}, %{latch} ]"))
    carries.finish(found)
