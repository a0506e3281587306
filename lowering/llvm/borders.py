"""The borders of parts: lifetimes of places (`crossings`), and loads and stores of their values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.program import Block, Var
from qdtrace.ir.walk import bound_in_block

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lowering.llvm.frame import Frame
    from qdtrace.ir.program import Eqn


class Scope:
    """The places of values while one block is emitted."""

    def __init__(self, f: Frame, eqns: Sequence[Eqn], far: Sequence[Eqn]) -> None:
        """`far` are the equations of the block that are in parts or contain parts."""
        self.f = f
        self._crossings = f.crossings
        self._own: list[Var] = []
        self._far = f.facts.readers_in(Block((), tuple(far), ()))
        if not far:
            return
        whole = Block((), tuple(eqns), ())
        self._inside = f.facts.readers_in(whole)
        self._last = {v: n for n, eqn in enumerate(eqns) for v in reads(f, eqn)}
        made = set(bound_in_block(whole))  # a block emitted twice finds the registers of the first time
        self.place([v for v in self._far if v in f.env and v not in made])

    def takes(self, var: Var) -> bool:
        """Returns whether a variable crosses borders through memory."""
        return bool(self.f.place_bytes(var))

    def open(self, var: Var) -> None:
        """Allocates a place for a variable."""
        self._crossings.take(var, self.f.registers(var), self.f.place_bytes(var))
        self._own.append(var)

    def place(self, found: Iterable[Var]) -> None:
        """Stores the variables that parts read, unless they have places already."""
        for v in found:
            if v in self._far and v not in self._crossings and self.takes(v):
                self.open(v)
                hand_over(self.f, v)

    def leave(self, stop: int) -> None:
        """Frees places whose last reader is before equation `stop`, up to which all are emitted."""
        kept: list[Var] = []
        for v in self._own:
            if self._last.get(v, -1) >= stop or self._escapes(v):
                kept.append(v)
            else:
                self._crossings.leave(v)
        self._own = kept

    def close(self) -> None:
        """Ends the block: loads values that are read after it, and frees its places."""
        for v in self._own:
            if v not in self.f.env:
                fetch(self.f, v)
            self._crossings.leave(v)

    def _escapes(self, var: Var) -> bool:
        return var not in self.f.env and self.f.facts.readers[var] > self._inside[var]


def reads(f: Frame, eqn: Eqn) -> Iterable[Var]:
    """Returns the variables that an equation, with its blocks, reads."""
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
    """Loads the values that an equation is the first of its part to read."""
    awaited = f.crossings.awaited
    if awaited:
        for v in reads(f, eqn):
            if v in awaited:
                awaited.remove(v)
                fetch(f, v)


def after(f: Frame, eqn: Eqn) -> None:
    """Stores the results of an equation that other parts read."""
    for v in eqn.outvars:
        if v in f.crossings.handed_over:
            hand_over(f, v)
