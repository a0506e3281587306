"""At the borders of parts: which values have places (`crossings`), how long, and who loads and stores them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.program import Block, Var
from qdtrace.ir.walk import bound_in_block

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lowering.llvm.frame import Frame
    from qdtrace.ir.program import Eqn


class Scope:
    """The places that values have while one block is emitted."""

    def __init__(self, f: Frame, eqns: Sequence[Eqn], far: Sequence[Eqn]) -> None:
        """`far` are those of the block's equations that are in parts or have some."""
        self.f = f
        self._crossings = f.crossings
        self._own: list[Var] = []
        self._far = f.facts.readers_in(Block((), tuple(far), ()))
        if not far:
            return
        whole = Block((), tuple(eqns), ())
        self._inside = f.facts.readers_in(whole)
        self._last = {v: n for n, eqn in enumerate(eqns) for v in reads(f, eqn)}
        made = set(bound_in_block(whole))  # where a block is emitted twice, registers of the first time are known
        self.place([v for v in self._far if v in f.env and v not in made])

    def takes(self, var: Var) -> bool:
        """Whether a variable crosses borders through memory."""
        return bool(self.f.place_bytes(var))

    def open(self, var: Var) -> None:
        """Gives a variable a place."""
        self._crossings.take(var, self.f.registers(var), self.f.place_bytes(var))
        self._own.append(var)

    def place(self, found: Iterable[Var]) -> None:
        """Stores those variables in registers that parts read."""
        for v in found:
            if v in self._far and v not in self._crossings and self.takes(v):
                self.open(v)
                hand_over(self.f, v)

    def leave(self, stop: int) -> None:
        """The equations in front of number `stop` have been emitted."""
        kept: list[Var] = []
        for v in self._own:
            if self._last.get(v, -1) >= stop or self._escapes(v):
                kept.append(v)
            else:
                self._crossings.leave(v)
        self._own = kept

    def close(self) -> None:
        """The block ends: what others read of it is in registers."""
        for v in self._own:
            if v not in self.f.env:
                fetch(self.f, v)
            self._crossings.leave(v)

    def _escapes(self, var: Var) -> bool:
        return var not in self.f.env and self.f.facts.readers[var] > self._inside[var]


def reads(f: Frame, eqn: Eqn) -> Iterable[Var]:
    """What an equation, with its blocks, reads."""
    if eqn.blocks or eqn.primitive.values is not None:
        return f.facts.readers_in(Block((), (eqn,), ()))
    return [a for a in eqn.invars if isinstance(a, Var)]


def fetch(f: Frame, var: Var) -> None:
    """Loads a variable from its place."""
    f.bind(var, f.crossings.load(var, f.ops(var).type(var.dtype)))


def hand_over(f: Frame, var: Var) -> None:
    """Stores a variable in its place."""
    f.crossings.store(var, f.ops(var).type(var.dtype), f.operands(var, var))


def before(f: Frame, eqn: Eqn) -> None:
    """Loads what an equation is the first of its part to read."""
    awaited = f.crossings.awaited
    if awaited:
        for v in reads(f, eqn):
            if v in awaited:
                awaited.remove(v)
                fetch(f, v)


def after(f: Frame, eqn: Eqn) -> None:
    """Stores what an equation of a part gives to others."""
    for v in eqn.outvars:
        if v in f.crossings.handed_over:
            hand_over(f, v)
