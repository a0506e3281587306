"""Values that cross the borders of parts: each has a place in one block of memory while it is live.

A part stores a value after its definition, and a part that reads it loads it before its first use. As arguments and
results values would go through memory as well, but several times: from a result into a slot of the caller, and from
there into the arguments of every part that reads them. A place is reused as soon as its value is dead, so that few
cache lines hold all of them.

The frame decides which values have places (`Frame.place_bytes`): vectors of numbers. Scalars and masks stay in
registers.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from lowering.llvm.text import Text
    from qdtrace.ir.program import Var


class Crossings:
    """The places of one function and its parts."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.pointer = "%crossings"
        """Register of the pointer to the block of memory, the same in the function and in all parts."""
        self.nbytes = 0
        self.awaited: set[Var] = set()
        """Values that the part being emitted reads and has not loaded yet."""
        self.handed_over: frozenset[Var] = frozenset()
        """Values that the part being emitted stores for other parts."""
        self._offsets: dict[Var, tuple[int, ...]] = {}
        self._sizes: dict[Var, int] = {}
        self._free: dict[int, list[int]] = {}

    def __contains__(self, var: Var) -> bool:
        """Returns whether a variable has a place."""
        return var in self._offsets

    @contextmanager
    def within(self, awaited: Iterable[Var], handed_over: frozenset[Var]) -> Generator[None]:
        """Emits a part that reads the values `awaited`. The part around it goes on with its own ones."""
        around = self.awaited, self.handed_over
        self.awaited, self.handed_over = set(awaited), handed_over
        yield
        self.awaited, self.handed_over = around

    def take(self, var: Var, registers: int, nbytes: int) -> None:
        """Allocates a place for a variable's registers, each of `nbytes`, a power of two."""
        self._offsets[var] = tuple(self._taken(nbytes) for _ in range(registers))
        self._sizes[var] = nbytes

    def leave(self, var: Var) -> None:
        """Frees the place of a variable."""
        self._free.setdefault(self._sizes.pop(var), []).extend(reversed(self._offsets.pop(var)))

    def store(self, var: Var, kind: str, registers: Sequence[str]) -> None:
        """Stores the registers of a variable."""
        for pointer, register in zip(self._pointers(var), registers, strict=True):
            self.text.do(f"store {kind} {register}, ptr {pointer}, align {self._sizes[var]}")

    def load(self, var: Var, kind: str) -> list[str]:
        """Loads the registers of a variable."""
        return [self.text.op(f"load {kind}, ptr {p}, align {self._sizes[var]}") for p in self._pointers(var)]

    def _taken(self, nbytes: int) -> int:
        free = self._free.get(nbytes)
        if free:
            return free.pop()
        start = -(-self.nbytes // nbytes) * nbytes
        self.nbytes = start + nbytes
        return start

    def _pointers(self, var: Var) -> list[str]:
        offsets = self._offsets[var]
        return [self.text.op(f"getelementptr i8, ptr {self.pointer}, i64 {offset}") for offset in offsets]
