"""Values carried by a loop: the phis of its header, in scalars and vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.frame import Frame
    from qdtrace.ir.program import Atom, Block, Eqn, Var


class Phis:
    """The phis of one loop header: reserved when the loop is entered, filled when its end is known."""

    def __init__(self, f: Frame, before: str) -> None:
        self.f = f
        self.before = before
        self._open: list[tuple[int, str, str, str]] = []

    def add(self, type_: str, initial: str) -> str:
        """Reserves a phi with its value on entry and returns its register; `close` fills in the other value."""
        register = self.f.text.name()
        self._open.append((self.f.text.hole(), register, type_, initial))
        return register

    def close(self, values: Sequence[str], *latches: str) -> None:
        """Fills in the values of the next iteration, which starts from each of the latches."""
        for (hole, register, type_, initial), value in zip(self._open, values, strict=True):
            sources = [f"[ {value}, %{latch} ]" for latch in latches]
            self.f.text.fill(hole, f"{register} = phi {type_} [ {initial}, %{self.before} ], {', '.join(sources)}")


class Carries:
    """The carried values of a loop as phis."""

    def __init__(self, f: Frame, eqn: Eqn, initial: Sequence[Atom], params: Sequence[Var]) -> None:
        self.f = f
        self.eqn = eqn
        self.params = list(params)
        # broadcasts must be computed before the loop's block begins
        self.initial = [f.operands(p, a) for p, a in zip(params, initial, strict=True)]
        self.values: list[list[str]] = []

    def type_of(self, param: Var) -> str:
        """Returns the type of the phis of a parameter."""
        return self.f.ops(param).type(param.dtype)

    def open(self, phis: Phis) -> None:
        """Adds the phis at the start of the loop's block."""
        for param, initial in zip(self.params, self.initial, strict=True):
            type_ = self.type_of(param)
            self.values.append([phis.add(type_, i) for i in initial])

    def bind(self, params: Sequence[Var]) -> None:
        """Binds parameters to the current values."""
        for param, values in zip(params, self.values, strict=True):
            self.f.bind(param, values)

    def step(self, body: Block) -> None:
        """Makes the results of an iteration the current values."""
        self.values = [self.f.operands(p, a) for p, a in zip(self.params, body.results, strict=True)]

    def flat(self) -> list[str]:
        """Returns all current values in the order of the phis."""
        return joined(self.values)

    def flat_initial(self) -> list[str]:
        """Returns all values before the loop in the order of the phis."""
        return joined(self.initial)

    def flat_types(self) -> list[str]:
        """Returns the types in the order of the phis."""
        types = map(self.type_of, self.params)
        return joined([[t] * len(group) for t, group in zip(types, self.initial, strict=True)])

    def finish(self, registers: Sequence[str]) -> None:
        """Binds the results of the loop to registers given in the order of the phis."""
        left = iter(registers)
        for out, group in zip(self.eqn.outvars, self.initial, strict=True):
            self.f.bind(out, [next(left) for _ in group])

    def merge(self, before: str, latch: str) -> None:
        """Binds the results of a loop that may be skipped: phis of the initial and the last values."""
        found: list[str] = []
        for type_, first, value in zip(self.flat_types(), self.flat_initial(), self.flat(), strict=True):
            found.append(self.f.text.op(f"phi {type_} [ {first}, %{before} ], [ {value}, %{latch} ]"))
        self.finish(found)


def joined(groups: Sequence[Sequence[str]]) -> list[str]:
    """Returns the members of all groups, in order."""
    return [register for group in groups for register in group]
